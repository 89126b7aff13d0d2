"""Statements about fields, as laws: integrals, weighted sums, regions, ends, start, matrices."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..fields.blocks import root_of
from ..meshes import Mesh
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.slices import by_slices
from ..support.tolerances import ROUNDING, TINY
from .law import Law, Times
from .maps import Join, Map, Matrix, Regions, SecondDifferences, Select, Sum
from .quadrature import RULES, Rule, periodic_weights

Of: TypeAlias = str | Sequence[str] | Mapping[str, float]
NOISE_HINT = "It is a standard deviation; 0 asks for exact conservation."


def integral(
    coords: Mesh | ArrayLike | tuple[ArrayLike, ...],
    value: ArrayLike,
    rule: Rule = "trapezoid",
    noise: ArrayLike = 0.0,
    where: ArrayLike | None = None,
    times: Times | None = None,
    period: float | None = None,
    of: Of = "",
    label: str = "",
) -> Law:
    """A law: the integral of u over the last axes is `value`, one row for each time.

    As a formula G u(t) = b(t), where G holds the weights of the quadrature rule.

    Parameters
    ----------
    coords : array of shape (M,), a tuple of arrays, or Mesh
        The points x of the last axis, increasing; two or three such arrays for the last two or
        three axes; or a mesh, of whose cells the field holds the averages.
    value : float or array, shape (..., T)
        b, the integral.
    rule : {"left", "right", "trapezoid", "simpson", "cell", "periodic"}
        The paper uses trapezoid. For cell, `coords` are the M + 1 edges of cells and the field
        holds cell averages. For periodic, `coords` are points of one period without its end.
    noise : float or array
        The standard deviation sigma_G, one number or one for each row. 0 is exact.
    where : array of bool, shape of the last axes
        True where a point counts; with axes of batch and time before, where these differ.
    times : sequence of int or bool, or slice
        The times at which the law holds; `value` then has one entry for each of them.
    period : float
        For the rule periodic, if the points are not evenly spaced.
    of : str, list of str, or dict of floats
        The name of the field, in a state of several. Several names: one total over all of these
        fields; with numbers, each times its own: ``{"vapour": 1.0, "ice": 0.9}``.
    label : str
        What messages call the law, if not "integral".

    Returns
    -------
    Law
        For `condition`, `project` and the other functions that take laws.

    Raises
    ------
    InputError
        If `coords` do not increase, or `period` is given with another rule.

    Examples
    --------
    >>> law = integral([0.0, 0.5, 1.0], 2.0)
    >>> law.apply([[1.0, 1.0, 1.0], [0.0, 4.0, 0.0]])
    tensor([1., 2.], dtype=torch.float64)
    """
    if isinstance(coords, Mesh):
        weights, one_axis = coords.volumes, None
    else:
        weights, one_axis = _weights(coords, rule, period)
    total = Sum(_counting(weights, where, weights.ndim), weights.ndim)
    one_axis = one_axis if where is None and isinstance(of, str) else None
    return law_of("integral", of, total, value, noise, times, one_axis, label)


def _weights(coords: Any, rule: Rule, period: float | None) -> tuple[Tensor, Any]:
    """Of a rule on one to three axes; and the axis with the rule, if there is one alone."""
    check.choice("rule", rule, [*RULES, "periodic"])
    if period is not None and rule != "periodic":
        raise InputError(f"`period` goes with rule='periodic', not with {rule!r}.")
    axes = coords if isinstance(coords, tuple) else (coords,)
    if not 1 <= len(axes) <= 3:
        raise InputError(f"`coords` must name one to three axes, got {len(axes)}.")
    weights: Any = None
    for number, axis in enumerate(axes):
        name = "coords" if len(axes) == 1 else f"coords[{number}]"
        x, steps = check.axis(name, axis)
        one = periodic_weights(x, period) if rule == "periodic" else RULES[rule](steps)
        one = one if isinstance(one, Tensor) else torch.from_numpy(one)
        weights = one if weights is None else weights[..., None] * one.to(weights.device)
    return weights, (x, rule) if len(axes) == 1 and rule != "periodic" else None


def weighted_sum(
    weights: ArrayLike | Mapping[str, ArrayLike],
    value: ArrayLike,
    noise: ArrayLike = 0.0,
    where: ArrayLike | None = None,
    times: Times | None = None,
    space_dims: int | None = None,
    of: Of = "",
    label: str = "",
) -> Law:
    """A law: the sum of `weights` times u over the last axes is `value`, one row for each time.

    Parameters
    ----------
    weights : array, or a dict of arrays
        Such as the volumes or areas of cells, shaped as the last axes of the field. A dict is a sum
        over several fields of a state, by their names: ``{"rain": areas, "snow": 0.9 * areas}``.
    value, noise, where, times : as in `integral`
    space_dims : int
        How many last axes of `weights` are space, if it has batch and time axes before these.
    of : as in `integral`
    label : as in `integral`

    Returns
    -------
    Law
        As `integral` gives it.

    Raises
    ------
    InputError
        If `weights` have fewer axes than `space_dims`, or `of` is given beside a dict.

    Examples
    --------
    >>> weighted_sum([1.0, 3.0], value=4.0).residual([[1.0, 1.0]])
    tensor([0.], dtype=torch.float64)
    """

    def one(given: ArrayLike) -> Sum:
        own = check.wide("weights", given)
        if not (own.ndim or isinstance(weights, Mapping) or space_dims is not None):
            raise InputError(
                "`weights` is one number, so that each point is a sum by itself: give one for each "
                "point, first `weights` and then `value`; or say `space_dims=0`."
            )
        dims = own.ndim if space_dims is None else _dims(space_dims, "weights", own, 0)
        return Sum(_counting(own, where, dims), dims)

    return law_of("weighted_sum", of, _each(weights, of, one), value, noise, times, label=label)


def regions(
    labels: ArrayLike,
    value: ArrayLike,
    volumes: ArrayLike = 1.0,
    noise: ArrayLike = 0.0,
    where: ArrayLike | None = None,
    times: Times | None = None,
    of: Of = "",
    label: str = "",
) -> Law:
    """A law: the sum of `volumes` times u over each region is `value`.

    There is one row for each time and region, (..., T, R).

    Parameters
    ----------
    labels : array of int, shape of the last axes of the field
        The number of the region of each point, from 0; a point with a negative number is in none.
    value : float or array, shape (..., T, R)
        The sum over each of the R regions.
    volumes : float or array, shape of `labels`
        The volumes or areas of the cells.
    noise, where, times, of, label : as in `integral`

    Returns
    -------
    Law
        As `integral` gives it.

    Raises
    ------
    InputError
        If `labels` are not whole numbers, or exceed the regions that `value` has.

    Examples
    --------
    >>> regions([0, 0, 1], value=[3.0, 1.0]).residual([[1.0, 2.0, 5.0]])
    tensor([[0., 4.]], dtype=torch.float64)
    """
    numbers = check.integers("labels", labels, "that number the regions")
    if not numbers.ndim or not numbers.numel():
        raise InputError(f"`labels` must number the points of a grid, got {tuple(numbers.shape)}.")
    b, weights = check.wide("value", value), check.wide("volumes", volumes)
    check.broadcasts("volumes", weights, numbers.shape, "`labels`")
    if not b.ndim and not check.concrete(numbers):
        raise InputError("`value` must have one entry for each region where `labels` are traced.")
    count = b.shape[-1] if b.ndim else int(numbers.max()) + 1
    if count < 1:
        raise InputError("`labels` must put some point into a region, numbered from 0.")
    if check.concrete(numbers) and int(numbers.max()) >= count:
        raise InputError(
            f"`labels` go up to {int(numbers.max())}, but `value` has {count} regions on its last "
            "axis. Give a value for each region from 0 on, or number the regions anew: "
            "`torch.unique(labels, return_inverse=True)[1]`."
        )
    inside = (numbers >= 0).double()
    weights = weights.to(numbers.device) if not weights.ndim else weights
    weights = _counting(weights.expand(numbers.shape) * inside, where, numbers.ndim)
    maps = Regions(weights, numbers.clamp_min(0), count)
    return law_of("regions", of, maps, value, noise, times, label=label)


def smoothness(
    x: ArrayLike, variance: ArrayLike, rho: float, times: Times | None = None, of: str = ""
) -> Law:
    """A law: second differences of u are 0 up to noise, the paper's artificial diffusion (w/diff).

    With a = 1/dx_j and c = 1/dx_{j+1}, row j is::

        a u_j - (a + c) u_{j+1} + c u_{j+2}

    Its noise is the standard deviation that it has when neighbouring points of Step 1 have the
    correlation `rho`. A higher `rho` smooths more. Where three neighbours have no variance the row
    is exact: leave out, with `times`, an initial time that is known.

    Parameters
    ----------
    x : array, shape (M,)
        The points of the last axis, increasing, at least three.
    variance : array, shape (..., T, M)
        The variance of Step 1, before any law.
    rho : float
        The correlation of neighbours, from 0 to 1.
    times : sequence of int or bool, or slice
        The times at which the law holds, out of those of `variance`.
    of : str
        The name of the field, in a state of several.

    Returns
    -------
    Law
        As `integral` gives it.

    Raises
    ------
    InputError
        If `variance` is negative, or does not end in as many points as `x` has.

    Examples
    --------
    >>> smoothness([0.0, 1.0, 2.0], variance=[[1.0, 1.0, 1.0]], rho=0.5).noise
    tensor([[1.5811]], dtype=torch.float64)
    """
    x, steps = check.axis("x", x, least=3)
    variance = check.as_tensor("variance", variance).double()  # only read here
    check.finite("variance", variance, 0, "It is Step 1's variance, not a standard deviation.")
    if not variance.ndim or variance.shape[-1] != len(x):
        raise InputError(
            f"`variance` of shape {tuple(variance.shape)} must have {len(x)} points on its last "
            "axis, as many as `x`."
        )
    rho = check.between("rho", rho, 0, 1)
    each = 1 / torch.as_tensor(steps).to(variance.device)
    a, c = each[:-1], each[1:]

    def noise_of(variance: Tensor, out: Tensor | None) -> Tensor:
        std = root_of(variance)
        before, here, after = a * std[..., :-2], (a + c) * std[..., 1:-1], c * std[..., 2:]
        together = here.sub_(before, alpha=rho).sub_(after, alpha=rho)
        if rho == 1:  # then it is all there is, and no rounding of a 0
            together = torch.where(together.abs() <= ROUNDING * (before + after), 0.0, together)
        alone = torch.addcmul(before.square(), after, after).mul_(1 - rho**2)
        return torch.addcmul(alone, together, together, out=out)

    noise = by_slices(noise_of, variance, whole=1, last=a.shape)
    maps, zero = {check.name("of", of): SecondDifferences(a, -(a + c), c)}, noise.new_zeros(())
    law = Law("smoothness", maps, zero, noise, times)
    if noise.ndim > 1 and noise.shape[-2] > 1:  # not the same at all times
        law.noise_variance = law.at_times(noise, variance.shape)
    return law


def boundary(
    left: ArrayLike | None = None,
    right: ArrayLike | None = None,
    noise: ArrayLike = 0.0,
    of: str = "",
) -> Law:
    """A law: u at the first and the last point of the last axis is given.

    Parameters
    ----------
    left, right : float or array, shape (..., T)
        The values at the two ends. One of them or both.
    noise : as in `integral`
    of : str
        The name of the field, in a state of several.

    Returns
    -------
    Law
        As `integral` gives it.

    Raises
    ------
    InputError
        If neither end is given, or their shapes do not broadcast.

    Examples
    --------
    >>> boundary(left=1.0, right=0.0).apply([[0.9, 0.5, 0.1]])
    tensor([[0.9000, 0.1000]], dtype=torch.float64)
    """
    given = {"left": left, "right": right}
    values = {name: check.wide(name, v) for name, v in given.items() if v is not None}
    if not values:
        raise InputError("`left`, `right`: `boundary` needs one of them or both.")
    value = torch.stack(check.broadcast(**values), -1)
    entries = tuple(0 if name == "left" else -1 for name in values)
    sigma = check.wide("noise", noise, 0, NOISE_HINT)
    sigma = sigma[..., None] if sigma.ndim else sigma
    return law_of("boundary", of, Select(-1, entries), value, sigma)


def periodic(noise: ArrayLike = 0.0, of: str = "") -> Law:
    """A law: the first and the last point of the last axis are equal at each time.

    Parameters
    ----------
    noise : as in `integral`
    of : str
        The name of the field, in a state of several.

    Returns
    -------
    Law
        As `integral` gives it.

    Examples
    --------
    >>> periodic().residual([[1.0, 5.0, 0.5]])
    tensor([0.5000], dtype=torch.float64)
    """
    return law_of("periodic", of, Join(), 0.0, noise)


def initial(values: ArrayLike, noise: ArrayLike = 0.0, space_dims: int = 1, of: str = "") -> Law:
    """A law: u at the first time is given.

    Parameters
    ----------
    values : array, shape (..., space)
        u at the first time.
    noise : as in `integral`
    space_dims : int
        How many axes of space there are.
    of : str
        The name of the field, in a state of several.

    Returns
    -------
    Law
        As `integral` gives it.

    Raises
    ------
    InputError
        If `values` have fewer axes than `space_dims`.

    Notes
    -----
    On a field with a jump an exact `integral` at the first time contradicts this by the error of
    its quadrature rule: leave that time out with `times=slice(1, None)`, or give it noise.

    Examples
    --------
    >>> initial([1.0, 2.0]).residual([[1.0, 2.5], [0.0, 0.0]])
    tensor([0.0000, 0.5000], dtype=torch.float64)
    """
    value = check.wide("values", values)
    axis = -1 - _dims(space_dims, "values", value, 1)
    return law_of("initial", of, Select(axis, 0), value, noise)


def linear(
    matrix: Any,
    value: ArrayLike,
    noise: ArrayLike = 0.0,
    times: Times | None = None,
    space: Sequence[int] | None = None,
    batch_dims: int = 0,
    of: Of = "",
    label: str = "",
) -> Law:
    """A law: matrix u = value, at each time or over times and space together.

    Parameters
    ----------
    matrix : array, sparse matrix, or a dict of these
        (R, M) reads the last axis, (R, T, M) the last two jointly, and so on. A sparse matrix
        (torch or SciPy) has two axes. A dict is for rows that read several fields of a state, by
        name.
    value : float or array, shape (..., R)
        One for each row.
    noise, times : as in `integral`
    space : sequence of int
        The axes that a sparse matrix flattens, for example (T, M).
    batch_dims : int
        How many axes of `matrix` come before R: a matrix for each batch entry or time.
    of : as in `integral`
    label : as in `integral`

    Returns
    -------
    Law
        As `integral` gives it.

    Raises
    ------
    InputError
        If `matrix` has no rows, or `space` does not fit its columns.

    Examples
    --------
    >>> linear([[1.0, -1.0]], 0.5).residual([[2.0, 1.0]])
    tensor([[0.5000]], dtype=torch.float64)
    """
    maps = _each(matrix, of, lambda one: _matrix(one, space, batch_dims))
    return law_of("linear", of, maps, value, noise, times, label=label)


def _matrix(matrix: Any, space: Any, batch_dims: int) -> Matrix:
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
    listed = space.tolist() if isinstance(space, np.ndarray) else space
    sizes = tuple(columns) if listed is None else check.shape("space", listed)
    if not sizes or math.prod(sizes) != math.prod(columns):
        raise InputError(f"`space` {sizes} does not fit the columns of a {tuple(m.shape)} matrix.")
    flat = m if m.is_sparse else m.flatten(lead + 1)
    return Matrix(flat.to(torch.float64, copy=True), sizes)


def law_of(
    kind: str,
    of: Of,
    maps: Map | dict[str, Map],
    value: ArrayLike,
    noise: ArrayLike,
    times: Times | None = None,
    quadrature: tuple[Tensor, Rule] | None = None,
    label: str = "",
) -> Law:
    """The law with all its tensors on one device: a GPU, if one of them is there."""
    maps = maps if isinstance(maps, dict) else _read_by(of, maps)
    b, sigma = check.wide("value", value), check.wide("noise", noise, 0, NOISE_HINT)
    variance = sigma if isinstance(noise, float) and noise == 0 else _squared(sigma)
    law = Law(check.name("label", label) or kind, maps, b, variance, times, quadrature)
    law.rounding = check.rounding_of(value)
    devices = {t.device for t in (b, sigma, *(t for m in maps.values() for t in m.tensors))}
    return law if len(devices) == 1 else law._moved(next(d for d in devices if d.type != "cpu"))


def _dims(given: Any, name: str, array: Tensor, least: int) -> int:
    """How many last axes of an array are space."""
    if not check.is_whole(given) or not least <= int(given) <= array.ndim:
        raise InputError(
            f"`space_dims`: `{name}` of shape {tuple(array.shape)} cannot have {given!r} of them."
        )
    return int(given)


def _squared(noise: Tensor) -> Tensor:
    """The variance of a noise that is neither so small nor so large that float64 loses it."""
    variance = noise.square()
    lost = (noise > 0) & ((variance < TINY) | (variance == torch.inf))
    if check.concrete(lost) and bool(lost.any()):
        raise InputError(
            f"`noise` of {float(noise[lost][0]):.3g} has a square that float64 does not hold. Use "
            "0 for an exact law; leave out a law that says nothing."
        )
    return variance


def _read_by(of: Of, one: Map) -> dict[str, Map]:
    """A map for each field that is named, times its number."""
    if isinstance(of, str):
        return {of: one}
    if not isinstance(of, Mapping | list | tuple) or not of:
        raise InputError(
            f"`of` must be a name, such as 'u', a list of names, or numbers by names; got {of!r}."
        )
    if not isinstance(one, Sum | Regions | Matrix):
        raise InputError(f"`of`: this law reads one field by its name, not {of!r}.")
    for name in of:
        check.name("of", name)
    if len(set(of)) < len(of):
        raise InputError(f"`of` must name each field once; got {of!r}.")
    if not isinstance(of, Mapping):
        return dict.fromkeys(of, one)
    return {name: _times(one, f"of[{name!r}]", x) for name, x in of.items()}


def _times(one: Map, name: str, given: ArrayLike) -> Map:
    number = check.wide(name, given)
    if number.ndim:
        raise InputError(f"`{name}` must be a number, got an array of shape {tuple(number.shape)}.")
    first = one.made_of[0]  # what the map is proportional to
    return one._with(**{first: getattr(one, first) * number})


def _each(given: Any, of: Of, build: Callable[[Any], Map]) -> Map | dict[str, Map]:
    """One map, or a map for each field that is named."""
    if not isinstance(given, Mapping):
        return build(given)
    if of or not given:
        raise InputError("`of`: the fields are named already." if of else "no field is named.")
    return {check.name("of", name): build(one) for name, one in given.items()}


def _counting(weights: Tensor, where: ArrayLike | None, dims: int) -> Tensor:
    """Weights with 0 for points that do not count."""
    if where is None:
        return weights
    counts = check.mask(where)
    if counts.shape[counts.ndim - dims :] != weights.shape[weights.ndim - dims :]:
        raise InputError(
            f"`where` of shape {tuple(counts.shape)} does not fit the last axes of the field, "
            f"{tuple(weights.shape[weights.ndim - dims :])}."
        )
    return weights * counts.to(weights.device)
