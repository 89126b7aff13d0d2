"""Fields of independent points given one law whose rows share no point: see `sweeps.py`.

Mean and variance are there at once, in the dtype of the field, and a single look says whether all
is well. Where it is not, or something else is asked for than the two (draws, evidence), the engine
solves as for any field.

On a GPU nothing is copied: the prior keeps the tensors that were given, and `mean` and `variance`
hand out those that are kept. Who changes them in place is told when they are needed again.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from ..fields.covariances import Fields
from ..fields.gaussian import Diagonal
from ..fields.state import covariance_of
from ..laws.law import Law, Rows
from ..laws.maps import Disjoint, Regions, widened
from ..solvers.engine import free_axes, solve
from ..solvers.points import Listed, Points
from ..solvers.stages import CARE
from ..solvers.sweeps import gradients, moved
from ..support import checks as check
from ..support.errors import InputError
from ..support.slices import is_large
from ..support.tolerances import SETTLED
from ..support.tree import Change, once
from .audit import slack_of, warn_of_move
from .posterior import FieldPosterior, Solved
from .unmeasured import Way

_listed = WeakIdKeyDictionary()  # labels of regions, put in order once
_plans: WeakKeyDictionary[Law, dict[Any, "Plan"]] = WeakKeyDictionary()  # of each law the last


class Swept(Solved):
    """A field given a law, in its own dtype."""

    known: tuple[int, ...] | None = None  # versions of what others hold too; None: nobody does

    def __init__(
        self, prior: Diagonal, laws: tuple[Rows, ...], mean: Tensor, variance: Tensor
    ) -> None:
        self.prior, self.laws, self.mean, self.left = prior, laws, (mean,), variance
        self.dims = (mean.ndim - free_axes(self.laws, [mean.shape]),)
        self.known = self._versions()

    @property
    def held(self) -> tuple[Tensor, ...]:
        """What others may hold too."""
        return self.mean[0], self.left, self.prior.mean, self.prior.variance

    def _versions(self) -> tuple[int, ...] | None:
        """How often each tensor was changed in place, where torch counts that and NumPy is away."""
        held = self.held
        if any(t.is_inference() or not t.is_cuda for t in held):
            return None
        return tuple(t._version for t in held)

    def check_unchanged(self) -> None:
        """Refuses to go on with what somebody else has changed."""
        if self.known is not None and self.known != self._versions():
            raise InputError(
                "`post` shares memory with its `mean`, `variance` and prior, as fields on a "
                "GPU do, and one of them was changed in place. Change a clone: `post.mean.clone()`."
            )

    def _change(self, change: Change) -> "Swept":
        self.check_unchanged()
        found = super()._change(change)
        found.known = found._versions()
        return found

    def _whole(self) -> "Swept":
        return self._with(known=None) if self.known is not None else self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and what is pickled share no memory, and nobody counts their changes as these."""
        whole = self._whole()
        return super().__reduce_ex__(protocol) if whole is self else (copy.copy, (whole,))

    def handed(self, found: Tensor, dtype: torch.dtype) -> Tensor:
        if self.known is None:
            return super().handed(found, dtype)
        self.check_unchanged()
        return found

    @property
    def differentiable(self) -> bool:
        return any(t.requires_grad for t in (*self.held, *[rows.value for rows in self.laws]))

    @property
    def variance(self) -> Fields:
        return (self.left,)

    @property
    def undetermined(self) -> None:
        return None

    makes_variance = has_estimated = is_iterative = False
    estimate = None

    @once
    def way(self) -> Way:
        self.check_unchanged()
        slack = slack_of(self.prior.parts, self.laws)
        return solve(self.laws, covariance_of(self.prior), slack)

    @once
    def residuals(self) -> tuple[Tensor, ...]:
        self.check_unchanged()
        return tuple(self.way.run((self.prior.mean.double(),))[1])


