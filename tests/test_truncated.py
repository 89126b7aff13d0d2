"""Normal points within bounds given their sum, against Fourier transforms and Hamiltonian moves."""

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import truncnorm
from seeds import generator
from truncation import by_fourier, by_reflections

import probconserv as pc
from probconserv.conditioning.inequalities.interval import cumulants, quantile
from probconserv.conditioning.inequalities.truncated import tilted
from probconserv.support.errors import InfeasibleError, InputError

INF = torch.inf
FAR = [  # mean, variance, low, high
    (0.0, 1.0, 0.0, INF),
    (-9.0, 4.0, 0.0, INF),
    (-40.0, 1.0, 0.0, INF),
    (-1e4, 1.0, 0.0, INF),
    (50.0, 1.0, -INF, 2.0),
    (0.0, 1.0, -1.0, 2.0),
    (0.0, 1.0, 3.0, 3.0001),
    (-50.0, 1.0, 0.0, 1e-3),
    (0.0, 1.0, -1e-8, 1e-8),
]


def numbers(*x):
    return [torch.tensor(each, dtype=torch.float64) for each in x]


def soft(size, seed=0):
    """A field well above 0 here and near it there, whose total is to shrink by 30 %."""
    rng = np.random.default_rng(seed)
    mean, std = rng.random(size), 0.1 + 0.4 * rng.random(size)
    return problem(mean, std, 0.7 * mean.mean())


def zeros(size, seed=0):
    """A field that truly is 0 at 60 % of its points, seen with errors."""
    rng = np.random.default_rng(seed)
    truth = (0.4 - np.linspace(0, 1, size)).clip(0)
    std = 0.02 + 0.1 * rng.random(size)
    return problem(truth + std * rng.standard_normal(size), std, truth.mean())


def problem(mean, std, value):
    size = len(mean)
    sides = mean, std**2, np.zeros(size), np.full(size, np.inf), np.full(size, 1 / size)
    return numbers(*sides, value)


def arrays(given):
    return [x.numpy() for x in given]


def errors(found, given, **how):
    """The largest errors of mean and standard deviation, in standard deviations."""
    mean, variance = by_fourier(*arrays(given), **how)
    std = np.sqrt(variance)
    off = np.abs(found.mean.numpy() - mean) / std
    return off.max(), np.abs(found.variance.sqrt().numpy() / std - 1).max()


def exact_integral(power, mean, variance, low, high, about=0):
    """The integral of (u - about)^power times the density over its value at the mode."""
    std, mode = mpmath.sqrt(variance), min(max(mean, low), high)
    k = abs(mode - mean) / std
    reach = 90 * std / (k + mpmath.sqrt(k * k + 90))
    ends = mpmath.linspace(max(low, mode - reach), min(high, mode + reach), 4)
    return mpmath.quad(
        lambda u: (
            (u - about) ** power * mpmath.exp(((mode - mean) ** 2 - (u - mean) ** 2) / 2 / variance)
        ),
        ends,
    )


@pytest.mark.parametrize("given", FAR)
def test_cumulants_hold_in_both_tails_and_in_narrow_intervals(given):
    with mpmath.workdps(30):
        given = [mpmath.mpf(x) for x in given]
        mass = exact_integral(0, *given)
        mean = exact_integral(1, *given) / mass
        m2, m3, m4 = (exact_integral(k, *given, about=mean) / mass for k in (2, 3, 4))
    found = cumulants(*numbers(*map(float, given)))
    std = float(mpmath.sqrt(m2))
    wanted = float(mean), float(m2), float(m3), float(m4 - 3 * m2**2)
    for k, (a, b) in enumerate(zip(found, wanted, strict=True), 1):
        assert float(a) == pytest.approx(b, abs=1e-7 * std**k, rel=1e-14)


@pytest.mark.parametrize("given", FAR)
def test_quantiles_invert_the_distribution_function(given):
    for p in (1e-3, 0.975):
        found = float(quantile(*numbers(p, *given)))
        with mpmath.workdps(30):
            sides = [mpmath.mpf(x) for x in given]
            below = exact_integral(0, *sides[:3], mpmath.mpf(found))
            if found < given[0]:  # the mode of the shorter interval is its end, as everywhere
                ends = (found - sides[0]) ** 2 - (
                    min(max(sides[0], sides[2]), sides[3]) - sides[0]
                ) ** 2
                below *= mpmath.exp(-ends / 2 / sides[1])
            share = float(below / exact_integral(0, *sides))
        assert share == pytest.approx(p, rel=1e-6)


