"""Facts of the problems in more dimensions, by other routes than the code's."""

import doctest
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import cubature, quad, tanhsinh
from scipy.linalg import expm
from scipy.special import betainc, gamma
from torch.autograd import gradcheck

from probconserv.problems import Barenblatt, Drift, LinearFlow


def integrated(function, low, high):
    """By adaptive cubature."""
    found = cubature(
        lambda x: function(*torch.from_numpy(x).T).numpy(), low, high, rtol=1e-11, atol=1e-14
    )
    assert found.status == "converged"
    return float(found.estimate)


def test_the_example_of_the_docs_runs():
    page = Path(__file__).parents[1] / "docs" / "learn" / "equations.md"
    assert doctest.testfile(str(page), module_relative=False) == (0, 7)


def test_a_period_must_be_spanned():
    with pytest.raises(ValueError, match=r"`y` must span the period of drift, from 0 to 1"):
        Drift(0.01).face_fluxes([0.1], [0.0, 0.5, 1.0], [0.0, 0.5, 0.9])


def test_what_cannot_be_integrated_is_refused():
    grid = [-1.0, 0.0, 1.0]
    with pytest.raises(ValueError, match=r"512 points .* Take smaller cells"):
        LinearFlow(1e-6, width=5e-4).cell_averages([0.5], grid, grid)
    with pytest.raises(ValueError, match=r"512 points .* Take shorter intervals of `t`"):
        Drift(1e-6, velocity_x=50.0).interval_fluxes([0.0, 20.0], [0.0, 0.5, 1.0], [0.0, 1.0])
    with pytest.raises(ValueError, match="Take an `m` further from 1"):
        Barenblatt(1.001, dims=1).cell_averages([0.0], grid)
    with pytest.raises(ValueError, match="`t` is too late: the flow has stretched"):
        LinearFlow(0.001, rotation=0.0, strain=3.0).total(3.0)
    fine = [-1.0, 0.1, 0.101, 1.0]
    with pytest.raises(ValueError, match="Take larger cells"):
        Barenblatt(2.0).cell_averages([0.0], fine, fine)


def test_a_drop_has_one_to_three_dimensions():
    with pytest.raises(ValueError, match="`dims` must be 1, 2 or 3; got 4"):
        Barenblatt(2.0, dims=4)
    with pytest.raises(ValueError, match=r"`dims` must be 1, 2 or 3; got 2\.0"):
        Barenblatt(2.0, dims=2.0)
    with pytest.raises(ValueError, match="`radius` must be > 0"):
        Barenblatt(2.0, radius=0.0)
    with pytest.raises(ValueError, match="`m` must be finite"):
        Barenblatt(1e5, mass=1e3)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("m", [1.5, 2.0, 4.0])
def test_the_drop_is_barenblatts(dims, m):
    """In the form of the books: s^-alpha (C - kappa r^2 s^(-2 beta))_+^(1/(m-1)), s = t + t_0."""
    drop = Barenblatt(m, dims=dims)
    beta = 1 / (dims * (m - 1) + 2)
    kappa, p = beta * (m - 1) / (2 * m), 1 / (m - 1)
    ball = math.pi ** (dims / 2) * gamma(p + 1) / gamma(p + 1 + dims / 2)
    c = (0.5 * kappa ** (dims / 2) / ball) ** (1 / (p + dims / 2))
    t_0 = (0.5 / math.sqrt(c / kappa)) ** (1 / beta)
    assert float(drop.front(0.0)) == 0.5
    for t in (0.0, 0.03, 0.1):
        s = t + t_0
        r = 0.4 * math.sqrt(c / kappa) * s**beta
        expected = s ** (-dims * beta) * (c - kappa * r**2 * s ** (-2 * beta)) ** p
        u = drop.solution(t, r, *[0.0] * (dims - 1))
        assert float(u) == pytest.approx(expected, rel=1e-12)


def adaptive(function, low, high, kinks):
    cuts = [low, *sorted(k for k in kinks if low < k < high), high]
    how = {"epsabs": 1e-12, "epsrel": 1e-12, "limit": 200}
    return sum(quad(function, a, b, **how)[0] for a, b in itertools.pairwise(cuts))


def crossings(square, *lines):
    """Where a sphere of that radius squared crosses the edges along these lines."""
    left = [square - sum(v**2 for v in at) for at in itertools.product(*lines)]
    return [sign * math.sqrt(z) for z in left if z > 0 for sign in (-1, 1)]


