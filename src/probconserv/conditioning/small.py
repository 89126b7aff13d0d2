"""Small fields in NumPy: one law, and all that is looked at.

Torch takes microseconds for each operation, however small its arrays are; NumPy takes a part of
that. The formulas are those of `Numbers` and `Banded` in `solvers/stages.py`. Whatever needs a
closer look, such as what may be an error, is left to the engine. So is all that a posterior knows
beside its mean and its variance.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..fields.covariances import Fields
from ..fields.gaussian import Diagonal
from ..laws.law import Law
from ..laws.maps import SecondDifferences, Sum, fits
from ..solvers.banded import SMALL as MOST_ENTRIES
from ..solvers.stages import CARE
from ..support.checks import in_numpy
from ..support.errors import FAR
from ..support.once import once
from ..support.tolerances import SETTLED, SURE, TINY
from .posterior import Posterior, Solved

SMALL = 1 << 13  # points: larger fields are no slower in torch
Solve = Callable[..., Solved]


class Moved(NamedTuple):
    """The mean given a law, and what gives the variance; None of it: the engine knows better."""

    mean: NDArray[Any]
    variance: Callable[[], NDArray[Any] | None]


def small_posterior(field: object, laws: Sequence[Law], solve: Solve) -> Posterior | None:
    """The field given one law; None where this is not small and simple, or not plainly right.

    solve: of the engine, for what is asked later.
    """
    if len(laws) > 1 or not isinstance(field, Diagonal):
        return None
    (law,), mean, variance = laws, field.mean, field.variance
    m, shape = law.map, mean.shape
    way = WAYS.get(type(m))
    if way is None or not 0 < mean.numel() <= SMALL or law.times is not None or len(law.maps) > 1:
        return None
    places = shape[: len(shape) - m.dims]
    given = [mean, variance, law.value, law.noise_variance, *m.tensors]
    if not places or not m.dims or not in_numpy(*given):
        return None
    flat = (*places, -1)
    u = mean.numpy().reshape(flat).astype(float)  # a copy, as is d
    d = variance.numpy().reshape(flat).astype(float)
    with np.errstate(all="ignore"):
        found = way(law, u, d, shape)
    if found is None:
        return None
    if mean.dtype == torch.float64:
        prior = Diagonal._unchecked(_tensor(u, shape), _tensor(d, shape))
    else:
        prior = field._map(Tensor.clone)
    return Posterior(prior, SmallSolved(found, shape, m.dims, prior, law, solve))


def _one_number(law: Law, u: NDArray[Any], d: NDArray[Any], shape: Sequence[int]) -> Moved | None:
    """An exact law whose rows share no point: S is a number for each."""
    m, places = law.map, u.shape[:-1]
    assert isinstance(m, Sum)
    fitting = m.shared and shape[len(places) :] == m.weights.shape
    if not (law.exact and fitting and fits(law.value.shape, places)):
        return None
    g, b = m.weights.numpy().reshape(-1), law.value.numpy()
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
    return Moved(moved, partial(_left_by_numbers, d, squares, inverse))


def _left_by_numbers(
    d: NDArray[Any], squares: NDArray[Any], inverse: NDArray[Any]
) -> NDArray[Any] | None:
    lost = squares * d * inverse[..., None]
    return d - d * lost if lost.max() <= 1 - CARE else None


def _five_diagonals(
    law: Law, u: NDArray[Any], d: NDArray[Any], shape: Sequence[int]
) -> Moved | None:
    """Second differences with noise, of few lines: S = L L^T by the routines of LAPACK."""
    m = law.map
    assert isinstance(m, SecondDifferences)
    count, lines = len(m.a), d.size // d.shape[-1]
    sizes, given = (*u.shape[:-1], count), (law.value, law.noise_variance)
    if shape[-1] != count + 2 or not all(fits(t.shape, sizes) for t in given):
        return None
    b, noise = (np.broadcast_to(t.numpy(), sizes) for t in given)
    if lines * count**2 > MOST_ENTRIES or not noise.min() > 0:
        return None
    g = np.stack([m.a.numpy(), m.b.numpy(), m.c.numpy()])
    bands = np.zeros((*sizes, 3))  # S_{k, k}, S_{k+1, k} and S_{k+2, k} of each row k
    bands[..., 0] = _read(g * g, d) + noise
    bands[..., :-1, 1] = _read(g[1:, :-1] * g[:-1, 1:], d[..., 1:-1])
    bands[..., :-2, 2] = g[2, :-2] * g[0, 2:] * d[..., 2:count]
    along, roots = _read(g, u) - b, []
    for band, r in zip(bands.reshape(lines, count, 3), along.reshape(lines, count), strict=True):
        root, failed = lapack().dpbtrf(band.T, lower=1, overwrite_ab=1)
        if failed:
            return None
        r[:] = lapack().dpbtrs(root, r, lower=1)[0]
        roots.append(root)
    sent = np.zeros_like(u)  # G^T lambda
    for k in range(3):
        sent[..., k : k + count] += g[k] * along
    move = d * sent
    if not (move * sent <= FAR**2).all():
        return None
    return Moved(u - move, partial(_left_by_bands, d, g, roots))


def _read(weights: NDArray[Any], u: NDArray[Any]) -> NDArray[Any]:
    """The sum of a few neighbours: `weights` have them first, and then the rows."""
    count = weights.shape[-1]
    return sum(w * u[..., k : k + count] for k, w in enumerate(weights))


def _left_by_bands(
    d: NDArray[Any], g: NDArray[Any], roots: Sequence[NDArray[Any]]
) -> NDArray[Any] | None:
    """The diagonal of D - D G^T S^-1 G D."""
    count = g.shape[-1]
    rows = np.zeros((count, count + 2), order="F")  # G
    for k in range(3):
        rows[range(count), range(k, k + count)] = g[k]
    white = (lapack().dtbtrs(root, rows, uplo="L")[0] for root in roots)
    lost = d * np.stack([np.einsum("kj,kj->j", w, w) for w in white]).reshape(d.shape)
    return d - d * lost if lost.max() <= 1 - SURE else None


@cache
def lapack() -> Any:
    from scipy.linalg import lapack  # a tenth of a second, so not for everybody

    return lapack


WAYS: dict[type, Callable[..., Moved | None]] = {
    Sum: _one_number,
    SecondDifferences: _five_diagonals,
}


class SmallSolved(Solved):
    """A small field given a law: mean and variance at once, the rest when it is asked for."""

    makes_variance = True
    differentiable = False

    def __init__(
        self,
        moved: Moved,
        shape: torch.Size,
        dims: int,
        prior: Diagonal,
        law: Law,
        solve: Solve,
    ) -> None:
        self.mean, self.dims, self._moved = (_tensor(moved.mean, shape),), (dims,), moved
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
        found = self._moved.variance()
        return self._all.variance if found is None else (_tensor(found, self.mean[0].shape),)


def _tensor(x: NDArray[Any], shape: Sequence[int]) -> Tensor:
    return torch.from_numpy(x.reshape(shape))
