"""Nothing absurd happens in silence: warnings of a report, exit statuses and `strict`."""

import csv
import io
import json

import netCDF4
import numpy as np
import pytest
import xarray as xr
from commands import called

from probconserv import ImplausibleWarning
from probconserv.errors import ImplausibleError
from probconserv.files import FileLaw, check, enforce, enforce_file

ASKED = ("--mean", "u", "--over", "lat,lon")
LAW = FileLaw("u", ("lat", "lon"), measure=1.0)
DAYS = np.array(["2000-01-01", "2000-01-02", "2000-01-03"], "datetime64[ns]")


def field(change=0.1, std=1.0, **attrs):
    """Three days of 5 on 4 x 6 cells; `change` is added on the second."""
    u = np.full((3, 4, 6), 5.0) + np.linspace(-1, 1, 24).reshape(4, 6)
    u[1] += change
    grid = ("time", "lat", "lon")
    lat, lon = [-60.0, -20.0, 20.0, 60.0], np.arange(6) * 60.0
    data = {"u": (grid, u, attrs), "s": (grid, np.full(u.shape, std))}
    return xr.Dataset(data, {"time": DAYS, "lat": lat, "lon": lon})


@pytest.fixture
def file(tmp_path):
    def made(dataset, encoding=None):
        dataset.to_netcdf(tmp_path / "in.nc", encoding=encoding)
        return tmp_path / "in.nc"

    return made


def warned(dataset, *laws, **how):
    """The warnings of the report, which Python hears as well."""
    with pytest.warns(ImplausibleWarning) as heard:
        out = enforce(dataset, *(laws or [LAW]), **how)
    found = out.probconserv.report["warnings"]
    assert all(text in str(heard[0].message) for text in found)
    assert not out.probconserv.report["plausible"]
    return found


def test_a_fair_request_is_plausible_and_ends_with_0(file, tmp_path):
    out = enforce(field(), LAW, std="s").probconserv.report
    assert (out["warnings"], out["plausible"]) == ([], True)
    done = called("enforce", file(field()), *ASKED, "--std", "s", "-o", tmp_path / "o.nc")
    assert (done.returncode, "implausible" in done.stdout) == (0, False)


def test_totals_beyond_the_prior_and_far_moves_end_with_3(file, tmp_path):
    source, out = file(field(std=0.001)), tmp_path / "o.nc"
    done = called("enforce", source, *ASKED, "--std", "s", "-o", out)
    assert done.returncode == 3
    assert "implausible: u: 1 of 3 totals are more than 5 standard" in done.stdout
    assert "moved by more than 10 of their standard deviations" in done.stdout
    assert out.exists()


def test_strict_writes_nothing_and_says_why(file, tmp_path):
    source, out = file(field(std=0.001)), tmp_path / "o.nc"
    out.write_bytes(b"the old one")
    strict = ("--std", "s", "-o", out, "--overwrite", "--strict")
    done = called("enforce", source, *ASKED, *strict)
    assert done.returncode == 3
    assert "nothing was written; `--strict` refuses this: u: 1 of 3" in done.stderr
    assert "before: does not close" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.nc", "o.nc"]
    assert out.read_bytes() == b"the old one"
    assert called("enforce", source, *ASKED, "--std", "1", "--strict", "--dry-run").returncode == 0


def test_strict_in_python_raises_with_the_report(file, tmp_path):
    with pytest.raises(ImplausibleError, match=r"`strict`.* 10 of their standard") as error:
        enforce(field(std=0.001), LAW, std="s", strict=True)
    assert not error.value.report.plausible
    with pytest.raises(ImplausibleError, match=r"`strict`"):
        enforce(field(std=0.001).chunk(time=1), LAW, std="s", strict=True)
    with pytest.raises(ImplausibleError, match=r"`strict`"):
        enforce_file(file(field(std=0.001)), tmp_path / "o.zarr", LAW, std="s", strict=True)
    assert not (tmp_path / "o.zarr").exists()


def test_a_move_counts_by_the_own_std_of_a_value_not_by_the_mean():
    d = field(change=0.5)
    d["s"][:, 0, 0] = 1e-3  # of a million times the variance of others: it moves by nothing
    law = FileLaw("u", ("lat", "lon"), measure=1.0)
    assert enforce(d, law, std="s").probconserv.report["plausible"]
    d["s"][:] = 0.02  # of errors that go together, 25 of these
    with pytest.warns(ImplausibleWarning):
        new = enforce(d, LAW, std="s", correlation=0.5)
    (text,) = [t for t in new.probconserv.report["warnings"] if "moved" in t]
    ratio = np.abs(new.u - d.u) / d.s
    assert f"{int((ratio > 10).sum())} values of u" in text
    assert f"up to {float(ratio.max()):.3g} (time 2000-01-02)" in text


