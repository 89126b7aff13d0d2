"""What went wrong once with laws that are not linear."""

import math

import numpy as np
import pytest
import torch
from curves import DOUBLE, energy, randn
from oracle import covariance
from torch import Tensor

import probconserv as pc


@pytest.mark.parametrize(
    ("mean", "function", "value", "wanted"),
    [
        ([1.0, 1.0, 1.0], energy, 27.0, [3.0, 3.0, 3.0]),
        ([1.0], energy, 9.0, [3.0]),
        ([1.0, 1.0], torch.prod, 9.0, [3.0, 3.0]),
    ],
)
def test_the_nearest_side_is_found_and_not_the_farthest(mean, function, value, wanted):
    point = pc.condition(pc.Diagonal(mean, 1.0), pc.nonlinear(function, value)).point
    assert torch.allclose(point, torch.tensor(wanted, dtype=DOUBLE))


@pytest.mark.parametrize(
    ("mean", "variance", "function", "value"),
    [
        ([2.0, 2.0], 1.0, torch.prod, 0.5),
        ([1.0, 0.0], [1.0, 100.0], energy, 25.0),
        ([0.5] * 4, 4.0, lambda u: (u**4).sum(), 8.0),
        ([1.0] * 5, 4.0, lambda u: (u**4).sum(), 80.0),
        ([0.5] * 4, 4.0, lambda u: u.cosh().sum(), 30.0),
    ],
)
def test_a_symmetric_start_does_not_end_on_a_saddle(mean, variance, function, value):
    prior = pc.Diagonal(mean, variance)
    u = pc.condition(prior, pc.nonlinear(function, value)).point
    slope, bend = torch.func.jacrev(function)(u), torch.func.hessian(function)(u)
    multiplier = -((u - prior.mean) / prior.variance) @ slope / (slope @ slope)
    along = torch.linalg.svd(slope[None]).Vh[1:]
    curve = along @ (torch.diag(1 / prior.variance) + multiplier * bend) @ along.T
    assert torch.linalg.eigvalsh(curve).min() > 0


def test_the_top_between_two_wells_is_left():
    point = pc.condition(pc.Diagonal([0.0], 1.0), pc.nonlinear(energy, 1.0, noise=0.1)).point
    assert abs(abs(float(point)) - 0.9975) < 1e-4


def test_a_value_of_zero_is_met():
    for seed in range(20):
        field = pc.LowRank(randn(4, seed=seed), randn(2, 4, seed=seed + 100), 0.1)
        assert pc.condition(field, pc.nonlinear(lambda u: u[:2], 0.0)).point[:2].abs().max() < 1e-14
        other = pc.Diagonal(randn(4, seed=seed), 1.0)
        assert pc.condition(other, pc.nonlinear(lambda u: u.sinh(), 0.0)).point.abs().max() < 1e-14


def test_noise_far_from_zero_is_weighed():
    field = pc.Diagonal([300.5, 299.0, 301.0, 300.0], 1.0)
    law = pc.nonlinear(lambda u: (u - 300).square().sum(), 3.0, noise=1.0)
    assert pc.condition(field, law).sample(300, torch.Generator().manual_seed(0)).isfinite().all()


def test_what_has_no_right_derivative_is_refused():
    law, mean = pc.nonlinear(energy, 25.0), torch.tensor([3.0, 3.9], dtype=DOUBLE)

    def point(mean: Tensor) -> Tensor:
        return pc.condition(pc.Diagonal(mean, torch.ones(2, dtype=DOUBLE)), law).point

    with pytest.raises(pc.errors.InputError, match="`laws` that are not linear"):
        torch.func.jvp(point, (mean,), (torch.ones(2, dtype=DOUBLE),))
    given = mean.clone().requires_grad_()
    with pytest.raises(pc.errors.DegenerateError, match="first derivatives only"):
        torch.autograd.grad(point(given).sum(), given, create_graph=True)


def test_detached_is_detached():
    power = torch.tensor(2.2, dtype=DOUBLE, requires_grad=True)
    post = pc.condition(
        pc.Diagonal([3.0, 3.9], 1.0), pc.nonlinear(lambda u: (u**power).sum(), 30.0)
    )
    assert post.variance.requires_grad
    assert not post.detach().variance.requires_grad


def test_numbers_empty_batches_and_parameters_without_axes():
    alone = pc.condition(
        pc.Diagonal(torch.tensor(1.0, dtype=DOUBLE), 1.0), pc.nonlinear(torch.square, 2.0)
    )
    assert math.isclose(float(alone.point), math.sqrt(2))
    none = pc.condition(pc.Diagonal(torch.ones(0, 3), 1.0), pc.nonlinear(energy, 2.0, batch_dims=1))
    assert none.point.shape == (0, 3)
    state = pc.State(u=pc.Diagonal([1.0, 2.0], 1.0), k=pc.Diagonal(1.0, 1.0))
    post = pc.condition(state, pc.nonlinear(lambda s: s["u"] * s["k"], [1.5, 2.0])).point
    assert torch.allclose(post["u"] * post["k"], torch.tensor([1.5, 2.0], dtype=DOUBLE))


