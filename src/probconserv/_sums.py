"""Step 2 from sums over blocks of points, for fields that are never seen as a whole.

    statistics   G mu, G F^T, G D G^T         sums of every block, added up
    solve        S lambda = b - G mu          with S = G (F^T F + diag(D)) G^T + sigma^2
    update       mu + F^T z + D G^T lambda    block by block, with z = F G^T lambda
    settle       the same for what exact rows still miss, where rows are nearly dependent

Here is the solve, for a field of means and standard deviations or for an ensemble; S is factored as
in `condition`. Whoever has the blocks makes the sums and the update. I is the number of indices
(times, say) that no law ties together, K that of the rows of all laws.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ._audit import UNMET
from ._errors import InfeasibleError, InputError
from ._factor import DEPENDENT, EASY, Factor, RowFactor
from ._members import multipliers
from ._shrinkage import Mix, mix

REFINEMENTS = 2  # corrections of lambda by what S lambda misses
ROUNDING = 1e-15  # of a variance: what is left of it by subtraction is no more than rounding
SLACK = 16  # times the rounding of the input, as a share of a row's terms, is no contradiction

How = Literal["variance", "uniform", "proportional"]
Sums = Mapping[str, Tensor]  # under names, with the indices on axis 0


class System:
    """S = H^T H + G D G^T + sigma^2 from sums, factored as in `condition`; H = F G^T."""

    def __init__(
        self, gram: Tensor, shared: Tensor | None, noise: Tensor, rounding: Tensor | float = 0.0
    ) -> None:
        """gram: G D G^T, (I, K, K) or its diagonal (I, K). shared: H, (I, R, K). noise: sigma^2.

        rounding: the variance of each row that the rounding of F alone can make.
        """
        self.noise = noise.expand(gram.shape[:2])
        self.factor: Factor | RowFactor
        if shared is None and gram.ndim == 2:
            self.matrix = gram + self.noise
            self.factor = RowFactor(self.matrix, self.matrix, self.noise)
            return
        matrix = gram.diag_embed() if gram.ndim == 2 else gram
        matrix = matrix if shared is None else matrix + shared.mT @ shared
        self.matrix = matrix + self.noise.diag_embed()
        before = self.matrix.diagonal(dim1=-2, dim2=-1) + rounding / DEPENDENT
        self.factor = Factor(self.matrix, before, self.noise)

    def times(self, v: Tensor) -> Tensor:  # (I, N, K)
        """S v."""
        return v * self.matrix[:, None] if self.matrix.ndim == 2 else v @ self.matrix

    def solve(self, r: Tensor) -> Tensor:  # (I, N, K)
        """S^-1 r, 0 at rows that follow from others."""
        found = self._solved(r)
        for _ in range(REFINEMENTS if self.matrix.ndim == 3 else 0):
            found = found + self._solved(r - self.times(found))
        return found

    def _solved(self, r: Tensor) -> Tensor:
        if isinstance(self.factor, Factor):
            return self.factor.solve(r)
        return self.factor.solve(r.movedim(1, 0)).movedim(0, 1)

    def inverse(self) -> Tensor:  # (I, K) or (I, K, K)
        if isinstance(self.factor, RowFactor):
            return self.factor.inverse
        eye = torch.eye(self.matrix.shape[-1], dtype=self.matrix.dtype)
        white = self.factor.whiten(eye.expand(self.matrix.shape))  # L^-T
        return white @ white.mT

    def least(self) -> Tensor:  # (I)
        """The share of a point's variance that is no more than rounding: exact rows leave none."""
        exact = ((self.noise == 0) & self.factor.keep).any(-1)
        if isinstance(self.factor, RowFactor):
            return torch.where(exact, ROUNDING, 0.0)
        pivots = torch.where(self.factor.keep, self.factor.pivots * self.factor.scale**2, 1.0)
        return torch.where(exact, ROUNDING / pivots.amin(-1), 0.0)

    def missed(self, residual: Tensor) -> Tensor:  # (I, N, K)
        """The residuals of exact rows, where rows are so nearly dependent that rounding shows."""
        hard = is_hard(self.least())[:, None, None]
        return torch.where(hard & (self.noise == 0)[:, None], residual, 0.0)


def is_hard(least: Tensor) -> Tensor:
    """Whether rows are so nearly dependent that exact ones miss by more than rounding."""
    return least > ROUNDING / EASY


