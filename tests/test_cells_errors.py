"""Every way in which the weight of a cell cannot be known, and what the message says."""

import re

import numpy as np
import pytest
import xarray as xr

from probconserv.errors import InputError
from probconserv.files._weights import cell_measure


def field(**coords):
    """A field `u` along coordinates given as values or (values, attributes)."""
    pairs = {name: c if isinstance(c, tuple) else (c, {}) for name, c in coords.items()}
    shape = tuple(len(values) for values, _ in pairs.values())
    variables = {name: (name, *pair) for name, pair in pairs.items()}
    return xr.Dataset({"u": (tuple(pairs), np.ones(shape))}, variables)


def bounded(values, bounds, dims=("x", "bnds"), name="x"):
    dataset = field(**{name: (values, {"bounds": "ends"})})
    return dataset.assign(ends=(dims, bounds))


def curvilinear(bounds=False, corners=(4, 4), **dims):
    """A field on (y, x) with latitudes and longitudes for each cell."""
    y, x = np.meshgrid([10.0, 20, 30], [0.0, 10, 20, 30], indexing="ij")
    attrs = ({"bounds": name} if bounds else {} for name in ("lat_corners", "lon_corners"))
    coords = {"lat": (("y", "x"), y + x / 9, next(attrs)), "lon": (("y", "x"), x, next(attrs))}
    dataset = xr.Dataset({"u": (("y", "x"), np.ones((3, 4)))}, coords | dims)
    for name, n in zip(("lat_corners", "lon_corners"), corners, strict=True):
        dataset[name] = ("y", "x", f"n{n}"), np.ones((3, 4, n))
    return dataset


GRID = field(lat=[-45.0, 0, 45], lon=[0.0, 10, 20, 30])
AREA = xr.ones_like(GRID.u).rename("area")
LATLON = ("lat", "lon")


def refuses(message, dataset, over, given=None, variable="u", **options):
    with pytest.raises(InputError, match=re.escape(message)):
        cell_measure(dataset, variable, over, given, **options)


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (("latt", "lon"), "`over` must be one of lat, lon; got 'latt'. Did you mean 'lat'?"),
        (("lat", "lat"), "`over` names a dimension twice: lat, lat."),
        ((), "`over` must name the dimensions to sum over; got ()."),
    ],
)
def test_over_names_dimensions_of_the_variable_once(over, message):
    refuses(message, GRID, over)


def test_one_dimension_may_be_named_without_a_tuple():
    xr.testing.assert_identical(cell_measure(GRID, "u", "lat"), cell_measure(GRID, "u", ("lat",)))


def test_the_variable_is_in_the_dataset():
    refuses("`variable` must be one of u; got 'U'.", GRID, LATLON, variable="U")


@pytest.mark.parametrize("radius", [0, -1.0, np.nan, np.inf, "earth", True])
def test_the_radius_is_positive(radius):
    message = f"`radius` must be a positive finite number, got {radius!r}."
    refuses(message, GRID, LATLON, radius=radius)


def test_a_measure_is_a_number_a_name_or_labelled():
    refuses("`measure`: no variable 'lan' here. Did you mean 'lon'?", GRID, LATLON, "lan")
    for number in (0, -2.0):
        refuses(f"`measure` must be a positive finite number, got {number!r}", GRID, LATLON, number)
    for wrong in (np.nan, True, np.ones((3, 4))):
        refuses("`measure` must be a finite number, a name in the dataset", GRID, LATLON, wrong)


def test_a_measure_lies_on_the_grid_of_the_variable():
    deep = AREA.expand_dims(depth=2)
    refuses("`measure` has a dimension 'depth', which `u` has not", GRID, LATLON, deep)
    message = "`measure` has 2 entries along 'lat', `u` has 3."
    refuses(message, GRID, LATLON, AREA[:2])
    message = "`measure` and `u` differ along 'lat'. The first entry that differs is number 0: 45.0"
    refuses(message, GRID, LATLON, AREA[::-1])
    moved = AREA.assign_coords(lon=[0.0, 10, 21, 30])
    refuses(
        "'lon'. The first entry that differs is number 2: 21.0",
        GRID,
        LATLON,
        moved,
    )
    moved = AREA.assign_coords(lon=["a", "b", "c", "d"])
    refuses("'lon'. The first entry that differs is number 0: a inst", GRID, LATLON, moved)


