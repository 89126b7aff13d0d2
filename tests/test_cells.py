"""The weight of every cell: given, named by the file, or lengths along any coordinate."""

import cf_units
import cftime
import numpy as np
import pytest
import xarray as xr

from probconserv.errors import InputError
from probconserv.files._weights import cell_measure

LAT, LON = np.array([-60.0, 0, 60]), np.arange(0.0, 360, 90)


@pytest.fixture
def dataset():
    rng = np.random.default_rng(0)
    dims = ("time", "lev", "lat", "lon")
    coords = {
        "time": np.array(["2001-01-01", "2001-01-03"], "datetime64[ns]"),
        "lev": ("lev", np.array([1000.0, 700, 600, 500, 400]), {"units": "hPa"}),
        "lat": LAT,
        "lon": LON,
    }
    return xr.Dataset({"u": (dims, rng.normal(size=(2, 5, 3, 4)))}, coords)


@pytest.fixture
def area(dataset):
    values = np.arange(12.0).reshape(3, 4)
    values[1, 1] = np.nan
    coords = {name: dataset[name] for name in ("lat", "lon")}
    return xr.DataArray(values, coords, ("lat", "lon"), "area", {"units": "m2"})


SPACE = ("lev", "lat", "lon")


def test_a_number_is_the_weight_of_every_cell(dataset):
    plain, double = (cell_measure(dataset, "u", SPACE, given) for given in (1, 2.5))
    assert plain.dtype == np.float64
    assert plain.units == "1"
    assert plain.description == "plain sums: every cell has the weight 1"
    total = (dataset.u * double).sum(SPACE)
    xr.testing.assert_allclose(total, 2.5 * dataset.u.sum(SPACE))
    assert "units" not in double.attrs
    assert double.description == "2.5 for every cell"


def test_a_given_area_is_used_and_missing_values_do_not_count(dataset, area):
    weights = cell_measure(dataset, "u", ("lat", "lon"), area)
    xr.testing.assert_equal(weights, area.fillna(0))
    assert weights.units == "m2"
    assert weights.description == "the array area given (missing in 1 cells with values of u)"
    named = cell_measure(dataset.assign(area=area), "u", ("lat", "lon"), "area")
    xr.testing.assert_equal(named, weights)
    assert named.description == "the variable area (missing in 1 cells with values of u)"


def test_an_area_is_multiplied_with_the_thickness_that_it_lacks(dataset, area):
    weights = cell_measure(dataset, "u", SPACE, area.transpose())
    thickness = xr.DataArray([300.0, 200, 100, 100, 100], {"lev": dataset.lev})
    xr.testing.assert_allclose(weights, (thickness * area.fillna(0)).transpose(*SPACE))
    assert weights.dims == SPACE
    assert weights.units == "m2 hPa"
    assert weights.description == (
        "the array area given (missing in 1 cells with values of u); times lengths from the "
        "centres of lev (dp, not mass)"
    )


def test_weights_may_change_in_time(dataset):
    volume = abs(dataset.u.rename("volume"))
    weights = cell_measure(dataset, "u", SPACE, volume)
    xr.testing.assert_equal(weights, volume)
    assert "units" not in weights.attrs


def test_areas_and_lengths_are_multiplied(dataset):
    whole = cell_measure(dataset, "u", SPACE)
    flat, tall = (cell_measure(dataset, "u", over) for over in (SPACE[1:], SPACE[:1]))
    xr.testing.assert_allclose(whole, (flat * tall).transpose(*SPACE))
    assert whole.units == "hPa m2"
    assert whole.description == (
        "cell areas from the centres of lat and lon, on a sphere of 6371.229 km; "
        "times lengths from the centres of lev (dp, not mass)"
    )


def test_the_input_is_never_changed(dataset, area):
    dataset = dataset.assign(area=area)
    before = dataset.copy(deep=True)
    for given in (None, "area", area, 1):
        cell_measure(dataset, "u", ("time", *SPACE), given)
    xr.testing.assert_identical(dataset, before)


