"""Meshes: against loops over faces, dense matrices, and what calculus says."""

import itertools

import numpy as np
import pytest
import torch

import probconserv as pc

TO_FACES = ("gradient", "centred", "upwind")


def edges(cells, seed):
    return np.cumsum(np.random.default_rng(seed).uniform(0.2, 1.5, cells + 1))


def drawn(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def random_unstructured(seed=0, cells=9, faces=23):
    """Cells joined at random, with faces to the outside that look in and out."""
    rng = np.random.default_rng(seed)
    pairs = [rng.choice(cells, 2, replace=False) for _ in range(faces - 5)]
    pairs += [(-1, 3), (3, -1), (-1, 0), (5, -1), (8, -1)]
    sizes, distances = rng.uniform(0, 2, faces), rng.uniform(0.5, 2, faces)
    return pc.Mesh.unstructured(rng.uniform(0.1, 1, cells), np.array(pairs), sizes, distances)


LAT, LON = [-90.0, -50, -20, 30, 60, 90], [0.0, 40, 100, 180, 350, 355, 360]
MESHES = {
    "line": pc.Mesh(x=edges(5, 0)),
    "one cell": pc.Mesh(x=[1.0, 3.0]),
    "one cell around": pc.Mesh(x=[1.0, 3.0], periodic="x"),
    "ring": pc.Mesh(x=edges(5, 1), periodic="x"),
    "plane": pc.Mesh(x=edges(4, 2), y=edges(3, 3)),
    "tube": pc.Mesh(x=edges(4, 2), y=edges(3, 3), periodic=("y",)),
    "torus": pc.Mesh(r=edges(2, 2), s=edges(5, 3), periodic=("s", "r")),
    "box": pc.Mesh(x=edges(4, 4), y=edges(2, 5), z=edges(3, 6)),
    "box with one way around": pc.Mesh(z=edges(4, 4), y=edges(2, 5), x=edges(3, 6), periodic=["y"]),
    "globe": pc.Mesh.sphere(LAT, LON, radius=2.0),
    "globe from the north": pc.Mesh.sphere(LAT[::-1], LON, radius=2.0),
    "globe from north and east": pc.Mesh.sphere(LAT[::-1], LON[::-1], radius=2.0),
    "region": pc.Mesh.sphere([30, 40, 60], [350, 360, 365, 380]),
    "region from the east": pc.Mesh.sphere([30, 40, 60], [380, 365, 360, 350]),
    "unstructured": random_unstructured(),
}
every_mesh = pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)
every_grid = pytest.mark.parametrize("name", ["line", "ring", "tube", "torus", "box"])


def some_fluxes(mesh, *batch, seed=0):
    return tuple(drawn(*batch, *shape, seed=seed + i) for i, shape in enumerate(mesh.face_shapes))


def applied(mesh, name, argument):
    """A map; upwind with a velocity of both signs."""
    more = [some_fluxes(mesh, seed=99)] if "upwind" in name else []
    return getattr(mesh, name)(argument, *more)


def transposed(mesh, v):
    """The transpose of the divergence."""
    fluxes = tuple(torch.zeros(shape, dtype=torch.float64) for shape in mesh.face_shapes)
    return torch.func.vjp(lambda *f: mesh.divergence(f), *fluxes)[1](v.double())


def flat(arrays, axes):
    return torch.cat([a.flatten(-axes) for a in arrays], -1)


def matrix_to_faces(mesh, name):
    """Of a map from cells to faces, all faces in one axis."""
    size = int(np.prod(mesh.shape))
    basis = torch.eye(size, dtype=torch.float64).reshape(size, *mesh.shape)
    return flat(applied(mesh, name, basis), len(mesh.shape)).T


