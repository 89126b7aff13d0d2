"""A cluster without workers: the run ends with words, in place of waiting for ever."""

import threading
import time

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from distributed import LocalCluster

from probconserv import InputError
from probconserv.files import _cluster
from probconserv.files._cluster import cluster, compute
from probconserv.files._write import write

NO_WORKER = r"`scheduler`: no worker was there for 0\.2 s.*Start some with `dask worker"


@pytest.fixture
def local(monkeypatch):
    monkeypatch.setattr(_cluster, "ALONE", 0.2)
    with LocalCluster(n_workers=1, processes=False, dashboard_address=":0") as local:
        yield local


def stop_workers(local):
    for address in list(local.scheduler.workers):
        local.sync(local.scheduler.remove_worker, address, stimulus_id="test")


def test_a_scheduler_without_workers_ends_the_run_with_words(local, capsys):
    stop_workers(local)
    with cluster(local.scheduler_address), pytest.raises(InputError, match=NO_WORKER):
        compute(da.ones(4, chunks=2).sum())
    assert "waiting for workers" in capsys.readouterr().err


def test_whatever_dask_computes_there_ends_so(local):
    stop_workers(local)
    with cluster(local.scheduler_address), pytest.raises(InputError, match=NO_WORKER):
        xr.DataArray(da.ones(4, chunks=2)).load()


def test_workers_that_all_leave_on_the_way_end_the_run_and_nothing_is_left(local, tmp_path):
    def slow(block):
        time.sleep(0.05)
        return block

    blocks = da.ones(200, chunks=1).map_blocks(slow, meta=np.empty(0))
    dataset = xr.Dataset({"u": ("x", blocks)})
    threading.Timer(0.3, stop_workers, [local]).start()
    with cluster(local.scheduler_address), pytest.raises(InputError, match=NO_WORKER):
        write(dataset, tmp_path / "out.zarr")
    assert list(tmp_path.iterdir()) == []


def test_slow_work_of_a_worker_that_is_there_is_waited_for(local):
    def slow(block):
        time.sleep(0.5)
        return block

    with cluster(local.scheduler_address):
        assert compute(da.ones(2, chunks=2).map_blocks(slow, meta=np.empty(0)).sum()) == 2
