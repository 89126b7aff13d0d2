"""Inequalities beside any laws and on any fields: the general way, states, mixtures, `project`."""

import numpy as np
import pytest
import torch
from kkt import bounds, distance_from_optimal, everything, rising
from seeds import generator

import probconserv as pc

N, X = 12, np.linspace(0.0, 1.0, 12)
BATCH = 3


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def fields(rng):
    """Fields of each kind, and their covariances (BATCH, N, N)."""
    mean, d = 0.5 * rng.normal(size=(BATCH, N)), 0.05 + rng.random((BATCH, N))
    factor, roots = rng.normal(size=(2, BATCH, N)), rng.normal(size=(BATCH, N, N))
    independent = d[:, :, None] * np.eye(N)
    shared = np.einsum("rbi,rbj->bij", factor, factor)
    dense = roots @ roots.swapaxes(-1, -2) / N + 0.1 * np.eye(N)
    return {
        "diagonal": (pc.Diagonal(mean, d), independent),
        "low rank": (pc.LowRank(mean, factor, d), independent + shared),
        "dense": (pc.Dense(mean, dense), dense),
    }


def given_rows(mean, covariance, rows, value, noise):
    """A Gaussian given noisy rows, by the textbook."""
    gain = covariance @ rows.T @ np.linalg.inv(rows @ covariance @ rows.T + np.diag(noise**2))
    return mean - gain @ (rows @ mean - value), covariance - gain @ rows @ covariance


LIMITS = {
    "not negative": ((pc.bounds(low=0.0),), bounds(N, 0.0), 1),
    "a band": ((pc.bounds(-0.1 * X, 1 + X),), bounds(N, -0.1 * X, 1 + X), 1),
    "falling": ((pc.monotone(True),), rising(N, -1), -1),
    "rising within a band": (
        (pc.monotone(), pc.bounds(-0.1 + 0 * X, 1 + X)),
        tuple(np.concatenate(p) for p in zip(rising(N), bounds(N, -0.1, 1 + X), strict=True)),
        1,
    ),
}


@pytest.mark.parametrize("kind", ["diagonal", "low rank", "dense"])
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("laws", ["none", "two exact", "noisy and smooth"])
def test_the_point_is_the_nearest_in_the_norm_of_the_precision(rng, kind, limits, laws):
    field, covariance = fields(rng)[kind]
    given, where, sign = LIMITS[limits]
    inside = np.sort(rng.random((BATCH, N)))[:, ::sign]
    weights, matrix = 0.1 + rng.random(N), rng.normal(size=(1, N))
    exact, mean, stated = None, field.mean.numpy(), []
    if laws == "two exact":
        exact = np.concatenate([weights[None], matrix])
        stated = [pc.weighted_sum(weights, inside @ weights), pc.linear(matrix, inside @ matrix.T)]
    if laws == "noisy and smooth":
        total, smooth = rng.random(BATCH), pc.smoothness(X, np.ones(N), 0.8)
        stated = [pc.weighted_sum(weights, total, noise=0.2), smooth]
        rows = np.concatenate([weights[None], smooth.apply(np.eye(N)).numpy().T])
        noise = np.concatenate([[0.2], np.broadcast_to(smooth.noise.numpy(), N - 2)])
        values = [np.concatenate([[b], np.zeros(N - 2)]) for b in total]
        pairs = [
            given_rows(m, c, rows, b, noise)
            for m, c, b in zip(mean, covariance, values, strict=True)
        ]
        mean, covariance = zip(*pairs, strict=True)
    post = pc.condition(field, *stated, *given, draws=3, generator=generator())
    for u, y, c in zip(post.point.numpy(), mean, covariance, strict=True):
        assert distance_from_optimal(u, y, c, exact, *where) < 1e-9
    assert (everything(post) @ where[0].T >= where[1]).all()


def test_draws_move_as_the_posterior_where_no_inequality_is_met(rng):
    field, _ = fields(rng)["low rank"]
    laws = pc.integral(X, 1.0), pc.smoothness(X, np.ones(N), 0.5)
    post = pc.condition(field, *laws, pc.bounds(-1e3, 1e3), draws=4000, generator=generator())
    plain = pc.condition(field, *laws)
    assert torch.allclose(post.point, plain.mean, atol=1e-10)
    assert ((post.mean - plain.mean) / plain.std).abs().max() < 0.1
    assert torch.allclose(post.variance, plain.variance, rtol=0.15)
    assert torch.allclose(post.covariance(), plain.covariance(), atol=0.15)


