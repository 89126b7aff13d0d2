"""Statements about fields, as laws: integrals, cells, regions, ends, start, matrices."""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import _checks as check
from ._blocks import root_of
from ._checks import ArrayLike
from ._errors import InputError
from ._laws import Law, Times
from ._maps import Join, Map, Matrix, Regions, SecondDifferences, Select, Sum
from ._quadrature import RULES, Rule, periodic_weights
from .meshes import Mesh

NOISE_HINT = "It is a standard deviation; 0 asks for exact conservation."


def integral(
    coords: Mesh | ArrayLike | tuple[ArrayLike, ...],
    value: ArrayLike,
    rule: Rule = "trapezoid",
    noise: ArrayLike = 0.0,
    where: ArrayLike | None = None,
    times: Times | None = None,
    period: float | None = None,
    of: str = "",
) -> Law:
    """The integral of u over the last axes is `value`, one row per time: G u(t) = b(t).

    Parameters
    ----------
    coords
        The points x of the last axis, (M,), increasing; a tuple of two or three such arrays for the
        last two or three axes; or a `Mesh`, of whose cells the field holds the averages.
    value
        b, a number or (..., T).
    rule
        left, right, trapezoid (the paper's), simpson; cell, for which coords are the M + 1 edges of
        cells and the field holds cell averages; or periodic, for points of one period without its
        end.
    noise
        Standard deviation sigma_G, a number or one per row; 0 is exact.
    where
        True where a point counts, shaped as the last axes.
    times
        Indices, a slice or booleans: the times at which the law holds; then value has one entry for
        each.
    period
        Of the rule periodic, if the points are not evenly spaced.
    of
        The name of the field, in a state of several.

    Examples
    --------
    >>> law = integral([0.0, 0.5, 1.0], 2.0)
    >>> law.apply([[1.0, 1.0, 1.0], [0.0, 4.0, 0.0]])
    tensor([1., 2.], dtype=torch.float64)
    """
    if isinstance(coords, Mesh):
        total = Sum(_counting(coords.volumes, where, coords.volumes.ndim), coords.volumes.ndim)
        return law_of("integral", of, total, check.wide("value", value), noise, times)
    check.choice("rule", rule, [*RULES, "periodic"])
    if period is not None and rule != "periodic":
        raise InputError(f"`period` goes with rule='periodic', not with {rule!r}.")
    axes = coords if isinstance(coords, tuple) else (coords,)
    if not 1 <= len(axes) <= 3:
        raise InputError(f"`coords` must name one to three axes, got {len(axes)}.")
    weights = None
    for number, axis in enumerate(axes):
        name = "coords" if len(axes) == 1 else f"coords[{number}]"
        x = check.wide(name, axis)
        check.increasing(name, x)
        one = periodic_weights(x, period) if rule == "periodic" else RULES[rule](x)
        weights = one if weights is None else weights[..., None] * one.to(weights.device)
    assert weights is not None
    one_axis = (x, rule) if len(axes) == 1 and where is None and rule != "periodic" else None
    total = Sum(_counting(weights, where, len(axes)), len(axes))
    return law_of("integral", of, total, check.wide("value", value), noise, times, one_axis)


def cells(
    volumes: ArrayLike | Mapping[str, ArrayLike],
    value: ArrayLike,
    noise: ArrayLike = 0.0,
    where: ArrayLike | None = None,
    times: Times | None = None,
    space_dims: int | None = None,
    of: str = "",
) -> Law:
    """The sum of `volumes` times u over the last axes is `value`, one row per time.

    Parameters
    ----------
    volumes
        Cell volumes or areas, shaped as the last axes of the field; with `space_dims` given they
        may have batch and time axes before those, and signs. By name for a sum over several fields
        of a state: {"rain": areas, "snow": 0.9 * areas}.
    value, noise, where, times, of
        As in `integral`.

    Examples
    --------
    >>> cells([1.0, 3.0], value=4.0).residual([[1.0, 1.0]])
    tensor([0.], dtype=torch.float64)
    """

    def one(given: ArrayLike) -> Sum:
        weights = check.wide("volumes", given)
        dims = weights.ndim if space_dims is None else space_dims
        if not isinstance(dims, Integral) or not 0 <= dims <= weights.ndim:
            raise InputError(
                f"`space_dims`: `volumes` of shape {tuple(weights.shape)} cannot have {dims!r} "
                "axes of space."
            )
        return Sum(_counting(weights, where, int(dims)), int(dims))

    maps = _each(volumes, of, one)
    return law_of("cells", of, maps, check.wide("value", value), noise, times)


