"""Budgets of cells and of the whole, against loops over cells and faces in plain Python."""

import numpy as np
import pytest
import torch
from test_mesh import LAT, LON, edges, flat, listed, random_unstructured

import probconserv as pc

GRIDS = {
    "line": pc.Mesh(x=edges(5, 0)),
    "ring": pc.Mesh(x=edges(5, 1), periodic="x"),
    "ring of one": pc.Mesh(x=edges(1, 1), periodic="x"),
    "ring of two": pc.Mesh(x=edges(2, 1), periodic="x"),
    "plane": pc.Mesh(x=edges(4, 2), y=edges(3, 3)),
    "torus": pc.Mesh(x=edges(2, 2), y=edges(5, 3), periodic=("x", "y")),
    "box": pc.Mesh(x=edges(4, 4), y=edges(2, 5), z=edges(3, 6), periodic="z"),
    "globe from the north": pc.Mesh.sphere(LAT[::-1], LON, radius=2.0),
    "region from the east": pc.Mesh.sphere([30, 40, 60], [380, 365, 360, 350], radius=2.0),
}
MESHES = GRIDS | {"unstructured": random_unstructured()}
every_mesh = pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
TIMES = np.array([0.0, 0.4, 1.3, 1.5])  # 3 intervals
STEPS = np.diff(TIMES)


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def drawn_fluxes(mesh, *lead, seed=0):
    return [drawn(*lead, *s, seed=seed + i) for i, s in enumerate(mesh.face_shapes)]


def faces_of(mesh):
    """(axis, index, cell before, cell after, size, distance), with None for the outside."""
    number = torch.arange(mesh.volumes.numel(), dtype=torch.float64).reshape(mesh.shape)
    before = mesh.upwind(number, [1.0] * len(mesh.axes))
    after = mesh.upwind(number, [-1.0] * len(mesh.axes))
    fluxes = tuple(torch.zeros(shape, dtype=torch.float64) for shape in mesh.face_shapes)
    transpose = torch.func.vjp(lambda *f: mesh.divergence(f), *fluxes)[1]
    one = transpose(torch.ones_like(mesh.volumes))  # the size, with its sign, at an end
    for k, shape in enumerate(mesh.face_shapes):
        outside, sizes = mesh.boundary[k], mesh.face_sizes[k].expand(shape)
        apart = mesh.distances[k].expand(shape)
        for i in np.ndindex(*shape):
            low, high = int(before[k][i]), int(after[k][i])
            if outside[i]:
                low, high = (None, high) if one[k][i] < 0 else (low, None)
            yield k, i, low, high, float(sizes[i]), float(apart[i])


def outflow(mesh, flux):
    """What leaves each cell at one moment, flux(axis, index, before, after): a loop over faces."""
    found = np.zeros(mesh.volumes.numel())
    for k, i, before, after, size, apart in faces_of(mesh):
        through = size * flux(k, i, before, after, apart)
        if before is not None:
            found[before] += through
        if after is not None:
            found[after] -= through
    return found.reshape(mesh.shape)


def expected(mesh, u, flow, source=0.0):
    """V (u_next - u) + the sum over the interval of flow - V q, by a loop over intervals."""
    volumes = mesh.volumes.numpy()
    rows = [
        volumes * (u[n + 1] - u[n]) + STEPS[n] * (flow(n) - volumes * source)
        for n in range(len(STEPS))
    ]
    return np.array(rows)


def close(found, wanted):
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12, atol=1e-12)


@every_mesh
@pytest.mark.parametrize("count", [3, 4])
def test_unknown_fluxes_count_for_intervals_or_at_the_times(mesh, count):
    u, fluxes = drawn(4, *mesh.shape), drawn_fluxes(mesh, count)
    names = tuple("FGH"[: len(fluxes)])
    law = pc.cell_budgets(mesh, TIMES, names)
    moments = [outflow(mesh, lambda k, i, *_, n=n: fluxes[k][n][i]) for n in range(count)]

    def flow(n):
        return moments[n] if count == 3 else (moments[n] + moments[n + 1]) / 2

    state = {"u": u, **dict(zip(names, fluxes, strict=True))}
    close(law.residual(state), expected(mesh, u, flow))


