"""The members of an ensemble after the update, against the Kalman filter and against files."""

import numpy as np
import pytest
import torch
import xarray as xr
from oracle import kalman
from seeds import generator

import probconserv as pc
from probconserv.errors import InputError
from probconserv.files import FileLaw, enforce

MEMBERS, TIMES, POINTS = 9, 2, 5
X = np.random.default_rng(0).normal(2, 1, (MEMBERS, TIMES, POINTS))
W = np.random.default_rng(1).uniform(0.5, 1.5, (2, POINTS))


def laws(noises):
    return [
        pc.weighted_sum(w, 9.0 + i, noise=n)
        for i, (w, n) in enumerate(zip(W, noises, strict=False))
    ]


@pytest.mark.parametrize("noises", [(0.0,), (0.7,), (0.0, 0.0), (0.0, 0.7), (0.3, 0.7)])
def test_mean_and_covariance_are_those_of_the_kalman_filter(noises):
    field = pc.Ensemble(X, batch_dims=1, shrinkage=0.0)
    found = pc.condition(field, *laws(noises)).members().numpy()
    b = 9.0 + np.arange(len(noises))
    for t in range(TIMES):
        args = X[:, t].mean(0), np.cov(X[:, t].T), W[: len(noises)], b, np.array(noises)
        mean, covariance = kalman(*args)
        np.testing.assert_allclose(found[:, t].mean(0), mean, atol=1e-10)
        np.testing.assert_allclose(np.cov(found[:, t].T), covariance, atol=1e-10)


@pytest.mark.parametrize("shrinkage", [None, 0.0, 0.4])
@pytest.mark.parametrize("noises", [(0.0,), (0.7,), (0.0, 0.7)])
def test_members_are_those_of_files(noises, shrinkage):
    field = pc.Ensemble(X, batch_dims=1, shrinkage=shrinkage)
    post = pc.condition(field, *laws(noises))
    d = xr.Dataset({"u": (("member", "time", "x"), X)})
    named = [
        FileLaw("u", "x", total=9.0 + i, noise=n, measure=xr.DataArray(w, dims="x"))
        for i, (w, n) in enumerate(zip(W, noises, strict=False))
    ]
    out = enforce(d, *named, member="member", shrinkage=shrinkage)
    np.testing.assert_allclose(post.members(), out.u, atol=1e-10)
    np.testing.assert_allclose(post.members().mean(0), post.mean, atol=1e-10)


@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_every_member_obeys_exact_laws_beside_noisy_ones_at_points_and_jointly(noise):
    field = pc.Ensemble(X)
    exact = pc.weighted_sum(W[0], 9.0)
    post = pc.condition(field, exact, pc.boundary(left=1.0, noise=noise))
    found = post.members()
    np.testing.assert_allclose(exact.apply(found), 9.0, rtol=1e-13)
    np.testing.assert_allclose(found.mean(0), post.mean, atol=1e-10)
    if not noise:
        np.testing.assert_allclose(found[..., 0], 1.0, rtol=1e-13)


def test_a_row_of_one_point_says_nothing_of_the_others():
    """Rounding once made all points go with it, for a few ensembles in a hundred."""
    for seed in range(100):
        members = np.random.default_rng(seed).normal(size=(5, 4))
        field = pc.Ensemble(members)
        post = pc.condition(field, pc.linear([[0.0, 1.3, 0.0, 0.0]], 1.0, noise=0.1))
        np.testing.assert_allclose(post.mean[2:], members.mean(0)[2:], atol=1e-12)


def test_the_share_that_is_chance_has_all_its_digits():
    """It was once in float32, whatever the members were."""
    members, w = X[:, 0] + 3 * X[:, 0, :1], W[:1]
    P = np.cov(members.T)
    s = np.sqrt(P.diagonal())
    spread, alone, together = w @ P @ w.T, w**2 @ s**2, (w @ s) ** 2
    a, c = 1 / (1 + (MEMBERS - 1) / 16), (spread - alone) / (together - alone)
    mixed = (1 - a) * P + a * (c * np.outer(s, s) + (1 - c) * np.diag(s**2))
    mean, _ = kalman(members.mean(0), mixed, w, np.array([9.0]), np.zeros(1))
    post = pc.condition(pc.Ensemble(members), *laws([0.0]))
    np.testing.assert_allclose(post.mean, mean, rtol=1e-13)


@pytest.mark.parametrize("count", [3, 8])
def test_a_row_of_both_signs_does_not_tie_all_points_together(count):
    """Where signs all but cancel, chance gave a correlation of 1: the row then left no variance."""
    rng = np.random.default_rng(2)
    prior = pc.Ensemble(rng.normal(size=(count, 100, 30)), batch_dims=1)
    law = pc.linear(rng.normal(size=(100, 1, 30)), np.zeros((100, 1)), batch_dims=1)
    left = (pc.condition(prior, law).variance / prior.variance).median(-1).values
    assert left.min() > 0.1


def test_members_come_in_the_dtype_of_the_samples():
    post = pc.condition(pc.Ensemble(torch.tensor(X).float(), batch_dims=1), *laws([0.0]))
    assert post.members().dtype == torch.float32
    assert post.members().shape == X.shape


def test_only_an_ensemble_has_members():
    with pytest.raises(InputError, match="`members` are those of an ensemble"):
        pc.condition(pc.Diagonal(X[0], 1.0), *laws([0.0])).members()


def test_noisy_rows_that_are_too_many_to_be_weighed_together_are_refused():
    samples, volumes = torch.randn(3, 4100, 2, generator=generator()), torch.ones(2)
    prior = pc.Ensemble(samples)
    post = pc.condition(prior, pc.weighted_sum(volumes, samples.mean(0).sum(-1), noise=1.0))
    with pytest.raises(InputError, match=r"`members` given `noise`.* up to 4096.* have 4100"):
        post.members()
