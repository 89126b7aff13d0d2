"""What a command imports: those that need no torch do not wait for it."""

import os
import subprocess
import sys

import pytest
import xarray as xr

HEAVY = {"torch", "scipy", "matplotlib", "distributed", "zarr", "rich.progress", "xarray"}


def imported(*words):
    """The modules that a process has imported when the command is done."""
    command = [sys.executable, "-X", "importtime", "-m", "probconserv", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ})
    assert done.stdout
    return {line.split("|")[-1].strip() for line in done.stderr.splitlines()}


@pytest.mark.parametrize(
    "words", [("--help",), ("enforce", "--help"), ("compare", "--help"), ("--version",)]
)
def test_help_imports_nothing_heavy(words):
    assert not HEAVY & imported(*words)


def test_names_are_there_when_asked_for_and_an_update_does_not_wait_for_sympy():
    code = (
        "import sys, probconserv as pc\nassert 'torch' not in sys.modules\n"
        "print('condition' in dir(pc), pc.condition.__name__, pc.diagnostics.metrics.__name__)\n"
        "from probconserv import Diagonal, problems\nprint(hasattr(pc, 'condtion'))\n"
        "total = pc.weighted_sum([1.0] * 3, 2.0)\n"
        "pc.condition(([[0.0, 0.0, 0.0]], 1.0), pc.boundary(1.0), total)\n"
        "print('sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = ["True", "condition", "probconserv.diagnostics.metrics", "False", "False"]
    assert done.stdout.split() == said, done.stderr


def test_a_refusal_does_not_wait_for_sympy():
    """The name of a row was once found by `torch.unravel_index`, which imports it."""
    code = (
        "import sys, torch, probconserv as pc\nbefore = 'sympy' in sys.modules\n"
        "field, one = pc.Diagonal([[1.0, 2.0]], 1.0), [1.0, 1.0]\n"
        "for laws in ([pc.weighted_sum(one, 2.0), pc.weighted_sum(one, 3.0)],\n"
        "             [pc.weighted_sum(one, 1.0), pc.bounds(low=1.0)]):\n"
        "    try:\n        pc.condition(field, *laws)\n"
        "    except pc.errors.InfeasibleError as error:\n"
        "        print('[0]' in str(error), 'sympy' in sys.modules and not before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"] * 2, done.stderr


@pytest.mark.parametrize("std", [(), ("--std", "s")])
def test_files_need_no_torch_where_rows_share_no_point(tmp_path, std):
    field = {"u": (("t", "x"), [[1.0, 2.0], [2.0, 9.0]]), "s": (("t", "x"), [[1.0, 2.0]] * 2)}
    xr.Dataset(field, {"x": [0.5, 1.5], "t": [0.0, 1.0]}).to_netcdf(tmp_path / "u.nc")
    law = ("--mean", "u", "--over", "x", "--total", "3")
    way = ("-o", tmp_path / "v.nc", *(std or ("--how", "uniform")))
    for words in (("check", tmp_path / "u.nc", *std), ("enforce", tmp_path / "u.nc", *way)):
        assert not {"torch", "distributed", "matplotlib"} & imported(*words, *law)
    assert (tmp_path / "v.nc").exists()
    truth = ("compare", tmp_path / "u.nc", "--truth", tmp_path / "v.nc", "--functions", "t")
    assert not {"torch", "distributed", "matplotlib"} & imported(*truth, *std, *law)