@every_mesh
def test_known_fluxes_and_sources_go_into_the_value(mesh):
    u, fluxes, q = drawn(4, *mesh.shape), drawn_fluxes(mesh, 3), drawn(3, *mesh.shape, seed=9)
    known = pc.cell_budgets(mesh, TIMES, fluxes, source=q)
    names = tuple("FGH"[: len(fluxes)])
    unknown = pc.cell_budgets(mesh, TIMES, names, source="q")
    state = {"u": u, "q": q, **dict(zip(names, fluxes, strict=True))}
    assert set(known.maps) == {"u"}
    close(known.residual(u), unknown.residual(state).numpy())
    number = pc.cell_budgets(mesh, TIMES, [0.7] * len(fluxes), source=2.0)
    whole = outflow(mesh, lambda *_: 0.7)
    close(number.residual(u), expected(mesh, u, lambda n: whole, 2.0))


@every_mesh
@pytest.mark.parametrize("scheme", ["upwind", "centred"])
@pytest.mark.parametrize("kind", ["number", "faces", "times"])
def test_velocity_and_diffusivity_are_fluxes_of_u(mesh, scheme, kind):
    u, k = drawn(4, *mesh.shape), 0.3
    lead = {"number": None, "faces": (), "times": (4,)}[kind]
    speeds = [np.array(0.8)] * len(mesh.axes) if lead is None else drawn_fluxes(mesh, *lead)
    full = [np.broadcast_to(v, (4, *s)) for v, s in zip(speeds, mesh.face_shapes, strict=True)]
    law = pc.cell_budgets(mesh, TIMES, velocity=speeds, diffusivity=k, scheme=scheme)
    number = torch.eye(mesh.volumes.numel(), dtype=torch.float64).reshape(-1, *mesh.shape)
    between = [part.numpy() for part in mesh.centred(number)]  # the share of each cell in a face

    def at(n):
        values = u[n].ravel()

        def flux(axis, i, before, after, apart):
            v = full[axis][n][i]
            if before is None or after is None:
                return v * values[after if before is None else before]
            share = between[axis][(before, *i)] if scheme == "centred" else float(v >= 0)
            if before == after:
                return v * values[before]
            slope = (values[after] - values[before]) / apart
            return v * (share * values[before] + (1 - share) * values[after]) - k * slope

        return outflow(mesh, flux)

    moments = [at(n) for n in range(4)]
    close(law.residual(u), expected(mesh, u, lambda n: (moments[n] + moments[n + 1]) / 2))


def test_a_centred_value_lies_on_the_line_between_the_centres():
    mesh = pc.Mesh(x=[0.0, 1.0, 4.0, 6.0])
    u = np.tile([0.5, 2.5, 5.0], (2, 1)) * 3 + 1  # 3 x + 1 at the centres
    law = pc.cell_budgets(mesh, [0.0, 1.0], velocity=1.0, scheme="centred")
    close(law.residual(u)[0, 1], np.array(3 * (4.0 - 1.0)))


def test_fluxes_beside_a_velocity_count_alone_at_the_boundary():
    mesh, u = GRIDS["plane"], drawn(4, 4, 3)
    fluxes = drawn_fluxes(mesh, 3)
    law = pc.cell_budgets(mesh, TIMES, fluxes, velocity=(0.5, -0.2), diffusivity=0.1)
    alone = pc.cell_budgets(mesh, TIMES, fluxes)
    inside = pc.cell_budgets(mesh, TIMES, (0.0, 0.0), velocity=(0.5, -0.2), diffusivity=0.1)
    none = pc.cell_budgets(mesh, TIMES, (0.0, 0.0))
    close(law.residual(u), (alone.residual(u) + inside.residual(u) - none.residual(u)).numpy())
    gained = (inside.residual(u) - none.residual(u)).sum((-1, -2))
    assert gained.abs().max() < 1e-13  # nothing passes the boundary


def test_known_and_unknown_fluxes_may_stand_side_by_side():
    mesh, u = GRIDS["box"], drawn(4, 4, 2, 3)
    F, G, H = drawn_fluxes(mesh, 3)
    law = pc.cell_budgets(mesh, TIMES, ("F", G, "H"), source="q", of="v")
    every = pc.cell_budgets(mesh, TIMES, ("F", "G", "H"))
    found = law.residual({"v": u, "F": F, "H": H, "q": np.zeros((3, 4, 2, 3))})
    close(found, every.residual({"u": u, "F": F, "G": G, "H": H}).numpy())


