r"""How far the true solution is from G u = b: the noise of a law whose G is a quadrature rule.

On a step from 1 to 0, at a place uniform in cell i, a rule with weights w is off by

    mean m_i = w_1 + ... + w_i - (middle of cell i - x_1),   variance dx_i^2 / 12

and on a profile by the sum of these over the cells, times u_i - u_{i+1} each. The mean is 0 for
the trapezoid rule, half a cell for left and right, and alternates for Simpson's.
"""

import math

import torch
from torch import Tensor

from ..fields.blocks import root_of
from ..fields.state import Prediction, as_field
from ..laws.law import Law, check_law
from ..laws.nonlinear import NonlinearLaw
from ..laws.quadrature import RULES, Rule
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError

FEW = 10  # one of so many points shows the spread beside a jump
WHOLE = 8 / math.pi  # the spread of one jump of unknown place then adds up to it, see `_jumps`


def quadrature_noise(
    prior: Prediction, x: ArrayLike, rule: Rule = "trapezoid"
) -> Tensor:  # (*batch, T)
    """The standard deviation of the rule's error on the true solution: `noise` of `integral`.

    The truth obeys G u = b up to that error only. Jumps make it large, up to half of the jump times
    dx; they are read off the prior, where its mean leaps or its spread stands out. Slopes count for
    nothing, except with left and right.

    Parameters
    ----------
    prior : Field, shape (..., T, M), or what `as_field` takes
        What is known of the solution before any law.
    x, rule : as in `integral`
        With the rule cell the integral is exact and the noise 0.

    Returns
    -------
    Tensor, shape (..., T)
        One for each time.

    Raises
    ------
    InputError
        If `x` does not increase, or does not fit the last axis of the prior.

    Examples
    --------
    >>> import probconserv as pc
    >>> x = torch.linspace(0, 1, 11, dtype=torch.float64)
    >>> mean = torch.stack([(x < 0.42).double(), 1 - x])  # a step, a slope
    >>> quadrature_noise(pc.Diagonal(mean, 0.0), x).round(decimals=4)  # 0.1 / sqrt(12), none
    tensor([0.0289, 0.0000], dtype=torch.float64)
    """
    check.choice("rule", rule, RULES)
    field, given = as_field(prior), check.as_tensor("x", x)
    check.same_device("x", given.device, "the prior", field.device)
    x, _ = check.axis("x", given)
    weights, dx = RULES[rule](x.diff()), x.diff()
    if field.shape[-1:] != (len(weights),):
        raise InputError(
            f"`x` is a grid of {len(weights)} points, but the prior has shape "
            f"{tuple(field.shape)}: its last axis must be that of x. With rule='cell' x are edges, "
            "one more than the cells."
        )
    if rule == "cell":
        return given.new_zeros(field.shape[:-1])
    mean, std = field.mean.double(), root_of(field.variance.double())
    miss = weights.cumsum(0)[:-1] - (x[1:] + x[:-1]) / 2 + x[0]  # m_i
    steady = _without_alternation(miss)
    bias = (steady * mean.diff()).sum(-1)
    scatter = (dx**2 / 12 + (miss - steady) ** 2) * _jumps(mean, std, dx)
    return root_of(bias**2 + scatter.sum(-1)).to(given.dtype)


def learned_noise(solutions: ArrayLike, law: Law | NonlinearLaw) -> Tensor:
    """The root mean square of G u - b over solutions, one for each row: the paper's sigma_G.

    Parameters
    ----------
    solutions : array, shape (n, ..., T, M)
        True fields, at least two on axis 0, such as those that a model was trained on.
    law : Law or NonlinearLaw
        Its `value` is theirs, (n, ..., T) or the same for all; its noise is not used. One that is
        not linear counts solutions among its `batch_dims`.

    Returns
    -------
    Tensor, shape of the rows of one solution
        For `noise` of the law.

    Raises
    ------
    InputError
        If there are fewer than two solutions.

    Examples
    --------
    >>> import probconserv as pc
    >>> law = pc.integral([0.0, 1.0], [[1.0], [1.0]])
    >>> learned_noise([[[1.0, 1.2]], [[1.0, 0.8]]], law)
    tensor([0.1000], dtype=torch.float64)
    """
    if isinstance(law, NonlinearLaw):
        if law.batch_dims < 1:
            raise InputError("`batch_dims` of `law` must count the axis of `solutions`; it is 0.")
    else:
        check_law(law)
    u = check.tensor("solutions", solutions)
    least = 0 if isinstance(law, NonlinearLaw) else law.space_dims
    if u.ndim <= least or u.shape[0] < 2:
        raise InputError(
            "`solutions` must have at least two solutions on axis 0 and the field on the axes "
            f"after it, got shape {tuple(u.shape)}."
        )
    return root_of(law.residual(u).square().mean(0)).to(law.value.dtype)


def _jumps(mean: Tensor, std: Tensor, dx: Tensor) -> Tensor:  # (..., M) -> (..., M - 1)
    """The expected square of the jump in each cell.

    Where the mean leaps: by how much more than its neighbours lead to expect, by the median of the
    three slopes. Where a jump J may be in one of many cells, the mean falls by J p_i in cell i, the
    spread is J sqrt(P (1 - P)) with P the sum of the p before it, and the square is J^2 p_i. |fall|
    times spread adds up to J^2 pi / 8. A spread is that of a jump as far as it stands above
    `_aside`.
    """
    fall = mean.diff()
    leap = fall - _median_of_three(fall / dx) * dx
    out = (std - _aside(mean, std)).clamp_min(0)
    return leap**2 + WHOLE * fall.abs() * (out[..., 1:] + out[..., :-1]) / 2


def _aside(mean: Tensor, std: Tensor) -> Tensor:  # (..., M) -> (..., 1)
    """The spread beside any jump: the median over the points where a jump leaves the least.

    A jump between the highest and the lowest mean has the variance (highest - mean) (mean - lowest)
    wherever it may be. The median of all points will not do: a front whose place is uncertain by
    more than half of the domain would count as no jump.
    """
    low, high = mean.aminmax(dim=-1, keepdim=True)
    of_jump = (high - mean) * (mean - low)
    few = 1 + mean.shape[-1] // FEW
    least = of_jump.topk(few, largest=False).values.amax(-1, keepdim=True)
    beside = of_jump <= least  # more than few where many are equal, as on both sides of a step
    middle = (beside.long().sum(-1, keepdim=True) - 1) // 2
    return torch.where(beside, std, torch.inf).sort(-1).values.gather(-1, middle)


def _median_of_three(v: Tensor) -> Tensor:  # (..., K) -> (..., K)
    """Of each entry and its neighbours; of the first three and the last three at the ends."""
    if v.shape[-1] < 3:
        return v
    inner = torch.stack([v[..., :-2], v[..., 1:-1], v[..., 2:]]).median(0).values
    return torch.cat([inner[..., :1], inner, inner[..., -1:]], -1)


def _without_alternation(v: Tensor) -> Tensor:  # (K,) -> (K,)
    """Averages with the neighbours, 1 : 2 : 1; at an end the one inside counts as both."""
    before, after = torch.cat([v[:2][-1:], v[:-1]]), torch.cat([v[1:], v[-2:][:1]])
    return (before + 2 * v + after) / 4
