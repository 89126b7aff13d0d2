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
from dask.base import get_scheduler, persist
from dask.callbacks import Callback
from dask.system import CPU_COUNT

from .._errors import InputError
from .._progress import Ticker
from .._values import samples

PATIENCE = "10s"  # for a scheduler to answer


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
        with dask.config.set({"scheduler": dask.threaded.get, **chosen}):
            yield None
        return
    from distributed import Client, LocalCluster

    if scheduler == "local":
        how: Any = {"n_workers": workers or 2, "threads_per_worker": 1, "processes": True}
        how |= {"dashboard_address": ":0", "silence_logs": logging.CRITICAL}  # any port
        with LocalCluster(**how) as processes, Client(processes) as client:
            yield client
        return
    _check_address(scheduler, workers)
    with Client(scheduler, timeout=PATIENCE) as client:
        if not client.nthreads():
            print(
                f"waiting for workers: the scheduler at {scheduler} has none yet. Start some with "
                f"`dask worker {scheduler}`.",
                file=sys.stderr,
                flush=True,
            )
        yield client


def _check_address(address: str, workers: int | None) -> None:
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
        # one that fails would stay the place where dask computes, so this one is kept apart
        Client(address, timeout=PATIENCE, set_as_default=False).close()
    except (OSError, ValueError, TypeError, ImportError) as error:
        raise InputError(
            f"`scheduler` {address} does not answer: {error}. Start one there with "
            "`dask scheduler`, or use 'local' for processes of this machine."
        ) from None


def in_process() -> bool:
    """Whether dask computes in this process, where open files can be shared."""
    get = get_scheduler()
    return get is None or get in (dask.threaded.get, dask.local.get_sync)


def compute(collections: Any, text: str) -> Any:
    """The collections, any nest of them, computed together; a terminal shows how far it is."""
    with Ticker(0.0) as line:
        if not in_process():
            return _compute_apart(collections, line, text)
        with _few_threads(), _Counting(line, text) if sys.stderr.isatty() else nullcontext():
            return compute_together(collections)[0]


def _few_threads() -> Any:
    """Zarr takes as many threads as blocks are worked on: each keeps memory that it has freed."""
    if "zarr" not in sys.modules:
        return nullcontext()
    import zarr

    return zarr.config.set({"threading.max_workers": dask.config.get("num_workers", CPU_COUNT)})


def _compute_apart(collections: Any, line: Ticker, text: str) -> Any:
    """On the workers of a cluster; a worker that dies has its blocks done again by another."""
    from distributed import CancelledError, KilledWorker, as_completed, default_client, futures_of

    running = persist(collections)[0]
    blocks = futures_of(running)
    try:
        for done, _ in enumerate(as_completed(blocks), start=1):
            line.say(f"{text}: {done} of {len(blocks)} blocks")
        return compute_together(running)[0]
    except BaseException as error:
        client = default_client()
        if client.cluster is None:  # else its processes end, and nothing is left
            client.cancel(blocks)
        if not isinstance(error, KilledWorker | CancelledError):
            raise
        raise InputError(
            f"the workers were lost on the way: {error}. If they ran out of memory, give them "
            "more, use fewer of them, or read with smaller `chunks`."
        ) from None


class _Counting(Callback):
    """Says how many tasks are done."""

    def __init__(self, line: Ticker, text: str) -> None:
        self.line, self.text = line, text

    def _posttask(self, key: Any, result: Any, graph: Any, state: Any, worker: Any) -> None:
        done, open_ = len(state["finished"]), ("ready", "waiting", "running")
        self.line.say(f"{self.text}: {done} of {done + sum(len(state[k]) for k in open_)} steps")
