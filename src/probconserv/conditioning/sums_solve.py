"""The solves of `sums.py` where rows see each other; S is factored as in `condition`.

Import it where it is called: torch takes a second and a half, and who only sums needs none.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from ..solvers.factor import Factor, multipliers
from ..solvers.shrinkage import Mix, mix
from ..support.tolerances import DEPENDENT, ROUNDED
from .sums import MOVES, Array, Ensemble, Kind, MeanAndStd, check_met, is_hard

REFINEMENTS = 2  # corrections of lambda by what S lambda misses

Sums = Mapping[str, Tensor]  # under names, with the indices on axis 0
Arrays = Mapping[str, Array]


class SumsSystem:
    """S = H^T H + c G D G^T + sigma^2 from sums, factored as in `condition`; H = F G^T, (I, R, K).

    Members have the totals (I, N, K), and a residual each; a mean has (I, 1, K).
    """

    def __init__(self, kind: Kind, sums: Sums, value: Tensor, noise: Tensor) -> None:
        self.kind, self.sums, self.counts = kind, sums, sums["size"] > 0
        self.value = value  # (I, 1 or N, K)
        self.noise = torch.where(self.counts, noise[:, 0], 0.0).square()
        rounding: Tensor | float = 0.0  # the variance of each row that rounding of F alone can make
        if isinstance(kind, Ensemble):
            mixed, total = _mix(kind, sums), sums["total"]
            own = ((1 - mixed.share) / (kind.members - 1)).sqrt()
            self.own = own[:, None, None]  # what deviations are multiplied with in F
            self.common = (mixed.share * mixed.correlation).sqrt()[:, None]  # and their std
            shared = self.common[..., None] * sums["common"][:, None]
            deviation = self.own * (total - total.mean(1, keepdim=True))
            self.shared = torch.cat([deviation, shared], 1)
            self.free = mixed.share * (1 - mixed.correlation)  # c
            rounding = (2 * kind.rounding * (sums["terms"] + sums["spread"])).square()
        else:
            self.shared = kind.correlation**0.5 * sums["common"]
            self.free = torch.full_like(self.noise[:, 0], 1 - kind.correlation)
        gram = sums["gram"].diag_embed() if sums["gram"].ndim == 2 else sums["gram"]
        matrix = self.free[:, None, None] * gram + self.shared.mT @ self.shared
        self.matrix = matrix + self.noise.diag_embed()
        before = self.matrix.diagonal(dim1=-2, dim2=-1) + rounding / DEPENDENT
        self.factor = Factor(self.matrix, before, self.noise)

    def residual(self, total: Tensor) -> Tensor:  # (I, N, K)
        """What the totals of a field miss."""
        return torch.where(self.counts[:, None], self.value - total, 0.0)

    def solve(self, r: Tensor) -> Tensor:  # (I, N, K)
        """S^-1 r, 0 at rows that follow from others."""
        found = self.factor.solve(r)
        for _ in range(REFINEMENTS):
            found = found + self.factor.solve(r - found @ self.matrix)
        return found

    def white(self) -> Tensor:  # (I, K, K)
        """L^-1, 0 for rows that follow from others."""
        eye = torch.eye(self.matrix.shape[-1], dtype=self.matrix.dtype)
        return self.factor.whiten(eye.expand(self.matrix.shape)).mT

    def least(self) -> Tensor:  # (I)
        """The share of a point's variance that is no more than rounding: exact rows leave none."""
        exact = ((self.noise == 0) & self.factor.keep).any(-1)
        pivots = torch.where(self.factor.keep, self.factor.pivots * self.factor.scale**2, 1.0)
        return torch.where(exact, ROUNDED / pivots.amin(-1), 0.0)

    def moves(self, along: Tensor) -> dict[str, Tensor]:
        """lambda, (I, N, K), and z = H lambda, as the update takes them."""
        z = self.shared @ along.mT  # (I, R, N)
        if isinstance(self.kind, MeanAndStd):
            return {"along": along[:, 0], "latent": z[..., 0]}
        latent = self.common * z[:, -1]
        moves = {"along": along, "mixing": self.own * z[:, :-1], "latent": latent}
        return moves | {"independent": self.free}

    def std_steps(self) -> dict[str, Tensor]:
        """What the update of a standard deviation takes."""
        white, mixed = self.white(), self.solve(self.shared)
        steps = {"mixed": mixed, "lost": (self.shared * mixed).sum(-1)}
        inverse = white.mT @ white
        if self.kind.disjoint:
            return steps | {"inverse": inverse.diagonal(dim1=-2, dim2=-1)}
        common = self.shared @ white.mT
        return steps | {"inverse": inverse, "white": white, "white_common": common}

    def settled_white(self, steps: Sums, after: Sums) -> dict[str, Tensor]:
        """L^-1 with more digits: nearly dependent rows leave few of S.

        Sums over the rows L^-1 G, which are nearly orthogonal, have them all.
        """
        assert isinstance(self.kind, MeanAndStd)
        hard = is_hard(self.least())[:, None, None]
        together = self.kind.correlation**0.5 * after["white_common"]
        again = (1 - self.kind.correlation) * after["white"] + together.mT @ together
        again = again + steps["white"] @ self.noise.diag_embed() @ steps["white"].mT
        eye = torch.eye(again.shape[-1], dtype=again.dtype)
        kept = again.diagonal(dim1=-2, dim2=-1)[..., None] > 0  # others follow from them
        root = torch.linalg.cholesky(torch.where(hard & kept, again, eye))
        white = torch.linalg.solve_triangular(root, steps["white"], upper=False)
        common = torch.linalg.solve_triangular(root, together.mT, upper=False).mT
        return {"white": white, "white_common": torch.where(hard, common, steps["white_common"])}


