import gpytorch
import pytest
import torch
from oracle import grid, normal, uniform
from torch import distributions as td

import probconserv as pc

SHAPE = (4, 7)


def covariances(*shape, rng):
    root = normal(*shape, shape[-1], rng=rng)
    return root @ root.mT + 0.1 * torch.eye(shape[-1], dtype=torch.float64)


def test_normal_and_independent(rng):
    mean, std = normal(*SHAPE, rng=rng), uniform(*SHAPE, rng=rng)
    for prediction in (td.Normal(mean, std), td.Independent(td.Normal(mean, std), 2)):
        field = pc.fields.as_field(prediction)
        assert isinstance(field, pc.Diagonal)
        torch.testing.assert_close(field.variance, std**2)


def test_multivariate_normals(rng):
    mean, sigma = normal(*SHAPE, rng=rng), covariances(*SHAPE, rng=rng)
    field = pc.fields.as_field(td.MultivariateNormal(mean, sigma))
    assert isinstance(field, pc.Dense)
    torch.testing.assert_close(field.covariance(), sigma)
    factor, diagonal = normal(*SHAPE, 2, rng=rng), uniform(*SHAPE, rng=rng)
    low = td.LowRankMultivariateNormal(mean, factor, diagonal)
    field = pc.fields.as_field(low)
    assert isinstance(field, pc.LowRank)
    torch.testing.assert_close(field.covariance(), low.covariance_matrix)


def test_a_pair_and_a_field(rng):
    field = pc.fields.as_field((normal(*SHAPE, rng=rng).numpy(), 0.5))
    assert field.variance.unique().tolist() == [0.5]
    assert pc.fields.as_field(field) is field


@pytest.fixture
def gp(rng):
    """A kernel that stays lazy, one Gaussian process for each of four times."""
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5)).double()
    lazy = kernel(normal(4, 7, 1, rng=rng)).add_jitter(1e-3)
    return gpytorch.distributions.MultivariateNormal(normal(*SHAPE, rng=rng), lazy)


def test_gpytorch_matches_the_dense_field(gp, rng):
    law = pc.integral(grid(7, rng), normal(4, rng=rng))
    lazy = pc.condition(gp, law)
    dense = pc.condition(pc.Dense(gp.mean, gp.covariance_matrix.detach()), law)
    torch.testing.assert_close(lazy.mean.detach(), dense.mean)
    torch.testing.assert_close(lazy.variance.detach(), dense.variance)
    assert law.residual(lazy.sample(3, rng)).abs().max() < 1e-12


def test_gpytorch_float32_and_projection(gp, rng):
    law = pc.integral(grid(7, rng), 0.5)
    single = pc.fields.as_field(gp)._map(lambda t: t.float())
    assert pc.condition(single, law).mean.dtype == torch.float32
    hard = pc.project(gp, law)
    assert law.residual(hard).abs().max() < 1e-13
    torch.testing.assert_close(hard.variance, gp.variance)


def test_a_multitask_prediction_is_refused(rng):
    sigma = torch.eye(14, dtype=torch.float64)
    prediction = gpytorch.distributions.MultitaskMultivariateNormal(normal(7, 2, rng=rng), sigma)
    with pytest.raises(pc.errors.InputError, match="multitask prediction is not supported"):
        pc.fields.as_field(prediction)