@dataclass(frozen=True)
class MeanAndStd:
    """Fields given as mean and standard deviation, each with one correlation of any two points.

    That is F = sqrt(correlation) std, one row for each variable, and D = (1 - correlation) d, where
    d of a point with weight g in its row is

        std^2            if every point has a standard deviation of its own
        std^2 m / |g|    if one number is given: errors are alike per unit of area
        m / |g|          for `how` uniform: all points of a row move alike
        |mean| m / |g|   for `how` proportional: all values of a row are multiplied alike

    with the mean m of |g|. The last two know nothing of uncertainty.
    """

    laws: tuple[str, ...]  # of each row, its name
    disjoint: bool  # one law: no point is in two of its rows
    correlation: float = 0.0
    rounding: float = 0.0  # of the input, relative
    how: How = "variance"
    variables: int = 1

    @property
    def knows_std(self) -> bool:
        return self.how == "variance"

    @property
    def is_easy(self) -> bool:
        """Whether S is a number for each row, so that nothing needs to be settled."""
        return len(self.laws) == 1 or (self.disjoint and not self.correlation)

    @property
    def sums(self) -> dict[str, tuple[int, ...]]:
        """The shapes of what `statistics` returns, for each index."""
        rows = (len(self.laws),)
        return _shapes(rows, self.disjoint) | {"total": rows, "common": (self.variables, *rows)}

    @property
    def moves(self) -> dict[str, tuple[int, ...]]:
        """The shapes of what `settle` returns, for each index."""
        return {"along": (len(self.laws),), "latent": (self.variables,)}

    @property
    def steps(self) -> dict[str, tuple[int, ...]]:
        """The shapes of what `solve` returns, for each index."""
        rows = (len(self.laws),)
        shapes = self.moves | {"inverse": rows if self.disjoint else rows * 2, "least": ()}
        shared = {"mixed": (self.variables, *rows), "lost": (self.variables,)}
        return shapes | (shared if self.correlation else {})

    def solve(self, sums: Sums, value: Tensor, noise: Tensor) -> dict[str, Tensor]:
        """What the update needs, from the sums over all points and from b and its noise, (I, K)."""
        check_usable(sums)
        system, shared = self._system(sums, noise)
        residual = torch.where(sums["size"] > 0, value - sums["total"], 0.0)[:, None]
        along = system.solve(residual)
        missed = (residual - system.times(along)).abs()[:, 0]
        _check_met(self, missed, value.abs(), sums)
        steps = self._moves(shared, along)
        steps |= {"inverse": system.inverse(), "least": system.least()}
        if shared is None:
            return steps
        if self.disjoint:
            steps["inverse"] = steps["inverse"].diagonal(dim1=-2, dim2=-1)
        mixed = system.solve(shared)
        return steps | {"mixed": mixed, "lost": (shared * mixed).sum(-1)}

    def settle(self, sums: Sums, total: Tensor, value: Tensor, noise: Tensor) -> dict[str, Tensor]:
        """One more move, from the totals that the field has after the update."""
        system, shared = self._system(sums, noise)
        return self._moves(shared, system.solve(system.missed((value - total)[:, None])))

    def _system(self, sums: Sums, noise: Tensor) -> tuple[System, Tensor | None]:
        shared = self.correlation**0.5 * sums["common"] if self.correlation else None
        return System((1 - self.correlation) * sums["gram"], shared, noise.square()), shared

    def _moves(self, shared: Tensor | None, along: Tensor) -> dict[str, Tensor]:
        none = along.new_zeros(len(along), self.variables)
        latent = none if shared is None else (shared * along).sum(-1)
        return {"along": along[:, 0], "latent": latent}  # lambda and z


