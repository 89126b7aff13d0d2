"""Rows that do not see each other, so that S is a number for each: for arrays and for tensors."""

from typing import Any

from .tolerances import TINY


def solved_by_row(own: Any, noise: Any, floor: Any = TINY) -> tuple[Any, Any]:
    """S and S^-1, a number for each row; S^-1 is 0 of rows that nothing can move.

    own: G Sigma G^T. noise: sigma^2; None for exact rows, of which S must exceed the floor.
    """
    seen = own if noise is None else own + noise
    keep = seen > floor if noise is None else (seen > floor) | (noise > 0)
    return seen, keep / seen.clip(TINY)
