"""Small fields in NumPy: one exact law whose rows share no point, and all that is looked at.

Torch takes microseconds for each operation, however small its arrays are; NumPy takes a part of
that. The formulas are those of `Numbers` in `_stages.py`. Whatever needs a closer look, such as
what may be an error, is left to the engine. So is all that a posterior knows beside its mean and
its variance.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ._checks import in_numpy
from ._errors import FAR
from ._fields import Diagonal
from ._laws import Fields, Law
from ._maps import Sum, fits
from ._once import once
from ._posterior import Posterior, Solved
from ._rowwise import SETTLED, TINY
from ._stages import CARE

SMALL = 1 << 13  # points: larger fields are no slower in torch
Solve = Callable[..., Solved]


def small_posterior(field: object, laws: Sequence[Law], solve: Solve) -> Posterior | None:
    """The field given one law; None where this is not small and simple, or not plainly right.

    solve: of the engine, for what is asked later.
    """
    if len(laws) > 1 or not isinstance(field, Diagonal):
        return None
    (law,), mean, variance = laws, field.mean, field.variance
    m, value, shape = law.map, law.value, mean.shape
    if not (isinstance(m, Sum) and m.shared and m.dims and 0 < mean.numel() <= SMALL):
        return None
    places = shape[: len(shape) - m.dims]
    if not places or shape[len(places) :] != m.weights.shape or not fits(value.shape, places):
        return None
    simple = law.exact and law.times is None and len(law.maps) == 1
    if not (simple and in_numpy(mean, variance, m.weights, value)):
        return None
    g, b, flat = m.weights.numpy().reshape(-1), value.numpy(), (*places, -1)
    u = mean.numpy().reshape(flat).astype(float)  # a copy, as is d
    d = variance.numpy().reshape(flat).astype(float)
    with np.errstate(all="ignore"):
        squares = g * g
        seen = d @ squares  # S
        inverse = 1 / seen
        r = u @ g - b
        moved = u - d * g * (r * inverse)[..., None]
        miss, near = abs(moved @ g - b), (seen > TINY) & (r * r * inverse <= FAR**2)
        if not (near & (miss <= SETTLED * abs(b))).all():
            size = abs(moved) @ abs(g) + abs(b)
            if not (near & (miss <= SETTLED * size)).all():
                return None
    if mean.dtype == torch.float64:
        prior = Diagonal._unchecked(_tensor(u, shape), _tensor(d, shape))
    else:
        prior = field._map(Tensor.clone)
    found = SmallSolved(_tensor(moved, shape), (d, squares, inverse), m.dims, prior, law, solve)
    return Posterior(prior, found)


class SmallSolved(Solved):
    """A small field given a law: mean and variance at once, the rest when it is asked for."""

    makes_variance = True
    differentiable = False

    def __init__(
        self,
        mean: Tensor,
        numbers: tuple[NDArray[Any], ...],
        dims: int,
        prior: Diagonal,
        law: Law,
        solve: Solve,
    ) -> None:
        """numbers: the variance before, the squares of the weights, S^-1."""
        self.mean, self.dims, self._numbers = (mean,), (dims,), numbers
        self._prior, self._law, self._solve = prior, law, solve

    @once
    def _all(self) -> Solved:
        found = self._solve(self._prior, (self._law,))
        return Solved(found.laws, self.mean, found.way, found.residuals, found.dims)

    def _whole(self) -> Solved:
        return self._all

    @property
    def laws(self) -> Any:  # type: ignore[override]
        return self._all.laws

    @property
    def way(self) -> Any:  # type: ignore[override]
        return self._all.way

    @property
    def residuals(self) -> Any:  # type: ignore[override]
        return self._all.residuals

    @property
    def variance(self) -> Fields:
        d, squares, inverse = self._numbers
        lost = squares * d * inverse[..., None]
        if not lost.max() <= 1 - CARE:
            return self._all.variance
        return (_tensor(d - d * lost, self.mean[0].shape),)


def _tensor(x: NDArray[Any], shape: Sequence[int]) -> Tensor:
    return torch.from_numpy(x.reshape(shape))
