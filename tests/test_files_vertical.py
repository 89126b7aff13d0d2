"""The thickness of cells along the vertical: formula terms, half levels, and where columns end."""

import os

import numpy as np
import pytest
import xarray as xr

from probconserv.errors import InputError
from probconserv.files import FileLaw, cell_measure, check, enforce, enforce_file, totals

G = 9.80665
A = np.array([0.002, 0.2, 0.1, 0.0])  # of half levels, from the top down
B = np.array([0.0, 0.0, 0.5, 1.0])
SPACE = ("lev", "lat", "lon")
NAME = "atmosphere_{}_coordinate"


def middle(x):
    return (x[1:] + x[:-1]) / 2


def pairs(x):
    return np.stack([x[:-1], x[1:]], -1)


def hybrid(terms="p0: p0 a: a b: b ps: ps", kind="hybrid_sigma_pressure", **variables):
    """Humidity on three levels of 2 x 4 x 5 points, with a surface pressure that changes."""
    rng = np.random.default_rng(3)
    attrs = {"standard_name": NAME.format(kind), "formula_terms": terms, "units": "1"}
    given = {
        "q": (("time", *SPACE), rng.uniform(0.001, 0.02, (2, 3, 4, 5)), {"units": "1"}),
        "ps": (("time", "lat", "lon"), rng.uniform(6e4, 1.03e5, (2, 4, 5)), {"units": "Pa"}),
        "p0": ((), 1e5, {"units": "Pa"}),
        "a": ("lev", middle(A)),
        "b": ("lev", middle(B)),
        "area": (("lat", "lon"), rng.uniform(1, 2, (4, 5)), {"units": "m2"}),
    }
    dataset = xr.Dataset(
        {name: each for name, each in (given | variables).items() if each is not None},
        {"lev": ("lev", middle(A + B), attrs), "time": [0.0, 1.0]},
    )
    dataset.q.attrs["cell_measures"] = "area: area"
    return dataset


def with_bounds(**variables):
    bounds = {"a_bnds": (("lev", "n"), pairs(A)), "b_bnds": (("lev", "n"), pairs(B))}
    dataset = hybrid(**bounds, **variables)
    dataset.a.attrs["bounds"], dataset.b.attrs["bounds"] = "a_bnds", "b_bnds"
    return dataset


def mass(ps, a=A * 1e5, b=B):
    """dp / g level by level, from half levels (n + 1)."""
    at = a[:, None, None] + b[:, None, None] * np.asarray(ps)[:, None]
    return np.diff(at, axis=1) / G


def thickness(dataset, **how):
    return cell_measure(dataset, "q", ("lev",), **how)


def test_bounds_of_the_terms_give_the_mass_of_air_at_every_time_and_place():
    dataset = with_bounds()
    found = thickness(dataset)
    np.testing.assert_allclose(found, mass(dataset.ps), rtol=1e-13)
    np.testing.assert_allclose(found.sum("lev"), (dataset.ps - 200) / G, rtol=1e-13)
    assert found.units == "kg m-2"
    assert "half levels: a_bnds and b_bnds; cells from 200 Pa to the surface" in found.description
    assert "g = 9.80665 m s-2" in found.description


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("order", [("lat", "lon", "time", "lev"), ("lon", "lev", "lat", "time")])
def test_the_order_of_dimensions_does_not_matter(order, lazy):
    dataset = with_bounds()
    dataset["q"] = dataset.q.transpose(*order)
    found = thickness(dataset.chunk(time=1, lev=2) if lazy else dataset)
    assert found.dims == order
    np.testing.assert_allclose(found.transpose("time", *SPACE), mass(dataset.ps), rtol=1e-13)


def test_bounds_may_be_named_by_the_formula_terms_of_the_bounds_of_the_levels():
    dataset = with_bounds(lev_bnds=(("lev", "n"), pairs(A + B)))
    for name in ("a", "b"):
        del dataset[name].attrs["bounds"]
    dataset.lev.attrs["bounds"] = "lev_bnds"
    dataset.lev_bnds.attrs["formula_terms"] = "p0: p0 a: a_bnds b: b_bnds ps: ps"
    assert "half levels: a_bnds and b_bnds" in thickness(dataset).description
    np.testing.assert_allclose(thickness(dataset), mass(dataset.ps), rtol=1e-13)


