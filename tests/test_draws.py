import math

import numpy as np
import pytest
import torch
from seeds import generator

import probconserv as pc
from probconserv.conditioning.draws import StateDraws


def normal_draws(n=4000, shape=(3, 5), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, *shape, generator=generator, dtype=torch.float64)


def test_moments_and_quantiles_are_those_of_the_draws():
    draws = normal_draws(101)
    field = pc.Draws(draws)
    ends = np.quantile(draws.numpy(), [0.05, 0.95], axis=0, method="weibull")
    assert torch.equal(field.mean, draws.mean(0))
    assert torch.equal(field.variance, draws.var(0))
    for found, wanted in zip(field.interval(0.9), ends, strict=True):
        assert np.allclose(found, wanted, rtol=1e-14, atol=1e-15)
    assert torch.equal(field.quantile(0.5), draws.median(0).values)


def test_an_interval_of_few_draws_holds_a_new_one_as_often_as_it_says():
    draws = normal_draws(21, (100, 300))
    low, high = pc.Draws(draws[:20]).interval(0.8)
    inside = ((low <= draws[20]) & (draws[20] <= high)).double().mean()
    assert abs(float(inside) - 0.8) < 0.01


def test_the_covariance_is_that_of_the_draws():
    draws = normal_draws(7, (3, 5))
    found = pc.Draws(draws).covariance()
    for time in range(3):
        assert np.allclose(found[time], np.cov(draws[:, time].numpy().T))


def test_scores_of_normal_draws_are_those_of_the_normal():
    draws, truth = normal_draws(4_000, (2, 4)), torch.full((2, 4), 0.8, dtype=torch.float64)
    scores = pc.evaluate(pc.Draws(draws), truth)
    exact = pc.evaluate(
        pc.Diagonal(torch.zeros_like(truth), 1.0), truth, samples=5_000, generator=generator()
    )
    for name, near in {"CRPS": 0.03, "LL": 0.04, "MSE": 0.07, "energy": 0.04}.items():  # 5 std
        assert torch.allclose(getattr(scores, name), getattr(exact, name), atol=near), name
    assert bool((scores.coverage_90 == 1).all())
    assert bool((scores.coverage_50 == 0).all())


def test_crps_of_two_draws_is_the_sum_over_all_pairs():
    draws = normal_draws(6, (2, 3))
    u = torch.zeros(2, 3, dtype=torch.float64)
    apart = (draws[:, None] - draws).abs().sum((0, 1)) / (6 * 5)
    assert torch.allclose(pc.Draws(draws).crps(u), draws.abs().mean(0) - apart / 2, rtol=1e-13)


def test_a_point_without_variance_is_covered_and_has_no_density():
    draws = normal_draws(50, (2, 3))
    draws[:, 0, 1] = 0.0
    scores = pc.evaluate(pc.Draws(draws), torch.zeros(2, 3))
    assert math.isnan(scores.LL[0])
    assert math.isfinite(scores.LL[1])
    assert scores.CRPS.isfinite().all()


def test_draws_are_indexed_saved_and_picked(tmp_path):
    field = pc.Draws(normal_draws(8), point=torch.zeros(3, 5))
    field.save(tmp_path / "draws.safetensors")
    again = pc.Draws.load(tmp_path / "draws.safetensors")
    assert torch.equal(again.draws, field.draws)
    assert torch.equal(again[1].mean, field.mean[1])
    assert torch.equal(again[1].point, torch.zeros(5, dtype=torch.float64))
    picks = field.sample(30, torch.Generator().manual_seed(1))
    assert all(any(torch.equal(pick, draw) for draw in field.draws) for pick in picks)


def test_a_state_picks_the_same_draws_of_all_fields():
    u = torch.arange(5.0)[:, None].expand(5, 3)
    state = StateDraws(("u", "v"), (pc.Draws(u), pc.Draws(2 * u[:, :2])))
    picks = state.sample(20, generator=generator())
    assert torch.equal(2 * picks["u"][:, :2], picks["v"])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"draws": [[0.0, 1.0]]}, "`draws` must have at least two"),
        ({"draws": [[0.0], [math.nan]]}, "`draws` must be finite"),
        ({"draws": [[0.0], [1.0]], "point": [0.0, 1.0]}, "`point` must have the shape"),
        ({"draws": [[0.0], [1.0]], "event_dims": 2}, "`event_dims`"),
    ],
)
def test_wrong_draws_are_refused(wrong, words):
    with pytest.raises(pc.errors.InputError, match=words):
        pc.Draws(**wrong)


def test_what_needs_a_density_or_a_covariance_is_refused():
    field = pc.Draws(normal_draws(4))
    with pytest.raises(pc.errors.DegenerateError, match="no density"):
        field.log_prob(0.0)
    with pytest.raises(pc.errors.InputError, match="`field` is known by draws"):
        pc.condition(field, pc.integral(torch.arange(5.0), 1.0))
    with pytest.raises(pc.errors.InputError, match="`normals`"):
        field.sample_with(torch.zeros(2, 15))


@pytest.mark.parametrize("prior", [pc.Diagonal([0.4, 0.7], 0.1), pc.State(u=([0.4, 0.7], 0.1))])
def test_what_condition_returns_is_a_posterior_or_draws_of_fields_and_of_states(prior, tmp_path):
    of = "u" if isinstance(prior, pc.State) else ""
    total = pc.weighted_sum([1.0, 1.0], 1.0, of=of)
    squares = pc.nonlinear(lambda u: u.square().sum(), 0.6, of=of, label="squares")
    low = pc.bounds(low=0.0, of=of)
    post, bent = pc.condition(prior, total), pc.condition(prior, total, squares)
    cut = pc.condition(prior, total, low, draws=5, generator=generator())
    assert [isinstance(x, pc.Posterior) for x in (prior, post, bent, cut)] == [0, 1, 1, 0]
    assert [isinstance(x, pc.Draws) for x in (prior, post, bent, cut)] == [0, 0, 0, 1]
    assert all(isinstance(x, pc.State) == bool(of) for x in (post, bent, cut))
    assert [name.split()[0] for name in bent.laws] == ["weighted_sum", "squares"]
    for kept, kind in ((post, pc.Posterior), (bent.from_draws(5, generator()), pc.Draws)):
        kept.save(tmp_path / "kept.safetensors")
        assert repr(kind.load(tmp_path / "kept.safetensors")).startswith(f"{kind.__name__}(")
