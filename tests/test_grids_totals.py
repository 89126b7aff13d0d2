"""Totals of functions on a grid: compared with the functions, and added up by a rule."""

import dataclasses

import numpy as np
import pytest
import torch

from probconserv import ImplausibleWarning
from probconserv.data import Grids
from probconserv.errors import InputError
from probconserv.problems import PROBLEMS, ClosedForm
from probconserv.training import KINDS, RECIPES, train
from probconserv.training._fields import FieldTask
from probconserv.training._source import source_of

T, X = np.linspace(0, 1, 3), np.arange(40) / 40  # one period without its end
K = np.linspace(1, 2, 12)[:, None]
U = 2 + np.sin(2 * np.pi * (X - K[:, None] * T[:, None]))  # (12, 3, 40), with integral 2
PLAN = {"batch": 4, "times": None, "through": "crps"}


def grids(totals, rule="trapezoid", x=X, u=U):
    return Grids(K, u, {"t": T, "x": x}, totals, rule=rule)


def test_totals_of_another_rule_are_said_with_its_name():
    told = r"`totals` .* by the rule trapezoid: they differ in 36 of 36 rows.*rule='periodic'"
    with pytest.warns(ImplausibleWarning, match=told):
        grids(U.mean(-1))
    with pytest.warns(ImplausibleWarning, match=r"by the rule periodic.*rule='trapezoid'"):
        grids(np.trapezoid(U, X), "periodic")


def test_another_rule_is_found_where_jumps_would_hide_it():
    steps = (0.3 + 0.2 * (K[:, None] - 1) + 0.1 * T[:, None] > X).astype(float)
    with pytest.warns(ImplausibleWarning, match=r"by up to .* %.* They agree with rule='left'"):
        grids((steps[..., :-1] / 40).sum(-1), u=steps)


@pytest.mark.parametrize("share", [0.988, 1.012])
def test_totals_that_are_off_by_a_hundredth_are_said(share):
    with pytest.warns(ImplausibleWarning, match=rf"They are {share} times as large"):
        grids(share * np.trapezoid(U, X))
    some = np.trapezoid(U, X)
    some[3, 1] *= share
    with pytest.warns(ImplausibleWarning, match="differ in 1 of 36 rows, by up to 1.(19|2) %"):
        grids(some)


def test_totals_in_another_unit_are_said():
    with pytest.warns(ImplausibleWarning, match="They are 1000 times as large: is a unit"):
        grids(1000 * np.trapezoid(U, X))


def test_totals_of_nothing_are_no_other_unit():
    with pytest.warns(ImplausibleWarning, match="differ in 36 of 36 rows") as told:
        grids(np.zeros((12, 3)))
    assert "unit" not in str(told[0].message)


EXACT = [name for name, problem in PROBLEMS.items() if issubclass(problem, ClosedForm)]


@pytest.mark.parametrize("points", [9, 33, 101])
@pytest.mark.parametrize("name", EXACT)
def test_exact_totals_may_differ_by_the_error_of_the_rule(name, points):
    problem = PROBLEMS[name]
    t, x = problem.grid(times=20, points=points)
    found = Grids.of_problem(problem, t, x, n=30)  # without a word: warnings are errors here
    assert (found.totals - torch.trapezoid(found.targets, x)).abs().max() > 0


def test_rounded_totals_agree():
    grids(np.trapezoid(U, X).astype(np.float32))


def widths(x):
    """Of cells that end half way between the points, the first and the last symmetric."""
    inner = (x[1:] + x[:-1]) / 2
    return np.diff([2 * x[0] - inner[0], *inner, 2 * x[-1] - inner[-1]])


@pytest.mark.parametrize("rule", ["cell", np.cos(X)])
def test_a_rule_may_be_cells_around_uneven_points_or_weights(rule):
    weights = widths(X**2) if isinstance(rule, str) else rule
    found = grids(U @ weights, rule, x=X**2)
    torch.testing.assert_close(found.targets @ found.weights, found.totals)
    some = found[2:5].to(torch.float32)
    assert torch.equal(some.weights.double(), found[0].to(torch.float32).weights)


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("midpoint", "`rule` must be one of trapezoid, simpson, left, right, periodic, cell"),
        (np.ones(39), r"`rule` must be .* a weight for each of the 40 points.*got shape \(39,\)"),
        (np.full(40, np.nan), "`rule` must be finite"),
        ("periodic", "`rule` periodic is for an even axis"),
    ],
)
def test_rules_that_do_not_fit_are_refused(rule, told):
    with pytest.raises(InputError, match=told):
        grids(None, rule, x=X**2)


def conditioned(data):
    """The mean of a network that has learned nothing, after the law of its training."""
    kind = KINDS["fno"]
    recipe = dataclasses.replace(RECIPES["modern"], **{**kind.recipes["modern"], **PLAN})
    source = source_of(data, data[:2], recipe, 0)
    sizes = {"width": 4, "layers": 2, "members": 2, "modes": [0, 3]}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = kind.build(source, recipe, sizes)
    task = FieldTask(network, source, recipe, 0, slice(None), torch.device("cpu"))
    mean, std = network(data.inputs.float(), [a.float() for a in data.axes])
    return task, task._conditioned(mean, std, data).mean


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
@pytest.mark.parametrize("rule", ["trapezoid", "periodic", np.cos(X)])
def test_training_through_the_law_takes_the_rule_of_the_data(rule):
    weights = {"trapezoid": None, "periodic": np.full(40, 1 / 40)}.get(str(rule), rule)
    totals = np.trapezoid(U, X) if weights is None else U @ weights
    task, mean = conditioned(grids(totals, rule))
    u = mean.detach().numpy()[:, :, 0]
    found = np.trapezoid(u, X) if weights is None else u @ weights
    np.testing.assert_allclose(found, np.broadcast_to(totals, found.shape), rtol=1e-12)
    traced = torch.compile(task.loss, backend="eager", fullgraph=True)
    torch.testing.assert_close(traced(torch.tensor(1)), task.loss(torch.tensor(1)))


def test_a_card_has_the_rule_and_another_one_does_not_continue(tmp_path):
    sizes = {"width": 4, "layers": 2, "members": 1, "modes": [0, 3]}
    plan = {"model": "fno", "device": "cpu", "sizes": sizes, "steps": 1, **PLAN}
    data = grids(U.mean(-1), "periodic")
    assert train(data, tmp_path, **plan).card["data"]["rule"] == "periodic"
    cells = grids(U.mean(-1), "cell")
    with pytest.raises(InputError, match=r"`rule` is 'cell' but the checkpoint .* 'periodic'"):
        train(cells, tmp_path, **plan)
    other = grids(np.trapezoid(U, X))
    with pytest.raises(InputError, match="`held_out` must have the `rule` of `data`"):
        train(data, tmp_path / "other", held_out=other, **plan)
