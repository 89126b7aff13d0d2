import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import grid, normal
from scipy import integrate

import probconserv as pc


@given(st.integers(0, 2**31), st.integers(2, 11))
def test_trapezoid_and_simpson_are_scipys_on_any_grid(seed, points):
    rng = torch.Generator().manual_seed(seed)
    x, u = grid(points, rng), normal(3, points, rng=rng)
    got = pc.integral(x, 0.0, rule="trapezoid").apply(u)
    np.testing.assert_allclose(got, integrate.trapezoid(u, x), atol=1e-12)
    got = pc.integral(x, 0.0, rule="simpson").apply(u)
    np.testing.assert_allclose(got, integrate.simpson(u, x=x), rtol=1e-9, atol=1e-10)


@given(st.integers(0, 2**31), st.integers(2, 9))
def test_left_and_right_are_riemann_sums(seed, points):
    rng = torch.Generator().manual_seed(seed)
    x, u = grid(points, rng), normal(points, rng=rng)
    widths = np.diff(x)
    left, right = (pc.integral(x, 0.0, rule=rule).apply(u) for rule in ("left", "right"))
    assert float(left) == pytest.approx(float((widths * u[:-1].numpy()).sum()), abs=1e-12)
    assert float(right) == pytest.approx(float((widths * u[1:].numpy()).sum()), abs=1e-12)


def test_cell_takes_edges_and_averages():
    edges = [0.0, 1.0, 4.0]
    law = pc.integral(edges, 5.0, rule="cell")
    assert float(law.residual([2.0, 1.0])) == 0


@pytest.mark.parametrize(("rule", "order"), [("left", 1), ("trapezoid", 2), ("simpson", 4)])
def test_rules_converge_with_their_order(rule, order):
    errors = []
    for points in (21, 41):
        x = torch.linspace(0, 2, points, dtype=torch.float64)
        errors.append(abs(float(pc.integral(x, 0.0, rule=rule).apply(x.exp())) - np.expm1(2)))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.1)


def test_two_and_three_axes_integrate_products_exactly():
    axes = [0.0, 1.0, 3.0], [0.0, 2.0], [1.0, 2.0, 4.0, 5.0]
    x, y, z = (torch.tensor(axis, dtype=torch.float64) for axis in axes)
    u = x[:, None, None] * (1 + y[:, None]) * z
    assert float(pc.integral((x, y, z), 0.0).apply(u)) == pytest.approx(4.5 * 4 * 12)
    assert float(pc.integral((x, y), 0.0).apply(u[..., 0])) == pytest.approx(4.5 * 4)