def test_rounding_of_stored_coordinates_is_no_difference():
    lat = np.array([-45.1, 0, 45.1])
    dataset, area = GRID.assign_coords(lat=lat), AREA.assign_coords(lat=lat.astype("float32"))
    weights = cell_measure(dataset, "u", LATLON, area)
    np.testing.assert_array_equal(weights.lat, lat)
    assert (dataset.u * weights).shape == (3, 4)


@pytest.mark.parametrize("wrong", [-1.0, np.inf])
def test_weights_are_finite_and_not_negative(wrong):
    message = f"`measure` must be finite and not negative, got {wrong:g} at lat number 1, lon"
    refuses(message, GRID, LATLON, AREA.where(AREA.lat != 0, wrong))


def test_some_cell_counts():
    refuses("`measure` must have a cell that counts", GRID, LATLON, AREA * np.nan)


def test_a_file_that_names_a_measure_on_another_grid_is_refused():
    dataset = GRID.assign(areas=(("lat", "face"), np.ones((3, 2))))
    dataset["u"] = dataset.u.assign_attrs(cell_measures="area: areas")
    refuses("`cell_measures of u` has a dimension 'face', which `u`", dataset, LATLON)


def test_half_of_an_area_is_refused():
    message = "`measure` is the array area given and lacks 'lon': half of an area"
    refuses(message, GRID, LATLON, AREA[:, 0])
    mesh = curvilinear()
    refuses("and lacks 'x': half of an area", mesh, ("y", "x"), xr.ones_like(mesh.u[:, 0]))


def test_a_dimension_without_coordinate_is_refused():
    message = (
        "'x' of 'u' has no coordinate to find sizes of cells from. Give the "
        "weights of the cells as `measure`. `measure=1` means plain sums."
    )
    refuses(message, field(x=[1.0, 2]).drop_vars("x"), ("x",))


def test_level_numbers_beside_heights_are_refused():
    dataset = field(level=[1, 2, 3]).assign_coords(height=("level", [0.0, 1, 5], {"units": "m"}))
    refuses("'level' only numbers the cells along its dimension. Choose", dataset, ("level",))
    heights = cell_measure(dataset.swap_dims(level="height"), "u", ("height",))
    np.testing.assert_array_equal(heights, [0.5, 2.5, 4])


def test_a_curvilinear_grid_without_corners_is_refused():
    message = (
        "'lat' and 'lon' lie on ('y', 'x') and have no bounds, so that the areas of the cells are "
        "not known. Give the areas of the cells as `measure`, in a file as AREAS.nc:NAME."
    )
    refuses(message, curvilinear(), ("y", "x"))
    refuses(message, curvilinear(y=[0, 1, 2], x=[0, 1, 2, 3]), ("y", "x"))
    gone = curvilinear(bounds=True).drop_vars("lat_corners")
    refuses("not known (its bounds lat_corners are not in the dataset).", gone, ("y", "x"))


def test_nominal_latitudes_of_a_tripolar_grid_are_refused():
    y = "y", [10.0, 20, 30], {"units": "degrees_north"}
    x = "x", [0.0, 10, 20, 30], {"units": "degrees_east"}
    dataset = curvilinear(y=y, x=x)
    message = "'y' is a nominal latitude, not that of the cells of 'u' ('lat' has other latitudes"
    refuses(message, dataset, ("y", "x"))


