import math
from functools import partial

import pytest
import torch
from runs import CHANGES, weights
from seeds import generator, made

import probconserv as pc
from probconserv.data import draw
from probconserv.models import Emulator, open_weights
from probconserv.models import emulator as inference
from probconserv.problems import Advection, Stefan
from probconserv.training import train, validation_ll
from probconserv.training._points import emulator_loss

SMALL = {"hidden": 8, "layers": 2, "octaves": 3}


@pytest.fixture
def network():
    emulator = made(Emulator, **SMALL)
    emulator.set_ranges((0.0, 0.1), (0.0, 1.0), (0.55, 0.7))
    return emulator.eval()


def inferred(predict, u, low, high, samples=400, seen=None):
    seen = torch.ones_like(u) if seen is None else seen
    ends = torch.tensor(low), torch.tensor(high)
    return inference._draws(predict, u, seen, *ends, samples, generator())[0]


def test_draws_have_the_moments_of_a_posterior_that_is_known(rng):
    """A line with normal noise: the posterior of intercept and slope is that of least squares."""
    place = torch.linspace(-1, 1, 8)
    design = torch.stack([torch.ones(8), place], -1)
    truth = torch.tensor([[0.4, -1.2], [-0.7, 0.9], [0.0, 0.1]])
    u = truth @ design.T + 0.02 * torch.randn(3, 8, generator=rng)

    def predict(z):
        return z @ design.T, torch.full((*z.shape[:2], 8), 0.05)

    z = inferred(predict, u, [-2.0, -2.0], [2.0, 2.0], samples=2000)
    precision = inference.INDEPENDENT * design.T @ design / 0.05**2
    expected = torch.linalg.lstsq(design, u.T).solution.T
    torch.testing.assert_close(z.mean(0), expected, rtol=0, atol=0.01)
    covariance = torch.cov(z[:, 0].T)
    size = precision.inverse().diag().prod().sqrt()
    rounding = {"rtol": 0.15, "atol": 4 * float(size) / 2000**0.5}  # four standard errors
    torch.testing.assert_close(covariance, precision.inverse(), **rounding)


def test_a_narrow_posterior_is_found_between_particles_and_beyond_the_range():
    def predict(z):
        return z.expand(-1, -1, 5).sin(), torch.full((*z.shape[:2], 5), 1e-4)

    truth = torch.tensor([[0.31234], [0.98765], [-0.03]])  # the last is outside
    z = inferred(predict, truth.sin().expand(-1, 5), [0.0], [1.0])
    torch.testing.assert_close(z.mean(0), truth, rtol=0, atol=2e-4)
    assert (z.std(0) < 4e-4).all()


def test_steps_in_the_likelihood_leave_an_interval():
    """Only whether a front has passed each place is seen."""
    place = torch.tensor([0.2, 0.4, 0.5, 0.7])

    def predict(z):
        return (place < z).float(), torch.full((*z.shape[:2], 4), 1e-3)

    z = inferred(predict, torch.tensor([[1.0, 1.0, 0.0, 0.0]]), [0.0], [1.0])
    assert ((z > 0.4) & (z <= 0.5)).all()
    assert z.std() == pytest.approx(0.1 / math.sqrt(12), rel=0.2)


@pytest.mark.parametrize("wrong", ["all a little", "one by much"])
def test_observations_that_nothing_explains_are_taken_to_be_noisy(wrong, rng):
    """Not as news of a parameter that is far away, known to a millionth."""
    place = torch.linspace(0, 1, 50)

    def predict(z):
        return (z - place).clamp(min=0), torch.full((*z.shape[:2], 50), 1e-4)

    u = (0.6 - place).clamp(min=0)[None]
    off = 0.01 * torch.randn(1, 50, generator=rng) if wrong == "all a little" else 0 * u
    if wrong == "one by much":
        off[0, 3] = 2.0
    z = inferred(predict, u + off, [0.5], [0.7])
    assert (z.mean() - 0.6).abs() < 3 * z.std()
    assert 1e-4 < z.std() < 0.1


