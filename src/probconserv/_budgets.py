"""Budgets as laws: of every cell of a mesh, and of the whole.

    V (u_next - u) + dt div F = dt V q      for every cell and every interval of time

A flux or a source is known (a number or an array), a field of the state (its name), or a linear
function of u (`velocity`, `diffusivity`). It is given for each interval, as an average, or at the
times, and then counts as linear in between.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from . import _checks as check
from ._builders import NOISE_HINT
from ._checks import ArrayLike
from ._errors import InputError
from ._laws import Law
from ._maps import Map
from ._quadrature import RULES, Rule
from ._stencils import Grid, Offset, Stencil
from .meshes import Mesh
from .meshes._faces import AxisFaces

Scheme: TypeAlias = Literal["upwind", "centred"]
Known: TypeAlias = str | ArrayLike  # the name of a field, or numbers
Terms: TypeAlias = dict[Offset, Tensor]  # coefficients by offset


class InTime(Map):
    """What a field adds in each interval: given for intervals, or at times and then averaged."""

    loose = ("coefficients", "dt")
    is_local = True

    def __init__(
        self, grid: Grid, terms: Mapping[Offset, Tensor], dt: Tensor, row_names: tuple[str, ...]
    ) -> None:
        """grid, terms: of space. dt: the lengths of the intervals."""
        self.rows, self.points, self.wraps = grid
        self.offsets, self.coefficients = tuple(terms), tuple(terms.values())
        self.dt, self.dims, self.row_names = dt, 1 + len(grid.rows), row_names

    def on(self, shape: Sequence[int]) -> Stencil:
        count, d = len(self.dt), len(self.rows)
        given = shape[-1 - d] if len(shape) > d else 0
        if given not in (count, count + 1) or tuple(shape[len(shape) - d :]) != tuple(self.points):
            raise InputError(
                f"it reads a field that ends in {(count, *self.points)}, an average for each "
                f"interval, or in {(count + 1, *self.points)}, at the times; the shape is "
                f"{tuple(shape)}."
            )
        dt = self.dt.reshape(-1, *[1] * d)
        weights = {0: dt} if given == count else {0: dt / 2, 1: dt / 2}
        terms = {
            (o, *offset): w * c
            for offset, c in zip(self.offsets, self.coefficients, strict=True)
            for o, w in weights.items()
        }
        grid = Grid((count, *self.rows), (given, *self.points), (False, *self.wraps))
        return Stencil(grid, terms, self.row_names)

    def apply(self, u: Tensor) -> Tensor:
        return self.on(u.shape).apply(u)

    def adjoint(self, v: Tensor) -> Tensor:
        raise NotImplementedError("`on` says what is given")

    def entrywise(self, power: int) -> "InTime":
        raise NotImplementedError("`on` says what is given")


def cell_budgets(
    mesh: Mesh,
    t: ArrayLike,
    fluxes: Known | Sequence[Known] | None = None,
    source: Known = 0.0,
    velocity: ArrayLike | Sequence[ArrayLike] | None = None,
    diffusivity: ArrayLike | Sequence[ArrayLike] | None = None,
    scheme: Scheme = "upwind",
    noise: ArrayLike = 0.0,
    where: ArrayLike | None = None,
    of: str = "u",
) -> Law:
    """What each cell gains in each interval is what flows in, and what its source makes.

    V (u_next - u) + dt div F = dt V q, a row for every interval and cell, (..., T - 1, *cells).

    Parameters
    ----------
    mesh
        The cells. The field holds their averages, (..., T, *mesh.shape).
    t
        The times, (T,), increasing.
    fluxes
        One for each axis of the mesh: the name of a field, or numbers, (..., T - 1, *faces) as
        averages over the intervals or (..., T, *faces) at the times. Positive towards the growing
        coordinate.
    source
        q, a number, an array of T - 1 or T times, or the name of a field.
    velocity
        One for each axis, numbers that broadcast to (T, *faces): the flux velocity times u.
    diffusivity
        k, a number or one for each axis: the flux -k grad u.
    scheme
        How u is read at faces: of the cell that the velocity comes from (upwind), or in between
        (centred).
    noise
        The standard deviation of a row, (..., T - 1, *cells) or a number, for the error of the
        discretisation. 0 is exact.
    where
        (*cells), True where a cell counts. Faces beside a missing cell are closed.
    of
        The name of the field u.

    Returns
    -------
    Law
        Where `fluxes` stand beside `velocity` or `diffusivity` both are added, and at the
        boundary `fluxes` count alone.

    Examples
    --------
    >>> import probconserv as pc
    >>> mesh = pc.Mesh(x=[0.0, 1.0, 2.0])
    >>> law = cell_budgets(mesh, t=[0.0, 1.0], fluxes="F")
    >>> state = pc.State(u=([[2.0, 2.0], [2.5, 2.0]], 1.0), F=([[1.0, 0.0, 0.0]], 1.0))
    >>> post = pc.condition(state, law)
    >>> law.residual(post).abs().max() < 1e-12
    tensor(True)
    """
    if not isinstance(mesh, Mesh):
        raise InputError(f"`mesh` must be a `Mesh`, got {type(mesh).__name__}.")
    check.choice("scheme", scheme, ("upwind", "centred"))
    faces = _axis_faces(mesh)
    t = _times(t).to(mesh.volumes.device)
    space = Space(mesh, faces, where)
    names = ("interval", *mesh.axes)
    given = _each("fluxes", fluxes, mesh)
    speeds = _each("velocity", velocity, mesh)
    diffusive = _each("diffusivity", diffusivity, mesh, same=True)
    if not any((given, speeds, diffusive)):
        raise InputError("`fluxes`, `velocity`, `diffusivity`: a budget needs one of them.")
    maps: dict[str, Map] = {of: _own(space, t, speeds, diffusive, scheme, bool(given), names)}
    dt = t.diff()
    value = space.volumes.new_zeros(())
    parts = [(f"fluxes[{i}]", one, *space.divergence(i)) for i, one in enumerate(given)]
    parts.append(("source", source, space.grid, {space.nowhere: -space.volumes}))
    for label, one, grid, terms in parts:
        term = InTime(grid, terms, dt, names)
        if isinstance(one, str):
            _add(maps, one, term, label)
        else:
            value = value - _known(label, one, term)
    return _law("cell budgets", maps, value, noise, space.volumes.device)


def budget(
    cells: Mesh | ArrayLike,
    t: ArrayLike,
    inflow: Known = 0.0,
    outflow: Known = 0.0,
    rule: Rule = "trapezoid",
    noise: ArrayLike = 0.0,
    of: str = "u",
) -> Law:
    """What the whole gains in each interval is what flows in less what flows out.

    total(t_next) - total(t) = dt (inflow - outflow), a row for every interval, (..., T - 1).

    Parameters
    ----------
    cells
        A mesh, or the points x of the last axis, (M,).
    t
        The times, (T,), increasing.
    inflow, outflow
        The whole flux through the boundary: a number, an array of T - 1 averages over the
        intervals or T values at the times, or the name of a field of the state with as many.
    rule
        Of the integral over points x, as in `integral`.
    noise
        The standard deviation of a row. 0 is exact.
    of
        The name of the field u.

    Examples
    --------
    >>> import probconserv as pc
    >>> law = budget([0.0, 1.0, 2.0], t=[0.0, 1.0], inflow="inflow")
    >>> state = pc.State(u=([[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]], 0.01), inflow=([1.0], 1.0))
    >>> pc.condition(state, law)["inflow"].mean
    tensor([1.4855], dtype=torch.float64)
    """
    if isinstance(cells, Mesh):
        weights, closed = cells.volumes, cells.closed
    else:
        check.choice("rule", rule, RULES)
        x = check.wide("cells", cells)
        check.increasing("cells", x)
        weights, closed = RULES[rule](x), False
    t = _times(t).to(weights.device)
    one = weights.new_ones(())
    maps: dict[str, Map] = {of: Gain(weights, len(t))}
    value = weights.new_zeros(())
    for label, given, sign in (("inflow", inflow, -1.0), ("outflow", outflow, 1.0)):
        term = InTime(Grid((), (), ()), {(): sign * one}, t.diff(), ("interval",))
        if isinstance(given, str):
            if closed:
                raise InputError(f"`{label}`: the mesh is closed, so nothing can flow in or out.")
            _add(maps, given, term, label)
            continue
        added = _known(label, given, term)
        if closed and bool(added.any()):
            raise InputError(f"`{label}` must be 0: the mesh is closed, so nothing can pass.")
        value = value - added
    return _law("budget", maps, value, noise, weights.device)


class Gain(Map):
    """A row for each interval: the sum of weights times u after it less that before it."""

    row_names = ("interval",)
    loose = ("weights",)

    def __init__(self, weights: Tensor, times: int, after: float = 1.0, before: float = -1.0):
        self.weights, self.times, self.dims = weights, times, 1 + weights.ndim
        self.after, self.before = after, before

    def apply(self, u: Tensor) -> Tensor:
        totals = (u * self.weights).flatten(1 - self.dims).sum(-1)
        return self.after * totals[..., 1:] + self.before * totals[..., :-1]

    def adjoint(self, v: Tensor) -> Tensor:
        end = torch.zeros_like(v[..., :1])
        each = self.after * torch.cat([end, v], -1) + self.before * torch.cat([v, end], -1)
        return each[(..., *[None] * self.weights.ndim)] * self.weights

    def entrywise(self, power: int) -> "Gain":
        return Gain(self.weights.abs() ** power, self.times, 1.0, 1.0)

    def on(self, shape: Sequence[int]) -> "Gain":
        self._check(shape, (self.times, *self.weights.shape))
        return self

    def row_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return (*super().row_shape(shape), self.times - 1)


class Space:
    """The cells that count and the faces that are open, as coefficients of stencils."""

    def __init__(self, mesh: Mesh, faces: tuple[AxisFaces, ...], where: ArrayLike | None) -> None:
        self.mesh, self.faces = mesh, faces
        self.volumes = mesh.volumes
        self.sizes = [f.sizes.expand(f.shape) for f in faces]
        if where is not None:
            open_faces = mesh.open_faces(where)
            pairs = zip(self.sizes, open_faces, strict=True)
            self.sizes = [size * is_open for size, is_open in pairs]
            self.volumes = mesh.volumes * torch.as_tensor(where).to(mesh.volumes.device)
        wraps = tuple(f.periodic for f in faces)
        self.grid = Grid(mesh.shape, mesh.shape, wraps)
        self.nowhere: Offset = (0,) * len(faces)

    def step(self, axis: int, by: int) -> Offset:
        return tuple(by if i == axis else 0 for i in range(len(self.faces)))

    def ends(self, axis: int, values: Tensor) -> tuple[Tensor, Tensor]:
        """Numbers at faces, as those at the first and at the second face of each cell."""
        faces = self.faces[axis]
        values = values.expand(*values.shape[: values.ndim - faces.ndim], *faces.shape)
        if faces.periodic:
            return values, values.roll(-1, faces.dim)
        count = values.shape[faces.dim] - 1
        return values.narrow(faces.dim, 0, count), values.narrow(faces.dim, 1, count)

    def divergence(self, axis: int) -> tuple[Grid, Terms]:
        """Of fluxes across one axis."""
        faces = self.faces[axis]
        low, high = self.ends(axis, self.sizes[axis] if faces.forward else -self.sizes[axis])
        grid = Grid(self.grid.rows, faces.shape, self.grid.wraps)
        return grid, {self.nowhere: -low, self.step(axis, 1): high}

    def transport(self, axis: int, before: Tensor, after: Tensor, closed: bool) -> Terms:
        """Of fluxes before * u_before + after * u_after at the faces across one axis.

        closed: whether nothing passes the boundary; else u is there that of the cell.
        """
        faces = self.faces[axis]
        low, high = (before, after) if faces.forward else (after, before)
        edge = faces.boundary.expand(faces.shape)
        if closed:
            low, high = (torch.where(edge, 0.0, x) for x in (low, high))
        else:
            first = edge & (_index_along(faces) == 0)
            low, high = (
                torch.where(first, 0.0, torch.where(edge, low + high, low)),
                torch.where(first, low + high, torch.where(edge, 0.0, high)),
            )
        size = self.sizes[axis] if faces.forward else -self.sizes[axis]
        (low_0, low_1), (high_0, high_1) = (self.ends(axis, size * x) for x in (low, high))
        back, on = self.step(axis, -1), self.step(axis, 1)
        return {back: -low_0, self.nowhere: low_1 - high_0, on: high_1}


def _own(
    space: Space,
    t: Tensor,
    speeds: Sequence[Known],
    diffusive: Sequence[Known],
    scheme: Scheme,
    closed: bool,
    names: tuple[str, ...],
) -> Stencil:
    """What u adds: its change, and fluxes that are linear functions of it."""
    dt, count = t.diff().reshape(-1, *[1] * len(space.faces)), len(t) - 1
    terms: Terms = {(0, *space.nowhere): -space.volumes, (1, *space.nowhere): space.volumes}
    for axis, faces in enumerate(space.faces):
        before = after = None
        if speeds:
            before, after = _carried(faces, _at_faces("velocity", speeds[axis], faces, t), scheme)
        if diffusive:
            k = _at_faces("diffusivity", diffusive[axis], faces, t)
            check.finite("diffusivity", k, 0.0)
            slope = torch.where(faces.boundary, 0.0, k / faces.distances)
            before = slope if before is None else before + slope
            after = -slope if after is None else after - slope
        if before is None or after is None:
            continue
        for offset, c in space.transport(axis, before, after, closed).items():
            for o in (0, 1):
                own = c.narrow(0, o, count) if c.ndim > len(space.faces) and len(c) > 1 else c
                key = (o, *offset)
                terms[key] = terms.get(key, 0.0) + dt / 2 * own
    grid = Grid(
        (count, *space.grid.rows), (count + 1, *space.grid.rows), (False, *space.grid.wraps)
    )
    wide = {o: c.expand(*[1] * (grid_dims(grid) - c.ndim), *c.shape) for o, c in terms.items()}
    return Stencil(grid, wide, names)


def grid_dims(grid: Grid) -> int:
    return len(grid.rows)


def _carried(faces: AxisFaces, speed: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """velocity times u at faces, as coefficients of u before and after."""
    if scheme == "upwind":
        return speed.clamp_min(0), speed.clamp_max(0)
    return speed * faces.share, speed * (1 - faces.share)


def _at_faces(label: str, given: Known, faces: AxisFaces, t: Tensor) -> Tensor:
    if isinstance(given, str):
        raise InputError(f"`{label}` must be numbers: a law is linear. Use `fluxes` for a field.")
    found = check.wide(label, given).to(faces.sizes.device)
    check.broadcasts(label, found, (len(t), *faces.shape), "the times and faces")
    return found


def _index_along(faces: AxisFaces) -> Tensor:
    size = faces.shape[faces.dim]
    index = torch.arange(size, device=faces.sizes.device)
    return index.reshape(-1, *[1] * (-1 - faces.dim))


def _axis_faces(mesh: Mesh) -> tuple[AxisFaces, ...]:
    faces = tuple(f for f in mesh._faces if isinstance(f, AxisFaces))
    if len(faces) < len(mesh._faces):
        raise InputError("`mesh`: budgets of the cells of an unstructured mesh are not there yet.")
    return faces


def _times(t: ArrayLike) -> Tensor:
    found = check.wide("t", t)
    check.increasing("t", found)
    return found


def _each(label: str, given: object, mesh: Mesh, same: bool = False) -> list[Known]:
    """One for each axis; where it is the same for all, it may be given once."""
    if given is None:
        return []
    axes = len(mesh.face_shapes)
    parts = list(given) if isinstance(given, tuple | list) else [given]
    if same and len(parts) == 1:
        parts = parts * axes
    if len(parts) != axes:
        raise InputError(
            f"`{label}` must be a tuple of {axes}, one for each axis ({', '.join(mesh.axes)}); "
            f"got {len(parts)}."
        )
    return parts


def _known(label: str, given: ArrayLike, term: InTime) -> Tensor:
    """What known numbers add to the rows."""
    found = check.wide(label, given).to(term.dt.device)
    count, wanted = len(term.dt), tuple(term.points)
    if found.ndim <= len(wanted):
        check.broadcasts(label, found, (count, *wanted), "the intervals")
        found = found.expand(count, *wanted)
    try:
        return term.on(found.shape).apply(found)
    except InputError as error:
        raise InputError(f"`{label}`: {error}") from None


def _add(maps: dict[str, Map], name: str, term: Map, label: str) -> None:
    if name in maps:
        raise InputError(f"`{label}`: the field {name!r} is read already; give it another name.")
    maps[name] = term


def _law(
    label: str, maps: dict[str, Map], value: Tensor, noise: ArrayLike, device: torch.device
) -> Law:
    sigma = check.wide("noise", noise, 0, NOISE_HINT).to(device)
    return Law(label, maps, value, sigma)
