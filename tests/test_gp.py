import copy
import math

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel

import probconserv as pc
from probconserv.data import draw
from probconserv.models.gp import GaussianProcess
from probconserv.problems import Diffusion, PorousMedium, Stefan

GRID = (np.array([0.1, 0.4]), np.linspace(0, 1, 7))


def kernel(lengths=(0.4, 0.3), variance=2.0, nu=1.5):
    scaled = ScaleKernel(MaternKernel(nu=nu, ard_num_dims=len(lengths))).double()
    scaled.outputscale = variance
    scaled.base_kernel.lengthscale = torch.tensor(lengths, dtype=torch.float64)
    return scaled


def process(**options):
    return GaussianProcess(**{"kernel": kernel(), "mean": 0.5, "noise": 0.1} | options)


def seen(*shape, seed=0):
    """A smooth function of t and x, one for each row, with noise."""
    rng = np.random.default_rng(seed)
    t, x = rng.uniform(size=(2, *shape))
    return t, x, np.sin(3 * x - t) + 0.05 * rng.normal(size=shape)


def matern(a, b, lengths=(0.4, 0.3), variance=2.0):
    """Matern 3/2 between (N, 2) and (M, 2), written out."""
    r = np.sqrt((((a[:, None] - b) / np.array(lengths)) ** 2).sum(-1) * 3)
    return variance * (1 + r) * np.exp(-r)


def mesh(t):
    return np.stack([np.full(7, t), GRID[1]], axis=-1)


def test_a_prediction_is_the_joint_normal_given_the_observations():
    t, x, u = seen(12)
    field = process().predict((t, x, u), GRID)
    assert isinstance(field, pc.Dense)
    assert field.shape == (2, 7)
    known = np.stack([t, x], axis=-1)
    precision = np.linalg.inv(matern(known, known) + 0.01 * np.eye(12))
    for i, time in enumerate(GRID[0]):
        here = mesh(time)
        gain = matern(here, known) @ precision
        mean = 0.5 + gain @ (u - 0.5)
        covariance = matern(here, here) - gain @ matern(known, here)
        np.testing.assert_allclose(field.mean[i], mean, atol=1e-10)
        np.testing.assert_allclose(field.covariance()[i], covariance, atol=1e-10)


def test_the_likelihood_is_the_density_of_the_observations():
    t, x, u = seen(12)
    known = np.stack([t, x], axis=-1)
    sigma = torch.from_numpy(matern(known, known) + 0.01 * np.eye(12))
    normal = torch.distributions.MultivariateNormal(torch.full((12,), 0.5).double(), sigma)
    expected = normal.log_prob(torch.from_numpy(u))
    torch.testing.assert_close(process().log_likelihood((t, x, u)), expected)


class Exact(gpytorch.models.ExactGP):
    def __init__(self, known, u, likelihood):
        super().__init__(known, u, likelihood)
        self.mean_module, self.kernel = gpytorch.means.ConstantMean(), kernel()

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.kernel(x))


def test_gpytorch_predicts_the_same():
    t, x, u = (torch.from_numpy(a) for a in seen(12))
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    model = Exact(torch.stack([t, x], dim=-1), u, likelihood).double().eval()
    model.initialize(**{"likelihood.noise": 0.01, "mean_module.constant": 0.5})
    field = process().predict((t, x, u), GRID)
    with torch.no_grad():
        expected = model(torch.from_numpy(mesh(0.4)))
    torch.testing.assert_close(field.mean[1], expected.mean)
    torch.testing.assert_close(field.covariance()[1], expected.covariance_matrix)


@pytest.mark.parametrize("family", [Diffusion(2.0), PorousMedium(3.0), Stefan(0.6)])
def test_predictions_of_the_equations_can_be_made_to_conserve(family):
    t, x, _, total = family.test_grid()
    t, total = t[20::60], total[20::60]
    context = tuple(a[0] for a in draw(family, "test", n=1, context=60).context)
    field = GaussianProcess().fit(context).predict(context, (t, x))
    law = pc.integral(x, total)
    post = pc.condition(field, law)
    assert law.residual(field).abs().max() > 1e-4
    assert law.residual(post).abs().max() < 1e-12
    draws = post.sample(3, torch.Generator().manual_seed(0))
    assert law.residual(draws).abs().max() < 1e-12


def test_smooth_kernels_can_be_sampled():
    """Far below the variance of its prior, such a covariance is rounding in most directions."""
    context = tuple(a[0] for a in draw(Diffusion(2.0), "test", n=1, context=100).context)
    smooth = GaussianProcess(ScaleKernel(RBFKernel(ard_num_dims=2))).fit(context)
    t, x, _, total = Diffusion(2.0).test_grid()
    field = smooth.predict(context, (t[100:101], x))
    assert torch.linalg.eigvalsh(field.covariance()).min() < 0
    law = pc.integral(x, total[100:101])
    draws = pc.condition(field, law).sample(5, torch.Generator().manual_seed(0))
    assert law.residual(draws).abs().max() < 1e-12
    assert (draws - field.mean).abs().max() < 6 * field.std.max()


