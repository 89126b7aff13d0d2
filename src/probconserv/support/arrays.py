"""Arithmetic that is the same for arrays and for tensors."""

import sys
from typing import Any

import numpy as np

from .tolerances import TINY


def functions_of(x: Any) -> Any:
    """The library whose functions take it: NumPy for arrays, torch for tensors."""
    return np if isinstance(x, np.ndarray | np.generic) else sys.modules["torch"]


def constant(values: Any, like: Any) -> Any:
    """Numbers that are known beforehand, of the same kind and in the same place."""
    of = functions_of(like)
    return np.asarray(values) if of is np else of.as_tensor(values, device=like.device)


def solved_by_row(own: Any, noise: Any, floor: Any = TINY) -> tuple[Any, Any]:
    """S and S^-1, a number for each row; S^-1 is 0 of rows that nothing can move.

    own: G Sigma G^T. noise: sigma^2; None for exact rows, of which S must exceed the floor.
    """
    seen = own if noise is None else own + noise
    keep = seen > floor if noise is None else (seen > floor) | (noise > 0)
    return seen, keep / seen.clip(TINY)
