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


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
def test_the_mean_of_draws_at_a_bound_is_the_bound():
    laws = pc.nonlinear(lambda u: u.prod(), 0.03), pc.bounds(low=0.1)
    for n in (7, 11, 13):
        found = pc.condition(pc.Diagonal([-3.0, 0.3], 0.01), *laws, draws=n, generator=generator())
        assert float(found.mean[0]) == 0.1


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
        free = pc.condition(pc.Ensemble(u), *laws).members()
        low = float(free.min()) + 0.1  # which some member is below without bounds
        moved = pc.condition(pc.Ensemble(u), *laws, pc.bounds(low=low), draws=0).members()
        assert bool((moved >= low).all())
        assert bool((moved == low).any())
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
        assert found.laws == ("energy", "bounds")
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


def moments(u, weights):
    mean = (weights[:, None] * u).sum(0) / weights.sum()
    variance = (weights[:, None] * (u - mean).square()).sum(0) / weights.sum()
    return torch.cat([mean, variance.sqrt()])


def normal(u, mean, variance):
    return (-((u - torch.tensor(mean)).square() / torch.tensor(variance)).sum(-1) / 2).exp()


def on_a_circle(mean, variance, point):
    """Of u1^2 + u2^2 = 1, the half that faces the point: the slope has the same length all over."""
    angles = torch.linspace(-math.pi, math.pi, 100_001, dtype=D)[:-1]
    u = torch.stack([angles.cos(), angles.sin()], -1)
    faces = (u * torch.tensor(variance)) @ point > 0
    return moments(u, normal(u, mean, variance) * faces)


def on_a_hyperbola(mean, variance, noise):
    """Of u1 u2 = 1, up to noise, with p(u1, x / u1) / u1 where the product is x."""
    first = torch.linspace(1e-3, 4, 4001, dtype=D)
    near = torch.linspace(-4, 4, 81 if noise else 1, dtype=D) if noise else torch.zeros(1, dtype=D)
    first, near = torch.cartesian_prod(first, near).T
    u = torch.stack([first, (1 + noise * near) / first], -1)
    return moments(u, normal(u, mean, variance) / first * (-(near**2) / 2).exp())


def found_by(weighted):
    return moments(weighted.draws, weighted.log_weights.exp())


@pytest.mark.parametrize("n", [4000])
def test_weights_mend_what_draws_given_a_circle_miss(n):
    mean, variance = [1.5, 0.9], [0.09, 0.36]
    post = pc.condition(pc.Diagonal(mean, variance), pc.nonlinear(energy, 1.0))
    right = on_a_circle(mean, variance, post.point)
    weighted, plain = post.weighted(n, generator()), post.sample(n, generator(1))
    assert (found_by(weighted) - right).abs().max() < 0.03  # 4 standard errors of a mean are 0.02
    assert (moments(plain, torch.ones(n)) - right).abs().max() > 0.06
    assert math.isclose(float(weighted.log_weights.logsumexp(0)), 0.0, abs_tol=1e-9)
    some = weighted.log_weights > -math.inf
    assert bool((weighted.draws[some].square().sum(-1) - 1).abs().max() < 1e-11)
    assert n / 2 < float(weighted.effective_sample_size) < n


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_weights_mend_what_draws_given_a_product_miss(noise):
    mean, variance, n = [1.0, 1.5], [0.09, 0.25], 8000
    law = pc.nonlinear(lambda u: u[0] * u[1], 1.0, noise)
    post = pc.condition(pc.Diagonal(mean, variance), law)
    right = on_a_hyperbola(mean, variance, noise)
    assert (found_by(post.weighted(n, generator())) - right).abs().max() < 0.02
    assert (moments(post.sample(n, generator(1)), torch.ones(n)) - right).abs().max() > 0.02


