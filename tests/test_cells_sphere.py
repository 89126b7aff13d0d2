"""Areas on the sphere, against other formulas and against the whole sphere."""

import iris_sample_data
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from probconserv.files._weights import cell_measure
from probconserv.support.sphere import polygon_areas
from probconserv.support.values import EARTH

SPHERE = 4 * np.pi * EARTH**2


def rotation(rng):
    q, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    return q


def in_degrees(points):
    points = points / np.linalg.norm(points, axis=-1, keepdims=True)
    return np.degrees(np.arcsin(points[..., 2])), np.degrees(
        np.arctan2(points[..., 1], points[..., 0])
    )


def cube(n, rng):
    """Corners (6, n, n + 1, 4, 3) of a cube's cells, turned at random and pushed off the grid."""
    x, y = np.meshgrid(np.linspace(-1, 1, n + 1), np.linspace(-1, 1, n + 2), indexing="ij")
    x[1:-1, 1:-1] += rng.uniform(-0.3, 0.3, (n - 1, n)) / n
    face = np.stack([x, y, np.ones_like(x)], axis=-1)
    turns = [np.roll(np.eye(3), k, axis=0) * sign for k in range(3) for sign in (1, -1)]
    cells = [face[i : n + i, j : n + 1 + j] for i, j in ((0, 0), (1, 0), (1, 1), (0, 1))]
    return np.stack([np.stack(cells, axis=2) @ turn for turn in turns]) @ rotation(rng)


def mesh(corners, dims=("face", "y", "x"), units=("degrees_north", "degrees_east")):
    lat, lon = in_degrees(corners)
    radians = units[0] == "radian"
    lat, lon = (np.radians(lat), np.radians(lon)) if radians else (lat, lon)
    centre = in_degrees(corners.mean(axis=-2))
    coords = {
        "nav_lat": (dims, centre[0], {"units": units[0], "bounds": "lat_corners"}),
        "nav_lon": (dims, centre[1], {"units": units[1], "bounds": "lon_corners"}),
    }
    fields = {
        "u": (dims, np.ones(lat.shape[:-1])),
        "lat_corners": ((*dims, "corner"), lat),
        "lon_corners": ((*dims, "corner"), lon),
    }
    if radians:
        coords = {name.replace("nav_", "c"): value for name, value in coords.items()}
    return xr.Dataset(fields, coords)


def globe(lat, lon, **attrs):
    field = ("lat", "lon"), np.ones((len(lat), len(lon)))
    return xr.Dataset({"u": field}, {"lat": ("lat", lat), "lon": ("lon", lon, attrs)})


def lhuilier(a, b, c):
    """The area of a triangle from its sides, each by the chord."""
    sides = [2 * np.arcsin(np.linalg.norm(p - q) / 2) for p, q in ((a, b), (b, c), (c, a))]
    s = sum(sides) / 2
    tangents = [np.tan(s / 2), *(np.tan(max(s - side, 0) / 2) for side in sides)]
    return 4 * np.arctan(np.sqrt(np.prod(tangents)))


@given(st.integers(0, 2**31), st.floats(0.01, 1.0))
def test_a_quadrilateral_is_two_triangles_of_lhuilier(seed, size):
    rng = np.random.default_rng(seed)
    square = np.array([[1.0, 0, 0], [1, 1, 0], [1, 1, 1], [1, 0, 1]])
    corners = square * [1, size, size] + rng.uniform(0, 0.2 * size, (4, 3)) * [0, 1, 1]
    corners = corners @ rotation(rng)
    corners /= np.linalg.norm(corners, axis=-1, keepdims=True)
    a, b, c, d = corners
    got = polygon_areas(*in_degrees(corners))
    assert got == pytest.approx(lhuilier(a, b, c) + lhuilier(a, c, d), rel=1e-6)
    assert polygon_areas(*in_degrees(corners[::-1])) == pytest.approx(got, rel=1e-9)