def test_half_levels_may_be_a_coordinate_of_their_own():
    attrs = hybrid().lev.attrs | {"formula_terms": "a: hyai b: hybi p0: p0 ps: ps"}
    dataset = hybrid(hyai=("ilev", A), hybi=("ilev", B))
    dataset = dataset.assign_coords(ilev=("ilev", A + B, attrs))
    dataset["a"] = dataset.a + 0.01  # levels that are no means of half levels
    np.testing.assert_allclose(thickness(dataset), mass(dataset.ps), rtol=1e-13)
    assert "half levels: hyai and hybi" in thickness(dataset).description


def test_levels_without_half_levels_are_refused():
    with pytest.raises(InputError, match=r"'lev' has no half levels.* bounds of its terms \(a, b"):
        thickness(hybrid())


def test_terms_in_hectopascal_are_converted_also_those_of_bounds_without_units():
    dataset = with_bounds(ap=("lev", middle(A) * 1e3, {"units": "hPa", "bounds": "ap_bnds"}))
    dataset["ap_bnds"] = ("lev", "n"), pairs(A * 1e3)
    dataset.lev.attrs["formula_terms"] = "ap: ap b: b ps: ps"
    dataset["ps"] = (dataset.ps / 100).assign_attrs(units="hPa")
    np.testing.assert_allclose(thickness(dataset), mass(dataset.ps * 100), rtol=1e-13)


def test_hybrid_heights_are_as_thick_as_their_bounds_say_above_the_orography():
    z, b = np.array([0.0, 100.0, 500.0, 2000.0]), np.array([1.0, 0.9, 0.4, 0.0])
    orog = (("lat", "lon"), np.linspace(-50, 500, 20).reshape(4, 5), {"units": "m"})
    dataset = hybrid("a: a b: b orog: orog", "hybrid_height", orog=orog)
    dataset["a"] = ("lev", middle(z), {"units": "m", "bounds": "a_bnds"})
    dataset["b"] = ("lev", middle(b), {"bounds": "b_bnds"})
    dataset = dataset.assign(a_bnds=(("lev", "n"), pairs(z)), b_bnds=(("lev", "n"), pairs(b)))
    found = thickness(dataset)
    top, ground = 2000.0, dataset.orog.values
    at = z[:, None, None] + b[:, None, None] * ground
    np.testing.assert_allclose(found, np.diff(at, axis=0), rtol=1e-13)
    np.testing.assert_allclose(found.sum("lev"), top - ground, rtol=1e-13)
    assert found.units == "m"
    with pytest.raises(InputError, match=r"'lev' has no half levels.* bounds of its terms"):
        thickness(dataset.drop_vars(["a_bnds", "b_bnds"]))


def test_the_hybrid_heights_of_a_real_file_are_found_beside_its_level_numbers():
    data = pytest.importorskip("iris_sample_data").path
    with xr.open_dataset(os.path.join(data, "hybrid_height.nc")) as dataset:
        name = "air_potential_temperature"
        found = cell_measure(dataset, name, ("model_level_number",))
        z, b = dataset.level_height_bnds.values, dataset.sigma_bnds.values
        orog = dataset.surface_altitude.values.astype(float)
        column = (z[-1, 1] - z[0, 0]) + (b[-1, 1] - b[0, 0]) * orog
        np.testing.assert_allclose(found.sum("model_level_number"), column, rtol=1e-6)


def test_water_on_hybrid_levels_is_what_its_pressure_thickness_says():
    ps = np.array([1e5, 0.9e5, 1.1e5])[:, None, None] * np.ones((3, 4, 5))
    dataset = with_bounds().isel(time=[0, 0, 0])
    dataset["a_bnds"] = dataset.a_bnds.where(dataset.a_bnds != A[0], 0.0)  # up to no pressure
    dataset = dataset.assign_coords(time=[0.0, 1.0, 2.0])
    dataset["q"] = xr.full_like(dataset.q, 0.01)
    dataset["ps"] = dataset.ps.copy(data=ps)
    found = totals(dataset, FileLaw("q", SPACE)) / dataset.area.sum().item()
    np.testing.assert_allclose(found, [101.97162, 91.774459, 112.16878], rtol=1e-7)
    assert not check(dataset, FileLaw("q", SPACE)).closes()


