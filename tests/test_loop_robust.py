"""The loop where it is hard: random problems judged by duality, refusals, last resorts."""

import numpy as np
import pytest
import torch
from fuzzing_loop import KINDS, run, table
from kkt import bounds, distance_from_optimal, rising
from seeds import SEED, generator

import probconserv as pc
from probconserv.conditioning.loop import bounded as _bounded
from probconserv.conditioning.loop import nearest as _nearest


@pytest.mark.parametrize("kind", ["linear", "empty"])
def test_random_problems_are_solved_or_proved_to_be_empty(kind):
    seeds = [seed for seed in range(40) if KINDS[seed % len(KINDS)] == kind][:8]
    outcomes = run(seeds)
    assert all(one.right for one in outcomes), table(outcomes)


def smooth_problem(n=20):
    rng = np.random.default_rng([SEED, 1])
    x = np.linspace(0, 1, n)
    covariance = np.exp(-0.5 * ((x[:, None] - x) / 0.2) ** 2) + 1e-6 * np.eye(n)
    mean = np.sort(np.abs(rng.normal(size=n))) + 0.3 * rng.normal(size=n)
    return pc.Dense(mean, covariance), mean, covariance


def test_numbers_taken_in_one_by_one_give_the_nearest_field(monkeypatch):
    for name in ("SETS", "ROUNDS"):
        monkeypatch.setattr(_nearest, name, 1)
    prior, mean, covariance = smooth_problem()
    u = pc.condition(prior, pc.monotone(), pc.bounds(low=0.0), draws=0).point.numpy()
    where = [np.concatenate(pair) for pair in zip(bounds(20, 0.0), rising(20), strict=True)]
    assert (where[0] @ u >= where[1]).all()
    assert distance_from_optimal(u, mean, covariance, None, *where) < 1e-5


@pytest.mark.parametrize("draws", [0, 2])
def test_what_is_not_found_is_said_so_with_rounds_and_rows(monkeypatch, draws):
    for name in ("SETS", "ROUNDS", "TURNS"):
        monkeypatch.setattr(_nearest, name, 1)
    prior, mean, _ = smooth_problem()
    law = pc.weighted_sum(np.ones(20), mean.sum() + 3)
    with pytest.raises(
        pc.errors.InfeasibleError,
        match=r"nearest field .* was not found after \d+ linear solves .*`weighted_sum`",
    ):
        pc.condition(
            prior, law, pc.monotone(), pc.bounds(low=0.0), draws=draws, generator=generator()
        )


def test_sets_are_proved_to_be_empty_without_draws_too():
    prior = pc.LowRank(np.zeros(6), np.ones((1, 6)), 0.1)
    laws = pc.weighted_sum(np.ones(6), 3.0), pc.linear([[1.0, 1, 1, 0, 0, 0]], [4.0])
    with pytest.raises(
        pc.errors.InfeasibleError, match=r"no field obeys.*`weighted_sum`.*`linear`"
    ):
        pc.condition(prior, *laws, pc.bounds(low=0.0), draws=0)
    with pytest.raises(
        pc.errors.InfeasibleError, match=r"`weighted_sum` is 7 or more, but .* from 0 to 6"
    ):
        pc.condition(prior, pc.at_least(pc.weighted_sum(np.ones(6), 7.0)), pc.bounds(0, 1), draws=0)
    known = pc.Diagonal(np.zeros(3), [1.0, 0.0, 1.0])
    with pytest.raises(pc.errors.InfeasibleError, match="break an inequality by 1 and cannot"):
        pc.condition(known, pc.bounds(low=1.0), draws=0)


def test_an_energy_out_of_reach_is_refused_within_few_steps():
    prior = pc.Diagonal(np.full(3, 0.5), 1.0)
    energy = pc.nonlinear(lambda u: u.square().sum(), 100.0, label="energy")
    with pytest.raises(
        pc.errors.InfeasibleError, match=r"`energy` is off by 97 .* obeys them within the ineq"
    ):
        pc.condition(prior, energy, pc.bounds(0.0, 1.0), draws=0)
    least = pc.nonlinear(lambda u: u.square().sum(), 0.1, label="energy")
    with pytest.raises(pc.errors.InfeasibleError, match=r"`energy` is off by 2\.9 "):
        pc.condition(prior, pc.at_most(least), pc.weighted_sum(np.ones(3), 3.0), draws=0)


