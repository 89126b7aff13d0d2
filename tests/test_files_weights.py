"""Layouts whose cells are easily weighed wrongly: angles named x and y, nominal axes, copies."""

import numpy as np
import pytest
import xarray as xr

from probconserv.errors import InputError
from probconserv.files import FileLaw, cell_measure, check_file, enforce, totals

LAT, LON = np.arange(-87.5, 90, 5), np.arange(2.5, 360, 5)
NORTH, EAST = {"units": "degrees_north"}, {"units": "degrees_east"}


def zone_areas(edges=None):  # of 5 degrees, on the unit sphere
    edges = np.arange(-90, 91, 5) if edges is None else edges
    return np.diff(np.sin(np.radians(edges)))[:, None] * np.full((1, 72), np.radians(5))


def plain(mapping=None, y=LAT, x=LON, y_attrs=(), x_attrs=()):
    """A field `u` on `y` and `x`, which say nothing of themselves."""
    coords = {"y": ("y", y, dict(y_attrs)), "x": ("x", x, dict(x_attrs))}
    dataset = xr.Dataset({"u": (("y", "x"), np.ones((len(y), len(x))))}, coords)
    if mapping:
        dataset["crs"] = (), 0, mapping
        dataset.u.attrs["grid_mapping"] = "crs"
    return dataset


WKT = 'GEOGCRS["WGS 84",DATUM["World Geodetic System 1984",ELLIPSOID["WGS 84",6378137,298.257]]]'
FLAT = {"grid_mapping_name": "latitude_longitude"}


@pytest.mark.parametrize("mapping", [FLAT, {"crs_wkt": WKT}, {"spatial_ref": WKT}])
@pytest.mark.parametrize("attrs", [({}, {}), ({"units": "degrees"}, {"units": "degrees"})])
def test_x_and_y_of_a_map_of_angles_are_angles(mapping, attrs):
    dataset = plain(mapping, y_attrs=attrs[0], x_attrs=attrs[1])
    weights = cell_measure(dataset, "u", ("y", "x"), radius=1.0)
    np.testing.assert_allclose(weights, zone_areas(), rtol=1e-12)
    assert (weights.units, dataset.x.attrs) == ("m2", attrs[1])
    assert weights.description.startswith("cell areas from the centres of y and x, on a sphere")


def test_other_names_tell_by_their_axis_or_their_long_name():
    dataset = plain(FLAT, y_attrs={"axis": "Y"}, x_attrs={"long_name": "Longitude of pixel"})
    dataset = dataset.rename(y="rows", x="columns")
    weights = cell_measure(dataset, "u", ("rows", "columns"), radius=1.0)
    np.testing.assert_allclose(weights, zone_areas(), rtol=1e-12)


def test_a_map_that_is_a_coordinate_counts_where_no_attribute_names_it():
    dataset = plain(FLAT).set_coords("crs")
    del dataset.u.attrs["grid_mapping"]
    weights = cell_measure(dataset, "u", ("y", "x"), radius=1.0)
    np.testing.assert_allclose(weights, zone_areas(), rtol=1e-12)


def test_x_and_y_of_a_rotated_pole_are_its_angles():
    dataset = plain({"grid_mapping_name": "rotated_latitude_longitude"})
    here = np.broadcast_to(LON, (36, 72)), np.broadcast_to(LAT[:, None], (36, 72)) / 2
    dataset = dataset.assign_coords(
        lon=(("y", "x"), here[0], EAST), lat=(("y", "x"), here[1], NORTH)
    )
    weights = cell_measure(dataset, "u", ("y", "x"), radius=1.0)
    np.testing.assert_allclose(weights, zone_areas(), rtol=1e-12)


@pytest.mark.parametrize("unit", ["m", "km", "1"])
def test_lengths_on_a_map_of_angles_are_refused(unit):
    dataset = plain(FLAT, y_attrs={"units": unit}, x_attrs={"units": unit})
    with pytest.raises(InputError, match=rf"'y' has the `units` '{unit}'.*latitude_longitude.*"):
        cell_measure(dataset, "u", ("y", "x"))
    areas = xr.full_like(dataset.u, 7.0)
    np.testing.assert_array_equal(cell_measure(dataset, "u", ("y", "x"), areas), areas)


