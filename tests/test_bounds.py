"""Values within bounds: independent points and sums of them."""

import numpy as np
import pytest
import torch
from kkt import bounds, distance_from_optimal, everything
from seeds import generator

import probconserv as pc
from probconserv.diagnostics import crps

X = np.linspace(0.0, 1.0, 9)
pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")  # random fields


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def random_prior(rng, *shape):
    mean = rng.normal(size=shape)
    return pc.Diagonal(mean, 10 ** rng.uniform(-2, 1, shape))


@pytest.mark.parametrize(("low", "high"), [(0.0, None), (None, 0.4), (0.0, 0.6), (-X, 1 + X)])
@pytest.mark.parametrize("signs", [False, True])
def test_the_point_is_the_nearest_in_the_norm_of_the_prior(rng, low, high, signs):
    prior, weights = random_prior(rng, 5, 9), 0.1 + rng.random(9)
    weights = weights * np.where(rng.random(9) < 0.3, -1, 1) if signs else weights
    inside = np.clip(rng.random((5, 9)), low, high)
    post = pc.condition(
        prior,
        pc.weighted_sum(weights, inside @ weights),
        pc.bounds(low, high),
        draws=2,
        generator=generator(),
    )
    for u, y, d in zip(post.point.numpy(), prior.mean.numpy(), prior.variance.numpy(), strict=True):
        off = distance_from_optimal(u, y, np.diag(d), weights[None], *bounds(9, low, high))
        assert off < 1e-10


def test_a_noisy_sum_pulls_as_its_precision_says(rng):
    prior, weights, value, noise = random_prior(rng, 4, 9), 0.1 + rng.random(9), rng.random(4), 0.3
    law = pc.weighted_sum(weights, value, noise=noise)
    post = pc.condition(prior, law, pc.bounds(low=0.0), draws=2, generator=generator())
    for i in range(4):
        y, d = prior.mean[i].numpy(), prior.variance[i].numpy()
        precision = np.diag(1 / d) + np.outer(weights, weights) / noise**2
        covariance = np.linalg.inv(precision)
        mean = covariance @ (y / d + weights * value[i] / noise**2)
        off = distance_from_optimal(
            post.point[i].numpy(), mean, covariance, None, *bounds(9, low=0.0)
        )
        assert off < 1e-9


def test_a_thousand_draws_their_mean_and_the_point_obey(rng):
    prior = random_prior(rng, 3, 9)
    law = pc.integral(X, [0.3, 1e-3, 0.0])
    post = pc.condition(prior, law, pc.bounds(0.0, 2.0), draws=1000, generator=generator())
    u = everything(post)
    assert u.min() == 0
    assert u.max() <= 2
    miss, size = law.residual(u).abs(), law.value.abs() + law.magnitude(u)
    assert (miss <= 1e-12 * size).all()


def test_bounds_hold_exactly_in_float32(rng):
    prior = pc.Diagonal(torch.tensor(rng.normal(size=(3, 9)), dtype=torch.float32), 1.0)
    law = pc.integral(X, 0.35)
    post = pc.condition(prior, law, pc.bounds(0.1, 0.7), draws=50, generator=generator())
    u = everything(post)
    assert u.dtype == np.float32
    assert u.astype(float).min() >= 0.1
    assert u.astype(float).max() <= 0.7
    assert law.residual(u).abs().max() < 1e-6


def test_bounds_that_nothing_meets_leave_the_plain_posterior(rng):
    prior = random_prior(rng, 2, 9)
    laws = pc.integral(X, 1.0, noise=0.5), pc.boundary(left=0.5)
    post = pc.condition(prior, *laws, pc.bounds(-1e6, 1e6), draws=20_000, generator=generator())
    plain = pc.condition(prior, *laws)
    assert torch.allclose(post.point, plain.mean, atol=1e-10)
    off = (post.mean - plain.mean).abs() / (plain.std + 1e-12)  # a point is known, to rounding
    assert off.max() < 0.05
    assert torch.allclose(post.variance, plain.variance, rtol=0.06, atol=1e-12)


def test_without_laws_draws_are_clipped_and_infinite_bounds_are_none():
    prior = pc.Diagonal(np.zeros(9), 1.0)
    low = np.where(np.arange(9) < 5, 0.0, -np.inf)
    post = pc.condition(prior, pc.bounds(low, np.inf), draws=20_000, generator=generator())
    expected = np.where(np.arange(9) < 5, 1 / np.sqrt(2 * np.pi), 0.0)
    assert np.allclose(post.mean, expected, atol=0.03)
    assert post.draws[:, :5].min() == 0
    assert post.draws[:, 5:].min() < -3


