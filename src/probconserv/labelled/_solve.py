"""The solve of Step 2 and the verdict on totals: what needs torch, as arrays.

Import it where it is called: torch takes a second and a half, and who only sums needs none.
"""

from collections.abc import Mapping
from typing import Any

import torch

from .._causes import Rows
from .._shrinkage import Mix
from .._sums import Ensemble, MeanAndStd
from .._sums_solve import MembersSolver, is_hard, solver
from ._rows import Array

Sums = Mapping[str, Array]


def solved(kind: MeanAndStd | Ensemble, sums: Sums, *given: Array) -> dict[str, Array]:
    """What the update needs; given: b and its noise."""
    return _arrays(solver(kind).solve(_tensors(sums), *map(torch.tensor, given)))


def settled(kind: MeanAndStd | Ensemble, sums: Sums, *given: Array) -> dict[str, Array]:
    """One more move; given: the totals after the update, b and its noise."""
    return _arrays(solver(kind).settle(_tensors(sums), *map(torch.tensor, given)))


def hard(least: Array) -> bool:
    """Whether rows of some index are so nearly dependent that they need to be settled."""
    return bool(is_hard(torch.tensor(least)).any())


def mix(kind: Ensemble, sums: Sums) -> Mix:
    """What the members' covariance is mixed with."""
    return MembersSolver(kind).mix(_tensors(sums))


def rows(total: Array, value: Array, std: Array, slack: Array, timed: bool) -> Rows:
    """Totals beside those that the laws state, to be judged."""
    found = [torch.tensor(each) for each in (total, value, std, slack)]
    return Rows(found[0], found[1], found[2], found[3], timed)


def _tensors(parts: Sums) -> dict[str, Any]:
    return {name: torch.tensor(part) for name, part in parts.items()}


def _arrays(parts: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    return {name: x.numpy() for name, x in parts.items()}
