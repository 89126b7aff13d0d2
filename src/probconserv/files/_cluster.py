"""Where the work runs: threads of this process, processes of this machine, or a scheduler."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import dask
import dask.local
import dask.threaded
from dask.base import compute as compute_together
from dask.base import get_scheduler
from dask.system import CPU_COUNT

from ..support.errors import InputError
from ..support.values import samples

PATIENCE = "10s"  # for a scheduler to answer
ALONE = 60.0  # seconds without any worker after which work is given up
SLOW = 1.0  # seconds that a computation takes before a terminal shows how far it is


@contextmanager
def cluster(scheduler: str | None = None, workers: int | None = None) -> Iterator[Any]:
    """Everything that dask computes inside runs there; comes back as the client, None for threads.

    scheduler: None for threads of this process, "local" for processes of this machine, or the
    address of a running scheduler, such as tcp://host:8786. workers: how many threads (as many as
    there are cores) or processes (2).
    """
    if workers is not None:
        samples(workers, "workers")
    if scheduler is None:
        chosen = {} if workers is None else {"num_workers": workers}
        # its name would make dask import distributed, which takes half a second
        with dask.config.set({"scheduler": dask.threaded.get, **chosen}), _progress():
            yield None
        return
    from distributed import Client, LocalCluster

    if scheduler == "local":
        how: Any = {"n_workers": workers or 2, "threads_per_worker": 1, "processes": True}
        how |= {"dashboard_address": ":0", "silence_logs": logging.CRITICAL}  # any port
        with (
            LocalCluster(**how) as processes,
            Client(processes) as client,
            dask.config.set(scheduler=_patient(client, processes.scheduler_address)),
        ):
            yield client
        return
    with _client(scheduler, workers) as client, client.as_current():
        if not client.nthreads():
            print(
                f"waiting for workers: the scheduler at {scheduler} has none yet. Start some with "
                f"`dask worker {scheduler}` within {ALONE:g} s.",
                file=sys.stderr,
                flush=True,
            )
        with dask.config.set(scheduler=_patient(client, scheduler)):
            yield client


def _patient(client: Any, address: str) -> Callable[..., Any]:
    """What dask computes with: `client.get`, and an error once no worker is there for a while."""
    from distributed import CancelledError, futures_of

    def get(graph: Any, keys: Any, **how: Any) -> Any:
        found = client.get(graph, keys, **{**how, "sync": False})
        done, lost = threading.Event(), threading.Event()
        watch = (client, futures_of(found), done, lost)
        threading.Thread(target=_watch, args=watch, daemon=True).start()
        try:
            return client.gather(found)
        except CancelledError:
            if not lost.is_set():
                raise
            raise InputError(
                f"`scheduler`: no worker was there for {ALONE:g} s, so that the work was given up. "
                f"Start some with `dask worker {address}`; if they died on the way, give them more "
                "memory, or read with smaller `chunks`."
            ) from None
        finally:
            done.set()

    return get


def _watch(client: Any, futures: list[Any], done: threading.Event, lost: threading.Event) -> None:
    """Cancels the work if the scheduler has no worker for too long; looks a few times only."""
    seen = time.monotonic()
    while not done.wait(ALONE / 10):
        with suppress(OSError):  # a scheduler that does not answer: the client itself ends then
            seen = time.monotonic() if client.nthreads() else seen
        if time.monotonic() - seen > ALONE:
            lost.set()
            client.cancel(futures, force=True)
            return


def _client(address: str, workers: int | None) -> Any:
    from distributed import Client

    if ":" not in address:
        raise InputError(
            "`scheduler` must be left out for threads, or be 'local' for processes, or an address "
            f"such as tcp://host:8786; got {address!r}."
        )
    if workers is not None:
        raise InputError(
            f"`workers` is {workers}, but the scheduler at {address} has its own workers. "
            "Leave `workers` out."
        )
    try:
        # one that failed would stay the place where dask computes
        return Client(address, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError, TypeError, ImportError) as error:
        raise InputError(
            f"`scheduler` {address} does not answer: {error}. Start one there with "
            "`dask scheduler`, or use 'local' for processes of this machine."
        ) from None


def _progress() -> Any:
    if not sys.stderr.isatty():
        return nullcontext()
    from dask.diagnostics.progress import ProgressBar

    return ProgressBar(minimum=SLOW, out=sys.stderr)


def in_process() -> bool:
    """Whether dask computes in this process, where open files can be shared."""
    get = get_scheduler()
    return get is None or get in (dask.threaded.get, dask.local.get_sync)


def compute(collections: Any) -> Any:
    """The collections, any nest of them, computed together."""
    if in_process():
        with _few_threads():
            return compute_together(collections)[0]
    from distributed import CancelledError, KilledWorker

    try:
        return compute_together(collections)[0]
    except (KilledWorker, CancelledError) as error:
        raise InputError(
            f"the workers were lost on the way: {error}. If they ran out of memory, give them "
            "more, use fewer of them, or read with smaller `chunks`."
        ) from None


def _few_threads() -> Any:
    """Zarr takes as many threads as blocks are worked on: each keeps memory that it has freed."""
    if "zarr" not in sys.modules:
        return nullcontext()
    import zarr

    return zarr.config.set({"threading.max_workers": dask.config.get("num_workers", CPU_COUNT)})
