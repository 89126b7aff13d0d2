"""The pages on real climate files: their scripts and blocks run, and print what they say."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import iris_sample_data
import numpy as np
import pytest
import xarray as xr
from commands import called, script

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / "howto" / f"climate_{name}.md" for name in ("std", "ensemble")]
DATA = Path(iris_sample_data.path)
SCRIPTS = ("air_temperature", "sea_surface")
pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A folder in which both scripts have run."""
    place = tmp_path_factory.mktemp("tutorial")
    for name in SCRIPTS:
        script(ROOT / "examples" / f"{name}.py", place)
    return place


@pytest.fixture(scope="module")
def page(there):
    """What every block of the pages says that it prints, and what it prints; the names they leave.

    Each page runs by itself.
    """
    block = re.compile(r"```(python|sh)\n(.*?)```(?:\n\n```text\n(.*?)```)?", re.DOTALL)
    found, left = [], {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(there)
        for path in PAGES:
            names: dict = {}
            blocks = block.findall(path.read_text())
            found += [(said, _printed(kind, code, names)) for kind, code, said in blocks]
            left |= names
    return found, left


def _printed(kind, code, names):
    if kind == "sh":
        program, *words = shlex.split(code.replace("\\\n", " "))
        done = called(*words)
        assert program == "probconserv"
        assert done.returncode in (0, 3), done.stderr  # some moves there are implausible
        return done.stdout
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(code, "a page", "exec"), names)
    return out.getvalue()


def agree(said, printed):
    """The same words and nearly the same numbers, as far as a line is not cut off by dots."""
    if said.endswith("..."):
        printed = printed[: len(said) - 3] + "..."
    theirs, ours = (list(map(float, NUMBER.findall(text))) for text in (said, printed))
    return NUMBER.sub("#", said).split() == NUMBER.sub("#", printed).split() and np.allclose(
        theirs, ours, rtol=0.1, atol=0.02
    )


def test_the_scripts_leave_pictures(there):
    for name, page in zip(SCRIPTS, PAGES, strict=True):
        assert f"python examples/{name}.py" in page.read_text()
        assert (there / "out" / f"{name}.png").stat().st_size > 10_000


def test_the_page_prints_what_it_says(page):
    blocks, _ = page
    assert len(blocks) == 9
    for said, printed in blocks:
        lines = zip(said.splitlines(), printed.splitlines(), strict=True)
        assert [line for line in lines if not agree(*line)] == []


def test_lines_with_other_words_or_other_numbers_do_not_agree():
    assert agree("error 0.93 K, 75 % inside", "error  0.95 K, 74 % inside")
    assert not agree("error 0.93 K, 75 % inside", "error 1.93 K, 75 % inside")
    assert not agree("it closes", "it does not close")
    assert agree("closes; off by ...", "closes; off by 1e-9")


def test_what_the_page_says_about_the_bias_is_so(page):
    names = page[1]
    mean, truth = names["area_mean"], names["truth"]
    before, after = (names[n]["air_temperature"] - truth for n in ("prediction", "conserving"))
    assert float(mean(before)[120:140].mean()) == pytest.approx(-0.6, abs=0.1)
    assert float(mean(before)[-10:].mean()) == pytest.approx(-5, abs=0.5)
    rises = mean(after**2) > mean(before**2)
    assert 0.05 < float(rises[:120].mean()) < 0.3
    assert not rises[140:].any()


def test_the_file_of_the_command_has_the_means_of_the_truth_by_areas_found_another_way(there, page):
    bands = np.diff(np.sin(np.deg2rad(15 - 0.625 + 1.25 * np.arange(37 + 1))))

    def means(field):  # a band of latitude is as wide as any other
        return np.average(field.values.astype(float).mean(-1), axis=-1, weights=bands)

    truth = means(page[1]["truth"])
    before, after = (
        means(xr.load_dataset(there / "out" / name)["air_temperature"])
        for name in ("air_temperature.nc", "conserving.nc")
    )
    assert abs(before - truth).max() > 5
    assert abs(after - truth).max() < 1e-4


def test_every_member_has_the_mean_of_the_truth_and_land_stays_land(there, page):
    source, moved = page[1]["source"], xr.load_dataset(there / "out" / "sea_conserving.nc")
    land = source["tos"].isnull()
    assert int(land.sum()) == 53617
    assert (moved["tos"].isnull() == land).all()
    areas = _areas(source["bounds_lat"].values, source["bounds_lon"].values)[~land.values[0]]
    means = [
        np.average(field[~land.values[0]], weights=areas) for field in moved["tos"].values[:, 0]
    ]
    true = np.average(source["tos"].values[~land.values], weights=areas)
    assert means == pytest.approx([true] * 8, abs=1e-3)  # flat cells; 1.4 before


def _areas(lat, lon):
    """Of four-cornered cells, flat: half of the cross product of the diagonals."""
    lat, lon = np.deg2rad(lat.astype(float)), np.deg2rad(lon.astype(float))
    corners = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], -1)
    a, b, c, d = np.moveaxis(corners, -2, 0)
    return np.linalg.norm(np.cross(c - a, d - b), axis=-1) / 2


def test_coordinates_bounds_attributes_and_types_are_those_of_the_source(there, page):
    source, moved = page[1]["source"], xr.load_dataset(there / "out" / "sea_conserving.nc")
    for name in set(source.variables) - {"tos"}:
        assert moved[name].variable.identical(source[name].variable), name
        assert moved[name].encoding["dtype"] == source[name].encoding["dtype"]
    assert moved["tos"].attrs == source["tos"].attrs
    for key in ("dtype", "_FillValue", "missing_value"):
        assert moved["tos"].encoding[key] == source["tos"].encoding[key]
    assert {k: moved.attrs[k] for k in source.attrs} == source.attrs
    assert "enforced tos over y, x" in moved.attrs["history"]
    (law,) = json.loads(moved.attrs["probconserv_report"])["laws"]
    assert not law["closed_before"]
    assert law["closed_after"]


def test_the_samples_are_not_changed(page):
    fresh = xr.load_dataset(DATA / "A1B_north_america.nc")["air_temperature"]
    assert fresh.identical(page[1]["truth"])


def test_packed_files_stay_packed_with_their_step_and_their_land(there, page):
    packed = xr.load_dataset(there / "out" / "repacked_0.5.nc")["tos"]
    assert packed.encoding["dtype"] == np.int16
    assert (packed.encoding["scale_factor"], packed.encoding["_FillValue"]) == (0.5, -32768)
    assert (packed.isnull() == page[1]["source"]["tos"].isnull()).all()