def test_observations_without_noise_are_met():
    t, x, u = seen(9)
    exact = process(noise=0.0)
    for i in range(9):
        field = exact.predict((t, x, u), (t[i : i + 1], np.append(x[i], 2.0)))
        assert float(field.mean[0, 0]) == pytest.approx(u[i], abs=1e-10)
        assert 0 <= field.variance[0, 0] < 1e-12


def test_fit_finds_the_parameters_that_a_sample_was_drawn_with():
    rng = np.random.default_rng(0)
    known = rng.uniform(size=(5, 80, 2))
    roots = [np.linalg.cholesky(matern(k, k) + 0.01 * np.eye(80)) for k in known]
    u = np.stack([0.5 + root @ rng.normal(size=80) for root in roots])
    found = GaussianProcess().fit((known[..., 0], known[..., 1], u))
    lengths = found.kernel.base_kernel.lengthscale.detach()
    assert (lengths / torch.tensor([[0.4, 0.3]])).log().abs().max() < 0.2
    assert abs(math.log(found.kernel.outputscale.item() / 2)) < 0.2
    assert found.noise == pytest.approx(0.1, rel=0.2)


def test_fit_ends_where_no_parameter_can_improve():
    context = seen(3, 25)
    found = GaussianProcess().fit(context)
    best = float(found.log_likelihood(context).sum())
    for factor in (0.9, 1.1):
        nearby = [copy.deepcopy(found) for _ in range(5)]
        nearby[0].noise *= factor
        nearby[1].mean += factor - 1
        nearby[2].kernel.outputscale *= factor
        for i in range(2):
            length = found.kernel.base_kernel.lengthscale.detach().clone()
            length[0, i] *= factor
            nearby[3 + i].kernel.base_kernel.lengthscale = length
        assert all(float(other.log_likelihood(context).sum()) < best for other in nearby)


