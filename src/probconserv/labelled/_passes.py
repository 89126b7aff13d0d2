r"""Step 2 in two passes over blocks: sums of every block, one small solve, every block moved.

The covariance is Sigma = F^T F + diag(D), a few shared directions F and a variance D of the rest,
so that sums over the points are all that the update needs of the whole field:

    first pass    G mu,   G F^T,   G D G^T
    solve         S = G F^T F G^T + G D G^T + noise^2,   lambda = S^-1 (b - G mu)
    second pass   u + (F^T F + D) G^T lambda, and likewise the variance

`probconserv.condition` gives the same for a `Diagonal` or `LowRank` field in memory; here no point
is ever seen together with all others. Arrays are (I, P) as in `_terms`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .._errors import InfeasibleError, InputError
from .._given import UNMET
from ._matrices import dense, inverses, times
from ._terms import (
    Array,
    Layout,
    Terms,
    adjoint,
    counted,
    quadratic,
    seen_totals,
    squares,
    totals,
    uncounted,
)

ROUNDING = 1e-13  # of a sum in double precision, as a share of its terms
quiet = np.errstate(invalid="ignore")  # points that do not count may hold anything


@dataclass(frozen=True)
class Moments:
    """A field given as mean and standard deviation.

    `correlation` is that of the errors of any two points: F = sqrt(correlation) std.
    """

    laws: tuple[str, ...]  # of each row, its name
    single: bool  # one law: its rows are disjoint, so that G D G^T is diagonal
    correlation: float = 0.0

    @property
    def sums(self) -> Layout:
        rows = (len(self.laws),)
        return Layout(_sums(len(self.laws), self.single) | {"total": rows, "common": rows})

    @property
    def steps(self) -> Layout:
        rows = len(self.laws)
        sizes: dict[str, tuple[int, ...]] = {
            "along": (rows,),
            "inverse": (rows,) if self.single else (rows, rows),
        }
        if self.correlation:
            sizes |= {"mixed": (rows,), "common": (), "lost": ()}
        return Layout(sizes)

    def summed(self, mean: Array, std: Array, terms: Terms) -> Array:
        """The first pass over a block, (I, C)."""
        rows = len(self.laws)
        total, mean, missing = seen_totals(mean, terms, rows)
        std = std.astype(float, copy=False)
        if missing is not None:
            std = np.where(missing, 0.0, std)
        parts = _about(mean, std, missing, terms, rows)
        if not np.isfinite(parts["spread"]).all() and (missing := uncounted(terms)) is not None:
            std = np.where(missing, 0.0, std)
            parts = _about(mean, std, missing, terms, rows)
        square = squares(np.square(std), terms, rows, self.single)
        signed = any(term.sizes is not term for term in terms)
        parts["common"] = totals(std, terms, rows) if signed else parts["spread"]
        return self.sums.pack(parts | {"total": total, "square": square})

    def solved(self, sums: Array, value: Array, noise: Array) -> Array:
        """What the second pass needs, from the sums over all points and b, (I, K)."""
        parts = self.sums.unpack(sums)
        check_usable(parts)
        residual = np.where(parts["size"] > 0, value - parts["total"], 0.0)
        if self.single and not self.correlation:
            variance = parts["square"] + noise**2
            inverse = np.divide(1, variance, out=np.zeros_like(variance), where=variance > 0)
            along = inverse * residual
            _check_met(self.laws, residual - variance * along, parts, value)
            return self.steps.pack({"along": along, "inverse": inverse})
        shared = self.correlation**0.5 * parts["common"]  # G F^T
        matrix = (1 - self.correlation) * dense(parts["square"])
        matrix = matrix + shared[:, :, None] * shared[:, None, :]
        matrix = matrix + dense(np.broadcast_to(noise**2, residual.shape))
        inverse, _ = inverses(matrix)
        along = times(inverse, residual)
        _check_met(self.laws, residual - times(matrix, along), parts, value)
        mixed = times(inverse, shared)
        steps = {"along": along, "mixed": mixed}
        steps |= {"common": (shared * along).sum(-1), "lost": (shared * mixed).sum(-1)}
        steps["inverse"] = np.einsum("ikk->ik", inverse) if self.single else inverse
        return self.steps.pack(steps)

    @quiet
    def mean(self, mean: Array, std: Array, terms: Terms, steps: Array) -> Array:
        """The second pass over a block: its mean, (I, P)."""
        parts = self.steps.unpack(steps)
        std = std.astype(float, copy=False)
        shift = adjoint(terms, parts["along"])
        shift *= (1 - self.correlation) * np.square(std)
        if self.correlation:
            shift += self.correlation**0.5 * std * counted(terms) * parts["common"][:, None]
        return _kept(np.add(mean, shift, out=shift), mean, terms)

    @quiet
    def std(self, std: Array, mean: Array, terms: Terms, steps: Array) -> Array:
        """The second pass over a block: its std, (I, P); the same where the mean is missing."""
        parts = self.steps.unpack(steps)
        std = std.astype(float, copy=False)
        variance = np.square(std)
        rest = (1 - self.correlation) * variance if self.correlation else variance
        lost = quadratic(terms, parts["inverse"], self.single)
        lost *= np.square(rest)
        if self.correlation:
            shared = self.correlation**0.5 * std * counted(terms)
            lost += 2 * shared * rest * adjoint(terms, parts["mixed"])
            lost += np.square(shared) * parts["lost"][:, None]
        variance -= lost
        np.maximum(variance, 0, out=variance)  # takes off rounding
        np.sqrt(variance, out=variance)
        if not _finite(mean):
            np.copyto(variance, std, where=np.isnan(mean))
        return _kept(variance, std, terms)


@dataclass(frozen=True)
class Members:
    """An ensemble of N members on the last axis, (I, P, N).

    Sigma is its covariance, shrunk towards independent points: F the deviations from the mean over
    sqrt(N - 1), times sqrt(1 - shrinkage); D the variance, times shrinkage. Every member is moved
    by its own residual. With noise W the deviations are moved by the reduced gain
    Sigma G^T V^-1 (V + W)^-1, V V = S, whose result has the right covariance without random draws.

    Without a `shrinkage` it is, for each index, the share of the spread of the members' totals that
    independent points would have by themselves, and chance with them; at least 1 / N.
    """

    laws: tuple[str, ...]
    single: bool
    members: int
    shrinkage: float | None
    rounding: float = ROUNDING  # of a total, as a share of the sum of |u|

    @property
    def sums(self) -> Layout:
        rows = len(self.laws)
        return Layout(_sums(rows, self.single) | {"total": (self.members, rows)})

    @property
    def steps(self) -> Layout:
        n, rows = self.members, len(self.laws)
        return Layout({"along": (n, rows), "mixing": (n, n), "shrinkage": ()})

    def summed(self, x: Array, terms: Terms) -> Array:
        x, rows = x.astype(float, copy=False), len(self.laws)
        missing = np.asarray(np.isnan(x).any(-1))  # a point that one member lacks is missing in all
        if not _finite(x) and (out := uncounted(terms)) is not None:
            missing = missing | out
        if missing.any():
            x = np.where(missing[..., None], 0.0, x)
        with np.errstate(invalid="ignore"):  # what is infinite is refused later
            variance = x.var(-1, ddof=1)
        parts = _about(x.mean(-1), np.sqrt(variance), missing, terms, rows)
        each = [totals(x[..., number], terms, rows) for number in range(self.members)]
        parts["total"] = np.stack(each, axis=1)
        parts["square"] = squares(variance, terms, rows, self.single)
        return self.sums.pack(parts)

    def solved(self, sums: Array, value: Array, noise: Array) -> Array:  # value (I, N or 1, K)
        parts = self.sums.unpack(sums)
        check_usable(parts)
        here = parts["size"] > 0
        total = np.where(here[:, None], parts["total"], 0.0)
        residual = np.where(here[:, None], value, 0.0) - total
        rounding = self.rounding * parts["terms"]
        deviation = self._deviation(total, rounding)
        shrinkage = self._shrinkage(parts, deviation)
        scale = ((1 - shrinkage) / (self.members - 1))[:, None, None]
        noise = np.where(here, noise, 0.0)
        matrix = shrinkage[:, None, None] * dense(parts["square"]) + dense(noise**2)
        matrix = matrix + scale * np.einsum("ink,inl->ikl", deviation, deviation)
        inverse, reduced = inverses(matrix, noise)
        met = np.einsum("ikl,inl->ink", matrix @ inverse, residual)
        missed = np.abs(residual - met).max(1)
        missed = np.where(missed <= rounding, 0.0, missed)
        _check_met(self.laws, missed, parts, np.abs(value).max(1))
        mean = residual.mean(1, keepdims=True)
        along = np.einsum("ikl,inl->ink", inverse, mean)
        along = along + np.einsum("ikl,inl->ink", reduced, residual - mean)
        mixing = scale * np.einsum("imk,ink->imn", deviation, along)
        return self.steps.pack({"along": along, "mixing": mixing, "shrinkage": shrinkage})

    def shrinkages(self, sums: Array) -> Array:  # (I, C) -> (I,)
        """What the update uses."""
        parts = self.sums.unpack(sums)
        total = np.where((parts["size"] > 0)[:, None], parts["total"], 0.0)
        return self._shrinkage(parts, self._deviation(total, self.rounding * parts["terms"]))

    def _deviation(self, total: Array, rounding: Array) -> Array:  # (I, N, K)
        deviation = total - total.mean(1, keepdims=True)
        same = np.abs(deviation).max(1) <= rounding  # members that have one total cannot move it
        return np.where(same[:, None], 0.0, deviation)

    def _shrinkage(self, parts: Mapping[str, Array], deviation: Array) -> Array:
        if self.shrinkage is not None:
            return np.full(len(deviation), self.shrinkage)
        alone = np.einsum("ikk->ik", dense(parts["square"]))
        chance = 1 + 2 * (2 / (self.members - 1)) ** 0.5  # of a variance from N members
        spread = np.square(deviation).sum(1) / (self.members - 1)
        share = np.divide(chance * alone, spread, out=np.ones_like(spread), where=spread > 0)
        return np.clip(np.minimum(share, 1).mean(-1), 1 / self.members, 1)

    @quiet
    def each(self, x: Array, terms: Terms, steps: Array) -> Array:
        """The second pass over a block: its members, (I, P, N)."""
        parts = self.steps.unpack(steps)
        x = x.astype(float)
        deviation = x - x.mean(-1, keepdims=True)
        shift = np.matmul(deviation, parts["mixing"]) * counted(terms)[..., None]
        if parts["shrinkage"].any():
            rest = np.square(deviation).sum(-1) / (self.members - 1)
            rest *= parts["shrinkage"][:, None]
            for number in range(self.members):
                shift[..., number] += rest * adjoint(terms, parts["along"][:, number])
        np.add(x, shift, out=shift)
        return np.moveaxis(_kept(np.moveaxis(shift, -1, 0), np.moveaxis(x, -1, 0), terms), 0, -1)


def _kept(new: Array, old: Array, terms: Terms) -> Array:
    """`new`, with the points that no law counts as they were, whatever their std."""
    if (out := uncounted(terms)) is not None and not _finite(new):  # else their move is 0
        np.copyto(new, old, where=out)
    return new


def _finite(values: Array) -> bool:
    """Whether all are finite, by one sum; one that overflows says no as well."""
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.isfinite(values.sum()))


def check_usable(parts: Mapping[str, Array]) -> None:
    """Refuse infinite values and what is no standard deviation."""
    if not np.isfinite(parts["terms"]).all():
        raise InputError(
            "the field or a factor has infinite values. Missing ones are NaN or _FillValue."
        )
    if parts["negative"].any() or not np.isfinite(parts["spread"]).all():
        raise InputError(
            "`std` is negative, infinite or missing at points that have a mean. It is a standard "
            "deviation, at every point of the field."
        )


def _sums(rows: int, single: bool) -> dict[str, tuple[int, ...]]:
    """The sums of any kind of field: what the rows are made of, and G D G^T."""
    kinds: dict[str, tuple[int, ...]] = dict.fromkeys(("size", "terms", "spread"), (rows,))
    return kinds | {"negative": (), "square": (rows,) if single else (rows, rows)}


def _about(
    mean: Array, std: Array, missing: Array | None, terms: Terms, rows: int
) -> dict[str, Array]:
    """Sums of |g|, |g u| and |g| std of every row; `mean` and `std` are 0 where missing."""
    sizes = [term.sizes for term in terms]
    seen = np.ones((1, mean.shape[1])) if missing is None else (~missing).astype(float)
    size = np.broadcast_to(totals(seen, sizes, rows), (len(mean), rows))
    return {
        "size": size,
        "terms": totals(np.abs(mean), sizes, rows),
        "spread": totals(std, sizes, rows),
        "negative": (std.min(-1) < 0).astype(float),
    }


def _check_met(laws: tuple[str, ...], missed: Array, parts: Mapping[str, Array], b: Array) -> None:
    """Rows that nothing can move must hold already."""
    scale = parts["terms"] + np.abs(b)
    wrong = (np.abs(missed) > UNMET * scale) & (parts["size"] > 0)
    if wrong.any():
        index, row = np.argwhere(wrong)[0]
        raise InfeasibleError(
            f"{int(wrong.sum())} totals cannot be met, the first of `{laws[row]}`, by "
            f"{np.abs(missed[index, row]):.3g}: the standard deviations or the members' spread "
            "leave nothing to move there, or laws contradict each other. Ways out: more spread, "
            "`shrinkage` for an ensemble, `noise` for the law."
        )