@pytest.mark.parametrize("names", [{}, {"y": "row", "x": "column"}])
def test_what_may_be_numbers_of_pixels_is_asked_about(names):
    whole = plain(FLAT, np.arange(30), np.arange(50)) if not names else plain(FLAT)
    whole = whole.rename(names)
    with pytest.raises(InputError, match=r"map of angles.*`assume_units`.*`measure`"):
        cell_measure(whole, "u", whole.u.dims)
    units = dict(zip(whole.u.dims, ("degrees_north", "degrees_east"), strict=True))
    totals(whole, FileLaw("u", whole.u.dims, assume_units=units))


def ocean(**attrs):
    """Sea surface temperature as MOM6 writes it: nominal axes on a tripolar grid."""
    said = {
        name: {"long_name": f"h point nominal {kind}", "units": unit, "axis": axis}
        for name, kind, unit, axis in (
            ("yh", "latitude", "degrees_north", "Y"),
            ("xh", "longitude", "degrees_east", "X"),
        )
    }
    coords = {"yh": ("yh", LAT, said["yh"]), "xh": ("xh", LON, said["xh"])}
    methods = {"cell_methods": "area:mean yh:mean xh:mean time: mean"}
    return xr.Dataset({"tos": (("yh", "xh"), np.ones((36, 72)), methods | attrs)}, coords)


def test_nominal_axes_give_no_areas():
    dataset = ocean(cell_measures="area: areacello")
    dataset.attrs["associated_files"] = "areacello: 19000101.ocean_static.nc"
    rule = r"'yh' is a nominal latitude.*'h point nominal latitude'.*name areacello, which is not"
    with pytest.raises(InputError, match=rule + r".*`measure=19000101.ocean_static.nc:areacello`"):
        cell_measure(dataset, "tos", ("yh", "xh"))
    with pytest.raises(InputError, match="'xh' is a nominal longitude"):
        cell_measure(dataset, "tos", ("xh",))


def test_the_area_that_the_file_names_is_used_on_nominal_axes():
    areas = np.arange(1.0, 36 * 72 + 1).reshape(36, 72)
    dataset = ocean(cell_measures="area: areacello")
    dataset["areacello"] = (("yh", "xh"), areas, {"units": "m2"})
    np.testing.assert_array_equal(cell_measure(dataset, "tos", ("yh", "xh")), areas)
    dataset.tos.attrs.pop("cell_measures")
    np.testing.assert_array_equal(cell_measure(dataset, "tos", ("yh", "xh"), "areacello"), areas)


@pytest.mark.parametrize("names", [("yt_ocean", "xt_ocean"), ("yq", "xq"), ("yT", "xT")])
def test_nominal_axes_are_known_by_their_names(names):
    dataset = ocean().rename(yh=names[0], xh=names[1])
    for name in names:
        dataset[name].attrs["long_name"] = "tcell"
    with pytest.raises(InputError, match=f"'{names[0]}' is a nominal latitude"):
        cell_measure(dataset, "tos", names)


@pytest.mark.parametrize("bent", [0.0, 5.0])
def test_latitudes_of_the_cells_in_the_file_decide(bent):
    dataset = ocean().rename(yh="lat", xh="lon")
    true = LAT[:, None] + bent * np.cos(np.radians(LON)) * (LAT[:, None] > 60)
    true[0, 0] = np.nan
    dataset["geolat"] = (("lat", "lon"), true, NORTH)
    dataset["geolon"] = (("lat", "lon"), np.broadcast_to(LON - 360, (36, 72)), EAST)
    if bent:
        with pytest.raises(InputError, match="'geolat' has other latitudes for the same cells"):
            cell_measure(dataset, "tos", ("lat", "lon"))
    else:
        weights = cell_measure(dataset, "tos", ("lat", "lon"), radius=1.0)
        np.testing.assert_allclose(weights, zone_areas(), rtol=1e-12)


