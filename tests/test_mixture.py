import math

import numpy as np
import pytest
import torch
from oracle import covariance, exact_residual, grid, normal, uniform
from scipy.stats import norm
from seeds import generator

import probconserv as pc

SHAPE = (4, 7)
EPS = np.finfo(float).eps


@pytest.fixture
def components(rng):
    return pc.Diagonal(normal(5, *SHAPE, rng=rng), uniform(5, *SHAPE, rng=rng))


@pytest.fixture
def law(rng):
    return pc.integral(grid(7, rng), normal(4, rng=rng), noise=0.3)


def log_normal(r, variance):
    return -0.5 * (r**2 / variance + (2 * math.pi * variance).log())


def test_moments_are_the_total_ones(components, rng):
    weights = uniform(5, rng=rng)
    mixture = pc.Mixture(components, weights)
    w = (weights / weights.sum())[:, None, None]
    mean = (w * components.mean).sum(0)
    second = (w * (components.variance + components.mean**2)).sum(0)
    torch.testing.assert_close(mixture.mean, mean)
    torch.testing.assert_close(mixture.variance, second - mean**2)


def test_the_spread_between_components_is_in_the_covariance_too(components, rng):
    """The published code had it in the variance only."""
    mixture = pc.Mixture(components)
    sigma = torch.from_numpy(covariance(mixture))
    torch.testing.assert_close(sigma.diagonal(), mixture.variance.flatten())
    means = components.mean.flatten(1)
    between = (means - means.mean(0)).T @ (means - means.mean(0)) / 5
    off = ~torch.eye(28, dtype=torch.bool)
    torch.testing.assert_close(sigma[off], between[off])
    torch.testing.assert_close(mixture.covariance().reshape(28, 28), sigma)


@pytest.mark.parametrize("event_dims", [1, 2])
def test_conditioning_multiplies_each_weight_by_its_evidence(components, law, event_dims):
    post = pc.condition(pc.Mixture(components, event_dims=event_dims), law)
    seen = (law.map.weights**2 * components.variance).sum(-1) + law.noise_variance
    evidence = log_normal(law.residual(components.mean), seen)  # (S, T)
    if event_dims == 2:
        evidence = evidence.sum(-1)
    torch.testing.assert_close(post.weights, evidence.softmax(0))
    torch.testing.assert_close(post.effective_sample_size, 1 / evidence.softmax(0).square().sum(0))
    torch.testing.assert_close(post.components.mean, pc.condition(components, law).mean)


def test_the_papers_variant_keeps_equal_weights(components, law):
    paper = pc.Mixture(pc.condition(components, law))
    means, variances = paper.components.mean, paper.components.variance
    torch.testing.assert_close(paper.mean, means.mean(0))
    torch.testing.assert_close(paper.variance, variances.mean(0) + means.var(0, correction=0))
    score = torch.distributions.Normal(paper.mean, paper.std).log_prob(torch.zeros(SHAPE))
    torch.testing.assert_close(
        paper.gaussian().marginal_log_prob(torch.zeros(SHAPE).double()), score
    )


@pytest.mark.parametrize("event_dims", [1, 2])
@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.filterwarnings("ignore:the laws leave")
def test_two_steps_equal_one(components, event_dims, noise, rng):
    x = grid(7, rng)
    first, second = pc.integral(x, 0.5, noise=noise), pc.boundary(left=0.1, noise=noise)
    mixture = pc.Mixture(components, event_dims=event_dims)
    once = pc.condition(mixture, first, second)
    for a, b in ((first, second), (second, first)):
        twice = pc.condition(pc.condition(mixture, a), b)
        torch.testing.assert_close(twice.weights, once.weights)
        torch.testing.assert_close(twice.mean, once.mean)
        torch.testing.assert_close(twice.variance, once.variance)


def test_evidence_of_a_joint_law_after_a_per_time_one(components, law, rng):
    joint = pc.linear(normal(2, *SHAPE, rng=rng), normal(2, rng=rng), noise=0.5)
    mixture = pc.Mixture(components)
    once = pc.condition(mixture, law, joint)
    for a, b in ((law, joint), (joint, law)):
        twice = pc.condition(pc.condition(mixture, a), b)
        torch.testing.assert_close(twice.weights, once.weights)


def test_low_rank_components(rng, law):
    components = pc.LowRank(
        normal(5, *SHAPE, rng=rng), normal(3, 5, *SHAPE, rng=rng), uniform(5, *SHAPE, rng=rng), 2
    )
    post = pc.condition(pc.Mixture(components), law)
    means, own = components.mean, components.rest
    fields = [pc.LowRank(means[i], components.factor[:, i], own[i], 2) for i in range(5)]
    alone = [pc.condition(field, law).log_evidence for field in fields]
    torch.testing.assert_close(post.weights, torch.stack(alone).softmax(0))