def test_the_own_std_of_a_member_is_the_spread_at_its_point():
    rng = np.random.default_rng(3)
    u = 5 + rng.normal(0, 0.1, (5, 3, 40))
    d = xr.Dataset({"u": (("member", "time", "x"), u)})
    law = FileLaw("u", "x", total=200.0 + 60, measure=1.0)
    (text,) = [t for t in warned(d, law, member="member", shrinkage=1.0) if "moved" in t]
    assert float(text.split("by up to ")[1].split()[0]) < 100  # 1.5 of a spread of about 0.1
    assert "`how` 'uniform'" in text


def test_a_mask_that_changes_is_said_with_time_and_share():
    d = field(change=0.0)
    d["u"][1, :2] = np.nan
    found = warned(d, std="s", correlation=1.0)
    assert "50 % of the whole at time 2000-01-02" in found[0]
    assert check(d, LAW, std="s").warnings[0] == found[0]


def test_a_mask_that_changes_matters_only_where_one_total_is_for_all_times():
    d = field(change=0.0)
    d["u"][1, :2] = np.nan
    each = xr.DataArray([120.0, 63.0, 120.0], {"time": DAYS}, "time")
    assert check(d, FileLaw("u", ("lat", "lon"), total=each, measure=1.0)).plausible
    assert not check(d, FileLaw("u", ("lat", "lon"), total=120.0, measure=1.0)).plausible
    rates = FileLaw("u", ("lat", "lon"), inflow=(each * 0).assign_attrs(units="s-1"), measure=1.0)
    assert not check(d, rates).plausible
    d["u"][:, :2] = np.nan  # the same points at all times
    assert check(d, LAW).plausible
    d["u"][1] = np.nan  # no point at all: nothing carries a total
    assert check(d, LAW).plausible


def test_cell_sizes_that_change_are_no_change_of_the_mask():
    d = field(change=0.0)
    thick = xr.DataArray([1.0, 0.9, 1.1], {"time": DAYS}, "time") * xr.ones_like(d.u)
    law = FileLaw("u", ("lat", "lon"), measure=thick)
    assert check(d, law).plausible
    d["u"][2, 3, 5] = np.nan
    assert "4.17 % of the whole at time 2000-01-03" in check(d, law).warnings[0]


def test_values_pushed_out_of_their_valid_range_are_counted():
    found = warned(field(change=1.0, valid_max=6.0, valid_min=4.0), std="s", correlation=1.0)
    assert found == ["12 values of u lie outside the valid 4 to 6 already"]
    total = FileLaw("u", ("lat", "lon"), total=24 * 5.2, measure=1.0)
    found = warned(field(change=0.0, valid_range=[4.0, 6.0]), total, std="s")
    pushed = 3 * int((np.linspace(-1, 1, 24) + 0.2 > 1 + 1e-9).sum())
    assert found == [f"{pushed} values of u were pushed outside the valid 4 to 6"]


def test_limits_of_packed_integers_are_integers(file):
    d = field(change=0.0, valid_range=np.array([0, 600], "i2"))
    packed = {"u": {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -1}}
    assert called("check", file(d, packed), *ASKED).returncode == 0
    d.u.attrs = {"valid_max": np.int16(500)}  # the other end is free
    assert "outside the valid -inf to 5" in called("check", file(d, packed), *ASKED).stdout
    d.u.attrs = {"valid_range": np.array([0, 500], "i2")}
    done = called("check", file(d, packed), *ASKED)
    assert done.returncode == 3
    assert "36 values of u lie outside the valid 0 to 5 already" in done.stdout


def test_limits_of_unsigned_integers_are_unsigned_as_well(file, tmp_path):
    with netCDF4.Dataset(file(field(change=0.0)), "a") as into:
        packed = into.createVariable("p", "i2", ("lat", "lon"))
        packed.setncatts({"_Unsigned": "true", "scale_factor": 0.01})
        packed.setncatts({"valid_min": np.int16(0), "valid_max": np.int16(-1)})  # 65535
        packed[:] = 400.0  # stored as 40000, which is negative with a sign
    done = called("check", tmp_path / "in.nc", "--mean", "p", "--over", "lat,lon", "--total", "1")
    assert "outside the valid" not in done.stdout


@pytest.mark.parametrize("mark", [1e20, -1e34, 1e37, -3.4028235e38, -9999.0, 999.0])
def test_an_undeclared_mark_for_missing_values_is_seen(file, mark):
    d = field(change=0.0)
    d["u"][:, 0, 0] = mark
    done = called("check", file(d.astype("f4")), *ASKED)
    assert done.returncode == 3  # it "closes": what is off is nothing beside that
    assert "3 values look like marks for missing ones" in done.stdout
    assert check(field(change=0.0) * 1e14, LAW).plausible


def test_a_value_that_others_come_near_to_is_no_mark():
    depths = field(change=0.0)
    depths["u"][:, 0, :2] = [-9999.0, -9990.0]
    assert check(depths, LAW).plausible
    assert check(xr.full_like(depths, -9999.0), LAW).plausible


