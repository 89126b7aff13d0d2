"""Fields in shards on several processes (DTensor) are conditioned as whole ones are."""

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
    """What four processes found; a process that waits for others in vain ends all of them."""
    path = tmp_path_factory.mktemp("sharded") / "found.json"
    words = [sys.executable, HERE / "sharded_cases.py", path]
    done = subprocess.run(words, capture_output=True, text=True, timeout=150, env={**os.environ})
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(path.read_text())


KINDS = "Diagonal", "std", "one variance", "float32", "Ensemble", "Ensemble by entry", "LowRank"


@pytest.mark.parametrize("kind", [*KINDS, "LowRank over time"])
def test_shards_of_any_axes_give_what_one_process_gives(found, kind):
    every = found[f"same {kind}"]
    off = {(where, law): x for where, laws in every.items() for law, x in laws.items()}
    assert {at: x for at, x in off.items() if not x <= CLOSE} == {}


def test_201_points_on_two_and_on_four_processes_and_again_and_projected(found):
    two, four = found["uneven"]
    *off_2, size_2, projected_2 = two
    *off_4, size_4, projected_4 = four
    assert (size_2, size_4) == (101, 51)
    assert max(off_2 + off_4 + [projected_2, projected_4]) <= CLOSE


def test_the_variance_of_a_point_that_has_most_of_its_row(found):
    assert found["one_point_has_most"] <= 1e-9


def test_gradients_of_fields_values_and_noise(found):
    assert len(found["same_gradients"]) == 12
    assert max(found["same_gradients"].values()) <= CLOSE


def test_a_state_of_shards_of_different_sizes_and_of_what_all_processes_hold(found):
    assert max(found["states"]) <= CLOSE
    assert max(found["state_gradients"]) <= CLOSE


def test_draws_obey_laws_and_have_the_covariance(found):
    for missed, off in found["draws"].values():
        assert missed <= CLOSE
        assert off <= 0.12  # 4000 draws: 8 standard errors of a correlation


def test_covariance_intervals_and_scores(found):
    assert max(found["covariance"]) <= CLOSE


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("nan", "`mean` must be finite; 1 of its 105"),
        ("infinite", "`mean` must be finite; 1 of its 105"),
        ("negative", "`variance` must be >= 0; its smallest value is -1"),
        ("std", "`std` must be >= 0"),
        ("members", "`members` must be finite; 420 of its 420"),
        ("far", "ImplausibleWarning: the laws move a point by 1.46e"),
        ("far in space", "ImplausibleWarning: the laws move a point by"),
        ("infeasible", "InfeasibleError: 3 rows cannot be met: `integral` at [2, 4]"),
        ("infeasible entry", "InfeasibleError: 5 rows cannot be met: `integral` at [2, 2]"),
        ("contradiction", "It follows from other exact rows, and contradicts them"),
        ("endless", "`variance` is infinite at some points"),
        ("endless draws", "DegenerateError: the field has 35 points of infinite variance"),
    ],
)
def test_what_is_wrong_on_one_process_is_said_on_all(found, case, words):
    assert words in found["bad_values_on_one_process"][case]


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("partial", "`mean` has the placement P"),
        ("odd", "`mean` does not lie on its processes as `distribute_tensor` would cut it"),
        ("plain variance", "`variance` is a plain tensor, but `mean` is a DTensor"),
        ("plain mean", "`mean` is a plain tensor, but `variance` is a DTensor"),
        ("meshes", "`variance` and `mean` lie on different meshes"),
        ("law", "`value` is a DTensor"),
        ("read", "`u` is a DTensor"),
        ("audit", "`post` is in shards"),
        ("mixture", "`field` is a mixture of fields in shards"),
        ("dense", "`mean` is a DTensor"),
        ("nonlinear", "`laws`: fields in shards (DTensor) take linear laws"),
        ("bounds", "`laws`: fields in shards (DTensor) take linear laws"),
        ("members", "`members` is sharded along axis 0"),
        ("mixed state", "`b` is made of plain tensors"),
        ("joint state", "`field`: an axis is sharded that is independent in one field"),
        ("many rows", "`laws` have 19998 rows"),
        ("log_prob", "`log_prob` is not for posteriors in shards"),
        ("save", "`save` is not for posteriors in shards"),
        ("index", "`index` is not for posteriors in shards"),
        ("diagnose", "`prior` is in shards (DTensor)"),
        ("inflate", "`prior` is in shards (DTensor)"),
        ("evaluate", "`field` is in shards (DTensor)"),
        ("save prior", "`mean` is a DTensor"),
        ("draws", "`mean` is a DTensor"),
        ("generator", "`generator` must be a torch.Generator"),
        ("interval", "`interval` of an ensemble"),
    ],
)
def test_what_cannot_be_sharded_is_refused_on_all_processes(found, case, words):
    text = found["refusals"][case]
    assert text.startswith("InputError: ")
    assert words in text


def test_shards_are_not_imported_by_who_has_none():
    code = (
        "import sys, probconserv as pc\n"
        "post = pc.condition(([[0.0, 1.0]], 1.0), pc.weighted_sum([1.0, 1.0], 3.0))\n"
        "print('torch.distributed.tensor' in sys.modules, float(post.mean.sum()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "3.0"], done.stderr