def listed(given, periodic):
    """A grid as an unstructured mesh, by a loop over the faces of each cell."""
    axes, cells = list(given), [len(e) - 1 for e in given.values()]
    widths = [np.diff(e) for e in given.values()]
    volumes = [np.prod([w[i] for w, i in zip(widths, c, strict=True)]) for c in np.ndindex(*cells)]
    pairs, sizes, distances = [], [], []
    for k, axis in enumerate(axes):
        around = axis in periodic
        faces = [n + (j == k and not around) for j, n in enumerate(cells)]
        for face in np.ndindex(*faces):
            ends = [[*face[:k], face[k] - step, *face[k + 1 :]] for step in (1, 0)]
            for cell in ends if around else ():
                cell[k] %= cells[k]
            inside = [c for c in ends if 0 <= c[k] < cells[k]]
            number = [np.ravel_multi_index(c, cells) if c in inside else -1 for c in ends]
            pairs.append(number)
            sizes.append(np.prod([widths[j][i] for j, i in enumerate(face) if j != k]))
            distances.append(sum(widths[k][c[k]] / 2 for c in inside))
    return pc.Mesh.unstructured(volumes, np.array(pairs), sizes, distances)


@pytest.mark.parametrize("periodic", [(), ("y",), ("x", "z"), ("x", "y", "z")])
@pytest.mark.parametrize("axes", ["x", "xy", "yzx"])
def test_a_grid_is_the_unstructured_mesh_of_its_faces(axes, periodic):
    given = {a: edges({"x": 4, "y": 3, "z": 5}[a], ord(a)) for a in axes}
    around = tuple(a for a in periodic if a in axes)
    grid, loops = pc.Mesh(**given, periodic=around), listed(given, around)
    torch.testing.assert_close(grid.volumes.flatten(), loops.volumes)
    for name in ("face_sizes", "distances", "boundary"):
        whole = [t.expand(s) for t, s in zip(getattr(grid, name), grid.face_shapes, strict=True)]
        torch.testing.assert_close(flat(whole, len(axes)), getattr(loops, name)[0])
    torch.testing.assert_close(
        matrix_to_faces(grid, "gradient"), matrix_to_faces(loops, "gradient")
    )
    fluxes, u = some_fluxes(grid, 2), drawn(2, *grid.shape)
    as_list = flat(fluxes, len(axes))
    torch.testing.assert_close(grid.divergence(fluxes).flatten(1), loops.divergence(as_list))
    torch.testing.assert_close(grid.outflow(fluxes), loops.outflow(as_list))
    found = flat(grid.upwind(u, fluxes), len(axes))
    torch.testing.assert_close(found, loops.upwind(u.flatten(1), as_list)[0])
    assert grid.closed == loops.closed == (set(around) == set(axes))


@every_mesh
def test_what_leaves_the_cells_leaves_through_the_boundary(mesh):
    fluxes = some_fluxes(mesh, 3)
    terms = sum((s * f).abs().sum() for s, f in zip(mesh.face_sizes, fluxes, strict=True))
    total = mesh.divergence(fluxes).flatten(1).sum(-1)
    assert (total - mesh.outflow(fluxes)).abs().max() < 1e-13 * terms
    if mesh.closed:
        assert mesh.outflow(fluxes).abs().max() == 0


@every_grid
def test_a_uniform_flow_has_no_divergence(name):
    mesh = MESHES[name]
    fluxes = [torch.full(s, 0.3 + i) for i, s in enumerate(mesh.face_shapes)]
    assert mesh.divergence(fluxes).abs().max() < 1e-15


@pytest.mark.parametrize("name", ["globe", "globe from the north", "globe from north and east"])
def test_a_turning_globe_has_no_divergence(name):
    mesh = MESHES[name]
    lat = LAT if name == "globe" else LAT[::-1]
    middle = torch.tensor(lat, dtype=torch.float64).unfold(0, 2, 1).mean(-1)
    east = middle.deg2rad().cos()[:, None].expand(mesh.face_shapes[1])
    assert mesh.divergence((torch.zeros(mesh.face_shapes[0]), east)).abs().max() < 1e-15


