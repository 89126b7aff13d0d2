"""Independent points on a GPU given up to eight rows that read the same points.

Sums of each place and the moves are those of `kernels/joint.py`; S is a small matrix for each
place. Rows that nearly repeat each other, and points of which little is left, are left to the
engine.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ..fields.gaussian import Diagonal
from ..laws.law import Law, Rows
from ..laws.maps import Matrix
from ..solvers.joint import LITTLE
from ..solvers.sweeps import has_kernels, joint_moves, joint_sums
from ..support import checks as check
from ..support.tolerances import EASY
from .posterior import FieldPosterior
from .swept import Swept, fine, numbers_of, pair_of, plan_of, repeated

MOST = 8  # rows of a place
# Of the first of some laws, what was made of them last.
_tasks: WeakKeyDictionary[Law, dict[Any, "Task"]] = WeakKeyDictionary()


class Task(NamedTuple):
    """Laws on fields of one shape: G as matrices, and the numbers of their rows."""

    rows: tuple[Rows, ...]
    g: Tensor  # (K, places or fewer, which repeat; n)
    value: Tensor  # (places or 1, K)
    noise: Tensor
    held: list[Any]  # alive as long as it is, so that their numbers stay their own


def swept_joint(field: Any, laws: Sequence[Any]) -> FieldPosterior | None:
    """The field given a few rows, where this way is for it and all is well; else None."""
    if not 0 < len(laws) <= MOST or not all(isinstance(law, Law) for law in laws):
        return None
    if torch.compiler.is_compiling() or (pair := pair_of(field)) is None:
        return None
    mean, variance = pair
    looks = has_kernels(mean) and check.concrete(mean)
    task = _task_of(laws, mean, variance) if looks else None
    if task is None:
        return None
    numbers = [x for rows in task.rows for x in (rows.value, rows.noise_variance)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in (mean, variance, *numbers)):
        return None
    n = task.g.shape[-1]
    u = mean.reshape(-1, n).contiguous()
    d = repeated(variance, mean.shape, task.rows[0].map.dims)
    total, gram = joint_sums(u, d, task.g)
    silent = task.noise.isinf()
    r = torch.where(silent, 0.0, total - task.value)
    multipliers, white = _solved(gram, torch.where(silent, 0.0, task.noise), silent, r)
    new, left, after, size, looked = joint_moves(u, d, task.g, multipliers, white)
    size = size + task.value.abs()
    missed = (after - task.value).abs() / torch.where(size > 0, size, 1.0)
    missed = torch.where(task.noise == 0, missed, 0 * missed)
    most = torch.cat([looked.amax(0), missed.amax()[None]])
    prior = Diagonal._unchecked(mean, variance.expand(mean.shape))
    solved = Swept(prior, task.rows, new.view(mean.shape), left.view(mean.shape))
    far, lost, miss = most.tolist()
    return fine(field, FieldPosterior(prior, solved), far, miss) if lost <= 1 - LITTLE else None


def _solved(gram: Tensor, noise: Tensor, silent: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """lambda, (places, K), and L^-1, (places, K, K); NaN where rows nearly repeat each other."""
    s = gram + torch.diag_embed(noise.expand(gram.shape[:-1]))
    keep = ~silent.expand(gram.shape[:-1])
    eye = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device).expand_as(s)
    s = torch.where(keep[..., None] & keep[..., None, :], s, eye)
    scale = s.diagonal(dim1=-2, dim2=-1).rsqrt()
    root, _ = torch.linalg.cholesky_ex(s * scale[..., None, :] * scale[..., :, None])
    easy = (root.diagonal(dim1=-2, dim2=-1).square() > EASY).all(-1)
    white = torch.linalg.solve_triangular(root, eye, upper=False) * scale[..., None, :]
    white = (torch.where(easy[..., None, None], white, torch.nan) * keep[..., None, :]).contiguous()
    return (white.mT @ (white @ r[..., None]))[..., 0], white


def _task_of(laws: Sequence[Law], mean: Tensor, variance: Tensor) -> Task | None:
    tasks = _tasks.setdefault(laws[0], {})
    key = mean.shape, mean.device, *[law.made_of() for law in laws]
    if (task := tasks.get(key)) is None and (task := _new_task(laws, mean, variance)) is not None:
        tasks.clear()
        if None not in key:
            tasks[key] = task
    return task


Part: TypeAlias = tuple[Rows, list[Tensor], list[Tensor], list[Tensor]]  # weights, values, noise


def _new_task(laws: Sequence[Law], mean: Tensor, variance: Tensor) -> Task | None:
    rows: list[Rows] = []
    g: list[Tensor] = []
    value: list[Tensor] = []
    noise: list[Tensor] = []
    for law in laws:
        part = (_of_matrix if isinstance(law.map, Matrix) else _of_sum)(law, mean, variance)
        if part is None:
            return None
        rows.append(part[0])
        for known, more in zip((g, value, noise), part[1:], strict=True):
            known += more
    most = max(map(len, g))
    if len(g) > MOST or len({r.map.dims for r in rows}) > 1 or {*map(len, g)} - {1, most}:
        return None
    g = [x.expand(most, -1) for x in g]
    b, sigma2 = (torch.stack(torch.broadcast_tensors(*x), -1) for x in (value, noise))
    held = [(law.value, law.noise_variance, law.maps) for law in laws]
    return Task(tuple(rows), torch.stack(g), b, sigma2, held)


def _of_sum(law: Law, mean: Tensor, variance: Tensor) -> Part | None:
    plan = plan_of(law, mean, variance)
    if plan is None or plan.listed is not None:
        return None
    return plan.rows, [plan.g], [plan.value], [plan.noise]


def _of_matrix(law: Law, mean: Tensor, variance: Tensor) -> Part | None:
    rows = law.to(mean.device).on(("",), [mean.shape])
    matrix = rows.map.matrix
    if matrix.layout != torch.strided or matrix.ndim != 2 or matrix.requires_grad:
        return None
    if not check.fits(variance.shape, mean.shape) or len(matrix) > MOST or rows.present is not None:
        return None
    shape = rows.row_shape([mean.shape])
    both = [x.expand(math.prod(shape)) for x in numbers_of(rows, shape)]
    each = [x.reshape(-1, len(matrix)).unbind(-1) for x in both]
    return rows, list(matrix.split(1)), list(each[0]), list(each[1])