@pytest.mark.parametrize("place", ["attrs", "encoding"])
def test_cell_measures_name_the_volume_or_the_area(dataset, area, place):
    volume = abs(dataset.u).rename(None)
    dataset = dataset.assign(areacella=area, volcello=volume)
    getattr(dataset.u, place)["cell_measures"] = "area: areacella volume: volcello"
    whole = cell_measure(dataset, "u", SPACE)
    xr.testing.assert_equal(whole, volume.rename("cell_measure"))
    assert whole.description == "the volume volcello"
    flat = cell_measure(dataset, "u", ("lat", "lon"))
    xr.testing.assert_equal(flat, area.fillna(0))
    assert flat.description == "the area areacella (missing in 1 cells with values of u)"


def test_cell_measures_that_are_elsewhere_are_remarked_on(dataset, area):
    dataset = dataset.assign(areacella=area)
    dataset.u.attrs["cell_measures"] = "area: areacella volume: volcello"
    weights = cell_measure(dataset, "u", SPACE)
    assert weights.description == (
        "the area areacella (missing in 1 cells with values of u); times lengths from the "
        "centres of lev (dp, not mass); cell_measures names volume: volcello, which is not in the "
        "dataset"
    )


@pytest.mark.parametrize("turn", [1, -1])
def test_lengths_are_positive_in_either_direction(turn):
    x = np.array([0.0, 1, 3, 4])[::turn]
    dataset = xr.Dataset({"u": ("x", np.ones(4))}, {"x": ("x", x, {"units": "m"})})
    weights = cell_measure(dataset, "u", ("x",))
    np.testing.assert_array_equal(weights, [1, 1.5, 1.5, 1])
    assert weights.units == "m"


def test_lengths_come_from_bounds_where_there_are_some():
    depth = "depth", [5.0, 20.0], {"units": "m", "bounds": "depth_bnds"}
    bounds = ("bnds", "depth"), [[0.0, 30.0], [10.0, 10.0]]
    dataset = xr.Dataset({"u": ("depth", [1.0, 2]), "depth_bnds": bounds}, {"depth": depth})
    weights = cell_measure(dataset, "u", ("depth",))
    np.testing.assert_array_equal(weights, [10, 20])
    assert weights.description == "lengths from the bounds of depth"
    weights = cell_measure(dataset.drop_vars("depth_bnds"), "u", ("depth",))
    assert weights.description == (
        "lengths from the centres of depth (its bounds depth_bnds are not in the dataset), cut at 0"
    )


def test_a_plane_of_x_and_y_has_areas_in_its_units():
    coords = {"x": ("x", [0, 2, 4], {"units": "km"}), "y": ("y", [0.0, 3.0], {"units": "km"})}
    dataset = xr.Dataset({"u": (("x", "y"), np.ones((3, 2)))}, coords)
    weights = cell_measure(dataset, "u", ("y", "x"))
    np.testing.assert_array_equal(weights, np.full((3, 2), 6.0))
    assert weights.units == "km2"


def test_time_is_measured_in_seconds(dataset):
    weights = cell_measure(dataset, "u", ("time",))
    np.testing.assert_array_equal(weights, [172800, 172800])
    assert weights.units == "s"
    dates = [cftime.Datetime360Day(2000, month, 1) for month in (1, 2, 4)]
    edges = [cftime.Datetime360Day(2000, month, 1) for month in (1, 2, 3, 5)]
    other = xr.Dataset({"u": ("time", np.ones(3))}, {"time": ("time", dates, {"bounds": "edges"})})
    month = 30 * 86400
    np.testing.assert_array_equal(
        cell_measure(other, "u", ("time",)), [month, 1.5 * month, 2 * month]
    )
    other["edges"] = ("time", "bnds"), np.array([edges[:-1], edges[1:]]).T
    got = cell_measure(other, "u", ("time",)) / month
    np.testing.assert_array_equal(got, [1, 1, 2])


@pytest.mark.parametrize("attrs", [{"positive": "down"}, {"standard_name": "depth"}])
def test_only_lengths_end_at_zero_and_neither_dates_nor_angles_do(dataset, attrs):
    for dim, size in (("time", 2 * 172800), ("lon", 2 * np.pi)):
        dataset[dim].attrs |= attrs | ({"units": "degrees_east"} if dim == "lon" else {})
        weights = cell_measure(dataset, "u", (dim,), radius=1.0)
        assert float(weights.sum()) == pytest.approx(size)
        assert "cut" not in weights.description


