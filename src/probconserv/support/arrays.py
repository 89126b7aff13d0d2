"""Arithmetic that is the same for arrays and for tensors."""

import sys
from typing import Any

import numpy as np


def functions_of(x: Any) -> Any:
    """The library whose functions take it: NumPy for arrays, torch for tensors."""
    return np if isinstance(x, np.ndarray | np.generic) else sys.modules["torch"]


def constant(values: Any, like: Any) -> Any:
    """Numbers that are known beforehand, of the same kind and in the same place."""
    of = functions_of(like)
    return np.asarray(values) if of is np else of.as_tensor(values, device=like.device)
