"""The solves of `_sums.py` where rows see each other; S is factored as in `condition`.

Import it where it is called: torch takes a second and a half, and who only sums needs none.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ._factor import DEPENDENT, Factor, multipliers
from ._shrinkage import Mix, mix
from ._sums import ROUNDING, Array, Ensemble, MeanAndStd, check_met, is_hard

REFINEMENTS = 2  # corrections of lambda by what S lambda misses

Sums = Mapping[str, Tensor]  # under names, with the indices on axis 0
Arrays = Mapping[str, Array]


class System:
    """S = H^T H + G D G^T + sigma^2 from sums, factored as in `condition`; H = F G^T."""

    def __init__(
        self, gram: Tensor, shared: Tensor | None, noise: Tensor, rounding: Tensor | float = 0.0
    ) -> None:
        """gram: G D G^T, (I, K, K) or its diagonal (I, K). shared: H, (I, R, K). noise: sigma^2.

        rounding: the variance of each row that the rounding of F alone can make.
        """
        self.noise = noise.expand(gram.shape[:2])
        matrix = gram.diag_embed() if gram.ndim == 2 else gram
        matrix = matrix if shared is None else matrix + shared.mT @ shared
        self.matrix = matrix + self.noise.diag_embed()
        before = self.matrix.diagonal(dim1=-2, dim2=-1) + rounding / DEPENDENT
        self.factor = Factor(self.matrix, before, self.noise)

    def times(self, v: Tensor) -> Tensor:  # (I, N, K)
        """S v."""
        return v @ self.matrix

    def solve(self, r: Tensor) -> Tensor:  # (I, N, K)
        """S^-1 r, 0 at rows that follow from others."""
        found = self.factor.solve(r)
        for _ in range(REFINEMENTS):
            found = found + self.factor.solve(r - self.times(found))
        return found

    def white(self) -> Tensor:  # (I, K, K)
        """L^-1, 0 for rows that follow from others."""
        eye = torch.eye(self.matrix.shape[-1], dtype=self.matrix.dtype)
        return self.factor.whiten(eye.expand(self.matrix.shape)).mT

    def least(self) -> Tensor:  # (I)
        """The share of a point's variance that is no more than rounding: exact rows leave none."""
        exact = ((self.noise == 0) & self.factor.keep).any(-1)
        pivots = torch.where(self.factor.keep, self.factor.pivots * self.factor.scale**2, 1.0)
        return torch.where(exact, ROUNDING / pivots.amin(-1), 0.0)

    def missed(self, residual: Tensor) -> Tensor:  # (I, N, K)
        """The residuals of exact rows, where rows are so nearly dependent that rounding shows."""
        hard = is_hard(self.least())[:, None, None]
        return torch.where(hard & (self.noise == 0)[:, None], residual, 0.0)


@dataclass(frozen=True)
class MomentsSolver:
    kind: MeanAndStd

    def solve(self, sums: Sums, value: Tensor, noise: Tensor) -> dict[str, Tensor]:
        """What the update needs, from the sums over all points and from b and its noise, (I, K)."""
        system, shared = self._system(sums, noise)
        residual = torch.where(sums["size"] > 0, value - sums["total"], 0.0)[:, None]
        along = system.solve(residual)
        missed = (residual - system.times(along)).abs()[:, 0]
        check_met(self.kind, missed, value.abs(), sums)
        white = system.white()
        steps = self._moves(shared, along) | self._whitened(white, shared)
        steps |= {"inverse": white.mT @ white, "least": system.least()}
        if shared is None:
            return steps
        if self.kind.disjoint:
            steps["inverse"] = steps["inverse"].diagonal(dim1=-2, dim2=-1)
        mixed = system.solve(shared)
        return steps | {"mixed": mixed, "lost": (shared * mixed).sum(-1)}

    def settle(self, sums: Sums, after: Sums, value: Tensor, noise: Tensor) -> dict[str, Tensor]:
        """One more move, and L^-1 to all digits, from sums over the field after the update."""
        system, shared = self._system(sums, noise)
        missed = system.missed((value - after["total"])[:, None])
        if self.kind.disjoint:
            return self._moves(shared, system.solve(missed))
        given = self._whitened(system.white(), shared)
        together = self.kind.correlation**0.5 * after["white_common"]
        hard = is_hard(system.least())[:, None, None]
        root = self._root(given["white"], together, after["white"], system.noise, hard)
        white = torch.linalg.solve_triangular(root, given["white"], upper=False)
        common = torch.linalg.solve_triangular(root, together.mT, upper=False).mT
        common = torch.where(hard, common, given["white_common"])
        moves = self._moves(shared, missed @ white.mT @ white)
        return moves | {"white": white, "white_common": common}

    def _root(
        self, white: Tensor, together: Tensor, gram: Tensor, noise: Tensor, hard: Tensor
    ) -> Tensor:
        """L of S over white rows, which is almost 1; exactly 1 where no row is hard."""
        again = (1 - self.kind.correlation) * gram + together.mT @ together
        again = again + white @ noise.diag_embed() @ white.mT
        eye = torch.eye(again.shape[-1], dtype=again.dtype)
        kept = again.diagonal(dim1=-2, dim2=-1)[..., None] > 0  # others follow from them
        return torch.linalg.cholesky(torch.where(hard & kept, again, eye))

    def _whitened(self, white: Tensor, shared: Tensor | None) -> dict[str, Tensor]:
        if self.kind.disjoint:
            return {}
        none = white.new_zeros(len(white), self.kind.variables, white.shape[-1])
        return {"white": white, "white_common": none if shared is None else shared @ white.mT}

    def _system(self, sums: Sums, noise: Tensor) -> tuple[System, Tensor | None]:
        shared = self.kind.correlation**0.5 * sums["common"] if self.kind.correlation else None
        return System((1 - self.kind.correlation) * sums["gram"], shared, noise.square()), shared

    def _moves(self, shared: Tensor | None, along: Tensor) -> dict[str, Tensor]:
        none = along.new_zeros(len(along), self.kind.variables)
        latent = none if shared is None else (shared * along).sum(-1)
        return {"along": along[:, 0], "latent": latent}  # lambda and z