def swept(field: Any, laws: Sequence[Any]) -> FieldPosterior | None:
    """The field given one law, where this way is for it and all is well; else None."""
    if len(laws) != 1 or not isinstance(laws[0], Law) or torch.compiler.is_compiling():
        return None
    pair = pair_of(field)
    plan = None if pair is None else plan_of(laws[0], *pair)
    if pair is None or plan is None:
        return None
    mean, variance = pair
    if not mean.is_cuda:  # NumPy may share the memory, and nobody counts what it changes
        mean, variance = mean.clone(), variance.clone()
    given = (mean, variance, plan.rows.value, plan.rows.noise_variance)
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        new, left, found = cast(Any, Sweep).apply(*given, plan)
    else:
        new, left, found = _moved(plan, mean, variance)
    look = found[2:] if found.shape[1] == 1 else found[2:].amax(-1)
    prior = Diagonal._unchecked(mean, variance.expand(mean.shape))
    post = FieldPosterior(prior, Swept(prior, (plan.rows,), new, left))
    if not check.concrete(mean):
        return post
    far, missed, share = look.flatten().tolist()  # the one wait for a GPU
    if new.requires_grad and not share <= 1 - CARE:
        return None  # gradients where one point has nearly all are differences here
    return fine(field, post, far, missed)


def fine(field: Any, post: FieldPosterior, far: float, missed: float) -> FieldPosterior | None:
    """The posterior where all is well.

    far: the largest move of a point, squared, beside its variance. missed: by an exact row, as a
    share of its terms. NaN is said of what is not finite.
    """
    if not (missed <= max(SETTLED, torch.finfo(post.dtype).eps) and math.isfinite(far)):
        return None
    if isinstance(field, Diagonal):
        field.seen()
    warn_of_move(math.sqrt(far))
    return post


def pair_of(field: Any) -> tuple[Tensor, Tensor] | None:
    """Mean and variance, where these are plain tensors of one kind, on a GPU or large."""
    if type(field) is Diagonal and not field._endless:
        mean, variance = field.__dict__.get("_unseen") or (field.mean, field.variance)
    elif isinstance(field, tuple | list) and len(field) == 2:
        mean, variance = field
    else:
        return None
    if type(mean) not in PLAIN or type(variance) not in PLAIN:
        return None
    if not takes(mean):
        return None
    alike = mean.dtype == variance.dtype and mean.device == variance.device
    strided = mean.layout == variance.layout == torch.strided
    if not (alike and strided and mean.is_floating_point() and mean.dtype.itemsize > 1):
        return None
    if torch._C._functorch.maybe_current_level() is not None or carries_derivatives():
        return None
    if not check.untraced(mean, variance):
        return None
    return (mean, variance) if mean.numel() and variance.numel() else None


PLAIN = Tensor, torch.nn.Parameter


def takes(mean: Tensor) -> bool:
    """On a GPU any field; on a CPU large ones that would be copied to float64."""
    return mean.is_cuda or (mean.dtype.itemsize < 8 and is_large(mean.detach()))


def carries_derivatives() -> bool:
    """Whether derivatives are carried forward."""
    return bool(torch.autograd.forward_ad._current_level >= 0)


class Plan(NamedTuple):
    """A law on fields of one shape, as matrices."""

    rows: Rows
    n: int  # points of a place
    g: Tensor
    listed: Listed | None
    value: Tensor
    noise: Tensor
    held: tuple[Any, ...]  # alive as long as it is, so that its numbers stay its own


def plan_of(law: Law, mean: Tensor, variance: Tensor | None = None) -> Plan | None:
    """None where rows share points, or something else has a gradient than values and noise."""
    if variance is not None and not check.fits(variance.shape, mean.shape):
        return None
    plans = _plans.setdefault(law, {})
    key = mean.shape, mean.device, law.made_of()
    if (plan := plans.get(key)) is not None:
        return plan
    moved = law.to(mean.device)
    rows = moved.on(("",), [mean.shape])
    m = rows.map
    weighted = m.is_disjoint and not m.is_points and m.dims
    if not weighted or not math.prod(mean.shape[mean.ndim - m.dims :]):
        return None
    if m.weights.requires_grad or not check.untraced(rows.value, rows.noise_variance, m.weights):
        return None
    plan = _plan(rows, mean.shape, law)
    plans.clear()
    if key[-1] is not None:
        plans[key] = plan
    return plan


def _plan(rows: Rows, field: torch.Size, law: Law) -> Plan:
    m: Disjoint = rows.map
    shape = rows.row_shape([field])
    value, noise = numbers_of(rows, shape)
    n, g = math.prod(field[len(field) - m.dims :]), repeated(m.weights, field, m.dims)
    listed = regions_of(m) if isinstance(m, Regions) else None
    return Plan(rows, n, g, listed, value, noise, (law.value, law.noise_variance, law.maps))