def test_regions_times_and_several_axes_of_space(rng):
    mean = rng.normal(size=(2, 4, 3, 5))
    prior, labels = pc.Diagonal(mean, 1.0), rng.integers(-1, 3, (3, 5))
    labels[0, :3] = [0, 1, 2]
    law = pc.regions(labels, [[1.0, 0.0, 2.0], [0.5, 0.5, 0.5]], times=[1, 3])
    post = pc.condition(prior, law, pc.bounds(low=0.0), draws=7, generator=generator())
    u = everything(post)
    assert u.min() == 0
    assert law.residual(u).abs().max() < 1e-13
    assert np.allclose(post.point[:, [0, 2]], mean[:, [0, 2]].clip(0))  # no law at these times
    assert np.allclose(post.point.numpy()[..., labels < 0], mean[..., labels < 0].clip(0))


def test_one_region_alone_is_one_sum(rng):
    prior = random_prior(rng, 4, 9)
    first, second = (
        pc.regions(np.zeros(9, int), np.full((4, 1), 1.5)),
        pc.weighted_sum(np.ones(9), 1.5),
    )
    found = [
        pc.condition(prior, law, pc.bounds(0.0, 0.9), draws=2, generator=generator())
        for law in (first, second)
    ]
    assert torch.allclose(found[0].point, found[1].point, atol=1e-13)


def test_a_sum_over_several_fields_of_a_state(rng):
    state = pc.State(rain=random_prior(rng, 3, 5), snow=random_prior(rng, 3, 4))
    law = pc.weighted_sum({"rain": np.ones(5), "snow": 0.5 * np.ones(4)}, 2.0)
    limits = pc.bounds(low=0.0, of="rain"), pc.bounds(0.0, 0.8, of="snow")
    post = pc.condition(state, law, *limits, draws=6, generator=generator())
    rain, snow = post["rain"], post["snow"]
    u, v = everything(rain), everything(snow)
    assert min(u.min(), v.min()) >= 0
    assert v.max() <= 0.8
    assert np.allclose(u.sum(-1) + 0.5 * v.sum(-1), 2.0, rtol=1e-13, atol=0)
    y = np.concatenate([state["rain"].mean[0], state["snow"].mean[0]])
    d = np.concatenate([state["rain"].variance[0], state["snow"].variance[0]])
    high = np.where(np.arange(9) < 5, 1e9, 0.8)
    point = np.concatenate([rain.point[0], snow.point[0]])
    weights = np.where(np.arange(9) < 5, 1.0, 0.5)
    limits = bounds(9, 0.0, high)
    assert distance_from_optimal(point, y, np.diag(d), weights[None], *limits) < 1e-10


def test_points_of_no_variance_stay(rng):
    variance = np.where(np.arange(9) % 3 == 0, 0.0, 1.0)
    mean = np.abs(rng.normal(size=(2, 9)))
    post = pc.condition(
        pc.Diagonal(mean, variance),
        pc.integral(X, 1.0),
        pc.bounds(low=0.0),
        draws=20,
        generator=generator(),
    )
    assert (everything(post)[..., ::3] == mean[..., ::3]).all()


def test_intervals_cover_and_scores_improve_where_the_truth_has_zeros():
    rng = generator()
    mean = torch.randn(60, 201, generator=rng, dtype=torch.float64)
    prior = pc.Diagonal(mean, torch.ones_like(mean))
    truth = prior.sample(1, rng)[0].clamp_min(0)
    x = np.linspace(0, 1, 201)
    law = pc.integral(x, torch.trapezoid(truth, torch.tensor(x)))
    post = pc.condition(prior, law, pc.bounds(low=0.0), draws=200, generator=rng)
    low, high = post.interval(0.9)
    inside, zero = (low <= truth) & (truth <= high), truth == 0
    assert 0.87 <= inside[~zero].double().mean() <= 0.93
    assert inside[zero].double().mean() >= 0.87
    plain = pc.condition(prior, law)
    before = plain.std * crps((truth - plain.mean) / plain.std)
    assert post.crps(truth).mean() < 0.7 * before.mean()


