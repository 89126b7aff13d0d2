"""Weights of a quadrature rule on a grid: the integral of u over x is `weights @ u`; `balance`.

A rule takes the steps h between the points, as a tensor or as an array of NumPy.
"""

from collections.abc import Callable
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..support import checks as check
from ..support.checks import ArrayLike, concrete
from ..support.errors import InputError
from ..support.tolerances import EVEN

Rule: TypeAlias = Literal["left", "right", "trapezoid", "simpson", "cell", "periodic"]


def _at_ends(h: Any, left: float, right: float) -> Any:  # (M - 1,) -> (M,)
    """Shares of each interval go to the values at its ends."""
    kind: Any = torch if isinstance(h, Tensor) else np
    none = 0 * h[:1]
    return kind.concatenate((left * h, none)) + kind.concatenate((none, right * h))


def simpson(h: Any) -> Any:  # (M - 1,) -> (M,)
    """Exact for parabolas through each pair of intervals.

    With an even number of points the last interval takes the parabola through the last three
    points, as `scipy.integrate.simpson` does; two points leave the trapezoid.
    """
    points = h.shape[0] + 1
    if points == 2:
        return _at_ends(h, 0.5, 0.5)
    pairs = (points - 1) // 2
    h0, h1 = h[0 : 2 * pairs : 2], h[1 : 2 * pairs : 2]
    both = h0 + h1
    weights = _at_ends(h, 0.0, 0.0)
    weights[0 : 2 * pairs : 2] += both / 6 * (2 - h1 / h0)
    weights[1 : 2 * pairs : 2] += both**3 / (6 * h0 * h1)
    weights[2 : 2 * pairs + 1 : 2] += both / 6 * (2 - h0 / h1)
    if points % 2 == 0:
        h0, h1 = h[-2], h[-1]
        weights[-1] += (2 * h1**2 + 3 * h0 * h1) / (6 * (h0 + h1))
        weights[-2] += (h1**2 + 3 * h0 * h1) / (6 * h0)
        weights[-3] -= h1**3 / (6 * h0 * (h0 + h1))
    return weights


def periodic_weights(x: Tensor, period: float | None) -> Tensor:  # (M,) -> (M,)
    """The trapezoid rule around a period, whose end is the first point again."""
    steps, reach = x.diff(), x[-1] - x[0]
    if period is None:
        gap = steps.mean()
        if concrete(x) and bool(((steps - gap).abs() > EVEN * gap).any()):
            raise InputError("`period` is needed where the points are not evenly spaced.")
    elif not isinstance(period, Real) or (concrete(x) and not period > float(reach.detach())):
        length = f", {float(reach.detach()):g}" if concrete(x) else ""
        raise InputError(f"`period` must be longer than the points reach{length}; got {period!r}.")
    else:
        gap = period - reach
    around = torch.cat([gap.reshape(1), steps, gap.reshape(1)])
    return (around[1:] + around[:-1]) / 2


RULES: dict[str, Callable[[Any], Any]] = {
    "left": lambda h: _at_ends(h, 1.0, 0.0),
    "right": lambda h: _at_ends(h, 0.0, 1.0),
    "trapezoid": lambda h: _at_ends(h, 0.5, 0.5),
    "simpson": simpson,
    "cell": lambda h: h,  # the field holds averages over the cells, of widths h
}


def balance(
    t: ArrayLike, initial: ArrayLike, inflow: ArrayLike = 0.0, outflow: ArrayLike = 0.0
) -> Tensor:
    """The total b(t) = initial + integral of (inflow - outflow) from t_1 to t.

    Parameters
    ----------
    t : array, shape (T,)
        The times, increasing.
    initial : float or array, shape (...)
        The total at t_1.
    inflow, outflow : float or array, shape (..., T)
        Boundary fluxes at the times, taken as linear in between.

    Returns
    -------
    Tensor, shape (..., T)
        For `value` of `integral`.

    Raises
    ------
    InputError
        If `t` does not increase, or the shapes do not broadcast.

    Examples
    --------
    >>> balance([0.0, 1.0, 3.0], initial=2.0, inflow=1.0)
    tensor([2., 3., 5.], dtype=torch.float64)
    """
    given = {"t": t, "initial": initial, "inflow": inflow, "outflow": outflow}
    t, start, gain, loss = check.alike(**given)
    for name, tensor in zip(given, (t, start, gain, loss), strict=True):
        check.finite(name, tensor)
    check.increasing("t", t)
    start, gain, loss, _ = check.broadcast(initial=start[..., None], inflow=gain, outflow=loss, t=t)
    return start + pad(torch.cumulative_trapezoid(gain - loss, t, dim=-1), (1, 0))
