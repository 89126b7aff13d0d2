"""Draws given laws that are not linear: drawn again, with gradients, of members and of mixtures."""

import math
import warnings

import numpy as np
import pytest
import torch
from seeds import generator

import probconserv as pc

D = torch.float64
MOVED = "probconserv.conditioning.loop.posterior.random_normals"


def energy(u):
    return u.square().sum()


def wall(u):
    """Defined below 9 alone."""
    return (9 - u).log().sum()


def numbers_with(bad, times):
    """Normal numbers as `random_normals` gives, of which draw 3 of solution 1 is `bad` at first."""

    def random_normals(n, generator, device):
        calls = 0

        def normals(*shape):
            nonlocal calls
            found = torch.randn(n, *shape, dtype=D, generator=generator)
            if shape == (2, 2):  # of the fields
                calls += 1
                found[3, 1] = torch.tensor([bad, -bad] if calls <= times else [0.5, 0.5])
            return found

        return normals

    return random_normals


def beside_a_wall():
    prior = pc.Diagonal(np.full((2, 2), 2.0), 1e-4)
    return pc.condition(prior, pc.nonlinear(wall, 3.9, batch_dims=1)), prior


def test_a_draw_that_does_not_get_there_is_drawn_again_counted_and_said(monkeypatch):
    post, _ = beside_a_wall()
    monkeypatch.setattr(MOVED, numbers_with(1e9, times=1))
    with pytest.warns(pc.ImplausibleWarning, match="1 of 20 draws .* were drawn again"):
        found = post.from_draws(10, generator())
    assert found.redrawn == 1
    assert bool(((9 - found.draws).log().sum(-1) - 3.9).abs().max() < 1e-11)
    monkeypatch.setattr(MOVED, numbers_with(0.0, times=1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        good = post.from_draws(10, generator())
    same = torch.ones(10, 2, dtype=torch.bool)
    same[3, 1] = False  # the only one that was drawn again
    assert torch.equal(found.draws[same], good.draws[same])
    assert good.redrawn == 0


def test_draws_of_which_too_many_do_not_get_there_are_refused(monkeypatch):
    post, _ = beside_a_wall()
    monkeypatch.setattr(MOVED, numbers_with(1e9, times=99))
    with pytest.raises(pc.errors.InfeasibleError, match=r"draw 3 of solution \[1\].*need no draws"):
        post.from_draws(10, generator())


def test_numbers_that_are_given_are_not_drawn_again():
    prior = pc.Diagonal(np.full(2, 2.0), 1e-4)
    post = pc.condition(prior, pc.nonlinear(wall, 3.9))
    numbers = torch.zeros(20, post.normals_per_draw, dtype=D)
    numbers[7, :2] = torch.tensor([1e9, -1e9])
    with pytest.raises(pc.errors.InfeasibleError, match=r"draw 7\."):
        post.sample_with(numbers)


def test_how_many_were_drawn_again_is_kept_in_files_and_fields(tmp_path):
    state = pc.State(a=pc.Diagonal([3.0], 0.1), b=pc.Diagonal([4.0], 0.1))
    found = pc.condition(state, pc.nonlinear(lambda u: u["a"] * u["b"], 11.0)).from_draws(
        3, generator()
    )
    found.redrawn = 2
    found.save(tmp_path / "draws")
    assert pc.Draws.load(tmp_path / "draws").redrawn == 2
    assert pc.Draws([[0.0], [1.0]]).redrawn == found["a"].redrawn == 0


def checked(draw, *numbers):
    """Whether the gradient of the draws, in a random direction, is that of differences."""
    given = [torch.tensor(x, dtype=D, requires_grad=True) for x in numbers]
    along = [torch.randn(x.shape, dtype=D, generator=generator(7)) for x in given]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pc.ImplausibleWarning)
        found = draw(*given)
        weights = torch.randn(found.shape, dtype=D, generator=generator(8))
        slopes = torch.autograd.grad((weights * found).sum(), given)
        slope = sum(float((g * d).sum()) for g, d in zip(slopes, along, strict=True))
        ends = [
            float((weights * draw(*(x.detach() + h * d for x, d in pairs))).sum())
            for h in (1e-6, -1e-6)
            for pairs in [list(zip(given, along, strict=True))]
        ]
    return math.isclose(slope, (ends[0] - ends[1]) / 2e-6, rel_tol=1e-5, abs_tol=1e-6)


def test_draws_have_the_gradients_of_their_own_steps():
    def draw(mean, variance, value, noise):
        laws = pc.nonlinear(energy, value), pc.nonlinear(lambda u: u[0] * u[1], 2.0, noise)
        return pc.condition(pc.Diagonal(mean, variance), *laws).sample(3, generator())

    assert checked(draw, [1.0, 2.0, 1.5], [0.03, 0.02, 0.04], 8.0, 0.3)


def test_draws_of_directions_and_of_parameters_of_a_law_have_gradients():
    def draw(mean, factor, power):
        law = pc.nonlinear(lambda u: (u.abs() ** power).sum(-1), [8.0, 9.0], batch_dims=1)
        return pc.condition(pc.LowRank(mean, factor, 0.01), law).sample(2, generator())

    factor = 0.1 * np.random.default_rng(0).normal(size=(2, 2, 3))
    assert checked(draw, [[1.0, 2.0, 1.5], [2.0, 1.0, 1.5]], factor, 2.0)


def test_draws_within_bounds_and_their_mean_have_gradients():
    def both(mean, variance, value):
        laws = pc.nonlinear(energy, value), pc.bounds(low=1.1)
        found = pc.condition(pc.Diagonal(mean, variance), *laws, draws=3, generator=generator(1))
        return torch.cat([found.draws.flatten(), found.mean])

    assert checked(both, [1.05, 2.0, 1.5], [0.03, 0.02, 0.04], 8.0)


def test_draws_without_gradients_carry_none():
    mean, law = torch.tensor([3.0, 3.9], dtype=D), pc.nonlinear(energy, 25.0)
    assert not pc.condition(pc.Diagonal(mean, 0.01), law).sample(2, generator()).requires_grad
    post = pc.condition(pc.Diagonal(mean.requires_grad_(), 0.01), law)
    assert post.sample(2, generator()).requires_grad
    with torch.no_grad():
        assert not post.sample(2, generator()).requires_grad


def members(n=6, size=4):
    return 2 + 0.5 * torch.randn(n, size, dtype=D, generator=generator(3))


@pytest.mark.parametrize("more", [[], [pc.weighted_sum(np.ones(4), 8.2)]])
def test_members_are_each_moved_to_the_nearest_that_obeys(more):
    from scipy.optimize import minimize

    law, u = pc.nonlinear(energy, 18.0), members()
    moved = pc.condition(pc.Ensemble(u, shrinkage=0.2), law, *more).members()
    covariance = np.cov(u.numpy().T)
    covariance = 0.8 * covariance + 0.2 * np.diag(covariance.diagonal())
    precision = np.linalg.inv(covariance)
    rows = [lambda x: (x * x).sum() - 18.0, *(lambda x: x.sum() - 8.2 for _ in more)]
    for one, start in zip(moved, u, strict=True):
        assert all(abs(row(one.numpy())) < 18e-12 * 3 for row in rows)
        y, equal = start.numpy(), [{"type": "eq", "fun": row} for row in rows]

        def distance(x, y=y):
            return (x - y) @ precision @ (x - y)

        best = minimize(distance, one.numpy() + 1e-3, constraints=equal)
        assert distance(one.numpy()) < best.fun + 1e-6 * (1 + best.fun)


def test_members_stay_within_bounds_to_the_last_digit():
    u, total = members(), pc.weighted_sum(np.ones(4), 8.2)
    for laws in [(total,), (total, pc.nonlinear(energy, 18.0))]:
        moved = pc.condition(pc.Ensemble(u), *laws, pc.bounds(low=1.6), draws=0).members()
        assert bool((moved >= 1.6).all())
        assert bool((moved == 1.6).any())
        assert bool((moved.sum(-1) - 8.2).abs().max() < 1e-11)
        for law in laws[1:]:
            assert max(abs(float(law.residual(one))) for one in moved) < 1e-10


def test_members_have_gradients_and_those_that_cannot_be_are_refused():
    def moved(u):
        return pc.condition(pc.Ensemble(u, shrinkage=0.1), pc.nonlinear(energy, 18.0)).members()

    assert checked(moved, members().tolist())
    noisy = pc.condition(pc.Ensemble(members()), pc.nonlinear(energy, 18.0, 0.1))
    with pytest.raises(pc.errors.InputError, match=r"`members` given laws .* without noise"):
        noisy.members()
    with pytest.raises(pc.errors.InputError, match="`members` are those of an ensemble"):
        pc.condition(pc.Diagonal(np.ones(3), 1.0), pc.nonlinear(energy, 4.0)).members()
    post = pc.condition(pc.Ensemble(members()), pc.nonlinear(wall, 7.7))
    post._solved.before = (torch.full((4,), 1e9, dtype=D),)
    with pytest.raises(pc.errors.InfeasibleError, match=r"member 0\."):
        post._solved.moved((torch.full((1, 4), 1e9, dtype=D),), "member")


def far_apart():
    means = torch.tensor([[3.0, 3.9], [3.4, 4.4], [2.0, 2.0]], dtype=D)
    return pc.Mixture(pc.Diagonal(means, 0.05), [0.2, 0.5, 0.3], event_dims=1)


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
def test_weights_of_a_mixture_are_nearly_those_of_the_evidence():
    mixture, law = far_apart(), pc.nonlinear(energy, 25.0)
    angles = torch.linspace(-math.pi, math.pi, 20001, dtype=D)[:-1]
    circle = 5 * torch.stack([angles.cos(), angles.sin()], -1)
    density = mixture.components.mean[:, None] - circle
    evidence = (-density.square().sum(-1) / 0.1).exp().sum(-1)
    weights = mixture.weights * evidence / (mixture.weights * evidence).sum()
    post = pc.condition(mixture, law)
    assert torch.allclose(post.weights, weights, atol=1e-2)
    draws = post.sample(20, generator())
    assert bool((draws.square().sum(-1) - 25).abs().max() < 1e-10)
    again = pc.condition(pc.condition(mixture, law), pc.weighted_sum([1.0, 0.0], 3.0, 0.5))
    both = pc.condition(mixture, law, pc.weighted_sum([1.0, 0.0], 3.0, 0.5))
    assert torch.allclose(again.weights, both.weights, atol=1e-9)


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
def test_draws_of_a_mixture_obey_laws_and_bounds_together():
    mixture, law = far_apart(), pc.nonlinear(energy, 25.0)
    high = pc.bounds(high=3.9)
    for found in (
        pc.condition(mixture, law, high, draws=30, generator=generator()),
        pc.condition(pc.condition(mixture, law), high, draws=30, generator=generator()),
    ):
        assert found.redrawn == 0
        assert bool((found.draws <= 3.9).all())
        assert bool((found.draws.square().sum(-1) - 25).abs().max() < 1e-10)
    less = pc.condition(mixture, pc.at_most(law), draws=30, generator=generator())
    assert bool((less.draws.square().sum(-1) <= 25 + 1e-10).all())
    with pytest.raises(pc.errors.InputError, match="a mixture takes inequalities with draws"):
        pc.condition(mixture, law, high, draws=0)


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
def test_each_component_of_a_batch_of_mixtures_has_its_own_value():
    means = 1 + torch.randn(4, 3, 5, dtype=D, generator=generator())
    mixture = pc.Mixture(pc.Diagonal(means, 0.3), event_dims=1)
    law = pc.nonlinear(energy, [8.0, 10.0, 12.0], batch_dims=1)
    post = pc.condition(mixture, law)
    for t, value in enumerate([8.0, 10.0, 12.0]):
        one = pc.Mixture(pc.Diagonal(means[:, t], 0.3), event_dims=1)
        alone = pc.condition(one, pc.nonlinear(energy, value))
        assert torch.allclose(post.weights[:, t], alone.weights, atol=1e-9)
    moved = pc.project(mixture, law).components.mean
    assert torch.allclose(moved.square().sum(-1), torch.tensor([8.0, 10.0, 12.0], dtype=D))


def test_a_mixture_that_holds_a_function_is_not_saved(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pc.ImplausibleWarning)
        post = pc.condition(far_apart(), pc.nonlinear(energy, 25.0))
    with pytest.raises(pc.errors.InputError, match="holds a function"):
        post.save(tmp_path / "mixture")