@pytest.mark.parametrize(("name", "axis"), [("line", 0), ("plane", 1), ("tube", 0), ("box", 2)])
def test_the_gradient_and_the_interpolation_of_a_linear_function_are_exact(name, axis):
    seeds = {"line": [0], "plane": [2, 3], "tube": [2, 3], "box": [4, 5, 6]}[name]
    mesh = MESHES[name]
    x = torch.from_numpy(edges(mesh.shape[axis], seeds[axis]))
    side = [-1 if i == axis else 1 for i in range(len(mesh.shape))]
    u = (2 - 3 * (x[1:] + x[:-1]) / 2).reshape(side).expand(mesh.shape)
    inner = ~mesh.boundary[axis]
    slope, between = mesh.gradient(u)[axis], mesh.centred(u)[axis]
    torch.testing.assert_close(slope[inner], torch.full_like(slope[inner], -3.0))
    at_faces = (2 - 3 * x).reshape(side).expand(mesh.face_shapes[axis])
    torch.testing.assert_close(between[inner], at_faces[inner])
    assert slope[~inner].abs().max() == 0


@every_mesh
def test_at_the_boundary_a_face_has_the_value_of_its_cell(mesh):
    """There the transpose of the divergence is the size of the face, signed, times that value."""
    u, n = drawn(*mesh.shape), len(mesh.axes)
    edge = flat(mesh.boundary, n)
    signed_size = flat(transposed(mesh, torch.ones(mesh.shape)), n)[edge]
    expected = flat(transposed(mesh, u), n)[edge]
    for found in (mesh.centred(u), mesh.upwind(u, [1.0] * n), mesh.upwind(u, [-1.0] * n)):
        torch.testing.assert_close(flat(found, n)[edge] * signed_size, expected)


def test_upwind_takes_the_cell_that_the_velocity_comes_from():
    mesh = pc.Mesh(x=[0, 1, 2, 3], y=[0, 1, 2], periodic="y")
    u = torch.arange(6.0).reshape(3, 2)
    x, y = mesh.upwind(u, (-1.0, [1.0, -1.0]))
    assert x.tolist() == [[0, 1], [2, 3], [4, 5], [4, 5]]
    assert y.tolist() == [[1, 1], [3, 3], [5, 5]]


def test_fluxes_on_a_globe_point_north_and_east_whatever_the_order_of_the_edges():
    usual, turned = MESHES["globe"], MESHES["globe from north and east"]
    north, east = some_fluxes(usual)
    u = drawn(*usual.shape)
    # the first face of the eastward globe is its seam; from the east the seam comes first as well
    seam_first = [0, *range(east.shape[1] - 1, 0, -1)]
    fluxes = north.flip(0, 1), east.flip(0)[:, seam_first]
    back = usual.divergence((north, east)).flip(0, 1)
    torch.testing.assert_close(turned.divergence(fluxes), back)
    for name in ("gradient", "centred", "upwind"):
        more = [(-0.5, 2.0)] if name == "upwind" else []
        a, b = getattr(usual, name)(u, *more)
        c, d = getattr(turned, name)(u.flip(0, 1), *more)
        torch.testing.assert_close((c, d), (a.flip(0, 1), b.flip(0)[:, seam_first]))


@pytest.mark.parametrize("name", ["globe", "globe from the north", "globe from north and east"])
def test_the_cells_of_a_globe_cover_it_once_and_nothing_leaves(name):
    mesh = MESHES[name]
    assert float(mesh.volumes.sum()) == pytest.approx(4 * np.pi * 2**2, rel=1e-14)
    assert mesh.closed
    assert mesh.periodic == ("lon",)
    assert float(mesh.face_sizes[0][[0, -1]].abs().max()) == 0