def in_rectangle(p, square, x, y):
    """The integral of (square - x^2 - y^2)_+^p: by scipy's beta function, and adaptive steps."""
    full = math.sqrt(math.pi) * gamma(p + 1) / gamma(p + 1.5) / 2

    def column(x):
        z2 = square - x**2
        if z2 <= 0:
            return 0.0
        ends = [math.copysign(betainc(0.5, p + 1, min(1, v * v / z2)), v) for v in y]
        return z2 ** (p + 0.5) * full * (ends[1] - ends[0])

    return adaptive(column, *x, crossings(square, (0.0, *y)))


def in_cuboid(p, square, x, y, z):
    def slab(z):
        return in_rectangle(p, square - z**2, x, y)

    return adaptive(slab, *z, crossings(square, (0.0, *x), (0.0, *y)))


def average(drop, t, *sides):
    """Of a cell, by adaptive quadrature split where the front crosses its edges."""
    p, square = 1 / (float(drop.m) - 1), float(drop.front(t)) ** 2
    whole = (in_rectangle if len(sides) == 2 else in_cuboid)(p, square, *sides)
    top = float(drop.solution(t, *[0.0] * len(sides)))
    return top * square**-p * whole / math.prod(b - a for a, b in sides)


@pytest.mark.parametrize("m", [1.7, 2.0, 3.0, 6.0])
def test_averages_of_cells_that_the_front_cuts(m):
    drop, t = Barenblatt(m), 0.02
    x = torch.tensor([-0.7, -0.45, -0.1, 0.2, 0.5, 0.9], dtype=torch.float64)
    y = torch.tensor([-0.8, -0.3, 0.35, 0.6], dtype=torch.float64)
    found = drop.cell_averages([t], x, y)[0]
    for i, j in itertools.product(range(5), range(3)):
        expected = average(drop, t, x[i : i + 2].tolist(), y[j : j + 2].tolist())
        assert float(found[i, j]) == pytest.approx(expected, rel=1e-10, abs=1e-11)


def test_averages_of_cells_that_the_front_cuts_in_three_dimensions():
    drop, t = Barenblatt(4.0, dims=3), 0.02
    edges = [[-0.2, 0.25, 0.6], [0.1, 0.45], [-0.5, 0.0, 0.3]]
    found = drop.cell_averages([t], *edges)[0]
    for i, k in ((0, 1), (1, 0)):
        expected = average(drop, t, edges[0][i : i + 2], edges[1], edges[2][k : k + 2])
        assert float(found[i, 0, k]) == pytest.approx(expected, rel=1e-9)


def test_a_face_that_the_front_crosses_in_time():
    drop, ends = Barenblatt(4.0), [0.001, 0.1]
    edges = [[-1.0, 0.55, 1.0], [-0.1, 0.2]]
    radii = torch.tensor([0.55, math.hypot(0.55, 0.1), math.hypot(0.55, 0.2)], dtype=torch.float64)
    kinks = (((radii / 0.5) ** (1 / drop._rate) - 1) * drop._age).tolist()
    torch.testing.assert_close(drop.front(kinks), radii)
    assert ends[0] < kinks[0] < ends[1]

    def flux(t):  # of many times at once, in any order
        times, back = np.unique(t, return_inverse=True)
        return drop.face_fluxes(times, *edges)[0][:, 1, 0].numpy()[back].reshape(t.shape)

    cuts = [ends[0], *(k for k in sorted(kinks) if k < ends[1]), ends[1]]
    found = tanhsinh(flux, cuts[:-1], cuts[1:], rtol=1e-10, atol=1e-13)
    assert found.success.all()
    passed = float(found.integral.sum())
    mean = float(drop.interval_fluxes(ends, *edges)[0][0, 1, 0])
    assert mean == pytest.approx(passed / (ends[1] - ends[0]), rel=1e-8)


def test_inside_a_drop_with_m_2_averages_are_those_of_a_parabola():
    for dims in (1, 2, 3):
        drop = Barenblatt(2.0, dims=dims)
        edges = [[-0.1, 0.05, 0.2], [-0.15, 0.0, 0.1], [0.05, 0.1, 0.2]][:dims]
        front, top = float(drop.front(0.05)), float(drop.solution(0.05, *[0.0] * dims))
        means = [[(a * a + a * b + b * b) / 3 for a, b in itertools.pairwise(e)] for e in edges]
        lines = [torch.tensor(e, dtype=torch.float64) for e in means]
        squares = sum(torch.meshgrid(*lines, indexing="ij"))
        expected = top * (1 - squares / front**2)
        found = drop.cell_averages([0.05], *edges)[0]
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=0)