def test_numbers_on_a_tile_of_the_cubed_sphere_are_no_degrees():
    y, x = np.arange(1.0, 49), np.arange(1.0, 49)
    tile = plain(y=y, x=x, y_attrs=NORTH, x_attrs=EAST).rename(y="grid_yt", x="grid_xt")
    with pytest.raises(InputError, match=r"'grid_yt' is a nominal latitude.*of a tile"):
        cell_measure(tile, "u", ("grid_yt", "grid_xt"))
    gaussian = plain(y_attrs=NORTH, x_attrs=EAST).rename(y="grid_yt", x="grid_xt")
    cell_measure(gaussian, "u", ("grid_yt", "grid_xt"))


def test_numbers_of_cells_whose_places_are_missing_are_no_lengths():
    dataset = plain(y=np.arange(3), x=np.arange(4)).rename(y="nj", x="ni")
    dataset.u.attrs["coordinates"] = "TLON TLAT"
    with pytest.raises(InputError, match=r"'nj' only numbers .*TLON TLAT.*`measure`"):
        cell_measure(dataset, "u", ("nj", "ni"))


def folded():
    """Copies as ORCA has them: two columns at the end, a last row that is the one below turned."""
    rng = np.random.default_rng(3)
    inner = {
        "nav_lat": rng.uniform(-80, 89, (7, 10)),
        "nav_lon": rng.uniform(-180, 180, (7, 10)),
        "sst": rng.normal(15, 5, (7, 10)),
        "area": rng.uniform(1, 2, (7, 10)),
    }
    whole = {}
    for name, values in inner.items():
        rows = np.concatenate([values, values[-1:, ::-1]])
        both = np.concatenate([rows, rows[:, :2]], axis=1).astype(np.float32)
        whole[name] = (("y", "x"), both)
    dataset = xr.Dataset(whole).set_coords(["nav_lat", "nav_lon"])
    dataset.nav_lat.attrs, dataset.nav_lon.attrs = NORTH, EAST
    dataset.nav_lon[:, -2:] += 360 * (dataset.nav_lon[:, -2:] < -100)  # the same place
    single = {name: values.astype(np.float32).astype(float) for name, values in inner.items()}
    return dataset, float((single["sst"] * single["area"]).sum()), float(single["area"].sum())


def test_cells_that_come_twice_count_once():
    dataset, total, area = folded()
    weights = cell_measure(dataset, "sst", ("y", "x"), "area")
    assert weights.sum().item() == pytest.approx(area, rel=1e-12)
    assert (weights * dataset.sst).sum().item() == pytest.approx(total, rel=1e-6)
    assert "; 26 cells have the centre of another one: what comes twice" in weights.description
    bare = dataset.reset_coords()
    bare.sst.encoding.clear()
    assert cell_measure(bare, "sst", ("y", "x"), "area").sum() == pytest.approx(area, rel=1e-12)


def test_copies_stay_equal_and_any_one_of_them_gives_the_total():
    dataset, total, _ = folded()
    new = enforce(
        dataset, FileLaw("sst", ("y", "x"), total=total + 1, measure="area"), how="uniform"
    )
    inner = (new.sst * dataset.area)[:7, :10].astype(float).sum().item()
    assert inner == pytest.approx(total + 1, rel=1e-6)
    np.testing.assert_array_equal(new.sst[:, :2], new.sst[:, -2:])


@pytest.mark.parametrize("fill", [np.nan, 0.0])
def test_copies_of_another_value_do_not_count(fill):
    dataset, total, area = folded()
    dataset.sst[:, :2] = fill
    weights = cell_measure(dataset, "sst", ("y", "x"), "area")
    if np.isnan(fill):
        assert (weights * dataset.sst).sum().item() == pytest.approx(total, rel=1e-6)
        assert weights[:, :2].sum() == 0
    else:
        assert weights.sum().item() == pytest.approx(area, rel=1e-12)
        assert not weights[:, :2].values[:, 0] @ weights[:, -2:].values[:, 0]


