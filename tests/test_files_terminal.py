"""Control characters of a file never reach a terminal: they are shown escaped."""

import re
import warnings

import numpy as np
import pytest
import xarray as xr
from commands import called

from probconserv.errors import InputError
from probconserv.files import FileLaw, check, check_file

EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\x7f\r\u202e"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of Zarr about object arrays
ASKED = ("--mean", "u", "--over", "x", "--measure", "1")


def field():
    return xr.Dataset(
        {
            "u": (("time", "x"), np.ones((2, 3)), {"units": f"K{EVIL}", "long_name": EVIL}),
            f"v{EVIL}": (("time", "x"), np.ones((2, 3)), {"units": "m"}),
            "basin": ("x", np.array([f"a{EVIL}", f"b{EVIL}", f"b{EVIL}"], object)),
        },
        {"time": ("time", [0.0, 1.0], {"units": f"days{EVIL}"})},
        {"history": EVIL},
    )


@pytest.fixture
def path(tmp_path):
    field().to_zarr(tmp_path / "in.zarr", zarr_format=2)  # NetCDF has no such names
    return tmp_path / "in.zarr"


@pytest.mark.parametrize(
    "words",
    [
        (*ASKED,),
        (*ASKED, "--regions", "basin"),
        (*ASKED, "--regions", "basin", "--format", "csv"),
        (*ASKED, "--regions", "basin", "--format", "json"),
        ("--mean", "w", "--over", "x"),
        ("--mean", "u", "--over", "x", "--inflow", f"v{EVIL}", "--measure", "1"),
        ("--mean", f"v{EVIL}", "--over", "x"),
        (),
    ],
)
def test_nothing_that_is_printed_has_control_characters(path, words):
    done = called("check", path, *words)
    assert done.returncode in (0, 1, 2, 3)
    assert done.stdout + done.stderr
    assert not CONTROL.search(done.stdout + done.stderr)


def test_they_are_shown_escaped(path):
    said = called("check", path, *ASKED).stdout
    assert r"in (K\x1b0;owned\x07\x1b31m\x9b2J\x7f\r\u202e)" in said  # units lose brackets


def test_a_unit_does_not_make_a_line_of_its_own(tmp_path):
    forged = xr.Dataset({"u": ("x", np.ones(3), {"units": "K\nimplausible: no"})})
    report = check(forged, FileLaw("u", "x", total=3.0, measure=1.0))
    assert not [line for line in report.text().splitlines() if line.startswith("implausible")]


def test_messages_of_errors_and_warnings_are_escaped_in_python_too():
    with pytest.raises(InputError, match=r"`u` and 'x\\x1b\[1m'"):
        raise InputError("`u` and 'x\x1b[1m'")
    data = xr.Dataset({"u\x1b": (("time", "x"), [[1.0, 1e20]] * 2)}, {"time": [0.0, 1.0]})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        check(data, FileLaw("u\x1b", "x", measure=1.0)).warn_if_implausible()
    assert seen
    assert not CONTROL.search(str(seen[0].message))


def test_escapes_in_the_names_of_groups_are_escaped(tmp_path):
    field().to_zarr(tmp_path / "in.zarr", group="day\x1b[1m", zarr_format=2)
    said = called("check", tmp_path / "in.zarr", *ASKED).stderr
    assert r"day\x1b[1m" in said


def test_plain_text_of_other_scripts_stays(tmp_path):
    names = xr.Dataset({"Größe": ("x", np.ones(3), {"units": "µm"})})
    assert "Größe, summed over x in µm" in str(
        check(names, FileLaw("Größe", "x", 3.0, measure=1.0))
    )
    names.to_netcdf(tmp_path / "in.nc")
    with pytest.raises(InputError, match="Größe"):
        check_file(tmp_path / "in.nc", FileLaw("w", "x", 3.0, measure=1.0))
