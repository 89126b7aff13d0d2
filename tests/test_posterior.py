"""A posterior is a field: indexed, saved, moved and drawn from without being solved again."""

import numpy as np
import pytest
import torch
from oracle import KINDS, LAWS, covariance, exact_residual, field_of, laws_of, normal, uniform

import probconserv as pc

SHAPE = (4, 7)
MIXED = [pytest.param(kind, law, id=f"{kind}, {law}") for kind in KINDS for law in LAWS]


def same(a, b, tolerance=1e-10):
    """Two posteriors agree in everything that they can be asked for."""
    v = torch.arange(a.mean.numel()).double().reshape(a.shape).cos()
    assert (a.shape, a.event_dims, a.dtype, a.laws) == (b.shape, b.event_dims, b.dtype, b.laws)
    for x, y in (
        (a.mean, b.mean),
        (a.variance, b.variance),
        (a.covariance_times(v), b.covariance_times(v)),
        (a.log_evidence, b.log_evidence),
    ):
        torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("kind", "law"), MIXED)
def test_an_entry_of_a_posterior_is_the_posterior_of_that_entry(kind, law, rng):
    """Nine entries of four times are enough for matrices of five diagonals, one is not."""
    field, laws = field_of(kind, (9, *SHAPE), rng), laws_of(law, SHAPE, rng)
    post = pc.condition(field, *laws)
    for i in (0, -1):
        same(post[i], pc.condition(field[i], *laws), 1e-9)
        assert torch.equal(post[i].mean, post.mean[i])
        torch.testing.assert_close(post[i].variance, post.variance[i], rtol=1e-9, atol=1e-11)
    same(post[1:3], pc.condition(field[1:3], *laws), 1e-9)
    assert max(exact_residual(one, post[1].sample(3, rng)) for one in laws) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_has_its_own_values_noise_and_matrices(kind, rng):
    field, rows = field_of(kind, (3, *SHAPE), rng), normal(3, 1, 2, 7, rng=rng)
    value, noise, volumes = (uniform(3, 4, *more, rng=rng) for more in ((), (), (7,)))
    noise[0] = 0
    post = pc.condition(
        field,
        pc.linear(rows, value[..., None], batch_dims=2),
        pc.weighted_sum(volumes, value, noise=noise, space_dims=1),
        pc.boundary(left=value, noise=0.1 + noise),
    )
    for i in range(3):
        rest = pc.weighted_sum(volumes[i], value[i], noise=noise[i], space_dims=1)
        ends = pc.boundary(left=value[i], noise=0.1 + noise[i])
        own = pc.linear(rows[i], value[i, :, None], batch_dims=1)
        same(post[i], pc.condition(field[i], own, rest, ends), 1e-9)


@pytest.mark.parametrize("kind", ["diagonal", "low rank few 1", "low rank bare 1", "dense 1"])
@pytest.mark.parametrize("law", ["integral", "noisy integral", "rows", "all of the paper"])
def test_a_time_of_independent_times_is_its_own_posterior(kind, law, rng):
    field, laws = field_of(kind, (3, *SHAPE), rng), laws_of(law, SHAPE, rng)
    post = pc.condition(field, *laws)
    for i, t in ((0, 3), (2, 1)):
        part, index = post[i, t], (i, t)
        torch.testing.assert_close(part.mean, post.mean[index])
        torch.testing.assert_close(part.variance, post.variance[index])
        torch.testing.assert_close(part.covariance(), post.covariance()[index])
        torch.testing.assert_close(part.log_evidence, post.log_evidence[index])
        assert max(exact_residual(one, post[i].sample(3, rng)) for one in laws) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (3,)])
def test_every_field_can_be_saved(kind, batch, rng, tmp_path):
    field = field_of(kind, (*batch, *SHAPE), rng)
    field.save(tmp_path / "field")
    kept = pc.fields.Field.load(tmp_path / "field")
    assert type(kept) is type(field)
    assert torch.equal(kept.mean, field.mean)
    assert torch.equal(kept.covariance(), field.covariance())
    assert kept.event_dims == field.event_dims


