"""Laws over blocks of points: in memory and in any chunks, against dense matrices and the core."""

import itertools

import dask
import numpy as np
import pytest
import torch
import xarray as xr
from oracle import kalman

import probconserv as pc
from probconserv.errors import InfeasibleError, InputError
from probconserv.files import FileLaw, enforce, enforce_file
from probconserv.support.rowwise import solved_by_row

pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")

TIMES, POINTS = 3, 7
BASINS = np.array([0, 2, 1, 1, 0, 2, 2])
CUTS = [None, {"time": 1}, {"x": 4}, {"x": 2, "time": 2}]
B = np.array([2.0, -1.0, 4.0, 1.5])


def half(*choices):
    """Half of all combinations of choices between two: any but one of them may be anything."""
    places = [p for p in itertools.product((0, 1), repeat=len(choices)) if sum(p) % 2 == 0]
    return [tuple(c[i] for c, i in zip(choices, p, strict=True)) for p in places]


@pytest.fixture(autouse=True)
def one_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def cut(dataset, chunks):
    return dataset if chunks is None else dataset.chunk(chunks)


def made(varies):
    """Regions with a total each, and everything with some weights of 0 and some below."""
    rng = np.random.default_rng(5)
    cells = rng.uniform(0.5, 2, (TIMES if varies else 1, POINTS)) + np.zeros((TIMES, 1))
    whole = rng.normal(size=POINTS) * [1, 1, 0, 1, 1, 0, 1]
    mean, std = rng.normal(size=(TIMES, POINTS)), rng.uniform(0.5, 2, (TIMES, POINTS))
    mean[2, 3] = np.nan
    dims = ("time", "x")
    return xr.Dataset(
        {
            "u": (dims, mean),
            "s": (dims, std),
            "cells": (dims, cells) if varies else ("x", cells[0]),
            "whole": ("x", whole),
            "basin": ("x", BASINS),
        }
    )


def laws_of(count, noise):
    regions = xr.DataArray(B[:3], {"basin": [0, 1, 2]}, "basin")
    first = FileLaw("u", "x", total=regions, measure="cells", regions="basin", noise=noise)
    second = FileLaw({"u": "whole"}, "x", total=B[3], measure=1.0, noise=noise)
    return [first, second][:count]


def matrix(dataset, count, time):
    """G of a time, (K, P)."""
    cells = np.broadcast_to(dataset.cells.values, (TIMES, POINTS))[time]
    parts = [cells * (n == BASINS) for n in range(3)]
    return np.stack(parts + [dataset.whole.values] * (count - 1))


@pytest.mark.parametrize("chunks", CUTS, ids=str)
@pytest.mark.parametrize(
    ("varies", "count", "correlation", "noise"), half([False, True], [1, 2], [0.0, 0.3], [0.0, 0.6])
)
def test_mean_and_std_are_the_dense_posterior(varies, count, correlation, noise, chunks):
    d = made(varies)
    out = enforce(cut(d, chunks), *laws_of(count, noise), std="s", correlation=correlation)
    mean, std = out.u.values, out.s.values
    for t in range(TIMES):
        here = d.u[t].notnull().values
        m, s, G = d.u.values[t, here], d.s.values[t, here], matrix(d, count, t)[:, here]
        sigma = correlation * np.outer(s, s) + (1 - correlation) * np.diag(s**2)
        wanted, covariance = kalman(m, sigma, G, B[: len(G)], noise)
        np.testing.assert_allclose(mean[t, here], wanted, atol=1e-11)
        np.testing.assert_allclose(std[t, here] ** 2, np.diag(covariance), atol=1e-11)
        np.testing.assert_array_equal(std[t, ~here], d.s.values[t, ~here])


