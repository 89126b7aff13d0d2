"""rollout: members step forward, each with errors of its own, and laws hold at every step.

Members are moved to the laws by the covariance of a step's errors, which is learned from other
trajectories. So a member is drawn as the truth is, at every step. A covariance taken from the
members themselves would not do that: to move them by it takes some of their spread at every step,
by chance alone, and after many steps much of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..conditioning.posterior import Posterior, members_of_prior
from ..fields.covariances import Fields
from ..fields.ensemble import Ensemble
from ..fields.gaussian import Field
from ..fields.low_rank import LowRank
from ..fields.state import State
from ..support import checks as check
from ..support.errors import InputError
from .step_errors import Arrays, Step, StepErrors, parted, together
from .stepping import FEWEST, Corrected, Laws, Run, all_finite

MEMBERS = 20


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
        alive = all_finite(tuple(x.select(axis, at) for x in parts), axis)
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
        learned from, by up to 10 times that range and the standard deviation of a step's errors.
        What is not finite never is plausible.
    generator : torch.Generator
        The source of the random numbers. If it is not given, that of torch, as in `sample` and
        `condition`: `torch.manual_seed` makes the same rollout again.

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
        If the start does not obey an exact law: of members, if their mean is off by more than 5 of
        their standard deviations too. Not of laws that a function gives. If members were left out,
        or it stopped. If laws moved a point by more than 10 standard deviations in a step; of
        members that are all the same, by more than twice the largest number of the field.

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
    run = Run(step, names, dims, laws, errors, plausible, generator)
    went = run.through(start, check.samples(steps, "steps"), check.samples(every, "every"))
    stacked = [torch.stack(each, 1 + dims) for each in zip(*went.states, strict=True)]
    kept = together(names, stacked)
    return Rollout(kept, dims, tuple(went.ledger), tuple(went.left_out), went.stopped)


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
        if not x.ndim or not x.numel():
            raise InputError(f"`state` must have an axis of points, got shape {tuple(x.shape)}.")
    count = count or (1 if errors is None else MEMBERS)
    return names, tuple(x.detach().expand(count, *x.shape).clone() for x in parts)


def _members(state: Any, count: int | None, generator: torch.Generator | None) -> Fields:
    """Those of an ensemble, or draws."""
    prior = state.prior if isinstance(state, Posterior) else state
    if all(isinstance(part, LowRank) and part.count for part in prior.parts):
        if prior is state:
            own = members_of_prior(state)
            return tuple(x.to(part.dtype) for x, part in zip(own, state.parts, strict=True))
        return parted("state", state.members())[1]
    if isinstance(state, State) and not hasattr(type(state), "sample"):
        raise InputError(
            "`state` is a `State` that is no ensemble: give members of all fields, "
            "`Ensemble` of a dict, or arrays for a start that is known."
        )
    return parted("state", state.sample(count or MEMBERS, generator))[1]
