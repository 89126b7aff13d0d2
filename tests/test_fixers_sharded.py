"""States in shards on several processes (DTensor) are fixed as whole ones are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CLOSE = 1e-12


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two processes found; a process that waits for the other in vain ends both."""
    pytest.importorskip("xarray")
    path = tmp_path_factory.mktemp("sharded") / "found.json"
    words = [sys.executable, HERE / "sharded_fixer_cases.py", path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env={**os.environ})
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(path.read_text())


WHERE = "batch", "rows", "columns"
KINDS = [f"{kind}, {where}" for kind in ("usual", "std") for where in WHERE]


@pytest.mark.parametrize("kind", [*KINDS, "members, rows", "members, columns"])
def test_three_steps_and_their_ledger_are_those_of_one_process(found, kind):
    off = found["same"][kind]
    assert len(off) == 13
    assert {name: x for name, x in off.items() if not x <= CLOSE} == {}


def test_a_state_that_all_processes_hold_and_clouds_winds_and_ground(found):
    assert max(found["whole_and_counted"].values()) <= CLOSE


@pytest.mark.parametrize("where", WHERE)
def test_gradients_of_states_and_fluxes(found, where):
    off = found["gradients"][where]
    assert len(off) == 9  # precipitation before a step does not count
    assert max(off) <= 1e-10


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("nan, batch", "`after['temperature']` must be finite"),
        ("nan, columns", "`after['temperature']` must be finite"),
        ("units", "`after['temperature']` must be in K, from 50 to 500; it goes from 10 to 2"),
        ("infeasible, batch", "no state closes the budget of water of member 2"),
        ("infeasible, columns", "no state closes the budget of water of member 2"),
        ("far, batch", "the budgets move surface_pressure at a point by"),
        ("far, columns", "the budgets move surface_pressure at a point by"),
    ],
)
def test_what_is_wrong_on_one_process_is_said_on_all(found, case, words):
    assert words in found["wrong"][case]


def test_far_moves_are_as_far_on_any_shards(found):
    assert found["wrong"]["far, batch"] == found["wrong"]["far, columns"]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("levels", "`after['temperature']` has the placements (Shard(dim=1),), other than"),
        ("mixed", "`after['temperature']` is a plain tensor, but the state is in shards"),
        ("plain before", "`before['surface_pressure']` is a plain tensor"),
        ("plain after", "`before['surface_pressure']` is a DTensor"),
        (
            "fewer before",
            "`before['surface_pressure']` has the shape (2, 7, 9); it must have (3, 7",
        ),
        ("no before", "`before` must be a dictionary of tensors; got NoneType"),
        ("partial", "`after['surface_pressure']` has the placement P"),
        ("odd", "`after` or `before` does not lie on its processes as"),
        ("members", "`members` is for members that one process holds"),
        ("empty", "`after` leaves a process without columns or members"),
        ("std", "`std['temperature']` is a DTensor"),
        ("flux", "`fluxes['evaporation']` is a plain tensor of the shape (3, 7, 9)"),
        ("flux of one process", "`fluxes['evaporation']` is a DTensor"),
        ("compiled", "`after` is in shards (DTensor): it is fixed outside of compiled code"),
        ("totals", "`state['temperature']` is a DTensor"),
    ],
)
def test_what_cannot_be_sharded_is_refused_on_all_processes(found, case, words):
    text = found["refused"][case]
    assert text.startswith("InputError: ")
    assert words in text
