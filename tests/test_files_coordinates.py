"""One rule for equal coordinates, whatever a law takes from elsewhere."""

import cftime
import numpy as np
import pytest
import xarray as xr

from probconserv.errors import InputError
from probconserv.files import FileLaw, enforce
from probconserv.files._law import match, same_places

TIME, LAT, LON = np.arange(2.0), np.arange(-89.5, 90, 1), np.arange(0.5, 360, 90)
DIMS = ("time", "lat", "lon")
OVER = ("lat", "lon")


@pytest.fixture
def dataset():
    lon = ("lon", LON, {"units": "degrees_east"})
    values = np.random.default_rng(0).normal(size=(2, 180, 4))
    return xr.Dataset({"u": (DIMS, values)}, {"time": TIME, "lat": LAT, "lon": lon})


ways = pytest.mark.parametrize("way", ["measure", "std", "where", "regions", "inflow", "fraction"])


def run(dataset, way, moved):
    """An update that takes ones on the coordinates `moved` by one of the ways."""
    ones = xr.ones_like(dataset.u.isel(time=0, drop=True)).assign_coords(moved)
    if way == "std":
        return enforce(dataset, FileLaw("u", OVER, total=1.0), std=ones)
    return enforce(
        dataset, FileLaw("u", OVER, **{"total": 1.0, "measure": 1.0, way: ones}), std=1.0
    )


@ways
def test_the_rounding_of_a_stored_coordinate_is_no_difference(dataset, way):
    run(dataset, way, {"lat": LAT.astype("float32") + 1e-5, "lon": LON * (1 + 1e-12)})


@ways
def test_latitudes_a_thousandth_of_a_degree_off_are_another_grid(dataset, way):
    with pytest.raises(InputError, match=f"`{way}` and `u` differ along 'lat'"):
        run(dataset, way, {"lat": LAT + 1e-3})


@ways
def test_longitudes_counted_from_elsewhere_are_named(dataset, way):
    with pytest.raises(InputError, match=f"`{way}` and .* differ along 'lon'.* % 360"):
        run(dataset, way, {"lon": (LON + 180) % 360 - 180})


def test_totals_follow_the_same_rule(dataset):
    def law(time):
        return FileLaw("u", OVER, xr.DataArray([1.0, 2], {"time": time}, ("time",)), measure=1.0)

    enforce(dataset, law(TIME + 1e-9), std=1.0)
    with pytest.raises(InputError, match="`total` and `u` differ along 'time'"):
        enforce(dataset, law(TIME + 1e-3), std=1.0)


@pytest.mark.parametrize("step", [1.0, 0.25, 0.1, 0.01])
def test_float32_holds_the_same_places_and_a_shift_by_half_a_cell_does_not(step):
    lon = np.arange(360 - 50 * step, 360, step)
    assert same_places(lon.astype("float32"), lon).all()
    assert same_places(lon, lon.astype("float32")).all()
    assert not same_places(lon + step / 2, lon).any()


def test_small_steps_beside_large_numbers_are_steps():
    ids = np.array([20_000_001.0, 20_000_002, 20_000_003])
    assert not same_places(ids + 1, ids).any()
    levels = np.array([1e-3, 2e-3, 1e5])
    np.testing.assert_array_equal(
        same_places(levels + np.array([1e-3, 0, 0]), levels), [False, True, True]
    )


def test_places_in_no_order_are_the_same_in_float32():
    lat = np.random.default_rng(0).uniform(-90, 90, 10_000)
    assert same_places(lat.astype("float32"), lat).all()
    assert not same_places(lat + 0.1, lat).any()


def test_dates_are_equal_or_not():
    days = np.array(["2000-01-01", "2000-01-02"], "datetime64[ns]")
    assert same_places(days, days.astype("datetime64[s]")).all()
    assert not same_places(days + np.timedelta64(1, "s"), days).any()
    model = np.array([cftime.DatetimeNoLeap(2000, 1, day) for day in (1, 2)])
    assert same_places(model, model.copy()).all()
    assert not same_places(model, days).any()


def test_latitudes_of_each_cell_are_compared_where_both_have_them():
    lat = np.add.outer(np.arange(3.0), np.arange(4) / 10)
    field = xr.DataArray(np.ones((3, 4)), {"nav_lat": (("y", "x"), lat)}, ("y", "x"), "u")
    match(field.assign_coords(nav_lat=field.nav_lat.astype("float32")), field, "std")
    match(field.drop_vars("nav_lat"), field, "std")
    match(field.assign_coords(nav_lat=field.nav_lat + 5e-5).transpose(), field, "std")
    off = field.assign_coords(nav_lat=field.nav_lat + 1e-3 * (field.nav_lat > 2))
    with pytest.raises(InputError, match=r"`std` and `u` differ in 'nav_lat'.*\(2, 1\): 2.101"):
        match(off, field, "std")


def test_gaps_in_both_coordinates_are_no_difference():
    field = xr.DataArray(np.ones(3), {"lat": ("cell", [0.0, np.nan, 2])}, ("cell",), "u")
    match(field.assign_coords(lat=field.lat.astype("float32")), field, "std")