@pytest.mark.parametrize("total", [0.0, 1e-20, 1e-9, 0.999999, 1.0])
def test_totals_at_the_ends_of_what_the_bounds_allow(rng, total):
    prior = random_prior(rng, 3, 9)
    law = pc.integral(X, total)
    u = everything(pc.condition(prior, law, pc.bounds(0.0, 1.0), draws=20, generator=generator()))
    assert u.min() >= 0
    assert u.max() <= 1
    assert (law.residual(u).abs() <= 1e-12 * (total + law.magnitude(u))).all()


def test_scales_that_differ_by_many_orders(rng):
    for _ in range(20):
        d = 10 ** rng.uniform(-8, 3, (4, 12)) * 10 ** rng.uniform(-6, 6)
        prior = pc.Diagonal(rng.normal(size=(4, 12)) * np.sqrt(d.mean()), d)
        weights = rng.normal(size=12)
        inside = np.abs(rng.normal(size=(4, 12))) * (rng.random((4, 12)) < 0.5)
        law = pc.weighted_sum(weights, inside @ weights)
        u = everything(pc.condition(prior, law, pc.bounds(low=0.0), draws=5, generator=generator()))
        assert u.min() >= 0
        assert (law.residual(u).abs() <= 1e-12 * (law.value.abs() + law.magnitude(u))).all()


def test_errors_name_the_bound_the_row_and_the_way_out():
    prior = pc.Diagonal(np.zeros((2, 9)), 1.0)
    with pytest.raises(pc.errors.InputError, match="`low`, `high`"):
        pc.bounds()
    with pytest.raises(pc.errors.InputError, match="`high` must not be NaN"):
        pc.bounds(high=[0.0, np.nan])
    with pytest.raises(pc.errors.InputError, match=r"`low` must not be above `high`, but at \[3\]"):
        pc.condition(prior, pc.bounds(0.0, np.where(np.arange(9) == 3, -1.0, 1.0)))
    with pytest.raises(pc.errors.InputError, match=r"are 0\.30000000000000004 and 0\.2999999"):
        pc.condition(prior, pc.bounds(0.1 + 0.2, 0.3))
    with pytest.raises(pc.errors.InputError, match="`low` must not be inf"):
        pc.condition(prior, pc.bounds(low=np.inf))
    with pytest.raises(pc.errors.InputError, match="`low` of shape"):
        pc.condition(prior, pc.bounds(low=np.zeros(4)))
    with pytest.raises(pc.errors.InfeasibleError, match=r"`integral` at \[1\] is 3.*from 0 to 2"):
        pc.condition(prior, pc.integral(X, [1.0, 3.0]), pc.bounds(0.0, 2.0))
    fixed = pc.Diagonal(np.full((2, 9), -1.0), np.where(np.arange(9) == 4, 0.0, 1.0))
    with pytest.raises(
        pc.errors.InfeasibleError,
        match=r"no variance at \[0, 4\] is -1 and .* allow is 0\. Ways out",
    ):
        pc.condition(fixed, pc.bounds(low=0.0))
    with pytest.raises(pc.errors.InputError, match="`of`: `bounds` speaks of 'v'"):
        pc.condition(pc.State(u=prior, w=prior), pc.bounds(low=0.0, of="v"))
    with pytest.raises(pc.errors.InputError, match="`draws` must be at least 2"):
        pc.condition(prior, pc.bounds(low=0.0), draws=1)


def cut(*shape, seed=0, **how):
    x = torch.linspace(0.0, 1.0, shape[-1], dtype=torch.float64)
    mean = 0.3 + 0.5 * torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    law = pc.integral(x, 0.6)
    inside = pc.bounds(low=0.0, truncated=True)
    return law, pc.condition(pc.Diagonal(mean, 0.2), law, inside, generator=generator(), **how)


def test_truncated_points_obey_law_and_bounds_in_mean_point_and_draws():
    law, post = cut(2, 60, draws=40)
    for u in (post.mean, post.point, *post.draws, *post.sample(3, generator())):
        assert law.residual(u).abs().max() < 1e-14
        assert u.min() >= 0


def test_moments_and_quantiles_of_truncated_points_are_those_of_their_draws():
    _, post = cut(1, 40, draws=6000)
    draws = pc.Draws(post.draws)
    assert ((draws.mean - post.mean) / post.std).abs().max() < 4.5 / 6000**0.5
    assert (draws.std / post.std - 1).abs().max() < 4.5 / 3000**0.5
    for share in (0.1, 0.5, 0.9):
        below = (post.draws <= post.quantile(share)).double().mean(0)
        assert (below - share).abs().max() < 4.5 * (share * (1 - share) / 6000) ** 0.5


