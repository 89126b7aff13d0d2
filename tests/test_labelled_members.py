"""Ensembles in a dataset against the core's LowRank fields and the Kalman filter."""

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import kalman

import probconserv as pc
from probconserv.errors import InfeasibleError, InputError
from probconserv.files import FileLaw, check, enforce

SPACE = ("lat", "lon")


def made(members=6, seed=0, times=3):
    rng = np.random.default_rng(seed)
    shape = {"time": times, "member": members, "lat": 4, "lon": 5}
    return xr.Dataset(
        {
            "u": (tuple(shape), rng.normal(2, 1, tuple(shape.values()))),
            "area": (SPACE, rng.uniform(1, 2, (4, 5))),
            "basin": ("lat", [0, 1, 1, 2]),
        },
        {"time": np.arange(times) * 2.0, "member": 10 * np.arange(members)},
    )


def members(dataset, name="u"):  # (T, N, P)
    values = dataset[name].transpose("time", "member", *SPACE).values
    return values.reshape(*values.shape[:2], -1)


def covariance(x):
    return np.cov(x, rowvar=False)


def shrunk(x, shrinkage):
    full = covariance(x)
    return (1 - shrinkage) * full + shrinkage * np.diag(np.diag(full))


def total(dataset):
    return (dataset.u * dataset.area).sum(SPACE)


@pytest.mark.parametrize("shrinkage", [0.0, None, 0.4, 1.0])
def test_every_member_gets_a_common_total(shrinkage):
    d = made()
    out = enforce(
        d, FileLaw("u", SPACE, total=70.0, measure="area"), member="member", shrinkage=shrinkage
    )
    np.testing.assert_allclose(total(out), 70.0, rtol=1e-13)


def test_every_member_keeps_its_own_initial_total():
    d = made()
    out = enforce(d, FileLaw("u", SPACE, measure="area"), member="member")
    np.testing.assert_allclose(total(out), 0 * total(d) + total(d).isel(time=0), rtol=1e-13)
    np.testing.assert_allclose(out.u[0], d.u[0], rtol=1e-12)


def test_members_can_have_totals_given_in_any_order_of_axes():
    d = made()
    wanted = total(d).transpose("member", "time") + 3.0
    out = enforce(d, FileLaw("u", SPACE, total=wanted, measure="area"), member="member")
    np.testing.assert_allclose(total(out), wanted.transpose("time", "member"), rtol=1e-13)


@pytest.mark.parametrize("noise", [0.0, 4.0])
@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_the_mean_is_that_of_the_core(shrinkage, noise):
    d = made()
    law = FileLaw("u", SPACE, total=70.0, measure="area", noise=noise)
    out = enforce(d, law, member="member", shrinkage=shrinkage)
    x = torch.tensor(members(d)).movedim(1, 0)  # (N, T, P)
    field = pc.Ensemble(x, batch_dims=1, shrinkage=shrinkage)
    post = pc.condition(field, pc.weighted_sum(d.area.values.ravel(), 70.0, noise=noise))
    np.testing.assert_allclose(members(out).mean(1), post.mean, rtol=0, atol=1e-10)


@pytest.mark.parametrize("noise", [0.0, 0.5, 40.0])
@pytest.mark.parametrize("regions", [None, "basin"])
def test_without_shrinkage_mean_and_covariance_are_those_of_the_kalman_filter(noise, regions):
    d = made(members=8)
    b = xr.DataArray([20.0, 35.0, 17.0], {"basin": [0, 1, 2]}, "basin") if regions else 70.0
    law = FileLaw("u", SPACE, total=b, measure="area", regions=regions, noise=noise)
    out = enforce(d, law, member="member", shrinkage=0.0)
    parts = [d.area * (d.basin == n) for n in range(3)] if regions else [d.area]
    G = np.stack([part.values.ravel() for part in parts])
    for before, after in zip(members(d), members(out), strict=True):
        b_rows = np.atleast_1d(np.asarray(b))
        mean, sigma = kalman(before.mean(0), covariance(before), G, b_rows, noise)
        np.testing.assert_allclose(after.mean(0), mean, rtol=0, atol=1e-10)
        np.testing.assert_allclose(covariance(after), sigma, rtol=0, atol=1e-10)


def test_the_mean_with_shrinkage_and_regions_is_that_of_dense_algebra():
    d = made()
    b = xr.DataArray([17.0, 20.0, 35.0], {"basin": [2, 0, 1]}, "basin")
    law = FileLaw("u", SPACE, total=b, measure="area", regions="basin", noise=0.7)
    out = enforce(d, law, member="member", shrinkage=0.2)
    G = np.stack([(d.area * (d.basin == n)).values.ravel() for n in range(3)])
    for before, after in zip(members(d), members(out), strict=True):
        mean, _ = kalman(before.mean(0), shrunk(before, 0.2), G, [20.0, 35.0, 17.0], 0.7)
        np.testing.assert_allclose(after.mean(0), mean, rtol=0, atol=1e-10)