@dataclass(frozen=True)
class Ensemble:
    """A field given as N members, (N, I, P).

    Sigma is their covariance, mixed with one common correlation, see `_shrinkage.py`: F are the
    deviations from the mean over sqrt(N - 1), times sqrt(1 - a), and one more row, the standard
    deviation times sqrt(a c); D is the variance times a (1 - c). Every member is moved by its own
    residual, see `_members.py`. Without a `shrinkage` it is found for each index.
    """

    laws: tuple[str, ...]
    disjoint: bool
    members: int
    shrinkage: float | None
    rounding: float = 0.0

    @property
    def is_easy(self) -> bool:
        return len(self.laws) == 1

    @property
    def sums(self) -> dict[str, tuple[int, ...]]:
        rows = (len(self.laws),)
        return _shapes(rows, self.disjoint) | {"total": (self.members, *rows), "common": rows}

    @property
    def moves(self) -> dict[str, tuple[int, ...]]:
        n, rows = self.members, len(self.laws)
        return {"along": (n, rows), "mixing": (n, n), "latent": (n,), "independent": ()}

    @property
    def steps(self) -> dict[str, tuple[int, ...]]:
        return self.moves | {"least": ()}

    def solve(self, sums: Sums, value: Tensor, noise: Tensor) -> dict[str, Tensor]:
        """value: b, (I, N or 1, K)."""
        check_usable(sums)
        mixed = self.mix(sums)
        system, shared = self._system(sums, noise, mixed)
        residual = torch.where((sums["size"] > 0)[:, None], value - sums["total"], 0.0)
        missed = residual - system.times(system.solve(residual))
        _check_met(self, missed.abs().amax(1), value.abs().amax(1), sums)
        assert isinstance(system.factor, Factor)
        along = multipliers(system.matrix, system.factor, system.noise, residual, system.solve)
        return self._moves(shared, mixed, along) | {"least": system.least()}

    def settle(self, sums: Sums, total: Tensor, value: Tensor, noise: Tensor) -> dict[str, Tensor]:
        mixed = self.mix(sums)
        system, shared = self._system(sums, noise, mixed)
        residual = value - total.reshape(sums["total"].shape)
        return self._moves(shared, mixed, system.solve(system.missed(residual)))

    def mix(self, sums: Sums) -> Mix:
        """What the members' covariance is mixed with, (I)."""
        if self.shrinkage is not None:
            none = sums["size"].new_zeros(len(sums["size"]))
            return Mix(none + self.shrinkage, none)
        alone = sums["gram"]
        alone = alone.diagonal(dim1=-2, dim2=-1) if alone.ndim == 3 else alone
        spread, together = sums["total"].var(1), sums["common"].square()
        return mix(spread, alone, together, self.members)

    def _system(self, sums: Sums, noise: Tensor, mixed: Mix) -> tuple[System, Tensor]:
        own, common = self._scales(mixed)
        deviation = sums["total"] - sums["total"].mean(1, keepdim=True)
        shared = torch.cat([own * deviation, common * sums["common"][:, None]], 1)
        rounding = (2 * self.rounding * (sums["terms"] + sums["spread"])).square()
        noise = torch.where(sums["size"] > 0, noise, 0.0).square()
        independent = mixed.share * (1 - mixed.correlation)
        gram = independent.reshape(-1, *[1] * (sums["gram"].ndim - 1)) * sums["gram"]
        return System(gram, shared, noise, rounding), shared

    def _moves(self, shared: Tensor, mixed: Mix, along: Tensor) -> dict[str, Tensor]:
        own, common = self._scales(mixed)
        z = shared @ along.mT  # (I, N + 1, N)
        independent = mixed.share * (1 - mixed.correlation)
        moves = {"along": along, "mixing": own * z[:, :-1], "latent": common[..., 0] * z[:, -1]}
        return moves | {"independent": independent}

    def _scales(self, mixed: Mix) -> tuple[Tensor, Tensor]:  # (I, 1, 1) each
        """What deviations and standard deviations are multiplied with in F."""
        own = ((1 - mixed.share) / (self.members - 1)).sqrt()
        return own[:, None, None], (mixed.share * mixed.correlation).sqrt()[:, None, None]


def check_usable(sums: Sums) -> None:
    """Refuse infinite values and what is no standard deviation."""
    _refuse(
        ~sums["terms"].isfinite(),
        "the field or a factor has infinite values. Missing ones are NaN or _FillValue.",
    )
    _refuse(
        (sums["negative"][..., None] > 0) | ~sums["spread"].isfinite(),
        "`std` is negative, infinite or missing at points that have a mean. It is a standard "
        "deviation, at every point of the field.",
    )


def _refuse(wrong: Tensor, message: str) -> None:  # (*index, K)
    if bool(wrong.any()):
        error = InputError(message)
        error.place = (*wrong.flatten(0, -2).nonzero()[0].tolist(),)
        raise error


def _shapes(rows: tuple[int], disjoint: bool) -> dict[str, tuple[int, ...]]:
    sizes: dict[str, tuple[int, ...]] = dict.fromkeys(("size", "count", "terms", "spread"), rows)
    return sizes | {"negative": (), "marks": (), "gram": rows if disjoint else rows * 2}


def _check_met(kind: "MeanAndStd | Ensemble", missed: Tensor, value: Tensor, sums: Sums) -> None:
    """Rows that nothing can move must hold already."""
    size = sums["terms"] + sums["spread"] + value
    wrong = ~(missed <= max(UNMET, SLACK * kind.rounding) * size) & (sums["size"] > 0)
    if bool(wrong.any()):
        index, row = wrong.nonzero()[0].tolist()
        stuck = "the standard deviations or the members' spread leave nothing to move there"
        if isinstance(kind, MeanAndStd) and kind.how == "proportional":
            stuck = "`how` 'proportional' multiplies values, and all are 0 there"
        error = InfeasibleError(
            f"{int(wrong.sum())} totals cannot be met, the first of `{kind.laws[row]}`, by "
            f"{float(missed[index, row]):.3g}: {stuck}, or laws contradict each other. Ways out: "
            "more spread, `shrinkage` for an ensemble, `noise` for the law."
        )
        error.place = index, row
        raise error
