"""What is promised of the numbers, at the ends of the range; and one place for every tolerance."""

import ast
from pathlib import Path

import numpy as np
import pytest
import torch
from exact import posterior
from oracle import normal

import probconserv as pc

SOURCE = Path(pc.__file__).parent
CORE = "support", "fields", "meshes", "laws", "solvers", "conditioning", "diagnostics"
OTHERS = "inequalities", "tolerances.py"  # have their own
ROWS = np.array(
    [
        [1.0, 1.0, 1.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 1.0, 2.0, 1.0],
        [1.0, 1.0, 1.0, 1.0, 2.0, 1.0],
        [0.0, 1.0, -1.0, 1.0, 0.0, 0.0],
    ]
)


def small_numbers(path):
    every = (getattr(node, "value", None) for node in ast.walk(ast.parse(path.read_text())))
    return [x for x in every if isinstance(x, float) and 0 < abs(x) < 1e-3]


def test_tolerances_stand_in_one_file():
    paths = [p for room in CORE for p in (SOURCE / room).rglob("*.py")]
    own = [p for p in paths if not any(word in str(p.relative_to(SOURCE)) for word in OTHERS)]
    assert len(own) > 30
    assert {str(p): found for p in own if (found := small_numbers(p))} == {}


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("kind", ["diagonal", "low rank"])
def test_promises_at_the_ends_of_the_range(unit, kind, rng):
    variance = unit**2 * np.logspace(-6, 6, 6)
    mean = unit * normal(6, rng=rng).numpy()
    shared = normal(1, 6, rng=rng).numpy() * np.sqrt(variance) * (kind == "low rank")
    value, noise = unit * np.array([1.0, 2.0, 3.0, 0.5]), unit * np.array([0, 0, 0, 1e-3])
    prior = pc.LowRank(mean, shared, variance) if kind == "low rank" else (mean, variance)
    post = pc.condition(prior, pc.linear(ROWS, value, noise=noise))
    truth = posterior(mean, ROWS, value, noise, variance, shared)
    before = variance + shared[0] ** 2
    size = np.abs(truth.mean) + np.sqrt(before)
    assert (np.abs(post.mean.numpy() - truth.mean) <= 1e-11 * size).all()
    off = np.abs(post.variance.numpy() - truth.variance)
    assert (off <= np.minimum(1e-12 * before, 1e-6 * truth.variance)).all()
    missed = np.abs(ROWS @ post.mean.numpy() - value)[:3]
    assert (missed <= 1e-12 * (np.abs(ROWS) @ size + value)[:3]).all()


@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_a_point_that_an_exact_row_reads_alone_has_variance_0(noise):
    field = pc.LowRank(torch.zeros(3), torch.ones(1, 3), 1e-3)
    laws = pc.linear([[0.0, 2.0, 0.0]], 1.0), pc.weighted_sum(np.ones(3), 1.0, noise=noise)
    assert float(pc.condition(field, *laws).variance[1]) == 0


@pytest.mark.parametrize("apart", [1e-1, 1e-2])
def test_variances_keep_12_digits_of_the_prior_where_rows_nearly_repeat_each_other(apart, rng):
    white = np.linalg.qr(normal(12, 6, rng=rng).numpy())[0].T  # so that S is as apart as they are
    rows, variance = white[:4], np.logspace(-3, 3, 12)
    every = np.concatenate([rows, rows[:2] + apart * white[4:], rows.sum(0, keepdims=True)])
    every, noise = every / np.sqrt(variance), np.array([0.0, 0, 0, 0, 0, 1e-3, 1e-2])
    value = every @ (np.sqrt(variance) * normal(12, rng=rng).numpy())
    post = pc.condition((np.zeros(12), variance), pc.linear(every, value, noise=noise))
    truth = posterior(np.zeros(12), every, value, noise, variance)
    assert truth.condition < 1e9
    assert (np.abs(post.variance.numpy() - truth.variance) <= 1e-12 * variance).all()
