"""Every Python block of a page runs, each page from top to bottom, and does what the page says."""

import ast
import contextlib
import re
import shlex
from inspect import signature

import pytest
import torch
from blocks import DOCS, PAGES, PYTHON, ROOT, run
from commands import called

import probconserv as pc
from probconserv import (
    data,
    experiments,
    figures,
    files,
    models,
    problems,
    training,
    weather,
)

pytestmark = pytest.mark.draws_freely("pages draw as users do")

PLACES = (pc, data, experiments, figures, files, models, problems, training, weather)
ELSEWHERE = {  # run by another test
    "howto/climate_ensemble.md",  # test_climate_files
    "howto/climate_std.md",  # test_climate_files
}
FEWER = {  # of what makes a page slow and shows nothing more
    "howto/equation.md": ("steps=4,", "steps=2, validation=5,"),
    "howto/operator.md": ("steps=100", "steps=5"),
    "howto/train.md": ("steps=4,", "steps=2, validation=5,"),
    "learn/models.md": ("samples=50", "samples=5"),
}
WITH_CODE = [str(p.relative_to(DOCS)) for p in PAGES if PYTHON.search(p.read_text())]


def conserves(law, *fields):
    return all(float(law.residual(field).abs().max()) < 1e-12 for field in fields)


def index(n):
    assert conserves(n["law"], n["post"])


def several_gpus(n):
    assert conserves(n["law"], n["whole"])


def start(n):
    assert conserves(n["law"], n["post"].mean, n["draws"])


def fields(n):
    assert n["post"].members().shape == (8, 4, 50)


def does_it_help(n):
    assert [n["found"].difference(way).answer for way in ("condition", "project")] == [
        "helps",
        "harms",
    ]
    assert conserves(n["law"], n["post"])
    inside = (n["low"] <= n["truth"]) & (n["truth"] <= n["high"])
    assert 0.88 < float(inside.double().mean()) < 0.97


def layer(n):
    law = n["layer"].laws[0]
    assert float((law.apply(n["other"](n["u"])) - 0.5).abs().max()) < 1e-6
    assert n["other"].integral.value == 0.5
    assert n["post"].shape == (16, 3, 101)
    assert float(n["law"].residual(n["post"]).abs().max()) < 1e-6


def laws(n):
    assert conserves(n["total"], n["post"], n["hard"])


def method(n):
    assert conserves(n["law"], n["post"])


def states(n):
    assert conserves(n["both"], n["post"])
    flows = [10.275, 6.25, 4.025, 2.075, 8.325, 2.0125, 2.0125]
    assert n["flows"].mean.tolist() == pytest.approx(flows)
    assert n["flows"].undetermined.tolist() == [False] * 5 + [True] * 2


def cells(n):
    assert conserves(n["law"], n["post"])
    assert torch.equal(n["post"]["u"].mean[0], n["now"][0])


def nonlinear(n):
    assert conserves(n["energy"], n["post"].point)
    assert conserves(n["mass"], n["post"]["h"])


def inequalities(n):
    assert n["post"].draws.min() >= 0
    assert (n["falling"].draws.diff() <= 0).all()
    assert conserves(n["total"], n["post"].mean, n["falling"].mean)


def honest(n):
    assert n["learned"].shape == n["law"].noise.shape == (11,)
    off = n["law"].residual(n["post"].mean).abs()
    assert (off < n["law"].noise)[1:].all()  # at the first time the network is sure and wrong
    (cause,) = n["found"].causes
    assert (cause.kind, cause.amount) == ("factor", pytest.approx(2.54, abs=0.15))


def equation(n):
    assert n["some"].problem.beta.shape == (100,)
    assert n["tiny"].card["problem"] == "carried"


def equations(n):
    assert float(n["front"]) == pytest.approx(0.2351, abs=5e-5)


def models(n):
    assert conserves(n["law"], n["network_field"])
    assert n["emulator_field"].weights.max() < 0.5  # without noise one component has all of it
    assert (n["totals"].residual(n["emulator_field"].mean).abs() < 3 * n["totals"].noise).all()


def files(n):
    assert n["report"].closes()
    assert not n["check"](n["forecast"], n["law"]).closes()


def pytorch(n):
    assert n["law"].residual(n["after"]).abs().max() < 1e-6  # float32
    assert n["area"].residual(n["field"]).abs().max() > 1e-3


def ensemble(n):
    assert conserves(n["law"], n["post"], n["moved"])
    assert conserves(n["melt"], n["ensemble_field"], n["dropout_field"])


def gaussian_process(n):
    assert conserves(n["law"], n["process_field"])


def rollout(n):
    assert conserves(n["law"], n["run"].members)
    assert (n["high"] - n["low"])[-1].mean() > 3 * (n["high"] - n["low"])[1].mean()
    assert min(n["errors"].held_out) > 0.8
    gained = n["mesh"].integral(n["gains"].members.double())
    assert float((gained[:, -1] - gained[:, 0] - 0.2).abs().max()) < 1e-12


def emulator_drifts(n):
    fixer, state = n["fixer"], n["state"]
    for law, total in fixer.totals(state).items():
        assert total.tolist() == pytest.approx(fixer.targets()[law].tolist(), rel=1e-12)
    assert min(state["specific_humidity"].min(), state["precipitation"].min()) >= 0


