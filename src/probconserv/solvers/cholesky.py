"""The order in which the rows of a sparse matrix are taken, and its factor in dense fronts.

Rows that are taken one after the other with nearly the same neighbours make a front: a dense matrix
of these rows and of those after them that they are tied to. What is left of a front goes into that
of the next row in it, its parent. Entries of the inverse between rows that are tied need the same
fronts in the other direction, and no solve.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..support.tolerances import INDEPENDENT

MOST_NUMBERS = 20_000_000  # in the factors of all parts
CHEAP = 30_000  # operations that cost no more than one front of their own


class Front(NamedTuple):
    """Some rows, and those after them that they are tied to, by their numbers in the order."""

    first: int  # of the rows that are taken, one after the other
    size: int  # and how many they are
    others: Tensor  # the rows after them
    entries: Tensor  # which numbers of the matrix go into the front
    at: Tensor  # and where, in its rows one after the other
    parent: int  # the front that takes what is left; -1 for none
    into: Tensor  # and where it goes there


class Order(NamedTuple):
    """The rows in the order in which they are taken, and their fronts, each before its parent."""

    rows: Tensor
    fronts: tuple[Front, ...]


class Parents(NamedTuple):
    order: np.ndarray  # rows, in the order in which they are taken
    lower: Any  # a sparse matrix by columns: the pattern in this order, its entries numbered from 1
    parent: list[int]  # the first row after it that a row is tied to once it is taken
    counts: list[int]  # how many rows from itself on it is tied to then


def parents(count: int, pattern: np.ndarray, most: int) -> Parents | None:
    """The order of the rows of S, and which row each is tied to. pattern: its lower half, (2, E).

    None where the factor would have more than `most` numbers.
    """
    from scipy.sparse import csc_matrix, identity  # a tenth of a second, so not for everybody
    from scipy.sparse.linalg import spilu

    rows, columns = pattern
    ones = np.ones(len(rows))
    half = csc_matrix((ones, (rows, columns)), (count, count))
    heavy = (half + half.T + 2 * count * identity(count)).tocsc()
    how = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0, "drop_tol": 2.0, "fill_factor": 1}
    place = spilu(heavy, options={"SymmetricMode": True}, **how).perm_c  # for the order alone
    one, other = place[rows], place[columns]
    numbers = np.arange(1, len(rows) + 1)
    low, high = np.maximum(one, other), np.minimum(one, other)
    lower = csc_matrix((numbers, (low, high)), (count, count))
    by_row = lower.tocsr()
    starts, ties = by_row.indptr.tolist(), by_row.indices.tolist()
    parent, seen, counts, total = [-1] * count, [-1] * count, [1] * count, count
    for row in range(count):
        seen[row] = row
        for k in ties[starts[row] : starts[row + 1]]:
            while seen[k] != row:
                if parent[k] < 0:
                    parent[k] = row
                seen[k] = row
                counts[k] += 1
                total += 1
                k = parent[k]
        if total > most:
            return None
    return Parents(np.argsort(place), lower, parent, counts)


def fronts(found: Parents) -> Order:
    """Rows put together to fronts, as far as that costs little."""
    groups, above = _groups(found)
    lower, count = found.lower, len(found.parent)
    place = np.zeros(count, dtype=np.int64)
    left: list[list[np.ndarray]] = [[] for _ in groups]
    every: list[np.ndarray] = []
    others: list[np.ndarray] = []
    entries, at = [], []
    for i, own in enumerate(groups):
        spans = [slice(lower.indptr[k], lower.indptr[k + 1]) for k in own]
        tied = [lower.indices[span] for span in spans]
        both = np.unique(np.concatenate([own, *tied, *left[i]]))
        others.append(np.setdiff1d(both, own, assume_unique=True))
        every.append(np.concatenate([own, others[i]]))
        place[every[i]] = np.arange(len(both))
        columns = np.repeat(place[own], [len(t) for t in tied])
        at.append(place[np.concatenate(tied)] * len(both) + columns)
        entries.append(np.concatenate([lower.data[span] for span in spans]) - 1)
        if above[i] >= 0:
            left[above[i]].append(others[i])
        left[i] = []
    sequence = np.concatenate(groups)
    number = np.zeros(count, dtype=np.int64)
    number[sequence] = np.arange(count)
    made, first = [], 0
    for i, own in enumerate(groups):
        into = np.zeros(0, dtype=np.int64)
        if above[i] >= 0:
            size = len(every[above[i]])
            place[every[above[i]]] = np.arange(size)
            into = (place[others[i]][:, None] * size + place[others[i]]).ravel()
        some = [torch.from_numpy(x) for x in (number[others[i]], entries[i], at[i], into)]
        made.append(Front(first, len(own), some[0], some[1], some[2], above[i], some[3]))
        first += len(own)
    return Order(torch.from_numpy(found.order[sequence]), tuple(made))


def _groups(found: Parents) -> tuple[list[np.ndarray], list[int]]:
    """The rows of each front, and its parent."""
    parent, sizes = found.parent, list(found.counts)
    groups: list[list[int]] = [[row] for row in range(len(parent))]
    top = list(range(len(parent)))  # the row with whose rows those of a row were put
    beside: dict[int, int] = {}  # of a row, the last of those before it that stay by themselves
    for row, up in enumerate(parent):
        taken, last = len(groups[row]), beside.get(up, -1)
        tied = sizes[row] - taken
        if up >= 0 and taken * (sizes[up] - tied) * (sizes[up] + taken) <= CHEAP:
            groups[up] += groups[row]
            groups[row], top[row] = [], up
            sizes[up] += taken
            continue
        if last >= 0:  # rows that do not see each other make a front too, where all is small
            wide = taken + len(groups[last]) + max(tied, sizes[last] - len(groups[last]))
            if wide**3 <= CHEAP:
                groups[row] += groups[last]
                groups[last], top[last] = [], row
                sizes[row] = wide
        beside[up] = row
    for row in reversed(range(len(parent))):
        top[row] = top[top[row]]
    kept = [row for row, group in enumerate(groups) if group]
    number = {row: i for i, row in enumerate(kept)}
    above = [number[top[parent[row]]] if parent[row] >= 0 else -1 for row in kept]
    return [np.sort(np.array(groups[row])) for row in kept], above


class Tree:
    """S = L L^T of one matrix for each part, in fronts; all is differentiable."""

    def __init__(self, order: Order, values: Tensor, may_go: Tensor | None = None) -> None:
        """values: the lower half of S, (*lead, entries). Where S is singular `pivots` show it.

        may_go: rows, (*lead, K), whose pivot is 1 where next to nothing is left of them.
        """
        self.order, self.place = order, order.rows.argsort()
        self.roots: list[Tensor] = []
        gone = []
        self.below: list[Tensor] = []  # (*lead, size, others) each
        lead = values.shape[:-1]
        left: list[list[tuple[Tensor, Tensor]]] = [[] for _ in order.fronts]
        for i, front in enumerate(order.fronts):
            own, wide = front.size, front.size + len(front.others)
            matrix = values.new_zeros(*lead, wide * wide)
            matrix.index_add_(-1, front.at, values.index_select(-1, front.entries))
            for into, update in left[i]:
                matrix.index_add_(-1, into, update)
            left[i] = []
            matrix = matrix.unflatten(-1, (wide, wide))
            lower = matrix[..., :own, :own]
            lower = lower.tril() + lower.tril(-1).mT  # for gradients
            root, wrong = torch.linalg.cholesky_ex(lower)
            out = torch.zeros_like(root[..., 0], dtype=torch.bool)
            if may_go is not None and (bool(wrong.any()) or _is_thin(root)):
                rows = order.rows[front.first : front.first + own]
                root, out = _root_of_some(lower, may_go.index_select(-1, rows))
            below = torch.linalg.solve_triangular(root, matrix[..., own:, :own].mT, upper=False)
            below = torch.where(out[..., None], 0.0, below) if may_go is not None else below
            if front.parent >= 0:
                update = matrix[..., own:, own:] - below.mT @ below
                left[front.parent].append((front.into, update.flatten(-2)))
            self.roots.append(root)
            self.below.append(below)
            gone.append(out)
        self.gone = torch.cat(gone, -1).index_select(-1, self.place)

    @property
    def numbers(self) -> int:
        """How many it has."""
        return sum(x.numel() for x in (*self.roots, *self.below))

    @property
    def pivots(self) -> Tensor:  # (*lead, K)
        """The variance of each row given those taken before it; NaN or 0 if none is left."""
        each = [root.diagonal(dim1=-2, dim2=-1) for root in self.roots]
        return torch.cat(each, -1).square().index_select(-1, self.place)

    def whiten(self, r: Tensor) -> Tensor:  # (*lead, N, K)
        """L^-1 r."""
        return torch.cat(self._forward(r), -1).index_select(-1, self.place)

    def solve(self, r: Tensor) -> Tensor:  # (*lead, N, K)
        """S^-1 r."""
        white, found = self._forward(r), torch.zeros_like(r)
        for i in reversed(range(len(white))):
            front, root, below = self.order.fronts[i], self.roots[i], self.below[i]
            here = white[i] - found.index_select(-1, front.others) @ below.mT
            here = torch.linalg.solve_triangular(root.mT, here.mT, upper=True).mT
            found[..., front.first : front.first + front.size] = here
        return found.index_select(-1, self.place)

    def _forward(self, r: Tensor) -> list[Tensor]:
        left, found = r.index_select(-1, self.order.rows), []
        for front, root, below in zip(self.order.fronts, self.roots, self.below, strict=True):
            here = left[..., front.first : front.first + front.size]
            white = torch.linalg.solve_triangular(root, here.mT, upper=False).mT
            left.index_add_(-1, front.others, white @ below, alpha=-1)
            found.append(white)
        return found

    def inverse(self) -> Tensor:  # (*lead, entries)
        """The entries of S^-1 where S has entries, in its lower half."""
        every, found = self.order.fronts, []
        inverses: dict[int, Tensor] = {}
        waiting = [0] * len(every)
        for front in every:
            if front.parent >= 0:
                waiting[front.parent] += 1
        for i in reversed(range(len(every))):
            front, root, below = every[i], self.roots[i], self.below[i]
            matrix = torch.cholesky_inverse(root)
            if front.parent >= 0:
                after = inverses[front.parent].flatten(-2).index_select(-1, front.into)
                after = after.unflatten(-1, (len(front.others), len(front.others)))
                gain = torch.linalg.solve_triangular(root.mT, below, upper=True)
                across = -gain @ after
                rows = torch.cat([matrix - across @ gain.mT, across], -1)
                matrix = torch.cat([rows, torch.cat([across.mT, after], -1)], -2)
                waiting[front.parent] -= 1
                if not waiting[front.parent]:
                    del inverses[front.parent]
            if waiting[i]:
                inverses[i] = matrix
            found.append(matrix.flatten(-2).index_select(-1, front.at))
        at = torch.cat([front.entries for front in reversed(every)])
        return torch.cat(found, -1).index_select(-1, at.argsort())


def _is_thin(root: Tensor) -> bool:
    return bool((root.diagonal(dim1=-2, dim2=-1).square() <= INDEPENDENT).any())


def _root_of_some(matrix: Tensor, may_go: Tensor) -> tuple[Tensor, Tensor]:
    """L, with nothing but 1 for rows of which next to nothing is left; and which they are."""
    left, root, every = matrix.clone(), torch.zeros_like(matrix), torch.zeros_like(may_go)
    for k in range(matrix.shape[-1]):
        pivot = left[..., k, k]
        every[..., k] = may_go[..., k] & ~(pivot > INDEPENDENT)
        gone = every[..., k, None]
        column = left[..., k:, k] / pivot.clamp_min(INDEPENDENT**2).sqrt()[..., None]
        root[..., k:, k] = torch.where(gone, 0.0, column)
        root[..., k, k] = torch.where(gone[..., 0], 1.0, root[..., k, k])
        column = root[..., k + 1 :, k]
        left[..., k + 1 :, k + 1 :] -= column[..., :, None] * column[..., None, :]
    return root, every
