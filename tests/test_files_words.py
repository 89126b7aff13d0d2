"""The command line speaks of options, and its errors say where."""

import numpy as np
import pytest
import xarray as xr
from commands import called

from probconserv import ProbConservError
from probconserv.cli.files import _options
from probconserv.cli.main import app
from probconserv.cli.words import in_options
from probconserv.files import FileLaw, enforce

OPTIONS = sorted(
    name
    for command in ("enforce", "check")
    for argument in app[command].assemble_argument_collection()
    for name in argument.names[:1]
    if name.startswith("--")
)


@pytest.mark.parametrize("option", sorted(set(OPTIONS)))
def test_every_option_is_said_as_an_option(option):
    name = option.strip("-").replace("-", "_")
    text = f"`{name}` is wrong: give `{name}=1`, or `{name}=True`, not `u`."
    said = f"`{option}` is wrong: give `{option} 1`, or `{option}`, not `u`."
    assert in_options(text, _options()) == said


def test_what_is_no_option_stays():
    assert in_options("`u` has `units`; see `condition`.", {"std"}) == (
        "`u` has `units`; see `condition`."
    )
    assert in_options("`path` /a/b.nc exists, `path` lies in /a", {"out"}) == (
        "/a/b.nc exists, `--out` lies in /a"
    )
    assert in_options("`std={'u': 1, 'v': ...}`", {"std"}) == "`--std u=1 v=...`"
    assert in_options("`variables`: no variable 'w'", {"mean"}) == "`--mean`: no variable 'w'"


def made():
    u = np.arange(24.0).reshape(3, 2, 4) + 1
    time = np.array(["2000-01-01", "2000-01-02", "2000-01-03"], "datetime64[ns]")
    grid = ("time", "lev", "x")
    data = {"u": (grid, u), "s": (grid, np.ones(u.shape))}
    return xr.Dataset(data, {"time": time, "lev": [10.0, 20.0]})


def test_a_variable_called_like_an_option_keeps_its_name(tmp_path):
    d = made().rename(u="total")
    d.to_netcdf(tmp_path / "in.nc")
    asked = ("--mean", "total", "--over", "x", "--measure", "1", "--dry-run")
    said = called("enforce", tmp_path / "in.nc", *asked).stderr
    assert "how should `total` be moved? Give `--how`" in said


def test_keys_of_a_file_of_laws_are_no_options(tmp_path):
    made().to_netcdf(tmp_path / "in.nc")
    (tmp_path / "laws.toml").write_text('[[law]]\nvariables = "u"\nover = "x"\nmeasure = "area"\n')
    done = called("check", tmp_path / "in.nc", "--laws", tmp_path / "laws.toml")
    assert "`measure`" in done.stderr
    assert "`--measure`" not in done.stderr


def error(d):
    """What is said of the dataset, in memory and read block by block."""
    law = FileLaw("u", "x", total=5.0, measure=1.0)
    said = []
    for each in (d, d.chunk(time=1)):
        with pytest.raises(ProbConservError) as raised:
            enforce(each, law, std="s").compute()
        said.append(str(raised.value))
    assert said[0] == said[1]
    return said[0]


def test_errors_on_std_name_time_and_level():
    d = made()
    d["s"][2, 1, 3] = -1.0
    assert error(d).startswith("`std` is negative")
    assert error(d).endswith("Look at time 2000-01-03, lev 20.")


def test_a_total_that_cannot_be_met_names_time_and_level():
    d = made()
    d["s"][1, 0] = 0.0
    assert "1 totals cannot be met" in error(d)
    assert error(d).endswith("Look at time 2000-01-02, lev 10.")


def test_a_file_says_the_same_and_names_regions(tmp_path):
    d = made()
    d["basin"] = ("x", [3, 3, 5, 5])
    d["s"][1, 0, 2:] = 0.0
    d.to_netcdf(tmp_path / "in.nc", encoding={name: {"chunksizes": (1, 2, 4)} for name in "us"})
    asked = ("--mean", "u", "--over", "x", "--measure", "1", "--total", "5", "--dry-run")
    how = ("--std", "s", "--regions", "basin", "--chunks", "time=1")
    said = called("enforce", tmp_path / "in.nc", *asked, *how)
    assert said.returncode == 2
    assert said.stderr.strip().endswith("Look at time 2000-01-02, lev 10, region 5.")