@pytest.mark.parametrize("kind", ["diagonal", "low rank", "dense"])
def test_every_draw_the_mean_and_the_point_obey_everything(rng, kind):
    field, _ = fields(rng)[kind]
    matrix = rng.normal(size=(2, N))
    inside = np.sort(rng.random((BATCH, N)))
    laws = pc.integral(X, np.trapezoid(inside, X)), pc.linear(matrix, inside @ matrix.T)
    limits = pc.bounds(0.0, 1.0), pc.monotone()
    post = pc.condition(field, *laws, *limits, draws=100, generator=generator())
    u = everything(post)
    assert u.min() >= 0
    assert u.max() <= 1
    assert np.diff(u).min() >= 0
    for law in laws:
        assert (law.residual(u).abs() <= 1e-12 * (law.value.abs() + law.magnitude(u))).all()


def test_the_fast_way_and_the_general_way_agree(rng):
    field, _ = fields(rng)["diagonal"]
    same = pc.LowRank(field.mean, torch.zeros(1, BATCH, N), field.variance)
    laws = pc.integral(X, 0.4), pc.boundary(left=0.1)
    for limits in ((pc.bounds(0.0, 0.7),), (pc.monotone(),), (pc.monotone(), pc.bounds(high=0.9))):
        fast, general = (
            pc.condition(f, *laws, *limits, draws=2, generator=generator()).point
            for f in (field, same)
        )
        assert torch.allclose(fast, general, atol=1e-10)
        assert (fast[:, 0] == 0.1).all()


def test_an_ensemble_of_fewer_members_than_points(rng):
    members = 0.3 + 0.2 * rng.normal(size=(6, 2, N)) @ np.diag(1 + X)
    law = pc.integral(X, [0.3, 0.4])
    for shrinkage in (None, 0.0):
        field = pc.Ensemble(members, batch_dims=1, shrinkage=shrinkage)
        post = pc.condition(field, law, pc.bounds(low=0.0), draws=20, generator=generator())
        u = everything(post)
        assert u.min() >= 0
        assert law.residual(u).abs().max() < 1e-12


def test_initial_values_and_times_in_the_general_way(rng):
    mean = 0.5 + rng.normal(size=(4, N))
    field = pc.LowRank.correlated(mean, 0.3, correlation=0.4)
    start = np.abs(mean[0])
    laws = pc.initial(start), pc.integral(X, 0.6, times=[2, 3])
    post = pc.condition(field, *laws, pc.bounds(low=0.0), draws=10, generator=generator())
    u = everything(post)
    assert (u[:, 0] == start).all()
    assert u.min() >= 0
    assert laws[1].residual(u).abs().max() < 1e-12


def test_monotone_in_time_beside_a_sum_at_each_time(rng):
    mean, totals = rng.normal(size=(4, 5)), np.array([0.5, 1.0, 1.5, 2.5])
    law = pc.weighted_sum(np.ones(5), totals)
    post = pc.condition(
        pc.Diagonal(mean, 1.0), law, pc.monotone(axis=0), draws=10, generator=generator()
    )
    u = everything(post)
    assert np.diff(u, axis=1).min() >= 0
    assert law.residual(u).abs().max() < 1e-12
    off = distance_from_optimal(
        post.point.numpy().ravel(), mean.ravel(), np.eye(20),
        np.kron(np.eye(4), np.ones((1, 5))),
        np.kron(np.diff(np.eye(4), axis=0), np.eye(5)), np.zeros(15),
    )  # fmt: skip
    assert off < 1e-10


def test_a_posterior_is_conditioned_again_with_all_its_laws(rng):
    field, _ = fields(rng)["diagonal"]
    first, second = pc.integral(X, 0.5), pc.boundary(right=0.7)
    once = pc.condition(field, first, second, pc.bounds(low=0.0), draws=2, generator=generator())
    twice = pc.condition(
        pc.condition(field, first, second), pc.bounds(low=0.0), draws=2, generator=generator()
    )
    assert torch.equal(once.point, twice.point)


