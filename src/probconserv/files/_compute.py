"""Where dask works: threads of this process, with a bar on a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import dask
import dask.threaded
from dask.base import compute as compute_together
from dask.system import CPU_COUNT

from ..support.values import samples

SLOW = 1.0  # seconds that a computation takes before a terminal shows how far it is


@contextmanager
def threads(workers: int | None = None) -> Iterator[None]:
    """Everything that dask computes inside runs in so many threads, as many as there are cores."""
    chosen = {} if workers is None else {"num_workers": samples(workers, "workers")}
    # its name would make dask import distributed, which takes half a second
    with dask.config.set({"scheduler": dask.threaded.get, **chosen}), _progress():
        yield


def _progress() -> Any:
    if not sys.stderr.isatty():
        return nullcontext()
    from dask.diagnostics.progress import ProgressBar

    return ProgressBar(minimum=SLOW, out=sys.stderr)


def compute(collections: Any) -> Any:
    """The collections, any nest of them, computed together."""
    with _few_threads():
        return compute_together(collections)[0]


def _few_threads() -> Any:
    """Zarr takes as many threads as blocks are worked on: each keeps memory that it has freed."""
    if "zarr" not in sys.modules:
        return nullcontext()
    import zarr

    return zarr.config.set({"threading.max_workers": dask.config.get("num_workers", CPU_COUNT)})
