"""Any Gaussian within inequalities: a quadratic programme for each draw and each independent part.

A draw y of the Gaussian N(m, C), which obeys the laws, goes to the u that minimises
(u - y)^T C^+ (u - y) subject to A u >= h. That u is

    u = y + C A^T nu,   nu >= 0,   A u - h >= 0,   nu (A u - h) = 0

A guess which rows are active, corrected until it is right, mostly takes a few solves. Where it does
not settle, or rows follow from each other, non-negative least squares decides: with C = F^T F and
z the coordinates along F, |z| is least subject to A F^T z >= h - A y.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...support.errors import InfeasibleError

Array = NDArray[np.float64]
GUESSES = 30  # corrections of the active rows
NEAR = 1e-12  # standard deviations of a row: below this it is met
REPEATED = 1e-13  # share of its variance that a row of differences keeps, at least, to be moved
GIVES = (0.0, 1e-9, 1e-7, 1e-5)  # by how much rows give way, one after the other
UNMET = 1e-7  # standard deviations of a row: how far least squares may leave it off
RANK = 1e-15  # of the largest: variances of directions that count


class Programme:
    """min (u - y)^T C^+ (u - y) subject to A u >= h, for many y."""

    def __init__(
        self,
        covariance: Array,
        rows: Array,
        least: Array,
        near: Array,
        root: Callable[[], Array],
    ) -> None:
        """covariance: C, (N, N). rows: A, (m, N). least: h, (m,). near: what rounding may leave of
        points that nothing moves, (N,). root: makes F, (N, R), where C = F F^T is too rough."""
        self.covariance, self.rows, self.least = covariance, rows, least
        self.near = np.abs(rows) @ near
        self.cross = rows @ covariance  # A C, (m, N)
        gram = self.cross @ rows.T
        before = (rows**2) @ np.diag(covariance)
        own = np.diag(gram)
        self.moves = own > REPEATED * before
        scale = np.where(self.moves, own, 1.0) ** -0.5
        self.scale = np.where(self.moves, scale, 0.0)
        self.gram = gram * self.scale[:, None] * self.scale
        self.root = root

    def solve(self, y: Array) -> Array:  # (n, N)
        """Each y moved to where the inequalities hold, up to rounding."""
        slack = y @ self.rows.T - self.least
        q = slack * self.scale
        found = y.copy()
        stuck = np.any(~self.moves & (slack < -self.near), axis=-1)
        for i in np.flatnonzero(stuck | (q < 0).any(-1)):
            nu = None if stuck[i] else self._multipliers(q[i])
            if nu is None:
                found[i] = self._along.moved(y[i], slack[i])
            else:
                found[i] = y[i] + (nu * self.scale) @ self.cross
        return found

    @cached_property
    def _along(self) -> "Along":
        return Along(self.rows, self.near, self.root())

    def _multipliers(self, q: Array) -> Array | None:  # (m,)
        """nu of the guess that settles, if one does."""
        near = NEAR * (1 + np.abs(q).max())
        active = q < -near
        for _ in range(GUESSES):
            nu = self._given(active, q)
            if nu is None:
                return None
            left = q + self.gram @ nu
            new = np.where(active, nu > 0, left < -near)
            if (new == active).all():
                return nu
            active = new
        return None

    def _given(self, active: NDArray[np.bool_], q: Array) -> Array | None:
        """Multipliers that make the active rows hold with equality."""
        nu, at = np.zeros_like(q), np.flatnonzero(active)
        try:
            root = np.linalg.cholesky(self.gram[np.ix_(at, at)])
        except np.linalg.LinAlgError:
            return None
        if len(at) and np.diag(root).min() < 1e-6:
            return None
        from scipy.linalg import solve_triangular

        half = solve_triangular(root, -q[at], lower=True, check_finite=False)
        nu[at] = solve_triangular(root, half, lower=True, trans=1, check_finite=False)
        return nu


class Along:
    """The least |z| with A (y + F z) >= h, by non-negative least squares."""

    def __init__(self, rows: Array, near: Array, root: Array) -> None:
        self.root, self.near = root, near
        seen = rows @ root
        size = np.sqrt((seen**2).sum(-1))
        self.moves = size > REPEATED * (np.abs(rows) @ np.sqrt((root**2).sum(-1)))
        self.size = size[self.moves]
        self.seen = seen[self.moves] / self.size[:, None]

    def moved(self, y: Array, slack: Array) -> Array:
        wrong = np.where(self.moves, 0.0, -slack - self.near)
        if (wrong > 0).any():
            raise InfeasibleError(
                "`bounds`, `monotone`: points without variance, or fixed by exact laws, break an "
                f"inequality by {-slack[wrong.argmax()]:.3g} and cannot be moved. Ways out: "
                "correct their values, give them variance, or give the laws `noise`."
            )
        short = -slack[self.moves] / self.size
        unit = np.abs(short).max(initial=0.0)
        worst = np.inf
        for give in GIVES:
            for z in self._tries(short, unit, give):
                broken = np.max(short - self.seen @ z, initial=0.0)
                if broken < worst:
                    worst, best = broken, z
            if worst <= UNMET * (1 + unit):
                return y + self.root @ best
        raise InfeasibleError(_NOTHING_OBEYS.format(worst))

    def _tries(self, short: Array, unit: float, give: float) -> list[Array]:
        """Where rows give way, at a price: the rows that hold there are then met exactly."""
        from scipy.optimize import nnls

        count, across = self.seen.shape
        matrix = np.vstack([self.seen.T, give * np.eye(count), short / unit])
        wanted = np.eye(len(matrix))[-1]
        found, _ = nnls(matrix, wanted, maxiter=30 * count)
        left = wanted - matrix @ found
        at = found > 0
        tries = [np.linalg.lstsq(self.seen[at], short[at], rcond=1e-13)[0]]
        return [*tries, *([-left[:across] / left[-1] * unit] if left[-1] > 0 else [])]


_NOTHING_OBEYS = (
    "no field obeys the exact laws and the inequalities together: the best found breaks an "
    "inequality by {:.3g} of its standard deviations. Ways out: correct the values of the laws, "
    "loosen `bounds` or `monotone`, or give laws `noise`."
)


def root_given(prior: Array, rows: Array, noise: Array) -> Array:  # (N, R)
    """F with F F^T the covariance given rows G: right relative to each direction, however small
    the noise. noise: its variances, 0 for exact rows."""
    std = np.sqrt(np.diag(prior))
    inverse = 1 / np.where(std > 0, std, np.inf)
    sizes, vectors = np.linalg.eigh(prior * inverse[:, None] * inverse)
    keep = sizes > RANK * max(sizes.max(), 0)
    root = std[:, None] * vectors[:, keep] * np.sqrt(sizes[keep])
    seen = rows @ root
    exact = (noise == 0) & (np.abs(seen).max(-1, initial=0.0) > 0)
    if exact.any():
        unit = seen[exact] / np.linalg.norm(seen[exact], axis=-1, keepdims=True)
        _, found, across = np.linalg.svd(unit)
        root = root @ across[np.sum(found > 1e-12 * found[0]) :].T
        root[np.linalg.norm(root, axis=-1) <= REPEATED * std] = 0.0
    noisy = noise > 0
    _, found, across = np.linalg.svd(rows[noisy] @ root / np.sqrt(noise[noisy])[:, None])
    shrunk = np.ones(len(across))
    shrunk[: len(found)] = 1 / np.sqrt(1 + found**2)
    return root @ across.T * shrunk


def settled_on_face(
    u: Array,
    law: tuple[Array, Array],
    variance: Array,
    ends: tuple[Array, Array],
    pairs: Sequence[Array],
    inside: float,
) -> Array:  # (N,)
    """`u` with what exact rows miss made up for by the least step that keeps to its inequalities.

    law: G and b. ends: bounds. pairs: (i, j) with u_j >= u_i. inside: standard deviations, a point
    closer to its bound goes there, and points closer to each other move together.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    near, count, (rows, value) = inside * np.sqrt(variance), len(u), law
    links = [p[:, u[p[1]] - u[p[0]] <= np.minimum(near[p[0]], near[p[1]])] for p in pairs]
    i, j = np.concatenate([np.zeros((2, 0), int), *links], 1)
    _, blocks = connected_components(coo_array((np.ones(len(i)), (i, j)), shape=(count, count)))
    stuck = variance == 0
    for end in ends:
        there = np.abs(u - end) <= near
        u, stuck = np.where(there, end, u), stuck | there
    free = ~np.isin(blocks, blocks[stuck])
    basis = np.zeros((count, blocks.max() + 1))
    basis[free, blocks[free]] = 1.0
    spread = np.sqrt(variance @ basis**2)  # of each block
    seen, missing = (rows @ basis) * spread, value - rows @ u
    size = np.abs(seen).max(-1, initial=0.0)
    scale = 1 / np.where(size > 0, size, 1.0)
    step = np.linalg.lstsq(seen * scale[:, None], missing * scale, rcond=1e-12)[0]
    return u + basis @ (spread * step)