def test_a_state_is_known_by_joint_draws(rng):
    state = pc.State(u=fields(rng)["low rank"][0], v=fields(rng)["diagonal"][0])
    law = pc.weighted_sum({"u": np.ones(N), "v": np.ones(N)}, 3.0)
    limits = pc.bounds(low=0.0, of="u"), pc.monotone(of="v")
    post = pc.condition(state, law, *limits, draws=10, generator=generator())
    assert isinstance(post, pc.Draws)
    u, v = everything(post["u"]), everything(post["v"])
    assert u.min() >= 0
    assert np.diff(v).min() >= 0
    assert np.allclose(u.sum(-1) + v.sum(-1), 3.0, rtol=1e-13)
    assert post.sample(4, generator=generator())["u"].shape == (4, BATCH, N)


@pytest.mark.filterwarnings("ignore:the laws leave")
def test_draws_of_a_mixture_come_from_its_components(rng):
    means = np.stack([np.full((BATCH, N), 1.0), np.full((BATCH, N), 5.0)])
    mixture = pc.Mixture(pc.Diagonal(means, 0.01), weights=[0.25, 0.75], event_dims=2)
    post = pc.condition(mixture, pc.bounds(low=0.9), draws=2000, generator=generator())
    share = (post.draws[:, 0, 0] > 3).double().mean()
    assert abs(float(share) - 0.75) < 0.04
    assert everything(post).min() >= 0.9
    law, wide = pc.integral(X, 1.1), pc.Mixture(pc.Diagonal(means, 1.0), event_dims=2)
    given = pc.condition(wide, law, pc.bounds(0.0, 1.2), draws=50, generator=generator())
    u = everything(given)
    assert u.max() <= 1.2
    assert law.residual(u).abs().max() < 1e-12


def test_project_moves_the_mean_to_the_nearest_and_keeps_the_kind(rng):
    for field, _ in fields(rng).values():
        near = pc.project(field, pc.integral(X, 0.5), pc.bounds(0.0, 0.8), pc.monotone())
        assert type(near) is type(field)
        assert torch.equal(near.variance, field.variance)
        inequalities = zip(rising(N), bounds(N, 0.0, 0.8), strict=True)
        where = [np.concatenate(p) for p in inequalities]
        rows = pc.integral(X, 0.5).apply(np.eye(N)).numpy()[None]
        for u, y in zip(near.mean.numpy(), field.mean.numpy(), strict=True):
            assert distance_from_optimal(u, y, np.eye(N), rows, *where) < 1e-10


def test_the_same_generator_gives_the_same_draws_and_inputs_stay(rng):
    field, _ = fields(rng)["dense"]
    before = field.mean.clone()
    args = field, pc.integral(X, 0.5), pc.bounds(low=0.0)
    found = [pc.condition(*args, draws=5, generator=generator()).draws for _ in range(2)]
    assert torch.equal(*found)
    assert torch.equal(field.mean, before)


def test_a_move_that_is_not_plausible_warns():
    field = pc.Diagonal(np.full((2, 5), -1.0), 1e-4)
    with pytest.warns(pc.ImplausibleWarning, match="100 of its standard deviations"):
        pc.condition(field, pc.bounds(low=0.0), draws=3, generator=generator())


def test_what_cannot_be_met_is_refused_in_words(rng):
    field, _ = fields(rng)["low rank"]
    wide = pc.Diagonal(np.zeros((60, 60)), 1.0)
    alone = pc.LowRank(np.zeros((60, 60)), np.ones((1, 60, 60)), event_dims=2)
    with pytest.raises(pc.errors.InputError, match="`laws`: these tie 3600 points"):
        pc.condition(alone, pc.weighted_sum(np.ones((60, 60)), 1.0), pc.monotone(axis=0))
    post = pc.condition(field, pc.bounds(low=0.0), draws=3, generator=generator())
    with pytest.raises(pc.errors.InputError, match="`field` is known by draws"):
        pc.condition(post, pc.bounds(low=0.0))
    with pytest.raises(pc.errors.InputError, match="`laws` must be a law"):
        pc.condition(field, pc.bounds(low=0.0), 3.0)
    state = pc.condition(pc.State(u=wide, v=wide), pc.weighted_sum(np.ones(60), 1.0, of="u"))
    with pytest.raises(pc.errors.InputError, match="one of a state"):
        pc.condition(state["u"], pc.bounds(low=0.0))