@pytest.mark.parametrize(("kind", "law"), MIXED)
def test_a_saved_posterior_gives_the_same_numbers(kind, law, rng, tmp_path):
    laws = laws_of(law, SHAPE, rng)
    post = pc.condition(field_of(kind, (9, *SHAPE), rng), *laws)
    post.save(tmp_path / "post")
    kept = pc.fields.Field.load(tmp_path / "post")
    assert isinstance(kept, pc.Posterior)
    same(kept, post, 1e-12)  # the tensors are the same; their strides, and so roundings, are not
    same(kept[1], post[1], 1e-12)
    draws = [one.sample(3, torch.Generator().manual_seed(1)) for one in (kept, post)]
    torch.testing.assert_close(*draws, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_or_indexed_posterior_can_be_conditioned_again(kind, rng, tmp_path):
    field = field_of(kind, (3, *SHAPE), rng)
    whole, smooth, ends = laws_of("all of the paper", SHAPE, rng)
    pc.condition(field, whole, smooth).save(tmp_path / "post")
    kept = pc.fields.Field.load(tmp_path / "post")
    same(pc.condition(kept, ends), pc.condition(field, whole, smooth, ends), 1e-9)
    same(pc.condition(kept[2], ends), pc.condition(field[2], whole, smooth, ends), 1e-9)


@pytest.mark.filterwarnings("ignore:the laws leave")
def test_mixtures_single_precision_and_ensembles_can_be_saved(rng, tmp_path):
    law = pc.integral(torch.arange(7.0), 0.5, noise=0.3)
    single = field_of("diagonal", (3, *SHAPE), rng)._map(lambda t: t.float())
    members = pc.Ensemble(normal(5, 3, *SHAPE, rng=rng), 0.1, batch_dims=2)
    mixture = pc.Mixture(field_of("low rank few 1", (3, *SHAPE), rng), uniform(3, rng=rng))
    for number, field in enumerate((single, members, mixture)):
        post, path = pc.condition(field, law), tmp_path / str(number)
        post.save(path)
        kept = pc.fields.Field.load(path)
        assert kept.dtype == post.dtype
        torch.testing.assert_close(kept.mean, post.mean, rtol=1e-14, atol=0)
        torch.testing.assert_close(kept.variance, post.variance, rtol=1e-14, atol=0)


@pytest.mark.parametrize(("kind", "law"), MIXED)
def test_draws_are_linear_in_their_normals_and_have_the_covariance_of_the_posterior(kind, law, rng):
    laws = laws_of(law, SHAPE, rng)
    post = pc.condition(field_of(kind, SHAPE, rng), *laws)
    draws = post.sample_with(torch.eye(post.normals_per_draw))
    root = (draws - post.mean).flatten(1).numpy()
    np.testing.assert_allclose(root.T @ root, covariance(post), atol=1e-9)
    some = normal(5, post.normals_per_draw, rng=rng)
    wanted = post.mean.flatten() + some @ torch.from_numpy(root)
    torch.testing.assert_close(post.sample_with(some).flatten(1), wanted)
    assert max(exact_residual(one, post.sample_with(some)) for one in laws) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_draws_of_a_prior_have_its_covariance(kind, batch, rng):
    field = field_of(kind, (*batch, *SHAPE), rng)
    root = field.sample_with(torch.eye(field.normals_per_draw)) - field.mean
    found = torch.einsum("n...,nk->...k", root, root.flatten(1)).reshape(-1, field.mean.numel())
    np.testing.assert_allclose(found, covariance(field), atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_normals_give_the_same_draw_of_an_entry(kind, rng):
    field, law = field_of(kind, (3, *SHAPE), rng), laws_of("integral", SHAPE, rng)[0]
    post = pc.condition(field, law)
    normals = normal(5, post[1].normals_per_draw, rng=rng)
    alone = pc.condition(field[1], law).sample_with(normals)
    torch.testing.assert_close(post[1].sample_with(normals), alone)


@pytest.mark.parametrize("kind", ["diagonal", "low rank few 2", "dense 1"])
def test_a_detached_posterior_has_the_same_numbers_and_no_gradient(kind, rng):
    field = field_of(kind, SHAPE, rng)
    field = field._with_mean(field.mean.clone().requires_grad_())
    post = pc.condition(field, *laws_of("all of the paper", SHAPE, rng))
    cut = post.detach()
    assert post.mean.requires_grad
    assert not cut.mean.requires_grad
    assert not cut.sample(2, rng).requires_grad
    same(cut, post, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_quantiles_and_intervals_are_those_of_each_point(kind, rng):
    post = pc.condition(field_of(kind, SHAPE, rng), laws_of("noisy integral", SHAPE, rng)[0])
    points = torch.distributions.Normal(post.mean, post.std)
    low, high = post.interval(0.9)
    torch.testing.assert_close(post.quantile(0.05), low)
    torch.testing.assert_close(points.cdf(high), torch.full(SHAPE, 0.95, dtype=torch.float64))


@pytest.mark.parametrize(("kind", "law"), MIXED)
def test_what_is_read_is_a_copy(kind, law, rng):
    post = pc.condition(field_of(kind, SHAPE, rng), *laws_of(law, SHAPE, rng))
    mean, variance = post.mean.clone(), post.variance.clone()
    post.mean[:], post.variance[:], post.std[:] = 7, 7, 7
    assert torch.equal(post.mean, mean)
    assert torch.equal(post.variance, variance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_comes_back_as_float32(dtype, rng):
    field = field_of("diagonal", SHAPE, rng)._map(lambda t: t.to(dtype))
    (law,) = laws_of("integral", SHAPE, rng)
    post = pc.condition(field, law)
    assert post.mean.dtype == post.variance.dtype == post.sample(2, rng).dtype == torch.float32
    assert exact_residual(law, post.mean) < 1e-6


def test_a_correlated_field_has_the_same_correlation_everywhere(rng):
    variance = uniform(*SHAPE, rng=rng)
    field = pc.LowRank.correlated(normal(*SHAPE, rng=rng), variance, correlation=0.3)
    scale = variance.rsqrt()
    found = field.covariance() * scale[..., None] * scale[..., None, :]
    wanted = 0.3 + 0.7 * torch.eye(7, dtype=torch.float64)
    torch.testing.assert_close(found, wanted.expand(4, 7, 7))


@pytest.mark.parametrize("shrinkage", [0.25, None])
def test_the_density_of_an_ensemble_is_that_of_its_posterior_covariance(shrinkage, rng):
    """What is taken as independent of the samples' variance counts in the density too."""
    field = pc.Ensemble(normal(5, *SHAPE, rng=rng), 0.1, shrinkage=shrinkage)
    post = pc.condition(field, pc.integral(torch.arange(7.0), 0.5, noise=0.3))
    u, sigma = normal(*SHAPE, rng=rng), torch.from_numpy(covariance(post))
    wanted = torch.distributions.MultivariateNormal(post.mean.flatten(), sigma)
    torch.testing.assert_close(post.log_prob(u), wanted.log_prob(u.flatten()))


@pytest.mark.parametrize("noise", [1e-3, 1e-6, 1e-8])
def test_draws_hold_exact_rows_beside_rows_of_next_to_no_noise(noise, rng):
    factor = 100 * torch.randn(3, 3, 4, generator=rng, dtype=torch.float64)
    field = pc.LowRank(torch.zeros(3, 4, dtype=torch.float64), factor, 1.0, event_dims=2)
    draws = pc.condition(field, pc.periodic(noise), pc.periodic()).sample(100, rng)
    assert (draws[..., 0] - draws[..., -1]).abs().max() < 1e-12 * draws.abs().max()


def test_nothing_is_left_where_rows_that_cancel_fix_the_only_direction():
    for seed in range(40):
        rng = torch.Generator().manual_seed(seed)
        samples, rows = (torch.randn(2, 3, generator=rng, dtype=torch.float64) for _ in range(2))
        field = pc.Ensemble(samples, shrinkage=0.0)
        f = field.factor[0]
        rows[1] -= 0.99 * (rows[1] @ f) / (f @ f) * f  # all but a hundredth of it cancels
        post = pc.condition(field, pc.linear(rows, rows @ (field.mean + f)))
        assert post.variance.max() == 0


@pytest.mark.parametrize("shape", [(5, 7, 11), (1, 35, 11), (385,)])
@pytest.mark.parametrize("kind", ["integral", "some times", "weights of each place", "regions"])
def test_slices_of_large_arrays_give_what_the_whole_gives(monkeypatch, shape, kind, rng):
    mean, variance = normal(*shape, rng=rng), uniform(*shape, rng=rng)
    x = torch.linspace(0, 1, shape[-1])
    if kind == "some times":
        law = pc.integral(x, 0.1, times=slice(1, None) if len(shape) > 1 else None)
    elif kind == "weights of each place":
        law = pc.weighted_sum(1 + mean.square(), 0.1, space_dims=1)
    else:
        law = pc.integral(x, 0.1) if kind == "integral" else pc.regions(torch.arange(len(x)) % 3, 0)
    found = []
    for numbers in (1 << 18, 30):
        monkeypatch.setattr("probconserv.support.slices.IN_CACHE", numbers)
        post = pc.condition((mean, variance), law)
        draws = post.sample(3, torch.Generator().manual_seed(0))
        found.append((post.mean, post.variance, draws))
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-14)


def test_large_arrays_have_gradients_and_are_traced(monkeypatch, rng):
    monkeypatch.setattr("probconserv.support.slices.IN_CACHE", 10)
    mean, variance = normal(3, 4, 5, rng=rng), uniform(3, 4, 5, rng=rng)
    law = pc.integral(torch.linspace(0, 1, 5), 0.1)

    def moments(mean, variance):
        post = pc.condition((mean, variance), law)
        return post.mean, post.variance

    inputs = mean.requires_grad_(), variance.requires_grad_()
    assert torch.autograd.gradcheck(moments, inputs)
    torch.testing.assert_close(torch.vmap(moments)(*inputs), moments(*inputs))
