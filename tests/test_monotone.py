"""Values that rise or fall along an axis."""

import numpy as np
import pytest
import torch
from kkt import bounds, distance_from_optimal, everything, rising
from seeds import generator

import probconserv as pc

X = np.linspace(0.0, 1.0, 11)
pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")  # random fields


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def both(*given):
    rows, least = zip(*given, strict=True)
    return np.concatenate(rows), np.concatenate(least)


@pytest.mark.parametrize("decreasing", [False, True])
@pytest.mark.parametrize("high", [None, 0.8])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_the_point_is_the_nearest_in_the_norm_of_the_prior(rng, decreasing, high, noise):
    sign, weights = (-1 if decreasing else 1), 0.1 + rng.random(11)
    mean, variance = rng.normal(size=(5, 11)), 10 ** rng.uniform(-2, 1, (5, 11))
    value = np.sort(0.8 * rng.random((5, 11)))[:, ::sign] @ weights
    law, limits = pc.weighted_sum(weights, value, noise=noise), [pc.monotone(decreasing)]
    limits = limits if high is None else [*limits, pc.bounds(0.0, high)]
    post = pc.condition(pc.Diagonal(mean, variance), law, *limits, draws=2, generator=generator())
    where = rising(11, sign) if high is None else both(rising(11, sign), bounds(11, 0.0, high))
    for u, y, d, b in zip(post.point.numpy(), mean, variance, value, strict=True):
        covariance, rows = np.diag(d), weights[None]
        if noise:
            covariance = np.linalg.inv(np.diag(1 / d) + np.outer(weights, weights) / noise**2)
            y, rows = covariance @ (y / d + weights * b / noise**2), None
        assert distance_from_optimal(u, y, covariance, rows, *where) < 1e-9


