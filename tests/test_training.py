import csv
import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from killed import Killed, killed_after
from torch.nn.attention import SDPBackend, sdpa_kernel

from probconserv.data import draw
from probconserv.models import AttentiveNeuralProcess, open_weights
from probconserv.models._attention import Attention
from probconserv.models._checkpoints import read
from probconserv.problems import Advection, Stefan, find
from probconserv.training import RECIPES, _run, loss, train, validation_ll
from probconserv.training._run import Run
from probconserv.training._team import Team

SMALL = {"hidden": 8, "latent": 6, "heads": 2}
CHANGES = {"batch": 4, "context": (2, 3), "target": 5, "steps": 20, "validation": 20}


def run(out, **options):
    options = {"sizes": SMALL, "device": "cpu", **CHANGES, **options}
    return train(Stefan, out, **options)


def weights(network):
    return torch.cat([p.detach().flatten() for p in network.parameters()])


def test_the_loss_is_the_negative_evidence_lower_bound():
    torch.manual_seed(0)
    network = AttentiveNeuralProcess(**SMALL)
    functions = draw(Stefan, "train", n=3, context=4, target=5).to(torch.float32)
    noise = torch.randn(3, 6)
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
    torch.manual_seed(0)
    network = AttentiveNeuralProcess(**SMALL).double()
    functions = draw(find(name), "train", n=3, context=4, target=5)
    noise = torch.randn(3, 6).double()
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


def test_the_best_weights_are_kept_where_asked_also_over_a_kill(tmp_path):
    plan = {"schedule": "constant", "learning_rate": 0.01, "keep": "best", "steps": 12}
    lines = []
    whole = run(tmp_path / "whole", report=lines.append, **plan)
    values = [line["validation_ll"] for line in lines]
    best = values.index(max(values))
    assert 2 < best < 10
    assert whole.card["validation_ll"] == pytest.approx(max(values), abs=1e-4)
    last = run(tmp_path / "last", **plan | {"keep": "last"})
    assert last.card["validation_ll"] == pytest.approx(values[-1], abs=1e-4)
    for steps in (best, best + 2):  # a run killed after the best must remember it
        with pytest.raises(Killed):
            run(tmp_path / str(steps), report=killed_after(steps), **plan)
        assert torch.equal(weights(run(tmp_path / str(steps), **plan)), weights(whole))


def test_training_can_start_from_other_weights(tmp_path):
    first = run(tmp_path / "first")
    path = tmp_path / "first" / "weights.safetensors"
    tuned = run(tmp_path / "tuned", model="softc", start=path, steps=1, learning_rate=1e-9)
    torch.testing.assert_close(weights(tuned), weights(first), rtol=0, atol=1e-6)
    assert tuned.card["start"].startswith("stefan-anp-modern-")
    again = run(tmp_path / "again", seed=1)
    other = tmp_path / "again" / "weights.safetensors"
    plan = {"model": "softc", "steps": 1, "learning_rate": 1e-9}
    for given in ({}, {"start": other}):  # another start is another plan
        with pytest.raises(ValueError, match=r"`start` is .* but the checkpoint"):
            run(tmp_path / "tuned", **plan | given)
    assert again.card["seed"] == 1
    with pytest.raises(ValueError, match=r"`hidden` is 12 but .*weights.safetensors has 8"):
        run(tmp_path / "other", start=path, sizes=SMALL | {"hidden": 12})
    with pytest.raises(ValueError, match="is not a file that this library wrote"):
        run(tmp_path / "none", start=tmp_path / "nothing.safetensors")


def test_two_processes_take_the_path_of_one(tmp_path):
    options = ["--hidden", "8", "--batch", "4", "--steps", "5", "--device", "cpu", "--out"]
    command = ["-m", "probconserv", "train", "stefan", *options]
    together = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    alone = subprocess.run([sys.executable, *command, tmp_path / "one"], capture_output=True)
    team = subprocess.run(
        [sys.executable, *together, *command, tmp_path / "two"], capture_output=True, text=True
    )
    assert (alone.returncode, team.returncode) == (0, 0), team.stderr
    one, two = (open_weights(tmp_path / name / "weights.safetensors") for name in ("one", "two"))
    torch.testing.assert_close(weights(two), weights(one), rtol=0, atol=1e-4)
    half = run(
        tmp_path / "half",
        sizes={"hidden": 8, "latent": 8},
        batch=2,
        steps=5,
        context=(10, 10),
        target=100,
    )
    assert (weights(half) - weights(one)).abs().max() > 1e-3  # what one of them alone would do
    assert (one.card["processes"], two.card["processes"]) == (1, 2)
    assert team.stdout.count("weights, card and metrics") == 1