def numbers_of(rows: Rows, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Value and noise of each row, or one for all; nothing is said where noise has no end."""
    value, noise = rows.value.detach(), rows.noise_variance.detach()
    if rows.present is not None:
        noise = torch.where(rows.present > 0, noise, math.inf)
    value, noise = (
        x.reshape(1) if x.numel() == 1 else x.expand(shape).flatten() for x in (value, noise)
    )
    return value, noise


def points_of(plan: Plan, mean: Tensor, variance: Tensor) -> Points:
    """The field as a matrix, with a row for each place."""
    u = mean.reshape(-1, plan.n).contiguous()
    d = repeated(variance, mean.shape, plan.rows.map.dims)
    return Points(u, d, plan.g, plan.listed, plan.value, plan.noise)


def _moved(plan: Plan, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found = moved(points_of(plan, mean, variance))
    return found.mean.view(mean.shape), found.variance.view(mean.shape), found.found


def repeated(x: Tensor, shape: Sequence[int], dims: int) -> Tensor:  # (places or fewer, n)
    """What broadcasts to the field: places that repeat those before are left out, if in order."""
    lead, space = shape[: len(shape) - dims], shape[len(shape) - dims :]
    if x.shape == shape and x.is_contiguous():
        return x.view(-1, math.prod(space))
    x = widened(x, len(shape))
    for axis in range(len(lead)):
        if x.stride(axis) == 0 and x.shape[axis] > 1:
            x = x.narrow(axis, 0, 1)
    first = next((i for i in range(len(lead)) if x.shape[i] > 1), len(lead))
    x = x.expand(*x.shape[:first], *lead[first:], *space)
    return x.reshape(-1, math.prod(space)).contiguous()


def regions_of(m: Regions) -> Listed:
    """The labels, with the points in the order of their regions."""
    labels = m.labels
    version = None if labels.is_inference() else labels._version
    if labels not in _listed or _listed[labels][0] != version:
        flat = labels.flatten().int()  # not the labels themselves, which would then never go
        order = flat.argsort(stable=True).int()
        counts = torch.bincount(flat, minlength=m.rows_of_place[0])
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        _listed[labels] = version, Listed(flat, order, starts)
    return cast(Listed, _listed[labels][1])


class Sweep(torch.autograd.Function):
    """The sweeps, and two more for the gradient; a gradient of that goes through the engine."""

    @staticmethod
    def forward(
        ctx: Any, mean: Tensor, variance: Tensor, value: Tensor, noise: Tensor, plan: Plan
    ) -> tuple[Tensor, Tensor, Tensor]:
        new, left, found = _moved(plan, mean, variance)
        ctx.save_for_backward(mean, variance, value, noise, found)
        ctx.plan = plan
        fixed = not (ctx.needs_input_grad[1] or ctx.needs_input_grad[3])  # means leave variances be
        ctx.mark_non_differentiable(found, *[left] * fixed)
        ctx.set_materialize_grads(False)
        return new, left, found

    @staticmethod
    def backward(ctx: Any, of_mean: Tensor | None, of_variance: Tensor | None, _: Any) -> Any:
        *given, found = ctx.saved_tensors
        if torch.is_grad_enabled():
            return (*_again(ctx.plan.rows, given, of_mean, of_variance), None)
        mean, variance, *_ = given
        points = points_of(ctx.plan, mean, variance)
        shape = ctx.plan.rows.row_shape([mean.shape])
        of = [None if x is None else x.reshape(points.u.shape) for x in (of_mean, of_variance)]
        of_u, of_d, of_b, of_noise = gradients(points, found, *of)
        own = (of_u, mean.shape), (of_d, mean.shape), (of_b, shape), (of_noise, shape)
        triples = zip(own, given, ctx.needs_input_grad, strict=False)
        each = [
            x.view(s).sum_to_size(t.shape).to(t.dtype) if asked else None
            for (x, s), t, asked in triples
        ]
        return (*each, None)


def _again(rows: Rows, given: list[Tensor], *of: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradient by the engine, so that it has one itself."""
    mean, variance, value, noise = given
    rows = rows.alike(rows.maps, value, noise, rows.present)
    prior = Diagonal._unchecked(mean, variance.expand(mean.shape))
    way = solve((rows,), covariance_of(prior))
    found = (*way.run((mean.double(),))[0], *way.variance)
    pairs = [(x, g.double()) for x, g in zip(found, of, strict=True) if g is not None]
    wanted = [t for t in given if t.requires_grad]
    outs, gs = zip(*pairs, strict=True)
    found = torch.autograd.grad(outs, wanted, gs, create_graph=True, allow_unused=True)
    each = iter(found)
    return tuple(next(each) if t.requires_grad else None for t in given)
