"""Totals of functions on a grid: rules by which they add up, and whether targets have them."""

from collections.abc import Iterator
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from ..laws.quadrature import RULES, periodic_weights
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError, warn_implausible

RuleName: TypeAlias = Literal["trapezoid", "simpson", "left", "right", "periodic", "cell"]
EVEN = 1e-6  # of a step
ROUNDING = 1e-6  # of the terms of a total: it agrees, to the digits of float32
LITTLE = 1e-3  # of the terms: no difference to speak of
CURVES = 8.0  # times what Simpson's rule finds the trapezoid rule to miss
AT_ONCE = 2**22  # values


def weights_of(rule: RuleName | ArrayLike, axis: Tensor) -> Tensor:
    """What every point of an axis counts in a total, (M,), float64."""
    if not isinstance(rule, str):
        weights = check.wide("rule", rule).to(axis.device)
        if weights.shape != axis.shape:
            raise InputError(
                f"`rule` must be one of {', '.join(get_args(RuleName))}, or a weight for each of "
                f"the {len(axis)} points of the last axis; got shape {tuple(weights.shape)}."
            )
        return weights
    check.choice("rule", rule, get_args(RuleName))
    x = axis.double()
    if rule == "periodic":
        if not _is_even(x):
            raise InputError(
                "`rule` periodic is for an even axis; the last one of `coordinates` is not. Give "
                "the weight of each point as `rule`."
            )
        return periodic_weights(x, None)
    steps = x.diff()
    if rule == "cell":  # ends half way between the centres, and as far out as in
        steps = torch.cat([steps[:1], (steps[1:] + steps[:-1]) / 2, steps[-1:]])
    return RULES[rule](steps)


def _is_even(x: Tensor) -> bool:
    steps = x.diff()
    return not bool(((steps - steps.mean()).abs() > EVEN * steps.mean()).any())


def warn_of_totals(
    targets: Tensor, totals: Tensor, axis: Tensor, weights: Tensor, rule: str
) -> None:
    """Warns of totals (..., T) that are not those of the targets (..., T, M), by more than chance.

    A total that is known exactly differs from the sum of a rule by the rule's own error, which
    jumps and curves of the targets tell; and by no more.
    """
    every = [*_looks(targets, totals, axis, weights)]
    miss, size, sums, allowed = (torch.cat(parts) for parts in zip(*every, strict=True))
    far = miss > LITTLE * size
    if not bool(far.any()):
        return
    reason = _explained(targets, totals, axis, sums, size, rule)
    wrong = far if reason else miss > allowed
    if not bool(wrong.any()):
        return
    most = 100 * float((miss / size.clamp_min(1e-300))[wrong].max())
    warn_implausible(
        f"`totals` are not the integrals of `targets` by the rule {rule}: they differ in "
        f"{int(wrong.sum())} of {wrong.numel()} rows, by up to {most:.3g} % of the terms. {reason}"
        "A law with these totals moves right fields away from the truth. Correct them, or give "
        "the rule by which they add up as `rule`, by its name or as weights."
    )


GridSums: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


def _looks(targets: Tensor, totals: Tensor, axis: Tensor, weights: Tensor) -> Iterator[GridSums]:
    """What rows miss, their terms, their sums, and what the rule may miss; a part at a time."""
    x = axis.double()
    rough = weights_of("trapezoid", x) - weights_of("simpson", x)
    for u, b in _parts(targets, totals):
        sums, size = u @ weights, torch.maximum(u.abs() @ weights.abs(), b.abs())
        jump = (u.diff().abs() * x.diff()).amax(-1)  # half of it is what one front may miss
        allowed = LITTLE * size + jump + CURVES * (u @ rough).abs()
        yield (sums - b).abs(), size, sums, allowed


def _parts(targets: Tensor, totals: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Functions and their totals in float64, (n, M) and (n,)."""
    u, b = targets.detach().flatten(0, -2), totals.detach().flatten()
    each = max(1, AT_ONCE // u.shape[-1])
    for some, known in zip(u.split(each), b.split(each), strict=True):
        yield some.double(), known.double()


def _explained(
    targets: Tensor, totals: Tensor, axis: Tensor, sums: Tensor, size: Tensor, rule: str
) -> str:
    """The rule that totals agree with to rounding, or a factor, in words."""
    b = totals.detach().flatten().double()
    for other in get_args(RuleName):
        if other == rule or (other == "periodic" and not _is_even(axis.double())):
            continue
        weights = weights_of(other, axis)
        found = torch.cat([u @ weights for u, _ in _parts(targets, totals)])
        if _agree(found, b, size):
            return f"They agree with rule={other!r}. "
    factor = float((sums * b).sum() / (sums * sums).sum().clamp_min(1e-300))
    if factor and _agree(factor * sums, b, size):
        return f"They are {factor:.6g} times as large: is a unit another one? "
    return ""


def _agree(sums: Tensor, totals: Tensor, size: Tensor) -> bool:
    return bool(((sums - totals).abs() <= ROUNDING * size).all())


def name_of(rule: RuleName | ArrayLike) -> str:
    """In words and on cards."""
    return rule if isinstance(rule, str) else "of the weights given"
