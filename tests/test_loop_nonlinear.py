"""Laws that are not linear beside bounds and order: the point, draws, gradients, refusals."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from seeds import SEED, generator

import probconserv as pc

N = 15
X = np.linspace(0.0, 1.0, N)
WEIGHTS = np.full(N, 1 / N)


def energy(value, noise=0.0):
    weights = torch.as_tensor(WEIGHTS)
    return pc.nonlinear(lambda u: (weights * u.square()).sum(), value, noise=noise, label="energy")


def slsqp(mean, variance, total, square, low):
    """The least distance that another method finds, from two starts."""
    best = np.inf
    for start in (np.maximum(mean, low), np.full(N, total)):
        found = minimize(
            lambda u: 0.5 * ((u - mean) ** 2 / variance).sum(), start,
            jac=lambda u: (u - mean) / variance, bounds=[(low, None)] * N, method="SLSQP",
            constraints=[
                {"type": "eq", "fun": lambda u: WEIGHTS @ u - total, "jac": lambda u: WEIGHTS},
                {"type": "eq", "fun": lambda u: WEIGHTS @ u**2 - square,
                 "jac": lambda u: 2 * WEIGHTS * u},
            ], options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        best = min(best, found.fun if found.success else np.inf)
    return best


@pytest.mark.parametrize("number", range(8))
def test_mass_energy_and_positivity_together_are_as_near_as_another_method_finds(number):
    rng = np.random.default_rng([SEED, number])
    mean = np.maximum(0.5 - X, 0) + 0.05 * rng.normal(size=N)
    variance = 0.01 * rng.uniform(0.5, 2, N)
    total, square = 0.13 * rng.uniform(0.95, 1.05), 0.045 * rng.uniform(0.97, 1.05)
    laws = pc.weighted_sum(WEIGHTS, total), energy(square)
    prior = pc.Diagonal(mean, variance)
    u = pc.condition(prior, *laws, pc.bounds(low=0.0), draws=0).point.numpy()
    assert u.min() >= 0
    assert abs(WEIGHTS @ u - total) <= 1e-13
    assert abs(WEIGHTS @ u**2 - square) <= 1e-13
    distance = 0.5 * ((u - mean) ** 2 / variance).sum()
    assert distance <= slsqp(mean, variance, total, square, 0.0) * (1 + 1e-7)


def humid(batch):
    rng = np.random.default_rng(3)
    p, q = 1 + 0.1 * rng.random((batch, N)), 0.02 + 0.03 * rng.normal(size=(batch, N))
    return pc.State(p=pc.Diagonal(p, 0.001), q=pc.Diagonal(q, 0.001 * (1 + X)))


def water(total):
    return pc.nonlinear(lambda u: (u["p"] * u["q"]).sum(), total, batch_dims=1, label="water")


def test_every_draw_of_a_bilinear_budget_obeys_and_is_positive():
    laws = water([0.4, 0.5]), pc.weighted_sum(WEIGHTS, 1.05, of="p")
    post = pc.condition(
        humid(2), *laws, pc.bounds(low=0.0, of="q"), draws=20, generator=generator()
    )
    assert isinstance(post, pc.Draws)
    p, q = post["p"].draws, post["q"].draws
    assert float(q.min()) == 0.0
    assert ((p * q).sum(-1) - torch.tensor([0.4, 0.5], dtype=p.dtype)).abs().max() < 1e-12
    assert laws[1].residual({"p": p, "q": q}).abs().max() < 1e-12


def test_without_draws_there_is_a_posterior_about_the_point():
    post = pc.condition(humid(1), water(0.3), pc.bounds(low=0.0, of="q"), draws=0)
    assert isinstance(post, pc.Posterior)
    at = post["q"].point == 0
    assert at.any()
    assert (post["q"].variance[at] == 0).all()
    assert (post["q"].variance[~at] > 0).all()
    draws = post.sample(5, generator=generator())
    assert float(draws["q"].min()) >= 0
    assert ((draws["p"] * draws["q"]).sum(-1) - 0.3).abs().max() < 1e-12


def test_linear_laws_without_draws_have_the_point_of_those_with_draws():
    mean = np.linspace(-0.3, 1.0, N)
    given = pc.Diagonal(mean, 0.1), pc.integral(X, 0.4), pc.bounds(low=0.0)
    alone = pc.condition(*given, draws=0)
    drawn = pc.condition(*given, draws=5, generator=generator())
    torch.testing.assert_close(alone.point, drawn.point, rtol=0, atol=1e-12)
    assert alone.from_draws(5, generator=generator()).draws.min() >= 0


@pytest.mark.parametrize("kind", ["low rank", "dense"])
def test_order_beside_an_energy_holds_to_the_last_digit(kind):
    rng = np.random.default_rng(1)
    mean = np.exp(-2 * X) + 0.1 * rng.normal(size=N)
    smooth = 0.05 * np.exp(-0.5 * ((X[:, None] - X) / 0.1) ** 2) + 1e-4 * np.eye(N)
    field = {
        "low rank": pc.LowRank(mean, 0.2 * rng.normal(size=(3, N)), 0.01),
        "dense": pc.Dense(mean, smooth),
    }[kind]
    limits = pc.monotone(True), pc.bounds(low=0.0)
    post = pc.condition(field, energy(0.3), pc.integral(X, 0.45), *limits, draws=0)
    for u in (post.point[None], post.sample(4, generator=generator())):
        assert (u.diff() <= 0).all()
        assert u.min() >= 0
        assert ((torch.as_tensor(WEIGHTS) * u.square()).sum(-1) - 0.3).abs().max() < 1e-12
    level = post.point.diff() == 0
    pairs = (post.variance[:-1] - post.variance[1:]).abs()
    assert (pairs[level] <= 1e-9 * post.variance.max()).all()  # they move together


def test_gradients_go_through_a_bilinear_law_and_bounds():
    state = humid(2)
    given = [t.clone().requires_grad_() for part in state.parts for t in (part.mean, part.variance)]
    total = torch.tensor([0.4, 0.5], dtype=torch.float64, requires_grad=True)

    def point(p, dp, q, dq, total):
        prior = pc.State(p=pc.Diagonal(p, dp), q=pc.Diagonal(q, dq))
        post = pc.condition(prior, water(total), pc.bounds(low=0.0, of="q"), draws=0)
        assert (post["q"].point == 0).any()
        return torch.cat([part.point for part in post.parts])

    assert torch.autograd.gradcheck(point, (*given, total), atol=1e-5, rtol=1e-4, fast_mode=True)


def test_project_takes_all_of_them():
    mean = np.linspace(-0.3, 1.0, N)
    near = pc.project(pc.Diagonal(mean, 0.1), energy(0.3), pc.bounds(low=0.0))
    assert float(near.mean.min()) == 0.0
    assert float((torch.as_tensor(WEIGHTS) * near.mean.square()).sum()) == pytest.approx(0.3)


def test_what_no_field_within_bounds_obeys_is_refused_by_name():
    prior = pc.Diagonal(np.full(N, 0.5), 0.1)
    with pytest.raises(pc.errors.InfeasibleError, match="`energy` is off"):
        pc.condition(prior, energy(2.0), pc.bounds(0.0, 1.0), draws=0)
    post = pc.condition(prior, energy(0.3), pc.bounds(low=0.0), draws=0)
    with pytest.raises(pc.errors.InputError, match="on all laws and inequalities at once"):
        pc.condition(post, pc.integral(X, 0.5))


@pytest.mark.parametrize("seed", range(4))
def test_limits_of_laws_are_as_near_as_another_method_finds(seed):
    rng = np.random.default_rng([SEED, seed])
    mean, root = rng.normal(size=N), rng.normal(size=(N, N))
    covariance = root @ root.T / N + 0.1 * np.eye(N)
    inverse, row = np.linalg.inv(covariance), rng.normal(size=N)
    most = 0.5 * float(mean @ mean) / N
    limits = pc.at_most(energy(most)), pc.at_least(pc.linear(row[None], [0.2]))
    post = pc.condition(pc.Dense(mean, covariance), *limits, pc.bounds(low=-2.0), draws=0)
    u = post.point.numpy()
    assert u @ u / N <= most * (1 + 1e-12)
    assert row @ u >= 0.2 - 1e-11
    best = np.inf
    for start in (0.5 * np.clip(mean, -1, 1), u):
        found = minimize(
            lambda z: 0.5 * (z - mean) @ inverse @ (z - mean), start,
            jac=lambda z: inverse @ (z - mean), bounds=[(-2, None)] * N, method="SLSQP",
            constraints=[
                {"type": "ineq", "fun": lambda z: most - z @ z / N, "jac": lambda z: -2 * z / N},
                {"type": "ineq", "fun": lambda z: row @ z - 0.2, "jac": lambda z: row},
            ], options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        best = min(best, found.fun if found.success else np.inf)
    assert 0.5 * (u - mean) @ inverse @ (u - mean) <= best * (1 + 1e-7)
    draws = post.sample(10, generator=generator()).numpy()
    assert np.isfinite(draws).all()
    assert (np.square(draws).sum(-1) / N <= most * (1 + 1e-11)).all()
    assert (draws @ row >= 0.2 - 1e-10).all()


def test_a_limit_that_holds_already_changes_nothing_and_one_that_binds_is_met_exactly():
    prior, law = pc.Diagonal([0.0, 1.0, 1.0], 1.0), pc.weighted_sum([1.0, 1.0, 1.0], 1.5)
    assert pc.project(prior, pc.at_least(law)).mean.tolist() == [0.0, 1.0, 1.0]
    assert pc.project(prior, pc.at_most(law)).mean.sum() == pytest.approx(1.5, abs=1e-14)
    post = pc.condition(prior, pc.at_most(law), draws=50, generator=generator())
    assert float(post.draws.sum(-1).max()) <= 1.5 + 1e-12
    assert float(post.draws.sum(-1).min()) < 1.0


def test_the_variance_at_a_limit_is_that_given_the_law():
    prior, law = pc.Diagonal([0.0, 1.0, 1.0], [1.0, 2.0, 3.0]), pc.weighted_sum([1.0] * 3, 1.5)
    held = pc.condition(prior, pc.at_most(law), draws=0).variance
    torch.testing.assert_close(held, pc.condition(prior, law).variance)
    free = pc.condition(prior, pc.at_least(law), draws=0).variance
    torch.testing.assert_close(free, prior.variance)


def test_limits_take_laws_without_noise():
    with pytest.raises(pc.errors.InputError, match="`law` must be a law"):
        pc.at_least(3.0)
    with pytest.raises(pc.errors.InputError, match="`weighted_sum` has noise, and a limit"):
        pc.at_most(pc.weighted_sum([1.0, 1.0], 1.0, noise=0.1))


@pytest.mark.parametrize("kind", ["diagonal", "dense"])
def test_the_variance_of_points_that_are_tied_is_that_of_their_equality(kind):
    mean, variance = np.array([1.0, 0.0, -1.0, 2.0]), np.array([1.0, 2.0, 0.5, 1.5])
    prior = {
        "diagonal": pc.Diagonal(mean, variance),
        "dense": pc.Dense(mean, np.diag(variance)),
    }[kind]
    law, tied = pc.weighted_sum(np.ones(4), 2.5), [[1.0, -1.0, 0, 0], [0, 1.0, -1.0, 0]]
    found = pc.condition(prior, law, pc.monotone(), draws=0)
    wanted = pc.condition(prior, law, pc.linear(tied, [0.0, 0.0]))
    torch.testing.assert_close(found.point, wanted.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.variance, wanted.variance)


def test_a_law_need_only_be_defined_within_bounds():
    rng = np.random.default_rng(SEED)
    mean = np.concatenate([[-0.2], rng.uniform(0.3, 1.0, 4)])
    entropy = pc.nonlinear(lambda u: (u * u.log()).sum(), -1.2)
    post = pc.condition(pc.Diagonal(mean, 0.04), entropy, pc.bounds(low=0.01), draws=0)
    draws = post.sample(3, generator())
    for u in (post.point, draws):
        assert float(u.min()) >= 0.01
        assert float((u * u.log()).sum(-1).add(1.2).abs().max()) < 1e-11


def test_pressure_stays_positive_where_density_and_energy_are_next_to_nothing():
    rng, n = np.random.default_rng([SEED, 1]), 20
    x = torch.linspace(-1, 1, n, dtype=torch.float64)
    density = 0.02 + x.abs()
    truth = {"rho": density, "m": density * x, "E": density * (0.05 + x.square() / 2)}
    noisy = {name: u + 0.03 * torch.from_numpy(rng.normal(size=n)) for name, u in truth.items()}
    state = pc.State(**{name: pc.Diagonal(u, 0.03**2) for name, u in noisy.items()})
    total = [pc.weighted_sum(torch.ones(n), u.sum(), of=name) for name, u in truth.items()]

    def pressure(s):
        return 0.4 * (s["E"] - s["m"].square() / s["rho"] / 2)

    laws = *total, pc.at_least(pc.nonlinear(pressure, 1e-3)), pc.bounds(low=0.01, of="rho")
    post = pc.condition(state, *laws, draws=3, generator=generator())
    for u in (post.point, {name: post[name].draws for name in truth}):
        assert float(u["rho"].min()) >= 0.01
        assert float(pressure(u).min()) >= 1e-3 - 1e-12