def test_areas_and_lengths_on_the_sphere_are_those_of_points_in_space():
    """Sums of small chords and quadrilaterals."""
    mesh, n = MESHES["region"], 2001
    lat, lon = (np.radians(np.linspace(a, b, n)) for a, b in ((40, 60), (360, 365)))

    def point(lat, lon):
        up = np.sin(lat) + 0 * lon
        return 6371229 * np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), up], -1)

    def length(curve):
        return np.linalg.norm(np.diff(curve, axis=0), axis=-1).sum()

    assert float(mesh.face_sizes[0][1, 1]) == pytest.approx(length(point(lat[0], lon)), rel=1e-6)
    assert float(mesh.face_sizes[1][1, 0]) == pytest.approx(length(point(lat, lon[1])), rel=1e-6)
    along, across = (np.radians(np.linspace(a, b, n)) for a, b in ((355, 362.5), (35, 50)))
    east, north = point(across[-1], along), point(across, along[0])
    assert float(mesh.distances[1][1, 1]) == pytest.approx(length(east), rel=1e-6)
    assert float(mesh.distances[0][1, 0]) == pytest.approx(length(north), rel=1e-6)
    corners = point(lat[::10, None], lon[None, ::10])
    sides = corners[1:, 1:] - corners[:-1, :-1], corners[1:, :-1] - corners[:-1, 1:]
    area = (
        np.linalg.norm(np.cross(*sides), axis=-1).sum() / 2
    )  # of each quadrilateral, by diagonals
    assert float(mesh.volumes[1, 1]) == pytest.approx(area, rel=1e-5)


def test_an_integral_is_a_sum_of_volumes():
    mesh, u = MESHES["box"], drawn(3, 4, 2, 3)
    widths = [w.numpy() for w in mesh.widths]
    expected = np.einsum("bijk,i,j,k->b", u, *widths)
    np.testing.assert_allclose(mesh.integral(u), expected)
    assert mesh.integral(np.ones((4, 2, 3), dtype=np.float32)).dtype == torch.float64


def test_faces_beside_cells_that_do_not_count_are_shut():
    mesh = pc.Mesh(x=edges(4, 0), y=edges(3, 0), periodic="y")
    where = np.ones((4, 3), dtype=bool)
    where[0, 1] = where[2, 0] = False
    x, y = mesh.open_faces(where)
    assert {tuple(i) for i in (~x).nonzero().tolist()} == {(0, 1), (1, 1), (2, 0), (3, 0)}
    assert {tuple(i) for i in (~y).nonzero().tolist()} == {(0, 1), (0, 2), (2, 0), (2, 1)}
    assert all(bool(faces.all()) for faces in mesh.open_faces(torch.ones(4, 3, dtype=torch.bool)))


def test_shut_faces_leave_cells_that_do_not_count_alone():
    mesh = MESHES["unstructured"]
    where = torch.arange(9) % 4 != 3
    (free,) = mesh.open_faces(where)
    flow = mesh.divergence(drawn(23) * free)
    assert float(flow[~where].abs().max()) == 0
    assert float(flow[where].abs().min()) > 0
    loops = [all(where[c] for c in pair if c >= 0) for pair in pairs_of(mesh)]
    assert free.tolist() == loops


def pairs_of(mesh):
    """The cells of each face of an unstructured mesh, read off the matrix of its divergence."""
    return [row.nonzero().flatten().tolist() for row in matrix_to_faces(mesh, "centred")]


@every_mesh
def test_a_batch_is_a_loop_and_vmap_is_a_batch(mesh):
    u, fluxes = drawn(2, 3, *mesh.shape), some_fluxes(mesh, 2, 3)
    for name in TO_FACES:
        whole = applied(mesh, name, u)
        twice = torch.vmap(torch.vmap(lambda a, name=name: applied(mesh, name, a)))(u)
        torch.testing.assert_close(whole, twice)
        for i, j in itertools.product(range(2), range(3)):
            torch.testing.assert_close(applied(mesh, name, u[i, j]), tuple(w[i, j] for w in whole))
    whole = mesh.divergence(fluxes)
    torch.testing.assert_close(whole, torch.vmap(torch.vmap(lambda f: mesh.divergence(f)))(fluxes))
    for i, j in itertools.product(range(2), range(3)):
        one = tuple(f[i, j] for f in fluxes)
        torch.testing.assert_close(mesh.divergence(one), whole[i, j])


