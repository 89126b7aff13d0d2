"""The ways to solve with S at sizes where batched solvers have gone wrong, with two threads."""

import numpy as np
import pytest
import scipy.linalg
import torch
from oracle import (
    covariance,
    exact_residual,
    field_of,
    kalman,
    laws_of,
    normal,
    posterior,
    stacked,
    uniform,
)

import probconserv as pc
from probconserv.solvers.banded import Loop, Small


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", [Small, Loop])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 16, 33])
def test_pentadiagonal_matrices_against_dense_ones(rows, kind, rng):
    weights, d = normal(3, rows, rng=rng), uniform(rows + 2, 5, rng=rng)
    noise = uniform(rows, 5, rng=rng)
    g = torch.zeros(rows, rows + 2, dtype=torch.float64)
    for k, x in enumerate(weights):
        g.diagonal(k).copy_(x)
    dense = (g * d.T[:, None]) @ g.T + torch.diag_embed(noise.T)
    floor = (torch.zeros(5, dtype=torch.float64),) if kind is Loop else ()
    matrix = kind(d, weights, noise, *floor)
    r, inverse = normal(rows, 4, 5, rng=rng), torch.linalg.inv(dense)
    solved = torch.einsum("ikl,lmi->kmi", inverse, r)
    moved = torch.einsum("kj,kmi->jmi", g, solved) * -d[:, None]
    torch.testing.assert_close(matrix.move(r.clone()), moved)
    torch.testing.assert_close(matrix.whiten(r.clone()).square().sum(0), (solved * r).sum(0))
    torch.testing.assert_close(matrix.square(r.clone()), (solved * r).sum(0))
    torch.testing.assert_close(matrix.log_det, torch.logdet(dense))
    torch.testing.assert_close(matrix.explained(), (g * (inverse @ g)).sum(-2).T * d)
    assert bool((matrix.pivots > 0).all())


@pytest.mark.parametrize("which", ["variance", "weights", "noise", "r"])
def test_a_long_loop_has_gradients_with_respect_to_each_part(which, rng):
    parts = {
        "variance": uniform(6, 2, rng=rng),
        "weights": normal(3, 4, rng=rng),
        "noise": uniform(4, 2, rng=rng),
        "r": normal(4, 2, rng=rng),
    }

    def found(one):
        variance, weights, noise, r = {**parts, which: one}.values()
        matrix = Loop(variance, weights, noise, torch.zeros(2, dtype=torch.float64))
        return matrix.move(r.clone()), matrix.explained(), matrix.log_det

    assert torch.autograd.gradcheck(found, parts[which].requires_grad_())


def test_smoothness_on_a_long_fine_grid_against_scipy(rng):
    """Five diagonals of 1000 rows, ill-conditioned, one function at one time."""
    x = torch.linspace(0, 1, 1002, dtype=torch.float64)
    prior = pc.Diagonal(normal(1, 1002, rng=rng), uniform(1, 1002, rng=rng))
    smooth = pc.smoothness(x, prior.variance, rho=0.99)
    G = smooth.apply(torch.eye(1002, dtype=torch.float64)).T.numpy()
    mean, v = prior.mean[0].numpy(), prior.variance[0].numpy()
    r = smooth.noise_variance[0].numpy()
    S = (G * v) @ G.T + np.diag(r)
    solved = scipy.linalg.solve(S, G @ mean, assume_a="pos")
    post = pc.condition(prior, smooth)
    np.testing.assert_allclose(post.mean[0], mean - v * (G.T @ solved), atol=1e-8)
    explained = v**2 * np.einsum("ki,ki->i", G, scipy.linalg.solve(S, G, assume_a="pos"))
    np.testing.assert_allclose(post.variance[0], v - explained, atol=1e-8)


def test_large_batched_systems_with_two_threads(rng, two_threads):
    """160 rows at each of 6 times: batched LU on the CPU has been wrong at this size."""
    prior = pc.Diagonal(normal(6, 200, rng=rng), uniform(6, 200, rng=rng))
    rows, b = normal(160, 200, rng=rng), normal(6, 160, rng=rng)
    post = pc.condition(prior, pc.linear(rows, b))
    for t in range(6):
        mean, v, G = prior.mean[t].numpy(), prior.variance[t].numpy(), rows.numpy()
        weights = scipy.linalg.solve((G * v) @ G.T, G @ mean - b[t].numpy())
        np.testing.assert_allclose(post.mean[t], mean - v * (G.T @ weights), atol=1e-8)


@pytest.mark.parametrize("rank", [150, 170])
def test_large_batched_latent_systems_with_two_threads(rank, rng, two_threads):
    """160 rows at each of 6 times, on a low-rank field: batched QR of 150 and more columns."""
    prior = pc.LowRank(normal(6, 200, rng=rng), normal(rank, 6, 200, rng=rng), 0.3)
    rows, b = normal(160, 200, rng=rng), normal(6, 160, rng=rng)
    post = pc.condition(prior, pc.linear(rows, b, noise=0.2))
    for t in range(6):
        mean, G, F = prior.mean[t].numpy(), rows.numpy(), prior.factor[:, t].numpy()
        sigma = F.T @ F + 0.3 * np.eye(200)
        S = G @ sigma @ G.T + 0.04 * np.eye(160)
        gain = scipy.linalg.solve(S, G @ sigma, assume_a="pos").T
        np.testing.assert_allclose(post.mean[t], mean - gain @ (G @ mean - b[t].numpy()), atol=1e-8)
        left = np.diag(sigma) - np.einsum("ik,ki->i", gain, G @ sigma)
        np.testing.assert_allclose(post.variance[t], left, atol=1e-8)