def train(n):
    assert n["trained_field"].shape == (1, 201)


def operator(n):
    assert n["post"].shape == (4, 6, 32)
    assert conserves(n["law"], n["post"])


def operators(n):
    assert (n["error"] ** 2).mean() < (n["before"] ** 2).mean()
    within = n["error"].abs() < 1.645 * n["field"].std
    assert 0.8 < float(within.double().mean()) < 0.97


def train_through(n):
    assert n["loss"].isfinite()


def netcdf(n):
    sums = n["fixed"].probconserv.totals(n["FileLaw"]("u", ("lat", "lon")))
    assert sums.values == pytest.approx(float(sums[0]))


def cluster(n):
    assert n["fixed"]["u"].chunks


def gpu(n):
    assert n["post"].mean.device.type == "cpu"


def finite_volumes(n):
    at = n["middle"][n["post"].mean[-1].argmax()]
    assert float(at) == pytest.approx(0.3 + 0.4, abs=0.005)


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")  # toy models are far off
@pytest.mark.parametrize("page", [page for page in WITH_CODE if page not in ELSEWHERE])
def test_the_code_of_a_page_runs_and_does_what_it_says(page):
    names = run(f"docs/{page}", FEWER.get(page, ("", "")))
    globals()[page.rpartition("/")[2].removesuffix(".md")](names)


def test_the_readme_is_short_and_conserves(capsys):
    names = run("README.md")
    assert names["law"].residual(names["mean"]).abs().max() > 1e-3
    assert conserves(names["law"], names["post"])
    assert conserves(names["melt"], names["field"])
    assert names["draws"].shape == (500, 10, 101)
    assert "b agrees with the prior" in capsys.readouterr().out
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_start_says_what_is_printed(capsys):
    run("docs/start.md")
    said = re.findall(r"```text\n(.*?)```", (DOCS / "start.md").read_text(), re.DOTALL)
    printed = capsys.readouterr().out.splitlines()
    assert "".join(said).splitlines() == [printed[0], *printed[2:]]


def test_the_verdict_on_a_law_is_what_is_printed(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run("docs/does_it_help.md")
    (said,) = re.findall(r"```text\n(.*?)```", (DOCS / "does_it_help.md").read_text(), re.DOTALL)
    assert said in capsys.readouterr().out


def test_links_between_files_lead_somewhere():
    for page in (*PAGES, *ROOT.glob("*.md"), *ROOT.glob("[bw]*/README.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("command", ["check", "compare", "enforce", "train"])
def test_options_on_the_pages_are_those_of_the_commands(command):
    known = called(command, "--help", columns=200).stdout
    text = "\n".join(page.read_text() for page in (*PAGES, ROOT / "README.md"))
    lines = re.findall(rf"^(?:.*-m )?probconserv {command} (.*(?:\\\n.*)*)$", text, re.MULTILINE)
    used = {option for line in lines for option in re.findall(r"--[a-z-]+", line)}
    assert lines
    assert [option for option in used if option not in known] == []


@pytest.mark.parametrize("page", ["README.md", "docs/howto/netcdf.md", "docs/howto/cluster.md"])
def test_commands_for_files_run_as_they_are_written(page, tmp_path):
    forecast = run("docs/learn/files.md")["forecast"]
    forecast.to_netcdf(tmp_path / "forecast.nc")
    forecast.to_zarr(tmp_path / "run.zarr", consolidated=False)
    lines = re.findall(
        "^probconserv ((?:check|enforce) .*)$", (ROOT / page).read_text(), re.MULTILINE
    )
    here = [shlex.split(line) for line in lines]
    with contextlib.chdir(tmp_path):
        found = [(words[0], called(*words).returncode) for words in here]
    assert found
    listed = {("check", 0) for words in here if len(words) == 2}  # what a file holds
    assert set(found) <= {("check", 1), ("enforce", 0), *listed}  # it does not close, then it does


def takes(function, keywords):
    with contextlib.suppress(TypeError):
        return bool(signature(function).bind_partial(**dict.fromkeys(keywords)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_calls_in_the_text_of_a_page_can_be_made(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for name, rest in re.findall(r"`(?:pc\.)?([A-Za-z]\w*)(\([^`\n]*\))`", text):
        with contextlib.suppress(SyntaxError):  # dots for what is left out
            keywords = [each.arg for each in ast.parse(f"f{rest}", mode="eval").body.keywords]
            named = [getattr(place, name) for place in PLACES if hasattr(place, name)]
            assert not keywords or any(takes(each, keywords) for each in named), name + rest


def test_no_page_is_too_long_to_read():
    for page in PAGES:
        prose = re.sub(r"```.*?```|^[|>].*$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        assert len(prose.split()) < 1500, page.name


@pytest.mark.parametrize("page", ["index", "learn/laws", "learn/nonlinear", "reference/laws"])
def test_who_searches_for_constraints_finds_the_pages_of_laws(page):
    for path in (ROOT / "README.md", DOCS / f"{page}.md", DOCS / "learn" / "inequalities.md"):
        assert "constraint" in " ".join(path.read_text().split()[:80])
