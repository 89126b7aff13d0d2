"""Any rows on any fields: S as a dense matrix for each independent part."""

from typing import Any

import torch
from torch import Tensor

from ._checks import concrete
from ._covariances import Correlated, Independent
from ._extended import all_but_fixed
from ._factor import DEPENDENT, LOG_2PI, Factor
from ._laws import Fields, Rows
from ._stages import Banded, Together, minus, summed


class Joint(Together):
    """Any rows on any fields: S is a dense (K, K) matrix for each independent part."""

    stacked = ("units",)

    def __init__(
        self,
        rows: tuple[Rows, ...],
        prior: "Independent | Banded | Correlated",
        root: Independent | Correlated,
        lead: int,
    ) -> None:
        """lead: how many of the first axes number the parts."""
        self._bundle(rows, root.shapes, lead)
        self.prior = prior
        count = self.noise.shape[-1]
        eye = torch.eye(count, dtype=torch.float64, device=self.noise.device)
        self.units = self.adjoint(eye.reshape(count, *[1] * lead, count))  # G^T, rows on axis 0
        matrix = self.gram(prior)
        before = matrix if prior is root else self.gram(root)
        before = before.diagonal(dim1=-2, dim2=-1).detach() + self.noise.detach()
        if isinstance(root, Correlated):
            before = before + self.flat([root.rounding(r) for r in self.rows]) / DEPENDENT
        shapes = [r.row_shape(root.shapes) for r in self.rows]
        pairs = zip(self.rows, shapes, strict=True)
        value = self.flat([r.value.expand(shape) for r, shape in pairs])
        self.factor = Factor(matrix + self.noise.diag_embed(), before, self.noise, value)
        self.dropped, self.seen = ~self.factor.keep, self.factor.pivots

    def gram(self, prior: Any) -> Tensor:  # (*lead, K, K)
        """G Sigma G^T; of directions H H^T with H = G F^T: each row is rounded once."""
        if not isinstance(prior, Correlated):
            cross = prior.times(self.units)
            found = self.flat([r.apply(cross) for r in self.rows]).movedim(0, -2)
            return found.expand(*self.noise.shape, -1)
        seen = prior.seen(self.units)  # (*lead, K, R)
        own = 0.0 if prior.rest is None else self.gram(prior.rest)
        return (seen @ seen.mT + own).expand(*self.noise.shape, -1)

    def multiplier(self, r: Tensor) -> Tensor:
        """lambda = S^-1 r."""
        return self.each(self.factor.solve, r)

    def shift(self, u: Fields, r: Tensor) -> Fields:
        return minus(u, self.prior.times(self.adjoint(self.multiplier(r))))

    def settle(self, u: Fields, value: bool) -> Fields:
        along = self.each(self.factor.solve_exact, self.residual(u, value) * self.exact)
        return minus(u, self.prior.times(self.adjoint(along)))

    def whiten(self, r: Tensor) -> Tensor:
        return self.each(self.factor.whiten, r)

    def log_norm(self, lead: int) -> Tensor:
        return summed(self.factor.log_det + LOG_2PI * (~self.dropped).double().sum(-1), lead)

    @property
    def variance(self) -> Fields:
        """A difference, computed again where next to nothing is left."""
        pairs = zip(self.prior.variance, self.prior.times(self.units), strict=True)
        found = tuple(v if x is None else v - self._explained(x).reshape(v.shape) for v, x in pairs)
        if isinstance(self.prior, Banded):
            return found
        if not concrete(*found):
            return tuple(v.clamp_min(0) for v in found)
        return all_but_fixed(self, found)

    def _explained(self, cross: Tensor) -> Tensor:  # (K, *lead, *event) to (*lead, P)
        """The squares of L^-1 G Sigma, summed over rows; cross: Sigma G^T of one field."""
        start = 1 + self.lead
        cross = cross.expand(-1, *self.noise.shape[:-1], *cross.shape[start:])
        flat = cross.flatten(start) if cross.ndim > start else cross[..., None]
        return self.factor.whiten(flat.movedim(0, -1)).square().sum(-1)