BEYOND = {
    "a total": ([pc.integral(X, 3.0), pc.bounds(0.0, 1.0)], r"`integral` .* is 3.*from 0 to 1\."),
    "one point": (
        [pc.boundary(left=-1.0), pc.integral(X, 0.5), pc.bounds(low=0.0)],
        r"`boundary` at \[0\], point 0 is -1.* 0 or more",
    ),
    "two laws": (
        [
            pc.weighted_sum(np.ones(N), 3.0),
            pc.weighted_sum(1.0 * (X < 0.5), 4.0),
            pc.bounds(low=0.0),
        ],
        r"no field obeys .*`weighted_sum` at \[0\], `weighted_sum` at \[0\]",
    ),
    "rising": (
        [pc.weighted_sum(np.ones(N), 3.0), pc.boundary(left=1.0), pc.monotone()],
        r"`boundary` at \[0\], point 0.*`weighted_sum`",
    ),
}


@pytest.mark.parametrize("what", BEYOND)
def test_a_law_that_cannot_be_met_is_named_with_its_range(rng, what):
    given, words = BEYOND[what]
    with pytest.raises(pc.errors.InfeasibleError, match=words):
        pc.condition(fields(rng)["low rank"][0], *given, generator=generator())


def test_a_field_with_too_few_directions_for_its_bounds_is_refused():
    prior = pc.LowRank(np.zeros(3), [[1.0, 2.0, -1.0]], 0.0)
    given = pc.weighted_sum([1.0, 1.0, 1.0], 5.0), pc.bounds(-1.0, 1.0)
    with pytest.raises(pc.errors.InfeasibleError, match=r"`weighted_sum` is 5.* from -3 to 3"):
        pc.condition(prior, *given, generator=generator())
    with pytest.raises(pc.errors.InfeasibleError, match="points without variance, or what exact"):
        pc.condition(
            prior,
            pc.weighted_sum([1.0, 1.0, 1.0], 0.5),
            pc.bounds(low=[0.1, 0.1, 0.1]),
            generator=generator(),
        )


@pytest.mark.parametrize(("seed", "noise"), [(3, 1e-6), (4, 1e-4)])
def test_what_noise_hardly_leaves_free_still_moves_to_the_end_of_its_range(seed, noise):
    rng = np.random.default_rng(seed)
    root, mean = rng.normal(size=(8, 8)), rng.normal(size=8)
    prior = pc.Dense(mean, root @ root.T / 8 + 0.1 * np.eye(8))
    total = pc.weighted_sum([1.0] * 3 + [0.0] * 5, -0.3)
    first = pc.linear(np.eye(8)[:1], [-0.1], noise=noise)
    given = total, first, pc.bounds(low=-0.1), pc.monotone()
    u = everything(pc.condition(prior, *given, draws=10, generator=generator()))
    assert np.allclose(u[:, :3], -0.1, atol=1e-12)
    assert np.diff(u).min() >= 0


def test_points_that_two_laws_fix_at_a_bound_of_zero_are_there():
    rng = np.random.default_rng(6)
    root = rng.normal(size=(10, 10))
    prior = pc.Dense(rng.normal(size=10), root @ root.T / 10 + 0.1 * np.eye(10))
    laws = pc.weighted_sum(np.ones(10), 22.0), pc.linear(np.eye(10)[-1:], [0.0])
    third = pc.linear([[0.0, 1.0] * 5], [4.8], noise=1e-4)
    given = *laws, third, pc.bounds(low=0.0), pc.monotone(True)
    u = everything(pc.condition(prior, *given, draws=20, generator=generator()))
    assert u.min() >= 0
    assert u[:, -1].max() < 1e-25