def test_points_that_are_missing_do_not_count():
    def predict(z):
        return z.expand(-1, -1, 3), torch.full((*z.shape[:2], 3), 0.01)

    u, seen = torch.tensor([[0.5, 0.5, 9.0]]), torch.tensor([[1.0, 1.0, 0.0]])
    assert inferred(predict, u, [0.0], [1.0], seen=seen).mean() == pytest.approx(0.5, abs=0.01)


def test_resampling_keeps_each_as_often_as_its_weight_says():
    z = torch.arange(4.0)[:, None, None].expand(-1, 2, 1)
    shares = torch.tensor([[0.5, 0.0], [0.0, 0.1], [0.25, 0.1], [0.25, 0.8]])
    got = inference._resampled(z, shares, 40, generator())[..., 0]
    counts = torch.stack([(got == i).sum(0) for i in range(4)])
    assert ((counts - 40 * shares).abs() <= 1).all()


def test_every_component_is_one_function_of_its_parameter(network):
    """The same parameter at all places, and the whole grid equal to its parts."""
    seen = tuple(draw(Stefan, "test", 3, context=9).context)
    t, x = torch.tensor([0.02, 0.07]), torch.linspace(0, 1, 5)
    whole = network.predict(seen, (t, x), 4, generator())
    first = network.predict(seen, (t[:1], x[2:]), 4, generator())
    assert whole.shape == (4, 3, 2, 5)
    torch.testing.assert_close(whole.mean[..., :1, 2:], first.mean)
    assert isinstance(pc.condition(pc.Mixture(whole), pc.integral(x.double(), 0.1)), pc.Mixture)


def test_ragged_contexts_are_each_by_itself(network):
    functions = draw(Stefan, "test", 2, context=9).context
    one, other = (tuple(values[i] for values in functions) for i in range(2))
    short = tuple(values[:5] for values in other)
    grid = ([0.05], [0.1, 0.5])
    both = network.predict([one, short], grid, 50, generator())
    alone = network.predict(short, grid, 50, generator(1))
    spread = alone.mean.std(0) + 1e-3
    assert ((both.mean.mean(0)[1] - alone.mean.mean(0)).abs() < 3 * spread).all()


def test_places_and_parameters_are_scaled_by_their_ranges(network):
    plain = made(Emulator, **SMALL)  # ranges -1..1
    parameters = {k: v for k, v in network.state_dict().items() if k not in ("low", "high")}
    plain.load_state_dict({**plain.state_dict(), **parameters})
    asked = torch.tensor([[[0.05, 0.5], [0.1, 0.0]]])
    ours = network.decode(network.common(asked, asked, asked), torch.tensor([[0.7]]))
    scaled = torch.tensor([[[0.0, 0.0], [1.0, -1.0]]])
    theirs = plain.decode(plain.common(scaled, scaled, scaled), torch.tensor([[1.0]]))
    torch.testing.assert_close(ours, theirs)


def test_the_loss_is_the_log_density_given_each_functions_parameter_times_std(network):
    functions = draw(Stefan, "train", 3, context=4, target=5).to(torch.float32)
    expected = density = 0.0
    for i, u_star in enumerate(functions.problem.u_star):
        t, x, u = (values[i : i + 1] for values in functions.target)
        asked = torch.stack([t, x], -1)
        z = u_star.float().reshape(1, 1)
        mean, std = network.decode(network.common(asked, u, asked), z)
        each = torch.distributions.Normal(mean, std).log_prob(u)
        expected -= (each * std).sum() / 3
        density += each.sum().item() / 3
    torch.testing.assert_close(emulator_loss(network, functions), expected)
    assert validation_ll(network, functions) == pytest.approx(density / 5)


def test_the_weight_of_the_loss_is_no_way_to_lower_it(network):
    """Its gradient in std is that of the density, times std, and has the same zero."""
    functions = draw(Stefan, "train", 3, context=4, target=5).to(torch.float32)
    at, u = torch.stack([functions.target.t, functions.target.x], -1), functions.target.u
    mean, std = network.decode(network.common(at, u, at), functions.problem.u_star[:, None])
    std = std.detach().requires_grad_()
    network.decode = lambda common, z: (mean.detach(), std)
    emulator_loss(network, functions).backward()
    expected = (1 - ((u - mean) / std) ** 2) / 3
    torch.testing.assert_close(std.grad, expected.detach())