@pytest.mark.parametrize("event_dims", [1, 2])
def test_every_sample_conserves_and_the_moments_converge(event_dims, rng):
    components = pc.Diagonal(normal(3, 2, *SHAPE, rng=rng), uniform(3, 2, *SHAPE, rng=rng))
    exact = pc.integral(grid(7, rng), normal(2, 4, rng=rng))
    weights = uniform(3, 2, rng=rng) if event_dims == 2 else uniform(3, 2, 4, rng=rng)
    post = pc.Mixture(pc.condition(components, exact), weights, event_dims)
    draws = post.sample(20_000, rng)
    assert draws.shape == (20_000, 2, *SHAPE)
    assert exact.residual(draws).abs().max() < 1e-12
    size = post.std / 20_000**0.5
    assert ((draws.mean(0) - post.mean).abs() < 5 * size).all()
    torch.testing.assert_close(draws.var(0), post.variance, rtol=0.08, atol=1e-6)


@pytest.mark.parametrize("kind", ["low rank", "dense"])
def test_components_of_every_kind_can_be_sampled_with_a_batch(kind, rng):
    mean = 10 * normal(3, 2, *SHAPE, rng=rng)
    if kind == "low rank":
        components = pc.LowRank(mean, normal(5, 3, 2, *SHAPE, rng=rng), 0.1)
    else:
        root = normal(3, 2, *SHAPE, 9, rng=rng)
        components = pc.Dense(mean, root @ root.mT)
    mixture = pc.Mixture(components, uniform(3, 2, rng=rng))
    draws = mixture.sample(20_000, rng)
    assert ((draws.mean(0) - mixture.mean).abs() < 5 * mixture.std / 20_000**0.5).all()
    torch.testing.assert_close(draws.var(0), mixture.variance, rtol=0.08, atol=0)


def test_one_component_gives_as_many_draws_as_are_asked_for(rng):
    """Once there was one draw, whatever n was, and `evaluate` ended in a bare ValueError."""
    mixture = pc.Mixture(pc.Diagonal(normal(1, *SHAPE, rng=rng), 1.0))
    total = pc.weighted_sum(torch.ones(7), 1.0)
    for field in (mixture, pc.condition(mixture, total)):
        torch.testing.assert_close(
            field.sample(20_000, rng).var(0), field.variance, rtol=0.08, atol=0
        )
    assert pc.condition(
        mixture, total, pc.bounds(low=-9.0), draws=30, generator=generator()
    ).draws.shape == (30, *SHAPE)
    assert pc.evaluate(mixture, mixture.mean, generator=generator()).energy.isfinite().all()


@pytest.mark.parametrize("more", [(), (0,), (3,)])
def test_the_covariance_of_an_empty_batch_is_empty(more):
    """It was a bare RuntimeError, where other fields gave an empty tensor."""
    mixture = pc.Mixture(pc.Diagonal(torch.zeros(2, 0, *SHAPE), 1.0))
    v = torch.ones(*more, 0, *SHAPE)
    assert mixture.covariance_times(v).shape == v.shape
    assert mixture.covariance().shape == (0, *SHAPE, *SHAPE)


def test_samples_follow_per_component_initial_values(rng):
    """`initial` has no time axis; its component axis is found all the same."""
    starts = torch.tensor([[0.0, 1.0], [5.0, 7.0]], dtype=torch.float64)
    components = pc.Diagonal(torch.zeros(2, 3, 2, dtype=torch.float64), 1.0)
    mixture = pc.Mixture(pc.condition(components, pc.initial(starts)))
    first = mixture.sample(40, rng)[:, 0]
    assert {tuple(row) for row in first.tolist()} == {(0.0, 1.0), (5.0, 7.0)}


def test_samples_follow_per_component_totals_and_noise(rng):
    """Value, noise and volumes with a component axis go with their component."""
    means = torch.tensor([0.0, 100.0]).double()[:, None, None].expand(2, 3, 4).contiguous()
    totals = torch.tensor([[0.0], [400.0]]).double().expand(2, 3)
    law = pc.weighted_sum(torch.ones(2, 3, 4).double(), totals, space_dims=1)
    draws = pc.Mixture(pc.condition(pc.Diagonal(means, 1.0), law)).sample(50, rng)
    sums = draws.sum(-1)
    near = torch.minimum(sums.abs(), (sums - 400).abs())
    assert near.max() < 1e-10
    assert 0 < (sums > 200).double().mean() < 1