@dataclass(frozen=True)
class MembersSolver:
    kind: Ensemble

    def solve(self, sums: Sums, value: Tensor, noise: Tensor) -> dict[str, Tensor]:
        """value: b, (I, N or 1, K)."""
        mixed = self.mix(sums)
        system, shared = self._system(sums, noise, mixed)
        residual = torch.where((sums["size"] > 0)[:, None], value - sums["total"], 0.0)
        missed = residual - system.times(system.solve(residual))
        check_met(self.kind, missed.abs().amax(1), value.abs().amax(1), sums)
        along = multipliers(system.matrix, system.factor, system.noise, residual, system.solve)
        return self._moves(shared, mixed, along) | {"least": system.least()}

    def settle(self, sums: Sums, after: Sums, value: Tensor, noise: Tensor) -> dict[str, Tensor]:
        mixed = self.mix(sums)
        system, shared = self._system(sums, noise, mixed)
        residual = value - after["total"]
        return self._moves(shared, mixed, system.solve(system.missed(residual)))

    def mix(self, sums: Sums) -> Mix:
        """What the members' covariance is mixed with, (I)."""
        if self.kind.shrinkage is not None:
            none = sums["size"].new_zeros(len(sums["size"]))
            return Mix(none + self.kind.shrinkage, none)
        alone = sums["gram"]
        alone = alone.diagonal(dim1=-2, dim2=-1) if alone.ndim == 3 else alone
        spread, together = sums["total"].var(1), sums["common"].square()
        return mix(spread, alone, together, self.kind.members)

    def _system(self, sums: Sums, noise: Tensor, mixed: Mix) -> tuple[System, Tensor]:
        own, common = self._scales(mixed)
        deviation = sums["total"] - sums["total"].mean(1, keepdim=True)
        shared = torch.cat([own * deviation, common * sums["common"][:, None]], 1)
        rounding = (2 * self.kind.rounding * (sums["terms"] + sums["spread"])).square()
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
        own = ((1 - mixed.share) / (self.kind.members - 1)).sqrt()
        return own[:, None, None], (mixed.share * mixed.correlation).sqrt()[:, None, None]


def _solver(kind: MeanAndStd | Ensemble) -> MomentsSolver | MembersSolver:
    return MembersSolver(kind) if isinstance(kind, Ensemble) else MomentsSolver(kind)


def solved(kind: MeanAndStd | Ensemble, sums: Arrays, *given: Array) -> dict[str, Array]:
    """What the update needs, as arrays; given: b and its noise."""
    return _arrays(_solver(kind).solve(_tensors(sums), *map(torch.tensor, given)))


def settled(
    kind: MeanAndStd | Ensemble, sums: Arrays, after: Arrays, *given: Array
) -> dict[str, Array]:
    """One more move; after: sums over the updated field. given: b and its noise."""
    return _arrays(_solver(kind).settle(_tensors(sums), _tensors(after), *map(torch.tensor, given)))


def ensemble_mix(kind: Ensemble, sums: Arrays) -> Mix:
    """What the members' covariance is mixed with."""
    return MembersSolver(kind).mix(_tensors(sums))


def _tensors(parts: Arrays) -> dict[str, Tensor]:
    return {name: torch.tensor(part) for name, part in parts.items()}


def _arrays(parts: Sums) -> dict[str, Array]:
    return {name: x.numpy() for name, x in parts.items()}