def test_a_plane_and_a_rotated_pole_may_have_true_latitudes_beside_them():
    metres = {"units": "m"}
    plane = curvilinear(y=("y", [0.0, 1, 2], metres), x=("x", [0.0, 2, 4, 6], metres))
    np.testing.assert_array_equal(cell_measure(plane, "u", ("y", "x")), np.full((3, 4), 2.0))
    y = "y", [-1.0, 0, 1], {"units": "degrees", "standard_name": "grid_latitude"}
    x = "x", [0.0, 1, 2, 3], {"units": "degrees", "standard_name": "grid_longitude"}
    small = cell_measure(curvilinear(y=y, x=x), "u", ("y", "x"), radius=1.0)
    np.testing.assert_allclose(small, np.radians(1) ** 2, rtol=1e-3)


@pytest.mark.parametrize("corners", [(4, 3), (2, 2)])
def test_corners_come_in_pairs(corners):
    message = f"three or more for each cell, got {corners[0]} and {corners[1]}."
    refuses(message, curvilinear(bounds=True, corners=corners), ("y", "x"))


def test_latitudes_end_at_the_poles():
    message = "'lat' must hold latitudes from -90 to 90 degrees, got 95. Correct"
    refuses(message, field(lat=[75.0, 85, 95]), ("lat",))
    dataset = curvilinear(bounds=True)
    dataset["lat_corners"][1, 2, 3] = 1e20
    refuses("'lat_corners' must hold latitudes from -90 to 90", dataset, ("y", "x"))
    dataset = bounded([0.0, 1], [[0.0, 1], [1, 1e20]], ("lat", "bnds"), "lat")
    refuses("'ends' must hold latitudes from -90 to 90 degrees, got 1e+20", dataset, ("lat",))


def test_bounds_beyond_the_pole_are_cut_there():
    ends = [[-91.0, -89], [-89, 91]]
    dataset = bounded([-90.0, 0], ends, ("lat", "bnds"), "lat")
    assert float(cell_measure(dataset, "u", ("lat",), radius=1.0).sum()) == pytest.approx(2)


def test_bounds_have_two_ends_and_the_dimension_of_their_coordinate():
    message = "the bounds 'ends' of 'x' must have its dimensions ('x',) and one for the corners"
    refuses(message, bounded([0.0, 1], [0.0, 1], ("x",)), ("x",))
    message = "the bounds 'ends' of 'x' must hold two ends each, got 3."
    refuses(message, bounded([0.0, 1], np.ones((2, 3))), ("x",))


def test_coordinates_hold_finite_numbers_or_dates():
    refuses("'x' must hold numbers or dates, got", field(x=["a", "b"]), ("x",))
    refuses("'x' must be finite; 1 of its 2 values are not", field(x=[0.0, np.nan]), ("x",))
    days = np.array(["2001-01-01", "2001-01-02", "NaT"], "datetime64[ns]")
    refuses("'x' must be finite; 1 of its 3 values are not", field(x=days), ("x",))
    dataset = bounded(days[:2], np.ones((2, 2)))
    refuses("'ends' must hold dates, as its coordinate does, got float64.", dataset, ("x",))
    dataset = bounded([0.0, 1], np.full((2, 2), days[0]))
    refuses("'ends' must hold numbers or dates, got datetime64", dataset, ("x",))


@pytest.mark.parametrize("name", ["lat", "lon", "x"])
def test_one_cell_without_bounds_has_no_size(name):
    message = f"'{name}' has one entry and no bounds to tell the size of its cell."
    refuses(message, field(**{name: [5.0]}), (name,))


def test_coordinates_go_one_way():
    message = "'x' must increase or decrease throughout; entry 1 is 2.0 and entry 2 is 2.0. Sort it"
    refuses(message, field(x=[0.0, 2, 2, 3]), ("x",))
    refuses("'lat' must increase or decrease throughout; entry 0", field(lat=[0.0, 0]), ("lat",))
    refuses("entry 2 is 20.0 and entry 3 is 15.0.", field(lon=[0.0, 10, 20, 15]), ("lon",))


def test_a_longitude_that_is_there_twice_is_refused():
    message = "the cells of 'lon' cover 370 degrees of longitude, more than the circle. Drop"
    refuses(message, field(lon=np.arange(0.0, 361, 10)), ("lon",))
