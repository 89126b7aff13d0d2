"""Where the front of a field is: the posterior of x*(t).

A front is where u, high behind it, has come down to a level. Two rules say where that is on a grid:

    point      the first grid point with u <= level; at level 0 the paper's definition
    crossing   the first place where u comes down from above the level to it or below, on the
               straight line between two grid points

On a profile that jumps the first is up to a cell too far, half a cell on average; the second, at
half of the jump, is off by about half a cell at most, either way. Noise that is independent from
point to point brings both nearer to the start, the more so the finer the grid. A field that is at
or below the level from its start has its first point there and has crossed nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch.special import log_ndtr

from ..fields.gaussian import Diagonal, Field, check_level, check_measured
from ..fields.mixture import Mixture
from ..fields.state import Prediction, as_field
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.tolerances import CERTAIN

DRAWS = 1000
CHUNK = 1 << 22  # numbers that are drawn at a time: 32 MB

View: TypeAlias = Callable[[Tensor], Tensor]  # a last axis, as seen from where one starts


@dataclass(frozen=True, eq=False)
class FrontPosition:
    """The positions that a front may have and how probable they are, in float64.

    Mean, standard deviation and quantiles are over the outcomes that have a front, and NaN where
    none has one; read them together with `none`. The standard deviation divides by the number of
    draws.

    Attributes
    ----------
    positions : Tensor, shape (K, ..., T)
        In units of x; NaN stands for no front.
    probabilities : Tensor, shape (K, ..., T)
        Their probabilities, adding up to 1 over axis 0.
    """

    positions: Tensor
    probabilities: Tensor

    @property
    def none(self) -> Tensor:  # (*batch, T)
        """The probability that there is no front, (..., T)."""
        missed = torch.where(self.positions.isnan(), self.probabilities, 0.0).sum(0)
        return missed / self.probabilities.sum(0)  # which is 1 but for rounding

    @property
    def mean(self) -> Tensor:  # (*batch, T)
        """The mean position, (..., T)."""
        return (self._shares * self._places).sum(0)

    @property
    def std(self) -> Tensor:  # (*batch, T)
        """The standard deviation of the position, (..., T)."""
        return (self._shares * (self._places - self.mean).square()).sum(0).sqrt()

    def quantile(self, q: float) -> Tensor:  # (*batch, T)
        """The least position that a share `q` of the outcomes does not exceed.

        Parameters
        ----------
        q : float
            Between 0 and 1; 0.5 is the median.

        Returns
        -------
        Tensor, shape (..., T)
            In units of x.
        """
        wanted = check_level(q, "q") - CERTAIN
        positions, order = self.positions.sort(0)  # NaN comes last
        found, index = _first(self._shares.gather(0, order).cumsum(0) >= wanted, 0)
        return torch.where(found, positions.gather(0, index), torch.nan)[0]

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """The two ends of the central interval that holds the front with probability `level`.

        Parameters
        ----------
        level : float
            Between 0 and 1.

        Returns
        -------
        tuple of two Tensor, shape (..., T)
            The lower and the upper end.
        """
        tail = (1 - check_level(level)) / 2
        return self.quantile(tail), self.quantile(1 - tail)

    @property
    def _shares(self) -> Tensor:
        """Probabilities given that there is a front."""
        found = torch.where(self.positions.isnan(), 0.0, self.probabilities)
        return found / found.sum(0)

    @property
    def _places(self) -> Tensor:
        return self.positions.nan_to_num(nan=0.0)  # their share is 0


@torch.no_grad()
def front_position(
    field: Prediction,
    x: ArrayLike,  # (M,)
    level: ArrayLike = 0.0,
    rule: Literal["point", "crossing"] = "point",
    start: Literal["left", "right"] = "left",
    samples: int | None = None,
    generator: torch.Generator | None = None,
) -> FrontPosition:
    """The posterior of the front x*(t) of a field, at every time and batch entry; no gradients.

    A front is where u, high behind it, has come down to a level. For independent points and the
    rule point the distribution is exact: with p_i the probability that u_i <= level, point i is the
    first with probability p_i prod_{j<i} (1 - p_j). A mixture of such fields mixes these. Otherwise
    each draw of the field gives a position, and where times are joint a draw is a path x*(t).

    Parameters
    ----------
    field : Field, shape (..., T, M), or what `as_field` takes
        Any field with one axis of space.
    x : array, shape (M,)
        Its points, increasing, on any domain.
    level : float or array, shape (..., T)
        What u has come down to.
    rule : {"point", "crossing"}
        point: the first grid point with u <= level, which at level 0 is the paper's definition.
        crossing: the first place where u comes down from above the level to it or below, on the
        straight line between two grid points.
    start : {"left", "right"}
        The end, where u is high, from which to look.
    samples : int
        How many draws. If it is not given, the exact distribution where there is one, else 1000.
    generator : torch.Generator
        The source of the random numbers.

    Returns
    -------
    FrontPosition
        Positions and their probabilities.

    Raises
    ------
    InputError
        If the field has more than one axis of space, or `x` does not fit it.

    Examples
    --------
    >>> front = front_position(Diagonal([0.3, 0.0, -0.3], 0.04), x=[2.0, 3.0, 4.0])
    >>> front.probabilities  # at 2, 3, 4, and none
    tensor([0.0668, 0.4666, 0.4354, 0.0312], dtype=torch.float64)
    >>> front.mean, front.quantile(0.5)
    (tensor(3.3805, dtype=torch.float64), tensor(3., dtype=torch.float64))
    """
    field = as_field(field)
    check_measured((field,), "field", "may be anything, so a front may be anywhere")
    check.choice("rule", rule, RULES)
    check.choice("start", start, LOOKS)
    x, level = _checked(field, x, level)
    look = LOOKS[start]
    if samples is None and needs_no_draws(field, rule):
        return _outcomes(look(x), _chances(field, level, look))
    count = check.samples(DRAWS if samples is None else samples, "samples")
    each = max(CHUNK // max(field.shape.numel(), 1), 1)
    parts = []
    for drawn in range(0, count, each):
        u = field.sample(min(each, count - drawn), generator)
        check.finite("field", u)
        parts.append(RULES[rule](look(u), look(x), level))
    positions = torch.cat(parts)
    return FrontPosition(positions, positions.new_tensor(1 / count).expand(positions.shape))


def _checked(field: Field, x: ArrayLike, level: ArrayLike) -> tuple[Tensor, Tensor]:
    """x (M,) in float64, and the level (..., 1) in the dtype of the field."""
    if field.event_dims > 2:
        raise InputError(
            f"`field` is joint over {field.event_dims} axes, so it has more than one axis of "
            "space, and a front is a position on one. Give it one line of the field at a time."
        )
    x = check.as_tensor("x", x)
    check.same_device("x", x.device, "the field", field.device)
    x, _ = check.axis("x", x)
    if not field.shape or field.shape[-1] != len(x):
        raise InputError(
            f"`x` has {len(x)} points, but the last axis of the field, of shape "
            f"{tuple(field.shape)}, must have as many."
        )
    like = torch.empty(0, dtype=field.dtype, device=field.device)
    level = check.tensor("level", level, like, "field")
    check.broadcasts("level", level, field.shape[:-1], "the times of the field")
    return x, level[..., None]


def needs_no_draws(field: Field, rule: str) -> bool:
    """Whether `front_position` is exact for this field and rule.

    Parameters
    ----------
    field : Field
        As in `front_position`.
    rule : str
        As in `front_position`.

    Returns
    -------
    bool
        True for the rule point and independent points, or a mixture of such fields.

    Examples
    --------
    >>> needs_no_draws(Diagonal([0.3, -0.3], 0.04), "point")
    True
    """
    points = field.components if isinstance(field, Mixture) else field
    return rule == "point" and isinstance(points, Diagonal)


def _chances(field: Field, level: Tensor, look: View) -> Tensor:  # (*batch, T, M + 1)
    """The probability of each point to be the first at or below the level; of no point, last."""
    if isinstance(field, Mixture):
        weights = field.log_weights.exp()[(..., *[None] * field.event_dims)]
        return (weights * _chances(field.components, level, look)).sum(0)
    check.finite("mean", field.mean)
    above, std = look(field.mean).double() - level.double(), look(field.variance).double().sqrt()
    certain = torch.where(above > 0, torch.inf, -torch.inf).to(above)
    z = torch.where(std > 0, above / std, certain)
    zero = torch.zeros_like(z[..., :1])
    passed = torch.cat([zero, log_ndtr(z).cumsum(-1)], -1)  # log prod (1 - p_j)
    return (passed + torch.cat([log_ndtr(-z), zero], -1)).exp()


def _outcomes(x: Tensor, chances: Tensor) -> FrontPosition:
    probabilities = chances.movedim(-1, 0)
    positions = torch.cat([x, x.new_tensor([torch.nan])])
    positions = positions.reshape(-1, *[1] * (chances.ndim - 1)).expand(probabilities.shape)
    return FrontPosition(positions, probabilities)


def _first_point(u: Tensor, x: Tensor, level: Tensor) -> Tensor:  # (..., M) -> (...)
    found, index = _first(u <= level)
    return torch.where(found, x[index], torch.nan)[..., 0]


def _crossing(u: Tensor, x: Tensor, level: Tensor) -> Tensor:  # (..., M) -> (...)
    found, index = _first((u[..., :-1] > level) & (u[..., 1:] <= level))
    above, below = u.gather(-1, index).double(), u.gather(-1, index + 1).double()
    share = (above - level.double()) / (above - below)  # of the cell that lies behind the front
    return torch.where(found, torch.lerp(x[index], x[index + 1], share), torch.nan)[..., 0]


def _first(mask: Tensor, dim: int = -1) -> tuple[Tensor, Tensor]:
    """Whether there is a True along an axis, and where the first one is; the axis has length 1."""
    return mask.any(dim, keepdim=True), mask.byte().argmax(dim, keepdim=True)


RULES = {"point": _first_point, "crossing": _crossing}
LOOKS: dict[str, View] = {"left": lambda values: values, "right": lambda values: values.flip(-1)}
