"""The members of an ensemble after the update, each of which obeys the exact laws.

A member is moved by its own residual r, u - Sigma G^T lambda. The mean of the members has
lambda = S^-1 r, the deviations from it lambda = V^-1 (V + W)^-1 r with V V = S and W W = sigma^2,
so that without shrinkage the members have the mean and the covariance of the posterior without any
random draw. Where all laws are exact W is 0 and both are the same.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ._blocks import root_of
from ._covariances import Correlated
from ._engine import free_axes
from ._errors import InputError
from ._factor import DEPENDENT, Factor
from ._fields import LowRank
from ._joint import Joint
from ._shrinkage import shrunk
from ._stages import minus
from ._state import covariance_of

if TYPE_CHECKING:
    from ._posterior import Posterior

SETTLING = 3  # times that rounding is taken off exact rows


def multipliers(
    matrix: Tensor, factor: Factor, noise: Tensor, r: Tensor, solve: Callable[[Tensor], Tensor]
) -> Tensor:  # (*lead, N, K)
    """lambda of every member, from their residuals r, (*lead, N, K).

    matrix: S, (*lead, K, K). noise: sigma^2, (*lead, K). solve: S^-1 of residuals.
    """
    if not bool((noise > 0).any()):
        return solve(r)
    mean = r.mean(-2, keepdim=True)
    return solve(mean) + _reduced(matrix, factor, noise, r - mean)


def _reduced(matrix: Tensor, factor: Factor, noise: Tensor, r: Tensor) -> Tensor:
    """V^-1 (V + W)^-1 r in the units in which S has a diagonal of 1, 0 at rows that are dropped."""
    scale = factor.scale
    scaled = (
        matrix * scale[..., None, :] * scale[..., :, None] + (~factor.keep).double().diag_embed()
    )
    values, vectors = torch.linalg.eigh(scaled)
    sizes = values.clamp_min(DEPENDENT).sqrt()[..., None, :]
    both = (vectors * sizes) @ vectors.mT + (root_of(noise) * scale).diag_embed()
    root = torch.linalg.cholesky(both)
    found = torch.cholesky_solve((r * scale[..., None, :]).mT, root).mT
    return ((found @ vectors) / sizes) @ vectors.mT * scale[..., None, :]


def members(posterior: "Posterior") -> Tensor:  # (S, *shape)
    """The samples that the prior was made of, moved to the laws.

    Takes the posterior of `LowRank.from_samples`.
    """
    prior = posterior.prior
    if not isinstance(prior, LowRank) or not prior.rounding or len(posterior._solved.mean) > 1:
        raise InputError(
            "`members` are those of an ensemble: condition a field `LowRank.from_samples(...)`."
        )
    laws = posterior._solved.laws
    root = covariance_of(shrunk((prior,), False, laws), False)
    assert isinstance(root, Correlated)
    lead = min(len(prior.shape) - prior.event_dims, free_axes(laws, [prior.shape]))
    root = root.joined(lead)
    joint = Joint(laws, root, root, lead)
    matrix = joint.gram(root) + joint.noise.diag_embed()
    u = prior.mean.double() + math.sqrt(len(prior.factor) - 1) * prior.factor.double()
    r = joint.residual((u,)).movedim(0, -2)  # (*lead, S, K)
    found = multipliers(matrix, joint.factor, joint.noise, r, joint.factor.solve)
    moved = minus((u,), root.times(joint.adjoint(found.movedim(-2, 0))))
    for _ in range(SETTLING):
        moved = joint.shift(moved, joint.residual(moved) * joint.exact)
    assert moved[0] is not None
    return moved[0].to(posterior.dtype)