def test_weights_of_several_rows_of_which_one_repeats_another_are_right():
    """u0 u1 = 1 and u2 = u0^2, with p(u) / u0 along u0, for two solutions at once."""
    mean, variance, n = [[1.0, 1.5, 1.2], [1.2, 0.9, 1.0]], [0.05, 0.05, 0.2], 4000

    def rows(u):
        return u[0] * u[1], u[2] - u[0] ** 2, 2 * u[0] * u[1]

    law = pc.nonlinear(rows, [1.0, 0.0, 2.0], batch_dims=1)
    weighted = pc.condition(pc.Diagonal(mean, variance), law).weighted(n, generator())
    first = torch.linspace(0.2, 3, 4001, dtype=D)
    u = torch.stack([first, 1 / first, first**2], -1)
    for i in range(2):
        right = moments(u, normal(u, mean[i], variance) / first)
        own = moments(weighted.draws[:, i], weighted.log_weights[:, i].exp())
        assert (own - right).abs().max() < 0.03


def test_weights_given_a_linear_function_are_equal_and_a_mixture_takes_them():
    state = pc.State(a=pc.Diagonal([3.0, 1.0], 0.1), b=pc.LowRank([4.0], [[0.5]], 0.1))
    post = pc.condition(state, pc.nonlinear(lambda u: u["a"].sum() - u["b"].sum(), 1.0, 0.2))
    found = post.weighted(50, generator())
    assert torch.allclose(found.log_weights, torch.full((50,), -math.log(50), dtype=D))
    known = pc.Mixture(pc.Diagonal(found.draws["a"], 0.0), found.log_weights.exp(), event_dims=1)
    assert torch.allclose(known.mean, found.draws["a"].mean(0))
    low, high = known.interval(0.9)
    assert bool((low < known.mean).all() and (known.mean < high).all())


def test_weights_that_leave_few_draws_are_said_and_those_that_cannot_be_are_refused():
    field, law = pc.Diagonal(np.linspace(0.3, 0.5, 20), 1.0), pc.nonlinear(energy, 200.0)
    with pytest.warns(pc.ImplausibleWarning, match="the weights leave .* of 2000 draws"):
        pc.condition(field, law).weighted(2000, generator())
    within = pc.condition(field, law, pc.bounds(low=0.0), draws=0)
    with pytest.raises(pc.errors.InputError, match="`weighted`: draws within inequalities"):
        within.weighted(10)
    wide = pc.Diagonal(torch.full((1030,), 2.0, dtype=D), 0.01)
    many = pc.condition(wide, pc.nonlinear(lambda u: u**2, 4.0 * torch.ones(1030)))
    with pytest.raises(pc.errors.InputError, match="`weighted` takes up to 1024 rows"):
        many.weighted(10)
    thin = pc.nonlinear(lambda u: u[1] ** 2 + 1e9 * u[0] ** 2, 1.0)
    edge = pc.condition(pc.Diagonal([0.0, 1.0], 1e-4), thin)
    with pytest.raises(pc.errors.InfeasibleError, match="`weighted`: no draw gets"):
        edge.weighted(2, generator())


def some_draws(prior, draws):
    return pc.condition(prior, pc.nonlinear(energy, 8.0)).sample(2, draws)


def a_mean_within_bounds(prior, draws):
    laws = pc.weighted_sum([1.0, 1.0, 1.0], 5.0), pc.bounds(low=1.1)
    return pc.condition(prior, *laws, draws=4, generator=draws).mean


def the_nearest(prior, draws):
    return pc.project(prior, pc.nonlinear(energy, 8.0), pc.bounds(low=1.1)).mean


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch, wherever it stops
@pytest.mark.parametrize("work", [some_draws, a_mean_within_bounds, the_nearest])
def test_compiled_code_stops_at_such_laws_and_goes_on_with_their_gradients(work):
    mean, draws = torch.tensor([1.05, 2.0, 1.5], dtype=D, requires_grad=True), generator()

    def step(mean):
        draws.manual_seed(3)
        return (work(pc.Diagonal(1.0 * mean, 0.03), draws) ** 3).sum()

    torch._dynamo.reset()
    both = [f(mean) for f in (step, torch.compile(step, backend="eager"))]
    slopes = [torch.autograd.grad(found, mean)[0] for found in both]
    assert torch.allclose(*both, rtol=1e-12)
    assert torch.allclose(*slopes, rtol=1e-9)
