"""The page on the heat budget of the sea: its example runs, and prints what the page says."""

import contextlib
import io
import re
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "gallery" / "heat_budget.md").read_text()
NUMBER = re.compile(r"[-+]?\b\d+(?:\.\d+)?\b")
PARTS = {"shortwave": 1, "longwave": -1, "latent": -1, "sensible": -1}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What the example prints, the names it leaves, and where it ran."""
    place, out = tmp_path_factory.mktemp("heat_budget"), io.StringIO()
    plt.switch_backend("Agg")
    with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.syspath_prepend(ROOT / "examples")
        names = runpy.run_path(str(ROOT / "examples" / "heat_budget.py"), run_name="__main__")
    plt.close("all")
    return out.getvalue(), names, place


@pytest.fixture(scope="module")
def cells():
    """The whole years of the file, read in another way: (12, cells) by name, and weights."""
    file = xr.load_dataset(ROOT / "examples/sea_heat/esku_heat_budget.nc", decode_times=False)
    whole = file["FDH"].stack(cell=("ESKUY", "ESKUX")).dropna("cell", how="any")
    keys = dict(zip((*PARTS, "net"), ("FSR", "FUL", "FLH", "FSH", "FDH"), strict=True))
    fluxes = {k: file[key].stack(cell=("ESKUY", "ESKUX")) for k, key in keys.items()}
    fluxes = {k: x.sel(cell=whole["cell"]).values for k, x in fluxes.items()}
    weights = np.tile(np.cos(np.deg2rad(whole["ESKUY"].values)), (12, 1))
    return fluxes, weights / weights.sum()


def test_the_page_says_what_the_example_prints(ran):
    (said,) = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    printed = ran[0]
    assert NUMBER.sub("#", said).split() == NUMBER.sub("#", printed).split()
    theirs, ours = (list(map(float, NUMBER.findall(text))) for text in (said, printed))
    np.testing.assert_allclose(theirs, ours, rtol=0.01, atol=0.011)


def test_the_picture_is_drawn(ran):
    assert (ran[2] / "out" / "heat_budget.png").stat().st_size > 10_000


def test_the_file_is_out_of_balance_as_the_page_says(cells):
    fluxes, weights = cells
    assert (weights * fluxes["net"]).sum() == pytest.approx(5.45, abs=0.005)
    days = np.array([31, 28.2425, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])[:, None]
    assert np.average(fluxes["net"], weights=weights * days) == pytest.approx(5.38, abs=0.005)


def test_both_laws_hold_after_the_update(ran, cells):
    weights = cells[1]
    for post in (ran[1]["counts"], ran[1]["both"]):
        mean = {k: post[k].mean.numpy() for k in (*PARTS, "net")}
        together = sum(sign * mean[k] for k, sign in PARTS.items())
        assert abs(mean["net"] - together).max() < 1e-9
        assert abs((weights * mean["net"]).sum()) < 1e-9


def test_the_posterior_is_that_of_the_four_parts_and_one_sum(ran, cells):
    fluxes, weights = cells
    sampling, post = ran[1]["sea"].sampling, ran[1]["both"]
    bias = {k: 0.1 * fluxes[k] for k in PARTS}
    to_sum = {k: bias[k] * (weights * bias[k]).sum() + weights * sampling[k] for k in PARTS}
    of_sum = sum((weights * v).sum() for v in to_sum.values())
    total = sum(sign * (weights * fluxes[k]).sum() for k, sign in PARTS.items())
    for k, sign in PARTS.items():
        expected = fluxes[k] - sign * to_sum[k] * total / of_sum
        np.testing.assert_allclose(post[k].mean, expected, rtol=0, atol=1e-3)
    prior = sum(bias[k] ** 2 + sampling[k] for k in PARTS)
    left = prior - sum(to_sum.values()) ** 2 / of_sum
    assert float(post["net"].std.mean()) == pytest.approx(np.sqrt(left).mean(), rel=0.02)


def test_the_error_of_a_report_is_found_in_made_up_months(ran):
    rng, months = np.random.default_rng(1), 2 * np.pi * np.arange(12) / 12
    n = xr.DataArray(rng.integers(25, 400, (12, 30, 80)).astype(float), dims=("t", "y", "ESKUX"))
    smooth = 50 * np.cos(months - 1)[:, None, None] * np.linspace(0, 1, 30)[:, None]
    x = n.copy(data=smooth + 40 * rng.standard_normal(n.shape) / np.sqrt(n.values))
    spread = ran[1]["read"].__globals__["spread"]
    assert spread(x, n) == pytest.approx(40, rel=0.05)
    assert spread(x * 0 + smooth, n) == pytest.approx(0, abs=1e-6)
