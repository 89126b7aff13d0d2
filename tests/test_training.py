import json
import signal
from functools import partial

import numpy as np
import pytest
import torch
from runs import SMALL, run, weights
from seeds import generator, made
from torch.nn.attention import SDPBackend, sdpa_kernel

from probconserv import ImplausibleWarning
from probconserv.data import draw
from probconserv.models import AttentiveNeuralProcess, load, open_weights
from probconserv.models._network import Attention
from probconserv.problems import Stefan, find
from probconserv.training import RECIPES, _points, loss, share_from_context, train, validation_ll
from probconserv.training._points import ANPTask


def test_the_loss_is_the_negative_evidence_lower_bound():
    network = made(AttentiveNeuralProcess, **SMALL)
    functions = draw(Stefan, "train", n=3, context=4, target=5).to(torch.float32)
    noise = torch.randn(3, 6, generator=generator())
    value = loss(network, functions, noise)
    known, asked = (torch.stack(p[:2], -1) for p in (functions.context, functions.target))
    prior = network.latent(known, functions.context.u)
    every = torch.cat([known, asked], 1), torch.cat([functions.context.u, functions.target.u], 1)
    posterior = network.latent(*every)
    q, p = (
        torch.distributions.Normal(d.mean, (d.log_variance / 2).exp()) for d in (posterior, prior)
    )
    z = posterior.sample(noise)
    mean, std = network.decode(network.common(known, functions.context.u, asked), z)
    fit = torch.distributions.Normal(mean, std).log_prob(functions.target.u).sum(-1)
    expected = (torch.distributions.kl_divergence(q, p).sum(-1) - fit).mean()
    torch.testing.assert_close(value, expected)


