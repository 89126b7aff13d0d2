"""A conservative finite-volume solver for u_t = (k(u, x) u_x)_x."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ._problem import NODES, WEIGHTS, Diffusive

SAFETY = 0.9
MOST_STAGES = 5000


@dataclass(frozen=True, eq=False)
class Simulation:
    """Cell averages at given times, and what went through the ends until then.

    Attributes
    ----------
    t : Tensor, shape (T,)
        The times.
    edges : Tensor, shape (M + 1,)
        The ends of the cells.
    u : Tensor, shape (..., T, M)
        The cell averages.
    inflow : Tensor, shape (..., T)
        What came in through the left end since t = 0.
    outflow : Tensor, shape (..., T)
        What went out through the right end since t = 0.
    initial_total : Tensor, shape (...)
        The integral of u at t = 0.
    """

    t: Tensor
    edges: Tensor
    u: Tensor
    inflow: Tensor
    outflow: Tensor
    initial_total: Tensor

    @property
    def x(self) -> Tensor:
        """The centres of the cells, (M,)."""
        return (self.edges[1:] + self.edges[:-1]) / 2

    @property
    def total(self) -> Tensor:
        """What the integral of u must be by the law: initial total + inflow - outflow, (..., T)."""
        return self.initial_total[..., None] + self.inflow - self.outflow


def simulate(problem: Diffusive, t: ArrayLike, cells: int = 200) -> Simulation:
    """The solution of u_t = (k(u, x) u_x)_x at times t, by conservative finite volumes.

    Between neighbouring cells the flux is -k (u_right - u_left) / dx. In u, k is its mean between
    the two values, so that a front is fed from behind even where k = 0 ahead of it; in x it is the
    harmonic mean of both cells, as for resistances in series. What leaves a cell enters the next,
    so the total changes only by what passes the ends, to rounding. Time goes by second-order
    Runge-Kutta-Legendre steps: explicit, far longer than explicit Euler's, and in proportion to the
    width of a cell and to the time since the start.

    The accuracy is second order in the width where u is smooth, about first where it has a front.
    Steps do not look at how fast boundary values change: ask for more times where they do.

    Parameters
    ----------
    problem : Diffusive
        With parameters of shape (...).
    t : array, shape (T,)
        The times, increasing, not negative.
    cells : int
        M, how many cells of equal width; at least 3.

    Returns
    -------
    Simulation
        The cell averages at the times.

    Raises
    ------
    InputError
        If the problem is not diffusive, or has no stable solution.

    Examples
    --------
    >>> from probconserv.problems import PorousMedium
    >>> melt = simulate(PorousMedium(m=2.0), t=[0.25, 0.5], cells=50)
    >>> (melt.u.sum(-1) / 50 - melt.total).abs().max() < 1e-12
    tensor(True)
    """
    if not isinstance(problem, Diffusive):
        raise InputError(
            "`problem` must be diffusive, u_t = (k(u, x) u_x)_x, with its parameters, such as "
            f"SuperSlow(u_left=1.0); got {problem!r:.60}."
        )
    problem, (t,) = problem._ready(t=t)
    check.increasing("t", t, least=1)
    if check.whole("cells", cells) < 3:
        raise InputError(f"`cells` must be at least 3, got {cells}.")
    mesh = _Mesh(problem, cells, t)
    state, now, states = mesh.start, 0.0, []
    for then in t.tolist():
        while now < then:
            end = now + mesh.step(state, now)
            end = then if end > then - (end - now) / 2 else end  # no sliver is left over
            state, now = mesh.advance(state, now, end), end
        states.append(state)
    u, inflow, outflow = torch.stack(states, dim=-2).split([cells, 1, 1], dim=-1)
    initial = mesh.start[..., :-2].sum(-1) * mesh.width
    return Simulation(t, mesh.edges, u, inflow[..., 0], outflow[..., 0], initial)


class _Mesh:
    """Cells of equal width. A state is u in the cells, then what came in and went out."""

    def __init__(self, problem: Diffusive, cells: int, like: Tensor) -> None:
        self.problem, self.cells = problem[..., None], cells
        self.edges = torch.linspace(*problem.domain, cells + 1, dtype=like.dtype).to(like)
        self.centres = (self.edges[1:] + self.edges[:-1]) / 2
        self.width = (problem.domain[1] - problem.domain[0]) / cells
        ends = self.centres.flip(0) if problem.periodic else self.edges
        self.places = torch.cat([ends[:1], self.centres, ends[-1:]])
        sides = torch.stack([self.places[:-1], self.places[1:]])
        self.sides = sides.reshape(2, *[1] * len(problem.shape), -1)  # x left and right of faces
        self.spacing = torch.full_like(self.edges, self.width)
        if not problem.periodic:
            self.spacing[[0, -1]] /= 2
        u = self._averages().expand(*problem.shape, cells)
        self.start = torch.cat([u, torch.zeros_like(u[..., :2])], dim=-1)

    def _averages(self) -> Tensor:
        """The initial condition, averaged over each cell."""
        parts = NODES.to(self.edges) * self.width / 2
        u = [self.problem._initial(self.centres + part) for part in parts]
        return sum(w / 2 * v for w, v in zip(WEIGHTS.to(self.edges), u, strict=True))

    def step(self, state: Tensor, now: float) -> float:
        """How far to go: half a cell of time; at first, where data can jump, less."""
        careful = max(self.euler_step(state, now, now), 2 * now / self.cells)
        return max(min(careful, self.problem.time_range[1] / (2 * self.cells)), now / self.cells)

    def advance(self, state: Tensor, start: float, end: float) -> Tensor:
        """From start to end; in two halves where a value leaves the range of the data."""
        euler = self.euler_step(state, start, end)
        stages = _stages((end - start) / euler)
        if stages > MOST_STAGES:
            raise InputError(
                f"`t` is too late for `cells`: the step from {start:.3g} to {end:.3g} would take "
                f"{stages} stages. Take fewer cells, or more times in between."
            )
        new = _advance(self.rate, state, start, end - start, stages)
        low, high = self._range(state, start, end)
        slack = 1e-3 * (high - low) + 1e-9 * max(abs(low), abs(high))
        least, most = (float(v) for v in new[..., :-2].detach().aminmax())
        if low - slack <= least and most <= high + slack:
            return new
        if end - start < 1e-3 * euler:
            raise InputError(
                f"`problem` has no stable solution past t = {start:.6g}. Its conductivity k(u, x) "
                "must be finite and >= 0, its boundary values continuous in time."
            )
        middle = (start + end) / 2
        return self.advance(self.advance(state, start, middle), middle, end)

    def rate(self, state: Tensor, t: float) -> Tensor:
        u = self._with_ends(state, t)
        left, right = u[..., :-1], u[..., 1:]
        k = self.problem._mean_conductivity(left, right, self.sides)
        k_left, k_right = k.expand(2, *left.shape)
        both = k_left + k_right
        k = 2 * k_left * k_right / torch.where(both > 0, both, 1)
        flux = k * (left - right) / self.spacing
        return torch.cat([-flux.diff() / self.width, flux[..., :1], flux[..., -1:]], dim=-1)

    def euler_step(self, state: Tensor, start: float, end: float) -> float:
        """A step that is stable with explicit Euler for all values that u can take until `end`."""
        low, high = self._range(state, start, end)
        u = torch.linspace(low, high, 65, dtype=state.dtype, device=state.device)
        between = self.problem._conductivity(u.reshape(-1, *[1] * state.ndim), self.places)
        here = self.problem._conductivity(self._with_ends(state, start), self.places)
        ends = [float(v) for k in (between, here) for v in k.detach().aminmax()]
        if not (min(ends) >= 0 and math.isfinite(max(ends))):
            raise InputError("`problem` must have a finite conductivity k(u, x) >= 0 everywhere.")
        faces = 2 if self.problem.periodic else 3  # to the end of the domain it is half as far
        return self.width**2 / (faces * max(ends)) if max(ends) else math.inf

    def _range(self, state: Tensor, start: float, end: float) -> tuple[float, float]:
        """The least and the largest value inside and at the ends, which u does not leave."""
        seen = [state[..., :-2]]
        if not self.problem.periodic:
            seen += self.problem._boundary(
                torch.linspace(start, end, 9, dtype=state.dtype).to(state)
            )
        ends = [v.detach().aminmax() for v in seen]
        return min(float(low) for low, _ in ends), max(float(high) for _, high in ends)

    def _with_ends(self, state: Tensor, t: float) -> Tensor:
        u = state[..., :-2]
        if self.problem.periodic:
            return torch.cat([u[..., -1:], u, u[..., :1]], dim=-1)
        left, right = self.problem._boundary(torch.full_like(self.edges[:1], t))
        shape = (*u.shape[:-1], 1)
        return torch.cat([left.expand(shape), u, right.expand(shape)], dim=-1)


def _stages(ratio: float) -> int:
    """The fewest stages of a step `ratio` times as long as explicit Euler's, an odd number."""
    stages = math.ceil((math.sqrt(9 + 16 * ratio / SAFETY) - 1) / 2)
    return max(3, stages + 1 - stages % 2)


def _advance(
    rate: Callable[[Tensor, float], Tensor], y: Tensor, t: float, step: float, stages: int
) -> Tensor:
    """One step of RKL2, the second-order Runge-Kutta-Legendre method.

    Its stages follow the recursion of the Legendre polynomials, which stay below 1 in size on all
    of [-1, 1]: the step is stable up to (stages^2 + stages - 2) / 4 times explicit Euler's.
    """
    b = [1 / 3] * 3 + [(j * j + j - 2) / (2 * j * (j + 1)) for j in range(3, stages + 1)]
    scale = 4 / (stages**2 + stages - 2)
    first = step * rate(y, t)
    before, now = y, y + b[1] * scale * first
    for j in range(2, stages + 1):
        mu, nu = (2 * j - 1) / j * b[j] / b[j - 1], -(j - 1) / j * b[j] / b[j - 2]
        at = t + step * scale / 4 * (((j - 1) ** 2 + j - 3) if j > 2 else 4 / 3)
        change = step * rate(now, at) - (1 - b[j - 1]) * first
        now, before = mu * now + nu * before + (1 - mu - nu) * y + mu * scale * change, now
    return now
