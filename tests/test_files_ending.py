"""How a run ends, or does not begin: folders, requests to end."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import xarray as xr

from probconserv.errors import InputError
from probconserv.files import FileLaw, enforce_file
from probconserv.files._write import LOCK, ended_by_sigterm

LAW = FileLaw("u", "x", total=7.0, measure=1.0)
SLOW = """
import sys, time, dask.array as da, numpy as np, xarray as xr
from probconserv.files._write import write
def slow(block):
    time.sleep(0.1)
    return block
blocks = da.zeros((900, 4), chunks=(1, 4)).map_blocks(slow, meta=np.empty((0, 0)))
write(xr.Dataset({"u": (("t", "x"), blocks)}), sys.argv[1])
"""


@pytest.fixture
def source(tmp_path):
    xr.Dataset({"u": ("x", np.arange(3.0))}).to_netcdf(tmp_path / "in.nc")
    return tmp_path / "in.nc"


def test_a_folder_that_is_misspelt_is_not_made(source, tmp_path):
    with pytest.raises(InputError, match=r"`path` lies in .*outptu/a, which does not exist.*make"):
        enforce_file(source, tmp_path / "outptu" / "a" / "out.nc", LAW, std=1.0)
    assert [p.name for p in tmp_path.iterdir()] == ["in.nc"]


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_request_to_end_leaves_nothing(tmp_path, suffix):
    run = subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path / f"out{suffix}")])
    until = time.monotonic() + 60
    while not list(tmp_path.glob(f".out*/out{suffix}")) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(0.3)
    run.send_signal(signal.SIGTERM)
    assert run.wait(30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_what_sigterm_did_before_a_run_it_does_after_it(source, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    enforce_file(source, tmp_path / "out.nc", LAW, std=1.0)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_request_to_end_waits_until_the_library_has_left_its_lock():
    at = []

    def work():
        with LOCK:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
            at.append("in the lock")
        time.sleep(10)
        at.append("after it")

    with pytest.raises(SystemExit), ended_by_sigterm():
        work()
    assert at == ["in the lock"]