def test_random_points_fall_into_a_quadrilateral_as_often_as_its_area_says():
    rng = np.random.default_rng(4)
    corners = np.array([[1.0, -0.5, -0.4], [1, 0.6, -0.5], [1, 0.7, 0.6], [1, -0.4, 0.5]])
    points = rng.normal(size=(200_000, 3))
    sides = np.cross(corners, np.roll(corners, -1, axis=0))
    share = ((points @ sides.T) > 0).all(axis=-1).mean()
    assert polygon_areas(*in_degrees(corners)) / (4 * np.pi) == pytest.approx(share, rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_a_mesh_with_poles_and_date_line_inside_its_cells_covers_the_sphere_once(seed):
    dataset = mesh(cube(5, np.random.default_rng(seed)))
    areas = cell_measure(dataset, "u", ("face", "y", "x"))
    assert areas.shape == (6, 5, 6)
    assert float(areas.min()) > 0
    assert float(areas.sum()) == pytest.approx(SPHERE, rel=1e-12)
    assert areas.units == "m2"
    assert areas.description == (
        "cell areas from the bounds of nav_lat and nav_lon, corners joined by great circles on a "
        "sphere of 6371.229 km"
    )


def test_the_coordinates_that_a_variable_names_come_first():
    """A second pair of the same shape, for the corners of the cells, has no bounds."""
    dataset = mesh(cube(3, np.random.default_rng(5)))
    want = cell_measure(dataset, "u", ("y", "x"))
    others = {name: (("face", "y", "x"), np.zeros((6, 3, 4))) for name in ("lat", "lon")}
    dataset = dataset.reset_coords().assign_coords(others)
    dataset.u.encoding["coordinates"] = "nav_lon nav_lat"
    xr.testing.assert_equal(cell_measure(dataset, "u", ("y", "x")), want)
    assert want.dims == ("face", "y", "x")


def test_rows_in_blocks_are_the_rows_at_once(monkeypatch):
    dataset = mesh(cube(3, np.random.default_rng(0)))
    whole = cell_measure(dataset, "u", ("face", "y", "x"))
    monkeypatch.setattr("probconserv.files._sizes.BLOCK", 25)
    xr.testing.assert_identical(cell_measure(dataset.chunk(), "u", ("face", "y", "x")), whole)


def test_unstructured_triangles_in_radians_cover_the_sphere_once():
    quads = cube(4, np.random.default_rng(1)).reshape(-1, 4, 3)
    triangles = np.concatenate([quads[:, :3], quads[:, [0, 2, 3]]])
    dataset = mesh(triangles, ("cell",), ("radian", "radian"))
    areas = cell_measure(dataset, "u", ("cell",), radius=1.0)
    assert float(areas.sum()) == pytest.approx(4 * np.pi, rel=1e-12)


def test_padded_corners_add_nothing_and_cells_without_size_have_none():
    lat, lon = np.array([10.0, 10, 11, 11]), np.array([179.5, -179.5, -179.5, 179.5])
    four = polygon_areas(lat, lon)
    six = polygon_areas(np.pad(lat, (0, 2), "edge"), np.pad(lon, (0, 2), "edge"))
    assert six == pytest.approx(four, rel=1e-12)
    assert polygon_areas(np.full(4, 50.0), np.full(4, 80.0)) == 0
    pole = polygon_areas(np.array([89.0, 89, 90, 90]), np.array([0.0, 90, 90, 0]))
    assert pole == pytest.approx(np.radians(1) ** 2 / 2, rel=1e-3)


def test_small_cells_are_flat():
    lat, lon = 60 + np.array([0, 0, 1, 1]) * 1e-4, 20 + np.array([0, 1, 1, 0]) * 1e-4
    flat = np.radians(1e-4) ** 2 * np.cos(np.radians(60))
    assert polygon_areas(lat, lon) == pytest.approx(flat, rel=1e-5)


def test_corners_that_are_missing_make_cells_that_do_not_count():
    dataset = mesh(cube(3, np.random.default_rng(2)))
    dataset["lon_corners"][0, 1, 2, 3] = np.nan
    dataset["lon_corners"][1, 1, 2, 0] = np.inf
    areas = cell_measure(dataset, "u", ("face", "y", "x"))
    assert float(areas[0, 1, 2]) == 0
    assert int((areas == 0).sum()) == 2
    assert "(2 cells without corners count as 0)" in areas.description


LONGITUDES = {
    "from 0": np.arange(0.0, 360, 5),
    "to 180": np.arange(-180.0, 180, 5),
    "across 360": (np.arange(0.0, 360, 5) + 200) % 360,
    "across 180": (np.arange(0.0, 360, 5) + 30) % 360 - 180,
    "westward": np.arange(355.0, -1, -5),
    "uneven": np.cumsum(np.tile([2.0, 6, 4], 30)),
    "float32": np.arange(0, 360, 1.875, dtype="float32"),
}


@pytest.mark.parametrize("name", LONGITUDES)
@pytest.mark.parametrize("north_first", [False, True])
def test_centres_of_a_global_grid_cover_the_sphere(name, north_first):
    lat = np.linspace(-90, 90, 37)[:: -1 if north_first else 1]
    areas = cell_measure(globe(lat, LONGITUDES[name]), "u", ("lat", "lon"))
    assert float(areas.min()) > 0
    assert float(areas.sum()) == pytest.approx(SPHERE, rel=1e-6)


def test_a_gaussian_grid_reaches_the_poles():
    lat = np.degrees(np.arcsin(np.polynomial.legendre.leggauss(64)[0]))
    areas = cell_measure(globe(lat, np.arange(0.0, 360, 30)), "u", ("lat", "lon"))
    assert float(areas.sum()) == pytest.approx(SPHERE, rel=1e-12)


def test_a_regional_grid_is_the_rectangle_of_its_edges():
    areas = cell_measure(globe([30.0, 32, 34], [358.0, 0, 2, 4]), "u", ("lat", "lon"))
    south, north = np.radians([29, 35])
    want = EARTH**2 * np.radians(8) * (np.sin(north) - np.sin(south))
    assert float(areas.sum()) == pytest.approx(want, rel=1e-12)
    assert areas.description == (
        "cell areas from the centres of lat and lon, on a sphere of 6371.229 km"
    )


def with_bounds(lat, lon):
    """Uneven cells from edges; the centres sit off the middle."""
    dataset = globe(0.4 * lat[:-1] + 0.6 * lat[1:], (0.4 * lon[:-1] + 0.6 * lon[1:] + 180) % 360)
    for name, edges in (("lat", lat), ("lon", (lon + 180) % 360)):
        dataset[f"{name}_bnds"] = (name, "bnds"), np.stack([edges[:-1], edges[1:]], -1)
        dataset[name].attrs["bounds"] = f"{name}_bnds"
    return dataset


def test_bounds_win_over_centres_and_may_cross_the_seam():
    rng = np.random.default_rng(3)
    lat = np.array([-90, *np.sort(rng.uniform(-80, 80, 6)), 90])
    lon = np.array([0, *np.sort(rng.uniform(10, 350, 9)), 360])
    areas = cell_measure(with_bounds(lat, lon), "u", ("lat", "lon"))
    assert float(areas.sum()) == pytest.approx(SPHERE, rel=1e-12)
    zones = 2 * np.pi * EARTH**2 * np.diff(np.sin(np.radians(lat)))
    np.testing.assert_allclose(areas.sum("lon"), zones, rtol=1e-12)
    assert "from the bounds of lat and lon, on a sphere" in areas.description


def test_bounds_in_the_encoding_count_and_one_cell_may_go_around():
    dataset = with_bounds(np.array([-90.0, 0, 90]), np.array([0.0, 120, 360])).isel(lon=[0])
    dataset["lon_bnds"] = ("lon", "bnds"), [[0.0, 360.0]]
    dataset["lon"].encoding["bounds"] = dataset["lon"].attrs.pop("bounds")
    areas = cell_measure(dataset, "u", ("lat", "lon"))
    assert float(areas.sum()) == pytest.approx(SPHERE, rel=1e-12)


def test_fine_cells_by_corners_are_those_by_parallels():
    lat, lon = np.linspace(40, 42, 21), np.linspace(10, 12, 26)
    by_parallels = cell_measure(with_bounds(lat, lon), "u", ("lat", "lon"), radius=1.0)
    south, west = np.meshgrid(lat[:-1], lon[:-1], indexing="ij")
    corners = south[..., None] + [0, 0, 0.1, 0.1], west[..., None] + [0, 0.08, 0.08, 0]
    np.testing.assert_allclose(by_parallels, polygon_areas(*corners), rtol=1e-6)


def test_latitude_alone_weighs_by_zone_and_longitude_alone_by_arc():
    dataset = globe(np.linspace(-85, 85, 18), np.arange(0.0, 360, 40))
    zones, arcs = (cell_measure(dataset, "u", (dim,)) for dim in ("lat", "lon"))
    assert zones.dims == ("lat",)
    assert zones.units == arcs.units == "m"
    assert float(zones.sum()) == pytest.approx(2 * EARTH)
    assert float(arcs.sum()) == pytest.approx(2 * np.pi * EARTH)
    np.testing.assert_allclose(zones * arcs, cell_measure(dataset, "u", ("lat", "lon")))
    assert zones.description.startswith("areas of the zones of latitude per metre of the equator")
    assert arcs.description.startswith("arcs of longitude along the equator from")


def sample(name):
    return xr.open_dataset(f"{iris_sample_data.path}/{name}")


def test_a_real_ocean_grid_covers_the_sphere_once_north_of_antarctica():
    """Under the ice, two columns of land cells are folded over their neighbours."""
    with sample("NEMO/nemo_1m_20150101-20150201_grid-T.nc") as dataset:
        areas = cell_measure(dataset, "tos", ("y", "x"))
        lat, lon = (dataset[name][50, :, :2].astype(float) for name in ("bounds_lat", "bounds_lon"))
        ocean = (areas * dataset.tos.notnull()).sum()
    cap = polygon_areas(np.c_[np.full(360, -90), lat], np.c_[np.zeros(360), lon])
    assert float(areas.min()) > 0
    assert float(areas[50:].sum()) + EARTH**2 * cap.sum() == pytest.approx(SPHERE, rel=1e-9)
    assert float(areas.sum()) / SPHERE == pytest.approx(0.9975, abs=1e-3)
    assert float(ocean) / SPHERE == pytest.approx(0.71, abs=0.005)
    assert areas.description.endswith(
        "; cell_measures names area: area, which is not in the dataset"
    )


def test_a_real_ocean_grid_with_broken_corners_stays_within_the_sphere():
    """Its corners jump in places: cells are never negative, but the sphere is not filled."""
    with sample("orca2_votemper.nc") as dataset:
        areas = cell_measure(dataset, "votemper", ("dim0", "dim1"))
        ocean = (areas * dataset.votemper.notnull()).sum()
    assert float(areas.min()) >= 0
    assert float(areas.sum()) < SPHERE
    assert float(ocean) / SPHERE == pytest.approx(0.70, abs=0.01)


def test_a_real_climate_file_needs_no_bounds():
    with sample("A1B_north_america.nc") as dataset:
        areas = cell_measure(dataset, "air_temperature", ("latitude", "longitude"))
    south, north = np.radians([15 - 0.625, 60 + 0.625])
    want = EARTH**2 * np.radians(49 * 1.875) * (np.sin(north) - np.sin(south))
    assert float(areas.sum()) == pytest.approx(want, rel=1e-6)
    assert areas.dims == ("latitude", "longitude")


def test_a_rotated_pole_is_a_sphere_too():
    with sample("rotated_pole.nc") as dataset:
        areas = cell_measure(
            dataset, "air_pressure_at_sea_level", ("grid_latitude", "grid_longitude")
        )
    np.testing.assert_allclose(areas, areas[:, :1] * np.ones(36), rtol=1e-4)
    assert float(areas[0, 0] / areas[10, 0]) == pytest.approx(np.cos(np.radians(22.49)), rel=1e-2)
    assert areas.units == "m2"