def test_cells_the_drop_has_not_reached_are_empty():
    edges = torch.linspace(-1, 1, 21, dtype=torch.float64)
    drop, t = Barenblatt(3.0), torch.linspace(0, 0.1, 4, dtype=torch.float64)
    u, (flux, _) = drop.cell_averages(t, edges, edges), drop.interval_fluxes(t, edges, edges)
    near = torch.minimum(edges[:-1].abs(), edges[1:].abs())
    dry = (near[:, None] ** 2 + near**2).sqrt() >= drop.front(t)[:, None, None]
    assert (u[dry] == 0).all()
    assert (u[~dry] > -1e-15).all()
    assert (flux[:, 0] == 0).all()
    assert (flux[:, -1] == 0).all()


def test_the_drift_is_what_the_fourier_series_says():
    cloud = Drift(0.01, velocity_x=1.3, velocity_y=-0.4)
    n = 128
    x = torch.arange(n, dtype=torch.float64) / n
    waves = torch.fft.fft2(cloud.initial(x[:, None], x))
    k = 2 * torch.pi * torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)
    a, b = k[:, None], k
    for t in (0.2, 1.0, 7.0, 40.0):
        change = (-(0.01 * (a**2 + b**2) + 1j * (1.3 * a - 0.4 * b)) * t).exp()
        series = torch.fft.ifft2(waves * change).real
        torch.testing.assert_close(cloud.solution(t, x[:, None], x), series, rtol=0, atol=1e-11)
    edges = torch.linspace(0, 1, 4, dtype=torch.float64)
    u = cloud.cell_averages([0.3], edges, edges)[0]
    expected = integrated(lambda *x: cloud.solution(0.3, *x), [1 / 3, 0], [2 / 3, 1 / 3])
    assert float(u[1, 0]) == pytest.approx(9 * expected, rel=1e-10)


@pytest.mark.parametrize(
    "rates", [(1.0, 1.5, 0.0), (0.0, 0.0, 1.2), (0.0, -2.0, 0.0), (2.0, 0.3, 0.4)]
)
def test_the_linear_flow_has_the_covariance_of_its_equation(rates):
    """exp of [[-A, 2kI], [0, A^T]] holds the integral of exp(As) 2k exp(A^T s)."""
    rotation, shear, strain = rates
    flow = LinearFlow(0.02, *rates, y0=0.1)
    a = np.array([[strain, shear - rotation], [rotation, -strain]])
    for t in (0.0, 1e-3, 0.7, 1.6):
        blocks = expm(np.block([[-a, 0.04 * np.eye(2)], [np.zeros((2, 2)), a.T]]) * t)
        push = blocks[2:, 2:].T
        covariance = 0.15**2 * push @ push.T + push @ blocks[:2, 2:]
        mean = push @ [0.4, 0.1]
        place = np.array([0.25, -0.15])
        power = (place - mean) @ np.linalg.solve(covariance, place - mean)
        expected = np.exp(-power / 2) / (2 * np.pi * np.sqrt(np.linalg.det(covariance)))
        assert float(flow.solution(t, *place)) == pytest.approx(expected, rel=1e-11)


def test_averages_in_a_linear_flow_are_the_integrals_of_the_solution():
    flow = LinearFlow(0.02, strain=0.5)
    edges = [[-0.3, 0.1, 0.6], [-0.5, 0.2, 0.25]]
    found = flow.cell_averages([0.8], *edges)[0]
    for i, j in itertools.product(range(2), range(2)):
        low, high = [edges[0][i], edges[1][j]], [edges[0][i + 1], edges[1][j + 1]]
        area = (high[0] - low[0]) * (high[1] - low[1])
        whole = integrated(lambda *x: flow.solution(0.8, *x), low, high)
        assert float(found[i, j]) == pytest.approx(whole / area, rel=1e-10)


def test_averages_can_be_differentiated_in_parameters():
    edges = [[-0.6, -0.1, 0.3], [-0.7, 0.0, 0.2]]
    m = torch.tensor([2.5, 4.0], dtype=torch.float64, requires_grad=True)
    k = torch.tensor([0.01, 0.03], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda m: Barenblatt(m).cell_averages([0.05], *edges), m)
    assert gradcheck(lambda m: Barenblatt(m).interval_fluxes([0.02, 0.05], *edges), m)
    assert gradcheck(lambda k: LinearFlow(k).cell_averages([0.5], *edges), k)
    assert gradcheck(lambda k: Drift(k).face_fluxes([0.5], [0.0, 0.3, 1.0], [0.0, 0.6, 1.0]), k)
