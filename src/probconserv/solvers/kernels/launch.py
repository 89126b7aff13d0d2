"""The kernels on arrays: how rows are cut into parts, and what is made room for."""

from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from ..points import Moved, Points
from .gradients import gradient_moves, gradient_sums, short_gradients
from .rows import missed_rows, move_rows, row_sums, short_rows, solve_rows

SHORT = 4096  # points of a row that are read at once
BLOCK = 1024  # points that are read at a time, of longer ones
PROGRAMMES = 16384  # that keep a GPU busy
MOST = 64  # parts of a row


def moved(points: Points) -> Moved:
    (places, n), rows, read = points.u.shape, points.rows, (points.u, points.d, points.g)
    mean = torch.empty_like(points.u, dtype=points.dtype)
    variance, found = torch.empty_like(mean), points.value.new_empty((4, rows))
    of_rows, steps = (points.value, points.noise), _steps(points)
    repeats = points.d.shape[0], points.g.shape[0]
    if points.listed is None and n <= SHORT:
        short_rows[(places,)](
            *read, *of_rows, mean, variance, found, n, *steps, *repeats, **_width(n),
            ROUNDED=torch.finfo(mean.dtype).eps,
        )  # fmt: skip
        return Moved(mean, variance, found)
    sums, split = _sums(points, points.u, True)
    share = points.value.new_empty(rows)
    solve_rows[(rows,)](sums, *of_rows, found, share, *steps, SPLIT=split, num_warps=1)
    labels, _, _ = _listed(points)
    split, listed = _split(places, n), points.listed is not None
    after = sums if listed else points.value.new_empty((rows, 3, split))
    move_rows[(places, split)](
        *read, labels, found, share, mean, variance, after, n, rows, *repeats,
        LISTED=listed, SPLIT=split, BLOCK=BLOCK,
    )  # fmt: skip
    if listed:
        after, split = _sums(points, mean, False)
    missed_rows[(rows,)](after, *of_rows, found, *steps, SPLIT=split, num_warps=1)
    return Moved(mean, variance, found)


def _sums(points: Points, u: Tensor, spread: bool) -> tuple[Tensor, int]:
    """Of each part of a row, (rows, 3, parts), and how many parts."""
    places, n = u.shape
    split = _split(points.rows, n // points.regions)
    sums = points.value.new_empty((points.rows, 3, split))
    _, order, starts = _listed(points)
    row_sums[(places, split, points.regions)](
        u, points.d, points.g, order, starts, sums, n, points.d.shape[0], points.g.shape[0],
        LISTED=points.listed is not None, SPREAD=spread, SPLIT=split, BLOCK=BLOCK,
    )  # fmt: skip
    return sums, split


def gradients(
    points: Points, found: Tensor, of_mean: Tensor | None, of_variance: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (places, n), rows, regions = points.u.shape, points.rows, points.regions
    given = [None if x is None else x.contiguous() for x in (of_mean, of_variance)]
    read = (*(points.u if x is None else x for x in given), points.d, points.g)
    has = (of_mean is not None) + 2 * (of_variance is not None)
    of_u, of_d = (torch.empty(places, n, dtype=x.dtype, device=x.device) for x in read[:2])
    repeats = points.d.shape[0], points.g.shape[0]
    if points.listed is None and n <= SHORT:
        of_row = found.new_empty((2, rows))
        short_gradients[(places,)](
            *read, found, of_u, of_d, of_row, n, rows, *repeats, HAS=has, **_width(n)
        )
        return of_u, of_d, of_row[0], of_row[1]
    labels, order, starts = _listed(points)
    how = {"HAS": has, "LISTED": points.listed is not None, "BLOCK": BLOCK}
    split = _split(rows, n // regions)
    sums = found.new_empty((rows, 2, split))
    gradient_sums[(places, split, regions)](
        *read, order, starts, sums, n, *repeats, SPLIT=split, **how
    )
    a, b = sums.sum(-1).unbind(1)
    a = a * found[1]
    of_row = torch.stack([a, torch.addcmul(a * found[0], b, found[1].square())])
    split = _split(places, n)
    gradient_moves[(places, split)](
        *read, labels, found, of_row, of_u, of_d, n, rows, *repeats, SPLIT=split, **how
    )
    return of_u, of_d, of_row[0], of_row[1]


def _steps(points: Points) -> tuple[int, int]:
    """From one row to the next in values and noise: 0 where one number is for all."""
    return int(points.value.shape[0] > 1), int(points.noise.shape[0] > 1)


def _listed(points: Points) -> Any:
    return points.listed or (points.g, points.g, points.g)  # which are not read


def _split(rows: int, n: int) -> int:
    """Parts of a row of n points: a power of 2."""
    wanted = min(PROGRAMMES // max(rows, 1), n // BLOCK, MOST)
    return 1 << max(wanted.bit_length() - 1, 0)


@cache
def _width(n: int) -> dict[str, int]:
    """Points that are read at once, where rows are short."""
    block = triton.next_power_of_2(max(n, 2))
    return {"BLOCK": block, "num_warps": min(max(block // 256, 1), 8)}
