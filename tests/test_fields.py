import numpy as np
import pytest
import torch
from oracle import KINDS, covariance, field_of, normal, uniform

import probconserv as pc

SHAPE = (4, 7)
DENSITY = [kind for kind in KINDS if "bare" not in kind]


@pytest.mark.parametrize("kind", KINDS)
def test_variance_is_the_diagonal_of_the_covariance(kind, rng):
    field = field_of(kind, SHAPE, rng)
    sigma = covariance(field)
    np.testing.assert_allclose(np.diag(sigma), field.variance.flatten(), rtol=1e-12)
    np.testing.assert_allclose(sigma, sigma.T, atol=1e-12)
    torch.testing.assert_close(field.std**2, field.variance)


@pytest.mark.parametrize("kind", KINDS)
def test_dense_covariance_is_over_the_event_axes(kind, rng):
    field = field_of(kind, SHAPE, rng)
    full = covariance(field).reshape(*SHAPE, *SHAPE)
    if field.event_dims == 2:
        np.testing.assert_allclose(field.covariance(), full)
    else:
        per_time = np.stack([full[t, :, t] for t in range(4)])
        np.testing.assert_allclose(field.covariance(), per_time, atol=1e-13)
        assert np.abs(full[0, :, 1]).max() == 0


@pytest.mark.parametrize("kind", DENSITY)
def test_log_prob_is_the_multivariate_normal(kind, rng):
    field, u = field_of(kind, SHAPE, rng), normal(*SHAPE, rng=rng)
    wanted = torch.distributions.MultivariateNormal(
        field.mean.flatten(), torch.from_numpy(covariance(field))
    ).log_prob(u.flatten())
    torch.testing.assert_close(field.log_prob(u).sum(), wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_directions_in_half_precision_have_a_density(dtype, rng):
    """Torch has no QR for these: it was a bare NotImplementedError."""
    mean, factor, u = (normal(*n, *SHAPE, rng=rng).to(dtype) for n in ((), (2,), ()))
    wanted = pc.LowRank(mean.double(), factor.double(), 0.5).log_prob(u.double())
    torch.testing.assert_close(pc.LowRank(mean, factor, 0.5).log_prob(u), wanted.to(dtype))


@pytest.mark.parametrize("kind", KINDS)
def test_marginal_log_prob_is_the_normal_of_each_point(kind, rng):
    field, u = field_of(kind, SHAPE, rng), normal(*SHAPE, rng=rng)
    wanted = torch.distributions.Normal(field.mean, field.variance.sqrt()).log_prob(u)
    torch.testing.assert_close(field.marginal_log_prob(u), wanted)


@pytest.mark.parametrize("kind", ["diagonal", "low rank few 2", "dense 1"])
def test_samples_have_the_moments_of_the_field(kind, rng):
    """The published front sampler took a standard deviation for a variance."""
    field = field_of(kind, SHAPE, rng)
    draws = field.sample(20_000, rng).flatten(1)
    spread = torch.from_numpy(covariance(field))
    size = spread.diagonal().sqrt()
    assert ((draws.mean(0) - field.mean.flatten()).abs() < 5 * size / 20_000**0.5).all()
    assert ((draws.T.cov() - spread).abs() / (size[:, None] * size)).max() < 0.05


def test_interval_holds_its_share_of_samples(rng):
    field = pc.Diagonal(normal(*SHAPE, rng=rng), uniform(*SHAPE, rng=rng))
    low, high = field.interval(0.9)
    draws = field.sample(20_000, rng)
    inside = ((draws > low) & (draws < high)).double().mean(0)
    assert (inside - 0.9).abs().max() < 0.01


def test_a_standard_deviation_is_squared(rng):
    std = uniform(7, rng=rng)
    field = pc.Diagonal(normal(*SHAPE, rng=rng), std=std)
    torch.testing.assert_close(field.variance, (std * std).expand(SHAPE), rtol=1e-15, atol=0)
    assert (pc.Diagonal([1.0, 2.0], std=[0.0, 3.0]).variance == torch.tensor([0.0, 9.0])).all()


@pytest.mark.parametrize("lead", [(), (1,), (5, 1), (1, 4), (5, 4)])
def test_a_covariance_that_entries_share_is_as_good_as_a_copy_for_each(lead, rng):
    root = normal(*lead, 7, 9, rng=rng)
    mean, u = normal(5, 4, 7, rng=rng), normal(2, 5, 4, 7, rng=rng)
    field = pc.Dense(mean, root @ root.mT)
    whole = pc.Dense(mean, (root @ root.mT).expand(5, 4, 7, 7).clone())
    assert field._root.numel() == root.numel() // 9 * 7  # factored as often as it was given
    for index in (slice(None), slice(1, 3), (2, 1), (slice(None), 3)):
        one, other, at = field[index], whole[index], u[0][index]
        torch.testing.assert_close(one.covariance(), other.covariance())
        torch.testing.assert_close(one.log_prob(at), other.log_prob(at))
    torch.testing.assert_close(field.covariance_times(u), whole.covariance_times(u))
    numbers = u.flatten(1)
    torch.testing.assert_close(field.sample_with(numbers), whole.sample_with(numbers))


def test_a_shared_covariance_is_kept_in_a_file_and_widened(rng, tmp_path):
    root = normal(7, 9, rng=rng)
    field = pc.Dense(normal(5, 4, 7, rng=rng), root @ root.T)
    field.save(tmp_path / "field.safetensors")
    again = pc.Dense.load(tmp_path / "field.safetensors")
    torch.testing.assert_close(again.covariance(), field.covariance(), rtol=0, atol=0)
    wider = pc.inflate(field, pc.weighted_sum(torch.ones(7), 200.0))
    times = wider.variance / field.variance
    assert (times > 1).all()
    torch.testing.assert_close(times, times[:, :1, :1].expand_as(times))  # one for each solution


def test_an_ensemble_has_the_sample_mean_and_covariance(rng):
    samples = normal(6, 2, *SHAPE, rng=rng)
    for event_dims in (1, 2):
        field = pc.Ensemble(samples, 0.5, batch_dims=3 - event_dims)
        torch.testing.assert_close(field.mean, samples.mean(0))
        torch.testing.assert_close(field.variance, samples.var(0) + 0.5)
    joint = field.covariance()[1].reshape(28, 28)
    wanted = samples[:, 1].flatten(1).T.cov() + 0.5 * torch.eye(28)
    torch.testing.assert_close(joint, wanted)


def test_a_singular_dense_covariance_can_be_sampled(rng):
    root = normal(3, 7, 2, rng=rng)
    field = pc.Dense(normal(3, 7, rng=rng), root @ root.mT)
    draws = field.sample(4000, rng) - field.mean
    null = torch.linalg.svd(root.mT).Vh[:, 2:]
    assert (null @ draws.movedim(0, -1)).abs().max() < 1e-6
    torch.testing.assert_close(draws.var(0), field.variance, rtol=0.2, atol=1e-3)


def test_numpy_goes_in_and_comes_out(rng):
    mean, variance = normal(*SHAPE, rng=rng).numpy(), uniform(*SHAPE, rng=rng).numpy()
    law = pc.integral(np.linspace(0, 1, 7), np.ones(4))
    post = pc.condition((mean, variance), law)
    assert np.asarray(post.mean).dtype == np.float64
    np.testing.assert_allclose(np.trapezoid(np.asarray(post.mean), dx=1 / 6), 1)


def test_a_read_only_or_reversed_array_is_copied(rng):
    mean = normal(*SHAPE, rng=rng).numpy()
    mean.flags.writeable = False
    assert pc.Diagonal(mean, 1.0).mean.shape == SHAPE
    np.testing.assert_array_equal(pc.Diagonal(mean[:, ::-1], 1.0).mean, mean[:, ::-1])


@pytest.mark.parametrize("kind", KINDS)
def test_to_moves_a_field(kind, rng):
    field = field_of(kind, SHAPE, rng)
    assert field.to("meta").mean.device.type == "meta"
    assert "shape=(4, 7)" in repr(field)


def test_a_posterior_moves_with_its_laws(rng):
    law = pc.integral(torch.arange(7.0).double(), 1.0)
    post = pc.condition(field_of("diagonal", SHAPE, rng), law)
    assert torch.equal(post.to("cpu").mean, post.mean)
    assert post.shape == SHAPE
    assert post.device.type == "cpu"