@pytest.mark.parametrize("processes", [1, 2])
def test_a_stopped_command_says_so_and_leaves_a_checkpoint(processes, tmp_path):
    options = f"--hidden 8 --batch 4 --steps 100000 --device cpu --out {tmp_path}".split()
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *(start if processes == 2 else []), "-m", "probconserv", "train"]
    running = subprocess.Popen([*command, "stefan", *options], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "metrics.csv").exists():  # then the first step is near
        time.sleep(0.1)
    time.sleep(2)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode != 0
    assert "stopped; what was finished is kept" in errors
    state, _ = read(tmp_path / "checkpoint.safetensors")
    assert int(state["step"]) > 0


def test_a_batch_must_divide_among_the_processes():
    assert range(12)[Team(1, 3).share(12)] == range(1, 12, 3)
    with pytest.raises(ValueError, match="`batch` must be a multiple of the 3 processes, got 250"):
        Team(0, 3).share(250)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_what_the_csv_has(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with pytest.raises(Killed):
        run(tmp_path, report=killed_after(7))
    run(tmp_path)
    board = events.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    shown = [event.value for event in board.Scalars("loss")]
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert shown == pytest.approx([float(row["loss"]) for row in rows])
    assert [event.step for event in board.Scalars("validation_ll")] == list(range(1, 21))


def test_a_finished_run_shows_where_it_ended(tmp_path):
    lines = [[], []]
    for shown in lines:
        run(tmp_path, report=shown.append)
    assert [line["step"] for line in lines[1]] == [20]
    assert lines[1][0]["validation_ll"] == lines[0][-1]["validation_ll"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_killed_run_resumes_to_the_same_weights(recipe, tmp_path):
    options = {"recipe": recipe} | ({"functions": 12} if recipe == "paper" else {})
    whole = run(tmp_path / "whole", **options)
    with pytest.raises(Killed):
        run(tmp_path / "torn", report=killed_after(7), **options)
    resumed = run(tmp_path / "torn", **options)
    assert torch.equal(weights(resumed), weights(whole))
    logs = [(tmp_path / name / "metrics.csv").read_text() for name in ("whole", "torn")]
    losses = [[row["loss"] for row in csv.DictReader(log.splitlines())] for log in logs]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 20


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM], ids=lambda sign: sign.name)
def test_ctrl_c_leaves_a_checkpoint_that_takes_the_same_path(sign, tmp_path, monkeypatch):
    whole = run(tmp_path / "whole")
    advance = Run.advance

    def interrupted(self):
        if int(self.step) == 5:
            os.kill(os.getpid(), sign)  # in the middle of a step
        return advance(self)

    monkeypatch.setattr(Run, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "torn")
    monkeypatch.setattr(Run, "advance", advance)
    steps = []
    resumed = run(tmp_path / "torn", report=lambda line: steps.append(line["step"]))
    assert steps[:2] == [5, 7]  # where it was, and the next
    assert torch.equal(weights(resumed), weights(whole))


def test_two_trainings_do_not_share_a_folder(tmp_path):
    def second(line):
        with pytest.raises(ValueError, match=r"another process is writing into .* another folder"):
            run(tmp_path)

    run(tmp_path, steps=1, report=second)
    assert run(tmp_path, steps=1).card["steps"] == 1  # free again


def test_training_learns_and_writes_a_card(tmp_path):
    lines = []
    network = run(tmp_path, steps=200, batch=16, report=lines.append)
    values = [line["validation_ll"] for line in lines if "validation_ll" in line]
    assert values[-1] > values[0] + 0.5
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["problem"] == "stefan"
    assert card["steps"] == 200
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


