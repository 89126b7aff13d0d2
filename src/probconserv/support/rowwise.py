"""Rows that do not see each other, so that S is a number for each: for arrays and for tensors."""

from typing import Any

from .tolerances import TINY as TINY


def row_inverse(seen: Any, keep: Any) -> Any:
    """S^-1 of the rows to keep, 0 of the others."""
    return keep / seen.clip(TINY)
