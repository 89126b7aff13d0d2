"""Fronts against enumeration, integrals of normal densities and NumPy draws."""

import itertools
import math

import numpy as np
import pytest
import torch
from oracle import grid, normal, posterior, uniform
from profiles import CLOSE, DRAWS, NAN, certain, line, walked
from scipy.stats import multivariate_normal, norm
from seeds import generator

import probconserv as pc
from probconserv.diagnostics import front_position, fronts
from probconserv.problems import Stefan


def enumerated(mean, std, level):
    """The probability of each point to be the first, and of none, over all 2^M signs."""
    below = norm.cdf(level, mean, std)
    chances = np.zeros(len(mean) + 1)
    for signs in itertools.product([True, False], repeat=len(mean)):
        first = signs.index(True) if True in signs else len(mean)
        chances[first] += np.prod(np.where(signs, below, 1 - below))
    return chances


def shares(front, x):
    """How often each grid point, and none, was the front: (M + 1, *batch, T)."""
    at = [torch.where(front.positions == one, front.probabilities, 0.0).sum(0) for one in x]
    return torch.stack([*at, front.none])


def check_draws(front, draws, x, level, rule):
    """Against positions walked in draws (n, M) that NumPy made."""
    expected = np.array([walked(u, x.numpy(), level, rule) for u in draws])
    assert float(front.none) == pytest.approx(np.isnan(expected).mean(), abs=CLOSE)
    width = float(x[-1] - x[0])
    assert float(front.mean) == pytest.approx(np.nanmean(expected), abs=width * CLOSE / 2)
    assert float(front.std) == pytest.approx(np.nanstd(expected), abs=width * CLOSE / 2)


# The exact distribution


@pytest.mark.parametrize("level", [0.0, -0.4])
def test_independent_points_have_the_distribution_that_enumeration_gives(level, rng):
    mean, variance, x = normal(3, 6, rng=rng), uniform(3, 6, rng=rng), grid(6, rng) - 4
    front = front_position(pc.Diagonal(mean, variance), x, level)
    assert front.probabilities.shape == (7, 3)
    for t in range(3):
        expected = enumerated(mean[t].numpy(), variance[t].sqrt().numpy(), level)
        np.testing.assert_allclose(front.probabilities[:, t], expected, atol=1e-14)
        found = expected[:-1] / expected[:-1].sum()
        average = found @ x.numpy()
        assert float(front.mean[t]) == pytest.approx(average)
        assert float(front.std[t]) == pytest.approx((found @ (x.numpy() - average) ** 2) ** 0.5)
        assert float(front.none[t]) == pytest.approx(expected[-1])


def test_quantiles_are_the_first_points_that_the_cumulative_share_reaches(rng):
    mean, x = normal(6, rng=rng), grid(6, rng)
    front = front_position(pc.Diagonal(mean, 0.5), x)
    chances = enumerated(mean.numpy(), np.sqrt(np.full(6, 0.5)), 0.0)[:-1]
    for q in (0.02, 0.3, 0.5, 0.9, 0.999):
        count = next(i for i in range(6) if chances[: i + 1].sum() / chances.sum() >= q)
        assert front.quantile(q) == x[count]
    assert front.interval(0.8) == (front.quantile(0.1), front.quantile(0.9))


def test_a_quantile_of_draws_is_one_of_them_at_the_place_that_counting_gives():
    front = pc.diagnostics.FrontPosition(
        torch.arange(10.0).double(), torch.full((10,), 0.1).double()
    )
    for count in range(1, 10):
        assert front.quantile(count / 10) == count - 1
        assert front.quantile(count / 10 + 0.01) == count