def regions(
    labels: ArrayLike,
    value: ArrayLike,
    volumes: ArrayLike = 1.0,
    noise: ArrayLike = 0.0,
    where: ArrayLike | None = None,
    times: Times | None = None,
    of: str = "",
) -> Law:
    """The sum of `volumes` times u over the points of each region is `value`, (..., T, regions).

    Parameters
    ----------
    labels
        The number of the region of each point, from 0, shaped as the last axes of the field; a
        point with a negative number is in none.
    value
        (..., T, R), one for each region.
    volumes
        Of the cells, shaped as `labels`, or a number.
    noise, where, times, of
        As in `integral`.

    Examples
    --------
    >>> regions([0, 0, 1], value=[3.0, 1.0]).residual([[1.0, 2.0, 5.0]])
    tensor([[0., 4.]], dtype=torch.float64)
    """
    numbers = (
        labels if isinstance(labels, Tensor) else torch.as_tensor(check.plain("labels", labels))
    )
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise InputError(f"`labels` must be whole numbers, got {numbers.dtype}.")
    if not numbers.ndim or not numbers.numel():
        raise InputError(f"`labels` must number the points of a grid, got {tuple(numbers.shape)}.")
    b, weights = check.wide("value", value), check.wide("volumes", volumes)
    check.broadcasts("volumes", weights, numbers.shape, "`labels`")
    numbers = numbers.long()
    if not b.ndim and not check.concrete(numbers):
        raise InputError("`value` must have one entry for each region where `labels` are traced.")
    count = b.shape[-1] if b.ndim else int(numbers.max()) + 1
    if count < 1:
        raise InputError("`labels` must put some point into a region, numbered from 0.")
    if check.concrete(numbers) and int(numbers.max()) >= count:
        raise InputError(
            f"`labels` go up to {int(numbers.max())}, but `value` has {count} regions on its last "
            "axis."
        )
    inside = (numbers >= 0).double()
    weights = _counting(weights.expand(numbers.shape) * inside, where, numbers.ndim)
    return law_of("regions", of, Regions(weights, numbers.clamp_min(0), count), b, noise, times)


def smoothness(x: ArrayLike, variance: ArrayLike, rho: float, of: str = "") -> Law:
    """Second differences of u are 0 up to noise: the paper's artificial diffusion, (w/diff).

    With a = 1/dx_j and c = 1/dx_{j+1}, row j is a u_j - (a + c) u_{j+1} + c u_{j+2}; its noise is
    the standard deviation that it has when Step 1's points have a correlation of `rho` with their
    neighbours. Higher `rho` smooths more. Where three neighbours have no variance it is exact.

    Parameters
    ----------
    x
        (M,), increasing.
    variance
        Of Step 1, before any law, (..., T, M).
    rho
        From 0 to 1.
    of
        As in `integral`.
    """
    x = check.wide("x", x)
    check.increasing("x", x, least=3)
    variance = check.as_tensor("variance", variance).double()  # only read here
    check.finite("variance", variance, 0, "It is Step 1's variance, not a standard deviation.")
    if not variance.ndim or variance.shape[-1] != len(x):
        raise InputError(
            f"`variance` of shape {tuple(variance.shape)} must have {len(x)} points on its last "
            "axis, as many as `x`."
        )
    rho = check.between("rho", rho, 0, 1)
    x = x.to(variance.device)
    a, c = 1 / x.diff()[:-1], 1 / x.diff()[1:]
    std = root_of(variance)
    before, here, after = a * std[..., :-2], (a + c) * std[..., 1:-1], c * std[..., 2:]
    together, alone = here - rho * (before + after), before.square() + after.square()
    noise = root_of(torch.addcmul((1 - rho**2) * alone, together, together))
    return law_of("smoothness", of, SecondDifferences(a, -(a + c), c), noise.new_zeros(()), noise)


def boundary(
    left: ArrayLike | None = None,
    right: ArrayLike | None = None,
    noise: ArrayLike = 0.0,
    of: str = "",
) -> Law:
    """u at the first and the last point of the last axis is given.

    Parameters
    ----------
    left, right
        One of them or both, each a number or (..., T).
    noise, of
        As in `integral`.

    Examples
    --------
    >>> boundary(left=1.0, right=0.0).apply([[0.9, 0.5, 0.1]])
    tensor([[0.9000, 0.1000]], dtype=torch.float64)
    """
    given = {"left": left, "right": right}
    values = {name: check.wide(name, v) for name, v in given.items() if v is not None}
    if not values:
        raise InputError("`left`, `right`: `boundary` needs one of them or both.")
    try:
        value = torch.stack(torch.broadcast_tensors(*values.values()), -1)
    except RuntimeError:
        shapes = " and ".join(str(tuple(t.shape)) for t in values.values())
        raise InputError(f"`left` and `right` of shapes {shapes} do not broadcast.") from None
    entries = tuple(0 if name == "left" else -1 for name in values)
    sigma = check.wide("noise", noise, 0, NOISE_HINT)
    sigma = sigma[..., None] if sigma.ndim else sigma
    return law_of("boundary", of, Select(-1, entries), value, sigma)


def periodic(noise: ArrayLike = 0.0, of: str = "") -> Law:
    """The first and the last point of the last axis are equal at each time.

    Parameters
    ----------
    noise, of
        As in `integral`.
    """
    return law_of("periodic", of, Join(), torch.zeros((), dtype=torch.float64), noise)