def test_sums_along_a_row_count_its_copies_once():
    dataset, _, _ = folded()
    weights = cell_measure(dataset, "sst", ("x",), "area")
    np.testing.assert_allclose(weights.sum("x"), dataset.area[:, :10].astype(float).sum("x"))


def test_corners_that_come_twice_count_once():
    north, east = np.meshgrid(LAT[2:-2], LON, indexing="ij")
    corners = np.array([[-2.5, -2.5, 2.5, 2.5], [-2.5, 2.5, 2.5, -2.5]])
    parts = {
        name: np.concatenate([each, each[:, :2]], axis=1)
        for name, each in {
            "lat": north,
            "lon": east,
            "lat_b": north[..., None] + corners[0],
            "lon_b": east[..., None] + corners[1],
        }.items()
    }
    data = {name: (("y", "x", "c")[: each.ndim], each) for name, each in parts.items()}
    dataset = xr.Dataset(data | {"u": (("y", "x"), np.ones((32, 74)))})
    dataset.lat.attrs, dataset.lon.attrs = NORTH | {"bounds": "lat_b"}, EAST | {"bounds": "lon_b"}
    twice = cell_measure(dataset.set_coords(["lat", "lon"]), "u", ("y", "x"))
    once = cell_measure(dataset.isel(x=slice(72)).set_coords(["lat", "lon"]), "u", ("y", "x"))
    assert twice.sum().item() == pytest.approx(once.sum().item(), rel=1e-12)
    assert "64 cells have the centre" in twice.description
    assert "centre of another" not in once.description


def test_a_cyclic_point_counts_once_in_areas_that_are_given():
    lon = np.append(LON, LON[0] + 360)
    dataset = plain(y_attrs=NORTH, x=lon, x_attrs=EAST)
    areas = xr.DataArray(np.pad(zone_areas(), ((0, 0), (0, 1)), "edge"), dims=("y", "x"))
    weights = cell_measure(dataset, "u", ("y", "x"), areas)
    assert weights.sum().item() == pytest.approx(4 * np.pi, rel=1e-12)
    assert "1 cell has the centre of another one" in weights.description
    with pytest.raises(InputError, match="more than the circle"):
        cell_measure(dataset, "u", ("y", "x"))


FILLS = {"zeros on land": 0.0, "minus one": -1.0, "missing": np.nan, "a fill value": 9.96921e36}


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
def test_places_that_are_not_known_are_no_copies(fill):
    dataset, _, _ = folded()
    dataset = dataset.isel(y=slice(7), x=slice(10))
    dataset.nav_lat[2:4, 2:5] = dataset.nav_lon[2:4, 2:5] = fill
    weights = cell_measure(dataset, "sst", ("y", "x"), "area")
    np.testing.assert_array_equal(weights, dataset.area)
    assert "centre" not in weights.description


def test_cells_around_a_pole_and_of_no_area_are_no_copies():
    lat, lon = np.meshgrid([-90.0, 0, 90], [0.0, 0, 120], indexing="ij")
    coords = {"lat": (("y", "x"), lat, NORTH), "lon": (("y", "x"), lon, EAST)}
    dataset = xr.Dataset({"u": (("y", "x"), np.ones((3, 3)))}, coords)
    areas = xr.DataArray([[1.0, 1, 1], [0, 1, 1], [1, 1, 1]], dims=("y", "x"))
    np.testing.assert_array_equal(cell_measure(dataset, "u", ("y", "x"), areas), areas)


def test_cells_a_few_metres_apart_are_no_copies():
    dataset, _, _ = folded()
    dataset = dataset.isel(y=slice(7), x=slice(10))
    dataset.nav_lat[6] = np.float32(65.93715)
    dataset.nav_lon[6] = np.float32(-107) + np.arange(10, dtype=np.float32) * np.float32(4.6e-5)
    weights = cell_measure(dataset, "sst", ("y", "x"), "area")  # a row that shrinks to a point
    np.testing.assert_array_equal(weights, dataset.area)


