"""The kernels on arrays: how rows are cut into parts, and what is made room for."""

from functools import cache
from typing import Any

import torch
import triton
from torch import Tensor

from ..points import Members, Moved, Points
from .gradients import gradient_moves, gradient_sums, short_gradients
from .joint import joint_moves as _joint_moves
from .joint import joint_sums as _joint_sums
from .members import move_members, solve_members, spread_sums
from .rows import missed_rows, move_rows, row_sums, short_rows, solve_rows

SHORT = 4096  # points of a row that are read at once
BLOCK = 1024  # points that are read at a time, of longer ones
PROGRAMMES = 16384  # that keep a GPU busy
MOST = 4096  # parts of a row
SOME = 1024  # points that are read at once, where several rows read them


def moved(points: Points) -> Moved:
    (places, n), rows, read = points.u.shape, points.rows, (points.u, points.d, points.g)
    mean = torch.empty_like(points.u, dtype=points.dtype)
    variance, found = torch.empty_like(mean), points.value.new_empty((5, rows))
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
    of_u, of_d = (torch.empty_like(points.u, dtype=points.dtype) for _ in range(2))
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


def members_solved(given: Members) -> tuple[Tensor, Tensor, Tensor]:
    """What `move_members` takes, of the mean and of each member; and what is looked at."""
    m, g, count, parts, n = given.m, given.g, given.count, given.parts, given.n
    totals, many = _totals(m, g, parts, n)
    split = min(_split(parts, n), SHORT // 4)
    sums = g.new_empty((parts, 5, split))
    how = {"SPLIT": split, "BLOCK": BLOCK // 4}
    spread_sums[(parts, split)](m, g, sums, n, count, g.shape[0], given.rounding, **how)
    by, each = g.new_empty((parts, count + 3)), g.new_empty((parts, count))
    look = g.new_empty((2, parts))
    of_rows = given.value, given.noise
    known = _numbers(*given.least, given.shrinkage or 0.0, device=g.device)
    solve_members[(parts,)](
        totals, sums, *of_rows, known, by, each, look, count,
        *(int(x.shape[0] > 1) for x in of_rows), given.rounding, MANY=many, SPLIT=split,
        GIVEN=given.shrinkage is not None, WIDE=triton.next_power_of_2(count),
    )  # fmt: skip
    return by, each, look


def members_moved(
    given: Members, by: Tensor, each: Tensor, all_of_them: bool
) -> tuple[Tensor, Tensor]:
    """The mean or all members, moved; and the sums as stored, (parts,) or (members, parts)."""
    m, g, parts, n = given.m, given.g, given.parts, given.n
    dtype = m.dtype if m.dtype.itemsize >= 4 else torch.float32
    new = torch.empty_like(m if all_of_them else m[0], dtype=dtype)
    split = _split(parts, n)
    after = g.new_empty((parts, split))
    move_members[(parts, split)](
        m, g, by, each, new, after, n, given.count, g.shape[0], given.rounding,
        EACH=all_of_them, SPLIT=split, BLOCK=BLOCK // 4,
    )  # fmt: skip
    if not all_of_them:
        return new, after.sum(-1)
    totals, _ = _totals(new, g, parts, n)
    return new, totals[:, :, 0].sum(-1)


def _totals(m: Tensor, g: Tensor, parts: int, n: int) -> tuple[Tensor, int]:
    """G m_s of each part of the points, (members, parts, 3, many), and how many."""
    rows = m.numel() // n
    split = min(_split(rows, n), 64)
    totals = g.new_empty((rows, 3, split))
    row_sums[(rows, split, 1)](
        m, m, g, g, g, totals, n, 1, g.shape[0],
        LISTED=False, SPREAD=False, SPLIT=split, BLOCK=BLOCK,
    )  # fmt: skip
    return totals.view(-1, parts, 3, split), split


def joint_sums(u: Tensor, d: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """W u, (places, K), and the lower half of W D W^T; g: (K, places or fewer, n)."""
    (places, n), count = u.shape, g.shape[0]
    blocks = triton.cdiv(n, SOME)
    sums = g.new_zeros((places, blocks, count + 1, count))
    _joint_sums[(places * blocks,)](
        u, d, g, sums, n, blocks, count, d.shape[0], g.shape[1], BLOCK=SOME
    )
    total, gram = sums.sum(1).split([1, count], 1)
    return total[:, 0], gram


def joint_moves(
    u: Tensor, d: Tensor, g: Tensor, multipliers: Tensor, white: Tensor
) -> tuple[Tensor, ...]:
    """Mean and variance; of each place sums and sizes, (places, K), and what is looked at."""
    (places, n), count = u.shape, g.shape[0]
    mean = torch.empty_like(u, dtype=u.dtype if u.dtype.itemsize >= 4 else torch.float32)
    blocks = triton.cdiv(n, SOME)
    variance, after = torch.empty_like(mean), g.new_empty((places, blocks, 2 * count + 2))
    _joint_moves[(places * blocks,)](
        u, d, g, multipliers, white, mean, variance, after, n, blocks, count, d.shape[0],
        g.shape[1], BLOCK=SOME,
    )  # fmt: skip
    total, size = after[..., : 2 * count].sum(1).split(count, -1)
    return mean, variance, total, size, after[..., -2:].amax(1)


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
def _numbers(*numbers: float, device: torch.device) -> Tensor:
    """In float64, where the arguments of a kernel are float32."""
    return torch.tensor(numbers, dtype=torch.float64, device=device)


@cache
def _width(n: int) -> dict[str, int]:
    """Points that are read at once, where rows are short."""
    block = triton.next_power_of_2(max(n, 2))
    return {"BLOCK": block, "num_warps": min(max(block // 256, 1), 8)}
