import csv
import json
import math
import os
import signal

import pytest
import torch

from probconserv.data import draw
from probconserv.models import AttentiveNeuralProcess, open_weights
from probconserv.problems import Advection, Stefan
from probconserv.training import RECIPES, loss, train
from probconserv.training._run import Run

SMALL = {"hidden": 8, "latent": 6, "heads": 2}
CHANGES = {"batch": 4, "context": (2, 3), "target": 5, "steps": 20}


def run(out, **options):
    options = {"sizes": SMALL, "device": "cpu", **CHANGES, **options}
    return train(Stefan, out, **options)


def weights(network):
    return torch.cat([p.detach().flatten() for p in network.parameters()])


class Killed(BaseException):
    """As sudden as a power cut: nothing gets to clean up."""


def killed_after(steps):
    def report(line):
        if line["step"] >= steps:
            raise Killed

    return report


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


def test_ctrl_c_leaves_a_checkpoint_that_takes_the_same_path(tmp_path, monkeypatch):
    whole = run(tmp_path / "whole")
    advance = Run.advance

    def interrupted(self):
        if int(self.step) == 5:
            os.kill(os.getpid(), signal.SIGINT)  # in the middle of a step
        return advance(self)

    monkeypatch.setattr(Run, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "torn")
    monkeypatch.setattr(Run, "advance", advance)
    steps = []
    resumed = run(tmp_path / "torn", report=lambda line: steps.append(line["step"]))
    assert steps[:2] == [5, 7]  # where it was, and the next
    assert torch.equal(weights(resumed), weights(whole))


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
    (tmp_path / "checkpoint.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="is not a file that this library wrote"):
        run(tmp_path)