def test_times_that_were_not_decoded_count_in_seconds_as_dates_do():
    attrs = {"units": "days since 2000-01-01"}
    dataset = xr.Dataset({"u": ("time", [1.0, 2])}, {"time": ("time", [0, 3], attrs)})
    weights = cell_measure(dataset, "u", ("time",))
    assert weights.units == "s"
    assert weights.values.tolist() == [3 * 86400.0] * 2


def test_a_dimension_without_coordinate_takes_the_only_one_along_it():
    coords = {"height": ("level", [0.0, 10, 20], {"units": "m"})}
    dataset = xr.Dataset({"u": ("level", np.ones(3))}, coords)
    np.testing.assert_array_equal(cell_measure(dataset, "u", ("level",)), [5, 10, 10])


def test_numbers_of_rows_yield_to_the_latitudes_along_them():
    coords = {"y": [0, 1, 2], "lat": ("y", LAT)}
    dataset = xr.Dataset({"u": ("y", np.ones(3))}, coords)
    np.testing.assert_allclose(cell_measure(dataset, "u", ("y",), radius=1.0).sum(), 2)


def test_a_path_is_as_long_as_its_own_coordinate_says():
    coords = {"x": ("x", [0.0, 5, 10], {"units": "m"}), "lat": ("x", LAT), "lon": ("x", LON[:3])}
    dataset = xr.Dataset({"u": ("x", np.ones(3))}, coords)
    np.testing.assert_array_equal(cell_measure(dataset, "u", ("x",)), [5, 5, 5])


def test_weights_too_large_for_memory_stay_lazy_on_the_chunks_of_the_data(
    dataset, area, monkeypatch
):
    want = cell_measure(dataset, "u", SPACE, area)
    monkeypatch.setattr("probconserv.files._weights.SMALL", 90)
    lazy = cell_measure(dataset.chunk(lev=2, lat=2), "u", SPACE, area)
    assert lazy.chunks == ((2, 2, 1), (2, 1), (4,))
    xr.testing.assert_identical(lazy.compute(), want)
    late = cell_measure(dataset.chunk(lat=2), "u", SPACE[1:], (-area).chunk(lat=2))
    with pytest.raises(InputError, match="must be finite and not negative"):
        late.compute()


@pytest.mark.parametrize(
    ("units", "want"),
    [(("m2", "m"), "m3"), (("kg m-2", "m^2"), "kg"), (("1", "1"), "1"), (("1", "s"), "s"),
     (("m/s", "s"), "m"), (("W per m2", "m"), "W m-1")],
)  # fmt: skip
def test_units_of_a_product_are_in_lowest_terms(units, want):
    coords = {name: (name, [0.0, 1], {"units": u}) for name, u in zip("xy", units, strict=True)}
    dataset = xr.Dataset({"u": (("x", "y"), np.ones((2, 2)))}, coords)
    assert cell_measure(dataset, "u", ("x", "y")).units == want


def test_units_agree_with_udunits(dataset, area):
    unit = cf_units.Unit(cell_measure(dataset, "u", SPACE, area).units)
    assert unit.is_convertible("m2 Pa")
    assert unit.convert(1.0, "m2 Pa") == 100


@pytest.mark.parametrize(("unit", "other", "by"), [("hPa", "Pa", 100), ("degree", "rad", 1)])
def test_bounds_in_another_unit_than_their_coordinate_are_converted(unit, other, by):
    ends = np.array([[0.0, 10.0], [10.0, 30.0]])
    bounds = ("x", "n"), by * (ends if by > 1 else np.radians(ends)), {"units": other}
    x = "x", [5.0, 20.0], {"units": unit, "bounds": "x_bnds"}
    dataset = xr.Dataset({"u": ("x", [1.0, 2.0]), "x_bnds": bounds}, {"x": x})
    np.testing.assert_allclose(cell_measure(dataset, "u", ("x",)), [10.0, 20.0])


def test_a_name_with_a_space_is_one_name():
    dataset = xr.Dataset({"u": ("my x", [1.0, 2.0])}, {"my x": [0.5, 1.5]})
    np.testing.assert_array_equal(cell_measure(dataset, "u", ("my x",)), [1.0, 1.0])


def test_a_field_that_another_names_among_its_coordinates_is_weighed(dataset):
    weights = cell_measure(dataset.set_coords("u"), "u", SPACE)
    xr.testing.assert_identical(weights, cell_measure(dataset, "u", SPACE))
