"""rollout: members step forward, each with errors of its own, and laws hold at every step.

Members are moved to the laws by the covariance of a step's errors, which is learned from other
trajectories. So a member is drawn as the truth is, at every step. A covariance taken from the
members themselves would not do that: to move them by it takes some of their spread at every step,
by chance alone, and after many steps most of it.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..conditioning.condition import AnyLaw, condition, for_each
from ..conditioning.posterior import Posterior, members_of_prior
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
from .step_errors import Arrays, Step, StepErrors, parted, stepped, together

MEMBERS = 20
RANGES = 10  # how many ranges of the states that are known a member may leave them by
FEWEST = 2

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


@dataclass(frozen=True, eq=False)
class Rollout:
    """Members of a rollout at all steps, and what was corrected. `rollout` makes it.

    Attributes
    ----------
    members : Tensor, shape ``(S, *batch, steps + 1, ...)``, or a dict of these
        The start and the states after each step. NaN from where a member was left out.
    batch_dims : int
        How many axes after that of the members number solutions.
    ledger : tuple of Corrected
        What was corrected at each step, the start first.
    left_out : tuple of str
        Which members were left out, at which step and why.
    stopped : str
        Why it ended before the last step; "" if it did not.

    Examples
    --------
    >>> import probconserv as pc
    >>> law = pc.weighted_sum([1.0, 1.0], 2.0)
    >>> run = pc.rollout(lambda u: 0.9 * u, [0.5, 1.5], law, 3)
    >>> run.members[0, -1]
    tensor([0.6355, 1.3645], dtype=torch.float64)
    >>> [round(step.missed["weighted_sum"], 9) for step in run.ledger]
    [0.0, 0.2, 0.2, 0.2]
    """

    members: Tensor | dict[str, Tensor]
    batch_dims: int
    ledger: tuple[Corrected, ...]
    left_out: tuple[str, ...]
    stopped: str

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return len(self.ledger) - 1

    def field(self, step: int | None = None) -> LowRank | State:
        """The members as an `Ensemble`, for `interval`, `evaluate` and `condition`.

        Parameters
        ----------
        step : int
            Of this step alone. If it is not given, of all steps, each by itself: those members
            that are left at the end.

        Returns
        -------
        LowRank or State
            In the shape of a state, with an axis of steps before it if no step is given. Of
            several solutions each has as many members as the one that has fewest.

        Raises
        ------
        InputError
            If there is no such step, or fewer than two members are left.
        """
        names, parts = parted("members", self.members)
        axis = 1 + self.batch_dims
        if step is not None and not -len(self.ledger) <= check.whole("step", step) <= self.steps:
            raise InputError(f"`step` must be from 0 to {self.steps}, got {step}.")
        at = -1 if step is None else step
        alive = _whole(tuple(x.select(axis, at) for x in parts), axis)
        count = int(alive.sum(0).min())
        if count < FEWEST:
            raise InputError(
                f"`members`: {count} of {len(alive)} are left, and an ensemble takes two. Give "
                "`rollout` `errors` or more `members`, or ask for an earlier `step`."
            )
        first = (~alive).byte().argsort(stable=True, dim=0)[:count]
        kept = []
        for x in parts:
            x = x if step is None else x.select(axis, step)
            index = first.reshape(*first.shape, *[1] * (x.ndim - first.ndim))
            kept.append(x if count == len(x) else x.take_along_dim(index, 0))
        return Ensemble(together(names, kept), batch_dims=axis - (step is not None))

    def table(self) -> str:
        """The ledger as a table in Markdown, a row for each step.

        Returns
        -------
        str
            For each law what was missed (mean and worst) and what is left; then how far the
            correction moved, and how many members there are.
        """
        laws = list(dict.fromkeys(name for row in self.ledger for name in row.missed))
        of_laws = [f"{law}: {what}" for law in laws for what in ("missed", "worst", "left")]
        fields = list(self.ledger[0].moved)
        moves = [f"moved {name}".strip() for name in fields]
        head = ["step", *of_laws, *moves, "deviations", "furthest", "members"]
        lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        for row in self.ledger:
            each = (row.missed, row.worst, row.left)
            numbers = [part.get(law, float("nan")) for law in laws for part in each]
            numbers += [*row.moved.values(), row.deviations, row.furthest]
            cells = [str(row.step), *(f"{x:.3g}" for x in numbers), str(row.members)]
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines)


@torch.no_grad()
def rollout(
    step: Step,
    state: Arrays | Field | State,
    laws: Laws,
    steps: int,
    *,
    members: int | None = None,
    errors: StepErrors | None = None,
    every: int = 1,
    batch_dims: int = 0,
    plausible: Callable[[Any], Any] | None = None,
    generator: torch.Generator | None = None,
) -> Rollout:
    """Members of a model that steps forward, each of which obeys the laws at every step.

    At each step every member goes through `step`, gets errors of its own, and is moved to the
    nearest state that obeys, in the norm of the errors' covariance; a law with noise is met up to a
    draw of it. It goes on from there. There are no gradients.

    Parameters
    ----------
    step : callable
        The model: from states, (S, ...) with the members first, to those after a step, as a tensor
        or an array; of several fields, from a dict to a dict.
    state : array, or a dict of arrays; or Field, or State
        The start. An array is known exactly; an `Ensemble`, or that given laws, starts the members
        where its members are; another field where its draws are.
    laws : law, sequence of laws, or callable
        What holds after a step, as in `condition`, linear or not, with inequalities or without. A
        function of the number of the step and the members before it gives those of that step. Its
        values may have an axis of members in front.
    steps : int
        How many.
    members : int
        How many; that of an `Ensemble` if it is the start. If it is not given, 20, and 1 for an
        array without `errors`.
    errors : StepErrors
        How wrong a step is. Without it members differ by their start and by what `step` itself
        draws, and intervals hold no more than that; a member is then moved by the covariance of the
        others, and, where they are all the same, to the nearest state, with the mean square of a
        field as the unit.
    every : int
        At which steps the laws are asked for: every one, every second, and so on.
    batch_dims : int
        How many first axes of the state number solutions, which are independent.
    plausible : callable
        From the members to whether each is plausible, ``(S, *batch)`` or ``(S,)``. If it is not
        given, a member may leave the range of the start, and of the true states that `errors` were
        learned from, by up to 10 times that range (with a standard deviation of errors added). What is not finite never is plausible.
    generator : torch.Generator
        The source of the random numbers.

    Returns
    -------
    Rollout
        Members at all steps, the ledger, and why it stopped. It stops early if fewer than two
        members are left of a solution, or from the second step on no state near a member obeys.

    Raises
    ------
    InputError
        If arguments do not fit each other, or `step` returns other shapes than it gets.
    InfeasibleError
        If laws cannot be met at the first step at which they are asked for.

    Warns
    -----
    ImplausibleWarning
        If members were left out, it stopped, or a law moved a point by more than 10 standard
        deviations.

    Examples
    --------
    >>> import probconserv as pc
    >>> rng = torch.Generator().manual_seed(0)
    >>> residuals = 0.1 * torch.randn(50, 10, 8, generator=rng)
    >>> errors = pc.diagnostics.StepErrors(residuals)
    >>> law = pc.weighted_sum([1.0] * 8, 8.0)
    >>> run = pc.rollout(lambda u: u.roll(1, -1), [1.0] * 8, law, 5, errors=errors, generator=rng)
    >>> run.members.shape, bool(law.residual(run.members).abs().max() < 1e-12)
    (torch.Size([20, 6, 8]), True)
    >>> low, high = run.field().interval(0.9)
    """
    check.generator(generator)
    if not callable(step):
        raise InputError(f"`step` must be a function, got {type(step).__name__}.")
    if errors is not None and not isinstance(errors, StepErrors):
        raise InputError(f"`errors` must be `StepErrors`, got {type(errors).__name__}.")
    if plausible is not None and not callable(plausible):
        raise InputError("`plausible` must be a function from the members to whether each is.")
    names, start = _start(state, members, errors, generator)
    dims = check.whole("batch_dims", batch_dims)
    if dims < 0 or any(x.ndim < dims + 2 for x in start):
        shapes = ", ".join(str(tuple(x.shape[1:])) for x in start)
        raise InputError(f"`batch_dims` must leave an axis of the state, {shapes}; got {dims}.")
    if errors is not None:
        own = {name: tuple(x.shape[1 + dims :]) for name, x in zip(names, start, strict=True)}
        if dict(errors._named()) != own:
            raise InputError(
                f"`errors` are those of states of shape {together(errors.names, errors.shapes)}, "
                f"but `state` is {together(names, list(own.values()))} after `batch_dims`={dims}."
            )
    run = _Run(step, names, dims, laws, errors, plausible, generator)
    return run.through(start, check.samples(steps, "steps"), check.samples(every, "every"))


class _Run:
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

    def through(self, u: Fields, steps: int, every: int) -> Rollout:
        states, stopped, last, furthest = [u], "", 0, 0.0
        lead = u[0].shape[: 1 + self.dims]
        self.alive = torch.ones(lead, dtype=torch.bool, device=u[0].device)
        self.ranges = self._ranges(u)
        if self.errors is not None:
            lasts, fades = (self.errors._normals(lead, self.generator) for _ in range(2))
        ledger = [self._row(0, self._laws(0, u), u, u, None)]
        for number in range(1, steps + 1):
            after = stepped(self.step, self.names, u)
            if self.errors is not None:
                added = self.errors._of(self.errors._both(lasts, fades), after)
                after = tuple((x + e).to(x) for x, e in zip(after, added, strict=True))
                fades = self.errors._next(fades, self.errors._normals(lead, self.generator))
            stopped = self._look(number, after)
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
            u = moved
            states.append(self._shown(u))
        self._warn(stopped, furthest)
        stacked = [torch.stack(each, 1 + self.dims) for each in zip(*states, strict=True)]
        kept = together(self.names, stacked)
        return Rollout(kept, self.dims, tuple(ledger), tuple(self.left_out), stopped)

    def _warn(self, stopped: str, furthest: float) -> None:
        said = ([f"the rollout stopped at {stopped}"] if stopped else []) + self.left_out
        if said:
            more = f" and {len(said) - 3} more, in `left_out`" if len(said) > 3 else ""
            warn_implausible("; ".join(said[:3]) + more)
        elif furthest > FAR:
            of = "members differ too little" if self.errors is None else "`errors` are too small"
            warn_implausible(
                f"laws moved a point by {furthest:.3g} standard deviations in a step: see "
                f"`ledger`. Either the laws are wrong, or {of}."
            )

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

    def _look(self, number: int, u: Fields) -> str:
        """Leaves out members that are lost; why the rollout stops, if it does."""
        finite = _whole(u, 1 + self.dims)
        inside, why = finite, "not plausible, as `plausible` says"
        if self.plausible is not None:
            said = self.plausible(together(self.names, tuple(x.clone() for x in u)))
            inside = check.raw("plausible(members)", said).to(finite.device)
            if inside.dtype != torch.bool or inside.shape not in (finite.shape, finite.shape[:1]):
                raise InputError(
                    f"`plausible` must return True or False for each member, {tuple(finite.shape)} "
                    f"or {tuple(finite.shape[:1])}; got {inside.dtype} of {tuple(inside.shape)}."
                )
            inside = inside.reshape(*inside.shape, *[1] * (finite.ndim - inside.ndim))
        else:
            for x, (low, high) in zip(u, self.ranges, strict=True):
                own = ((x >= low) & (x <= high)).flatten(1 + self.dims).all(-1)
                inside = inside & own
            ends = ", ".join(
                f"{name or 'the field'} from {float(low):.3g} to {float(high):.3g}"
                for name, (low, high) in zip(self.names, self.ranges, strict=True)
            )
            why = f"not plausible: beyond {ends}"
        for wrong, what in ((~finite, "not finite"), (finite & ~inside, why)):
            lost = (self.alive & wrong).nonzero().tolist()
            if lost:
                named = ", ".join(str(i[0] if len(i) == 1 else tuple(i)) for i in lost[:5])
                more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
                self.left_out.append(f"step {number}: member {named}{more} is {what}")
        self.alive = self.alive & finite & inside
        fewest = int(self.alive.sum(0).min())
        if fewest >= min(FEWEST, len(self.alive)):
            return ""
        return f"step {number}: {fewest} of {len(self.alive)} members are left"

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
            own, then = (self._off(law, u)[self.alive] for u in (before, after))
            missed[name], worst[name] = float(own.abs().mean()), float(own.abs().max())
            left[name] = float(then.mean())
        moves = [(y - x).double() for x, y in zip(before, after, strict=True)]
        kept = [m[self.alive] for m in moves]
        moved = [float(m.square().mean().sqrt()) for m in kept]
        rms = furthest = 0.0 if prior is None else float("nan")
        if isinstance(prior, LowRank | State) and not isinstance(prior.parts[0], Diagonal):
            pairs = zip(moves, prior.parts, strict=True)
            share = [(m.square() / p.variance).nan_to_num(0.0)[self.alive] for m, p in pairs]
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


def _start(
    state: Any, members: int | None, errors: StepErrors | None, generator: torch.Generator | None
) -> tuple[tuple[str, ...], Fields]:
    """Names of the fields, and the members of each."""
    count = None if members is None else check.samples(members, "members")
    if isinstance(state, Field | State):
        given = _members(state, count, generator)
        if count not in (None, len(given[0])):
            raise InputError(
                f"`members` is {count}, but `state` is an ensemble of {len(given[0])}. Leave out "
                "`members`."
            )
        return state.names, given
    names, parts = parted("state", state)
    for x in parts:
        check.finite("state", x)
        if not x.ndim:
            raise InputError("`state` must have an axis, got a number.")
    count = count or (1 if errors is None else MEMBERS)
    return names, tuple(x.detach().expand(count, *x.shape).clone() for x in parts)


def _members(state: Any, count: int | None, generator: torch.Generator | None) -> Fields:
    """Those of an ensemble, or draws."""
    prior = state.prior if isinstance(state, Posterior) else state
    if all(isinstance(part, LowRank) and part.count for part in prior.parts):
        if prior is state:
            own = members_of_prior(state)
            return tuple(x.to(part.dtype) for x, part in zip(own, state.parts, strict=True))
        moved: Mapping[str, Tensor] | Tensor = state.members()
        return parted("state", moved)[1]
    if isinstance(state, State) and not hasattr(type(state), "sample"):
        raise InputError(
            "`state` is a `State` that is no ensemble: give members of all fields, "
            "`Ensemble` of a dict, or arrays for a start that is known."
        )
    return parted("state", state.sample(count or MEMBERS, generator))[1]


def _whole(u: Fields, lead: int) -> Tensor:
    """Whether each member is finite; lead: axes of members and solutions."""
    found = [x.isfinite().flatten(lead).all(-1) for x in u]
    return torch.stack(found).all(0)


def _wide(x: Tensor, like: Tensor) -> Tensor:
    return x.reshape(*x.shape, *[1] * (like.ndim - x.ndim))
