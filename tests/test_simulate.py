"""The finite-volume solver against closed forms, steady states, and another solver, py-pde."""

import math

import numpy as np
import pde
import pytest
import torch

from probconserv.problems import (
    Advection,
    Diffusion,
    Diffusive,
    GeneralStefan,
    PorousMedium,
    Stefan,
    SuperSlow,
    VariableCoefficient,
    _simulate,
    simulate,
)

TIMES = torch.tensor([0.02, 0.05, 0.2], dtype=torch.float64)
DIFFUSIVE = [
    Diffusion(2.0),
    PorousMedium(0.99),
    PorousMedium(6.0),
    Stefan(0.6),
    Stefan(0.6, k_min=0.2),
    VariableCoefficient(0.2),
    SuperSlow(1.0),
    GeneralStefan(0.5),
]


def label(problem):
    return f"{problem.name} {float(getattr(problem, problem.parameter)):g}"


def cell_averages(problem, t, edges):
    """From 400 points in each cell, counted from the middle of their parts."""
    parts = torch.linspace(0, 1, 401, dtype=torch.float64)[:-1] + 1 / 800
    points = edges[:-1, None] + edges.diff()[:, None] * parts
    return problem.solution(t, points).mean(-1)


def error(problem, t, cells):
    run = simulate(problem, [t], cells)
    return float((run.u[0] - cell_averages(problem, t, run.edges)).abs().mean())


@pytest.mark.parametrize("problem", DIFFUSIVE, ids=label)
def test_the_mass_balance_closes_and_no_value_leaves_the_range_of_the_data(problem):
    run = simulate(problem, TIMES, cells=24)
    mass = (run.u * run.edges.diff()).sum(-1)
    assert (mass - run.total).abs().max() < 1e-12
    assert run.inflow.diff().abs().min() > 0
    ends = [end.max() for end in problem.boundary(TIMES)]
    highest = max(*ends, problem.initial(run.x).max())
    lowest = min(0.0, float(problem.initial(run.x).min()))
    assert run.u.max() <= highest + 1e-9
    assert run.u.min() >= lowest - 1e-9


@pytest.mark.parametrize(
    ("problem", "t", "order"),
    [
        (Diffusion(1.0), 0.5, 1.9),
        (PorousMedium(1.0), 0.5, 1.8),
        (PorousMedium(3.0), 0.5, 1.2),
        (PorousMedium(6.0), 0.5, 1.0),
        (Stefan(0.6), 0.05, 0.9),
        (Stefan(0.6, k_min=0.3), 0.05, 1.4),
    ],
    ids=lambda value: label(value) if isinstance(value, Diffusive) else None,
)
def test_the_error_falls_with_the_width_of_a_cell(problem, t, order):
    """On average: single errors go up and down with the place of a front in its cell.

    (t - x)^(1/m) has 1 + 1/m derivatives in L1, a jump has one: there is no better order.
    """
    cells = [14, 18, 24, 32, 42]
    errors = [error(problem, t, m) for m in cells]
    assert -np.polyfit(np.log(cells), np.log(errors), 1)[0] > order


@pytest.mark.parametrize("m", [1.0, 3.0, 6.0])
def test_a_degenerate_conductivity_does_not_lock_the_front(m):
    run = simulate(PorousMedium(m), [0.2, 0.8], cells=40)
    for u, front in zip(run.u, (0.2, 0.8), strict=True):
        reached = float(run.x[u > 1e-3].max())
        assert reached == pytest.approx(front, abs=2.5 / 40)
        assert u[run.x > front + 3 / 40].abs().max() < 1e-6


def test_two_materials_settle_where_the_same_flux_passes_both():
    k = torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64)
    run = simulate(VariableCoefficient(k), torch.arange(1, 121).double() / 8, cells=12)
    flux = 2 / (1 + 1 / k)
    middle = 1 - flux / 2
    left = 1 - (1 - middle)[:, None] * run.x / 0.5
    right = middle[:, None] * (1 - run.x) / 0.5
    steady = torch.where(run.x < 0.5, left, right)
    torch.testing.assert_close(run.u[:, -1], steady, rtol=0, atol=1e-9)
    torch.testing.assert_close(run.inflow.diff()[:, -1], flux / 8, rtol=1e-9, atol=0)


