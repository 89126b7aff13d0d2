"""Statements about a field, as constraints: integrals, cells, smoothness, ends, start, matrices."""

import math
from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np
import torch
from torch import Tensor

from . import _checks as check
from ._blocks import root_of
from ._checks import ArrayLike
from ._constraints import (
    Boundary,
    Constraint,
    Initial,
    Linear,
    Periodic,
    Smoothness,
    Times,
    Weighted,
)
from ._errors import InputError
from ._quadrature import RULES

NOISE_HINT = "It is a standard deviation; 0 asks for exact conservation."


def integral(
    coords: ArrayLike | tuple[ArrayLike, ...],
    value: ArrayLike,
    rule: str = "trapezoid",
    noise: ArrayLike = 0.0,
    mask: ArrayLike | None = None,
    times: Times | None = None,
) -> Constraint:
    """The integral of u over the last axes is `value`, one row per time: G u(t) = b(t).

    coords: the points x of the last axis, (M,), increasing; a tuple of two or three such arrays
    for the last two or three axes. value: b, a number or (..., T). rule: left, right, trapezoid
    (the paper's), simpson, or cell, for which coords are the M + 1 edges of cells and the field
    holds cell averages. noise: standard deviation sigma_G, a number or one per row; 0 is exact.
    mask: True where a point is left out, shaped as the last axes. times: indices, a slice or a
    boolean mask: the times at which the law holds; then value has one entry for each.

    >>> law = integral([0.0, 0.5, 1.0], 2.0)
    >>> law.apply([[1.0, 1.0, 1.0], [0.0, 4.0, 0.0]])
    tensor([1., 2.], dtype=torch.float64)
    """
    check.choice("rule", rule, RULES)
    axes = coords if isinstance(coords, tuple) else (coords,)
    if not 1 <= len(axes) <= 3:
        raise InputError(f"`coords` must name one to three axes, got {len(axes)}.")
    weights = torch.ones((), dtype=torch.float64)
    for number, axis in enumerate(axes):
        name = "coords" if len(axes) == 1 else f"coords[{number}]"
        x = check.tensor(name, axis)
        check.increasing(name, x)
        one = RULES[rule](x)
        weights = one if number == 0 else _outer(name, weights, one)
    law = _weighted("integral", weights, len(axes), value, noise, mask, times)
    if len(axes) == 1 and mask is None:
        law.quadrature = x, rule
    return law


def cells(
    volumes: ArrayLike,
    value: ArrayLike,
    noise: ArrayLike = 0.0,
    mask: ArrayLike | None = None,
    times: Times | None = None,
    space_dims: int | None = None,
) -> Constraint:
    """The sum of `volumes` times u over the last axes is `value`, one row per time.

    volumes: cell volumes or areas, shaped as the last axes of the field; with `space_dims` given
    they may have batch and time axes before those. The rest is as in `integral`.

    >>> cells([1.0, 3.0], value=4.0).residual([[1.0, 1.0]])
    tensor([0.], dtype=torch.float64)
    """
    weights = check.tensor("volumes", volumes)
    dims = weights.ndim if space_dims is None else space_dims
    if not isinstance(dims, Integral) or not 1 <= dims <= weights.ndim:
        raise InputError(
            f"`volumes` of shape {tuple(weights.shape)} cannot have {dims} space axes."
        )
    check.finite("volumes", weights, 0, "A cell cannot have a negative volume.")
    return _weighted("cells", weights, dims, value, noise, mask, times)


