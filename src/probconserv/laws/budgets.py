"""Budgets as laws: of every cell of a mesh, and of the whole.

    V (u_next - u) + dt div F = dt V q      for every cell and every interval of time

A flux or a source is known (a number or an array), a field of the state (its name), or a linear
function of u (`velocity`, `diffusivity`). It is given for each interval, as an average, or at the
times, and then counts as linear in between.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from ..meshes import Mesh
from ..meshes._faces import Faces
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from .law import Law
from .maps import Map
from .quadrature import RULES, Rule
from .spaces import Gain, Intervals, OnGrid, Space, Term, carried, space_of
from .stencils import StencilGrid
from .sums import law_of

Scheme: TypeAlias = Literal["upwind", "centred"]
Known: TypeAlias = str | ArrayLike  # the name of a field, or numbers


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
    """A law: each cell gains in each interval what flows in and what its source makes.

    There is one row for every interval and cell, ``(..., T - 1, *cells)``::

        V (u_next - u) + dt div F = dt V q

    V are the volumes of the cells, F the fluxes, q the source and dt the lengths of the intervals.

    Parameters
    ----------
    mesh : Mesh
        The cells. The field holds their averages, ``(..., T, *mesh.shape)``.
    t : array, shape (T,)
        The times, increasing.
    fluxes : str, array, or a sequence of one for each axis of the mesh
        The name of a field, or numbers: ``(..., T - 1, *faces)`` as averages over the intervals or
        ``(..., T, *faces)`` at the times. Positive towards the growing coordinate.
    source : str, float or array
        q, the name of a field, or numbers: ``(*cells)``, ``(..., T - 1, *cells)`` or
        ``(..., T, *cells)``.
    velocity : array, or a sequence of one for each axis
        Numbers that broadcast to ``(T, *faces)``: the flux is velocity times u. At the boundary u
        is that of the one cell there, also where it flows in.
    diffusivity : float or array, or a sequence of one for each axis
        k of the flux -k grad u, which is 0 at the boundary.
    scheme : {"upwind", "centred"}
        How u is read at faces: from the cell that the velocity comes from, or linear in between.
    noise : float or array
        The standard deviation of a row, ``(..., T - 1, *cells)``, for the error of the
        discretisation. 0 is exact.
    where : array of bool, shape of the mesh
        True where a cell counts. Faces beside a missing cell are closed.
    of : str
        The name of the field u.

    Returns
    -------
    Law
        Where `fluxes` stand beside `velocity` or `diffusivity` both are added, and at the boundary
        `fluxes` count alone.

    Raises
    ------
    InputError
        If none of `fluxes`, `velocity` and `diffusivity` is given, or a shape does not fit.

    Examples
    --------
    >>> import probconserv as pc
    >>> mesh = pc.Mesh(x=[0.0, 1.0, 2.0])
    >>> law = cell_budgets(mesh, t=[0.0, 1.0], fluxes="F")
    >>> state = pc.State(u=([[2.0, 2.0], [2.5, 2.0]], 1.0), F=([[1.0, 0.0, 0.0]], 1.0))
    >>> post = pc.condition(state, law)
    >>> bool(law.residual(post).abs().max() < 1e-12)
    True
    """
    if not isinstance(mesh, Mesh):
        raise InputError(f"`mesh` must be a `Mesh`, got {type(mesh).__name__}.")
    check.choice("scheme", scheme, ("upwind", "centred"))
    t = check.axis("t", t)[0].to(mesh.volumes.device)
    counts = None if where is None else check.mask(where, "cell")
    if counts is not None and not check.any_of(counts):
        raise InputError("`where` must be True for at least one cell.")
    space = space_of(mesh, counts, t.diff())
    given = [] if fluxes is None else mesh._each("fluxes", fluxes)
    speeds = [] if velocity is None else mesh._each("velocity", velocity)
    diffusive = [] if diffusivity is None else mesh._each("diffusivity", diffusivity, same=True)
    if not any((given, speeds, diffusive)):
        raise InputError("`fluxes`, `velocity`, `diffusivity`: a budget needs one of them.")
    own = _own(space, len(t), speeds, diffusive, scheme, closed=bool(given))
    maps: dict[str, Map] = {check.name("of", of): own}
    value = space.volumes.new_zeros(())
    parts = [(_across("fluxes", mesh, i), one, space.divergence(i)) for i, one in enumerate(given)]
    for label, one, term in (*parts, ("source", source, space.cells(-space.volumes))):
        value = _added(maps, label, one, term, value)
    return law_of("cell budgets", of, maps, value, noise)


def budget(
    cells: Mesh | ArrayLike,
    t: ArrayLike,
    inflow: Known = 0.0,
    outflow: Known = 0.0,
    rule: Rule = "trapezoid",
    noise: ArrayLike = 0.0,
    of: str = "u",
) -> Law:
    """A law: the whole gains in each interval what flows in less what flows out.

    There is one row for every interval, (..., T - 1)::

        total(t_next) - total(t) = dt (inflow - outflow)

    Parameters
    ----------
    cells : Mesh, or array of shape (M,)
        A mesh, or the points x of the last axis.
    t : array, shape (T,)
        The times, increasing.
    inflow, outflow : str, float or array
        The whole flux through the boundary: a number, T - 1 averages over the intervals, T values
        at the times, or the name of a field of the state with as many.
    rule : str
        The rule of the integral over points x, as in `integral`.
    noise : float or array
        The standard deviation of a row. 0 is exact.
    of : str
        The name of the field u.

    Returns
    -------
    Law
        For `condition`.

    Raises
    ------
    InputError
        If something flows in or out of a mesh that is closed, or a shape does not fit.

    Examples
    --------
    >>> import probconserv as pc
    >>> law = budget([0.0, 1.0, 2.0], t=[0.0, 1.0], inflow="inflow")
    >>> state = pc.State(u=([[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]], 0.01), inflow=([1.0], 1.0))
    >>> pc.condition(state, law)["inflow"].mean
    tensor([1.4854], dtype=torch.float64)
    """
    if isinstance(cells, Mesh):
        weights, closed = cells.volumes, cells.closed
    else:
        check.choice("rule", rule, RULES)
        x, _ = check.axis("cells", cells)
        weights, closed = RULES[rule](x.diff()), False
    t = check.axis("t", t)[0].to(weights.device)
    maps: dict[str, Map] = {check.name("of", of): Gain(weights, len(t))}
    value, intervals = weights.new_zeros(()), Intervals(t.diff(), ("interval",))
    for label, given, sign in (("inflow", inflow, -1.0), ("outflow", outflow, 1.0)):
        one = OnGrid(StencilGrid((), (), ()), {(): weights.new_tensor(sign)}, intervals)
        before = value
        value = _added(maps, label, given, one, value)
        flows = isinstance(given, str) or (check.concrete(value) and bool((value != before).any()))
        if closed and flows:
            raise InputError(f"`{label}` must be 0: the mesh is closed, so nothing can pass.")
    return law_of("budget", of, maps, value, noise)


def _own(
    space: Space,
    times: int,
    speeds: Sequence[Known],
    diffusive: Sequence[Known],
    scheme: Scheme,
    closed: bool,
) -> Map:
    """What u adds: its change, and fluxes that are linear functions of it.

    closed: whether these do not pass the boundary.
    """
    one, half = torch.ones_like(space.intervals.dt), space.intervals.dt / 2
    total: Any = space.cells(space.volumes).over({0: -one, 1: one})
    for axis, faces in enumerate(space.mesh._faces if speeds or diffusive else ()):
        before = after = faces.sizes.new_zeros(faces.shape)
        if speeds:
            speed = _at_faces("velocity", speeds[axis], faces, times)
            before, after = carried(faces, speed, scheme)
        if diffusive:
            k = _at_faces("diffusivity", diffusive[axis], faces, times)
            check.finite("diffusivity", k, 0.0)
            slope = torch.where(faces.boundary, 0.0, k / space.mesh.distances[axis])
            before, after = before + slope, after - slope
        if closed:
            before, after = (torch.where(faces.boundary, 0.0, x) for x in (before, after))
        total = total.plus(space.transport(axis, before, after).over({0: half, 1: half}))
    found: Map = total
    return found


def _at_faces(label: str, given: Known, faces: Faces, times: int) -> Tensor:
    """(*faces) or (T, *faces)."""
    if isinstance(given, str):
        raise InputError(f"`{label}` must be numbers: a law is linear. Use `fluxes` for a field.")
    found = check.wide(label, given).to(faces.sizes.device)
    check.broadcasts(label, found, (times, *faces.shape), "the times and faces")
    lead = found.shape[: max(found.ndim - len(faces.shape), 0)]
    return found.expand(*lead, *faces.shape)


def _across(label: str, mesh: Mesh, axis: int) -> str:
    return f"{label}` across `{mesh.axes[axis]}" if len(mesh.axes) > 1 else label


def _added(maps: dict[str, Map], label: str, given: Known, term: Term, value: Tensor) -> Tensor:
    """The value of the law, less what known numbers add; a field is added to the maps."""
    if isinstance(given, str):
        if given in maps:
            raise InputError(f"`{label}`: the law reads {given!r} already; give another field.")
        maps[given] = term
        return value
    found = check.wide(label, given).to(term.dt.device)
    count, wanted = len(term.dt), tuple(term.points)
    if found.ndim <= len(wanted):
        check.broadcasts(label, found, (count, *wanted), "the intervals")
        found = found.expand(count, *wanted)
    try:
        return value - term.apply(found)
    except InputError as error:
        raise InputError(f"`{label}`: {error}") from None