def initial(values: ArrayLike, noise: ArrayLike = 0.0, space_dims: int = 1, of: str = "") -> Law:
    """u at the first time is given.

    Parameters
    ----------
    values
        (..., *space).
    space_dims
        How many axes of space there are.
    noise, of
        As in `integral`.

    Notes
    -----
    On a field with a jump an exact `integral` at the first time contradicts this by the error of
    its quadrature rule: leave that time out with `times=slice(1, None)`, or give it noise.
    """
    value = check.wide("values", values)
    if not isinstance(space_dims, Integral) or not 1 <= space_dims <= value.ndim:
        raise InputError(
            f"`space_dims`: `values` of shape {tuple(value.shape)} needs {space_dims!r} space axes."
        )
    return law_of("initial", of, Select(-1 - int(space_dims), 0), value, noise)


def linear(
    matrix: Any,
    value: ArrayLike,
    noise: ArrayLike = 0.0,
    times: Times | None = None,
    space: Sequence[int] | None = None,
    batch_dims: int = 0,
    of: str = "",
) -> Law:
    """matrix u = value, at each time or over times and space together.

    Parameters
    ----------
    matrix
        (R, M) reads the last axis; (R, T, M) the last two jointly, and so on. A sparse matrix
        (torch or SciPy) has two axes. By name for rows that read several fields of a state.
    value
        (..., R).
    space
        The axes that a sparse matrix flattens, for example (T, M).
    batch_dims
        How many axes of `matrix` come before R: a matrix for each batch entry or time.
    noise, times, of
        As in `integral`.
    """
    maps = _each(matrix, of, lambda one: _matrix(one, space, batch_dims))
    return law_of("linear", of, maps, check.wide("value", value), noise, times)


def _matrix(matrix: Any, space: Sequence[int] | None, batch_dims: int) -> Matrix:
    m = check.sparse("matrix", matrix)
    entries = m.values() if m is not None else check.as_tensor("matrix", matrix)
    check.finite("matrix", entries)
    m = entries if m is None else m
    lead = check.whole("batch_dims", batch_dims)
    if lead < 0 or m.ndim < 2 + lead or not m.shape[lead] or (lead and m.is_sparse):
        raise InputError(
            f"`matrix` must have rows first and space after (and {lead} axes before), got "
            f"{tuple(m.shape)}."
        )
    columns = m.shape[lead + 1 :]
    given = (
        check.plain("space", space).reshape(-1).tolist() if isinstance(space, np.ndarray) else space
    )
    sizes = tuple(columns) if given is None else check.shape("space", given)
    if not sizes or math.prod(sizes) != math.prod(columns):
        raise InputError(f"`space` {sizes} does not fit the columns of a {tuple(m.shape)} matrix.")
    flat = m if m.is_sparse else m.flatten(lead + 1)
    return Matrix(flat.to(torch.float64, copy=True), sizes)


def law_of(
    label: str,
    of: str,
    maps: Map | dict[str, Map],
    value: Tensor,
    noise: ArrayLike,
    times: Times | None = None,
    quadrature: tuple[Tensor, Rule] | None = None,
) -> Law:
    """The law with all its tensors on one device: a GPU, if one of them is there."""
    for name in maps if isinstance(maps, dict) else [of]:
        check.name("of", name)
    maps = maps if isinstance(maps, dict) else {of: maps}
    sigma = check.wide("noise", noise, 0, NOISE_HINT)
    law = Law(label, maps, value, sigma, times, quadrature)
    tensors = [getattr(m, name) for m in law.maps.values() for name in m.tensors]
    devices = {t.device for t in (value, sigma, *tensors)}
    return law if len(devices) == 1 else law._moved(next(d for d in devices if d.type != "cpu"))


def _each(given: Any, of: str, build: Callable[[Any], Map]) -> Map | dict[str, Map]:
    """One map, or a map for each field that is named."""
    if not isinstance(given, Mapping):
        return build(given)
    if of or not given:
        raise InputError("`of`: the fields are named already." if of else "no field is named.")
    return {name: build(one) for name, one in given.items()}


def _counting(weights: Tensor, where: ArrayLike | None, dims: int) -> Tensor:
    """Weights with 0 for points that do not count."""
    if where is None:
        return weights
    counts = where if isinstance(where, Tensor) else check.plain("where", where)
    counts = torch.as_tensor(counts)
    if counts.dtype != torch.bool:
        raise InputError(f"`where` must be boolean, True where a point counts; got {counts.dtype}.")
    if counts.shape[-dims:] != weights.shape[weights.ndim - dims :]:
        raise InputError(
            f"`where` of shape {tuple(counts.shape)} does not fit the last axes of the field, "
            f"{tuple(weights.shape[weights.ndim - dims :])}."
        )
    return weights * counts.to(weights.device)
