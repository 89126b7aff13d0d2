"""Independent points within bounds, given one sum of each row.

    u_i ~ N(mean_i, variance_i),   low_i <= u_i <= high_i,   sum_i g_i u_i = b + noise

The tilted product. With every point multiplied by exp(lambda g_i u_i), which changes nothing once
the sum is given, the points are still independent and still normal within their bounds, with means
mean_i + lambda variance_i g_i. lambda is where the expected sum is b. Given the sum, the density of
a point is its tilted one times that of the sum of the others at b - g_i u_i. The logarithm of the
latter is expanded at its mean, with the cumulants V, K3, K4 of the sum of the others (Edgeworth):

    g K3 / (2 V^2) (u - m) - g^2 / (2 V) (1 + K4 / (2 V^2) - K3^2 / V^3) (u - m)^2

That is a normal density again: each marginal is a normal distribution within the bounds, of which
`mean` and `variance` are the moments and `quantile` the quantiles. Without bounds this is exact.
Within bounds, and with M points that share the sum, the mean is off by 1e-4 standard deviations for
M = 200, by 1e-2 for M = 10 and by up to 1e-1 for M = 5; see benchmarks/truncated.py. Widths are
worse: for M = 10 the standard deviation is off by 4 to 7 % and the ends of intervals of 90 % by 0.1
to 0.2 standard deviations, for M = 5 by far more. Short rows should take them from draws.

Each row is worked on in units of its own, powers of two, so that no square of a number under- or
overflows.

Draws are exact but for the finite length of their chains, see `Tilted.draw`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...solvers.entries import power_of_2
from ...support import checks as check
from ...support.errors import InfeasibleError, InputError
from ...support.tree import Node
from .interval import Cumulants, cumulants, quantile

STEPS = 100  # of Newton's method at most; 4 to 10 are usual
CLOSE = 1e-6  # standard deviations of the sum: one step more squares what is missed
ROUNDING = 1e-14  # of a row's terms: a sum that is missed by less holds
EDGE = 1e-13  # of a row's terms: totals stay so far inside their reach, until the end
MET = 1e-12  # of a row's terms: a sum that is missed by more at the end is an error
SHARE = 1e-20  # of a point's variance: less in all others is nothing
SWEEPS = 32  # of pairs at least: benchmarks/truncated.py prints what is left of the start
MOVES = 500  # of pairs and points: few points start further off, and cost little


@dataclass(eq=False)
class Inside(Node):
    """Normal points within bounds, and what they weigh in the sum of their row; each (..., M)."""

    mean: Tensor
    variance: Tensor
    low: Tensor
    high: Tensor
    weights: Tensor

    def tilted(self, tilt: Tensor) -> Tensor:
        """The means after a tilt of the row, (..., 1)."""
        return self.mean + tilt * self.variance * self.weights

    def at(self, tilt: Tensor) -> Cumulants:
        return cumulants(self.tilted(tilt), self.variance, self.low, self.high)

    def reach(self) -> tuple[Tensor, Tensor]:  # (..., 1) each
        """The least and the most that the sum can be."""
        g = self.weights
        down, up = torch.where(g > 0, self.low, self.high), torch.where(g > 0, self.high, self.low)
        down, up = (torch.where(g == 0, 0.0, g * end) for end in (down, up))
        return down.sum(-1, keepdim=True), up.sum(-1, keepdim=True)


@dataclass(eq=False)
class Tilted(Node):
    """Points within bounds, given the sum of each row.

    Attributes
    ----------
    mean, variance
        Of each point given the sum, (..., M). The means have the sum, to 1e-12 of its terms.
    tilt
        lambda, (..., 1), in the units of its row.
    """

    mean: Tensor
    variance: Tensor
    tilt: Tensor
    _points: Inside  # with a term for the noise of the sum after the last, where there is noise
    _centre: Tensor  # of the normal distributions that, cut to the bounds, are the marginals
    _spread: Tensor  # their variances
    _value: Tensor  # b, (..., 1)
    _unit: Tensor  # that points, and what is said of them above, are measured in, (..., 1)

    def quantile(self, p: Tensor | float) -> Tensor:  # (..., M)
        """What each point stays below with probability p, a number or of the points' shape."""
        shares = check.wide("p", p).to(self._centre.device)
        if check.concrete(shares) and not bool(((shares > 0) & (shares < 1)).all()):
            raise InputError(f"`p` must lie between 0 and 1, got {float(shares.min()):g}.")
        size, points = self.mean.shape[-1], self._points
        sides = (self._centre, self._spread, points.low, points.high)
        return quantile(shares, *(x[..., :size] for x in sides)) * self._unit

    def draw(self, n: int, generator: torch.Generator | None = None) -> Tensor:  # (n, ..., M)
        """n fields within the bounds, each with the sum; with noise, a sum of its own.

        Each draw starts as one of the tilted product, moved to the sum. Then all points are paired
        at random, again and again, and each pair is drawn anew given all other points: along the
        line on which its share of the sum stays the same it is normal, within bounds.
        """
        check.samples(n)
        check.generator(generator)
        points = self._points
        _, variance, *_ = points.at(self.tilt)
        sides = points.tilted(self.tilt), points.variance, points.low, points.high
        u = quantile(_uniform((n, *sides[0].shape), sides[0], generator), *sides)
        u = settled(u, variance, points, self._value)
        size = u.shape[-1]
        for _ in range(max(SWEEPS, MOVES // size)):
            order, half = torch.randperm(size, generator=generator, device=u.device), size // 2
            _move_pairs(u, points, order[:half], order[half : 2 * half], generator)
        u = _met(settled(u, variance, points, self._value), points, self._value)
        return u[..., : self.mean.shape[-1]] * self._unit


def tilted(
    mean: Tensor,
    variance: Tensor,
    low: Tensor,
    high: Tensor,
    weights: Tensor,
    value: Tensor,
    noise_variance: Tensor | float = 0.0,
) -> Tilted:
    """Independent normal points within bounds, given the sum of each row.

    Parameters
    ----------
    mean, variance, low, high, weights
        Of each point, (..., M), float64, to be broadcast. Bounds may be infinite. A point of
        variance 0, or with low = high, stays where it is.
    value
        The sum of weights times field of each row, (...).
    noise_variance
        Of the value, (...). 0: the sum is exact.

    Raises
    ------
    InfeasibleError
        A total that no field within the bounds has.
    """
    points = Inside(*torch.broadcast_tensors(mean, variance, low, high, weights))
    value = value.expand(points.mean.shape[:-1])[..., None]
    noise = torch.as_tensor(noise_variance).to(value).expand(value.shape[:-1])[..., None]
    size, points = points.mean.shape[-1], _prepared(points, noise)
    _check_reach(points, value)
    points, value, unit = _in_own_units(points, value)
    tilt, at = _tilt(points, value)
    centre, spread = _marginals(points, tilt, at)
    mean, variance, *_ = cumulants(centre, spread, points.low, points.high)
    mean = _met(settled(mean, _doubt(points, at), points, value), points, value)
    moments = mean[..., :size] * unit, variance[..., :size] * unit * unit
    return Tilted(*moments, tilt, points, centre, spread, value, unit)


def _in_own_units(points: Inside, value: Tensor) -> tuple[Inside, Tensor, Tensor]:
    """Points over the unit of their row, its largest standard deviation; weights over the largest.

    The units are powers of two: nothing is rounded.
    """
    moves = (points.high > points.low) & (points.weights != 0)
    unit, heavy = (
        power_of_2(torch.where(moves, x, 0.0).amax(-1, keepdim=True).detach())
        for x in (points.variance.sqrt(), points.weights.abs())
    )
    mean, low, high = (x / unit for x in (points.mean, points.low, points.high))
    variance = torch.where(points.high > points.low, points.variance / unit / unit, 1.0)
    return Inside(mean, variance, low, high, points.weights / heavy), value / unit / heavy, unit


def _met(u: Tensor, points: Inside, value: Tensor) -> Tensor:
    """`u`, which has the sum of its row."""
    if check.concrete(u):
        missed = (value - (points.weights * u).sum(-1, keepdim=True)).abs()
        if not bool((missed <= MET * _terms(points, u, value)).all()):
            raise InfeasibleError(
                "the totals are so far from what the points say, or their variances so unlike, "
                "that float64 cannot weigh `truncated` bounds. Give the law `noise` or the points "
                "more variance, or leave `truncated` out."
            )
    return u


def _prepared(points: Inside, noise: Tensor) -> Inside:
    """Fixed points as those with low = high; noise as one more point, without bounds."""
    low, high = points.low, points.high
    if check.concrete(low, high) and bool((low > high).any()):
        raise InputError("`low` must not be above `high`; it is, at some points.")
    fixed, held = points.variance == 0, points.mean.clamp(low, high)
    low, high = torch.where(fixed, held, low), torch.where(fixed, held, high)
    found = Inside(points.mean, torch.where(fixed, 1.0, points.variance), low, high, points.weights)
    if not check.any_of(noise > 0):
        return found
    inf = torch.full_like(noise, torch.inf)
    extra = Inside(torch.zeros_like(noise), torch.ones_like(noise), -inf, inf, noise.sqrt())
    pairs = zip(found._tensors(), extra._tensors(), strict=True)
    return Inside(*(torch.cat(pair, -1) for pair in pairs))


def _terms(points: Inside, u: Tensor, value: Tensor) -> Tensor:
    return (points.weights * u).abs().sum(-1, keepdim=True) + value.abs()


def _check_reach(points: Inside, value: Tensor) -> None:
    least, most = points.reach()
    if not check.concrete(value):
        return
    slack = 1e-12 * _terms(points, points.mean.clamp(points.low, points.high), value)
    wrong = ~((value >= least - slack) & (value <= most + slack))
    if bool(wrong.any()):
        first = tuple(wrong.nonzero()[0].tolist())
        raise InfeasibleError(
            f"{int(wrong.sum())} of {wrong.numel()} totals cannot be met within the bounds. The "
            f"first is {float(value[first]):.6g}, and totals of fields within the bounds are "
            f"{check.span(float(least[first]), float(most[first]))}. Ways out: wider bounds, "
            "another total, or noise for the law."
        )


def _tilt(points: Inside, value: Tensor) -> tuple[Tensor, Cumulants]:
    """lambda, (..., 1), and the cumulants of the points there."""
    with torch.no_grad():
        tilt, at = _newton(points, value.detach())
    if torch.is_grad_enabled() and any(x.requires_grad for x in (value, *points._tensors())):
        at = points.at(tilt)  # gradients flow through the last step
    total, spread = _sum(points, at)
    tilt = tilt + torch.where(spread > 0, (value - total) / spread.detach(), 0.0)
    return tilt, points.at(tilt)


def _sum(points: Inside, at: Cumulants) -> tuple[Tensor, Tensor]:
    g = points.weights
    return (g * at.mean).sum(-1, keepdim=True), (g.square() * at.variance).sum(-1, keepdim=True)


def _newton(points: Inside, value: Tensor) -> tuple[Tensor, Cumulants]:
    """lambda to 1e-6 standard deviations of the sum, within a bracket that shrinks.

    Against a bound the sum is like 1 / lambda from there: Newton's method is for 1 / (sum - least),
    or 1 / (most - sum), the nearer one, which then is a straight line.
    """
    least, most = points.reach()
    size = _terms(points, points.mean.clamp(points.low, points.high), value)
    tilt, left, right = (torch.full_like(value, x) for x in (0.0, -torch.inf, torch.inf))
    at = points.at(tilt)
    total, spread = _sum(points, at)
    edge = (EDGE * (size + spread.sqrt())).minimum((most - least) / 4)
    value = value.maximum(least + edge).minimum(most - edge)
    end = torch.where(value - least < most - value, least, most)
    for _ in range(STEPS):
        missed = value - total
        near = missed.abs() <= (CLOSE * spread.sqrt()).maximum(ROUNDING * size)
        near = near | (spread == 0)
        if bool(near.all()):
            break
        left, right = torch.where(missed > 0, tilt, left), torch.where(missed < 0, tilt, right)
        bend = torch.where(end.isfinite(), (total - end) / (value - end), 1.0)
        step = tilt + bend * missed / spread
        inside = (step > left) & (step < right)
        tilt = torch.where(near, tilt, torch.where(inside, step, _middle(left, right)))
        at = points.at(tilt)
        total, spread = _sum(points, at)
    return tilt, at


def _middle(left: Tensor, right: Tensor) -> Tensor:
    """Between two ends: in orders of magnitude where they have the same sign."""
    same = left * right > 0
    along = (left.abs() * right.abs()).sqrt() * left.sign()
    return torch.where(same, along, (left + right) / 2)


def _marginals(points: Inside, tilt: Tensor, at: Cumulants) -> tuple[Tensor, Tensor]:
    """Centre and variance of the normal distributions that the marginals are, but for bounds."""
    g = points.weights
    own = g.square() * at.variance
    largest = own.argmax(-1, keepdim=True)
    rest = _of_the_others(own, largest).maximum(SHARE * own)  # V
    third = _of_the_others(g**3 * at.third, largest)
    fourth = _of_the_others(g**4 * at.fourth, largest)
    seen = rest > 0  # not so where nothing in the row moves
    rest = torch.where(seen, rest, 1.0)
    skew = third / rest**1.5
    curve = (1 + fourth / rest.square() / 2 - skew.square()).clamp(0.25, 4.0)
    curve = torch.where(seen, g.square() / rest * curve, 0.0)
    slope = g * skew / rest.sqrt() / 2
    spread = points.variance / (1 + points.variance * curve)
    mean = points.tilted(tilt)
    return mean + spread * (curve * (at.mean - mean) + slope), spread


def _doubt(points: Inside, at: Cumulants) -> Tensor:
    """How the sum that the expansion misses is shared out: its error in g u goes with the square
    of the point's share of the variance of the sum."""
    own = points.weights.square() * at.variance
    total = own.sum(-1, keepdim=True)
    return at.variance * torch.where(total > 0, own / total, 1.0)


def _of_the_others(x: Tensor, largest: Tensor) -> Tensor:
    """Of each point, the sum of all others; of the largest one, without a difference."""
    others = x.scatter(-1, largest, 0.0).sum(-1, keepdim=True)
    return (others + x.gather(-1, largest) - x).scatter(-1, largest, others)


def settled(u: Tensor, scale: Tensor, points: Inside, value: Tensor) -> Tensor:
    """`u` with the sum, moved in proportion to scale and weights, and held at the bounds."""
    g = points.weights
    for _ in range(STEPS):
        missed = value - (g * u).sum(-1, keepdim=True)
        if check.concrete(u) and bool((missed.abs() <= ROUNDING * _terms(points, u, value)).all()):
            break
        free = torch.where(g * missed > 0, u < points.high, u > points.low)
        room = (g.square() * scale * free).sum(-1, keepdim=True)
        step = torch.where(room > 0, missed / room, 0.0)
        u = (u + step * scale * g).clamp(points.low, points.high)
    return u


def _uniform(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.rand(shape, generator=generator, dtype=like.dtype, device=like.device)


def _move_pairs(
    u: Tensor, points: Inside, i: Tensor, j: Tensor, generator: torch.Generator | None
) -> None:
    """Draws the points i and j anew, in place: u_i + g_j tau, u_j - g_i tau."""
    mean, variance, low, high, g = (
        (x[..., i], x[..., j])
        for x in (points.mean, points.variance, points.low, points.high, points.weights)
    )
    x, y = u[..., i], u[..., j]
    slopes = g[1] / variance[0], g[0] / variance[1]
    precision = g[1] * slopes[0] + g[0] * slopes[1]
    moves = precision > 0
    spread = torch.where(moves, 1 / precision, 1.0)
    centre = spread * (slopes[1] * (y - mean[1]) - slopes[0] * (x - mean[0]))
    first = _within(g[1], low[0] - x, high[0] - x)
    second = _within(-g[0], low[1] - y, high[1] - y)
    start, end = first[0].maximum(second[0]).clamp(max=0), first[1].minimum(second[1]).clamp(min=0)
    tau = quantile(_uniform(tuple(x.shape), x, generator), centre, spread, start, end)
    tau = torch.where(moves, tau, 0.0)
    u[..., i] = (x + g[1] * tau).clamp(low[0], high[0])
    u[..., j] = (y - g[0] * tau).clamp(low[1], high[1])


def _within(slope: Tensor, below: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
    """The tau for which slope tau lies between below and above."""
    a, b = below / slope, above / slope
    flat = slope == 0
    start, end = torch.where(slope > 0, a, b), torch.where(slope > 0, b, a)
    return torch.where(flat, -torch.inf, start), torch.where(flat, torch.inf, end)