def solved(kind: Kind, sums: Arrays, *given: Array) -> dict[str, Array]:
    """What the update needs; given: b and its noise."""
    parts = _tensors(sums)
    system = SumsSystem(kind, parts, *map(torch.tensor, given))
    residual = system.residual(parts["total"])
    along = system.solve(residual)
    missed = (residual - along @ system.matrix).abs().amax(1)
    check_met(kind, missed, system.value.abs().amax(1), parts)
    steps = {"least": system.least()}
    if isinstance(kind, MeanAndStd):
        return _arrays(steps | system.moves(along) | system.std_steps())
    along = multipliers(system.matrix, system.factor, system.noise, residual, system.solve)
    return _arrays(steps | system.moves(along))


def settled(
    kind: Kind, steps: Arrays, sums: Arrays, after: Arrays, *given: Array
) -> dict[str, Array]:
    """The steps with one more move, by what exact rows still miss; after: of the updated field."""
    system, found = SumsSystem(kind, _tensors(sums), *map(torch.tensor, given)), _tensors(after)
    hard = is_hard(system.least())[:, None, None]
    missed = torch.where(hard & (system.noise == 0)[:, None], system.residual(found["total"]), 0.0)
    white = system.settled_white(_tensors(steps), found) if "white" in steps else {}
    along = missed @ white["white"].mT @ white["white"] if white else system.solve(missed)
    more = _arrays(system.moves(along) | white)
    moves = {name: np.concatenate([steps[name], more[name]], 1) for name in MOVES if name in more}
    return {**steps, **more, **moves}


def ensemble_mix(kind: Ensemble, sums: Arrays) -> Mix:
    """What the members' covariance is mixed with, (I)."""
    return _mix(kind, _tensors(sums))


def _mix(kind: Ensemble, sums: Sums) -> Mix:
    if kind.shrinkage is not None:
        none = sums["size"].new_zeros(len(sums["size"]))
        return Mix(none + kind.shrinkage, none)
    alone = sums["gram"]
    alone = alone.diagonal(dim1=-2, dim2=-1) if alone.ndim == 3 else alone
    return mix(sums["total"].var(1), alone, sums["common"].square(), kind.members)


def _tensors(parts: Arrays) -> dict[str, Tensor]:
    return {name: torch.tensor(part) for name, part in parts.items()}


def _arrays(parts: Sums) -> dict[str, Array]:
    return {name: (x[:, None] if name in MOVES else x).numpy() for name, x in parts.items()}