@pytest.mark.parametrize("chunks", CUTS, ids=str)
@pytest.mark.parametrize(("count", "shrinkage", "noise"), half([1, 2], [0.0, 0.3], [0.0, 0.6]))
def test_members_have_the_dense_posterior_mean(count, shrinkage, noise, chunks):
    x = np.random.default_rng(6).normal(size=(9, TIMES, POINTS))
    d = made(False).drop_vars(["s"]).assign(u=(("member", "time", "x"), x))
    laws = laws_of(count, noise)
    new = enforce(cut(d, chunks), *laws, member="member", shrinkage=shrinkage).u.values
    for t in range(TIMES):
        G, sigma = matrix(d, count, t), np.cov(x[:, t].T)
        sigma = (1 - shrinkage) * sigma + shrinkage * np.diag(np.diag(sigma))
        mean, covariance = kalman(x[:, t].mean(0), sigma, G, B[: len(G)], noise)
        np.testing.assert_allclose(new[:, t].mean(0), mean, atol=1e-11)
        if not shrinkage:
            np.testing.assert_allclose(np.cov(new[:, t].T), covariance, atol=1e-11)
        if not noise:
            np.testing.assert_allclose(new[:, t] @ G.T, np.tile(B[: len(G)], (9, 1)), atol=1e-10)


@pytest.mark.parametrize("chunks", CUTS, ids=str)
@pytest.mark.parametrize("count", [1, 2])
def test_the_shrinkage_that_is_found_is_that_of_the_core(count, chunks):
    x = np.random.default_rng(7).normal(size=(9, TIMES, POINTS)) + np.arange(9)[:, None, None] / 2
    d = made(False).drop_vars(["s"]).assign(u=(("member", "time", "x"), x))
    out = enforce(cut(d, chunks), *laws_of(count, 0.0), member="member")
    field = pc.Ensemble(torch.tensor(x), batch_dims=1)
    parts = [d.cells.values * (n == BASINS) for n in range(3)]
    laws = [pc.linear(np.stack(parts), B[:3]), pc.weighted_sum(d.whole.values, float(B[3]))]
    post = pc.condition(field, *laws[:count])
    np.testing.assert_allclose(out.u.mean("member"), post.mean, atol=1e-10)


