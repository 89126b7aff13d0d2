"""Defects of the published code that Step 2 must not have, each with a test that would show it."""

import numpy as np
import torch
from oracle import covariance, normal, uniform

import probconserv as pc


def test_more_than_one_row_has_independent_noise(rng):
    """An identity matrix made of ones makes the noise of all rows the same."""
    prior = pc.Diagonal(normal(2, 5, rng=rng), uniform(2, 5, rng=rng))
    rows = normal(3, 5, rng=rng)
    post = pc.condition(prior, pc.linear(rows, 0.0, noise=0.7))
    for t in range(2):
        sigma, G = np.diag(prior.variance[t]), rows.numpy()
        precision = np.linalg.inv(sigma) + G.T @ G / 0.49
        np.testing.assert_allclose(post.covariance()[t], np.linalg.inv(precision), atol=1e-12)


def test_grids_need_not_be_square(rng):
    for shape in ((3, 11), (11, 3), (1, 8), (8, 2)):
        prior = pc.Diagonal(normal(*shape, rng=rng), uniform(*shape, rng=rng))
        law = pc.integral(torch.arange(shape[1]).double(), normal(shape[0], rng=rng))
        post = pc.condition(prior, law)
        assert post.mean.shape == shape
        assert law.residual(post).abs().max() < 1e-13


def test_domains_need_not_start_at_zero(rng):
    """Moving the domain moves nothing else."""
    x, mean = uniform(9, rng=rng).cumsum(0), normal(4, 9, rng=rng)
    here, there = (pc.integral(x + left, 0.3) for left in (0.0, -7.0))
    prior = pc.Diagonal(mean, 1.0)
    torch.testing.assert_close(pc.condition(prior, here).mean, pc.condition(prior, there).mean)


def test_every_function_of_a_batch_meets_its_own_total_only(rng):
    """Broadcasting every function against every other's total would show here."""
    prior = pc.Diagonal(normal(5, 3, 8, rng=rng), uniform(5, 3, 8, rng=rng))
    law = pc.integral(torch.arange(8.0).double(), normal(5, 3, rng=rng))
    post = pc.condition(prior, law)
    assert post.mean.shape == (5, 3, 8)
    assert law.residual(post).abs().max() < 1e-12


def test_posterior_samples_have_the_posterior_variance_not_its_root(rng):
    prior, x = pc.Diagonal(normal(3, 6, rng=rng), 1e-4), torch.arange(6.0).double()
    total = torch.trapezoid(prior.mean, x) + 0.02
    post = pc.condition(prior, pc.integral(x, total, noise=1e-3))
    draws = post.sample(20_000, rng)
    torch.testing.assert_close(draws.var(0), post.variance, rtol=0.08, atol=0)


def test_variance_and_covariance_agree_after_the_update(rng):
    components = pc.Diagonal(normal(4, 3, 6, rng=rng), uniform(4, 3, 6, rng=rng))
    law = pc.integral(torch.arange(6.0).double(), 0.0)
    post = pc.Mixture(pc.condition(components, law))
    np.testing.assert_allclose(np.diag(covariance(post)), post.variance.flatten(), atol=1e-12)