def test_an_emulator_trains_resumes_and_opens_as_itself(tmp_path):
    changes = {**CHANGES, "model": "emulator", "device": "cpu", "sizes": SMALL}
    whole = train("advection", tmp_path / "whole", **changes)
    assert whole.card["model"] == "emulator"
    assert whole.card["settings"]["near"] == 0.5
    opened = open_weights(tmp_path / "whole")
    assert isinstance(opened, Emulator)
    assert torch.equal(weights(opened), weights(whole))
    low, high = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([1.0, 1.0, 5.0])
    assert torch.equal(opened.low, low)
    assert torch.equal(opened.high, high)
    again = train(Advection, tmp_path / "whole", **changes)
    assert torch.equal(weights(again), weights(whole))


def test_what_an_emulator_cannot_have_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`recipe` must be modern for the model emulator"):
        train("pme", tmp_path, model="emulator", recipe="paper")
    with pytest.raises(ValueError, match="`near` is for fresh functions; a fixed set has its"):
        train("pme", tmp_path, model="emulator", functions=10)
    with pytest.raises(ValueError, match="one of hidden, layers, octaves; got 'latent'"):
        train("pme", tmp_path, model="emulator", sizes={"latent": 3})
    with pytest.raises(ValueError, match="`penalty` must be positive for softc and 0 otherwise"):
        train("pme", tmp_path, model="emulator", penalty=1.0)
    with pytest.raises(ValueError, match="`parameters` must be a positive whole number, got 0"):
        Emulator(parameters=0)
    for ranges in ([(0, 1)], 3 * [(1, 1)], [(0, 1), (0, 1), (math.nan, 1)]):
        with pytest.raises(ValueError, match=r"`ranges` must be 3 pairs \(low, high\)"):
            made(Emulator, **SMALL).set_ranges(*ranges)


def observed(u_star):
    return tuple(values[0] for values in draw(Stefan(u_star), "test", 1, (10, 10)).context)


@pytest.mark.parametrize("u_star", [0.5, 0.53, 0.75])
def test_a_parameter_beyond_those_of_training_is_said_whatever_is_drawn(u_star):
    emulator, seen = pc.models.load("stefan", model="emulator"), observed(u_star)
    for seed in range(4):
        with pytest.warns(pc.ImplausibleWarning, match="parameters from 0.55 to 0.7, and what fit"):
            emulator.predict(seen, ([0.05], [0.5]), 5, generator(seed))


@torch.no_grad()
@pytest.mark.parametrize("u_star", [0.53, 0.6, 0.72])
def test_the_fit_has_the_mean_of_the_posterior_also_beyond_the_range(u_star):
    """By quadrature over the one parameter; no draw has a part in the fit."""
    emulator, (t, x, u) = pc.models.load("stefan", model="emulator"), observed(u_star)
    known, u = torch.stack([t, x], -1)[None].float(), u[None].float()
    common, (low, high) = emulator.common(known, u, known), (emulator.low[2:], emulator.high[2:])
    z = torch.linspace(0.5, 0.75, 501)[:, None, None]
    each = [torch.distributions.Normal(*emulator.decode(common, part)) for part in z.split(50)]
    fit = torch.cat([normal.log_prob(u).sum(-1) for normal in each])
    log = inference.INDEPENDENT * fit + inference._log_prior(z, low, high)
    shares = log.double().softmax(0)[..., None]
    mean = (shares * z).sum(0)
    std = (shares * (z - mean) ** 2).sum(0).sqrt()
    seen = torch.ones_like(u)
    for seed in range(2):
        predict = partial(emulator.decode, common)
        _, found = inference._draws(predict, u, seen, low, high, 1, generator(seed))
        assert ((found - mean).abs() < 0.2 * std).all()


def test_numbers_too_large_for_the_network_are_refused(network):
    one = torch.rand(4, dtype=torch.float64, generator=generator())
    with pytest.raises(ValueError, match=r"`context\[2\]` must be finite"):
        network.predict((one, one, 1e300 * one), ([0.05], [0.5]), 3)
