import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from stores import small, store

from probconserv import InputError
from probconserv.files import _cluster
from probconserv.files._cluster import cluster
from probconserv.files._read import read
from probconserv.files._write import write


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with cluster("local", 2) as client:
        yield client


def test_a_worker_that_is_killed_loses_nothing(client: Any, tmp_path: Path) -> None:
    def slow(block: Any) -> Any:
        time.sleep(0.1)
        return block + 1.0

    values = np.arange(120.0).reshape(30, 4)
    blocks = da.from_array(values, chunks=(1, 4)).map_blocks(slow, meta=np.empty((0, 0)))
    killer = threading.Thread(target=_kill_one_worker, args=(client, tmp_path))
    killer.start()
    dataset = xr.Dataset({"u": (("t", "x"), blocks)})
    total = write(dataset, tmp_path / "a.zarr", also=blocks.sum())
    killer.join()
    assert total == values.sum() + 120.0
    with read(tmp_path / "a.zarr") as back:
        np.testing.assert_array_equal(back["u"], values + 1.0)
    assert [p.name for p in tmp_path.rglob("*") if "part" in p.name] == []


def _kill_one_worker(client: Any, folder: Path) -> None:
    """Waits for the first blocks on the disk; the worker is in the middle of its next ones."""
    pids = client.run(os.getpid)
    until = time.monotonic() + 30
    while time.monotonic() < until and len(list(folder.glob(".a*/**/u/c/*/0"))) < 4:
        time.sleep(0.01)
    os.kill(next(iter(pids.values())), signal.SIGKILL)


@pytest.mark.parametrize("format", ["netcdf4", "netcdf3", "zarr3"])
@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_workers_write_what_threads_write(
    client: Any, tmp_path: Path, format: str, suffix: str
) -> None:
    path = store(tmp_path, format)
    with read(path, {"t": 2}) as dataset:
        write(dataset, tmp_path / f"a{suffix}", finish=lambda _: {"done": "yes"})
        with dask.config.set(scheduler="threads"):
            write(dataset, tmp_path / f"b{suffix}", finish=lambda _: {"done": "yes"})
    with read(tmp_path / f"a{suffix}") as one, read(tmp_path / f"b{suffix}") as other:
        with dask.config.set(scheduler="threads"):
            xr.testing.assert_identical(one.load(), other.load())
        assert one.attrs["done"] == "yes"
        assert str(one["p"].encoding).replace("a.", "b.") == str(other["p"].encoding)


@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_an_error_on_a_worker_comes_back_and_leaves_nothing(
    client: Any, tmp_path: Path, suffix: str
) -> None:
    dataset = small()[["p"]].chunk(t=1)
    with pytest.raises(InputError, match=r"`p` is packed into int16"):
        write(dataset.assign(p=_as_packed(dataset["p"] * 1000)), tmp_path / f"a{suffix}")
    assert list(tmp_path.iterdir()) == []


def _as_packed(field: xr.DataArray) -> xr.DataArray:
    field.encoding = dict(small()["p"].encoding)
    return field


def test_a_scheduler_is_found_by_its_address(client: Any) -> None:
    with cluster(client.scheduler.address) as other:
        assert other.submit(lambda: 7).result() == 7
        assert not _cluster.in_process()
    with pytest.raises(InputError, match=r"`workers` is 3, but the scheduler at .* has its own"):
        cluster(client.scheduler.address, 3).__enter__()


def test_threads_are_what_none_means() -> None:
    with cluster(None, 1) as nothing:
        assert nothing is None
        assert _cluster.in_process()
        assert dask.config.get("num_workers") == 1


def test_a_scheduler_that_nobody_answers_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cluster, "PATIENCE", "0.5s")
    with pytest.raises(InputError, match=r"`scheduler` tcp://127.0.0.1:9 does not answer: .*Start"):
        cluster("tcp://127.0.0.1:9").__enter__()
    with pytest.raises(InputError, match=r"`scheduler` nothing://a does not answer"):
        cluster("nothing://a").__enter__()
    assert int(da.ones(3).sum().compute()) == 3  # nothing else asks there


def test_what_is_no_scheduler_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"`scheduler` must be left out for threads, .*got 'lokal'"
    ):
        cluster("lokal").__enter__()
    with pytest.raises(InputError, match="`workers` must be a positive whole number, got 0"):
        cluster("local", 0).__enter__()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_seen_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cluster, "SLOW", 0.0)
    for stream, seen in ((_Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with cluster():
            assert _cluster.compute({"n": da.ones(9, chunks=3).sum()}) == {"n": 9.0}
        assert ("100% Completed" in stream.getvalue()) == seen
