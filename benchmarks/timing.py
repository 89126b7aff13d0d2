"""Jobs side by side, so that their ratios hold on a noisy machine."""

import statistics
import time
from collections.abc import Callable


def seconds(*jobs: Callable[[], object], repeats: int = 9) -> list[float]:
    """Median time of each job, all jobs in turn."""
    times: list[list[float]] = [[] for _ in jobs]
    for _ in range(repeats + 1):
        for job, kept in zip(jobs, times, strict=True):
            start = time.perf_counter()
            job()
            kept.append(time.perf_counter() - start)
    return [statistics.median(kept[1:]) for kept in times]
