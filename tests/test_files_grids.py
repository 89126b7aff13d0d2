"""Grids as files describe them: their globe, their maps, the part of a cell that counts."""

import numpy as np
import pytest
import xarray as xr

from probconserv.cli.files import LawOptions
from probconserv.errors import InputError
from probconserv.files import FileLaw, cell_measure, check, enforce, totals

LAT, LON = np.arange(-85.0, 90, 10), np.arange(5.0, 360, 10)
OVER = ("lat", "lon")


def globe(**mapping):
    """A field `u` of ones on 10 degrees; `mapping` are the attributes of its grid mapping."""
    coords = {"lat": ("lat", LAT), "lon": ("lon", LON)}
    dataset = xr.Dataset({"u": (OVER, np.ones((18, 36)), {"units": "K"})}, coords)
    if mapping:
        dataset["crs"] = (), 0, mapping
        dataset.u.attrs["grid_mapping"] = "crs"
    return dataset


def radius_of(dataset, **options):
    return np.sqrt(cell_measure(dataset, "u", OVER, **options).sum().item() / (4 * np.pi))


def test_the_globe_is_as_large_as_the_grid_mapping_says():
    for key in ("earth_radius", "semi_major_axis"):
        dataset = globe(**{key: 6371000.0, "inverse_flattening": 0.0})
        assert radius_of(dataset) == pytest.approx(6371000, rel=1e-12)
    assert (
        "on a sphere of 6371 km (grid mapping crs)" in cell_measure(dataset, "u", OVER).description
    )
    assert radius_of(globe(grid_mapping_name="latitude_longitude")) == pytest.approx(6371229)


def test_the_radius_given_goes_before_that_of_the_file():
    dataset = globe(earth_radius=6371000.0)
    assert radius_of(dataset, radius=3389500.0) == pytest.approx(3389500, rel=1e-12)
    files = dataset.expand_dims(time=1).assign(crs=dataset.crs.expand_dims(time=1))
    files.u.attrs["grid_mapping"] = "crs: lat lon"
    assert "6371 km (grid mapping crs)" in cell_measure(files, "u", OVER).description
    report = check(dataset, FileLaw("u", OVER, total=1.0, radius=3389500))
    assert "on a sphere of 3389.5 km (as given)" in str(report)
    assert "on a sphere of 6371.229 km" in str(check(globe(), FileLaw("u", OVER, total=1.0)))


def ellipsoid_area(a, b):
    """By rings around the axis, in the parametric latitude."""
    t, weights = np.polynomial.legendre.leggauss(50)
    t, weights = t * np.pi / 2, weights * np.pi / 2
    return 2 * np.pi * (weights * a * np.cos(t) * np.hypot(a * np.sin(t), b * np.cos(t))).sum()


@pytest.mark.parametrize("second", ["semi_minor_axis", "inverse_flattening"])
def test_an_ellipsoid_becomes_the_sphere_of_its_area(second):
    a, f = 6378137.0, 298.257223563
    value = a - a / f if second == "semi_minor_axis" else f
    dataset = globe(semi_major_axis=a, **{second: value})
    weights = cell_measure(dataset, "u", OVER)
    assert weights.sum().item() == pytest.approx(ellipsoid_area(a, a - a / f), rel=1e-10)
    assert "6371.007181 km (the area of the ellipsoid of crs)" in weights.description


@pytest.mark.parametrize("wrong", [6371.0, "round", -1.0, np.nan])
def test_a_globe_has_a_size_in_metres(wrong):
    with pytest.raises(InputError, match=r"grid mapping 'crs' must give .* in metres.*`radius`"):
        cell_measure(globe(earth_radius=wrong), "u", OVER)


def with_land(units="%", scale=100.0, **attrs):
    land = np.random.default_rng(0).uniform(size=(18, 36)) * (LAT > -60)[:, None]
    dataset = globe().assign(sftlf=(OVER, land * scale, {"units": units, **attrs}))
    return dataset, land * cell_measure(globe(), "u", OVER).values


@pytest.mark.parametrize(("units", "scale"), [("%", 100.0), ("1", 1.0)])
def test_a_fraction_is_the_part_of_each_cell_that_counts(units, scale):
    dataset, want = with_land(units, scale)
    weights = cell_measure(dataset, "u", OVER, fraction="sftlf")
    np.testing.assert_allclose(weights, want, rtol=1e-12)
    assert weights.units == "m2"
    assert "times the fraction sftlf" in weights.description
    total = totals(dataset, FileLaw("u", OVER, fraction="sftlf"))
    assert total.item() == pytest.approx(want.sum(), rel=1e-12)


def test_a_fraction_goes_with_a_measure_given():
    dataset, want = with_land()
    areas = cell_measure(globe(), "u", OVER)
    weights = cell_measure(dataset, "u", OVER, areas, fraction=dataset.sftlf)
    np.testing.assert_allclose(weights, want, rtol=1e-12)