def test_the_general_stefan_problem_is_the_half_line_one_until_it_meets_the_end():
    early = 0.02
    run = simulate(GeneralStefan(0.5), [early], cells=160)
    half_line = cell_averages(Stefan(0.5, k_min=0.1), early, run.edges)
    assert (run.u[0] - half_line).abs().mean() < 1e-4
    late = simulate(GeneralStefan(0.5), [5.0], cells=40)  # the potential, not u, ends up linear
    potential = 0.1 * late.u[0] + 0.9 * (late.u[0] - 0.5).clamp(min=0)
    torch.testing.assert_close(potential, 0.55 * (1 - late.x), rtol=0, atol=1e-6)


def test_many_parameters_are_each_by_itself():
    """All take the stages that the fastest needs, so results differ by the error of a step."""
    u_left = torch.tensor([[0.6, 0.8, 1.0], [1.1, 1.2, 1.4]], dtype=torch.float64)
    together = simulate(SuperSlow(u_left), [0.1, 0.3], cells=24)
    alone = simulate(SuperSlow(0.8), [0.1, 0.3], cells=24)
    assert together.u.shape == (2, 3, 2, 24)
    assert together.total.shape == (2, 3, 2)
    assert (together.u[0, 1] - alone.u).abs().mean() < 2e-4


@pytest.mark.parametrize("problem", DIFFUSIVE[3:], ids=label)
def test_an_answer_does_not_depend_on_what_else_is_asked(problem):
    alone = simulate(problem, [0.01], cells=24)
    early = simulate(problem, [0.01, 0.3], cells=24)
    torch.testing.assert_close(early.u[0], alone.u[0], rtol=0, atol=1e-12)
    dense = simulate(problem, torch.linspace(0.001, 0.01, 10).double(), cells=24)
    assert (dense.u[-1] - alone.u[0]).abs().mean() < 1e-3


def test_any_parameter_can_be_a_batch():
    k_min = torch.tensor([0.1, 0.9], dtype=torch.float64)
    together = simulate(GeneralStefan(0.5, k_min=k_min), [0.05], cells=40)
    assert together.u.shape == (2, 1, 40)
    for i in range(2):
        alone = simulate(GeneralStefan(0.5, k_min=float(k_min[i])), [0.05], cells=40)
        torch.testing.assert_close(together.u[i], alone.u, rtol=0, atol=1e-12)


def test_a_conductivity_with_a_bump_between_the_cells_is_stable():
    class Bump(SuperSlow):
        def _conductivity(self, u, x):
            return 1e-3 + torch.exp(-(((u - 0.5) / 0.15) ** 2))

    run = simulate(Bump(1.0), [1.0], cells=50)
    assert run.u.min() >= -1e-9
    assert run.u.max() <= 1 + 1e-9


def test_a_boundary_that_swings_is_followed():
    class Swing(PorousMedium):
        def _boundary(self, t):
            return (40 * math.pi * t).sin() ** 2, 0 * t

    run = simulate(Swing(3.0), [1.0], cells=41)
    assert run.u.isfinite().all()
    assert run.u.max() <= 1 + 1e-3
    assert (run.u.sum(-1) / 41 - run.total).abs().max() < 1e-12


def test_the_start_is_the_average_over_each_cell():
    class Cubic(Ring):
        def _initial(self, x):
            return x**3

    run = simulate(Cubic(1.0), [0.0], cells=7)
    exact = (run.edges**4).diff() / 4 * 7
    torch.testing.assert_close(run.u[0], exact, rtol=0, atol=1e-14)
    assert run.initial_total == pytest.approx(0.25, abs=1e-14)


def test_gradients_pass_through_the_solver():
    u_left = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(simulate(SuperSlow(u_left), [0.1], cells=20).total.sum(), u_left)
    up, down = (float(simulate(SuperSlow(v), [0.1], cells=20).total) for v in (1.001, 0.999))
    assert float(slope) == pytest.approx((up - down) / 0.002, rel=5e-3)  # steps differ a little