@pytest.mark.parametrize("metres", [0.5, 0.4, 0.01])
def test_cells_closer_than_their_coordinates_tell_are_no_copies(metres):
    lat, lon = np.meshgrid(50 + np.arange(20) * metres / 111e3, np.arange(30) * metres / 7e4)
    for kind in (np.float64, np.float32):
        coords = {
            "lat": (("y", "x"), lat.astype(kind), NORTH),
            "lon": (("y", "x"), lon.astype(kind), EAST),
        }
        dataset = xr.Dataset({"u": (("y", "x"), np.ones(lat.shape))}, coords)
        ones = xr.ones_like(dataset.u)
        np.testing.assert_array_equal(cell_measure(dataset, "u", ("y", "x"), ones), ones)


def test_plain_sums_count_every_cell():
    dataset, _, _ = folded()
    assert totals(dataset, FileLaw("sst", ("y", "x"), measure=1)).item() == pytest.approx(
        dataset.sst.astype(float).sum().item(), rel=1e-6
    )


def nodes(count):
    """Gaussian latitudes and weights by the eigenvalues of NumPy."""
    x, weights = np.polynomial.legendre.leggauss(count)
    return np.degrees(np.arcsin(x)), weights


@pytest.mark.parametrize("count", [2, 3, 32, 64, 94, 320])
@pytest.mark.parametrize("turn", [1, -1])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_gaussian_latitudes_are_weighed_exactly(count, turn, kind):
    lat, weights = nodes(count)
    dataset = plain(y=lat[::turn].astype(kind), y_attrs=NORTH, x_attrs=EAST)
    found = cell_measure(dataset, "u", ("y", "x"), radius=1.0)
    np.testing.assert_allclose(found.sum("x"), 2 * np.pi * weights[::turn], rtol=1e-9)
    said = f"the centres of y ({count} of {count} Gaussian latitudes) and x, on a sphere"
    assert said in found.description


def test_the_sum_over_gaussian_latitudes_is_that_of_a_polynomial():
    lat, _ = nodes(32)
    dataset = plain(y=np.round(lat, 3), y_attrs=NORTH, x_attrs=EAST)  # as GRIB stores them
    dataset["u"] = np.sin(np.radians(xr.DataArray(lat, dims="y"))) ** 4 * dataset.u
    total = totals(dataset, FileLaw("u", ("y", "x"), radius=1.0)).item()
    assert total == pytest.approx(4 * np.pi / 5, rel=1e-12)


@pytest.mark.parametrize("part", [slice(0, 20), slice(20, 45), slice(50, 64)])
def test_a_region_of_gaussian_latitudes_is_weighed_exactly(part):
    lat, weights = nodes(64)
    dataset = plain(y=lat[part].astype(np.float32), y_attrs=NORTH, x_attrs=EAST)
    found = cell_measure(dataset, "u", ("y", "x"), radius=1.0)
    np.testing.assert_allclose(found.sum("x"), 2 * np.pi * weights[part], rtol=1e-9)
    assert f"{len(lat[part])} of 64 Gaussian latitudes" in found.description


REGULAR = {
    "centres": np.arange(-89, 90, 2.0),
    "poles": np.linspace(-90, 90, 91),
    "a region": np.arange(20, 60, 1.6),
    "around the equator": np.arange(-31.2, 32, 1.6),
    "two": np.array([-45.0, 45]),
    "a row is missing": np.delete(nodes(64)[0], 30),
}


@pytest.mark.parametrize("lat", REGULAR.values(), ids=REGULAR)
def test_other_latitudes_are_weighed_half_way(lat):
    dataset = plain(y=lat, y_attrs=NORTH, x_attrs=EAST)
    assert "Gaussian" not in cell_measure(dataset, "u", ("y", "x")).description