@pytest.mark.parametrize(("units", "scale"), [("%", 101.0), ("1", 100.0), ("1", -1.0)])
def test_a_fraction_is_between_nothing_and_all(units, scale):
    dataset, _ = with_land(units, scale)
    dataset.sftlf[:] = scale
    with pytest.raises(InputError, match=r"`fraction` must lie between 0 and 1, or 0 and 100"):
        cell_measure(dataset, "u", OVER, fraction="sftlf")


METHODS = [
    "area: mean where land",
    "time: mean area: mean where land (comment: tiles)",
    "area: time: mean where land",
    "lat: lon: mean where land",
    "area: mean where crops over land",
]


@pytest.mark.parametrize("methods", METHODS)
def test_means_over_land_are_weighed_by_the_land_in_the_file(methods):
    dataset, want = with_land(standard_name="land_area_fraction")
    dataset.u.attrs["cell_methods"] = methods
    weights = cell_measure(dataset, "u", OVER)
    np.testing.assert_allclose(weights, want, rtol=1e-12)
    assert "the fraction sftlf" in weights.description


def test_means_over_land_need_a_fraction_or_a_measure():
    dataset = globe()
    dataset.u.attrs["cell_methods"] = "area: mean where land"
    with pytest.raises(InputError, match=r"over the land .*as `fraction` .* as `measure`"):
        cell_measure(dataset, "u", OVER)
    whole = cell_measure(dataset, "u", OVER, fraction=1)
    np.testing.assert_allclose(whole, cell_measure(globe(), "u", OVER), rtol=1e-15)
    given = cell_measure(dataset, "u", OVER, whole)
    assert "taken for the areas of land" in given.description


def test_a_measure_of_the_file_that_is_of_land_needs_no_fraction():
    dataset = globe().assign(areas=cell_measure(globe(), "u", OVER))
    dataset.u.attrs |= {"cell_methods": "area: mean where land", "cell_measures": "area: areas"}
    with pytest.raises(InputError, match="`fraction`"):
        cell_measure(dataset, "u", OVER)
    dataset.areas.attrs["cell_methods"] = "area: sum where land"
    xr.testing.assert_equal(cell_measure(dataset, "u", OVER), dataset.areas)


@pytest.mark.parametrize("methods", ["area: mean where land over all_area_types", "area: mean"])
def test_means_over_whole_cells_need_no_fraction(methods):
    dataset, _ = with_land(standard_name="land_area_fraction")
    dataset.u.attrs["cell_methods"] = methods
    assert "fraction" not in cell_measure(dataset, "u", OVER).description


def test_sums_over_levels_or_time_need_no_fraction():
    time = np.array(["2000-01-01", "2000-01-02"], "datetime64[ns]")
    dataset = globe().expand_dims(time=time).copy()
    dataset.u.attrs["cell_methods"] = "area: mean where land"
    np.testing.assert_array_equal(cell_measure(dataset, "u", ("time",)), [86400, 86400])


def plane(name=None, **attrs):
    coords = {
        axis: (axis, [0.0, 2, 4], {"units": "m", "standard_name": f"projection_{axis}_coordinate"})
        for axis in "xy"
    }
    dataset = xr.Dataset({"u": (("y", "x"), np.ones((3, 3)))}, coords)
    if name:
        dataset["map"] = (), 0, {"grid_mapping_name": name}
        dataset.u.attrs["grid_mapping"] = attrs.get("grid_mapping", "map")
    return dataset


@pytest.mark.parametrize("name", ["polar_stereographic", "lambert_azimuthal_equal_area", None])
def test_the_plane_of_other_maps_is_no_area(name):
    dataset = plane(name)
    with pytest.raises(InputError, match=r"plane of a projection .*`measure`.*MAPFAC_M"):
        cell_measure(dataset, "u", ("y", "x"))
    areas = xr.full_like(dataset.u, 7.0)
    np.testing.assert_array_equal(cell_measure(dataset, "u", ("y", "x"), areas), areas)


def test_a_map_is_seen_by_its_grid_mapping_alone():
    dataset = plane("mercator")
    for axis in "xy":
        del dataset[axis].attrs["standard_name"]
    with pytest.raises(InputError, match=r"plane of a projection \(mercator\)"):
        cell_measure(dataset, "u", ("y", "x"))


def test_a_projection_in_degrees_is_a_rotated_pole():
    dataset = globe(grid_mapping_name="rotated_latitude_longitude").rename(lat="rlat", lon="rlon")
    for name, axis in (("rlat", "y"), ("rlon", "x")):
        said = {"standard_name": f"projection_{axis}_coordinate", "axis": axis.upper()}
        dataset[name].attrs = said | {"units": "degrees"}
    areas = cell_measure(dataset, "u", ("rlat", "rlon"), radius=1.0)
    assert areas.sum().item() == pytest.approx(4 * np.pi, rel=1e-12)