def test_a_budget_that_rounding_opens_again_ends_with_1(file, tmp_path):
    packed = {"u": {"dtype": "i2", "scale_factor": 0.25, "add_offset": 5.0, "_FillValue": -99}}
    source, out = file(field(), packed), tmp_path / "o.nc"
    how = ("--std", "s", "--total", "120.7", "-o", out)
    done = called("enforce", source, *ASKED, "--measure", "1", *how)
    assert ("after:  does not close" in done.stdout, done.returncode) == (True, 1)
    again = called("enforce", source, *ASKED, "--measure", "1", *how, "--overwrite", "--strict")
    assert (again.returncode, "do not hold after" in again.stderr) == (1, True)


def test_every_error_and_wrong_usage_end_with_2(file, tmp_path):
    source = file(field())
    for words in (
        ("check", tmp_path / "no.nc", *ASKED),
        ("enforce", source, *ASKED, "--dry-run"),
        ("enforce", source, "--men", "u"),
        ("check", source, *ASKED, "--format", "xml"),
        ("enforce", source, *ASKED, "--std", "0", "--dry-run"),
    ):
        assert called(*words).returncode == 2, words


def test_a_table_of_totals_has_the_sums_of_numpy(file):
    source = file(field())
    sums = field().u.values.sum((1, 2))
    done = called("check", source, *ASKED, "--measure", "1", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["time"] for row in rows] == [f"2000-01-0{day}T00:00:00" for day in (1, 2, 3)]
    np.testing.assert_allclose([float(row["field"]) for row in rows], sums)
    np.testing.assert_allclose([float(row["gap"]) for row in rows], sums - sums[0], atol=1e-12)
    assert [row["closes"] for row in rows] == ["True", "False", "True"]
    done = called("check", source, *ASKED, "--measure", "1", "--format", "json")
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert [row["closes"] for row in told["rows"]] == [True, False, True]
    assert told["rows"][1]["relative"] == pytest.approx(2.4 / np.abs(field().u[1]).sum().item())


def test_a_table_has_lines_for_regions_members_and_totals_without_data(file):
    d = field().expand_dims(member=2).assign_coords(basin=("lat", [7, 7, 9, 9]))
    d["u"] = d.u * xr.DataArray([1.0, 1.1], dims="member")
    d["u"][:, 1] = np.nan
    law = FileLaw("u", ("lat", "lon"), regions="basin", measure=1.0)
    rows = check(d, law, member="member").rows()
    assert len(rows) == 3 * 2 * 2
    assert {row["region"] for row in rows} == {7, 9}
    assert [row["field"] for row in rows if row["time"].startswith("2000-01-02")] == [None] * 4


def test_the_report_of_enforce_has_the_same_formats(file, tmp_path):
    how = ("--std", "s", "-o", tmp_path / "o.nc", "--format", "json")
    done = called("enforce", file(field()), *ASKED, *how)
    told = json.loads(done.stdout)
    assert told["laws"][0]["closed_after"]
    assert all(row["closes"] for row in told["rows"])


def test_values_that_were_pushed_below_zero_are_noted():
    d = xr.Dataset({"u": ("x", [0.1, 2.0, 3.0])})
    law = FileLaw("u", "x", total=4.5, measure=1.0)
    (note,) = enforce(d, law, how="uniform").probconserv.report["notes"]
    assert "pushed below 0, to -0.1" in note
    assert enforce(d, law, how="proportional").probconserv.report["notes"] == []
    assert enforce(d, law, how="uniform", minimum=0.0).probconserv.report["notes"] == []


def test_a_point_that_one_member_lacks_stays_as_it_is_in_the_others():
    x = np.random.default_rng(3).normal(5, 1, (4, 2, 6))
    x[1, 0, 2] = np.nan
    d = xr.Dataset({"u": (("member", "time", "x"), x)})
    law = FileLaw("u", "x", total=xr.DataArray([24.0, 28.0], dims="time"), measure=1.0)
    for more in ({}, {"minimum": 0.0}):
        out = enforce(d, law, member="member", **more)
        np.testing.assert_array_equal(np.isnan(out.u), np.isnan(x))
        np.testing.assert_array_equal(out.u[:, 0, 2], x[:, 0, 2])
        counted = np.delete(out.u.values[:, 0], 2, axis=1).sum(1)
        np.testing.assert_allclose(counted, 24.0)
        assert out.probconserv.report["laws"][0]["closed_after"]


def test_a_proportional_correction_that_turns_signs_is_implausible():
    d = xr.Dataset({"u": ("x", [1.0, -1.0, 0.5, -0.4])})
    with pytest.warns(ImplausibleWarning, match="2 values of u changed sign"):
        enforce(d, FileLaw("u", "x", total=4.0, measure=1.0), how="proportional")
