import csv
import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from commands import called
from runs import CHANGES, SMALL, Killed, killed_after, run, weights

from probconserv.models import open_weights
from probconserv.models._trained import read
from probconserv.problems import Advection
from probconserv.training import RECIPES, train
from probconserv.training._machine import Team
from probconserv.training._run import Run

SMALL_RUN = "--set hidden=8 latent=8 validation=5 --batch 4 --device cpu"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The weights of a run that nothing stopped."""
    return weights(run(tmp_path_factory.mktemp("whole")))


def interrupt_at(step, sign, patch):
    """Has the training get a signal in the middle of a step."""
    advance = Run.advance

    def interrupted(self):
        if int(self.step) == step:
            os.kill(os.getpid(), sign)
        return advance(self)

    patch.setattr(Run, "advance", interrupted)


def test_the_best_weights_are_kept_where_asked_also_over_a_kill(tmp_path):
    plan = {"schedule": "constant", "learning_rate": 0.01, "keep": "best", "steps": 12}
    lines = []
    whole = run(tmp_path / "whole", report=lines.append, **plan)
    values = [line["validation_ll"] for line in lines if "validation_ll" in line]
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
    by_folder = run(tmp_path / "folder", model="softc", start=path.parent, steps=1)
    assert by_folder.card["start"] == tuned.card["start"]
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
    options = [*SMALL_RUN.split(), "--steps", "5", "--out"]
    command = ["-m", "probconserv", "train", "stefan", *options]
    together = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    alone = called("train", "stefan", *options, tmp_path / "one")
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


def test_a_stopped_command_says_so_and_leaves_a_checkpoint(tmp_path, monkeypatch):
    options = f"{SMALL_RUN} --steps 100000 --out {tmp_path}".split()
    interrupt_at(5, signal.SIGINT, monkeypatch)
    stopped = called("train", "stefan", *options)
    assert stopped.returncode == 130
    assert "stopped; what was finished is kept" in stopped.stderr
    assert int(read(tmp_path / "checkpoint.safetensors")[0]["step"]) > 0


def test_two_processes_that_are_stopped_leave_a_checkpoint(tmp_path):
    options = f"{SMALL_RUN} --steps 100000 --out {tmp_path}".split()
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *start, "-m", "probconserv", "train"]
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


def test_a_finished_run_shows_where_it_ended(tmp_path):
    lines = [[], []]
    for shown in lines:
        run(tmp_path, report=shown.append)
    assert [line["step"] for line in lines[1]] == [10]
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
    assert len(losses[0]) == 10


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM], ids=lambda sign: sign.name)
def test_ctrl_c_leaves_a_checkpoint_that_takes_the_same_path(sign, whole, tmp_path, monkeypatch):
    interrupt_at(5, sign, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "torn")
    monkeypatch.undo()
    steps = []
    resumed = run(tmp_path / "torn", report=lambda line: steps.append(line["step"]))
    assert steps[:2] == [5, 7]  # where it was, and the next
    assert torch.equal(weights(resumed), whole)


def test_two_trainings_do_not_share_a_folder(tmp_path):
    def second(line):
        with pytest.raises(ValueError, match=r"another process is writing into .* another folder"):
            run(tmp_path)

    run(tmp_path, steps=1, report=second)
    assert run(tmp_path, steps=1).card["steps"] == 1  # free again


def test_a_finished_run_is_left_as_it_is(tmp_path):
    run(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.*")}
    again = run(tmp_path)
    assert {path: path.read_bytes() for path in before} == before
    assert again.card["steps"] == 10
    assert not again.training


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