def test_a_finished_run_is_left_as_it_is(tmp_path):
    run(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.*")}
    again = run(tmp_path)
    assert {path: path.read_bytes() for path in before} == before
    assert again.card["steps"] == 20
    assert not again.training


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

    loss_of = Run._loss_of
    monkeypatch.setattr(torch.optim.Adam, "step", step)
    monkeypatch.setattr(Run, "_loss_of", overflows)
    network = run(tmp_path, clip=0.5, steps=4)
    assert norms == pytest.approx([0.5, 0.5, 0.0, 0.5], rel=1e-4)
    assert network.card["skipped_steps"] == 1


def test_what_is_random_in_a_step_follows_the_seed_and_the_step(tmp_path, monkeypatch):
    """The functions, the noise of z and the masks: none repeats, none ignores the seed."""
    seen = []

    def noted(network, functions, noise, penalty):
        mask = torch.nn.functional.dropout(torch.ones(50), 0.5)
        seen.append((functions.context.t.sum().item(), noise.sum().item(), tuple(mask.tolist())))
        return loss(network, functions, noise, penalty)

    monkeypatch.setattr(_run, "loss", noted)
    for seed in (0, 1):
        run(tmp_path / str(seed), recipe="paper", functions=40, steps=3, seed=seed)
    for draws in zip(*seen, strict=True):
        assert len(set(draws)) == 6


def test_the_paper_recipe_learns_from_its_training_set_with_dropout(tmp_path, monkeypatch):
    networks = []
    monkeypatch.setattr(_run, "draw", lambda *a: sets.append(a) or draw(*a))
    sets = []
    networks.append(run(tmp_path, recipe="paper", functions=8, steps=1, seed=3))
    assert sets[0] == (Stefan, "train", 8, (2, 3), 5, 3)
    assert sets[1] == (Stefan, "validation", 20, (2, 3), 100)
    assert {m.dropout for m in networks[0].modules() if isinstance(m, Attention)} == {0.1}


def test_validation_has_dropout_off_and_leaves_the_mode():
    network = AttentiveNeuralProcess(**SMALL, dropout=0.5).train()
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


def test_another_plan_does_not_continue_a_checkpoint(tmp_path):
    run(tmp_path, steps=2)
    for name, options in {
        "seed": {"seed": 1},
        "hidden": {"sizes": SMALL | {"hidden": 12}},
        "steps": {"steps": 3},
        "recipe": {"recipe": "paper", "functions": 8},
    }.items():
        with pytest.raises(
            ValueError, match=f"`{name}` is .* but the checkpoint in .* has .* Use another folder"
        ):
            run(tmp_path, **{"steps": 2} | options)
    with pytest.raises(ValueError, match="`problem` is 'advection'"):
        train(Advection, tmp_path, device="cpu", sizes=SMALL, **CHANGES | {"steps": 2})
    assert math.isfinite(float(weights(run(tmp_path, steps=2)).sum()))


def test_bad_plans_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"`recipe` must be one of paper, modern"):
        run(tmp_path, recipe="best")
    for options, message in (
        ({"model": "gp"}, r"`model` must be one of anp, softc"),
        ({"keep": "first"}, r"`keep` must be one of last, best"),
        ({"schedule": "linear"}, r"`schedule` must be one of constant, one cycle"),
        ({"momentum": 0.9}, r"`changes` must be one of learning_rate, .*got 'momentum'"),
        ({"model": "softc", "penalty": 0.0}, "must be positive for softc and 0 for anp, got 0.0"),
        ({"penalty": 1.0}, "must be positive for softc and 0 for anp, got 1.0 for anp"),
        ({"penalty": -1.0}, "must be positive for softc and 0 for anp, got -1.0 for anp"),
        ({"learning_rate": -1e-3}, "`learning_rate` must be positive, got -0.001"),
        ({"clip": 0.0}, "`clip` must be positive, or None for no limit; got 0.0"),
        ({"dropout": 1.0}, "`dropout` must be at least 0 and less than 1, got 1.0"),
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
    with pytest.raises(ValueError, match=r"`problem` must be the class .* or its name; got Stefan"):
        train(Stefan(0.6), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        run(tmp_path / "file")
    (tmp_path / "checkpoint.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="is not a file that this library wrote"):
        run(tmp_path)