def energy(value):
    return pc.nonlinear(lambda u: u.square().sum(-1, keepdim=True), [value])


def test_laws_that_contradict_each_other_within_bounds_are_refused_within_few_steps():
    prior = pc.Diagonal(torch.rand(40, generator=generator(3), dtype=torch.float64), 0.1)
    with pytest.raises(pc.errors.InfeasibleError, match=r"after \d\d? steps.*is off by"):
        pc.condition(prior, energy(1.0), energy(2.0), pc.bounds(low=0.0), draws=0)


def test_an_energy_below_zero_is_out_of_reach_of_any_state():
    prior = pc.Diagonal(torch.rand(40, generator=generator(4), dtype=torch.float64), 0.1)
    with pytest.raises(pc.errors.DegenerateError, match="or no state obeys it within the inequal"):
        pc.condition(prior, energy(-1.0), pc.bounds(low=0.0), draws=0)


# At the solution: a gradient vanishes; linearised laws leave nothing within bounds, or beside a
# noisy row that nothing moves.
@pytest.mark.parametrize("seed", [3000413, 3000556, 5000113])
def test_laws_that_leave_next_to_nothing_as_they_are_at_a_point(seed):
    outcomes = run([seed])
    assert outcomes[0].right, table(outcomes)


def test_a_noisy_row_beside_an_exact_one_of_the_same_point():
    prior, exact = pc.Diagonal([0.003], 0.0027), pc.linear([[1.0]], [0.0])
    noisy = pc.linear([[1.0]], [0.15], noise=[0.06])
    post = pc.condition(prior, noisy, exact, pc.bounds(high=0.1), draws=0)
    assert post.point.tolist() == [0.0]


def test_limits_with_several_rows_of_which_some_are_met_give_draws():
    prior = pc.Diagonal(np.zeros((2, 6)), 1.0)
    limit = pc.at_least(pc.regions([0, 0, 0, 1, 1, 1], [1.0, -5.0]))
    draws = pc.condition(prior, limit, draws=0).sample(4, generator=generator())
    assert (draws[..., :3].sum(-1) >= 1 - 1e-12).all()
    assert torch.isfinite(draws).all()


@pytest.mark.parametrize("draws", [0, 2])
def test_rows_that_repeat_each_other_are_met_where_torch_makes_numbers_of_half_precision(draws):
    rows = np.array([[1.0, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]])
    mean, low = torch.tensor([-0.2, 0.6, 0.5, -0.1], dtype=torch.float64), np.zeros(4)
    prior = pc.LowRank(mean, 0.1 * torch.ones_like(mean)[None], 0.1 * torch.ones_like(mean))
    laws = pc.linear(rows, np.array([1.0, 2.0, 3.0, 1.0])), pc.bounds(low=low)
    expected = pc.condition(prior, *laws, draws=draws, generator=generator()).point
    torch.set_default_dtype(torch.float16)
    try:
        found = pc.condition(prior, *laws, draws=draws, generator=generator()).point
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)


def test_what_misses_exact_laws_after_all_steps_is_not_returned(monkeypatch):
    monkeypatch.setattr(_bounded, "UNREACHED", -1.0)
    field, energy = pc.Diagonal([0.1, 0.5, 1.0], 0.1), pc.nonlinear(lambda u: u.square().sum(), 1.3)
    with pytest.raises(pc.errors.InfeasibleError, match=r"exact laws are off by .* of their"):
        pc.condition(field, energy, pc.bounds(low=0.2), draws=0)


def test_a_generator_is_looked_at_without_draws_too():
    with pytest.raises(pc.errors.InputError, match=r"`generator` must be a torch\.Generator"):
        pc.condition(pc.Diagonal([0.1, 0.5], 0.1), pc.bounds(low=0.2), draws=0, generator=3)
