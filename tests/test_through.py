import csv
import dataclasses
import json

import numpy as np
import pytest
import torch
from runs import SMALL, Killed, killed_after, run, weights
from scipy.stats import norm
from seeds import made

from probconserv.data import Stream, draw
from probconserv.models import AttentiveNeuralProcess, open_weights
from probconserv.problems import PROBLEMS, Advection, ClosedForm, Stefan, find
from probconserv.training import RECIPES
from probconserv.training._machine import Team
from probconserv.training._points import ANPTask, constrained_score, random_rows, through_loss
from probconserv.training._source import Source

# a network that has learned nothing yet is surer than it should be
pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
ROWS = {"rows": 2, "points": 11, "samples": 3}
FAMILIES = [name for name, cls in PROBLEMS.items() if issubclass(cls, ClosedForm)]


def recipe(through, batch=4):
    return dataclasses.replace(RECIPES["modern"], through=through, batch=batch, **ROWS)


def setting(name, through, n=4):
    network = made(AttentiveNeuralProcess, **SMALL)
    functions = draw(find(name), "train", n, context=(2, 3), target=5).to(torch.float32)
    return network, functions, random_rows(network, functions, recipe(through, n), 0, 1)


def dense_score(means, variances, w, b, u, score):
    """Of one function at one time: every component by matrices, then the normal of the mixture."""
    moved, left = [], []
    for mean, variance in zip(means, variances, strict=True):
        sigma, G = np.diag(variance), w[None]
        gain = sigma @ G.T @ np.linalg.inv(G @ sigma @ G.T)
        moved.append(mean + gain @ (b - G @ mean))
        left.append(np.diag(sigma - gain @ G @ sigma))
    mean, std = np.mean(moved, 0), np.sqrt(np.mean(left, 0) + np.var(moved, 0))
    if score == "ll":
        return -norm.logpdf(u, mean, std).mean()
    each = [s * area_between((a - m) / s) for a, m, s in zip(u, mean, std, strict=True)]
    return np.mean(each)


def area_between(z):
    """The integral of the squared difference of the distributions of a normal and a point."""
    below, above = np.linspace(-12, z, 20_001), np.linspace(z, 12, 20_001)
    return np.trapezoid(norm.cdf(below) ** 2, below) + np.trapezoid(norm.sf(above) ** 2, above)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("score", ["ll", "crps"])
def test_the_loss_is_that_of_dense_matrices_one_function_and_time_at_once(name, score):
    network, functions, (t, x, noise) = setting(name, score)
    value = through_loss(network, functions, t, x, noise, score)
    w = np.full(11, float(x[1] - x[0]))
    w[[0, -1]] /= 2
    each = []
    for i in range(4):
        parameter = float(getattr(functions.problem, find(name).parameter)[i])
        problem, one = find(name)(parameter), functions[i]
        known = torch.stack(one.context[:2], -1)
        z = network.latent(known, one.context.u).sample(noise[:, i : i + 1].float())
        for time in t[i]:
            asked = torch.stack([time.expand(11), x], -1)[None].float()
            mean, std = network.decode(network.common(known, one.context.u, asked), z)
            moments = mean[:, 0].detach().double().numpy(), std[:, 0].detach().double().numpy() ** 2
            truth = problem.solution(time, x).numpy()
            each.append(dense_score(*moments, w, float(problem.total(time)), truth, score))
    assert float(value.detach()) == pytest.approx(np.mean(each), rel=1e-5)


@pytest.mark.parametrize("score", ["ll", "crps"])
def test_its_gradient_reaches_every_weight_and_is_right(score):
    network, functions, (t, x, noise) = setting("stefan", score)
    network, functions = network.double(), functions.to(torch.float64)
    value = through_loss(network, functions, t, x, noise, score)
    parameters = list(network.parameters())
    gradients = torch.autograd.grad(value, parameters)
    assert all(bool((g != 0).any()) for g in gradients)
    ends = []
    for sign in (1, -1):  # along the gradient: its norm squared is the slope
        with torch.no_grad():
            for p, g in zip(parameters, gradients, strict=True):
                p += sign * 1e-6 * g
            ends.append(through_loss(network, functions, t, x, noise, score))
            for p, g in zip(parameters, gradients, strict=True):
                p -= sign * 1e-6 * g
    slope = float(ends[0] - ends[1]) / 2e-6
    assert slope == pytest.approx(sum(float((g**2).sum()) for g in gradients), rel=1e-4)


def test_a_step_is_one_graph_without_a_look_at_any_value():
    network, _, _ = setting("advection", "ll")
    stream, plan = Stream(Advection, 4, (2, 3), 5), recipe("ll")

    def step_loss(step):
        functions = stream(step)
        rows = random_rows(network, functions, plan, 0, step)
        return through_loss(network, functions, *rows, "ll")

    traced = torch.compile(step_loss, backend="eager", fullgraph=True)
    for step in (torch.tensor(0), torch.tensor(5)):
        torch.testing.assert_close(traced(step), step_loss(step))


