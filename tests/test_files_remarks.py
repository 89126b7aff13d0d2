"""What the report says of its own accord: assumptions, units, members, and what is implausible."""

import json
import subprocess
import sys

import numpy as np
import pytest
import xarray as xr
from commands import called

from probconserv.errors import InputError
from probconserv.files import FileLaw, check, enforce

pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")

DAYS = np.array(["2000-01-01", "2000-01-02", "2000-01-03"], "datetime64[ns]")


def field(values=None, units="K", **attrs):
    """Three days on a plane of two by four cells."""
    u = np.random.default_rng(0).normal(288, 1, (3, 2, 4)) if values is None else values
    coords = {"time": DAYS, "y": [0.0, 1.0], "x": [0.0, 2.0, 4.0, 6.0]}
    return xr.Dataset({"u": (("time", "y", "x"), u, {"units": units} | attrs)}, coords)


def test_an_average_of_a_time_without_data_is_empty_in_tables(tmp_path):
    dataset = field()
    dataset["u"][1] = np.nan
    dataset.to_netcdf(tmp_path / "in.nc")
    words = ["check", tmp_path / "in.nc", "--mean", "u", "--over", "y", "x", "--average", "288"]
    rows = json.loads(called(*words, "--measure", "1", "--format", "json").stdout)["rows"]
    assert [row["total"] for row in rows] == [288.0, None, 288.0]
    lines = called(*words, "--measure", "1", "--format", "csv").stdout.splitlines()
    assert lines[2].startswith("u,2000-01-02T00:00:00,,,")


@pytest.mark.parametrize("methods", ["area: sum", "time: mean y: x: sum", "x: sum (comment: all)"])
def test_values_that_are_sums_over_their_cells_are_not_multiplied_by_areas(methods):
    dataset = field(cell_methods=methods)
    with pytest.raises(InputError, match=r"values of 'u' are sums .*`measure=1`"):
        check(dataset, FileLaw("u", ("y", "x"), total=1.0))
    law = FileLaw("u", ("y", "x"), total=float(dataset.u[0].sum()), measure=1.0)
    assert check(dataset.isel(time=[0]), law).closes()
    assert check(dataset, FileLaw("u", "time", total=1.0)).budgets  # no sum in time


@pytest.mark.parametrize("unit", ["m", "km"])
def test_metres_without_a_grid_mapping_are_said_to_be_a_plane(unit):
    dataset = field()
    for name in ("x", "y"):
        dataset[name].attrs["units"] = unit
    report = str(check(dataset, FileLaw("u", ("y", "x"))))
    assert "lengths in a plane (no grid mapping) from" in report
    assert "in a plane" not in str(check(field(), FileLaw("u", ("y", "x"))))


@pytest.mark.parametrize(("time", "rate"), [("months", "s-1"), ("years", "s-1"), ("hours", "yr-1")])
def test_months_and_years_are_no_lengths_of_time(time, rate):
    dataset = field().assign_coords(time=("time", [0.0, 1.0, 2.0], {"units": time}))
    dataset["rate"] = ("time", np.ones(3), {"units": f"K {rate}"})
    law = FileLaw("u", ("y", "x"), inflow="rate", measure=1.0)
    for known in (dataset, dataset.assign(u=dataset.u.assign_attrs(units="K"))):
        with pytest.raises(InputError, match=r"differs? in length\. .*days"):
            check(known, law)


def test_a_reader_that_has_enough_gets_no_traceback(tmp_path):
    field().to_netcdf(tmp_path / "in.nc")
    check = f"-m probconserv check {tmp_path}/in.nc --mean u --over y x --measure 1 --format csv"
    command = f"{sys.executable} {check} | true"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True)
    assert (done.returncode, done.stderr) == (141, b"")


def test_the_report_of_an_ensemble_counts_members_beside_totals():
    many = field() + xr.DataArray([0.0, 0.1, 0.3, 0.2], dims="member")
    report = str(check(many, FileLaw("u", ("y", "x"), measure=1.0), member="member"))
    assert "  3 totals for each of 4 members\n" in report
    assert "for each of" not in str(check(field(), FileLaw("u", ("y", "x"), measure=1.0)))


@pytest.mark.parametrize(
    ("units", "asked", "other"), [("K", 15.0, "degC"), ("degC", 288.1, "K"), ("K", 280.0, None)]
)
def test_an_average_that_is_off_by_the_zero_of_the_scale_is_implausible(units, asked, other):
    shift = 273.15 if units == "degC" else 0.0
    law = FileLaw("u", ("y", "x"), average=asked, measure=1.0)
    warnings = " ".join(check(field(field().u.values - shift, units), law).warnings)
    assert (f"is it in {other}?" in warnings) == (other is not None)


def test_the_verdict_is_that_of_the_correlation_that_the_update_has():
    dataset = field(np.full((3, 2, 4), 288.0))
    law = FileLaw("u", ("y", "x"), total=8 * 290.0, measure=1.0)  # 2 of a std off, all alike
    said = {}
    for rho in (0.0, 0.3, 0.6):
        new = enforce(dataset, law, std=1.0, correlation=rho)
        said[rho] = new.probconserv.report["laws"][0]["verdict"]
    assert "3 of 3 are off by up to 5.7 standard deviations if points are independent" in said[0.0]
    off = 16 / np.sqrt(0.7 * 8 + 0.3 * 64)  # of a sum of eight: more than 2.9, chance in 3 rows
    assert f"3 of 3 are off by up to {off:.1f} standard deviations if their corr" in said[0.3]
    assert said[0.6].endswith("with these standard deviations and a correlation of 0.6")


def test_values_that_leave_the_range_of_a_law_are_implausible():
    dataset = field(np.full((3, 2, 4), 1.0), units="1")
    law = {"variables": "u", "over": ("y", "x"), "total": 16.0, "measure": 1.0}
    with pytest.warns(match="24 values of u left the range in which the law is linear"):
        enforce(dataset, FileLaw(**law, linear=(0.0, 1.5)), how="uniform")
    assert enforce(dataset, FileLaw(**law, linear=(0.0, 2.0)), how="uniform").probconserv.report[
        "plausible"
    ]


@pytest.mark.parametrize(("variables", "ends"), [("u", [1.0]), ({"u": 1, "v": 1}, [0.0, 1.0])])
def test_the_range_of_a_law_has_two_ends_of_one_variable(variables, ends):
    with pytest.raises(
        InputError, match="`linear` is a pair, the least and the most, for one variable"
    ):
        FileLaw(variables, "x", linear=ends)


def test_the_report_says_that_std_are_those_without_bounds():
    dataset = field(np.full((3, 2, 4), 1.0))
    dataset["s"] = xr.ones_like(dataset.u)
    law = FileLaw("u", ("y", "x"), total=4.0, measure=1.0)
    bounded = enforce(dataset, law, std="s", minimum=0.4).probconserv.report
    assert any("standard deviations are those without bounds" in note for note in bounded["notes"])
    assert not enforce(dataset, law, std="s").probconserv.report["notes"]
