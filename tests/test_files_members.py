"""What an ensemble does by default: members are not taken at their word."""

import numpy as np
import pytest
import torch
import xarray as xr
from oracle import kalman

import probconserv as pc
from probconserv.files import FileLaw, check, enforce


def field_of(members, seed=0):
    """Errors that are half smooth, larger at one end, on 400 points: truth and members."""
    rng = np.random.default_rng(seed)
    x = np.linspace(0, 1, 400)
    waves = np.exp(-(((x[:, None] - np.linspace(0, 1, 15)) / 0.08) ** 2))
    errors = rng.normal(size=(members + 1, 15)) @ waves.T + rng.normal(size=(members + 1, 400))
    drawn = np.sin(6 * x) + (0.2 + x) * errors
    return drawn[0], xr.Dataset({"u": (("member", "x"), drawn[1:])})


@pytest.mark.parametrize("members", [4, 50])  # few need shrinkage, many do not
def test_a_fair_total_does_no_harm(members):
    truths, drawn = zip(*(field_of(members, seed) for seed in range(60)), strict=True)
    truth, d = xr.DataArray(np.stack(truths), dims=("seed", "x")), xr.concat(drawn, "seed")
    out = enforce(d, FileLaw("u", "x", total=truth.sum("x"), measure=1.0), member="member")
    before, after = (((each.u.mean("member") - truth) ** 2).mean() for each in (d, out))
    assert float(after) < 1.01 * float(before)


@pytest.mark.parametrize("members", [4, 13])
def test_a_fair_total_moves_no_value_by_more_than_three_of_its_spreads(members):
    _, d = field_of(members)
    totals = d.u.sum("x")
    law = FileLaw("u", "x", total=totals + 0.5 * totals.std("member", ddof=1), measure=1.0)
    out = enforce(d, law, member="member")
    assert float((abs(out.u - d.u) / d.u.std("member", ddof=1)).max()) < 3


def test_the_covariance_is_mixed_with_one_that_has_the_spread_of_the_totals():
    _, d = field_of(13)
    x, g = d.u.values, np.ones((1, 400))
    out = enforce(d, FileLaw("u", "x", total=5.0, measure=1.0), member="member")
    sample, s = np.cov(x.T), x.std(0, ddof=1)
    wide, alone = np.outer(s, s), np.diag(s**2)
    spreads = [(g @ sigma @ g.T).item() for sigma in (sample, wide, alone)]
    c = (spreads[0] - spreads[2]) / (spreads[1] - spreads[2])
    share = 16 / (16 + 12)
    sigma = (1 - share) * sample + share * (c * wide + (1 - c) * alone)
    np.testing.assert_allclose((g @ sigma @ g.T).item(), spreads[0], rtol=1e-12)
    mean, _ = kalman(x.mean(0), sigma, g, [5.0])
    np.testing.assert_allclose(out.u.mean("member"), mean, atol=1e-10)
    post = pc.condition(pc.Ensemble(torch.tensor(x)), pc.weighted_sum(g[0], 5.0))
    np.testing.assert_allclose(post.mean, mean, atol=1e-10)
    np.testing.assert_allclose(post.members(), out.u, atol=1e-10)


def test_weights_of_both_signs_have_no_common_error_to_go_by():
    _, d = field_of(6)
    signs = xr.DataArray(np.where(np.arange(400) % 2, 1.0, -1.0), dims="x")
    out = enforce(d, FileLaw({"u": signs}, "x", total=1.0, measure=1.0), member="member")
    np.testing.assert_allclose((out.u * signs).sum("x"), 1.0, atol=1e-10)


GRID = ("member", "time", "lat", "lon")
LAT = np.linspace(-80, 80, 9)


@pytest.fixture
def incomplete():
    """Six members, one of which lacks a value; two bands of latitudes that overlap."""
    u = np.random.default_rng(0).normal(5, 0.1, (6, 1, 9, 12)).astype("f4")
    u[0, 0, 4, 3] = np.nan
    bands = {"south": ("lat", (LAT <= 30) * 1), "north": ("lat", (LAT >= -30) * 1)}
    return xr.Dataset({"u": (GRID, u), **bands}, {"lat": LAT, "lon": np.arange(12) * 30.0})


@pytest.mark.parametrize("chunks", [None, {}, {"lat": 4}])
def test_a_value_that_one_member_lacks_is_in_no_sum_of_two_laws(incomplete, chunks):
    laws = [FileLaw("u", ("lat", "lon"), average=5.0, where=w) for w in ("south", "north")]
    given = incomplete if chunks is None else incomplete.chunk(chunks)
    out = enforce(given, *laws, member="member").compute()
    found = xr.where(incomplete.u.isnull().any("member"), np.nan, out.u).astype(float)
    for name in ("south", "north"):
        weights = np.cos(np.radians(incomplete.lat)) * incomplete[name]
        np.testing.assert_allclose(found.weighted(weights).mean(("lat", "lon")), 5.0, rtol=1e-3)
    report = check(out, *laws, member="member")
    assert report.closes()
    assert "values that some members lack: 1. They count in no member's total" in str(report)