def test_the_mesh_of_ugrid_without_areas_is_refused():
    coords = {"face": np.arange(4), "lat": ("face", LAT[:4]), "lon": ("face", LON[:4])}
    attrs = {"mesh": "mesh2d", "location": "face"}
    dataset = xr.Dataset({"u": ("face", np.ones(4), attrs)}, coords)
    for known in (dataset, dataset.drop_vars(["lat", "lon"]), dataset.drop_vars("face")):
        with pytest.raises(InputError, match=r"'mesh2d' .*UGRID.*`measure`.*areaCell"):
            cell_measure(known, "u", ("face",))
    areas = xr.full_like(dataset.u, 7.0)
    np.testing.assert_array_equal(cell_measure(dataset, "u", ("face",), areas), areas)


def healpix(cells, **attrs):
    coords = {"lat": ("cell", np.linspace(-90, 90, cells)), "lon": ("cell", np.zeros(cells))}
    dataset = xr.Dataset({"u": ("cell", np.ones(cells))}, coords)
    dataset["crs"] = (), 0, {"grid_mapping_name": "healpix", **attrs}
    dataset.u.attrs["grid_mapping"] = "crs"
    return dataset


@pytest.mark.parametrize("attrs", [{}, {"refinement_level": 2}])
def test_healpix_cells_share_the_sphere(attrs):
    areas = cell_measure(healpix(192, **attrs), "u", ("cell",), radius=1.0)
    np.testing.assert_allclose(areas, np.full(192, 4 * np.pi / 192), rtol=1e-15)
    assert "192 HEALPix cells" in areas.description


def test_some_healpix_cells_have_the_same_area_where_their_number_is_known():
    some = cell_measure(healpix(100, refinement_level=2), "u", ("cell",), radius=1.0)
    np.testing.assert_allclose(some, np.full(100, 4 * np.pi / 192), rtol=1e-15)
    for cells, attrs in ((100, {}), (200, {"refinement_level": 2})):
        with pytest.raises(InputError, match=r"HEALPix.* not some of 12 nside.*`measure`"):
            cell_measure(healpix(cells, **attrs), "u", ("cell",))


COUNTS = {
    "member": {},
    "realization": {"units": "1"},
    "number": {"units": "1", "standard_name": "realization"},
    "lev": {"standard_name": "model_level_number"},
}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("values", [[0, 1, 3, 4], [0.0, 1, 3, 4]])
def test_what_only_counts_weighs_the_same_where_a_number_is_missing(name, values):
    dataset = xr.Dataset({"u": (name, np.ones(4))}, {name: (name, values, COUNTS[name])})
    weights = cell_measure(dataset, "u", (name,))
    np.testing.assert_array_equal(weights, np.ones(4))
    assert weights.description == f"1 for every {name}, which is a number"


def test_whole_numbers_without_a_unit_that_leave_some_out_are_asked_about():
    dataset = xr.Dataset({"u": ("x", np.ones(4))}, {"x": [0, 1, 3, 4]})
    with pytest.raises(InputError, match=r"'x' holds whole numbers without a unit.*`units`"):
        cell_measure(dataset, "u", ("x",))
    meant = dataset.assign_coords(x=("x", [0, 1, 3, 4], {"units": "m"}))
    np.testing.assert_array_equal(cell_measure(meant, "u", ("x",)), [1, 1.5, 1.5, 1])
    even = dataset.assign_coords(x=[0, 10, 20, 30])
    np.testing.assert_array_equal(cell_measure(even, "u", ("x",)), np.full(4, 10))


def test_areas_missing_under_values_are_counted():
    dataset = globe().assign(areacella=cell_measure(globe(), "u", OVER))
    dataset.u.attrs["cell_measures"] = "area: areacella"
    dataset.areacella[:2] = np.nan
    dataset.u[0] = np.nan
    text = "the area areacella (missing in 36 cells with values of u)"
    assert cell_measure(dataset, "u", OVER).description == text
    dataset.u[1] = np.nan
    assert cell_measure(dataset, "u", OVER).description == "the area areacella"


def test_the_command_line_takes_fraction_and_radius():
    (law,) = LawOptions(mean="u", over=["lat", "lon"], fraction="sftlf", radius=1.0).read()
    assert (law.fraction, law.radius) == ("sftlf", 1.0)
    (law,) = LawOptions(mean="u", over=["lat", "lon"], fraction="1").read()
    assert (law.fraction, law.radius) == (1.0, None)


def test_an_update_uses_fraction_and_radius():
    dataset, want = with_land()
    law = FileLaw("u", OVER, total=2.0, fraction="sftlf", radius=1.0)
    new = enforce(dataset, law, std=1.0)
    weights = want / 6371229.0**2
    assert (new.u.values * weights).sum() == pytest.approx(2.0, rel=1e-12)