def test_densities_are_those_of_the_mixture(components, rng):
    weights = uniform(5, rng=rng)
    mixture, u = pc.Mixture(components, weights), normal(*SHAPE, rng=rng)
    each = torch.distributions.Normal(components.mean, components.std).log_prob(u)
    log_w = (weights / weights.sum()).log()
    torch.testing.assert_close(
        mixture.marginal_log_prob(u), (each + log_w[:, None, None]).logsumexp(0)
    )
    torch.testing.assert_close(mixture.log_prob(u), (each.sum((1, 2)) + log_w).logsumexp(0))


def test_intervals_are_those_of_the_mixture(rng):
    """Two far apart components: a Gaussian interval would be wrong."""
    mixture = pc.Mixture(pc.Diagonal([[[-5.0]], [[5.0]]], 0.01), weights=[0.3, 0.7])
    low, high = mixture.interval(0.9)
    draws = mixture.sample(50_000, rng)
    inside = ((draws > low) & (draws < high)).double().mean()
    assert float(inside) == pytest.approx(0.9, abs=0.01)
    below = (draws < low).double().mean()
    assert float(below) == pytest.approx(0.05, abs=0.005)
    torch.testing.assert_close(mixture.quantile(0.05), low)
    torch.testing.assert_close(mixture.quantile(0.95), high)


def reached(x, means, std, weights, tail):
    """The probability on the side of `x` that `tail` names, by scipy."""
    side = norm.cdf if tail == "below" else norm.sf
    return np.sum(weights * side(x.numpy(), means.numpy(), std.numpy()), axis=0)


def quantile_case(kind, rng):
    """Means, standard deviations and normalised weights of 6 components at 4 x 7 points."""
    means, std = normal(6, *SHAPE, rng=rng), uniform(6, *SHAPE, rng=rng).sqrt()
    weights = uniform(6, rng=rng)
    if kind == "far apart":
        means, std = 100 * means, std / 100
    elif kind == "many scales":
        std = (3 * normal(6, *SHAPE, rng=rng)).exp()
    elif kind == "zero weights":
        weights[[1, 4]] = 0
        means[1] = 1e4
    elif kind == "weights per time":
        weights = uniform(6, 4, rng=rng)
    return means, std, weights / weights.sum(0)