@pytest.mark.parametrize("chunks", [None, {"x": 100}, {"time": 1}], ids=str)
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_nearly_equal_laws_hold_as_exactly_in_blocks(tmp_path, correlation, chunks):
    rng = np.random.default_rng(8)
    u, std = rng.normal(2, 1, (2, 400)), rng.uniform(0.2, 1.5, (2, 400))
    weights = np.stack([np.ones(400), 1 + 1e-5 * rng.normal(size=400)])
    totals = weights @ (u + 0.1 * rng.normal(size=400))[0]
    d = xr.Dataset({"u": (("time", "x"), u), "s": (("time", "x"), std)})
    pairs = list(zip(weights, map(float, totals), strict=True))
    laws = [FileLaw("u", "x", total=b, measure=xr.DataArray(w, dims="x")) for w, b in pairs]
    if chunks is None:
        out = enforce(d, *laws, std="s", correlation=correlation)
    else:
        source, target = tmp_path / "in.nc", tmp_path / "out.nc"
        d.to_netcdf(source)
        enforce_file(source, target, *laws, std="s", correlation=correlation, chunks=chunks)
        out = xr.load_dataset(target)
    terms = np.abs(out.u.values) @ np.abs(weights).T + np.abs(totals)
    assert np.max(np.abs(out.u.values @ weights.T - totals) / terms) < 1e-13
    field = (
        pc.LowRank.correlated(u, std**2, correlation=correlation)
        if correlation
        else pc.Diagonal(u, std**2)
    )
    post = pc.condition(field, *(pc.weighted_sum(w, b) for w, b in pairs))
    np.testing.assert_allclose(out.u.values, post.mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(out.s.values, post.std, rtol=1e-4)


def test_laws_of_very_different_units_are_solved_together():
    rng = np.random.default_rng(9)
    small, large = np.full(POINTS, 1e-9), rng.uniform(1e8, 1e9, POINTS)
    d = made(False).assign(u=(("time", "x"), rng.normal(size=(TIMES, POINTS))))
    pairs = ((small, 2e-9), (large, 3e9))
    laws = [FileLaw("u", "x", total=b, measure=xr.DataArray(w, dims="x")) for w, b in pairs]
    out = enforce(d, *laws, std="s").u.values
    np.testing.assert_allclose(out @ np.stack([small, large]).T, [[2e-9, 3e9]] * 3, rtol=1e-11)


def plain(mean, std, total=1.0):
    d = xr.Dataset({"u": ("x", np.full(POINTS, mean)), "s": ("x", std)})
    return enforce(d, FileLaw("u", "x", total=total, measure=1.0, name="heat"), std="s")


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_a_std_that_is_none_is_refused(bad):
    std = np.ones(POINTS)
    std[2] = bad
    with pytest.raises(InputError, match="`std` is negative, infinite or missing at points that"):
        plain(0.0, std)


def test_a_field_that_is_infinite_is_refused():
    with pytest.raises(InputError, match=r"has infinite values. Missing ones are NaN"):
        plain(np.inf, np.ones(POINTS))


def test_rows_that_nothing_can_move_must_hold():
    with pytest.raises(InfeasibleError, match="1 totals cannot be met, the first of `heat`, by 1:"):
        plain(0.0, np.zeros(POINTS))
    assert not plain(0.0, np.zeros(POINTS), total=0.0).u.values.any()


def test_a_row_that_contradicts_others_is_named():
    d = made(False).fillna(0.0)
    laws = [
        FileLaw("u", "x", total=b, measure=1.0, name=name) for b, name in ((1.0, "a"), (2.0, "b"))
    ]
    with pytest.raises(InfeasibleError, match="3 totals cannot be met, the first of `b`, by 1:"):
        enforce(d, *laws, std="s")


@pytest.mark.parametrize("chunks", [None, {"x": 4}], ids=str)
def test_a_correlation_is_that_of_the_errors_of_one_variable(chunks):
    rng = np.random.default_rng(8)
    m, s = rng.normal(size=(2, POINTS)), rng.uniform(0.5, 2, (2, POINTS))
    d = xr.Dataset({"u": ("x", m[0]), "v": ("x", m[1]), "su": ("x", s[0]), "sv": ("x", s[1])})
    law = FileLaw({"u": 1.0, "v": -1.0}, "x", total=3.0, measure=1.0)
    out = enforce(cut(d, chunks), law, std={"u": "su", "v": "sv"}, correlation=0.4)
    zero = np.zeros((POINTS, POINTS))
    own = [0.4 * np.outer(e, e) + 0.6 * np.diag(e**2) for e in s]
    sigma, G = np.block([[own[0], zero], [zero, own[1]]]), np.repeat([[1.0, -1.0]], POINTS, 1)
    mean, covariance = kalman(m.ravel(), sigma, G, [3.0], 0.0)
    np.testing.assert_allclose([out.u, out.v], mean.reshape(2, POINTS))
    np.testing.assert_allclose([out.su, out.sv], np.diag(covariance).reshape(2, POINTS) ** 0.5)


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
@pytest.mark.parametrize("noise", [None, [0.0, 0.5, 0.5]])
def test_rows_that_share_no_point_are_solved_alike_in_arrays_and_tensors(kind, noise):
    own = [4.0, 0.0, 2.0]
    given = None if noise is None else kind(np.array(noise))
    seen, inverse = solved_by_row(kind(np.array(own)), given)
    wanted = np.diag(own) + np.diag(noise or [0.0] * 3)
    np.testing.assert_array_equal(np.diag(np.asarray(seen)), wanted)
    np.testing.assert_allclose(np.diag(np.asarray(inverse)), np.linalg.pinv(wanted), rtol=1e-15)