@pytest.mark.parametrize("periodic", [(), ("y",), ("x", "y")])
def test_a_grid_has_the_budgets_of_the_unstructured_mesh_of_its_faces(periodic):
    given = {"x": edges(4, 1), "y": edges(3, 2)}
    grid, loops = pc.Mesh(**given, periodic=periodic), listed(given, periodic)
    u, fluxes, v = drawn(4, 4, 3), drawn_fluxes(grid, 3), drawn_fluxes(grid, 4, seed=7)
    found = pc.cell_budgets(grid, TIMES, fluxes, velocity=v, diffusivity=0.2).residual(u)
    both = [flat([torch.from_numpy(x) for x in each], 2) for each in (fluxes, v)]
    law = pc.cell_budgets(loops, TIMES, both[0], velocity=both[1], diffusivity=0.2)
    close(found.flatten(1), law.residual(u.reshape(4, 12)).numpy())
    for name in ("magnitude", "squares"):
        one = getattr(pc.cell_budgets(grid, TIMES, velocity=(1.0, -2.0)), name)(u**2)
        at = flat([torch.full(s, x) for s, x in zip(grid.face_shapes, (1.0, -2.0), strict=True)], 2)
        other = getattr(pc.cell_budgets(loops, TIMES, velocity=at), name)(u.reshape(4, 12) ** 2)
        close(one.flatten(1), other.numpy())


@every_mesh
def test_the_sum_of_all_cells_is_the_budget_of_the_whole(mesh):
    u, fluxes = drawn(4, *mesh.shape), drawn_fluxes(mesh, 3)
    out = mesh.outflow([torch.from_numpy(f) for f in fluxes])
    rows = pc.cell_budgets(mesh, TIMES, fluxes).residual(u)
    whole = pc.budget(mesh, TIMES, outflow=0.0 if mesh.closed else out)
    close(rows.flatten(1).sum(-1), whole.residual(u).numpy())
    if not mesh.closed:
        inflow = pc.budget(mesh, TIMES, inflow="in", outflow="out")
        close(inflow.residual({"u": u, "in": 0 * out, "out": out}), whole.residual(u).numpy())


def test_the_budget_of_points_is_the_difference_of_their_integrals():
    x, u, at = edges(6, 3), drawn(4, 7), drawn(4)
    law = pc.budget(x, TIMES, inflow=at, rule="left")
    totals = pc.integral(x, 0.0, rule="left").apply(u).numpy()
    close(law.residual(u), np.diff(totals) - STEPS * (at[1:] + at[:-1]) / 2)
    named = pc.budget(x, TIMES, inflow="F", rule="left")
    close(named.residual({"u": u, "F": at}), law.residual(u).numpy())