def smoothness(x: ArrayLike, variance: ArrayLike, rho: float) -> Constraint:
    """Second differences of u are 0 up to noise: the paper's artificial diffusion, (w/diff).

    With a = 1/dx_j and c = 1/dx_{j+1}, row j is a u_j - (a + c) u_{j+1} + c u_{j+2}; its noise is
    the standard deviation that it has when Step 1's points have a correlation of `rho` with their
    neighbours. Higher `rho` smooths more.

    x: (M,). variance: of Step 1, before any constraint, (..., T, M). rho: from 0 to 1.
    """
    x = check.tensor("x", x)
    check.increasing("x", x, least=3)
    variance = check.as_tensor("variance", variance, like=x, of="x")
    check.finite("variance", variance, 0, "It is Step 1's variance, not a standard deviation.")
    if not variance.ndim or variance.shape[-1] != len(x):
        raise InputError(
            f"`variance` of shape {tuple(variance.shape)} must have {len(x)} points on its last "
            "axis, as many as `x`."
        )
    if not isinstance(rho, Real) or not 0 <= rho <= 1:
        raise InputError(f"`rho` must lie between 0 and 1, got {rho!r}.")
    a, c = 1 / x.diff()[:-1], 1 / x.diff()[1:]
    std = root_of(variance)
    s0, s1, s2 = std[..., :-2], std[..., 1:-1], std[..., 2:]
    noise_variance = (
        (a * s0) ** 2
        + ((a + c) * s1) ** 2
        + (c * s2) ** 2
        - 2 * rho * (a + c) * s1 * (a * s0 + c * s2)
        + 2 * rho**2 * a * c * s0 * s2
    )
    return Smoothness(a, c, noise_variance.clamp_min(0))  # rounding, where it is 0


def boundary(
    left: ArrayLike | None = None, right: ArrayLike | None = None, noise: ArrayLike = 0.0
) -> Constraint:
    """u at the first and the last point of the last axis; each a number or (..., T).

    >>> boundary(left=1.0, right=0.0).apply([[0.9, 0.5, 0.1]])
    tensor([[0.9000, 0.1000]], dtype=torch.float64)
    """
    given = {"left": left, "right": right}
    values = {name: check.tensor(name, v) for name, v in given.items() if v is not None}
    if not values:
        raise InputError("`boundary` needs `left`, `right` or both.")
    tensors = _alike(values)
    try:
        value = torch.stack(torch.broadcast_tensors(*tensors), -1)
    except RuntimeError:
        shapes = " and ".join(str(tuple(t.shape)) for t in tensors)
        raise InputError(f"`left` and `right` of shapes {shapes} do not broadcast.") from None
    ends = [0 if name == "left" else -1 for name in values]
    sigma = _noise(noise, value)
    sigma = sigma[..., None] if sigma.ndim else sigma
    return Boundary(ends, value, sigma, _numbers(left, right, noise))


def periodic(noise: ArrayLike = 0.0) -> Constraint:
    """The first and the last point of the last axis are equal at each time."""
    sigma = _noise(noise, None)
    return Periodic(sigma.new_zeros(()), sigma, _numbers(noise))


def initial(values: ArrayLike, noise: ArrayLike = 0.0, space_dims: int = 1) -> Constraint:
    """u at the first time; values (..., *space) with `space_dims` space axes.

    On a field with a jump an exact `integral` at the first time contradicts this by the error of
    its quadrature rule: leave that time out with `times=slice(1, None)`, or give it noise.
    """
    value = check.tensor("values", values)
    if not isinstance(space_dims, Integral) or not 1 <= space_dims <= value.ndim:
        raise InputError(f"`values` of shape {tuple(value.shape)} needs {space_dims} space axes.")
    return Initial(value, _noise(noise, value), space_dims)


def linear(
    matrix: ArrayLike,
    value: ArrayLike,
    noise: ArrayLike = 0.0,
    times: Times | None = None,
    space: Sequence[int] | None = None,
) -> Constraint:
    """matrix u = value, at each time or over times and space together.

    matrix: (R, M) reads the last axis; (R, T, M) the last two jointly, and so on. A sparse matrix
    (torch or SciPy) has two axes; `space` names the axes it flattens, for example (T, M). value:
    (..., R).
    """
    m = _sparse(matrix)
    entries = m.values() if m is not None else check.as_tensor("matrix", matrix)
    check.tensor("matrix", entries)
    m = entries if m is None else m
    if m.ndim < 2 or not m.shape[0]:
        raise InputError(f"`matrix` must have rows first and space after, got {tuple(m.shape)}.")
    sizes = tuple(space) if isinstance(space, Sequence) else tuple(m.shape[1:])
    whole = all(isinstance(size, Integral) and size > 0 for size in sizes)
    if not whole or math.prod(sizes) != math.prod(m.shape[1:]):
        raise InputError(f"`space` {sizes} does not fit the columns of a {tuple(m.shape)} matrix.")
    flat = m if m.is_sparse else m.flatten(1)
    b = check.tensor("value", value, like=entries, of="matrix")
    return Linear(flat, sizes, b, _noise(noise, b), times)