def test_samples_agree_with_the_exact_distribution(rng):
    mean, variance, x = normal(2, 3, 5, rng=rng), uniform(2, 3, 5, rng=rng), grid(5, rng)
    field = pc.Diagonal(mean, variance)
    exact = front_position(field, x, 0.1)
    drawn = front_position(field, x, 0.1, samples=DRAWS, generator=rng)
    assert drawn.positions.shape == (DRAWS, 2, 3)
    torch.testing.assert_close(shares(drawn, x), exact.probabilities, atol=CLOSE / 2, rtol=0)
    torch.testing.assert_close(drawn.mean, exact.mean, atol=CLOSE, rtol=0)
    torch.testing.assert_close(drawn.std, exact.std, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("event_dims", [1, 2])
def test_a_mixture_of_independent_points_mixes_their_distributions(event_dims, rng):
    means, variances, x = normal(4, 3, 5, rng=rng), uniform(4, 3, 5, rng=rng), grid(5, rng)
    weights = uniform(*(4, 3)[: 3 - event_dims], rng=rng)
    mixture = pc.Mixture(pc.Diagonal(means, variances), weights, event_dims)
    exact = front_position(mixture, x)
    share = (weights / weights.sum(0)).reshape(4, -1).expand(4, 3).numpy()
    for t in range(3):
        each = [enumerated(means[s, t], variances[s, t].sqrt(), 0.0) for s in range(4)]
        np.testing.assert_allclose(exact.probabilities[:, t], share[:, t] @ each, atol=1e-14)
    drawn = front_position(mixture, x, samples=DRAWS, generator=rng)
    torch.testing.assert_close(shares(drawn, x), exact.probabilities, atol=CLOSE / 2, rtol=0)


def test_probabilities_are_right_where_products_of_small_numbers_are():
    """2000 points at five and nine standard deviations, and points that are sure."""
    mean = torch.full((2000,), 9.0).double()
    mean[::7], mean[-1] = 5.0, -60.0
    front = front_position(pc.Diagonal(mean, 1.0), torch.arange(2000.0).double())
    below = [math.erfc(float(m) / math.sqrt(2)) / 2 for m in mean]
    rest = 1.0
    for i, p in enumerate(below):
        assert float(front.probabilities[i]) == pytest.approx(p * rest, rel=1e-11, abs=0)
        rest *= 1 - p
    assert float(front.probabilities.sum()) == pytest.approx(1, abs=1e-12)
    assert front.none == 0


def test_probabilities_add_up_to_one_whatever_the_field(rng):
    mean = 10 ** (6 * normal(5, 4, 300, rng=rng)) * normal(5, 4, 300, rng=rng).sign()
    variance = torch.where(uniform(5, 4, 300, rng=rng) < 0.5, 0.0, 1.0).double()
    front = front_position(pc.Diagonal(mean, variance), line(300))
    assert (front.probabilities >= 0).all()
    torch.testing.assert_close(front.probabilities.sum(0), torch.ones(5, 4).double())


# Samples


def test_correlated_points_have_the_probabilities_of_orthants(rng):
    mean, x = torch.tensor([0.6, 0.3, -0.1]).double(), torch.tensor([-2.0, 0.5, 1.0]).double()
    sigma = torch.tensor([[0.3, 0.27, 0.2], [0.27, 0.4, 0.3], [0.2, 0.3, 0.5]]).double()
    front = front_position(pc.Dense(mean, sigma), x, 0.2, samples=DRAWS, generator=rng)
    expected = []
    for i in range(4):  # the first i points are above, the next one is not
        signs = np.array([-1.0] * i + [1.0] * (i < 3))
        part, size = slice(0, len(signs)), len(signs)
        tilted = signs[:, None] * sigma.numpy()[part, part] * signs
        centre = signs * (mean.numpy()[part] - 0.2)
        expected.append(multivariate_normal(centre, tilted, seed=0).cdf(np.zeros(size)))
    np.testing.assert_allclose(shares(front, x), expected, atol=CLOSE / 2)
    apart = front_position(pc.Diagonal(mean, sigma.diagonal()), x, 0.2).probabilities
    assert (shares(front, x) - apart).abs().max() > 2 * CLOSE  # correlation matters here


@pytest.mark.parametrize("rule", ["point", "crossing"])
def test_dense_and_low_rank_fields_have_the_front_of_numpy_draws(rule, rng):
    mean, factor, x = 1 - grid(7, rng) / 4, normal(2, 7, rng=rng) / 3, grid(7, rng) - 3
    low = pc.LowRank(mean, factor, 0.05)
    sigma = (factor.T @ factor).numpy() + 0.05 * np.eye(7)
    draws = np.random.default_rng(1).multivariate_normal(mean.numpy(), sigma, DRAWS)
    for field in (low, pc.Dense(mean, sigma)):
        front = front_position(field, x, 0.2, rule, samples=DRAWS, generator=rng)
        check_draws(front, draws, x, 0.2, rule)


@pytest.mark.parametrize("rule", ["point", "crossing"])
def test_a_conditioned_field_has_the_front_of_draws_of_its_posterior(rule, rng):
    mean, variance, x = 1 - grid(6, rng) / 4, uniform(6, rng=rng), grid(6, rng) + 1
    law = pc.integral(x, 0.8)
    post = pc.condition(pc.Diagonal(mean[None], variance[None]), law)
    centre, sigma = posterior(mean.numpy(), np.diag(variance.numpy()), [law], (1, 6))
    draws = np.random.default_rng(2).multivariate_normal(centre, sigma, DRAWS)
    front = front_position(post, x, 0.1, rule, samples=DRAWS, generator=rng)
    check_draws(front, draws, x, 0.1, rule)


def test_a_conditioned_mixture_has_the_front_of_its_parts(rng):
    means, x = normal(3, 2, 5, rng=rng) + 0.5, grid(5, rng)
    post = pc.condition(pc.Mixture(pc.Diagonal(means, 0.4)), pc.integral(x, 0.5, noise=0.2))
    front = front_position(post, x, samples=DRAWS, generator=rng)
    parts = [pc.condition(pc.Diagonal(one, 0.4), pc.integral(x, 0.5, noise=0.2)) for one in means]
    each = [shares(front_position(p, x, samples=DRAWS, generator=rng), x) for p in parts]
    expected = sum(w * share for w, share in zip(post.weights, each, strict=True))
    torch.testing.assert_close(shares(front, x), expected, atol=CLOSE, rtol=0)


def test_where_times_are_joint_a_draw_is_a_path():
    """One direction moves all times together, so that every front keeps its lead."""
    x = line(101)
    mean = torch.stack([0.4 - x, 0.7 - x])
    field = pc.LowRank(mean, 0.02 * torch.ones(1, 2, 101).double(), event_dims=2)
    front = front_position(field, x, rule="crossing", generator=generator())
    lead = front.positions[:, 1] - front.positions[:, 0]
    torch.testing.assert_close(lead, torch.full_like(lead, 0.3))
    assert front.std.min() > 0.015


def test_few_numbers_are_drawn_at_a_time(rng, monkeypatch):
    drawn = []

    class Watched(pc.Diagonal):
        def sample(self, n, generator=None):
            drawn.append(n)
            return super().sample(n, generator)

    monkeypatch.setattr(fronts, "CHUNK", 100)
    field = Watched(normal(3, 5, rng=rng), 1.0)
    front = front_position(field, line(5), samples=20, generator=rng)
    assert drawn == [6, 6, 6, 2]
    assert front.positions.shape == (20, 3)
    torch.testing.assert_close(front.probabilities.sum(0), torch.ones(3).double())


def test_a_generator_decides_the_draws(rng):
    field = pc.Diagonal(normal(3, 9, rng=rng), 1.0)
    seeds = (torch.Generator().manual_seed(seed) for seed in (1, 1, 2))
    a, b, c = (front_position(field, line(9), 0.0, "crossing", generator=g) for g in seeds)
    assert a.positions.shape == (1000, 3)
    torch.testing.assert_close(a.positions, b.positions, equal_nan=True, rtol=0, atol=0)
    assert (a.positions != c.positions).any()


# Shapes


def test_a_batch_equals_a_loop(rng):
    mean, variance, x = normal(4, 3, 6, rng=rng), uniform(4, 3, 6, rng=rng), grid(6, rng)
    level = normal(4, 1, rng=rng)
    whole = front_position(pc.Diagonal(mean, variance), x, level)
    for i, t in itertools.product(range(4), range(3)):
        one = front_position(pc.Diagonal(mean[i, t], variance[i, t]), x, float(level[i]))
        assert one.mean.shape == ()
        torch.testing.assert_close(whole.probabilities[:, i, t], one.probabilities)
        for name in ("mean", "std", "none"):
            torch.testing.assert_close(getattr(whole, name)[i, t], getattr(one, name))
        torch.testing.assert_close(whole.quantile(0.4)[i, t], one.quantile(0.4))


def test_every_function_of_a_batch_has_its_own_level():
    x, t, u_star = line(201), line(5, 0.02, 0.1), torch.tensor([0.55, 0.6, 0.7]).double()
    field = certain(Stefan(u_star).on_grid(t, x))
    front = front_position(
        field, x, u_star[:, None] / 2, "crossing", samples=1, generator=generator()
    )
    assert front.mean.shape == (3, 5)
    assert (front.mean - Stefan(u_star)[:, None].front(t)).abs().max() < 0.6 * 0.005


def test_single_precision_and_other_libraries_predictions(rng):
    mean, x = normal(3, 5, rng=rng), np.linspace(-2, 2, 5)
    normals = torch.distributions.Normal(mean.float(), 0.5)
    single, double = front_position(normals, x), front_position((mean, 0.25), x)
    assert single.mean.dtype == torch.float64
    torch.testing.assert_close(single.probabilities, double.probabilities, atol=1e-6, rtol=0)
    drawn = front_position(normals, x, 0.3, "crossing", generator=rng)
    assert drawn.positions.dtype == torch.float64


def test_gradients_are_not_kept(rng):
    mean = normal(3, 5, rng=rng).requires_grad_()
    for samples in (None, 3):
        assert not front_position(
            pc.Diagonal(mean, 1.0), line(5), samples=samples, generator=generator()
        ).mean.requires_grad


# Errors


FIELD = pc.Diagonal(torch.ones(4, 7).double(), 1.0)
X = line(7)


@pytest.mark.parametrize(
    ("message", "changed"),
    [
        ("`x` must increase strictly; entry 0 is 1 and entry 1 is 0.83", {"x": X.flip(0)}),
        (r"`x` must be one axis of at least 2 points, got shape \(2, 7\)", {"x": (X, X)}),
        (r"`x` has 6 points, but the last axis of the field, of shape \(4, 7\)", {"x": line(6)}),
        ("`x` must be finite", {"x": torch.where(X > 0.9, NAN, X)}),
        ("`x` is on meta but the field is on cpu", {"x": X.to("meta")}),
        ("`level` must be finite", {"level": NAN}),
        (r"`level` of shape \(7,\) does not fit the times of the field", {"level": X}),
        ("`rule` must be one of point, crossing; got 'points'. Did you mean", {"rule": "points"}),
        ("`start` must be one of left, right; got 'top'", {"start": "top"}),
        ("`samples` must be a positive whole number, got 0", {"samples": 0}),
        ("`samples` must be a positive whole number, got 10.0", {"samples": 10.0}),
    ],
)
def test_arguments_that_are_wrong(message, changed):
    with pytest.raises(pc.errors.InputError, match=message):
        front_position(**{"field": FIELD, "x": X, **changed})


def test_a_field_with_two_axes_of_space():
    plane = pc.LowRank(torch.ones(4, 3, 7).double(), torch.ones(1, 4, 3, 7).double(), 0.1, 3)
    message = "`field` is joint over 3 axes, so it has more than one axis of space"
    with pytest.raises(pc.errors.InputError, match=message):
        front_position(plane, X)


@pytest.mark.parametrize("q", [0, 1, -0.2, "0.5"])
def test_quantiles_that_are_no_share(q):
    with pytest.raises(pc.errors.InputError, match="`q` must lie between 0 and 1"):
        front_position(FIELD, X).quantile(q)


@pytest.mark.parametrize("samples", [None, 5])
def test_values_that_have_become_nan_are_no_front(samples):
    mean = torch.ones(4, 7).double()
    field = pc.Diagonal(mean, 1.0)
    mean[2, 3] = NAN  # tensors are not copied
    with pytest.raises(pc.errors.InputError, match="must be finite"):
        front_position(field, X, samples=samples, generator=generator())
