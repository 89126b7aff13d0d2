import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from commands import called
from matplotlib.figure import Figure

from probconserv.__main__ import main as first_main
from probconserv.figures import save
from probconserv.problems import PROBLEMS
from probconserv.support.progress import track


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "probconserv", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80", **environment},
    )


def test_problems_are_listed_whole_in_80_columns():
    listed = called("problems")
    assert listed.returncode == 0, listed.stderr
    for name, problem in PROBLEMS.items():
        (line,) = (
            line for line in listed.stdout.splitlines() if line.strip().startswith(f"{name} ")
        )
        assert problem.equation in line
        assert problem.difficulty in line
    assert "…" not in listed.stdout
    assert max(map(len, listed.stdout.splitlines())) <= 80


def test_an_interrupted_picture_leaves_nothing(tmp_path):
    class Broken(Figure):
        def savefig(self, path, **options):
            path.write_bytes(b"half a picture")
            raise KeyboardInterrupt

    (tmp_path / "a.png").write_bytes(b"the old one")
    with pytest.raises(KeyboardInterrupt):
        save(Broken(), tmp_path / "a.png")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    assert (tmp_path / "a.png").read_bytes() == b"the old one"


def test_a_progress_bar_passes_everything_on(monkeypatch, capsys):
    for terminal in (False, True):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        assert list(track(range(5), "Counting")) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().out == ""


def test_errors_are_one_line_and_a_status(tmp_path):
    (tmp_path / "file").write_text("")
    failed = called("operators", "heat", "--out", tmp_path / "file" / "folder")
    assert failed.returncode == 2
    assert failed.stderr.startswith("probconserv: ")
    assert "Traceback" not in failed.stderr
    unknown = called("problem")
    assert unknown.returncode != 0
    assert 'Did you mean "problems"' in unknown.stdout + unknown.stderr


def test_training_from_the_command_line(tmp_path):
    options = ["--out", str(tmp_path / "run"), "--batch", "4", "--device", "cpu"]
    small = ["--set", "hidden=8", "latent=8", "validation=5"]
    trained = called("train", "advection", *options, "--steps", "4", *small)
    assert trained.returncode == 0, trained.stderr
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"card.json", "checkpoint.safetensors", "metrics.csv", "weights.safetensors"}
    options[1] = str(tmp_path / "tuned")
    start = ["--start", str(tmp_path / "run" / "weights.safetensors"), "--steps", "2"]
    changed = [*small, "learning_rate=0.002", "penalty=3"]
    tuned = called("train", "advection", *options, *start, "--model", "softc", *changed)
    assert tuned.returncode == 0, tuned.stderr
    card = json.loads((tmp_path / "tuned" / "card.json").read_text())
    assert (card["model"], card["start"]) == ("softc", card["start"])
    assert card["start"].startswith("advection-anp-modern-")
    assert (card["settings"]["penalty"], card["settings"]["learning_rate"]) == (3, 0.002)
    options[1] = str(tmp_path / "through")
    through = called("train", "advection", *options, *start, *small, "through=crps")
    assert through.returncode == 0, through.stderr
    assert "constrained_crps 0." in through.stderr
    card = json.loads((tmp_path / "through" / "card.json").read_text())
    assert card["settings"]["through"] == "crps"
    unknown = called("train", "advektion", *options)
    assert unknown.returncode == 2
    assert "Did you mean 'advection'" in unknown.stderr
    assert "step" not in unknown.stderr
    open_ended = called("train", "super_slow", *options)
    assert open_ended.stderr == "probconserv: super_slow has no closed form to train on.\n"


def test_training_on_a_file(tmp_path):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4")
    u = np.random.default_rng(0).normal(size=(12, 3, 9)).cumsum(2)
    values = {"k": ("run", u[:, 0, 0]), "u": (("run", "t", "x"), u)}
    values["mass"] = (("run", "t"), u.sum(2))
    dataset = xarray.Dataset(values, {"t": range(3), "x": range(9)})
    dataset.to_netcdf(tmp_path / "heat.nc")
    words = f"--model fno --inputs k --targets u --sample run --batch 4 --out {tmp_path / 'run'}"
    words += " --totals mass --rule cell"
    words += " --device cpu --steps 2 --set width=4 members=2 modes=[0,3] loss=ll"
    words += " clip=none apart=.1 padding=0"
    done = called("train", tmp_path / "heat.nc", *words.split())
    assert done.returncode == 0, done.stderr
    card = json.loads((tmp_path / "run" / "card.json").read_text())
    assert (card["problem"], card["sizes"]["modes"]) == ("heat", [0, 3])
    assert (card["settings"]["loss"], card["settings"]["clip"]) == ("ll", None)
    assert (card["settings"]["apart"], card["sizes"]["padding"]) == (0.1, 0)
    assert card["data"]["rule"] == "cell"


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("stefan --inputs k", "`--inputs`, `--targets` and `--totals` are for files"),
        ("runs.npz --inputs k --targets u", "`data` runs.npz is no .zarr or .nc file"),
        ("heat.nc --inputs k", "`--inputs` and `--targets` must name variables of the file"),
        ("heat.nc --inputs k --targets u", "`path` heat.nc does not exist"),
        ("stefan --set width=3", "`--set` must be one of learning_rate, .*got 'width'"),
        ("stefan --set noise=some", "`noise` must be a number, got 'some'"),
        ("stefan --set dropout=.1x", "`dropout` must be a number, got '.1x'"),
        ("stefan --model fno --set modes=4", "`modes` must be a number for each of"),
        ("stefan --set hidden", "`--set` takes NAME=VALUE pairs; got 'hidden'"),
        ("stefan --model fna", "`model` must be one of .*Did you mean 'fno'"),
        ("stefan --recipe best", "`recipe` must be one of"),
    ],
)
def test_a_training_that_makes_no_sense_is_refused_without_a_bar(words, rule):
    failed = called("train", *words.split(), "--device", "cpu")
    assert failed.returncode == 2
    assert re.match(f"probconserv: {rule}", failed.stderr)


def test_a_training_of_nothing_asks_for_data_as_it_is_given():
    asked = called("train")
    assert asked.returncode == 2
    assert 'Command "train" parameter DATA requires an argument' in asked.stderr


def test_the_bar_shows_no_loss_before_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal, where every state is drawn
    words = "train advection --steps 2 --batch 4 --set hidden=8 latent=8 validation=5 --out"
    shown = called(*words.split(), tmp_path / "run", "--device", "cpu").stderr
    assert "loss" in shown
    assert "nan" not in shown


def test_the_help_of_train_is_one_screen():
    lines = called("train", "--help").stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_a_command_line_without_its_extra_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "cyclopts", None)
    monkeypatch.delitem(sys.modules, "probconserv.cli.main")
    with pytest.raises(SystemExit, match=r"^probconserv: no cyclopts here; pip install '"):
        first_main()


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("matplotlib", "reproduce stefan --out"),
        ("jinja2", "reproduce stefan --out"),
    ],
)
def test_a_missing_extra_is_named_before_anything_is_computed(
    tmp_path, missing, words, monkeypatch
):
    monkeypatch.setitem(sys.modules, missing, None)
    out = tmp_path / "out"
    failed = called(*words.split(), out)
    assert failed.returncode == 2
    assert f"no {missing} here; pip install 'matplotlib" in failed.stderr
    assert not out.exists()
