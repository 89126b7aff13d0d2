"""Where the work runs: threads of this process, processes of this machine, or a scheduler."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import dask
import dask.local
import dask.threaded
from dask.base import compute as compute_together
from dask.base import get_scheduler
from dask.system import CPU_COUNT

from .._errors import InputError
from .._values import samples

PATIENCE = "10s"  # for a scheduler to answer
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
        with LocalCluster(**how) as processes, Client(processes) as client:
            yield client
        return
    with _client(scheduler, workers) as client, client.as_current():
        if not client.nthreads():
            print(
                f"waiting for workers: the scheduler at {scheduler} has none yet. Start some with "
                f"`dask worker {scheduler}`.",
                file=sys.stderr,
                flush=True,
            )
        with dask.config.set(scheduler=client):
            yield client


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