@pytest.mark.parametrize("limits", [(), (pc.bounds(0.0, 1.0),)])
def test_a_thousand_draws_their_mean_and_the_point_obey(rng, limits):
    mean = X + 0.3 * rng.normal(size=(3, 11))
    law = pc.integral(X, [0.2, 0.5, 0.9])
    post = pc.condition(
        pc.Diagonal(mean, 0.1), law, pc.monotone(), *limits, draws=1000,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    u = everything(post)
    assert np.diff(u).min() >= 0
    assert not limits or (u.min() >= 0 and u.max() <= 1)
    assert (law.residual(u).abs() <= 1e-12 * (law.value.abs() + law.magnitude(u))).all()


def test_draws_of_float32_are_monotone_too(rng):
    mean = torch.tensor(rng.normal(size=(3, 11)), dtype=torch.float32)
    post = pc.condition(
        pc.Diagonal(mean, 0.1),
        pc.integral(X, 0.3),
        pc.monotone(True),
        draws=30,
        generator=generator(),
    )
    assert np.diff(everything(post)).max() <= 0


@pytest.mark.parametrize("axis", [0, 1, 2, -3])
def test_other_axes_are_the_same_with_axes_exchanged(rng, axis):
    mean, variance = rng.normal(size=(4, 3, 5)), 0.1 + rng.random((4, 3, 5))
    found = pc.condition(
        pc.Diagonal(mean, variance), pc.monotone(axis=axis), draws=2, generator=generator()
    ).point
    moved = [np.moveaxis(a, axis, -1) for a in (mean, variance)]
    expected = pc.condition(
        pc.Diagonal(*moved), pc.monotone(), draws=2, generator=generator()
    ).point
    assert np.allclose(np.moveaxis(found.numpy(), axis, -1), expected, atol=1e-14)


def test_a_sum_over_two_axes_with_values_that_rise_along_the_first(rng):
    mean, variance = rng.normal(size=(2, 4, 3)), 0.1 + rng.random((2, 4, 3))
    law = pc.weighted_sum(np.ones((4, 3)), 5.0)
    post = pc.condition(
        pc.Diagonal(mean, variance), law, pc.monotone(axis=-2), draws=5, generator=generator()
    )
    u = everything(post)
    assert np.diff(u, axis=-2).min() >= 0
    assert law.residual(u).abs().max() < 1e-13
    pairs = np.diff(np.arange(12).reshape(4, 3), axis=0)
    differences = np.kron(np.diff(np.eye(4), axis=0), np.eye(3))
    assert len(differences) == pairs.size
    for i in range(2):
        off = distance_from_optimal(
            post.point[i].numpy().ravel(), mean[i].ravel(), np.diag(variance[i].ravel()),
            np.ones((1, 12)), differences, np.zeros(9),
        )  # fmt: skip
        assert off < 1e-10


def test_fixed_points_stay_and_bound_their_neighbours(rng):
    variance = np.where(np.isin(np.arange(11), [0, 4, 9]), 0.0, 1.0)
    mean = rng.normal(size=(3, 11))
    mean[:, [0, 4, 9]] = [-0.5, 0.1, 0.7]
    law = pc.integral(X, 0.2)
    post = pc.condition(
        pc.Diagonal(mean, variance), law, pc.monotone(), draws=20, generator=generator()
    )
    u = everything(post)
    assert (u[..., [0, 4, 9]] == [-0.5, 0.1, 0.7]).all()
    assert np.diff(u).min() >= 0
    assert law.residual(u).abs().max() < 1e-13


def test_lines_with_many_fixed_points_are_as_in_the_general_way(rng):
    inside, weights = np.sort(rng.normal(size=(20, 8))), 0.1 + rng.random(8)
    fixed = rng.random((20, 8)) < 0.4
    mean = np.where(fixed, inside, 5 * rng.normal(size=(20, 8)))
    prior = pc.Diagonal(mean, np.where(fixed, 0.0, 10 ** rng.uniform(-4, 3, (20, 8))))
    other = pc.LowRank(prior.mean, np.zeros((1, 20, 8)), prior.variance)
    given = pc.weighted_sum(weights, inside @ weights), pc.monotone()
    fast, general = (
        pc.condition(each, *given, draws=2, generator=generator()).point for each in (prior, other)
    )
    torch.testing.assert_close(fast, general, atol=1e-7, rtol=0)


@pytest.mark.parametrize("law", ["a total", "regions"])
def test_fields_of_a_state_rise_each_along_an_axis_of_its_own(rng, law):
    d = 1.0 + rng.random((2, 3, 4))
    state = pc.State(u=(rng.normal(size=(2, 5)), 1.0), v=(rng.normal(size=(2, 3, 4)), d))
    limits = pc.monotone(axis=-2, of="v"), pc.bounds(low=-1.0, of="v"), pc.bounds(0.0, of="u")
    if law == "regions":
        given = pc.regions([0, 1, 0, 1, 1], [[1.0, 2.0]] * 2, of="u"), *limits
    else:
        total = pc.weighted_sum({"u": np.ones(5), "v": np.ones((3, 4))}, 2.0)
        given = total, pc.monotone(True, of="u"), *limits
    post = pc.condition(state, *given, draws=5, generator=generator())
    u, v = everything(post["u"]), everything(post["v"])
    assert law == "regions" or np.diff(u).max() <= 0
    assert np.diff(v, axis=-2).min() >= 0
    assert min(u.min(), v.min() + 1) >= 0
    off = u.sum(-1) - 3.0 if law == "regions" else u.sum(-1) + v.sum((-1, -2)) - 2.0
    assert np.abs(off).max() < 1e-12
    same = {
        name: pc.LowRank(f.mean, torch.zeros(1, *f.shape), f.variance)
        for name, f in zip(state.names, state.parts, strict=True)
    }
    general = pc.condition(pc.State(**same), *given, draws=2, generator=generator())
    for name in "uv":
        torch.testing.assert_close(post[name].point, general[name].point, atol=1e-9, rtol=0)


def test_isotonic_regression_by_its_max_min_formula(rng):
    y, w = rng.normal(size=11), 0.1 + rng.random(11)
    means = np.array([
        [np.average(y[i : j + 1], weights=w[i : j + 1]) if i <= j else np.nan for j in range(11)]
        for i in range(11)
    ])  # fmt: skip
    expected = [max(np.nanmin(means[i, k:]) for i in range(k + 1)) for k in range(11)]
    point = pc.condition(pc.Diagonal(y, 1 / w), pc.monotone(), draws=2, generator=generator()).point
    assert np.allclose(point, expected, atol=1e-13)


def test_lines_of_very_different_scales(rng):
    for _ in range(10):
        d = 10 ** rng.uniform(-8, 3, (4, 12)) * 10 ** rng.uniform(-6, 6)
        prior = pc.Diagonal(rng.normal(size=(4, 12)) * np.sqrt(d.mean()), d)
        weights = 10 ** rng.uniform(-4, 2, 12)
        law = pc.weighted_sum(weights, np.sort(rng.random((4, 12))) @ weights)
        u = everything(
            pc.condition(
                prior, law, pc.bounds(low=0.0), pc.monotone(), draws=5, generator=generator()
            )
        )
        assert u.min() >= 0
        assert np.diff(u).min() >= 0
        assert (law.residual(u).abs() <= 1e-12 * (law.value.abs() + law.magnitude(u))).all()


def test_errors_name_the_argument_and_the_way_out():
    field = pc.Diagonal([0.0, 3.0, 1.0, 2.0], [1.0, 0.0, 0.0, 1.0])
    with pytest.raises(
        pc.errors.InfeasibleError,
        match=r"`monotone`: the point of no variance at \[2\] is 1 .* is 3\. Ways",
    ):
        pc.condition(field, pc.monotone())
    with pytest.raises(pc.errors.InputError, match="`axis` of `monotone` is 1"):
        pc.condition(field, pc.monotone(axis=1))
    with pytest.raises(pc.errors.InputError, match="`decreasing` must be True or False"):
        pc.monotone(decreasing=-1)
    with pytest.raises(pc.errors.InputError, match="`axis` must be a whole number"):
        pc.monotone(axis=0.5)
    varying = pc.bounds([1.0, 0.0, 0.0, 0.0], [2.0, 0.5, 2.0, 2.0])
    with pytest.raises(pc.errors.InputError, match=r"`monotone` carries `bounds`.*at \[0\]"):
        pc.condition(pc.Diagonal(np.zeros(4), 1.0), pc.monotone(), varying)


def test_lines_of_one_batch_leave_each_other_as_they_are(rng):
    mean = np.array([[0.0, 1e12, 2e12], [1e-8, 2e-8, 3e-8], [1e-8, 3e-8, 1e-8]])
    near = pc.project(pc.Diagonal(mean, 1.0), pc.monotone()).mean.numpy()
    assert (near[:2] == mean[:2]).all()
    assert near[2] == pytest.approx([1e-8, 2e-8, 2e-8], rel=1e-13)
    scales = 10.0 ** rng.uniform(-9, 9, (40, 1))
    mean, variance = rng.normal(size=(40, 7)) * scales, 10 ** rng.uniform(-9, 2, (40, 7))
    together = pc.condition(
        pc.Diagonal(mean, variance), pc.monotone(), draws=2, generator=generator()
    ).point
    for u, m, v in zip(together.numpy(), mean, variance, strict=True):
        alone = pc.condition(
            pc.Diagonal(m, v), pc.monotone(), draws=2, generator=generator()
        ).point.numpy()
        assert (np.abs(u - alone) <= 1e-12 * np.abs(alone) + 1e-5 * np.sqrt(v)).all()


def test_tiny_variances_have_weights_that_do_not_overflow():
    prior = pc.Diagonal([2e20, 1e20, 3e20], [1e-289, 1e-289, 1.0])
    assert pc.condition(prior, pc.monotone(), draws=2, generator=generator()).point.tolist() == [
        1.5e20,
        1.5e20,
        3e20,
    ]


@pytest.mark.parametrize("falls", [False, True])
def test_bounds_that_differ_from_line_to_line_are_as_in_the_general_solver(falls):
    own = generator()
    mean, spread = (torch.rand(2, 3, 7, generator=own, dtype=torch.float64) for _ in range(2))
    prior, x = pc.Diagonal(4 * mean - 2, spread + 0.1), torch.linspace(0, 1, 7)
    low, high = -torch.rand(2, 3, 1, generator=own).double(), mean[..., :1] + 0.2
    slope, law = pc.monotone(decreasing=falls), pc.integral(x, [0.0, 0.05, 0.1], noise=0.1)
    level = pc.condition(
        prior, law, slope, pc.bounds(low, high), draws=2, generator=generator()
    ).point
    tilt = 1e-9 * torch.arange(7.0).double()
    tilted = low - (tilt if falls else tilt.flip(0))
    general = pc.condition(
        prior, law, slope, pc.bounds(tilted, high), draws=2, generator=generator()
    ).point
    torch.testing.assert_close(level, general, atol=1e-8, rtol=0)
    assert ((low <= level) & (level <= high)).all()


@pytest.mark.parametrize("members", [False, True])
def test_a_total_out_of_reach_of_monotone_alone_is_told_so(members):
    x, rising = torch.linspace(0, 1, 6).double(), torch.linspace(0, 1, 6).double()
    alike = pc.Ensemble(torch.stack([0.9 * rising, rising]), shrinkage=1.0)
    known = pc.Diagonal(rising, torch.tensor([0.0, 0.0, 1.0, 1.0, 0.0, 0.0]))
    with pytest.raises(
        pc.errors.InfeasibleError, match=r"`monotone`.*`integral`|within the inequalities it"
    ):
        pc.condition(
            alike if members else known, pc.integral(x, -2.0), pc.monotone(), generator=generator()
        )
