"""Means and standard deviations in a dataset against the core and dense matrices."""

import json

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from oracle import kalman

import probconserv as pc
from probconserv.files import FileLaw, check, enforce

SPACE = ("lev", "lat", "lon")
SHAPE = (2, 3, 4, 5)


def made(seed=0):
    """u and its std over time, lev, lat, lon, with areas, volumes and basins."""
    rng = np.random.default_rng(seed)
    dims = ("time", *SPACE)
    return xr.Dataset(
        {
            "u": (dims, rng.normal(2, 1, SHAPE)),
            "s": (dims, rng.uniform(0.2, 1.5, SHAPE)),
            "area": (SPACE[1:], rng.uniform(1, 2, SHAPE[2:])),
            "volume": (SPACE, rng.uniform(1, 2, SHAPE[1:])),
            "basin": ("lat", [7.0, 3.0, 7.0, np.nan]),
            "everywhere": ("lat", [2, 1, 1, 0]),
        },
        {"time": [0.0, 1.5], "lev": [10.0, 20.0, 40.0]},
    )


def rows(dataset, *parts):
    """G as (rows, points) from arrays that broadcast to the space of the dataset."""
    like = xr.zeros_like(dataset.volume)
    return np.stack([(like + part).transpose(*SPACE).values.ravel() for part in parts])


def one(d, noise):
    law = FileLaw("u", SPACE, total=200.0, measure="volume", noise=noise)
    return [law], rows(d, d.volume), [200.0]


def regions(d, noise):
    total = xr.DataArray([70.0, 30.0], {"basin": [7, 3]}, "basin")
    law = FileLaw("u", SPACE, total=total, measure="volume", regions="basin", noise=noise)
    return [law], rows(d, *(d.volume * (d.basin == b) for b in (3, 7))), [30.0, 70.0]


def overlapping(d, noise):
    north = d.everywhere > 0
    laws = [
        FileLaw("u", SPACE, total=200.0, measure="volume", noise=noise),
        FileLaw("u", SPACE, total=90.0, measure=1.0, where=north, noise=2 * noise, name="north"),
    ]
    return laws, rows(d, d.volume, north.astype(float)), [200.0, 90.0]


def redundant(d, noise):
    total = xr.DataArray([40.0, 100.0, 60.0], {"everywhere": [0, 1, 2]}, "everywhere")
    laws = [
        FileLaw("u", SPACE, total=200.0, measure="volume", noise=noise),
        FileLaw("u", SPACE, total=total, measure="volume", regions="everywhere", noise=noise),
    ]
    parts = [d.volume * (d.everywhere == n) for n in range(3)]
    return laws, rows(d, d.volume, *parts), [200.0, 40.0, 100.0, 60.0]


def levels_and_all(d, noise):
    total = xr.DataArray([50.0, 60.0, 70.0], {"lev": d.lev}, "lev")
    laws = [
        FileLaw("u", ("lat", "lon"), total=total, measure="area", noise=noise),
        FileLaw("u", SPACE, total=200.0, measure="volume", noise=noise),
    ]
    parts = [d.area * (d.lev == level) for level in d.lev.values]
    return laws, rows(d, *parts, d.volume), [50.0, 60.0, 70.0, 200.0]


CASES = [one, regions, overlapping, redundant, levels_and_all]


def flat(array):
    return array.transpose("time", *SPACE).values.reshape(SHAPE[0], -1)


def noises(case, noise, count):
    return np.array([noise, 2 * noise]) if case is overlapping else np.full(count, noise)


