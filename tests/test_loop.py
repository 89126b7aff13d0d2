"""Inequalities as a loop of linear solves: random problems, large ones, gradients, refusals."""

import numpy as np
import pytest
import torch
from kkt import bounds, distance_from_optimal, everything, rising
from seeds import SEED, generator

import probconserv as pc

SIDE = 64


def random_problem(rng):
    """A field of a random kind, its covariance, laws, their exact rows, and inequalities."""
    n, kind = int(rng.integers(3, 25)), rng.integers(3)
    d, inside = 10.0 ** rng.uniform(-3, 0, n), np.sort(np.abs(rng.normal(size=n)))
    mean = inside + np.sqrt(d) * rng.normal(size=n) * 10 ** rng.uniform(-1, 0.7)
    factor = rng.normal(size=(2, n)) * 0.3
    x = np.linspace(0, 1, n)
    smooth = 0.3 * np.exp(-0.5 * ((x[:, None] - x) / 0.1) ** 2) + 1e-4 * np.eye(n)
    field, covariance = [
        (pc.Diagonal(mean, d), np.diag(d)),
        (pc.LowRank(mean, factor, d), np.diag(d) + factor.T @ factor),
        (pc.Dense(mean, smooth), smooth),
    ][kind]
    rows = np.abs(rng.normal(size=(rng.integers(3), n)))
    limits, where = [], []
    if (which := rng.integers(3)) != 1:
        limits, where = [pc.bounds(low=0.0)], [bounds(n, 0.0)]
    if which:
        limits, where = [*limits, pc.monotone()], [*where, rising(n)]
    where = tuple(np.concatenate(p) for p in zip(*where, strict=True))
    laws = [pc.linear(rows, rows @ inside)] if len(rows) else []
    return field, covariance, laws, rows, limits, where


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
@pytest.mark.parametrize("start", range(0, 60, 20))
def test_random_problems_are_solved_to_their_optimality_conditions(start):
    for number in range(start, start + 20):
        rng = np.random.default_rng([SEED, number])
        field, covariance, laws, rows, limits, where = random_problem(rng)
        post = pc.condition(field, *laws, *limits, draws=2, generator=generator())
        assert (everything(post) @ where[0].T >= where[1]).all()
        for law in laws:
            size = law.value.abs() + law.magnitude(everything(post)) + law.magnitude(field.std)
            assert (law.residual(everything(post)).abs() <= 1e-12 * size).all()
        off = distance_from_optimal(
            post.point.numpy(), field.mean.numpy(), covariance, rows, *where
        )
        assert off < 1e-5, number


@pytest.mark.parametrize("with_total", [False, True])
def test_an_ensemble_on_a_map_stays_positive(with_total):
    rng = np.random.default_rng(0)
    mean = rng.random((SIDE, SIDE)) - 0.3
    factor = 0.1 * rng.normal(size=(20, SIDE, SIDE)) + 0.3 * rng.normal(size=(20, 1, 1))
    field = pc.LowRank(mean, factor, np.full((SIDE, SIDE), 0.01), event_dims=2)
    weights = np.full((SIDE, SIDE), SIDE**-2.0)
    law = pc.weighted_sum(weights, 0.3)
    post = pc.condition(
        field, *[law] * with_total, pc.bounds(low=0.0), draws=2, generator=generator()
    )
    u = post.point
    assert float(everything(post).min()) == 0.0
    if with_total:
        assert law.residual(everything(post)).abs().max() < 1e-12
    # Sigma^-1 (u - mean) is the weights times a number, and more where a point is at its bound
    f = torch.as_tensor(factor).flatten(1)
    away, d = (u - field.mean).flatten() / 0.01, 0.01
    small = torch.eye(len(f), dtype=torch.float64) + (f / d) @ f.T
    pull = away - (torch.linalg.solve(small, f @ away) @ f) / d
    free = u.flatten() > 0
    common = pull[free].median() if with_total else torch.zeros(())
    assert (pull[free] - common).abs().max() < 1e-6 * pull.abs().max()
    assert (pull[~free] - common).min() > -1e-6 * pull.abs().max()