def test_units_do_not_matter():
    t, x, u = seen(25)
    field = GaussianProcess().fit((t, x, u)).predict((t, x, u), GRID)
    other = 1e-3 * t, 1e3 * x, 1e4 * u - 7
    grid = 1e-3 * GRID[0], 1e3 * GRID[1]
    scaled = GaussianProcess().fit(other).predict(other, grid)
    torch.testing.assert_close((scaled.mean + 7) / 1e4, field.mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(scaled.std / 1e4, field.std, rtol=1e-8, atol=0)


def test_a_coordinate_may_stand_still():
    x = seen(25)[1]
    still = np.full(25, 0.1), x, np.sin(3 * x)
    field = GaussianProcess().fit(still).predict(still, GRID)
    np.testing.assert_allclose(field.mean[0], np.sin(3 * GRID[1]), atol=0.05)


def test_a_given_kernel_is_left_alone_and_improved_in_a_copy():
    context, given = seen(25), kernel()
    before = copy.deepcopy(given)
    start = GaussianProcess(given, mean=0.0, noise=0.1)
    likelihood = start.log_likelihood(context)
    found = GaussianProcess(given).fit(context)
    assert found.log_likelihood(context) > likelihood + 1
    for old, now, new in zip(*(k.parameters() for k in (before, given, found.kernel)), strict=True):
        assert torch.equal(now, old)
        assert not torch.equal(new, old)


def test_what_is_given_as_a_number_or_needs_no_gradient_stays():
    given = kernel()
    given.raw_outputscale.requires_grad_(False)
    found = process(kernel=given).fit(seen(25))
    assert (found.mean, found.noise) == (0.5, 0.1)
    assert found.kernel.outputscale.item() == pytest.approx(2.0)
    assert not torch.allclose(
        found.kernel.base_kernel.lengthscale, given.base_kernel.lengthscale, rtol=0.01
    )
    given.base_kernel.raw_lengthscale.requires_grad_(False)
    still = process(kernel=given).fit(seen(25))
    assert torch.equal(still.kernel.base_kernel.lengthscale, given.base_kernel.lengthscale)


def test_any_kernel_will_do():
    context = seen(25)
    periodic = ScaleKernel(MaternKernel(active_dims=0) * PeriodicKernel(active_dims=1))
    found = GaussianProcess(periodic).fit(context)
    assert found.predict(context, GRID).shape == (2, 7)
    assert found.log_likelihood(context) > -10


def test_fitting_twice_is_fitting_once():
    context, found = seen(25), GaussianProcess()
    once = found.fit(context).predict(context, GRID)
    found.fit(seen(20, seed=1))
    with torch.no_grad():
        found.fit(context)
    assert torch.equal(found.predict(context, GRID).mean, once.mean)


def test_functions_together_are_each_by_itself():
    context = seen(3, 12)
    together = process().predict(context, GRID)
    assert together.shape == (3, 2, 7)
    likelihood = process().log_likelihood(context)
    for i in range(3):
        one = tuple(a[i] for a in context)
        field = process().predict(one, GRID)
        torch.testing.assert_close(together.mean[i], field.mean)
        torch.testing.assert_close(together.covariance()[i], field.covariance())
        torch.testing.assert_close(likelihood[i], process().log_likelihood(one))


def test_ragged_contexts_are_each_by_itself():
    contexts = [seen(n, seed=n) for n in (4, 9, 1)]
    together = process().predict(contexts, GRID)
    likelihood = process().log_likelihood(contexts)
    for i, context in enumerate(contexts):
        field = process().predict(context, GRID)
        torch.testing.assert_close(together.mean[i], field.mean)
        torch.testing.assert_close(together.covariance()[i], field.covariance())
        torch.testing.assert_close(likelihood[i], process().log_likelihood(context))


def test_two_axes_of_space():
    rng = np.random.default_rng(0)
    context = tuple(rng.uniform(size=(4, 9)))
    grid = [0.1, 0.2, 0.3], [0.0, 1.0], [0.0, 0.3, 0.6, 0.9]
    volume = process(kernel=kernel((0.4, 0.3, 0.2)), inputs=3)
    field = volume.predict(context, grid)
    assert field.shape == (3, 2, 4)
    assert field.event_dims == 2
    slab = volume.predict(context, (grid[0], [1.0], grid[2]))
    torch.testing.assert_close(field.mean[:, 1], slab.mean[:, 0])
    torch.testing.assert_close(field.covariance()[:, 1, :, 1], slab.covariance()[:, 0, :, 0])
    law = pc.integral((np.array(grid[1]), np.array(grid[2])), 0.3)
    assert law.residual(pc.condition(field, law)).abs().max() < 1e-12


def test_a_process_without_parameters_says_what_to_do():
    with pytest.raises(
        ValueError, match=r"has no `kernel`, `mean`, `noise` yet. Call `fit\(context\)` first"
    ):
        GaussianProcess().predict(seen(5), GRID)
    with pytest.raises(ValueError, match="has no `noise` yet"):
        process(noise=None).log_likelihood(seen(5))


def test_coinciding_observations_without_noise_are_refused():
    twice = tuple(np.append(a, a[:1]) for a in seen(5))
    for ask in (process(noise=0.0).log_likelihood, process(noise=0.0).fit):
        with pytest.raises(
            pc.DegenerateError, match=r"singular in float64.*`noise` 0. Give a larger `noise`"
        ):
            ask(twice)
    assert process().log_likelihood(twice).isfinite()


def test_bad_input_is_refused():
    t, x, u = seen(5)
    with pytest.raises(ValueError, match="`kernel` must be a GPyTorch kernel, got str"):
        GaussianProcess("matern")
    with pytest.raises(ValueError, match="`inputs` must be at least 2"):
        GaussianProcess(inputs=1)
    with pytest.raises(ValueError, match=r"`noise` must be >= 0; .* It is a standard deviation"):
        GaussianProcess(noise=-0.1)
    with pytest.raises(ValueError, match="`mean` must be finite"):
        GaussianProcess(mean=math.nan)
    with pytest.raises(ValueError, match=r"must hold values that differ; each of its 5 is 0.3"):
        GaussianProcess().fit((t, x, 0 * u + 0.3))
    for ask in (GaussianProcess().fit, lambda context: process().predict(context, GRID)):
        with pytest.raises(ValueError, match=r"2 coordinates and the values, 3 arrays.*got 2"):
            ask((t, u))
        with pytest.raises(ValueError, match=r"arrays of one shape.*at least one point"):
            ask((t, x, u[:3]))
        with pytest.raises(ValueError, match="at least one point"):
            ask((t[:0], x[:0], u[:0]))
        with pytest.raises(ValueError, match=r"`context\[2\]` must be finite"):
            ask((t, x, u * math.nan))
        with pytest.raises(ValueError, match=r"a list must hold one tuple \(t, x, u\) for each"):
            ask([t, x, u])
    with pytest.raises(ValueError, match="one axis for each of the 2 coordinates, got 1"):
        process().predict((t, x, u), GRID[:1])
    with pytest.raises(ValueError, match=r"`grid\[0\]` must be one axis, got shape \(\)"):
        process().predict((t, x, u), (0.1, GRID[1]))


def test_fit_searches_also_in_inference_mode():
    t, x = torch.rand(2, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = GaussianProcess().fit((t, x, (x - t).sin()))
    with torch.inference_mode():
        found = GaussianProcess().fit((t + 0, x + 0, (x - t).sin()))
    assert found.noise == expected.noise
    assert found.mean == expected.mean


def test_views_that_run_backwards_are_contexts():
    t, x, u = np.random.default_rng(0).random((3, 8))
    process = GaussianProcess(gpytorch.kernels.RBFKernel(), mean=0.0, noise=0.1)
    grid = [0.1, 0.2], [0.0, 0.5, 1.0]
    there = process.predict((t[::-1], x[::-1], u[::-1]), grid)
    torch.testing.assert_close(process.predict((t, x, u), grid).mean, there.mean)