def test_deviations_that_do_not_change_the_total_stay():
    rng = np.random.default_rng(2)
    d = made(times=1)
    x, weights = members(d)[0], d.area.values.ravel()
    x -= np.outer(x @ weights, weights) / (weights @ weights)  # every member has the total 0
    x += rng.normal(size=(6, 1)) * np.linspace(0, 1, 20)  # and now one direction has some
    d["u"] = d.u.copy(data=x.reshape(1, 6, 4, 5))
    out = members(
        enforce(d, FileLaw("u", SPACE, total=1.0, measure="area"), member="member", shrinkage=0.0)
    )[0]
    before, after = x - x.mean(0), out - out.mean(0)
    amounts = before @ weights
    still = before - np.outer(amounts, amounts @ before) / (amounts @ amounts)
    np.testing.assert_allclose(after, still, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_ensemble_whose_members_have_that_total_stays(dtype):
    law = FileLaw("u", SPACE, total=50.0, measure="area")
    d = made()
    once = enforce(d.assign(u=d.u.astype(dtype)), law, member="member", shrinkage=0.0)
    twice = enforce(once, law, member="member", shrinkage=0.0)
    np.testing.assert_array_equal(twice.u, once.u)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_members_that_have_one_total_cannot_get_another_without_shrinkage(dtype):
    first, second = (FileLaw("u", SPACE, total=total, measure="area") for total in (50.0, 60.0))
    d = made()
    once = enforce(d.assign(u=d.u.astype(dtype)), first, member="member", shrinkage=0.0)
    with pytest.raises(InfeasibleError, match="by 10: the members' spread leaves nothing to move"):
        enforce(once, second, member="member", shrinkage=0.0)
    out = enforce(once, second, member="member")
    np.testing.assert_allclose(total(out), 60.0, rtol=1e-6)


def test_more_totals_than_members_need_shrinkage():
    d = made(members=3)
    law = FileLaw("u", "lon", total=11.0, measure=1.0)
    tied = FileLaw("u", SPACE, total=44.0, measure=1.0)
    with pytest.raises(InfeasibleError, match="totals cannot be met, the first of `u`"):
        enforce(d, law, tied, member="member", shrinkage=0.0)
    out = enforce(d, law, tied, member="member")
    np.testing.assert_allclose(out.u.sum("lon"), 11.0, rtol=1e-12)


@pytest.mark.parametrize("noise", [0.0, 2.0])
def test_jointly_over_time_is_one_update_of_times_and_space(noise):
    d = made(members=8)
    law = FileLaw("u", SPACE, total=70.0, measure="area", noise=noise)
    out = enforce(d, law, member="member", shrinkage=0.25, jointly="time")
    x = members(d).transpose(1, 0, 2).reshape(8, -1)  # (N, T P)
    G = np.kron(np.eye(3), d.area.values.ravel())
    mean, _ = kalman(x.mean(0), shrunk(x, 0.25), G, np.full(3, 70.0), noise)
    np.testing.assert_allclose(members(out).mean(1).ravel(), mean, rtol=0, atol=1e-10)
    field = pc.LowRank(
        torch.tensor(x.mean(0).reshape(3, 20)),
        torch.tensor(0.75**0.5 * (x - x.mean(0)).reshape(8, 3, 20) / 7**0.5),
        torch.tensor(0.25 * x.var(0, ddof=1).reshape(3, 20)),
        event_dims=2,
    )
    post = pc.condition(field, pc.weighted_sum(d.area.values.ravel(), 70.0, noise=noise))
    np.testing.assert_allclose(members(out).mean(1), post.mean, rtol=0, atol=1e-10)


def test_one_law_over_two_ensembles_with_a_negative_factor():
    d = made().assign(v=made(seed=3).u)
    law = FileLaw({"u": 1.0, "v": -0.5}, SPACE, total=10.0, measure="area")
    out = enforce(d, law, member="member", shrinkage=0.3)
    both = ((out.u - 0.5 * out.v) * out.area).sum(SPACE)
    np.testing.assert_allclose(both, 10.0, rtol=1e-12)
    weights = d.area.values.ravel()
    G = np.concatenate([weights, -0.5 * weights])[None]
    for t in range(3):
        x = np.concatenate([members(d)[t], members(d, "v")[t]], axis=1)
        mean, _ = kalman(x.mean(0), shrunk(x, 0.3), G, [10.0])
        after = np.concatenate([members(out)[t], members(out, "v")[t]], axis=1)
        np.testing.assert_allclose(after.mean(0), mean, rtol=0, atol=1e-10)


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
def test_a_point_that_one_member_lacks_counts_in_none_and_stays_as_it_is():
    d = made()
    d["u"][1, 2, 3, 4] = np.nan
    law = FileLaw("u", SPACE, total=70.0, measure="area")
    out = enforce(d, law, member="member")
    np.testing.assert_array_equal(out.u[1, :, 3, 4], d.u[1, :, 3, 4])
    np.testing.assert_allclose(total(out.where(d.u.notnull().all("member"))), 70.0)
    without = enforce(d.assign(area=d.area.where(d.u[1, 2].notnull())), law, member="member")
    np.testing.assert_allclose(out.u[1], without.u[1], rtol=1e-12)


def test_points_that_no_law_counts_stay_as_they_are_also_with_gaps():
    d = made().astype("float32")
    d["u"][1, 2, 3, 4], d["u"][0, 1, 3, 2] = np.nan, np.inf
    out = enforce(
        d, FileLaw("u", SPACE, total=9.0, measure="area", where=d.basin < 2), member="member"
    )
    np.testing.assert_array_equal(out.u[:, :, 3], d.u[:, :, 3])
    assert out.u.dtype == np.float32
    assert out.u.dims == d.u.dims


def test_the_report_of_an_ensemble_has_the_worst_member():
    d = made()
    law = FileLaw("u", SPACE, total=70.0, measure="area")
    (budget,) = check(d, law, member="member").budgets
    np.testing.assert_allclose(budget.before.transpose(*total(d).dims), total(d), rtol=1e-13)
    terms = (abs(d.u.mean("member")) * d.area).sum(SPACE)
    worst = (abs(total(d) - 70) / np.maximum(terms, 70)).max("member")
    np.testing.assert_allclose(budget.imbalance(), worst, rtol=1e-12)
    assert check(enforce(d, law, member="member"), law, member="member").closes()


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.floats(0.01, 1), st.sampled_from([1e-30, 1.0, 1e30]))
@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
def test_any_ensemble_conserves_at_any_scale(seed, shrinkage, scale):
    d = made(members=4, seed=seed, times=2)
    d["u"] = scale * d.u
    law = FileLaw("u", SPACE, total=30.0 * scale, measure="area", regions="basin")
    out = enforce(d, law, member="member", shrinkage=shrinkage)
    for n in range(3):
        sums = (out.u * out.area).where(out.basin == n).sum(SPACE) / scale
        np.testing.assert_allclose(sums, 30.0, rtol=1e-11)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"member": "number"}, "`member`: no dimension 'number' here. Did you mean 'member'?"),
        ({"member": "membr"}, "Did you mean 'member'?"),
        ({"member": "member", "std": 1.0}, "`std` and `member` are two ways"),
        ({"member": "member", "correlation": 0.1}, "`correlation` is for `std`"),
        ({"member": "member", "shrinkage": 1.5}, "`shrinkage` must lie between 0 and 1, got 1.5"),
        (
            {"member": "member", "jointly": "tme"},
            "`jointly`: no dimension 'tme' here. Did you mean",
        ),
    ],
)
def test_arguments_of_ensembles_are_checked(how, text):
    with pytest.raises(InputError, match=text.replace("?", r"\?")):
        enforce(made(), FileLaw("u", SPACE, total=70.0, measure="area"), **how)