def test_an_exact_solution_obeys_the_law_to_the_error_of_its_discretisation():
    worst = []
    for n in (32, 64):
        mesh = pc.Mesh(x=np.linspace(0, 1, n + 1), periodic="x")
        t, e = np.linspace(0, 0.2, n // 4 + 1), np.linspace(0, 1, n + 1)
        whole = -np.cos(2 * np.pi * (e - t[:, None])) / (2 * np.pi)  # of sin(2 pi (x - t))
        u = np.diff(whole) * n
        law = pc.cell_budgets(mesh, t, velocity=1.0, scheme="centred")
        worst.append(float((law.residual(u) / law.value.new_tensor(t[1] / n)).abs().max()))
    assert worst[1] < worst[0] / 3.5  # second order
    assert worst[1] < 0.05


@every_mesh
def test_apply_and_adjoint_are_transposes_and_entries_are_exact(mesh):
    speeds = drawn_fluxes(mesh, 4, seed=3)
    law = pc.cell_budgets(mesh, TIMES, velocity=speeds, diffusivity=0.4)
    shape, size = (4, *mesh.shape), 4 * mesh.volumes.numel()
    basis = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
    matrix = law.apply(basis).flatten(1).T
    v = torch.from_numpy(drawn(2, 3, *mesh.shape))
    close(law.adjoint(v, shape).flatten(1), (v.flatten(1) @ matrix).numpy())
    d = torch.from_numpy(drawn(*shape) ** 2)
    close(law.squares(d).flatten(), (matrix.square() @ d.flatten()).numpy())
    close(law.magnitude(d).flatten(), (matrix.abs() @ d.flatten()).numpy())


@pytest.mark.parametrize("n", [1, 2, 3])
def test_fluxes_around_a_short_ring_have_exact_entries(n):
    mesh = pc.Mesh(x=edges(n, 0), periodic="x")
    law = pc.cell_budgets(mesh, TIMES, "F")
    m = law.maps["F"].on((3, n))
    basis = torch.eye(3 * n, dtype=torch.float64).reshape(3 * n, 3, n)
    matrix = m.apply(basis).flatten(1).T
    ones = torch.ones(3, n, dtype=torch.float64)
    close(m.entrywise(2).apply(ones).flatten(), matrix.square().sum(-1).numpy())
    close(m.entrywise(1).apply(ones).flatten(), matrix.abs().sum(-1).numpy())


@pytest.mark.parametrize("name", ["plane", "torus", "unstructured"])
def test_a_missing_cell_moves_no_neighbour_and_its_row_holds(name):
    mesh = MESHES[name]
    where = np.ones(mesh.shape, bool)
    where.flat[4] = False
    opens = mesh.open_faces(where)
    names = tuple("FG"[: len(mesh.axes)])
    fluxes, u = drawn_fluxes(mesh, 3), drawn(4, *mesh.shape)
    law = pc.cell_budgets(mesh, TIMES, names, source=2.0, where=where)
    rows = law.residual({"u": u, **dict(zip(names, fluxes, strict=True))})
    shut = [f * o.numpy() for f, o in zip(fluxes, opens, strict=True)]
    wanted = pc.cell_budgets(mesh, TIMES, shut, source=2.0).residual(u).numpy()
    close(rows, np.where(where, wanted, 0.0))
    state = pc.State(u=(u, 1.0), **{k: (f, 1.0) for k, f in zip(names, fluxes, strict=True)})
    post = pc.condition(state, law)
    missing = ~torch.from_numpy(where)
    assert torch.equal(post["u"].mean[:, missing], state["u"].mean[:, missing])
    for name, f, o in zip(names, fluxes, opens, strict=True):
        assert torch.equal(post[name].mean[:, ~o], torch.from_numpy(f)[:, ~o])


def test_a_batch_is_each_of_its_entries():
    mesh, u = GRIDS["plane"], drawn(2, 4, 4, 3)
    F, G, q = drawn(2, 3, 5, 3), drawn(2, 3, 4, 4), drawn(2, 3, 4, 3, seed=4)
    law = pc.cell_budgets(mesh, TIMES, ("F", G), source=q)
    rows = law.residual({"u": u, "F": F})
    for i in range(2):
        one = pc.cell_budgets(mesh, TIMES, ("F", G[i]), source=q[i])
        close(rows[i], one.residual({"u": u[i], "F": F[i]}).numpy())
    post = pc.condition(pc.State(u=(u, 1.0), F=(F, 1.0)), law)
    assert post["u"].event_dims == 3
    assert float(law.residual(post).abs().max()) < 1e-12


def test_float32_fields_stay_float32_and_obey_to_their_digits():
    mesh = GRIDS["plane"]
    u, fluxes = drawn(4, 4, 3).astype("float32"), drawn_fluxes(mesh, 3)
    law = pc.cell_budgets(mesh, TIMES, ("F", "G"))
    named = {k: (f.astype("float32"), 1.0) for k, f in zip("FG", fluxes, strict=True)}
    post = pc.condition(pc.State(u=(u, 1.0), **named), law)
    assert post["u"].mean.dtype == torch.float32
    assert float((law.residual(post) / law.magnitude(post)).abs().max()) < 1e-6


def test_a_law_and_its_mesh_go_where_the_field_is():
    law = pc.cell_budgets(GRIDS["plane"], TIMES, ("F", "G"), source="q", velocity=(1.0, 2.0))
    there = law.to("meta")
    shapes = [(4, 4, 3), (3, 5, 3), (4, 4, 4), (3, 4, 3)]
    for m, shape in zip(there.maps.values(), shapes, strict=True):
        assert m.on(shape).apply(torch.empty(shape, device="meta")).shape == (3, 4, 3)


PLANE = GRIDS["plane"]
ERRORS = {
    "a list is no mesh": ({"mesh": [0.0, 1.0]}, "`mesh` must be a `Mesh`"),
    "times decrease": ({"t": [1.0, 0.0]}, "`t` must increase"),
    "one time": ({"t": [1.0]}, "`t` must be one axis of at least 2"),
    "nothing flows": ({"fluxes": None}, "`fluxes`, `velocity`, `diffusivity`.*needs one"),
    "one flux of two": ({"fluxes": "F"}, "`fluxes` must be a tuple of 2.*x, y.*got 1"),
    "three velocities": ({"velocity": (1.0, 2.0, 3.0)}, "`velocity` must be a tuple of 2"),
    "a named velocity": ({"velocity": ("F", "G")}, "`velocity` must be numbers.*`fluxes`"),
    "velocity of other faces": ({"velocity": (np.ones((4, 3)), 1.0)}, r"`velocity`.*\(4, 5, 3\)"),
    "negative diffusivity": ({"diffusivity": -1.0}, "`diffusivity` must be >= 0"),
    "a scheme nobody knows": ({"scheme": "upwnd"}, "`scheme`.*'upwind'"),
    "fluxes of the cells": (
        {"fluxes": (np.ones((3, 4, 3)), 0.0)},
        r"`fluxes` across `x`.*\(3, 5, 3\).*\(4, 5, 3\)",
    ),
    "a source of other cells": ({"source": np.ones((3, 5, 3))}, r"`source`.*\(3, 4, 3\)"),
    "one name for two fluxes": ({"fluxes": ("F", "F")}, "`fluxes` across `y`.*reads 'F' already"),
    "u as a source": ({"source": "u"}, "`source`.*reads 'u' already"),
    "NaN in a flux": ({"fluxes": (np.nan, 0.0)}, "`fluxes` across `x` must be finite"),
    "negative noise": ({"noise": -1.0}, "`noise` must be >= 0"),
    "where of numbers": ({"where": np.ones((4, 3))}, "`where` must be boolean"),
    "where of no cell": ({"where": np.zeros((4, 3), bool)}, "`where` must be True for at least"),
    "where of other cells": ({"where": np.ones((3, 4), bool)}, r"`where` must end in \(4, 3\)"),
    "no name": ({"of": 3}, "`of` must be a name"),
}


@pytest.mark.parametrize(("change", "words"), ERRORS.values(), ids=ERRORS)
def test_what_is_wrong_with_a_cell_budget_is_said(change, words):
    fine = {"mesh": PLANE, "t": TIMES, "fluxes": ("F", "G")}
    with pytest.raises(pc.errors.InputError, match=words):
        pc.cell_budgets(**fine | change)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        (((3, 4, 3), (3, 5, 3), (3, 4, 4)), r"reads a field that ends in \(4, 4, 3\)"),
        (((4, 4, 3), (2, 5, 3), (3, 4, 4)), r"\(3, 5, 3\), an average.*\(4, 5, 3\), at the times"),
        (((4, 4, 3), (3, 4, 3), (3, 4, 4)), r"\(3, 5, 3\), an average.*\(4, 5, 3\), at the times"),
        (((2, 4, 4, 3), (3, 5, 3), (3, 4, 4)), "rows of different shapes"),
    ],
)
def test_fields_of_other_shapes_are_refused_with_the_right_ones(shapes, words):
    law = pc.cell_budgets(PLANE, TIMES, ("F", "G"))
    state = pc.State(**{k: (np.zeros(s), 1.0) for k, s in zip("uFG", shapes, strict=True)})
    with pytest.raises(pc.errors.InputError, match=words):
        pc.condition(state, law)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cells": GRIDS["torus"], "inflow": 1.0}, "`inflow` must be 0: the mesh is closed"),
        ({"cells": GRIDS["torus"], "outflow": "out"}, "`outflow` must be 0: the mesh is closed"),
        ({"inflow": "F", "outflow": "F"}, "`outflow`: the law reads 'F' already"),
        ({"inflow": [1.0, 2.0]}, r"`inflow`.*\(3,\).*\(4,\)"),
        ({"cells": [0.0, 2.0, 1.0]}, "`cells` must increase"),
        ({"cells": [0.0, 1.0, 2.0], "rule": "lef"}, "`rule`.*'left'"),
        ({"t": [0.0, 0.0]}, "`t` must increase"),
    ],
)
def test_what_is_wrong_with_a_budget_is_said(change, words):
    with pytest.raises(pc.errors.InputError, match=words):
        pc.budget(**{"cells": PLANE, "t": TIMES} | change)