@pytest.mark.parametrize("lazy", [False, True])
def test_enforced_water_has_the_total_that_numpy_computes(lazy):
    dataset = with_bounds()
    given = dataset.chunk(time=1, lev=2, lat=3) if lazy else dataset
    new = enforce(given, FileLaw("q", SPACE), std=1e-3)["q"].values
    weights = mass(dataset.ps) * dataset.area.values
    has = (new * weights).sum((1, 2, 3))
    start = (dataset.q.values * weights).sum((1, 2, 3))[0]
    np.testing.assert_allclose(has, [start, start], rtol=1e-12)
    moved = (new - dataset.q.values)[1]
    np.testing.assert_allclose(moved, moved.mean() * np.ones_like(moved), rtol=1e-6)


def test_a_file_is_weighed_block_by_block(tmp_path):
    dataset = with_bounds()
    dataset.to_netcdf(tmp_path / "in.nc", encoding={"q": {"chunksizes": (1, 2, 4, 5)}})
    chunks = {"time": 1, "lev": 2, "lat": 2}
    report = enforce_file(
        tmp_path / "in.nc", tmp_path / "out.nc", FileLaw("q", SPACE), std=1e-3, chunks=chunks
    )
    with xr.open_dataset(tmp_path / "out.nc") as out:
        has = (out.q.values * mass(out.ps) * out.area.values).sum((1, 2, 3))
    np.testing.assert_allclose(has, has[0], rtol=1e-12)
    assert "dp / g" in str(report)


def test_places_without_surface_pressure_do_not_count_and_that_is_said():
    dataset = with_bounds()
    dataset["ps"] = dataset.ps.where(dataset.area > 1.2)
    found = thickness(dataset)
    np.testing.assert_allclose(found, np.nan_to_num(mass(dataset.ps)), rtol=1e-13)
    assert f"{int(dataset.ps.isnull().sum())} places without ps" in found.description


def test_a_term_that_is_not_in_the_dataset_is_named():
    with pytest.raises(InputError, match=r"`formula_terms` of 'lev' .* not in .*ps: ps.* Add"):
        thickness(hybrid(ps=None))
    with pytest.raises(InputError, match=r"'lev' must name .*'p0'.*, it names \('a', 'ps'\)"):
        thickness(hybrid("a: a ps: ps"))


def test_a_surface_pressure_without_units_or_in_other_units_is_refused():
    for units in ({}, {"units": "m"}):
        ps = hybrid().ps.assign_attrs(units="").assign_attrs(units)
        with pytest.raises(InputError, match=r"'ps' must be in Pa.*`units`"):
            thickness(hybrid(ps=ps))


def test_a_surface_pressure_on_another_grid_or_without_values_is_refused():
    ps = with_bounds().ps
    with pytest.raises(InputError, match=r"`formula_terms of lev` has a dimension 'x'"):
        thickness(with_bounds(ps=ps.rename(lon="x")))
    with pytest.raises(InputError, match="would be nan Pa thick where 'ps' is nan"):
        thickness(with_bounds(ps=ps * np.nan))


def test_cells_of_no_thickness_are_an_error_that_says_where():
    low = hybrid().ps.copy()
    low[1, 2, 3] = -1e4
    with pytest.raises(InputError, match=r"cell number 1 of 'lev' would be .*'ps' is -10000"):
        thickness(with_bounds(ps=low))


def test_other_formulas_are_refused_with_the_way_out():
    ocean = hybrid("s: lev", "x")
    for terms in ("s: lev C: C eta: zeta depth: h depth_c: hc", ""):
        ocean.lev.attrs |= {"standard_name": "ocean_s_coordinate_g1", "formula_terms": terms}
        with pytest.raises(InputError, match=r"ocean_s_coordinate_g1.*`measure`"):
            thickness(ocean)
    assert thickness(ocean, given=2.0).item() == 2.0


