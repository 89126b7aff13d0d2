"""Laws with kinks: nearest fields lie on them, where no slope of the law is that of the next."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize
from seeds import SEED, generator

import probconserv as pc

D = torch.float64


def size(u):
    return u.abs().sum()


def rectified(u):
    return u.relu().sum()


def shrunk(mean, variance, value, reach):
    """The nearest u with sum |u| = value, or sum relu(u): all fall by a share of their variance."""

    def at(pull):
        down = np.sign(mean) * np.maximum(np.abs(mean) - pull * variance, 0)
        return np.where(reach(mean), down, mean)

    def left(pull):
        return np.abs(at(pull) * reach(mean)).sum() - value

    return at(brentq(left, 0.0, 1e3, xtol=1e-15))


@pytest.mark.parametrize("law", [size, rectified])
def test_the_point_and_draws_lie_on_kinks_where_the_nearest_fields_do(law):
    rng = np.random.default_rng(SEED)
    for n in (5, 12):
        mean, variance = rng.normal(size=n), rng.uniform(0.2, 2.0, size=n)
        reach = (lambda u: u > -np.inf) if law is size else (lambda u: u > 0)
        value = 0.6 * float(law(torch.tensor(mean)))
        wanted = shrunk(mean, variance, value, reach)
        post = pc.condition(pc.Diagonal(mean, variance), pc.nonlinear(law, value))
        np.testing.assert_allclose(post.point, wanted, atol=1e-9)
        assert (post.variance.numpy()[wanted == 0] == 0).all()
        draws = post.sample(5, generator(n))
        assert all(abs(float(law(u)) - value) < 1e-11 * n for u in draws)


def test_points_and_draws_on_kinks_have_gradients():
    given = torch.tensor([0.1, 1.2, -0.2, 0.9, -1.1, 0.05], dtype=D)
    slopes = torch.tensor([1.0, 0.7, 1.2, 0.8, 1.1, 0.9], dtype=D)

    def found(mean, value, slopes):
        post = pc.condition(
            pc.Diagonal(mean, 0.5), pc.nonlinear(lambda u: (slopes * u).abs().sum(), value)
        )
        return torch.cat([post.point, post.sample(2, generator()).flatten(), post.variance])

    at = [x.clone().requires_grad_() for x in (given, torch.tensor(2.0, dtype=D), slopes)]
    along = [torch.randn(x.shape, dtype=D, generator=generator(i)) for i, x in enumerate(at)]
    weights = torch.randn(24, dtype=D, generator=generator(9))
    grads = torch.autograd.grad(weights @ found(*at), at)
    slope = sum(float((g * d).sum()) for g, d in zip(grads, along, strict=True))
    ends = [
        float(weights @ found(*(x.detach() + h * d for x, d in zip(at, along, strict=True))))
        for h in (1e-6, -1e-6)
    ]
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kind", ["linear law beside", "batch", "largest"])
def test_kinks_go_with_other_laws_and_fields_as_far_as_another_method_finds(kind):
    rng = np.random.default_rng(SEED + 1)
    mean, factor = rng.normal(size=6), rng.normal(size=(3, 6))
    function = (lambda u: u.abs().max()) if kind == "largest" else size
    value = 0.7 * float(function(torch.tensor(mean)))
    more = (
        [pc.weighted_sum(np.ones(6), 0.5 * float(mean.sum()))]
        if kind == "linear law beside"
        else []
    )
    field, law = pc.LowRank(mean, factor, 0.1), pc.nonlinear(function, value)
    if kind == "batch":
        both = pc.LowRank(np.stack([mean, 2 * mean]), np.stack([factor] * 2, 1), 0.1)
        law = pc.nonlinear(function, [value, 2 * value], batch_dims=1)
        u = pc.condition(both, law, *more)[0].point.numpy()
    else:
        u = pc.condition(field, law, *more).point.numpy()
    precision = np.linalg.inv(factor.T @ factor + 0.1 * np.eye(6))
    rows = [lambda x: float(function(torch.tensor(x))) - value]
    rows += [lambda x: x.sum() - 0.5 * mean.sum()] * len(more)
    assert all(abs(row(u)) < 1e-10 for row in rows)

    def distance(x):
        return (x - mean) @ precision @ (x - mean)

    best = minimize(
        distance, u + 1e-2, constraints=[{"type": "eq", "fun": row} for row in rows], tol=1e-12
    )
    assert distance(u) <= best.fun * (1 + 1e-6) + 1e-8


def test_kinks_that_are_curved_too_are_refused_with_the_reason():
    law = pc.nonlinear(lambda u: u.abs().sum() + u.square().sum(), 1.0)
    with pytest.raises(pc.errors.InfeasibleError, match=r"kink"):
        pc.condition(pc.Diagonal([0.1, 1.2, -0.2, 0.9, -1.1, 0.05], 1.0), law)


def test_a_point_on_a_kink_has_no_weights():
    post = pc.condition(pc.Diagonal([0.1, 1.2], 1.0), pc.nonlinear(size, 0.5))
    with pytest.raises(pc.errors.InputError, match="`weighted`: the point lies on a kink"):
        post.weighted(10)