KINDS = {
    "diagonal": lambda mean, variance, f, c: pc.Diagonal(mean, variance),
    "low rank": lambda mean, variance, f, c: pc.LowRank(mean, f, variance),
    "dense": lambda mean, variance, f, c: pc.Dense(mean, (c + c.mT) / 2),
}
LIMITS = {
    "bounds": (pc.bounds(0.0, 1.0),),
    "falling and bounded": (pc.monotone(True), pc.bounds(low=0.0)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("what", ["point", "draws", "mean"])
def test_gradients_are_those_of_finite_differences(kind, limits, what):
    rng, n, x = np.random.default_rng(1), 7, np.linspace(0, 1, 7)
    root = rng.normal(size=(2, n, n))
    arrays = (
        rng.normal(size=(2, n)), 0.1 + rng.random((2, n)), rng.normal(size=(3, 2, n)),
        root @ root.swapaxes(-1, -2) / n + 0.1 * np.eye(n), rng.random(2), np.array(0.2),
    )  # fmt: skip
    given = [torch.tensor(a, requires_grad=True) for a in arrays]

    def found(mean, variance, f, c, total, noise):
        laws = pc.integral(x, total), pc.weighted_sum(x**2, 1.0, noise=noise)
        field = KINDS[kind](mean, variance, f, c)
        post = pc.condition(field, *laws, *LIMITS[limits], draws=2, generator=generator())
        return getattr(post, what)

    assert torch.autograd.gradcheck(found, given, atol=1e-5, rtol=1e-4, fast_mode=True)


def test_second_derivatives_are_refused():
    mean = torch.tensor([[-1.0, 0.5, 2.0]], dtype=torch.float64, requires_grad=True)
    prior = pc.Diagonal(mean, 1.0)
    point = pc.condition(prior, pc.bounds(low=0.0), draws=2, generator=generator()).point
    with pytest.raises(pc.errors.DegenerateError, match="first derivatives only"):
        torch.autograd.grad(point.square().sum(), mean, create_graph=True)


def test_project_within_bounds_has_a_gradient():
    mean = torch.tensor([[-1.0, 0.5, 2.0]], dtype=torch.float64, requires_grad=True)
    near = pc.project(pc.Diagonal(mean, 1.0), pc.weighted_sum(torch.ones(3), 2.0), pc.bounds(0.0))
    (found,) = torch.autograd.grad(near.mean[0, 1], mean)
    assert found.tolist() == [[0.0, 0.5, -0.5]]


def test_an_empty_set_is_proved_so_and_names_the_laws():
    prior = pc.LowRank(np.zeros(6), np.ones((1, 6)), 0.1)
    laws = pc.weighted_sum(np.ones(6), 3.0), pc.linear([[1.0, 1, 1, 0, 0, 0]], [4.0])
    with pytest.raises(
        pc.errors.InfeasibleError, match=r"no field obeys.*`weighted_sum`.*`linear`"
    ):
        pc.condition(prior, *laws, pc.bounds(low=0.0), draws=2, generator=generator())


def test_a_row_at_the_end_of_its_range_holds_its_points_there():
    prior = pc.Dense([0.3, 0.2, 0.7, 0.1], np.eye(4) + 0.5)
    post = pc.condition(
        prior, pc.linear([[1.0, 1.0, 0.0, 0.0]], [0.0]), pc.bounds(low=0.0), draws=5,
        generator=generator(),
    )  # fmt: skip
    assert (everything(post)[:, :2] == 0).all()
    assert (everything(post) >= 0).all()


def test_a_total_that_is_small_beside_a_wide_prior_is_met():
    prior = pc.Dense(np.full(5, 0.5), 1e8 * (np.eye(5) + 0.1))
    law = pc.weighted_sum(np.ones(5), 3.0)
    u = everything(pc.condition(prior, law, pc.bounds(low=0.0), draws=20, generator=generator()))
    assert u.min() >= 0
    assert np.abs(u.sum(-1) - 3).max() < 1e-11


def test_bounds_that_are_equal_fix_a_point():
    for seed in range(12):
        rng = np.random.default_rng([SEED, seed])
        root = rng.normal(size=(8, 8))
        low, high = -np.ones(8), np.ones(8)
        low[0] = high[0] = 0.5
        prior = pc.Dense(3 * rng.normal(size=8), root @ root.T / 8 + 0.01 * np.eye(8))
        post = pc.condition(prior, pc.bounds(low, high), draws=5, generator=generator())
        assert (everything(post)[:, 0] == 0.5).all()


def test_laws_that_fix_a_field_of_few_directions_hold_beside_bounds():
    for seed in range(6):
        rng = np.random.default_rng([SEED, seed])
        factor = rng.normal(size=(4, 6))
        factor[3] = factor[2] + 1e-3 * factor[3]
        mean, rows = rng.normal(size=6), rng.normal(size=(4, 6))
        inside = mean + factor.T @ rng.normal(size=4)
        law = pc.linear(rows, rows @ inside)
        prior = pc.LowRank(mean, factor)
        post = pc.condition(prior, law, pc.bounds(inside.min() - 1), draws=2, generator=generator())
        size = law.value.abs() + law.magnitude(post.point) + law.magnitude(prior.std)
        assert (law.residual(post.point).abs() <= 1e-12 * size).all()


@pytest.mark.parametrize("kind", ["diagonal", "dense"])
def test_bounds_alone_without_draws_have_a_point(kind):
    mean = np.array([-0.5, 0.3, 2.0])
    prior = pc.Diagonal(mean, 1.0) if kind == "diagonal" else pc.Dense(mean, np.eye(3))
    assert pc.condition(prior, pc.bounds(0.0, 1.0), draws=0).point.tolist() == [0.0, 0.3, 1.0]


def test_what_is_too_large_is_refused_before_it_is_made():
    wide = pc.LowRank(np.zeros((256, 256)), np.ones((1, 256, 256)), event_dims=2)
    totals = pc.weighted_sum(np.ones((256, 256)), 1.0), pc.weighted_sum(np.eye(256), 1.0)
    for draws in (2, 0):
        with pytest.raises(pc.errors.InputError, match="`laws`: these tie 65536 points"):
            pc.condition(wide, *totals, pc.monotone(axis=0), draws=draws, generator=None)
    many = pc.linear(np.kron(np.eye(1100), [1.0, 1.0]), np.ones(1100))
    with pytest.raises(pc.errors.InputError, match=r"`laws`: these have 1100 rows in a part"):
        pc.condition(pc.Diagonal(np.zeros((1, 2200)), 1.0), pc.at_least(many), draws=0)
    alone = pc.LowRank(np.zeros(12_000), np.ones((1, 12_000)))
    with pytest.raises(pc.errors.InputError, match=r"`field`: .* points of it lie beyond bounds"):
        pc.condition(alone, pc.bounds(low=1.0), draws=2, generator=generator())


def test_results_without_draws_say_what_they_cannot():
    prior, low = pc.Diagonal([0.0, 1.0, 1.0], 1.0), pc.bounds(low=0.5)
    post = pc.condition(prior, low, draws=0)
    with pytest.raises(pc.errors.InputError, match="`post` is within inequalities"):
        pc.audit(post)
    mixture = pc.Mixture(pc.Diagonal(np.zeros((2, 1, 3)), 1.0))
    with pytest.raises(pc.errors.InputError, match="`field`: a mixture takes inequalities"):
        pc.condition(mixture, low, draws=0)
    for wrong in (1, -1):
        with pytest.raises(pc.errors.InputError, match="`draws`"):
            pc.condition(prior, low, draws=wrong)
    with pytest.raises(pc.errors.InputError, match="`draws`"):
        pc.condition(prior, low, draws=False)


def test_an_entry_of_a_point_within_bounds_draws_within_its_own():
    low = np.array([[0.05], [-0.1], [0.02]]).repeat(7, 1)
    law = pc.integral(np.linspace(0, 1, 7), 0.4)
    rng = np.random.default_rng(SEED)
    prior = pc.Diagonal(rng.normal(0.3, 0.4, size=(3, 7)), 0.1)
    post = pc.condition(prior, law, pc.bounds(low=low), draws=0)
    for i, entry in enumerate(low):
        draws = post[i].sample(5, torch.Generator().manual_seed(1))
        assert float((draws - torch.tensor(entry)).min()) >= 0.0
        assert float(law.residual(draws).abs().max()) < 1e-12