def test_quantiles_agree_with_scipy_near_the_mean():
    p, low, high = np.linspace(0.01, 0.99, 7), -0.5, 1.5
    found = quantile(*numbers(p, 0.3, 4.0, low, high))
    wanted = truncnorm((low - 0.3) / 2, (high - 0.3) / 2, 0.3, 2).ppf(p)
    np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize("field", [soft, zeros])
def test_moments_of_201_points_are_within_2e_4_standard_deviations(field):
    given = field(201)
    mean, std = errors(tilted(*given), given, frequencies=100, reach=9.0, nodes=120)
    assert mean < 2e-4
    assert std < 2e-4


@pytest.mark.parametrize("field", [soft, zeros])
def test_moments_of_ten_points_are_within_two_hundredths(field):
    given = field(10)
    mean, std = errors(tilted(*given), given, frequencies=1000, reach=60.0, nodes=200)
    assert mean < 0.01
    assert std < 0.02


def test_hamiltonian_moves_and_fourier_transforms_agree():
    given = arrays(zeros(6, seed=3))
    start = tilted(*numbers(*given)).draw(10, torch.Generator().manual_seed(0)).numpy()
    draws = by_reflections(*given, start, 80, np.random.default_rng(0))
    mean, variance = by_fourier(*given, frequencies=1500, reach=80.0, nodes=300)
    assert (draws >= given[2] - 1e-12).all()
    np.testing.assert_allclose(draws @ given[4], given[5], rtol=1e-12)
    chains = (draws.mean(0) - mean) / np.sqrt(variance)  # ten independent means of each point
    assert (np.abs(chains.mean(0)) < 4 * chains.std(0, ddof=1) / np.sqrt(10)).all()
    assert (np.abs(draws.std((0, 1)) / np.sqrt(variance) - 1) < 0.15).all()


def test_without_bounds_it_is_gaussian_conditioning():
    rng = np.random.default_rng(1)
    mean, variance, g = rng.standard_normal((3, 7))
    variance = variance**2 + 0.1
    free = np.full(7, np.inf)
    for noise in (0.0, 0.3):
        found = tilted(*numbers(mean, variance, -free, free, g, 1.7, noise))
        gain = variance * g / (g @ (variance * g) + noise)
        np.testing.assert_allclose(found.mean, mean + gain * (1.7 - g @ mean), rtol=1e-8)
        np.testing.assert_allclose(found.variance, variance - gain * g * variance, rtol=1e-8)


def test_noise_is_one_more_point_without_bounds():
    *sides, value = zeros(30)
    noise = 0.02**2
    mean, variance, low, high, g = arrays(sides)
    longer = [
        np.append(x, y) for x, y in ((mean, 0), (variance, 1), (low, -np.inf), (high, np.inf))
    ]
    wanted, spread = by_fourier(*longer, np.append(g, 0.02), float(value), nodes=200)
    found = tilted(*sides, value, noise)
    np.testing.assert_allclose(found.mean, wanted[:-1], atol=0.01 * np.sqrt(spread[:-1]).min())
    np.testing.assert_allclose(found.variance, spread[:-1], rtol=0.02)
    draws = found.draw(500, torch.Generator().manual_seed(0))
    assert float((draws @ sides[4]).std()) == pytest.approx(0.02 * spread[-1] ** 0.5, rel=0.2)


def test_draws_have_the_exact_moments_and_the_quantiles_of_the_marginals():
    given = zeros(20)
    found, n = tilted(*given), 2000
    draws = found.draw(n, torch.Generator().manual_seed(0)).numpy()
    mean, variance = by_fourier(*arrays(given), frequencies=800, reach=40.0, nodes=200)
    assert (np.abs(draws.mean(0) - mean) < 4.5 * np.sqrt(variance / n)).all()
    np.testing.assert_allclose(draws.std(0), np.sqrt(variance), rtol=0.12)
    for p in (0.05, 0.5, 0.9):
        share = (draws < found.quantile(p).numpy()).mean(0)
        assert (np.abs(share - p) < 0.01 + 4 * np.sqrt(p * (1 - p) / n)).all()


@pytest.mark.parametrize("field", [soft, zeros])
def test_means_and_draws_stay_within_bounds_and_have_the_sum(field):
    given = field(51)
    found = tilted(*given)
    for u in (found.mean, found.draw(3, torch.Generator().manual_seed(0))):
        assert bool((u >= 0).all())
        np.testing.assert_allclose(u @ given[4], float(given[5]), rtol=1e-13)