def test_a_team_has_the_loss_of_one():
    source, plan = Source("stefan", Stefan), recipe("ll", batch=6)
    network = made(AttentiveNeuralProcess, **SMALL)
    alone, *team = (
        ANPTask(network, source, plan, 3, Team(*at).share(6), torch.device("cpu"))
        for at in ((0, 1), (0, 2), (1, 2))
    )
    shares = [one.loss(torch.tensor(5)) for one in team]
    assert not torch.equal(*shares)
    torch.testing.assert_close(sum(shares) / 2, alone.loss(torch.tensor(5)))


def test_rows_are_new_at_every_step_and_over_the_whole_domain():
    network, functions, (t, x, noise) = setting("pme", "ll", n=500)
    later, _, other = random_rows(network, functions, recipe("ll", 500), 0, 2)
    assert (t.shape, x.shape, noise.shape) == ((500, 2), (11,), (3, 500, 6))
    assert not torch.equal(t, later)
    assert not torch.equal(noise, other)
    low, high = functions.problem.time_range
    assert (x[0], x[-1]) == functions.problem.domain
    assert low <= t.min() < low + 0.01 * (high - low)
    assert high - 0.01 * (high - low) < t.max() <= high


@pytest.mark.parametrize("through", ["ll", "crps"])
def test_training_raises_the_score_after_step_2_and_says_which(through, tmp_path):
    lines, key = [], f"constrained_{through}"
    plan = {"through": through, "steps": 15, "batch": 8, "learning_rate": 1e-2} | ROWS
    network = run(tmp_path, report=lines.append, **plan)
    scores = [line[key] for line in lines if key in line]
    assert scores[-1] > scores[0] + 0.5 if through == "ll" else scores[-1] < 0.8 * scores[0]
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["settings"]["through"] == through
    assert card[key] == pytest.approx(scores[-1], rel=1e-3)
    assert card["validation_ll"] != card[key]
    held_out = draw(Stefan, "validation", 20, (2, 3), 100).to(torch.float32)
    assert constrained_score(network, held_out, recipe(through)) == pytest.approx(card[key], 1e-3)
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert float(rows[-1][key]) == pytest.approx(scores[-1], rel=1e-6)


@pytest.mark.parametrize("kind", [{"recipe": "paper", "functions": 12}, {"recipe": "modern"}])
def test_a_killed_run_through_step_2_resumes_to_the_same_weights(kind, tmp_path):
    run(tmp_path / "first", steps=2)
    start = tmp_path / "first" / "weights.safetensors"
    plan = {"through": "ll", "start": start, "steps": 6} | ROWS | kind
    whole = run(tmp_path / "whole", **plan)
    with pytest.raises(Killed):
        run(tmp_path / "torn", report=killed_after(4), **plan)
    assert torch.equal(weights(run(tmp_path / "torn", **plan)), weights(whole))
    assert not torch.equal(weights(open_weights(start)), weights(whole))
    with pytest.raises(ValueError, match=r"`through` is 'crps' but the checkpoint in .* has 'll'"):
        run(tmp_path / "torn", **plan | {"through": "crps"})


@pytest.mark.parametrize("through", ["ll", "crps"])
def test_the_best_weights_are_those_of_the_best_score_after_step_2(through, tmp_path):
    lines, key = [], f"constrained_{through}"
    plan = {"schedule": "constant", "learning_rate": 0.05, "keep": "best", "steps": 12}
    network = run(tmp_path, through=through, report=lines.append, **plan | ROWS)
    scores = [line[key] for line in lines if key in line]
    best = max(scores) if through == "ll" else min(scores)
    assert best != scores[-1]
    assert network.card[key] == pytest.approx(best, rel=1e-3)


def test_plans_that_make_no_sense_are_refused(tmp_path):
    for options, message in (
        ({"through": "nll"}, r"`through` must be one of ll, crps; got 'nll'. Did you mean 'll'\?"),
        (
            {"through": "ll", "model": "softc"},
            "`through` is for .* anp and fno, got softc: it replaces",
        ),
        ({"through": "ll", "model": "emulator", "sizes": None}, "anp and fno, got emulator"),
        ({"through": "ll", "rows": 0}, "`rows` must be a positive whole number, got 0"),
        ({"through": "ll", "samples": 0}, "`samples` must be a positive whole number, got 0"),
        ({"through": "ll", "points": 1}, "`points` must be at least 2, the ends"),
    ):
        with pytest.raises(ValueError, match=message):
            run(tmp_path, **options)
