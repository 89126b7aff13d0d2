"""Rows that do not see each other, so that S is a number for each: for arrays and for tensors."""

from typing import Any

TINY = 1e-290  # below this a variance has no usable inverse
EASY = 1e-6  # least pivot, of 1, at which the order of the rows does not matter
SETTLED = 1e-13  # of its terms: an exact row that misses by less is left alone
UNMET = 1e-8  # of its terms: an exact row that misses by more is not met


def row_inverse(seen: Any, keep: Any) -> Any:
    """S^-1 of the rows to keep, 0 of the others."""
    return keep / seen.clip(TINY)
