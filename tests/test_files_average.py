"""Laws on the mean over the cells instead of the total."""

import numpy as np
import pytest
import xarray as xr

from probconserv.cli.main import main
from probconserv.errors import InputError
from probconserv.files import FileLaw, check, enforce, enforce_file, totals

pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")

AREA = np.array([[2.0, 3.0, 1.0], [4.0, 1.0, 5.0]])
GRID = ("time", "y", "x")
DAYS = np.array(["2000-01-01", "2000-01-02", "2000-01-04", "2000-01-05"], "datetime64[ns]")


def made(missing=True):
    """Some points missing, more of them at one time; units in K."""
    u = 280 + np.random.default_rng(0).normal(0, 1, (4, 2, 3))
    if missing:
        u[:, 0, 0] = u[2, 1] = np.nan
    area = ("y", "x"), AREA, {"units": "m2"}
    return xr.Dataset({"u": (GRID, u, {"units": "K"}), "a": area}, {"time": DAYS})


def law(average, **given):
    return FileLaw("u", ("y", "x"), average=average, **{"measure": "a"} | given)


def means(values, weights=AREA):
    """By NumPy's own average, time by time."""
    masked = np.ma.masked_invalid(np.asarray(values))
    return np.array([np.ma.average(each, weights=weights) for each in masked])


def test_the_mean_is_what_was_asked_for_where_points_are_missing():
    out = enforce(made(), law(288.1), std=1.0)
    np.testing.assert_allclose(means(out.u), 288.1, rtol=1e-13)
    np.testing.assert_array_equal(np.isnan(out.u), np.isnan(made().u))


def test_an_average_may_differ_from_time_to_time():
    asked = xr.DataArray([281.0, 282, 283, 284], dims="time", attrs={"units": "K"})
    np.testing.assert_allclose(means(enforce(made(), law(asked), std=1.0).u), asked)


def test_the_initial_mean_is_kept_though_the_mask_changes():
    d = made()
    out = enforce(d, law("initial"), std=1.0, correlation=1.0)
    np.testing.assert_allclose(means(out.u), means(d.u)[0])
    assert abs(out.u - d.u).max() < 3


def test_averages_of_regions_and_levels():
    d = made().assign(basin=(("y", "x"), [[1, 1, 2], [2, 2, 2]]))
    out = enforce(d, law(288.0, regions="basin"), std=1.0)
    np.testing.assert_allclose(means(out.u, AREA * (d.basin.values == 1))[[0, 1, 3]], 288)
    np.testing.assert_allclose(means(out.u, AREA * (d.basin.values == 2)), 288)


def test_every_member_keeps_its_own_mean():
    d = made().assign(u=made().u.expand_dims(member=5).copy())
    d["u"] += np.random.default_rng(1).normal(0, 1, d.u.shape)
    d["u"][1, 0, 1, 1] = np.nan  # missing in one member: missing in all
    out = enforce(d, law("initial"), member="member")
    seen = np.where(d.u.isnull().any("member"), np.nan, out.u)
    before = np.where(d.u.isnull().any("member"), np.nan, d.u)
    for new, old in zip(seen, before, strict=True):
        np.testing.assert_allclose(means(new), means(old)[0])


def test_noise_is_that_of_the_mean():
    d = made(missing=False)
    out = enforce(d, law(285.0, noise=0.5), std=1.0, correlation=1.0)
    want = means(d.u) + (285 - means(d.u)) * 1.0 / (1.0 + 0.25)
    np.testing.assert_allclose(means(out.u), want)


def test_rates_add_their_mean_to_the_initial_one():
    d = made(missing=False).assign(e=(GRID, np.full((4, 2, 3), 0.5), {"units": "K day-1"}))
    out = enforce(d, law("initial", inflow="e"), std=1.0)
    np.testing.assert_allclose(means(out.u), means(d.u)[0] + [0, 0.5, 1.5, 2.0])


def test_a_factor_belongs_to_what_is_averaged():
    d = made().assign(c=(("y", "x"), np.array([[1.0, 2, 3], [4, 5, np.nan]]), {"units": "J K-1"}))
    heat = FileLaw({"u": "c"}, ("y", "x"), average=900.0, measure="a")
    out = enforce(d, heat, std=1.0)
    np.testing.assert_allclose(means(out.u * d.c), 900)
    assert check(d, heat).budgets[0].unit == "J"


def test_the_report_speaks_of_means():
    text = str(check(made(), law(288.1), std=1.0))
    assert "u, averaged over y, x in K" in text
    assert "4 averages" in text
    budget = check(made(), law(288.1)).budgets[0]
    np.testing.assert_allclose(budget.total, 288.1)
    np.testing.assert_allclose(budget.before, means(made().u))
    worst = abs(means(made().u) - 288.1).max()
    assert f"{worst:.3g} on average" in text


def test_the_total_of_a_law_on_the_mean_is_still_a_sum():
    found = totals(made(missing=False), law(288.0))
    np.testing.assert_allclose(found, means(made(missing=False).u) * AREA.sum())
    assert found.units == "K m2"


def test_an_average_has_the_unit_of_the_field():
    mean = xr.DataArray(288.1e3, name="m", attrs={"units": "mK"})
    np.testing.assert_allclose(check(made(), law(mean)).budgets[0].total, 288.1)
    for unit, hint in (("degC", "zeros differ"), ("K m2", "another quantity")):
        with pytest.raises(InputError, match=f"`average m` is in .*{hint}"):
            check(made(), law(mean.assign_attrs(units=unit)))


def test_rows_without_data_have_no_mean():
    d = made()
    d["u"][1] = np.nan
    out = enforce(d, law(285.0), std=1.0)
    np.testing.assert_allclose(means(out.u[[0, 2, 3]]), 285)
    assert "1 without data" in str(check(d, law(285.0)))


@pytest.mark.parametrize("given", [{"total": 3.0}, {"total": xr.DataArray(3.0)}])
def test_an_average_beside_a_total_is_refused(given):
    with pytest.raises(InputError, match="`average` and `total`"):
        law(288.0, **given)


def test_an_average_of_several_variables_is_refused():
    with pytest.raises(InputError, match="`average` is for one variable"):
        FileLaw({"u": 1.0, "v": 1.0}, "x", average=3.0)


def test_files_lazy_arrays_and_the_command_line(tmp_path, capsys):
    made().to_netcdf(tmp_path / "in.nc")
    lazy = enforce(made().chunk(time=1, x=2), law(288.1), std=1.0)
    enforce_file(tmp_path / "in.nc", tmp_path / "out.nc", law(288.1), std=1.0, chunks={"time": 2})
    given = ["enforce", str(tmp_path / "in.nc"), "-o", str(tmp_path / "cli.nc"), "--mean", "u"]
    given += ["--over", "y", "x", "--std", "1", "--average", "288.1", "--measure", "a"]
    with pytest.raises(SystemExit, match="3"):  # 288.1 is beyond a std of 1
        main(given)
    for name in ("out.nc", "cli.nc"):
        xr.testing.assert_allclose(xr.load_dataset(tmp_path / name).u, lazy.u.compute())
    np.testing.assert_allclose(means(lazy.u), 288.1)
    assert "averaged over y, x in K" in capsys.readouterr().out