def _sparse(matrix: ArrayLike) -> Tensor | None:
    """Any sparse matrix, of torch or SciPy, as a torch COO tensor; None for a dense one."""
    if hasattr(matrix, "tocoo"):
        coo = matrix.tocoo()
        index = torch.from_numpy(np.stack([coo.row, coo.col]).astype(np.int64))
        entries = torch.from_numpy(coo.data.copy())
        matrix = torch.sparse_coo_tensor(index, entries, coo.shape, check_invariants=True)
    if not isinstance(matrix, Tensor) or matrix.layout == torch.strided:
        return None
    if matrix.ndim != 2:
        raise InputError(f"a sparse `matrix` must have two axes, got {tuple(matrix.shape)}.")
    return (matrix if matrix.is_sparse else matrix.to_sparse_coo()).coalesce()


def balance(
    t: ArrayLike, initial: ArrayLike, inflow: ArrayLike = 0.0, outflow: ArrayLike = 0.0
) -> Tensor:
    """The total b(t) = initial + integral of (inflow - outflow) from t_1 to t, (..., T).

    t: (T,) increasing. initial: the total at t_1, a number or (...). inflow, outflow: boundary
    fluxes at the times, a number or (..., T), taken as linear in between.

    >>> balance([0.0, 1.0, 3.0], initial=2.0, inflow=1.0)
    tensor([2., 3., 5.], dtype=torch.float64)
    """
    t = check.tensor("t", t)
    check.increasing("t", t)
    start = check.tensor("initial", initial, like=t, of="t")
    fluxes = {"inflow": inflow, "outflow": outflow}
    gain, loss = (check.tensor(name, flux, like=t, of="t") for name, flux in fluxes.items())
    for name, flux in (("inflow", gain), ("outflow", loss)):
        if flux.ndim and flux.shape[-1] not in (1, len(t)):
            raise InputError(f"`{name}` has {flux.shape[-1]} times, but `t` has {len(t)}.")
    try:
        net = (gain - loss).expand(torch.broadcast_shapes(gain.shape, loss.shape, t.shape))
        grown = torch.cumulative_trapezoid(net, t, dim=-1)
        return start[..., None] + torch.nn.functional.pad(grown, (1, 0))
    except RuntimeError:
        shapes = ", ".join(str(tuple(x.shape)) for x in (start, gain, loss))
        raise InputError(
            f"`initial`, `inflow` and `outflow` of shapes {shapes} do not broadcast."
        ) from None


def _weighted(
    label: str,
    weights: Tensor,
    dims: int,
    value: ArrayLike,
    noise: ArrayLike,
    mask: ArrayLike | None,
    times: Times | None,
) -> Weighted:
    if mask is not None:
        out = mask if isinstance(mask, Tensor) else np.asarray(mask)
        if out.dtype not in (torch.bool, bool):
            raise InputError(f"`mask` must be boolean, True where left out; got {out.dtype}.")
        out = torch.as_tensor(out)
        if out.shape[-dims:] != weights.shape[-dims:]:
            raise InputError(
                f"`mask` of shape {tuple(out.shape)} does not fit the last axes of the field, "
                f"{tuple(weights.shape[-dims:])}."
            )
        weights = weights * ~out.to(weights.device)
    b = check.tensor(
        "value", value, like=weights, of="coords" if label == "integral" else "volumes"
    )
    return Weighted(label, weights, dims, b, _noise(noise, b), times)


def _noise(noise: ArrayLike, like: Tensor | None) -> Tensor:
    sigma = check.as_tensor("noise", noise, like, of="value")
    check.finite("noise", sigma, 0, NOISE_HINT)
    return sigma


def _numbers(*given: ArrayLike | None) -> bool:
    return all(isinstance(x, int | float | None) for x in given)


def _outer(name: str, weights: Tensor, one: Tensor) -> Tensor:
    check.same_kind(name, one, "`coords[0]`", weights)
    return weights[..., None] * one


def _alike(values: dict[str, Tensor]) -> list[Tensor]:
    (first_name, first), *rest = values.items()
    for name, t in rest:
        if t.ndim and first.ndim:
            check.same_kind(name, t, f"`{first_name}`", first)
    kind = max(values.values(), key=lambda t: t.ndim)
    return [t.to(kind) if not t.ndim else t for t in values.values()]