def test_one_field_of_a_state_is_not_conditioned_again():
    state = pc.State(u=pc.Diagonal([3.0, 3.9], 1.0), v=pc.Diagonal([1.0, 2.0, 3.0], 1.0))
    post = pc.condition(state, pc.nonlinear(lambda s: s["u"].square().sum() + s["v"].sum(), 30.0))
    for laws in (pc.nonlinear(energy, 25.0), pc.weighted_sum([1.0, 1.0], 6.0)):
        with pytest.raises(pc.errors.InputError, match="one of a state"):
            pc.condition(post["u"], laws)


def test_a_slope_that_is_infinite_is_refused():
    with pytest.raises(
        pc.errors.InfeasibleError, match="a gradient of nonlinear is NaN or infinite"
    ):
        pc.condition(
            pc.Diagonal([3.0, 3.9], 1.0), pc.nonlinear(lambda u: (u - 3).abs().sqrt().sum(), 1.0)
        )


def changes_in_place(u):
    u[0] = u[0] ** 2
    return u.sum()


@pytest.mark.parametrize(
    "function", [changes_in_place, lambda u: u.missing, lambda u: 1 / 0, lambda u: u[:0]]
)
def test_what_a_function_raises_comes_with_words(function):
    with pytest.raises(pc.errors.InputError, match="`function`"):
        pc.condition(pc.Diagonal([3.0, 3.9], 1.0), pc.nonlinear(function, 14.0))


def waves(seed):
    """A field that is wide beside two laws that are bent much, with values that can be met."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=6)
    u = torch.tensor(mean + rng.normal(size=6))
    functions = (lambda u: (2 * u).sin().sum() + u.sum()), (lambda u: u.square().sum())
    laws = [pc.nonlinear(f, float(f(u))) for f in functions]
    return pc.condition(pc.Diagonal(mean, 2.0), *laws), laws


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
@pytest.mark.parametrize("seed", [1, 5, 6, 7])
def test_draws_that_are_far_get_to_the_laws_by_way_of_nearer_ones(seed):
    post, laws = waves(seed)
    draws = post.sample(60, torch.Generator().manual_seed(seed))
    for law in laws:
        terms = law.value.abs() + 3 * draws.square().sum(-1)
        assert all(
            abs(float(law.residual(u))) < 1e-12 * t for u, t in zip(draws, terms, strict=True)
        )


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
@pytest.mark.parametrize("most", [1 << 24, 1])
def test_a_draw_that_does_not_get_there_is_named(monkeypatch, most):
    monkeypatch.setattr("probconserv.conditioning.loop.solved.AT_ONCE", most)
    prior = pc.Diagonal(np.full((3, 2), 2.0), 1e-4)
    post = pc.condition(prior, pc.nonlinear(lambda u: (9 - u).log().sum(), 4.0, batch_dims=1))

    def normals(*shape):
        found = torch.zeros(5, *shape, dtype=torch.float64)
        if len(shape) == 2 and shape[1] == 2:
            found[3, 1] = torch.tensor([1e9, -1e9])  # where there is no logarithm
        return found

    with pytest.raises(pc.errors.InfeasibleError, match=r"draw 3 of solution \[1\].*need no draws"):
        post._draw(normals)


@pytest.mark.parametrize("event_dims", [1, 2])
def test_times_that_a_law_or_the_prior_ties_together_each_obey_their_own(event_dims):
    """A law at each time beside one over all times ended in a bare RuntimeError."""
    prior = pc.LowRank(randn(3, 5), randn(2, 3, 5), 1.0, event_dims)
    squares, total = pc.nonlinear(energy, 4.0, batch_dims=1), pc.linear(torch.ones(1, 3, 5), 1.0)
    for laws in [(squares, total), (squares,)][:event_dims]:
        u = pc.condition(prior, *laws).point
        for law in laws:
            assert law.residual(u).abs().max() < 12e-12  # terms of 12
        slopes = torch.cat([torch.block_diag(*u), torch.ones(1, 15)])[: 2 + len(laws)]
        away = torch.linalg.solve(torch.from_numpy(covariance(prior)), (u - prior.mean).flatten())
        left = torch.linalg.lstsq(slopes.T, away[:, None]).solution
        assert torch.allclose(slopes.T @ left, away[:, None], atol=1e-6)  # the nearest such field
