import json
import os
import subprocess
import sys

import pytest
from matplotlib.figure import Figure

from probconserv._progress import track
from probconserv.figures import problem_figure, save
from probconserv.problems import PROBLEMS


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "probconserv", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80", **environment},
    )


def test_problems_are_listed_whole_in_80_columns():
    listed = run("problems")
    assert listed.returncode == 0, listed.stderr
    for name, problem in PROBLEMS.items():
        (line,) = (
            line for line in listed.stdout.splitlines() if line.strip().startswith(f"{name} ")
        )
        assert problem.equation in line
        assert problem.difficulty in line
    assert "…" not in listed.stdout
    assert max(map(len, listed.stdout.splitlines())) <= 80


def test_problems_are_drawn(tmp_path):
    drawn = run("problems", "--plot", str(tmp_path / "new" / "pictures"))
    assert drawn.returncode == 0, drawn.stderr
    pictures = {path.stem: path for path in (tmp_path / "new" / "pictures").iterdir()}
    assert set(pictures) == {*PROBLEMS, "overview"}
    assert all(path.stat().st_size > 10_000 for path in pictures.values())


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=lambda problem: problem.name)
def test_a_picture_shows_times_parameters_and_mass(problem):
    left, middle, right = problem_figure(problem).axes
    assert [axes.get_xlabel() for axes in (left, middle, right)] == ["x", "x", "t"]
    assert [len(axes.lines) for axes in (left, middle, right)] == [5, 4, 4]
    low, high = problem.train_range
    labels = [line.get_label() for line in right.lines]
    assert labels[0].endswith(f"= {low:.3g}")
    assert labels[-1].endswith(f"= {high:.3g}")
    assert right.lines[0].get_xydata()[-1][0] == problem.time_range[1]


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
    failed = run("problems", "--plot", str(tmp_path / "file" / "folder"))
    assert failed.returncode == 1
    assert failed.stderr.startswith("probconserv: ")
    assert "Traceback" not in failed.stderr
    unknown = run("problem")
    assert unknown.returncode != 0
    assert 'Did you mean "problems"' in unknown.stdout + unknown.stderr


def test_training_from_the_command_line(tmp_path):
    options = ["--out", str(tmp_path / "run"), "--batch", "4", "--hidden", "8", "--device", "cpu"]
    trained = run("train", "advection", *options, "--steps", "4")
    assert trained.returncode == 0, trained.stderr
    names = {path.name for path in (tmp_path / "run").iterdir()} - {"tensorboard"}
    assert names == {"card.json", "checkpoint.safetensors", "metrics.csv", "weights.safetensors"}
    options[1] = str(tmp_path / "tuned")
    start = ["--start", str(tmp_path / "run" / "weights.safetensors"), "--learning-rate", "0.002"]
    tuned = run(
        "train", "advection", *options, *start, "--model", "softc", "--penalty", "3", "--steps", "2"
    )
    assert tuned.returncode == 0, tuned.stderr
    card = json.loads((tmp_path / "tuned" / "card.json").read_text())
    assert (card["model"], card["start"]) == ("softc", card["start"])
    assert card["start"].startswith("advection-anp-modern-")
    assert (card["settings"]["penalty"], card["settings"]["learning_rate"]) == (3, 0.002)
    options[1] = str(tmp_path / "through")
    through = run("train", "advection", *options, *start, "--through", "crps", "--steps", "2")
    assert through.returncode == 0, through.stderr
    assert "constrained_crps 0." in through.stderr
    card = json.loads((tmp_path / "through" / "card.json").read_text())
    assert card["settings"]["through"] == "crps"
    unknown = run("train", "advektion", *options)
    assert unknown.returncode == 1
    assert "Did you mean 'advection'" in unknown.stderr
    open_ended = run("train", "super_slow", *options)
    assert "super_slow has no closed form" in open_ended.stderr


def test_a_table_of_the_paper_in_80_columns(tmp_path):
    options = ["--n", "2", "--samples", "3", "--out", str(tmp_path)]
    shown = run("reproduce", "stefan", *options)
    assert shown.returncode == 0, shown.stderr
    rows = [line for line in shown.stdout.splitlines() if line.startswith("ProbConserv-ANP  ")]
    assert len(rows) == 2
    assert {"3.56", "1.89e-03"} < set(rows[0].split())
    assert "…" not in shown.stdout
    assert (tmp_path / "results.json").exists()


def test_an_ablation_in_80_columns(tmp_path):
    few = ["--n", "2", "--samples", "3", "--times", "2", "--device", "cpu"]
    done = run("ablate", "stefan", "--networks", "modern", *few, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].strip() == "stefan, 0.6, t = 0.05; network modern"
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80
    assert sum(line.startswith("ProbConserv (w/diff), with noise  ") for line in lines) == 2
    assert "…" not in done.stdout
    assert lines[-1] == str(tmp_path / "ablation.md")
    assert "### modern: LL" in (tmp_path / "ablation.md").read_text()


@pytest.mark.parametrize("missing", ["cyclopts", "matplotlib"])
def test_a_missing_extra_is_named(tmp_path, missing):
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{missing!r}] = None")
    failed = run("problems", "--plot", str(tmp_path / "out"), PYTHONPATH=str(tmp_path))
    assert failed.returncode == 1
    assert f"no {missing}" in failed.stderr
    assert "; pip install '" in failed.stderr


@pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
def test_the_report_names_what_it_misses_before_it_computes(tmp_path, missing):
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.modules[{missing!r}] = None")
    out = tmp_path / "out"
    failed = run("reproduce", "stefan", "--out", str(out), PYTHONPATH=str(tmp_path))
    assert failed.returncode == 1
    assert f"no {missing} here; pip install 'matplotlib" in failed.stderr
    assert not out.exists()


def test_training_code_needs_torch_and_numpy_alone(tmp_path):
    """GPU machines are often bare: the problems and their data import nothing else."""
    code = (
        "import sys, probconserv.training\\n"
        "others = {'scipy', 'matplotlib', 'rich', 'cyclopts', 'gpytorch', 'pde'}\\n"
        "assert not others & set(sys.modules), others & set(sys.modules)"
    ).replace("\\n", "\n")
    bare = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert bare.returncode == 0, bare.stderr