@pytest.mark.parametrize("p", [1e-6, 0.05, 0.5])
@pytest.mark.parametrize(
    "kind", ["random", "far apart", "many scales", "zero weights", "weights per time"]
)
def test_quantiles_reach_their_probability(kind, p, rng):
    means, std, weights = quantile_case(kind, rng)
    mixture = pc.Mixture(pc.Diagonal(means, std**2), weights, 3 - weights.ndim)
    wide = weights.reshape(6, -1, 1).numpy()
    rounding = 1e-10 + 8 * EPS * float(means.abs().max() / std.min())  # of the quantile itself
    low, high = mixture.interval(1 - 2 * p) if p < 0.5 else [mixture.quantile(p)] * 2
    np.testing.assert_allclose(reached(low, means, std, wide, "below"), p, rtol=rounding)
    np.testing.assert_allclose(reached(high, means, std, wide, "above"), p, rtol=rounding)
    torch.testing.assert_close(mixture.quantile(p), low, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(mixture.quantile(1 - p), high, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("p", [1e-6, 0.05, 0.7])
def test_quantiles_far_from_zero_are_as_near_as_float64_can_tell(p, rng):
    means = 1e6 + 1e-3 * normal(6, *SHAPE, rng=rng)
    std = torch.full_like(means, 1e-3)
    x = pc.Mixture(pc.Diagonal(means, std**2)).quantile(p)
    above, below = (reached(x + gap, means, std, 1 / 6, "below") for gap in (1e-9, -1e-9))
    assert (below < p).all()
    assert (above > p).all()


@pytest.mark.parametrize("p", [1e-6, 0.1, 0.4, 0.62, 0.95])
def test_quantiles_of_components_that_are_sure(p, rng):
    """Where the probability jumps over `p`, the quantile is where it jumps."""
    means, std = normal(6, *SHAPE, rng=rng), uniform(6, *SHAPE, rng=rng)
    std[::2] = 0
    std[:, 0] = 0
    means[:, 1] = 0
    x = pc.Mixture(pc.Diagonal(means, std**2)).quantile(p)
    none = std == 0
    own = norm.cdf(x.numpy(), means.numpy(), torch.where(none, 1.0, std).numpy())
    gap = 1e-14 * (means.abs() + std).amax(0)
    highest = np.where(none, (x + gap >= means).numpy(), own).mean(0)
    lowest = np.where(none, (x - gap > means).numpy(), own).mean(0)
    assert (lowest <= p * (1 + 1e-10)).all()
    assert (highest >= p * (1 - 1e-10)).all()


def test_quantiles_of_float32_components_are_in_float32(rng):
    means, std = normal(6, *SHAPE, rng=rng).float(), uniform(6, *SHAPE, rng=rng).float()
    ends = pc.Mixture(pc.Diagonal(means, std**2)).interval(0.9)
    exact = pc.Mixture(pc.Diagonal(means.double(), (std**2).double())).interval(0.9)
    for end, value in zip(ends, exact, strict=True):
        assert end.dtype == torch.float32
        assert torch.equal(end, value.float())


def test_to_moves_components_and_weights(components):
    mixture = pc.Mixture(components, torch.arange(1.0, 6.0))
    moved = mixture.to("cpu")
    assert torch.equal(moved.mean, mixture.mean)
    assert mixture.to("meta").log_weights.device.type == "meta"


def test_project_moves_every_component(components, rng):
    exact = pc.integral(grid(7, rng), 0.5)
    hard = pc.project(pc.Mixture(components), exact)
    assert exact_residual(exact, hard.mean) < 1e-12
    assert torch.equal(hard.components.variance, components.variance)


def test_the_covariance_of_float32_components_far_from_zero(rng):
    """The mean was rounded to 0.004 first: 43 % too much on the diagonal."""
    means = (101325 + 0.01 * normal(4, 2, 3, rng=rng)).float()
    weights = np.array([0.1, 0.2, 0.3, 0.4])
    mixture = pc.Mixture(pc.Diagonal(means, 1e-8), weights)
    wanted = np.cov(means.flatten(1).T.double(), aweights=weights, bias=True) + 1e-8 * np.eye(6)
    np.testing.assert_allclose(mixture.covariance().reshape(6, 6), wanted, rtol=1e-5, atol=1e-10)


def surely(totals, times=1, **how):
    """A mixture of steady fields that are sure of their totals, and a total of 1."""
    means = torch.tensor(totals, dtype=torch.float64)[:, None, None].expand(-1, times, 2) / 2
    return pc.Mixture(pc.Diagonal(means, 0.005), **how), pc.weighted_sum([1.0, 1.0], 1.0)


def test_weights_that_collapse_are_said_with_their_number():
    """With 4 components 1.04 were left, in silence."""
    mixture, law = surely([1.0, 1.25, 1.4, 0.6])
    with pytest.warns(pc.ImplausibleWarning, match=r"leave 1\.09 of the 4 components.*`inflate`"):
        post = pc.condition(mixture, law)
    likely = torch.tensor([0.0, 0.25, 0.4, 0.4], dtype=torch.float64)
    weights = (-(likely**2) / 0.02).softmax(0)  # the variance of a total is 0.01
    torch.testing.assert_close(post.weights, weights)
    assert f"{1 / weights.square().sum():.3g}" == "1.09"


def test_weights_that_collapse_are_counted_over_a_batch():
    mixture, _ = surely([1.0, 1.25, 1.4, 0.6], times=3, event_dims=1)
    law = pc.weighted_sum([1.0, 1.0], [1.0, 1.325, 1.0], noise=torch.tensor([0.0, 0.0, 9.0]))
    with pytest.warns(pc.ImplausibleWarning, match=r"in 1 of 3 entries, at worst 1\.09 of the 4"):
        pc.condition(mixture, law)


def test_fewer_than_a_tenth_of_many_components_is_a_collapse():
    mixture, law = surely([1.0] * 4 + [1.9] * 46)
    with pytest.warns(pc.ImplausibleWarning, match="leave 4 of the 50 components"):
        pc.condition(mixture, law)


@pytest.mark.parametrize(
    ("totals", "how"),
    [
        ([1.2], {}),
        ([1.0, 1.1], {}),
        ([1.0, 1.3, 1.3], {"weights": [0.98, 0.01, 0.01]}),
        ([1.0, 1.05, 1.1, 1.4], {}),
    ],
    ids=["one component", "two that agree", "one had all before", "three that agree"],
)
def test_no_word_where_nothing_collapses(totals, how):
    mixture, law = surely(totals, **how)
    assert pc.condition(mixture, law).effective_sample_size <= len(totals)


def test_no_word_on_weights_where_values_cannot_be_looked_at():
    mixture, law = surely([1.0, 1.25, 1.4, 0.6])
    means = mixture.components.mean

    def mean(means):
        return pc.condition(pc.Mixture(pc.Diagonal(means, 0.005)), law).mean

    mapped = torch.func.vmap(mean)(means[None])[0]
    with pytest.warns(pc.ImplausibleWarning):
        torch.testing.assert_close(mapped, mean(means))


def test_two_components_collapse_when_one_has_all_but_five_per_cent():
    with pytest.warns(pc.ImplausibleWarning, match=r"leave 1\.02 of the 2 components"):
        pc.condition(*surely([1.0, 1.3]))