@pytest.mark.parametrize("name", ["tube", "globe from the north", "unstructured"])
@pytest.mark.parametrize("to_faces", TO_FACES)
def test_every_map_has_the_right_gradient(name, to_faces):
    mesh = MESHES[name]
    u = drawn(*mesh.shape).requires_grad_()
    fluxes = tuple(f.requires_grad_() for f in some_fluxes(mesh))
    assert torch.autograd.gradcheck(lambda u: applied(mesh, to_faces, u), u)
    assert torch.autograd.gradcheck(lambda *f: mesh.divergence(f), fluxes)
    assert torch.autograd.gradcheck(lambda *f: mesh.outflow(f), fluxes)
    assert torch.autograd.gradcheck(mesh.integral, u)


def test_a_velocity_may_change_along_the_batch():
    mesh, u = MESHES["tube"], drawn(4, 3)
    velocity = drawn(6, 1, 1), drawn(6, 4, 3)
    together = mesh.upwind(u, velocity)
    for i in range(6):
        one = tuple(v[i] for v in velocity)
        torch.testing.assert_close(tuple(t[i] for t in together), mesh.upwind(u, one))


def test_compiled_without_a_graph_break():
    mesh, u = MESHES["tube"], drawn(2, 4, 3)
    step = torch.compile(
        lambda u: mesh.divergence(mesh.gradient(u)), backend="eager", fullgraph=True
    )
    torch.testing.assert_close(step(u), mesh.divergence(mesh.gradient(u)))


@every_mesh
def test_a_mesh_is_moved_kept_and_read_again(mesh, tmp_path):
    mesh.to("cpu").save(tmp_path / "mesh.safetensors")
    again = pc.Mesh.load(tmp_path / "mesh.safetensors")
    assert repr(again) == repr(mesh)
    fluxes = some_fluxes(mesh)
    torch.testing.assert_close(again.divergence(fluxes), mesh.divergence(fluxes))
    assert (again.axes, again.shape, again.face_shapes) == (mesh.axes, mesh.shape, mesh.face_shapes)


def test_on_another_device_everything_is_there():
    mesh = MESHES["tube"].to("meta") if not torch.cuda.is_available() else MESHES["tube"].to("cuda")
    fluxes = [torch.zeros(s, device=mesh.volumes.device) for s in mesh.face_shapes]
    assert mesh.divergence(fluxes).device == mesh.volumes.device
    with pytest.raises(pc.errors.InputError, match="`u` is on cpu but `mesh` is on"):
        mesh.integral(torch.zeros(4, 3))


def test_a_mesh_cannot_be_changed():
    mesh = pc.Mesh(x=[0, 1, 2])
    with pytest.raises(AttributeError, match="cannot be changed"):
        mesh.volumes = torch.ones(2)
    with pytest.raises(AttributeError):
        mesh.shape = (3,)


def test_what_a_fast_transform_needs():
    mesh = pc.Mesh(x=[0, 1, 3, 6], y=np.arange(5, dtype=np.float32), periodic=("y",))
    assert [w.tolist() for w in mesh.widths] == [[1, 2, 3], [1, 1, 1, 1]]
    assert (mesh.axes, mesh.shape, mesh.periodic) == (("x", "y"), (3, 4), ("y",))
    assert mesh.widths[1].dtype == torch.float64
    assert repr(mesh) == "Mesh(x: 3, y: 4, periodic in y)"
    assert not mesh.closed


def test_the_edges_are_copied():
    x = torch.arange(4.0, dtype=torch.float64)
    mesh = pc.Mesh(x=x)
    x.mul_(2)
    assert mesh.volumes.tolist() == [1, 1, 1]
