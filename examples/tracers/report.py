"""The lines that the example prints."""

from collections.abc import Callable
from time import process_time
from typing import TypeVar

from torch import Tensor

import probconserv as pc

Result = TypeVar("Result")
TITLES = "law            RMSE    LL     CRPS  % in 90 %  imbalance  time (passes), with variance"


def timed(call: Callable[[], Result]) -> tuple[Result, float]:
    """The result, and seconds of the processor: others may share it."""
    start = process_time()
    return call(), process_time() - start


def rmse(u: Tensor, truth: Tensor) -> float:
    return float((u - truth).square().mean().sqrt())


def row(
    name: str, post: pc.State, truth: Tensor, law: pc.laws.Law, took: float, forward: float
) -> str:
    """Scores of u after the step, how far the worst cell is off balance, and what it cost."""
    field = post["u"]
    variance, more = timed(lambda: field.variance[:, 1:])
    after = pc.Diagonal(field.mean[:, 1:], variance)
    found = pc.evaluate(after, truth, samples=2, space_dims=2)
    off, inside = law.residual(post).abs().max(), 100 * found.coverage_90.mean()
    return (
        f"{name:<12} {found.MSE.mean().sqrt():.5f}  {found.LL.mean():.2f}  "
        f"{found.CRPS.mean():.5f}  {inside:9.1f}  {off:9.0e}  "
        f"{took / forward:14.1f}, {(took + more) / forward:.1f}"
    )