def test_laws_cannot_differ_between_members():
    d = made()
    each = xr.DataArray(np.arange(1.0, 7), {"member": d.member}, "member")
    plain = {"over": SPACE, "total": 70.0}
    for law, text in (
        (FileLaw("u", **plain, measure="area", noise=each), "`noise` has a dimension 'member'"),
        (FileLaw({"u": each}, **plain, measure="area"), "`factor of u` changes along 'member'"),
        (FileLaw("u", **plain, measure="area", where=each > 1), "`where` has a dimension 'member'"),
        (FileLaw("u", **plain, measure="area", regions=each), "`regions` has a dimension 'member'"),
        (FileLaw("u", **plain, measure=d.area * each), "`measure` changes along 'member'"),
        (
            FileLaw("u", ("lat", "member"), total=1.0, measure=1.0),
            "`over` names 'member', the members",
        ),
    ):
        with pytest.raises(InputError, match=text):
            enforce(d, law, member="member")


def test_an_infinite_member_is_refused():
    d = made()
    d["u"][1, 2, 3, 4] = np.inf
    with pytest.raises(InputError, match="the field or a factor has infinite values"):
        enforce(d, FileLaw("u", SPACE, total=1.0, measure=1.0), member="member")


def test_an_ensemble_needs_members():
    d = made()
    with pytest.raises(InputError, match="needs two members or more; 'member' has 1"):
        enforce(d.isel(member=[0]), FileLaw("u", SPACE, total=1.0, measure=1.0), member="member")
    with pytest.raises(InputError, match="`v` has no dimension 'member' for its members"):
        enforce(d.assign(v=d.u[:, 0]), FileLaw("v", SPACE, total=1.0, measure=1.0), member="member")


@pytest.mark.parametrize("chunks", [None, {"lat": 2}])
def test_the_input_is_not_modified(chunks):
    d = made() if chunks is None else made().chunk(chunks)
    before = made()
    out = enforce(d, FileLaw("u", SPACE, measure="area"), member="member", jointly="time").compute()
    xr.testing.assert_identical(d.compute(), before)
    assert not np.shares_memory(out.u.values, d.u.values)