def test_the_start_can_be_among_the_times():
    run = simulate(Diffusion(1.0), [0.0, 0.1], cells=10)
    edges = run.edges.cos()
    torch.testing.assert_close(run.u[0], -edges.diff() / run.edges.diff(), rtol=0, atol=1e-6)
    assert (simulate(Diffusion(1.0), [0.0], cells=10).u[0] == run.u[0]).all()


class Ring(SuperSlow):
    periodic = True

    def _initial(self, x):
        return self.u_left + 0.3 * (2 * math.pi * x).sin()


class SmoothRing(Ring):
    def _conductivity(self, u, x):
        return 1 + 0.5 * (2 * math.pi * x).cos() + 0 * u


@pytest.mark.parametrize(
    ("problem", "formula", "ends", "start"),
    [
        (
            Ring(0.7),
            "exp(-1/u) * laplace(u) + exp(-1/u) / u**2 * gradient_squared(u)",
            "periodic",
            "0.7 + 0.3 * sin(2 * pi * x)",
        ),
        (
            SmoothRing(0.7),
            "(1 + 0.5 * cos(2 * pi * x)) * laplace(u) - pi * sin(2 * pi * x) * d_dx(u)",
            "periodic",
            "0.7 + 0.3 * sin(2 * pi * x)",
        ),
        (
            GeneralStefan(0.5),
            "laplace(0.1 * u + 0.9 * (u - 0.5) * heaviside(u - 0.5, 0.5))",
            {"x-": {"value": 0.55}, "x+": {"value": 0}},
            "0",
        ),
    ],
    ids=["super_slow", "variable", "general_stefan"],
)
def test_py_pde_agrees(problem, formula, ends, start):
    """It steps other forms of the equation: not conservative, or with the potential of k."""
    grid = pde.CartesianGrid([problem.domain], 64, periodic=problem.periodic)
    other = pde.PDE({"u": formula}, bc=ends).solve(
        pde.ScalarField.from_expression(grid, start),
        t_range=0.05,
        tracker=None,
        solver="scipy",
        method="BDF",
        rtol=1e-6,
        atol=1e-8,
        backend="numpy",
    )
    run = simulate(problem, [0.05], cells=64)
    assert np.abs(other.data - run.u[0].numpy()).mean() < 3e-4
    assert (run.u[0] - problem.initial(run.x)).abs().mean() > 3e-3  # something has happened


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"`problem` must be diffusive.*got Advection"):
        simulate(Advection(1.0), [0.1])
    with pytest.raises(ValueError, match="`t` must be >= 0"):
        simulate(Diffusion(1.0), [-0.1, 0.1])
    with pytest.raises(ValueError, match="`t` must increase strictly"):
        simulate(Diffusion(1.0), [0.2, 0.1])
    with pytest.raises(ValueError, match=r"`cells` must be at least 3, got 2"):
        simulate(Diffusion(1.0), [0.1], cells=2)
    with pytest.raises(ValueError, match=r"`cells` must be a whole number, got 2.5"):
        simulate(Diffusion(1.0), [0.1], cells=2.5)


def test_a_time_out_of_reach_is_refused(monkeypatch):
    monkeypatch.setattr(_simulate, "MOST_STAGES", 100)
    assert simulate(Diffusion(10.0), [1.0], cells=4).u.isfinite().all()
    with pytest.raises(ValueError, match=r"`t` is too late for `cells`.*Take fewer cells"):
        simulate(Diffusion(1e5), [1.0], cells=4)


def test_a_flux_that_nothing_can_follow_is_refused():
    class Wild(Diffusion):
        def _mean_conductivity(self, left, right, x):  # not the mean of its k
            return 1e300 + 0 * left

    with pytest.raises(ValueError, match="`problem` has no stable solution past t = 0"):
        simulate(Wild(1.0), [1.0], cells=20)


def test_a_negative_conductivity_is_refused():
    class Runaway(Diffusion):
        def _conductivity(self, u, x):
            return -1 + 0 * u

    with pytest.raises(ValueError, match=r"finite conductivity k\(u, x\) >= 0"):
        simulate(Runaway(1.0), [5.0], cells=60)