def test_log_densities_can_be_weighed_by_their_own_variance():
    """Weights of mean 1 over the batch, through which no gradient goes."""
    network = small_network()
    functions = draw(Stefan, "train", n=3, context=4, target=5).to(torch.float32)
    noise = torch.zeros(3, 6)
    (t, x, u), asked = functions.context, functions.target
    known, places = torch.stack([t, x], -1), torch.stack([asked.t, asked.x], -1)
    both = torch.cat([known, places], 1), torch.cat([u, asked.u], 1)
    mean, std = network.decode(network.common(known, u, places), network.latent(*both).mean)
    density = torch.distributions.Normal(mean, std).log_prob(asked.u)
    weights = (std / std.mean()).detach()
    plain, weighed = (loss(network, functions, noise, power=power) for power in (0.0, 0.5))
    expected = ((1 - weights) * density).sum(-1).mean()
    torch.testing.assert_close(weighed - plain, expected, rtol=1e-4, atol=1e-5)
    gradients = [
        torch.autograd.grad(value, network.decoder.parameters(), retain_graph=True)
        for value in (weighed - plain, expected)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def small_network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AttentiveNeuralProcess(**SMALL)


def test_weights_of_a_team_are_those_of_the_whole_batch():
    network, functions = load("stefan").double(), draw(Stefan, "train", n=4, context=4, target=50)
    noise = torch.zeros(4, network.sizes["latent"], dtype=torch.float64)
    kept = []

    def mean_of(weights):  # of both halves, once they are known
        kept.append(weights.mean())
        return sum(kept[:2]) / 2

    with torch.no_grad():
        whole = loss(network, functions, noise, power=0.5)
        for _ in range(2):
            halves = [
                loss(network, functions[i::2], noise[i::2], power=0.5, mean_of=mean_of)
                for i in range(2)
            ]
    torch.testing.assert_close(sum(halves) / 2, whole)


def test_reading_does_not_depend_on_whether_functions_are_sorted():
    """Beside its neighbour a sorted function seems not to be read: 0.95, and less of more."""
    functions = draw(Stefan, "validation", 60, (10, 10), 50).to(torch.float32)
    order = functions.parameters.flatten().argsort()
    assert share_from_context(load("stefan"), functions[order], 4) > 0.98


def test_a_network_that_does_not_read_is_said_at_the_end_of_training(tmp_path):
    with pytest.warns(ImplausibleWarning, match="nearly the same whatever it is shown"):
        network = run(tmp_path, steps=2)
    assert network.card["reading"] < 0.1
    with pytest.warns(ImplausibleWarning, match="nearly the same"):  # and again from its folder
        run(tmp_path, steps=2)


def test_the_shipped_network_of_stefan_reads_and_one_that_is_blind_does_not():
    functions = draw(Stefan, "validation", 20, (10, 10), 50).to(torch.float32)
    network = load("stefan")
    assert share_from_context(network, functions, 4) > 0.8
    blind = functions.context.u.mean()
    network.draws = partial(_blinded, network.draws, blind)
    network.common = partial(_blinded, network.common, blind)
    assert abs(share_from_context(network, functions, 4)) < 0.1
    assert np.isnan(share_from_context(network, functions[:1], 4))


def _blinded(method, u, known, _, *rest):
    return method(torch.zeros_like(known), torch.full(known.shape[:-1], float(u)), *rest)


def second_derivatives(network, functions, i, z):
    """u, u_t, u_x and u_xx of one function, by differentiating twice backwards."""
    (t, x, u), asked = functions.context, functions.target
    known = torch.stack([t[i : i + 1], x[i : i + 1]], -1)
    places = torch.stack([asked.t[i : i + 1], asked.x[i : i + 1]], -1).requires_grad_()
    with sdpa_kernel(SDPBackend.MATH):
        mean, _ = network.decode(network.common(known, u[i : i + 1], places), z[i : i + 1])
        (first,) = torch.autograd.grad(mean.sum(), places, create_graph=True)
        (second,) = torch.autograd.grad(first[..., 1].sum(), places)
    return mean[0], first[0, :, 0], first[0, :, 1], second[0, :, 1]


@pytest.mark.parametrize("name", ["diffusion", "pme", "stefan", "advection", "burgers"])
def test_softc_adds_the_squared_residual_of_each_function_with_its_own_parameter(name):
    """Every function against every other's speed, as once published, would show here."""
    network = made(AttentiveNeuralProcess, **SMALL).double()
    functions = draw(find(name), "train", n=3, context=4, target=5)
    noise = torch.randn(3, 6, generator=generator()).double()
    with torch.no_grad():
        added = loss(network, functions, noise, penalty=2.0) - loss(network, functions, noise)
    every = [torch.cat(pair, 1) for pair in zip(functions.context, functions.target, strict=True)]
    z = network.latent(torch.stack(every[:2], -1), every[2]).sample(noise)
    squares = []
    for i in range(3):
        problem = find(name)(float(getattr(functions.problem, find(name).parameter)[i]))
        residual = problem.residual(*second_derivatives(network, functions, i, z))
        squares.append(float((residual.detach() ** 2).mean()))
    assert float(added) == pytest.approx(2.0 * sum(squares) / 3, rel=1e-9)
    assert max(squares) > 1.001 * min(squares)  # the functions do differ


def test_softc_trains_and_its_card_says_so(tmp_path):
    network = run(tmp_path, model="softc", penalty=0.5, steps=4)
    again = open_weights(tmp_path / "weights.safetensors")
    assert (again.card["model"], again.card["settings"]["penalty"]) == ("softc", 0.5)
    assert torch.equal(weights(again), weights(network))
    assert not torch.equal(weights(network), weights(run(tmp_path / "anp", steps=4)))


def test_training_learns_and_writes_a_card(tmp_path):
    lines = []
    network = run(tmp_path, steps=40, batch=8, learning_rate=3e-3, report=lines.append)
    values = [line["validation_ll"] for line in lines if "validation_ll" in line]
    assert values[-1] > values[0] + 0.5
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["problem"] == "stefan"
    assert card["steps"] == 40
    assert card["validation_ll"] == pytest.approx(values[-1], abs=1e-3)
    again = open_weights(tmp_path / "weights.safetensors")
    assert torch.equal(weights(again), weights(network))
    assert again.card == card
    assert not list(tmp_path.glob(".*.part"))


def test_the_same_seed_is_the_same_run_and_leaves_the_callers_randomness_alone(tmp_path):
    before = torch.get_rng_state()
    runs = [run(tmp_path / str(i), seed=s, steps=3) for i, s in enumerate((1, 1, 2))]
    assert torch.equal(weights(runs[0]), weights(runs[1]))
    assert not torch.equal(weights(runs[0]), weights(runs[2]))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loss_that_is_no_number_stops_the_run_and_says_where(tmp_path):
    with pytest.raises(
        ValueError, match=r"stopped being a number at step \d+.*lower learning_rate"
    ):
        run(tmp_path, learning_rate=1e9, schedule="constant", clip=None, steps=60)


def test_weights_that_are_no_numbers_are_not_saved(tmp_path):
    with pytest.raises(ValueError, match=r"^The weights stopped being a number at step 1. Try a"):
        run(tmp_path, learning_rate=1e38, schedule="constant", clip=None, steps=1)
    assert not list(tmp_path.glob("*.safetensors"))


def test_gradients_are_clipped_and_those_that_overflow_count_as_nothing(tmp_path, monkeypatch):
    norms = []
    adam = torch.optim.Adam.step

    def step(self, *arguments):
        gradients = [p.grad.flatten() for g in self.param_groups for p in g["params"]]
        norms.append(float(torch.cat(gradients).norm()))
        return adam(self, *arguments)

    def overflows(self, at):
        value = loss_of(self, at)
        return value * (1e36 if int(at) == 2 else 1)

    loss_of = ANPTask.loss
    monkeypatch.setattr(torch.optim.Adam, "step", step)
    monkeypatch.setattr(ANPTask, "loss", overflows)
    network = run(tmp_path, clip=0.5, steps=4)
    assert norms == pytest.approx([0.5, 0.5, 0.0, 0.5], rel=1e-4)
    assert network.card["skipped_steps"] == 1


def test_what_is_random_in_a_step_follows_the_seed_and_the_step(tmp_path, monkeypatch):
    """The functions, the noise of z and the masks: none repeats, none ignores the seed."""
    seen = []

    def noted(network, functions, noise, penalty, power, mean_of):
        mask = torch.nn.functional.dropout(torch.ones(50), 0.5)
        seen.append((functions.context.t.sum().item(), noise.sum().item(), tuple(mask.tolist())))
        return loss(network, functions, noise, penalty, power, mean_of)

    monkeypatch.setattr(_points, "loss", noted)
    for seed in (0, 1):
        run(tmp_path / str(seed), recipe="paper", functions=40, steps=3, seed=seed)
    for draws in zip(*seen, strict=True):
        assert len(set(draws)) == 6


def test_the_paper_recipe_learns_from_its_training_set_with_dropout(tmp_path, monkeypatch):
    sets = []
    monkeypatch.setattr(_points, "draw", lambda *a: sets.append(a) or draw(*a))
    network = run(tmp_path, recipe="paper", functions=8, steps=1, seed=3)
    assert sets[0] == (Stefan, "validation", 20, (2, 3), 100)
    assert sets[1] == (Stefan, "train", 8, (2, 3), 5, 3)
    assert {m.dropout for m in network.modules() if isinstance(m, Attention)} == {0.1}


def test_validation_has_dropout_off_and_leaves_the_mode():
    network = made(AttentiveNeuralProcess, **SMALL, dropout=0.5).train()
    functions = draw(Stefan, "validation", 4, 6, 7).to(torch.float32)
    values = {validation_ll(network, functions) for _ in range(3)}
    assert len(values) == 1
    assert network.training


def test_the_callers_torch_is_left_as_it_was(tmp_path):
    torch.set_float32_matmul_precision("medium")
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            network = run(tmp_path, steps=1)
        assert torch.get_float32_matmul_precision() == "medium"
        assert weights(network).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_numbers_of_numpy_are_numbers(tmp_path):
    sizes = {name: np.int64(size) for name, size in SMALL.items()}
    card = run(tmp_path, steps=np.int64(2), seed=np.int64(3), sizes=sizes).card
    assert (card["steps"], card["seed"], card["sizes"]["hidden"]) == (2, 3, 8)


def test_one_cycle_rises_and_falls_to_zero():
    recipe = RECIPES["modern"]
    steps = torch.tensor([0, 1000, 2000, 11_000, 20_000])
    rates = (recipe.rate(steps) / recipe.learning_rate).tolist()
    assert rates == pytest.approx([0, 0.5, 1, 0.5, 0], abs=1e-6)
    assert RECIPES["paper"].rate(steps).tolist() == pytest.approx([1e-4] * 5)


def test_bad_plans_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`recipe` must be one of paper, modern"):
        run(tmp_path, recipe="best")
    for options, message in (
        ({"model": "gp"}, r"`model` must be one of anp, softc"),
        ({"keep": "first"}, r"`keep` must be one of last, best"),
        ({"schedule": "linear"}, r"`schedule` must be one of constant, one cycle"),
        ({"momentum": 0.9}, r"`changes` must be one of learning_rate, .*got 'momentum'"),
        ({"model": "softc", "penalty": 0.0}, "must be positive for softc and 0 otherwise, got 0.0"),
        ({"penalty": 1.0}, "must be positive for softc and 0 otherwise, got 1.0 for anp"),
        ({"penalty": -1.0}, "must be positive for softc and 0 otherwise, got -1.0"),
        ({"learning_rate": -1e-3}, "`learning_rate` must be positive, got -0.001"),
        ({"learning_rate": "fast"}, "`learning_rate` must be a number, got 'fast'"),
        ({"noise": "some"}, "`noise` must be a number, got 'some'"),
        ({"validation": -3}, "`validation` must be a positive whole number, got -3"),
        ({"clip": 0.0}, "`clip` must be positive, or None for no limit, got 0.0"),
        ({"dropout": 1.0}, "`dropout` must be at least 0 and less than 1, got 1.0"),
        ({"beta": 1.5}, "`beta` must be from 0 to 1, got 1.5"),
        ({"plain": 0.5}, "`plain` must be at least 0 and less than 0.5, got 0.5"),
        ({"model": "emulator", "beta": 0.5}, "`beta` is for the models anp and softc; got emul"),
        ({"start": 3}, "`start` must be the name of a file, got int"),
        ({"functions": 0}, "`functions` must be a positive whole number, got 0"),
        ({"functions": 3}, "`batch` must be at most the 3 `functions` to learn from, got 4"),
        ({"sizes": {"width": 3}}, "`sizes` must be one of hidden, latent, heads; got 'width'"),
        ({"sizes": {"hidden": 0}}, "`hidden` must be a positive whole number, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            run(tmp_path, **options)
    for name in ("steps", "batch"):
        with pytest.raises(ValueError, match=f"`{name}` must be a positive whole number, got 0"):
            run(tmp_path, **{name: 0})
    with pytest.raises(ValueError, match="`hidden` must be a multiple of `heads`, got 7 and 2"):
        run(tmp_path, sizes=SMALL | {"hidden": 7})
    with pytest.raises(ValueError, match=r"`device` must be one of auto, cpu, cuda"):
        run(tmp_path, device="nonsense")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="torch finds no GPU here"):
            run(tmp_path, device="cuda")
    with pytest.raises(ValueError, match=r"`data` must be the class .* or its name, .* got Stef"):
        train(Stefan(0.6), tmp_path)
    for out in (None, 3):
        with pytest.raises(ValueError, match="`out` must be the name of a f"):
            train(Stefan, out)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        run(tmp_path / "file")
    (tmp_path / "checkpoint.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="is not a file that this library wrote"):
        run(tmp_path)
