"""Any Gaussian within inequalities: a quadratic programme for each draw and each independent part.

A draw y of the Gaussian N(m, C), which obeys the laws, goes to the u that minimises
(u - y)^T C^+ (u - y) subject to A u >= h. That u is

    u = y + C A^T nu,   nu >= 0,   A u - h >= 0,   nu (A u - h) = 0

A guess which rows are active, corrected until it is right, mostly takes a few solves. Where it does
not settle, or rows follow from each other, non-negative least squares decides: with C = F^T F and
z the coordinates along F, |z| is least subject to A F^T z >= h - A y.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._errors import InfeasibleError

Array = NDArray[np.float64]
GUESSES = 30  # corrections of the active rows
NEAR = 1e-12  # standard deviations of a row: below this it is met
REPEATED = 1e-13  # share of its variance that a row of differences keeps, at least, to be moved
UNMET = 1e-7  # standard deviations of a row: how far least squares may leave it off
RANK = 1e-15  # of the largest: variances of directions that count


class Programme:
    """min (u - y)^T C^+ (u - y) subject to A u >= h, for many y."""

    def __init__(
        self, covariance: Array, rows: Array, least: Array, near: Array, root: Array | None = None
    ) -> None:
        """covariance: C, (N, N). rows: A, (m, N). least: h, (m,). near: what rounding may leave of
        points that nothing moves, (N,). root: F, (N, R), where C = F F^T is too rough."""
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
        try:
            return self._by_covariance(y, slack)
        except InfeasibleError:
            if self.root is None:
                raise
        return np.stack([self._along(self.root, *each) for each in zip(y, slack, strict=True)])

    def _by_covariance(self, y: Array, slack: Array) -> Array:
        self._check_fixed(y, slack)
        q = slack * self.scale
        nu = np.zeros_like(q)
        for i in np.flatnonzero((q < 0).any(-1)):
            nu[i] = self._multipliers(q[i])
        return y + (nu * self.scale) @ self.cross

    def _along(self, root: Array, y: Array, slack: Array) -> Array:
        """One y moved by F z with the least |z|, by least squares."""
        from scipy.optimize import nnls

        seen = self.rows @ root
        size = np.sqrt((seen**2).sum(-1))
        moves = size > 1e-13 * (np.abs(self.rows) @ np.sqrt((root**2).sum(-1)))
        if (slack[~moves] < -self.near[~moves]).any():
            self._check_fixed(y, np.where(moves, np.inf, slack))
        if not (slack[moves] < 0).any():
            return y
        seen, short = seen[moves] / size[moves, None], -slack[moves] / size[moves]
        unit = np.abs(short).max()
        matrix = np.vstack([seen.T, short / unit])
        wanted = np.eye(len(matrix))[-1]
        found, _ = nnls(matrix, wanted, maxiter=30 * matrix.shape[1])
        left = wanted - matrix @ found
        tries = [np.linalg.lstsq(seen[found > 0], short[found > 0], rcond=1e-13)[0]]
        tries += [-left[:-1] / left[-1] * unit] if left[-1] > 0 else []
        broken = [np.max(short - seen @ z) for z in tries]
        if not (worst := min(broken)) <= UNMET * (1 + unit):
            raise InfeasibleError(_NOTHING_OBEYS.format(worst))
        return y + root @ tries[int(np.argmin(broken))]

    def _check_fixed(self, y: Array, slack: Array) -> None:
        """Rows that nothing moves hold already."""
        wrong = ~self.moves & (slack < -self.near)
        if wrong.any():
            at = np.unravel_index(np.argmax(wrong), wrong.shape)
            raise InfeasibleError(
                "`bounds`, `monotone`: points without variance, or fixed by exact laws, break an "
                f"inequality by {-slack[at]:.3g} and cannot be moved. Ways out: correct their "
                "values, give them variance, or give the laws `noise`."
            )

    def _multipliers(self, q: Array) -> Array:  # (m,)
        near = NEAR * (1 + np.abs(q).max())
        active = q < -near
        for _ in range(GUESSES):
            nu = self._given(active, q)
            if nu is None:
                break
            left = q + self.gram @ nu
            new = np.where(active, nu > 0, left < -near)
            if (new == active).all():
                return nu
            active = new
        return self._by_least_squares(q, near)

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

    def _directions(self) -> Array:  # (m, R)
        """A F^T, rows scaled as `gram` is."""
        if not hasattr(self, "_seen"):
            std = np.sqrt(np.diag(self.covariance))
            inverse = np.where(std > 0, 1 / np.where(std > 0, std, 1.0), 0.0)
            sizes, vectors = np.linalg.eigh(self.covariance * inverse[:, None] * inverse)
            keep = sizes > RANK * sizes.max()
            root = std[:, None] * vectors[:, keep] * np.sqrt(sizes[keep])
            self._seen = (self.scale[:, None] * self.rows) @ root
        return self._seen

    def _by_least_squares(self, q: Array, near: float) -> Array:
        from scipy.optimize import nnls

        seen, size = self._directions(), np.abs(q).max()
        matrix = np.vstack([seen.T, -q / size])  # A F^T z >= -q
        wanted = np.zeros(len(matrix))
        wanted[-1] = 1.0
        found, _ = nnls(matrix, wanted, maxiter=30 * matrix.shape[1])
        left = wanted[-1] - matrix[-1] @ found
        nu = found * (size / left) if left > 0 else np.full_like(q, np.nan)
        again = self._polished(nu > 0, q)
        for each in (again, nu):
            if each is not None and (self._worst(each, q) <= near or each is nu):
                nu = each
                break
        worst = self._worst(nu, q)
        if not worst <= UNMET * (1 + size):
            raise InfeasibleError(_NOTHING_OBEYS.format(worst))
        return nu

    def _polished(self, active: NDArray[np.bool_], q: Array) -> Array | None:
        """The same active rows, solved to rounding; None where some multiplier turns negative."""
        nu, at = np.zeros_like(q), np.flatnonzero(active)
        nu[at] = np.linalg.lstsq(self.gram[np.ix_(at, at)], -q[at], rcond=1e-13)[0]
        return nu if (nu >= 0).all() else None

    def _worst(self, nu: Array, q: Array) -> Any:
        left = q + self.gram @ nu
        return np.max(-left[self.moves], initial=0.0) if np.isfinite(left).all() else np.inf


_NOTHING_OBEYS = (
    "no field obeys the exact laws and the inequalities together: the best found breaks an "
    "inequality by {:.3g} of its standard deviations. Ways out: widen the `bounds`, correct the "
    "values of the laws, or give laws `noise`."
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