def test_joint_low_rank_at_201_times_with_two_threads(rng, two_threads):
    prior = pc.LowRank(normal(201, 21, rng=rng), normal(30, 201, 21, rng=rng), 0.1, event_dims=2)
    law = pc.integral(torch.linspace(0, 1, 21, dtype=torch.float64), normal(201, rng=rng))
    post = pc.condition(prior, law)
    F, G = prior.factor.flatten(1).numpy(), np.kron(np.eye(201), law.map.weights.numpy())
    sigma = F.T @ F + 0.1 * np.eye(201 * 21)
    cross = sigma @ G.T
    solve = scipy.linalg.cho_factor(G @ cross)
    mean = prior.mean.flatten().numpy()
    moved = cross @ scipy.linalg.cho_solve(solve, G @ mean - law.value.numpy())
    np.testing.assert_allclose(post.mean.flatten(), mean - moved, atol=1e-9)
    left = np.diag(sigma) - np.einsum("ij,ji->i", cross, scipy.linalg.cho_solve(solve, cross.T))
    np.testing.assert_allclose(post.variance.flatten(), left, atol=1e-9)


def test_many_rows_on_a_joint_low_rank_field_need_no_square_matrix(rng):
    """24,000 rows of smoothness: the system has the size of the rank."""
    x = torch.linspace(0, 1, 122, dtype=torch.float64)
    prior = pc.LowRank(normal(200, 122, rng=rng), normal(5, 200, 122, rng=rng), 0.1, event_dims=2)
    law = pc.integral(x, normal(200, rng=rng))
    post = pc.condition(prior, law, pc.smoothness(x, prior.variance, 0.9))
    assert law.residual(post).abs().max() < 1e-12
    assert (post.variance > 0).all()


@pytest.mark.parametrize("law", ["smoothness", "smoothness and integral", "all of the paper"])
@pytest.mark.parametrize("kind", ["diagonal", "low rank few 1", "low rank few 2"])
def test_five_diagonals_at_many_times_give_the_dense_posterior(kind, law, rng):
    """40 times take the matrix of five diagonals, where 4 take a dense one."""
    shape = (40, 7)
    field, laws = field_of(kind, shape, rng), laws_of(law, shape, rng)
    post = pc.condition(field, *laws)
    mean, sigma = posterior(field.mean.numpy().ravel(), covariance(field), laws, shape)
    np.testing.assert_allclose(post.mean.numpy().ravel(), mean, atol=1e-8)
    np.testing.assert_allclose(post.variance.numpy().ravel(), np.diag(sigma), atol=1e-8)
    np.testing.assert_allclose(covariance(post), sigma, atol=1e-8)
    G, b, r = (torch.from_numpy(part) for part in stacked(laws, shape))
    total = G @ torch.from_numpy(covariance(field)) @ G.T + r.diag()
    seen = torch.distributions.MultivariateNormal(G @ field.mean.flatten(), total)
    torch.testing.assert_close(post.log_evidence.sum(), seen.log_prob(b), rtol=1e-8, atol=1e-8)
    assert max(exact_residual(one, post.sample(9, rng)) for one in laws) < 1e-12


@pytest.mark.parametrize("kind", ["diagonal", "low rank", "dense"])
def test_rows_that_follow_from_others_are_found_in_each_part_of_a_batch(kind, rng):
    """Six rows on eight points, of rank 6, 5 and 2, with values that agree."""
    rows, truth = normal(3, 6, 8, rng=rng), normal(3, 8, rng=rng)
    rows[1, 2] = rows[1, 0]
    rows[2] = normal(6, 2, rng=rng) @ rows[2, :2]
    mean, variance, factor = normal(3, 8, rng=rng), uniform(3, 8, rng=rng), normal(9, 3, 8, rng=rng)
    low = pc.LowRank(mean, factor, variance)
    field = {"diagonal": pc.Diagonal(mean, variance), "low rank": low}.get(kind)
    field = pc.Dense(mean, low.covariance()) if field is None else field
    law = pc.linear(rows, (rows @ truth[..., None])[..., 0], batch_dims=1)
    post = pc.condition(field, law)
    for i, (G, b) in enumerate(zip(rows.numpy(), law.value.numpy(), strict=True)):
        wanted, left = kalman(mean[i].numpy(), field.covariance()[i].numpy(), G, b)
        np.testing.assert_allclose(post.mean[i], wanted, atol=1e-8)
        np.testing.assert_allclose(post.covariance()[i], left, atol=1e-8)


def test_a_law_at_every_point_beside_a_total_needs_no_matrix(rng):
    shape = (12, 300)
    u, v = normal(3, *shape, rng=rng), uniform(3, *shape, rng=rng)
    one = torch.ones(shape, dtype=torch.float64)
    state = pc.State(**{k: pc.Diagonal(*each) for k, *each in zip("abn", u, v, strict=True)})
    every = pc.weighted_sum({"a": one, "b": -one, "n": -one}, 0.0, space_dims=0)
    post = pc.condition(state, every, pc.weighted_sum(one, 3.0, space_dims=2, of="n"))
    gain = v[2] / v.sum(0)  # by hand: each point first, then the total of what came out
    n, left = u[2] + gain * (u[0] - u[1] - u[2]), v[2] * (1 - gain)
    torch.testing.assert_close(post["n"].mean, n + left * (3.0 - n.sum()) / left.sum())