def test_bounds_of_gaussian_latitudes_are_used():
    lat, _ = nodes(8)
    edges = np.concatenate([[-90], (lat[1:] + lat[:-1]) / 2, [90]])
    dataset = plain(y=lat, y_attrs=NORTH | {"bounds": "y_b"}, x_attrs=EAST)
    dataset["y_b"] = ("y", "two"), np.stack([edges[:-1], edges[1:]], axis=-1)
    found = cell_measure(dataset, "u", ("y", "x"), radius=1.0)
    np.testing.assert_allclose(found, zone_areas(edges), rtol=1e-12)


def icosahedron():
    """Nodes in degrees and faces of an icosahedron, from its golden rectangles."""
    g = (1 + 5**0.5) / 2
    x = np.array(
        [np.roll((0, a, b * g), turn) for turn in range(3) for a in (-1, 1) for b in (-1, 1)]
    )
    near = np.linalg.norm(x[:, None] - x, axis=-1) < 2.1
    trios = [
        (i, j, k)
        for i in range(12)
        for j in range(i)
        for k in range(j)
        if near[i, j] and near[j, k] and near[i, k]
    ]
    lat = np.degrees(np.arcsin(x[:, 2] / np.linalg.norm(x, axis=-1)))
    return lat, np.degrees(np.arctan2(x[:, 1], x[:, 0])), np.array(trios)


def mesh(faces, y, x, y_attrs=NORTH, x_attrs=EAST, **attrs):
    """A field `u` on the faces of a mesh as UGRID describes it."""
    said = {
        "cf_role": "mesh_topology",
        "topology_dimension": 2,
        "node_coordinates": "node_x node_y",
        "face_node_connectivity": "faces",
    }
    return xr.Dataset(
        {
            "u": ("face", np.ones(len(faces)), {"mesh": "mesh", "location": "face"}),
            "mesh": ((), 0, said),
            "faces": (("face", "corner"), faces, {"start_index": 0} | attrs),
            "node_x": ("node", x, x_attrs),
            "node_y": ("node", y, y_attrs),
        }
    )


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("turned", [False, True])
def test_the_faces_of_an_icosahedron_share_the_sphere(start, turned):
    lat, lon, faces = icosahedron()
    dataset = mesh(faces + start, lat, lon, start_index=start)
    dataset["faces"] = dataset.faces.transpose() if turned else dataset.faces
    areas = cell_measure(dataset, "u", ("face",), radius=1.0)
    np.testing.assert_allclose(areas, np.full(20, np.pi / 5), rtol=1e-12)
    said = "areas of the faces of mesh from node_x and node_y, joined by great circles on a sphere"
    assert said in areas.description
    assert areas.units == "m2"


def angles_of_triangle(lat, lon):
    """The area of a triangle by the excess of its angles, each by the tangents at a corner."""
    p = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], -1)
    total = -np.pi
    for i in range(3):
        a, b, c = p[i], p[i - 1], p[i - 2]
        s, t = (v - a * (a @ v) for v in (b, c))
        total += np.arccos(s @ t / np.linalg.norm(s) / np.linalg.norm(t))
    return total


@pytest.mark.parametrize("unit", ["degrees", "radians"])
def test_triangles_have_the_area_of_their_excess(unit):
    rng = np.random.default_rng(5)
    lat, lon = rng.uniform(-1.5, 1.5, 12), rng.uniform(-3, 3, 12)
    faces = np.arange(12).reshape(4, 3)
    want = [angles_of_triangle(lat[f], lon[f]) for f in faces]
    names = {"standard_name": "latitude"}, {"standard_name": "longitude"}
    scale = 180 / np.pi if unit == "degrees" else 1
    y_attrs, x_attrs = ({"units": unit, **name} for name in names)
    dataset = mesh(faces, lat * scale, lon * scale, y_attrs, x_attrs)
    np.testing.assert_allclose(cell_measure(dataset, "u", ("face",), radius=1.0), want, rtol=1e-9)