def test_truncated_points_are_indexed_and_saved(tmp_path):
    _, post = cut(2, 30, draws=5)
    post.save(tmp_path / "cut.safetensors")
    kept = pc.Draws.load(tmp_path / "cut.safetensors")
    assert torch.equal(kept[1].interval(0.9)[0], post.interval(0.9)[0][1])
    assert torch.equal(kept[1].variance, post.variance[1])


@pytest.mark.parametrize(
    "more", [(), (pc.boundary(left=0.0),), (pc.weighted_sum([1.0, 1.0, 1.0], 1.0), pc.monotone())]
)
def test_truncated_bounds_need_one_law_on_sums(more):
    with pytest.raises(pc.errors.InputError, match="`truncated`"):
        pc.condition(pc.Diagonal([1.0, 2.0, 3.0], 1.0), pc.bounds(low=0.0, truncated=True), *more)


@pytest.mark.parametrize(("mean", "variance"), [([0.5, 0.5], 1e28), ([1e15, 0.5], 1.0)])
@pytest.mark.parametrize("kind", [pc.Diagonal, lambda m, v: pc.Dense(m, v * np.eye(2))])
def test_a_total_out_of_reach_is_refused_however_wide_or_far_the_prior(kind, mean, variance):
    with pytest.raises(pc.errors.InfeasibleError, match="bounds"):
        pc.condition(
            kind(mean, variance),
            pc.weighted_sum([1.0, 1.0], 2.5),
            pc.bounds(0.0, 1.0),
            generator=generator(),
        )


@pytest.mark.parametrize("more", [(), (pc.monotone(axis=0),)])
def test_large_values_elsewhere_leave_a_fixed_point_no_room(more):
    mean = [[1.0, -0.5], [1e9, 1e9]]
    for prior, laws in (
        (pc.Diagonal(mean, [[1.0, 0.0], [1.0, 1.0]]), ()),
        (pc.Diagonal(np.abs(mean), 1.0), (pc.boundary(right=[-0.5, 1e9]),)),
    ):
        with pytest.raises(pc.errors.InfeasibleError, match="variance"):
            pc.condition(prior, pc.bounds(low=0.0), *laws, *more, draws=2)


def test_bounds_that_float32_cannot_hold_leave_what_they_allow_feasible():
    prior = pc.Diagonal(torch.full((1, 3), 0.05), torch.ones(1, 3))
    at_the_end = pc.condition(
        prior, pc.boundary(left=0.1), pc.bounds(0.0, 0.1), draws=3, generator=generator()
    )
    assert at_the_end.point[0, 0].double() == pytest.approx(0.1, rel=1e-7)
    full = pc.condition(
        prior,
        pc.weighted_sum([1.0, 1.0, 1.0], 0.3),
        pc.bounds(0.0, 0.1),
        draws=3,
        generator=generator(),
    )
    assert (full.draws.double() <= 0.1).all()
    assert full.draws.sum(-1).numpy() == pytest.approx(0.3, rel=1e-6)
    with pytest.raises(pc.errors.InfeasibleError, match="weighted_sum"):
        pc.condition(prior, pc.weighted_sum([1.0, 1.0, 1.0], 0.3001), pc.bounds(0.0, 0.1), draws=3)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_project_keeps_bounds_that_the_dtype_cannot_hold(dtype):
    field = pc.Diagonal(torch.tensor([-1.0, 5.0], dtype=dtype), torch.ones(2, dtype=dtype))
    near = pc.project(field, pc.bounds(0.1, 0.7)).mean
    assert near.dtype == dtype
    assert (near.double() >= 0.1).all()
    assert (near.double() <= 0.7).all()


def test_truncated_bounds_are_refused_where_they_would_be_left_out():
    cut = pc.bounds(low=0.0, truncated=True)
    mixture = pc.Mixture(pc.Diagonal(np.zeros((2, 1, 3)), 1.0))
    with pytest.raises(pc.errors.InputError, match="`truncated` bounds take"):
        pc.condition(mixture, cut)
    with pytest.raises(pc.errors.InputError, match="`truncated` bounds take"):
        pc.project(pc.Diagonal([0.0, 1.0], 1.0), cut)