def test_weights_of_both_signs_and_two_bounds_are_met():
    rng = np.random.default_rng(5)
    mean, g = rng.standard_normal((2, 40))
    low, high = -rng.random(40), rng.random(40)
    given = numbers(mean, rng.random(40) + 0.1, low, high, g, 0.9 * np.abs(g).sum() * 0.3)
    found = tilted(*given)
    assert float(found.mean @ given[4]) == pytest.approx(float(given[5]), rel=1e-13)
    assert errors(found, given, nodes=200) < (0.01, 0.01)


@pytest.mark.parametrize("share", [0.0, 1e-9, 1.0, 1 - 1e-9])
def test_totals_at_the_ends_of_their_reach_leave_nothing_open(share):
    low, high = np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 7.0])
    total = share * high.sum() + (1 - share) * low.sum()
    found = tilted(*numbers(np.ones(3), np.ones(3), low, high, np.ones(3), total))
    np.testing.assert_allclose(found.mean, low + share * (high - low), atol=1e-7)
    assert float(found.mean.sum()) == pytest.approx(total, rel=1e-13)
    assert float(found.variance.max()) < 1e-14
    assert bool(found.draw(2, generator=generator()).isfinite().all())


def test_points_without_variance_stay_and_a_last_free_point_is_determined():
    sides = [3.0, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0] * 3, [INF] * 3, [1.0, 2.0, 1.0]
    found = tilted(*numbers(*sides, 5.0))
    np.testing.assert_allclose(found.mean, [3, 1, 0], rtol=1e-14)
    np.testing.assert_allclose(found.variance, [0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(found.draw(2, generator=generator())[1], [3, 1, 0], rtol=1e-14)


def test_rows_together_are_rows_one_by_one():
    rows = [soft(9, seed) for seed in range(4)] + [zeros(9, seed) for seed in range(2)]
    together = tilted(*(torch.stack(x).unflatten(0, (2, 3)) for x in zip(*rows, strict=True)))
    assert together.mean.shape == (2, 3, 9)
    assert together.draw(5, generator=generator()).shape == (5, 2, 3, 9)
    for i, row in enumerate(rows):
        alone = tilted(*row)
        np.testing.assert_allclose(together.mean.flatten(0, 1)[i], alone.mean, rtol=1e-9)
        np.testing.assert_allclose(together.variance.flatten(0, 1)[i], alone.variance, rtol=1e-7)


def test_gradients_are_those_of_finite_differences():
    mean, variance, low, high, g, value = soft(4)

    def moments(mean, variance, value):
        found = tilted(mean, variance, low, high, g, value)
        return found.mean, found.variance

    given = tuple(x.clone().requires_grad_() for x in (mean, variance, value))
    assert torch.autograd.gradcheck(moments, given, eps=1e-5, atol=1e-4)


def test_totals_out_of_reach_are_refused_with_what_can_be_reached():
    *sides, _ = soft(5)
    with pytest.raises(InfeasibleError, match="bounds are 0 or more"):
        tilted(*sides, *numbers(-0.1))


def test_bounds_the_wrong_way_round_and_impossible_shares_are_refused():
    mean, variance, low, high, g, value = soft(5)
    with pytest.raises(InputError, match="`low` must not be above `high`"):
        tilted(mean, variance, high, low, g, value)
    with pytest.raises(InputError, match="`p` must lie between 0 and 1"):
        tilted(mean, variance, low, high, g, value).quantile(1.0)


@pytest.mark.parametrize("scale", [1e-140, 1e-100, 1e80, 1e150])
def test_units_however_small_or_large_change_nothing(scale):
    def at(c):
        prior = pc.Diagonal(c * np.array([0.1, 0.2, 1.0]), np.full(3, c) ** 2)
        law, cut = pc.weighted_sum([1.0, 1.0, 1.0], 0.7 * c), pc.bounds(low=0.0, truncated=True)
        rng = torch.Generator().manual_seed(0)
        return pc.condition(prior, law, cut, draws=20, generator=rng)

    usual, other = at(1.0), at(scale)
    assert (other.mean / scale).numpy() == pytest.approx(usual.mean.numpy(), rel=1e-9)
    assert (other.draws / scale).sum(-1).numpy() == pytest.approx(0.7, rel=1e-12)
    spread = (other.variance / scale / scale).numpy()
    assert spread == pytest.approx(usual.variance.numpy(), rel=1e-9)


def test_short_rows_take_variance_and_intervals_from_their_draws():
    prior, law = pc.Diagonal([0.1, 0.2, 1.0], 1.0), pc.weighted_sum([1.0, 1.0, 1.0], 0.7)
    post = pc.condition(
        prior, law, pc.bounds(low=0.0, truncated=True), draws=50, generator=generator()
    )
    assert (post.variance == post.draws.var(0)).all()
    assert (post.quantile(0.5) == pc.Draws(post.draws).quantile(0.5)).all()
