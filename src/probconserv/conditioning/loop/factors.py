"""S of rows, in units in which its diagonal is 1, and its factor: of a matrix, or of entries.

    S = J (F'^T F' + D') J^T + noise

Rows may repeat each other: the factor is that of S with a little on its diagonal, and what is found
is corrected by what it misses.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...solvers.cholesky import MOST_NUMBERS, parents
from ...support.errors import InputError
from ...support.tolerances import EPS, SHIFTS, SOLVED
from .reading import Few, Full, Reading

REFINED = 6  # times that a solve with repeated rows is corrected
STEPS = 1000  # of conjugate gradients without a factor
EASY_FACTOR = 500_000  # numbers of a factor that is always made


def factor_of(
    reading: Reading, left: Tensor, directions: Tensor | None, noise: Tensor, scale: Tensor
) -> "Whole | Sparse":
    """left, directions: D', (P or 1, N), and F'. noise, scale: of rows, (P, K); rows of scale 0
    take no part."""
    kind: Any = Sparse if reading.is_sparse else Whole
    found: Whole | Sparse = kind(reading, left, directions, noise, scale)
    return found


def fill(reading: Few) -> int | None:
    """How many numbers a factor of S has; None where a solve without one is tried first."""
    from scipy.sparse import csr_matrix  # a tenth of a second, so not for everybody

    at, shape = (_numbers(reading.rows), _numbers(reading.points)), (reading.count, reading.size)
    ones = csr_matrix((np.ones(len(at[0])), at), shape)
    return _count(ones @ ones.T, EASY_FACTOR)


def _count(matrix: Any, most: int) -> int | None:
    """Of the factor of a matrix; None where it has more than `most` numbers."""
    from scipy.sparse import tril

    lower = tril(matrix).tocoo()
    pattern = np.stack([lower.row, lower.col]).astype(np.int64)
    known = parents(matrix.shape[0], pattern, most)
    return None if known is None else sum(known.counts)


class Whole:
    """S of each part as a matrix."""

    def __init__(
        self, reading: Full, left: Tensor, directions: Tensor | None, noise: Tensor, scale: Tensor
    ) -> None:
        rows = reading.values
        gram = (rows * left[:, None]) @ rows.mT
        if directions is not None:
            along = reading.along(directions)
            gram = gram + along @ along.mT
        gram = gram + noise.diag_embed()
        self.scaled = gram * scale[:, None] * scale[..., None]
        idle, own = (scale == 0).to(gram.dtype), noise * scale.square()
        for shift in SHIFTS:
            more = shift * (own <= shift).to(own) + idle
            self.lower, failed = torch.linalg.cholesky_ex(self.scaled + more.diag_embed())
            if not bool(failed.any()):
                break

    def solve(self, r: Tensor) -> Tensor:  # (P, K)
        """S^-1 r."""
        r = r[..., None]
        found = torch.cholesky_solve(r, self.lower)
        for _ in range(REFINED):
            found = found + torch.cholesky_solve(r - self.scaled @ found, self.lower)
        return found[..., 0]


class Sparse:
    """S of each part by its entries; on the CPU."""

    def __init__(
        self, reading: Few, left: Tensor, directions: Tensor | None, noise: Tensor, scale: Tensor
    ) -> None:
        along = None if directions is None else reading.along(directions)
        given = [_numbers(t) for t in (reading.values, left, noise, scale)]
        more = None if along is None else _numbers(along)
        parts = max([len(t) for t in given] + ([] if more is None else [len(more)]))
        at = _numbers(reading.rows), _numbers(reading.points)
        self.parts = []
        for p in range(parts):
            own = [t[p % len(t)] for t in given]
            b = None if more is None else more[p % len(more)]
            self.parts.append(_Part(reading, at, own, b))

    def solve(self, r: Tensor) -> Tensor:  # (P, K)
        """S^-1 r, without gradients."""
        right, count = _numbers(r), len(self.parts)
        if count == 1:
            found = self.parts[0].solve(right.T).T
        else:
            wide = np.broadcast_to(right, (count, right.shape[-1]))
            both = zip(self.parts, wide, strict=True)
            found = np.stack([part.solve(one[:, None])[:, 0] for part, one in both])
        return torch.from_numpy(np.ascontiguousarray(found)).to(r.device)


class _Part:
    """S = A + B B^T of one part, A sparse."""

    def __init__(
        self,
        reading: Few,
        at: tuple[np.ndarray, np.ndarray],
        given: Sequence[np.ndarray],
        along: np.ndarray | None,
    ) -> None:
        """at: rows and points of entries. given: values of these, D', noise and scale. along: B
        before it is scaled."""
        from scipy.sparse import csr_matrix, diags

        values, left, noise, scale = given
        self.keep, own = np.flatnonzero(scale), noise * scale**2
        shape = reading.count, reading.size
        root = csr_matrix((values * scale[at[0]] * np.sqrt(left)[at[1]], at), shape)[self.keep]
        root.eliminate_zeros()
        self.noise = own[self.keep]
        self.matrix = (root @ root.T + diags(self.noise)).tocsc()
        self.along = None if along is None else (along * scale[:, None])[self.keep]
        self.lu: Any = None
        if len(self.keep) and reading.fill is not None:
            self._factor()

    def _factor(self) -> None:
        """With the least on the diagonal that leaves all pivots positive."""
        from scipy.sparse import diags
        from scipy.sparse.linalg import splu

        how = {"permc_spec": "MMD_AT_PLUS_A", "diag_pivot_thresh": 0.0}
        for shift in SHIFTS:
            more = diags(np.where(self.noise <= shift, shift, 0.0))
            try:
                self.lu = splu((self.matrix + more).tocsc(), options={"SymmetricMode": True}, **how)
            except RuntimeError:  # a pivot of 0
                continue
            if (self.lu.U.diagonal() > 0).all():
                break
        if self.along is not None:
            self.solved = self.lu.solve(self.along)
            inner = self.along.T @ self.solved
            self.inner = np.linalg.inv(inner + np.eye(len(inner)))

    def product(self, x: np.ndarray) -> np.ndarray:  # (n, m)
        found = self.matrix @ x
        return found if self.along is None else found + self.along @ (self.along.T @ x)

    def approximate(self, r: np.ndarray) -> np.ndarray:
        """About S^-1 r, by the factor."""
        found = self.lu.solve(r)
        if self.along is None:
            return found
        return found - self.solved @ (self.inner @ (self.along.T @ found))

    def solve(self, r: np.ndarray) -> np.ndarray:  # (K, m)
        """S^-1 r, by a factor only where it is small, or nothing else does."""
        found = np.zeros_like(r)
        if not len(self.keep):
            return found
        right = np.ascontiguousarray(r[self.keep])
        x = None if self.lu is not None else self._by_gradients(right)
        if x is None and self.lu is None:
            if _count(self.matrix, MOST_NUMBERS) is None:
                raise InputError(TOO_CLOSE.format(rows=len(self.keep), most=MOST_NUMBERS))
            self._factor()
        found[self.keep] = self._refined(right) if x is None else x
        return found

    def _refined(self, r: np.ndarray) -> np.ndarray:
        """By the factor, corrected by what is missed."""
        x, left = self.approximate(r), r
        for _ in range(REFINED):
            left = r - self.product(x)
            if (np.abs(left).max(0) <= EPS * (np.abs(r).max(0) + np.abs(x).max(0))).all():
                break
            x = x + self.approximate(left)
        return x

    def _by_gradients(self, r: np.ndarray) -> np.ndarray | None:
        """By conjugate gradients; None where they do not come to an end."""
        x, left, step, size = np.zeros_like(r), r, r, np.abs(r).max(0)
        length = (left * left).sum(0)
        for _ in range(STEPS):
            moved = self.product(step)
            curve = (step * moved).sum(0)
            share = length / np.where(curve > 0, curve, np.inf)
            x, left = x + share * step, left - share * moved
            if (np.abs(left).max(0) <= SOLVED * (size + np.abs(x).max(0))).all():
                return x
            before, length = length, (left * left).sum(0)
            step = left + step * (length / np.where(before > 0, before, np.inf))
        return None


TOO_CLOSE = (
    "`laws`: {rows} rows that are tied to each other are too many beside inequalities: their "
    "factor would have more than {most} numbers, and without one they were not solved. Ways out: "
    "laws and inequalities at each time by itself, fewer times at once, or a coarser grid."
)


def _numbers(t: Tensor) -> np.ndarray:
    found: np.ndarray = t.detach().cpu().numpy()
    return found