def test_small_points_beside_large_ones_keep_their_values():
    prior = pc.Dense([1e5, 1e-10], np.diag([1e2, 1e-22]))
    post = pc.condition(prior, pc.bounds(low=0.0), draws=20, generator=generator())
    assert post.point.tolist() == [1e5, 1e-10]
    assert (post.draws[:, 1] > 0).all()
    fixed = pc.Dense([1e12, 1e-3], np.diag([1.0, 0.0]))
    assert pc.condition(
        fixed, pc.bounds(low=0.0), draws=2, generator=generator()
    ).point.tolist() == [1e12, 1e-3]


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
def test_exact_laws_hold_beside_variances_of_many_decades():
    prior = pc.Dense(np.full(13, 0.5), np.diag(10.0 ** np.arange(-8, 5)))
    law = pc.weighted_sum(np.ones(13), 3.0)
    post = pc.condition(prior, law, pc.bounds(low=0.0), draws=100, generator=generator())
    assert (law.residual(everything(post)).abs() <= 6e-12).all()


def test_a_total_out_of_reach_of_a_very_wide_dense_prior_is_refused():
    prior = pc.Dense([0.5, 0.5], 1e40 * np.eye(2))
    with pytest.raises(pc.errors.InfeasibleError, match="`bounds`"):
        pc.condition(
            prior,
            pc.weighted_sum([1.0, 1.0], 2.5),
            pc.bounds(0.0, 1.0),
            draws=2,
            generator=generator(),
        )


def test_fixed_points_stay_to_the_last_digit_where_values_rise(rng):
    covariance = np.exp(-np.abs(np.arange(5)[:, None] - np.arange(5)))
    for _ in range(20):
        mean, right = rng.normal(size=5), pc.boundary(right=0.7)
        post = pc.condition(
            pc.Dense(mean, covariance), right, pc.monotone(), draws=10, generator=generator()
        )
        assert (everything(post)[:, -1] == 0.7).all()
        low = np.full(5, mean[-1] - 3)
        prior = pc.Diagonal(mean, [1.0, 1.0, 1.0, 1.0, 0.0])
        post = pc.condition(prior, pc.monotone(), pc.bounds(low), draws=10, generator=generator())
        assert (everything(post)[:, -1] == mean[-1]).all()


def test_a_value_with_hardly_any_noise_beside_inequalities():
    rng = np.random.default_rng(3)
    mean, root = rng.normal(size=4).round(1), rng.normal(size=(4, 4)).round(1)
    prior = pc.Dense(mean, root @ root.T + np.eye(4))
    laws = pc.boundary(left=0.0, noise=1e-9), pc.weighted_sum([1.0, 1.0, 1.0, 1.0], 1.0)
    limits = pc.monotone(), pc.bounds([0.0, 0.1, 0.1, 0.2])
    post = pc.condition(prior, *laws, *limits, draws=10, generator=generator())
    assert post.point.numpy() == pytest.approx([0.0, 0.1538, 0.1538, 0.6924], abs=1e-5)


@pytest.mark.parametrize("noise", [1e-6, 1e-9])
def test_a_total_with_hardly_any_noise_at_the_end_of_its_range_is_feasible(noise):
    prior, law = (
        pc.Dense([0.1, 0.2, 0.3], np.eye(3)),
        pc.weighted_sum([1.0, 1.0, 1.0], 0.0, noise=noise),
    )
    u = everything(pc.condition(prior, law, pc.bounds(low=0.0), draws=20, generator=generator()))
    assert u.min() >= 0
    assert u.sum(-1).max() < 6 * noise
    own = pc.Diagonal([0.1, 0.2, 0.3], 1.0)
    other = everything(pc.condition(own, law, pc.bounds(low=0.0), draws=200, generator=generator()))
    assert u.sum(-1).mean() == pytest.approx(other.sum(-1).mean(), abs=noise)


def test_intervals_of_few_members_without_draws_do_not_count_what_is_held_as_laws(rng):
    members = rng.normal(size=(6, 1, 40)) + np.tile([-0.5, 0.5], 20)
    post = pc.condition(pc.Ensemble(members), pc.bounds(low=0.0), draws=0)
    assert int((post.std > 0).sum()) < 40 - 6  # more are held than there are members
    wide = 1.6448536269514722 * post.std
    for end, off in zip(post.interval(0.9), (-wide, wide), strict=True):
        torch.testing.assert_close(end, (post.point + off).clamp_min(0))