@pytest.mark.parametrize("noise", [0.0, 3.0])
@pytest.mark.parametrize("correlation", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("case", CASES)
def test_mean_and_std_are_those_of_dense_algebra_at_every_time(case, correlation, noise):
    if correlation == 1 and not noise:
        case = one  # a common direction cannot meet two totals
    d = made()
    laws, G, b = case(d, noise)
    out = enforce(d, *laws, std="s", correlation=correlation)
    for t in range(SHAPE[0]):
        mean, std = flat(d.u)[t], flat(d.s)[t]
        tied = std * (G != 0).any(0)  # points that no law counts stay out of it
        sigma = correlation * np.outer(tied, tied) + np.diag(std**2 - correlation * tied**2)
        new, covariance = kalman(mean, sigma, G, np.array(b), noises(case, noise, len(G)))
        np.testing.assert_allclose(flat(out.u)[t], new, rtol=1e-10, atol=1e-10)
        variance = np.diag(covariance).clip(0)
        np.testing.assert_allclose(flat(out.s)[t] ** 2, variance, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("noise", [0.0, 3.0])
@pytest.mark.parametrize("correlation", [0.0, 0.4])
@pytest.mark.parametrize("case", [one, overlapping])
def test_mean_and_std_are_those_of_the_core(case, correlation, noise):
    d = made(1)
    laws, G, b = case(d, noise)
    out = enforce(d, *laws, std="s", correlation=correlation)
    mean, std = torch.tensor(flat(d.u)), torch.tensor(flat(d.s))
    field = pc.LowRank(mean, correlation**0.5 * std[None], (1 - correlation) * std**2)
    scale = noises(case, noise, len(G))
    parts = [pc.linear(G[[i]], [b[i]], noise=scale[i]) for i in range(len(G))]
    post = pc.condition(field, *parts)
    np.testing.assert_allclose(flat(out.u), post.mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(flat(out.s), post.std, rtol=0, atol=1e-8)


def test_every_level_by_itself_is_a_batch_of_the_core():
    d = made(2)
    law = FileLaw("u", ("lat", "lon"), total=40.0, measure="area", noise=0.5)
    out = enforce(d, law, std="s", correlation=0.3)
    mean, std = torch.tensor(d.u.values), torch.tensor(d.s.values)
    field = pc.LowRank(mean, 0.3**0.5 * std[None], 0.7 * std**2, event_dims=2)
    post = pc.condition(field, pc.weighted_sum(d.area.values, 40.0, noise=0.5))
    np.testing.assert_allclose(out.u.values, post.mean, rtol=0, atol=1e-10)
    np.testing.assert_allclose(out.s.values, post.std, rtol=0, atol=1e-10)


def test_two_space_dimensions_with_cells_that_change_in_time():
    d = made(3).isel(lev=0, drop=True)
    sizes = xr.DataArray(np.random.default_rng(4).uniform(1, 2, (2, 4, 5)), dims=d.u.dims)
    out = enforce(d, FileLaw("u", ("lat", "lon"), total=50.0, measure=sizes), std="s")
    for t in range(2):
        field = pc.Diagonal(d.u.values[t], d.s.values[t] ** 2)
        post = pc.condition(field, pc.weighted_sum(sizes.values[t], 50.0))
        np.testing.assert_allclose(out.u.values[t], post.mean, rtol=0, atol=1e-10)
        np.testing.assert_allclose(out.s.values[t], post.std, rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "order", [("lat", "lon", "lev", "time"), ("lon", "time", "lat", "lev"), ("lev", "lat", "time")]
)
def test_the_order_of_dimensions_does_not_matter_and_is_kept(order):
    d = made()
    order = [*order, *(dim for dim in d.u.dims if dim not in order)]
    law = FileLaw("u", ("lon", "lev", "lat"), total=200.0, measure="volume")
    straight = enforce(d, law, std="s", correlation=0.2)
    turned = d.assign(u=d.u.transpose(*order), s=d.s.transpose("lat", ...))
    out = enforce(turned, law, std="s", correlation=0.2)
    assert out.u.dims == tuple(order)
    assert out.s.dims == turned.s.dims
    for name in "us":
        xr.testing.assert_allclose(out[name].transpose(*d.u.dims), straight[name], rtol=1e-12)


def test_a_std_that_lacks_dimensions_gets_them():
    d = made()
    law = FileLaw("u", SPACE, total=200.0, measure="volume")
    short = enforce(d.assign(s=d.s.isel(time=0, lon=2, drop=True)), law, std="s")
    full = enforce(
        d.assign(s=(d.s.isel(time=0, lon=2) + 0 * d.u).transpose(*d.u.dims)), law, std="s"
    )
    assert short.s.dims == d.u.dims
    for name in "us":
        np.testing.assert_allclose(short[name].values, full[name].values, rtol=1e-12)


def test_a_number_as_std_moves_points_alike_and_adds_no_variable():
    d = made()
    out = enforce(d, FileLaw("u", SPACE, total=200.0, measure=1.0), std=0.7)
    change = (out.u - d.u).values
    per_point = (200.0 - d.u.sum(SPACE).values) / 60
    np.testing.assert_allclose(change, np.broadcast_to(per_point[:, None, None, None], SHAPE))
    assert set(out.variables) == set(d.variables)


def test_a_standard_deviation_for_what_no_law_moves_is_refused():
    law = FileLaw("u", SPACE, total=200.0, measure="volume")
    with pytest.raises(pc.errors.InputError, match="`std` is given for 'v', which no law moves"):
        enforce(made(), law, std={"u": "s", "v": 1.0})


def test_laws_on_different_variables_do_not_disturb_each_other():
    d = made().assign(v=made(5).u, r=made(5).s)
    on_u = FileLaw("u", SPACE, total=200.0, measure="volume")
    on_v = FileLaw("v", ("lat", "lon"), total=-3.0, measure="area")
    both = enforce(d, on_u, on_v, std={"u": "s", "v": "r"})
    for law, names, std in ((on_u, "us", {"u": "s"}), (on_v, "vr", {"v": "r"})):
        alone = enforce(d, law, std=std)
        for name in names:
            np.testing.assert_array_equal(both[name].values, alone[name].values)


def test_the_accessor_does_the_same():
    d = made()
    law = FileLaw("u", SPACE, total=200.0, measure="volume")
    xr.testing.assert_equal(d.probconserv.enforce(law, std="s"), enforce(d, law, std="s"))
    assert not d.probconserv.check(law).closes()


def test_everything_else_is_kept_and_the_input_is_not_modified():
    d = made()
    d["u"] = d.u.astype("float32")
    d["u"].attrs, d["u"].encoding = {"units": "K"}, {"zlib": True, "_FillValue": -9.0}
    d["s"].attrs, d["s"].encoding = {"long_name": "spread"}, {"complevel": 3}
    d["other"] = ("lat", list("abcd"))
    d = d.assign_coords(place=("lat", [1, 2, 3, 4])).assign_attrs(history="made", title="fields")
    before = d.copy(deep=True)
    out = enforce(d, FileLaw("u", SPACE, total=200.0, measure="volume", name="heat"), std="s")
    xr.testing.assert_identical(d, before)
    assert d.u.encoding == before.u.encoding == out.u.encoding
    assert out.s.encoding == {"complevel": 3}
    assert out.u.dtype == np.float32
    assert out.s.dtype == np.float64
    assert list(out.variables) == list(d.variables)
    rest = [each.drop_vars(["u", "s"]).assign_attrs(d.attrs) for each in (out, d)]
    del rest[0].attrs["probconserv_report"]
    xr.testing.assert_identical(*rest)
    assert out.u.attrs == d.u.attrs
    assert out.s.attrs == d.s.attrs
    first, second = out.history.split("\n")
    assert first == "made"
    assert second.endswith(": enforced heat over lev, lat, lon")
    assert out.title == "fields"


def test_the_report_is_json_with_the_imbalance_before_and_after():
    d = made()
    out = enforce(d, FileLaw("u", SPACE, total=200.0, measure="volume"), std="s", minimum=0.0)
    report = json.loads(out.probconserv_report)
    (law,) = report["laws"]
    has, terms = (d.u * d.volume).sum(SPACE), (abs(d.u) * d.volume).sum(SPACE)
    worst = (abs(has - 200) / np.maximum(terms, 200)).max()
    assert law["imbalance_before"] == pytest.approx(float(worst))
    assert law["imbalance_after"] < 1e-14
    assert (law["closed_before"], law["closed_after"]) == (False, True)
    assert (law["totals"], law["variables"], law["over"]) == (2, ["u"], list(SPACE))
    assert (report["minimum"], report["maximum"], report["outside_after"]) == (0, None, {})


def test_check_tells_whether_the_budget_closes_and_changes_nothing():
    d = made()
    law = FileLaw("u", SPACE, total=200.0, measure="volume")
    assert not check(d, law).closes()
    report = check(enforce(d, law, std="s"), law, std="s")
    assert report.closes()
    assert "now: closes" in str(report)


def test_check_explains_a_total_that_is_implausible():
    d = made().isel(time=0, drop=True)
    report = check(d, FileLaw("u", SPACE, total=1e6, measure="volume"), std="s")
    assert "1 of 1 totals are more than 5 standard deviations off" in str(report)
    without = str(check(d, FileLaw("u", SPACE, total=1e6, measure="volume")))
    assert "1 of 1 totals move the field by more than its own standard deviation" in without


@given(st.integers(0, 10**6), st.floats(0, 0.9), st.sampled_from([1e-30, 1.0, 1e30]))
def test_any_budget_closes_and_the_mean_moves_least(seed, correlation, scale):
    rng = np.random.default_rng(seed)
    mean, std, w = (rng.normal(size=5), rng.uniform(0.1, 2, 5), rng.uniform(-1, 2, 5))
    d = xr.Dataset({"u": ("x", scale * mean), "s": ("x", scale * std), "w": ("x", w)})
    total = scale * rng.normal()
    law = FileLaw({"u": "w"}, "x", total=total, measure=1.0)
    out = enforce(d, law, std="s", correlation=correlation).u.values / scale
    assert abs(out @ w - total / scale) <= 1e-11 * (abs(out) @ abs(w) + abs(total / scale))
    sigma = correlation * np.outer(std, std) + (1 - correlation) * np.diag(std**2)
    kkt = np.block([[np.linalg.inv(sigma), w[:, None]], [w[None], np.zeros((1, 1))]])
    moved = np.linalg.solve(kkt, [0.0] * 5 + [total / scale - mean @ w])[:5]
    np.testing.assert_allclose(out - mean, moved, rtol=1e-7, atol=1e-9)