def test_the_point_of_a_mixture_does_not_depend_on_the_draws(rng):
    mixture = pc.Mixture(pc.Diagonal(rng.normal(size=(3, 2, 4)), 1.0), [0.2, 0.3, 0.5])
    law = pc.weighted_sum(np.ones(4), 1.0)
    one, other = (
        pc.condition(mixture, law, pc.bounds(low=0.0), draws=k, generator=generator())
        for k in (2, 9)
    )
    assert (one.point == other.point).all()
    assert (law.residual(one.point).abs() < 1e-12).all()
    fixed = pc.Mixture(pc.Diagonal(np.full((3, 1, 2), 0.1), [1.0, 0.0]))
    post = pc.condition(fixed, pc.bounds(low=0.0), draws=7, generator=generator())
    assert post.mean[0, 1] == 0.1
    assert post.point[0, 1] == 0.1


@pytest.mark.filterwarnings("default::probconserv.ImplausibleWarning")
def test_moves_that_are_not_plausible_warn_for_mixtures_and_truncated_bounds():
    with pytest.warns(pc.ImplausibleWarning):
        pc.condition(
            pc.Mixture(pc.Diagonal(np.full((2, 1, 3), -100.0), 1.0)),
            pc.bounds(low=0.0),
            generator=generator(),
        )
    cut, law = pc.bounds(low=0.0, truncated=True), pc.weighted_sum([1.0, 1.0, 1.0], 1.0)
    with pytest.warns(pc.ImplausibleWarning):
        pc.condition(pc.Diagonal([-100.0, -100.0, -100.0], 1.0), cut, law, generator=generator())


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
@pytest.mark.parametrize("more", [(), (pc.monotone(),)])
def test_empty_fields_give_empty_draws(shape, more):
    eye = np.broadcast_to(np.eye(shape[-1]), (*shape, shape[-1]))
    low = pc.bounds(np.zeros(shape))
    for prior in (pc.Diagonal(np.zeros(shape), 1.0), pc.Dense(np.zeros(shape), eye)):
        post = pc.condition(prior, low, *more, draws=3)
        assert post.draws.shape == (3, *shape)
        assert post.mean.shape == post.point.shape == shape
        assert pc.project(prior, low, *more).mean.shape == shape


def test_the_mean_of_huge_draws_is_finite():
    post = pc.condition(
        pc.Diagonal([1e307, 1e307], 1.0), pc.bounds(low=0.0), draws=50, generator=generator()
    )
    assert post.mean.tolist() == pytest.approx([1e307, 1e307])


def test_bounds_keep_a_copy_of_what_they_are_given():
    low = torch.zeros(3, dtype=torch.float64)
    inside = pc.bounds(low=low)
    low += 5
    assert pc.project(pc.Diagonal([-1.0, 0.0, 1.0], 1.0), inside).mean.tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("draws", [0, 3])
def test_truncated_bounds_are_not_taken_for_plain_ones_beside_limits_and_curved_laws(draws):
    prior, cut = pc.Diagonal([[1.0, 2.0, 3.0]] * 2, 1.0), pc.bounds(low=0.0, truncated=True)
    total, energy = pc.weighted_sum([1.0] * 3, 7.0), pc.nonlinear(lambda u: u.square().sum(), 20.0)
    others = [[pc.at_least(total)], [energy], [total, pc.at_most(energy)]]
    for laws in others if draws else [*others, [total]]:
        with pytest.raises(pc.errors.InputError, match=r"laws that are not linear.*`draws=0`"):
            pc.condition(prior, *laws, cut, draws=draws)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mean_and_point_of_a_mixture_with_limits_keep_bounds_and_name_what_holds(dtype):
    total = pc.at_least(pc.weighted_sum([1.0] * 5, 0.1))
    for seed in range(10):
        rng = np.random.default_rng(seed)
        means, shares = rng.uniform(-2, -1, (3, 2, 5)), rng.dirichlet(np.ones(3))
        prior = pc.Diagonal(torch.tensor(means, dtype=dtype), 0.01)
        mixture = pc.Mixture(prior, torch.tensor(shares, dtype=dtype), event_dims=1)
        low = float(rng.uniform(0.1, 0.4))
        post = pc.condition(mixture, total, pc.bounds(low=low), draws=7, generator=generator())
        for each in (post.mean, post.point, post.draws):
            assert each.dtype == dtype
            assert bool((each.double() >= low).all())
        assert post.laws == ("weighted_sum at least", "bounds")