def test_faces_of_three_and_four_corners_are_read_from_a_file(tmp_path):
    x, y = np.array([0.0, 2, 2, 0, 3]), np.array([0.0, 0, 2, 2, 1])
    metres = {"units": "m"}
    dataset = mesh(np.array([[1, 2, 3, 4], [2, 5, 3, -999]]), y, x, metres, metres, start_index=1)
    dataset.faces.encoding = {"_FillValue": -999, "dtype": "int32"}
    dataset.to_netcdf(tmp_path / "mesh.nc")
    report = check_file(tmp_path / "mesh.nc", FileLaw("u", "face", total=5.0))
    assert report.closes()
    said = "areas of the faces of mesh from node_x and node_y, in a plane (no grid mapping)"
    assert said in str(report)


def test_areas_of_faces_are_multiplied_with_layers():
    lat, lon, faces = icosahedron()
    dataset = mesh(faces, lat, lon).assign_coords(depth=[1.0, 3.0])
    dataset.depth.attrs = {"units": "m", "standard_name": "depth"}
    dataset["u"] = dataset.u.expand_dims(depth=2).assign_attrs(dataset.u.attrs)
    both = cell_measure(dataset, "u", ("depth", "face"), radius=1.0)
    np.testing.assert_allclose(both, np.full((2, 20), 2 * np.pi / 5), rtol=1e-12)
    np.testing.assert_array_equal(cell_measure(dataset, "u", ("depth",)), [2, 2])


def broken(what):
    lat, lon, faces = icosahedron()
    dataset = mesh(faces, lat, lon)
    if what == "node":
        dataset.u.attrs["location"] = "node"
    if what == "start":
        dataset = mesh(faces + 1, lat, lon)
    if what == "start missing":
        dataset = mesh(faces + 1, np.append(lat, 0), np.append(lon, 0))
        del dataset.faces.attrs["start_index"]
    if what == "no nodes":
        dataset = dataset.drop_vars("node_y")
    if what == "no faces":
        del dataset.mesh.attrs["face_node_connectivity"]
    if what == "twice":
        dataset = mesh(np.concatenate([faces, faces]), lat, lon)
    if what == "units":
        dataset.node_x.attrs = {}
    return dataset


BROKEN = {
    "node": "`location` is 'node', and only faces",
    "start": r"nodes 1 to 12, and there are 12 of them, counted from 0.*`start_index`",
    "start missing": r"nodes 1 to 12, and there are 13.*`start_index`",
    "no nodes": "`node_coordinates` 'node_y' is not there",
    "no faces": "`face_node_connectivity` is missing",
    "twice": "cover 2 times the globe",
    "units": "nodes must lie in degrees or in lengths, got node_x in 'no units'",
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_mesh_that_does_not_tell_its_faces_is_refused(what):
    with pytest.raises(InputError, match=rf"'mesh' of 'u' \(UGRID\).*{BROKEN[what]}.*`measure`"):
        cell_measure(broken(what), "u", ("face",))


def test_faces_in_the_plane_of_a_map_have_no_areas_and_those_of_no_map_have():
    metres = {"units": "m", "standard_name": "projection_x_coordinate"}
    y = {"units": "m", "standard_name": "projection_y_coordinate"}
    dataset = mesh(np.array([[0, 1, 2]]), [0.0, 0, 1], [0.0, 2, 0], y, metres)
    with pytest.raises(InputError, match=r"'node_x' lies in the plane.*no grid mapping tells"):
        cell_measure(dataset, "u", ("face",))
    on_map = dataset.assign(crs=((), 0, {"grid_mapping_name": "albers_conical_equal_area"}))
    on_map["u"] = dataset.u.assign_attrs(grid_mapping="crs")
    with pytest.raises(InputError, match=r"'node_x' lies in the plane.*albers"):
        cell_measure(on_map, "u", ("face",))
    for name in ("node_x", "node_y"):
        del dataset[name].attrs["standard_name"]
    assert cell_measure(dataset, "u", ("face",)).values == [1.0]
