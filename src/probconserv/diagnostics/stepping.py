"""A rollout as it goes: steps, laws, members that are lost, and what was corrected."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..conditioning.condition import AnyLaw, condition, for_each
from ..fields.covariances import Fields
from ..fields.ensemble import Ensemble
from ..fields.gaussian import Diagonal, Field
from ..fields.low_rank import LowRank
from ..fields.state import State
from ..laws.inequalities import Bounds, Inequality, Monotone, OneSided
from ..laws.law import Law
from ..laws.nonlinear import NonlinearLaw
from ..support import checks as check
from ..support.errors import (
    FAR,
    InfeasibleError,
    InputError,
    surprises_expected,
    warn_implausible,
)
from ..support.tolerances import CLOSES
from .step_errors import Step, StepErrors, parted, stepped, together

RANGES = 10  # how many ranges of the states that are known a member may leave them by
FEWEST = 2  # members that a rollout goes on with
STRAY = 5  # standard deviations of a start's members that the value of a law may lie away from them
SIZES = 2  # largest numbers of a field that laws may move a point by, where there is no spread
NAMED = 5  # members that a message names

Laws: TypeAlias = AnyLaw | Sequence[AnyLaw] | Callable[[int, Any], Any]


@dataclass(frozen=True)
class Corrected:
    """What was corrected at one step of a rollout.

    Attributes
    ----------
    step : int
        Its number; 0 is the start.
    missed, worst : dict of float
        By law, the mean and the largest |G u - b| over members before the correction; of
        inequalities by how much they are broken.
    left : dict of float
        By law, the mean of G u - b over members after it: the drift since the start, where laws
        keep what the start had.
    moved : dict of float
        By field, the root mean square of the correction; "" for a field alone.
    deviations : float
        The root mean square of the correction in standard deviations of the errors since the last
        one, or, without `errors`, of the members; NaN where they are all the same.
    furthest : float
        The largest correction of a point, in the same units.
    members : int
        How many are left; of several solutions, in the one that has fewest.
    """

    step: int
    missed: dict[str, float]
    worst: dict[str, float]
    left: dict[str, float]
    moved: dict[str, float]
    deviations: float
    furthest: float
    members: int


class Went(NamedTuple):
    """How a rollout went; its states by step and field, as members."""

    states: list[Fields]
    ledger: list[Corrected]
    left_out: list[str]
    stopped: str


class Run:
    """A rollout as it goes."""

    def __init__(
        self,
        step: Step,
        names: tuple[str, ...],
        dims: int,
        laws: Laws,
        errors: StepErrors | None,
        plausible: Callable[[Any], Any] | None,
        generator: torch.Generator | None,
    ) -> None:
        self.step, self.names, self.dims, self.laws = step, names, dims, laws
        self.errors, self.plausible, self.generator = errors, plausible, generator
        self.left_out: list[str] = []
        self.sized = 0.0  # the largest move of a point without spread, in sizes of its field

    def through(self, u: Fields, steps: int, every: int) -> Went:
        states, stopped, last, furthest = [u], "", 0, 0.0
        lead = u[0].shape[: 1 + self.dims]
        self.alive = torch.ones(lead, dtype=torch.bool, device=u[0].device)
        self.ranges = self._ranges(u)
        if self.errors is not None:
            lasts, fades = (self.errors._normals(lead, self.generator) for _ in range(2))
        asked = self._laws(0, u)
        ledger = [self._row(0, asked, u, u, None)]
        for law, label in zip(asked, ledger[0].missed, strict=True):
            if isinstance(law, Law | NonlinearLaw):
                self._check_start(law, label, u)
        for number in range(1, steps + 1):
            after = stepped(self.step, self.names, u)
            if self.errors is not None:
                added = self.errors._of(self.errors._both(lasts, fades), after)
                after = tuple((x + e).to(x) for x, e in zip(after, added, strict=True))
                fades = self.errors._next(fades, self.errors._normals(lead, self.generator))
            stopped = self._look(number, after, u)
            if stopped:
                break
            after = self._filled(after)
            asked, prior, moved = self._laws(number, u), None, after
            if number % every == 0 and asked:
                prior = self._prior(after, number - last)
                try:
                    moved = self._moved(prior, after, asked)
                except InfeasibleError as error:
                    if not last:
                        raise
                    stopped = f"step {number}: {error}"
                    break
                last = number
            ledger.append(self._row(number, asked, after, moved, prior))
            furthest = max(furthest, ledger[-1].furthest)
            if prior is not None and _has_no_spread(prior):
                self.sized = max(self.sized, self._in_sizes(after, moved))
            u = moved
            states.append(self._shown(u))
        self._warn(stopped, furthest, u)
        return Went(states, ledger, self.left_out, stopped)

    def _warn(self, stopped: str, furthest: float, u: Fields) -> None:
        """All that applies; u: the members at the end."""
        said = ([f"the rollout stopped at {stopped}"] if stopped else []) + self.left_out
        if said:
            more = f" and {len(said) - 3} more, in `left_out`" if len(said) > 3 else ""
            warn_implausible("; ".join(said[:3]) + more)
        thrown = [] if stopped else (self.alive & ~self._inside(u)).nonzero().tolist()
        if thrown:
            warn_implausible(
                f"at the last step the laws moved member {_listed(thrown)} {self._limits()}"
            )
        if furthest > FAR:
            of = "members differ too little" if self.errors is None else "`errors` are too small"
            warn_implausible(
                f"laws moved a point by {furthest:.3g} standard deviations in a step: see "
                f"`ledger`. Either the laws are wrong, or {of}."
            )
        if self.sized > SIZES:
            warn_implausible(
                f"laws moved a point by {self.sized:.3g} times the largest number of its field in "
                "a step: see `ledger`. Either the laws are wrong, or the model."
            )

    def _check_start(self, law: Law | NonlinearLaw, label: str, u: Fields) -> None:
        """Warns where the start does not obey an exact law, and lies not around it either."""
        named = together(self.names, u)
        rows, off = law.apply(named), law.residual(named)
        terms = _terms(law, self.names, u).reshape(rows.shape) + (rows - off).abs()
        off, terms, spread = off.mean(0), terms.mean(0), off.std(0, correction=0)
        exact = law.noise.to(rows).expand(rows.shape)[0] == 0
        wrong = exact & (off.abs() > CLOSES * terms + STRAY * spread)
        if not bool(wrong.any()):
            return
        worst = torch.where(wrong, off.abs() / terms, 0.0).argmax()
        has, miss = float(rows.mean(0).flatten()[worst]), float(off.flatten()[worst])
        count = (
            f" in {int(wrong.sum())} of {wrong.numel()} rows, at worst" if wrong.numel() > 1 else ""
        )
        warn_implausible(
            f"the start does not obey `{label}`{count}: it has {has:.6g}, the law says "
            f"{has - miss:.6g}, so it is off by {abs(miss):.3g}. Correct the one or the other. "
            "Give laws that hold only after the first step as a function of the step's number."
        )

    def _in_sizes(self, before: Fields, after: Fields) -> float:
        """The largest move of a point over the largest number of its field; 0 where that is 0."""
        pairs = [
            (x[self.alive].double(), y[self.alive]) for x, y in zip(before, after, strict=True)
        ]
        ends = [((y - x).abs().max(), x.abs().max()) for x, y in pairs]
        return max(float(move / size) if size > 0 else 0.0 for move, size in ends)

    def _laws(self, number: int, before: Fields) -> list[Any]:
        """Those of a step, as laws of members."""
        given: Any = self.laws
        if callable(given):
            if number == 0:
                return []
            given = given(number, together(self.names, tuple(x.clone() for x in before)))
        listed = list(given) if isinstance(given, Sequence) else [given]
        for law in listed:
            if not isinstance(law, Law | NonlinearLaw | Inequality):
                raise InputError(
                    "`laws` must be laws such as `integral`, `nonlinear` or `bounds` make, or a "
                    f"function that gives some; got {type(law).__name__}."
                )
            if isinstance(law, Monotone) and law.axis >= 0:
                raise InputError("`laws`: `axis` of `monotone` must count from the last: -1.")
        return list(for_each(listed))

    def _prior(self, u: Fields, steps: int) -> Field | State:
        """The members as fields, each with the covariance by which it is moved."""
        if self.errors is not None:
            return self.errors._about(u, steps)
        count, axes = len(u[0]), 1 + self.dims
        alike = all(bool((x == x[:1]).all()) for x in u)
        if count < 3 or alike:
            sizes = [x.double().square().mean() for x in u]
            units = [
                torch.where(s > 0, s, 1.0).expand(x.shape) for s, x in zip(sizes, u, strict=True)
            ]
            alone = [Diagonal._unchecked(x, v.to(x)) for x, v in zip(u, units, strict=True)]
            whole = together(self.names, alone)
            return State(**whole) if isinstance(whole, dict) else whole
        other = torch.arange(count) + torch.arange(1, count)[:, None]
        others = together(self.names, [x[other.to(x.device) % count] for x in u])
        prior = Ensemble(others, batch_dims=axes)
        if isinstance(prior, LowRank):
            return prior._with_mean(u[0])
        parts = [part._with_mean(x) for part, x in zip(prior.parts, u, strict=True)]
        return prior._with(parts=tuple(parts))

    def _moved(self, prior: Any, u: Fields, laws: Sequence[Any]) -> Fields:
        """Each member at the nearest state that obeys."""
        drawn = [self._with_noise(law, u) for law in laws]
        with surprises_expected():
            post: Any = condition(prior, *drawn, draws=0)
        _, found = parted("point", post.point)
        return tuple(x.to(before) for x, before in zip(found, u, strict=True))

    def _with_noise(self, law: Any, u: Fields) -> Any:
        """A law with a draw of its noise in its value, for each member."""
        noise = getattr(law, "noise", None)
        if noise is None or not bool((noise > 0).any()):
            return law
        rows = law.apply(together(self.names, u))
        fresh = torch.randn(
            rows.shape, generator=self.generator, dtype=rows.dtype, device=rows.device
        )
        found: Any = copy.copy(law)
        found.value = law.value.to(rows) + noise.to(rows) * fresh
        return found

    def _ranges(self, u: Fields) -> list[tuple[Tensor, Tensor]]:
        """The least and the largest plausible number of each field."""
        found = []
        for i, x in enumerate(u):
            ends = [x.double().amin(), x.double().amax()]
            if self.errors is not None and self.errors.extent:
                low, high = self.errors.extent[i].to(x.device)
                ends = [torch.minimum(ends[0], low), torch.maximum(ends[1], high)]
            width = ends[1] - ends[0]
            if self.errors is not None and self.errors.relative == "no":
                width = width + self.errors._stds[i].max()
            width = torch.where(width > 0, width, ends[1].abs())
            width = RANGES * torch.where(width > 0, width, torch.inf)
            found.append((ends[0] - width, ends[1] + width))
        return found

    def _look(self, number: int, u: Fields, before: Fields) -> str:
        """Leaves out members that are lost; why the rollout stops, if it does.

        before: the members after the laws of the step before, which the model stepped from.
        """
        finite, inside = all_finite(u, 1 + self.dims), self._inside(u)
        kept = finite & inside
        if bool((self.alive & ~kept).any()):
            self._leave_out(number, finite, kept, self._inside(before))
        self.alive = self.alive & kept
        fewest = int(self.alive.sum(0).min())
        if fewest >= min(FEWEST, len(self.alive)):
            return ""
        return f"step {number}: {fewest} of {len(self.alive)} members are left"

    def _leave_out(self, number: int, finite: Tensor, kept: Tensor, was: Tensor) -> None:
        """Says which members are lost and why; was: whether each was plausible before the step."""
        limits, laws = self._limits(), f"the laws at step {number - 1} moved it"
        put = f"{laws if number > 1 else 'it started'} {limits}"
        for wrong, what in (
            (~finite & was, "not finite"),
            (~finite & ~was, f"not finite: before this step {put}"),
            (finite & ~kept & was, f"not plausible: {limits}"),
            (finite & ~kept & ~was, f"not plausible: {put}"),
        ):
            lost = (self.alive & wrong).nonzero().tolist()
            if lost:
                self.left_out.append(f"step {number}: member {_listed(lost)} is {what}")

    def _inside(self, u: Fields) -> Tensor:
        """Whether each member is plausible."""
        lead = u[0].shape[: 1 + self.dims]
        if self.plausible is None:
            each = zip(u, self.ranges, strict=True)
            own = [((x >= a) & (x <= b)).flatten(len(lead)).all(-1) for x, (a, b) in each]
            return torch.stack(own).all(0)
        said = self.plausible(together(self.names, tuple(x.clone() for x in u)))
        inside = check.raw("plausible(members)", said).to(u[0].device)
        if inside.dtype != torch.bool or inside.shape not in (lead, lead[:1]):
            raise InputError(
                f"`plausible` must return True or False for each member, {tuple(lead)} "
                f"or {tuple(lead[:1])}; got {inside.dtype} of {tuple(inside.shape)}."
            )
        return inside.reshape(*inside.shape, *[1] * (len(lead) - inside.ndim)).expand(lead)

    def _limits(self) -> str:
        """What a member that is not plausible is beyond."""
        if self.plausible is not None:
            return "beyond what `plausible` allows"
        pairs = zip(self.names, self.ranges, strict=True)
        each = [f"{name or 'the field'} from {a:.3g} to {b:.3g}" for name, (a, b) in pairs]
        return "beyond " + ", ".join(each)

    def _filled(self, u: Fields) -> Fields:
        """A copy of a member that is left in place of each that is not."""
        if bool(self.alive.all()):
            return u
        order = (~self.alive).byte().argsort(stable=True, dim=0)
        count, place = self.alive.sum(0), torch.arange(len(order), device=order.device)
        place = place.reshape(-1, *[1] * self.dims) % count
        own = torch.arange(len(order), device=order.device).reshape(
            place.shape[0], *[1] * self.dims
        )
        index = torch.where(self.alive, own, order.take_along_dim(place, 0))
        return tuple(x.take_along_dim(_wide(index, x), 0) for x in u)

    def _shown(self, u: Fields) -> Fields:
        return tuple(torch.where(_wide(self.alive, x), x, torch.nan) for x in u)

    def _row(
        self, number: int, laws: Sequence[Any], before: Fields, after: Fields, prior: Any
    ) -> Corrected:
        missed: dict[str, float] = {}
        worst: dict[str, float] = {}
        left: dict[str, float] = {}
        for law in laws:
            name = law.label_on(self.names) if isinstance(law, Law) else law.label
            name += {1: " at least", -1: " at most"}.get(getattr(law, "side", 0), "")
            name += f" ({sum(n.startswith(name) for n in missed) + 1})" if name in missed else ""
            own, then = self._off(law, before), self._off(law, after)
            if own.shape[: self.alive.ndim] != self.alive.shape:
                raise InputError(
                    f"`batch_dims` is {self.dims}, but a row of `{name}` reads several solutions: "
                    f"it has rows of shape {tuple(own.shape)} for members and solutions "
                    f"{tuple(self.alive.shape)}."
                )
            own, then = own[self.alive], then[self.alive]
            missed[name], worst[name] = float(own.abs().mean()), float(own.abs().max())
            left[name] = float(then.mean())
        moves = [(y - x).double() for x, y in zip(before, after, strict=True)]
        kept = [m[self.alive] for m in moves]
        moved = [float(m.square().mean().sqrt()) for m in kept]
        rms = furthest = 0.0 if prior is None else float("nan")
        if isinstance(prior, LowRank | State) and not _has_no_spread(prior):
            pairs = zip(moves, prior.parts, strict=True)
            moves_by = [(m.square(), p.variance.to(m)) for m, p in pairs]
            share = [torch.where(v > 0, m / v, 0.0)[self.alive] for m, v in moves_by]
            every = torch.cat([s.flatten() for s in share])
            rms, furthest = float(every.mean().sqrt()), float(every.max().sqrt())
        fewest = int(self.alive.sum(0).min())
        named = dict(zip(self.names, moved, strict=True))
        return Corrected(number, missed, worst, left, named, rms, furthest, fewest)

    def _off(self, law: Any, u: Fields) -> Tensor:  # (S, *batch, ...)
        """G u - b of members; of inequalities by how much they are broken."""
        if isinstance(law, OneSided):
            off: Tensor = law.law.residual(together(self.names, u))
            return (off * law.side).clamp_max(0) * law.side
        if isinstance(law, Law | NonlinearLaw):
            found: Tensor = law.residual(together(self.names, u))
            return found
        x = u[law.number(self.names)].double()
        if isinstance(law, Monotone):
            rise = x.diff(dim=law.axis)
            return (-rise if law.decreasing else rise).clamp_max(0)
        assert isinstance(law, Bounds)
        low, high = (None if end is None else end.to(x) for end in (law.low, law.high))
        return x - x.clamp(low, high)


def all_finite(u: Fields, lead: int) -> Tensor:
    """Whether each member is finite; lead: axes of members and solutions."""
    found = [x.isfinite().flatten(lead).all(-1) for x in u]
    return torch.stack(found).all(0)


def _wide(x: Tensor, like: Tensor) -> Tensor:
    return x.reshape(*x.shape, *[1] * (like.ndim - x.ndim))


def _has_no_spread(prior: Field | State) -> bool:
    """Whether members are moved in units of the field alone."""
    return isinstance(prior.parts[0], Diagonal)


def _listed(members: list[list[int]]) -> str:
    """Members by number, or by that and the solution's; the first few of many."""
    named = ", ".join(str(i[0] if len(i) == 1 else tuple(i)) for i in members[:NAMED])
    return named + (f" and {len(members) - NAMED} more" if len(members) > NAMED else "")


def _terms(law: Law | NonlinearLaw, names: tuple[str, ...], u: Fields) -> Tensor:
    """The sizes of the terms of each row of G u, or of the tangent at u."""
    if isinstance(law, Law):
        return law.magnitude(together(names, u))
    fields = tuple(x.double() for x in u)
    rows = law.on(names, fields).linearised(fields, False)
    return rows.entrywise(1).apply(tuple(x.abs() for x in fields))