def test_a_surface_pressure_that_differs_between_members_is_refused_in_words():
    dataset = with_bounds().expand_dims(member=3).copy()
    dataset["q"] = dataset.q + 0.001 * dataset.q * xr.DataArray([0.0, 1.0, 2.0], dims="member")
    dataset["q"].attrs = with_bounds().q.attrs
    for name in ("a", "b", "a_bnds", "b_bnds", "p0", "area"):
        dataset[name] = with_bounds()[name]
    with pytest.raises(InputError, match=r"`measure` changes along 'member'.*one surface pressure"):
        enforce(dataset, FileLaw("q", SPACE), member="member")
    dataset["ps"] = with_bounds().ps
    new = enforce(dataset, FileLaw("q", SPACE), member="member").q.transpose("member", "time", ...)
    has = (new.values * mass(dataset.ps) * dataset.area.values).sum((2, 3, 4))
    np.testing.assert_allclose(has[:, 1], has[:, 0], rtol=1e-12)


def plain(values, **attrs):
    return xr.Dataset({"u": ("z", np.ones(len(values)))}, {"z": ("z", values, attrs)})


@pytest.mark.parametrize(
    ("values", "attrs", "expected"),
    [
        ([0.0, 5, 10], {"units": "m", "positive": "down"}, [2.5, 5, 5]),
        ([2.0, 10], {"units": "m", "standard_name": "height"}, [6, 8]),
        ([0.0, -5, -10], {"units": "m", "positive": "up"}, [2.5, 5, 5]),
        ([100.0, 500, 1000], {"units": "Pa"}, [300, 450, 500]),
        ([0.0, 100, 200], {"units": "m", "standard_name": "altitude"}, [100, 100, 100]),
    ],
)
def test_cells_of_depth_height_and_pressure_end_at_zero(values, attrs, expected):
    found = cell_measure(plain(values, **attrs), "u", ("z",))
    np.testing.assert_allclose(found, expected)
    assert ("cut at 0" in found.description) == ("altitude" not in attrs.values())


def test_pressure_levels_are_weighed_by_dp_and_the_report_says_that_it_is_no_mass():
    found = cell_measure(plain([1000.0, 500, 100], units="hPa"), "u", ("z",))
    np.testing.assert_allclose(found, [500, 450, 300])
    assert found.units == "hPa"
    assert "(dp, not mass)" in found.description


def test_given_bounds_are_kept_but_not_a_negative_pressure():
    for units, refused in (("Pa", True), ("m", False)):
        dataset = plain([100.0, 300], units=units, bounds="zb", positive="down")
        dataset["zb"] = ("z", "n"), [[-100.0, 200.0], [200.0, 400.0]]
        if refused:
            with pytest.raises(InputError, match="'z' ends at the pressure -100"):
                cell_measure(dataset, "u", ("z",))
        else:
            assert cell_measure(dataset, "u", ("z",)).values[0] == 300


def test_bounds_of_terms_may_be_in_a_unit_of_their_own():
    dataset = with_bounds().rename(a="ap", a_bnds="ap_bnds")
    dataset["ap"] = ("lev", 1e5 * middle(A), {"units": "Pa", "bounds": "ap_bnds"})
    dataset["ap_bnds"] = (("lev", "n"), 1e3 * pairs(A), {"units": "hPa"})
    dataset.lev.attrs["formula_terms"] = "ap: ap b: b ps: ps"
    np.testing.assert_allclose(thickness(dataset), mass(dataset.ps), rtol=1e-13)


def test_a_thickness_given_for_every_cell_is_said_to_leave_areas_out():
    data = hybrid()
    data["dz"] = data["q"].isel(time=0, drop=True).assign_attrs(units="km")
    data["volume"] = (data["dz"] * data["area"]).assign_attrs(units="m3")
    said = {name: str(check(data, FileLaw("q", SPACE, measure=name))) for name in ("dz", "volume")}
    assert "dz (in km, as a thickness: areas do not count)" in said["dz"]
    assert "thickness" not in said["volume"]
    column = check(data, FileLaw("q", "lev", measure="dz"))
    assert "thickness" not in str(column)
