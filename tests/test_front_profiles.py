"""Fronts of profiles that are known, and the defects of the published estimates."""

import math

import numpy as np
import pytest
import torch
from oracle import grid, normal, uniform
from profiles import CLOSE, DRAWS, NAN, certain, line, walked
from seeds import generator

import probconserv as pc
from probconserv.diagnostics import front_position
from probconserv.problems import Advection, Burgers, Stefan

# Profiles that are known


@pytest.mark.parametrize("samples", [None, 7])
@pytest.mark.parametrize("rule", ["point", "crossing"])
def test_no_variance_gives_the_front_of_the_profile_for_sure(rule, samples, rng):
    u, x = normal(4, 3, 8, rng=rng), grid(8, rng) - 5
    front = front_position(certain(u), x, 0.3, rule, samples=samples, generator=generator())
    expected = [[walked(one, x.numpy(), 0.3, rule) for one in rows] for rows in u.numpy()]
    np.testing.assert_allclose(front.mean, expected, atol=1e-14)
    np.testing.assert_allclose(front.quantile(0.01), expected, atol=1e-14)
    np.testing.assert_array_equal(front.none, np.isnan(expected))
    assert front.std[front.none == 0].max() < 1e-14


def test_the_level_itself_counts_as_below():
    u, x = torch.tensor([[2.0, 1.0, 1.0], [1.0, 2.0, 3.0]]).double(), line(3)
    for samples in (None, 4):
        front = front_position(certain(u), x, 1.0, samples=samples, generator=generator())
        np.testing.assert_allclose(front.mean, [0.5, 0.0])
    front = front_position(certain(u), x, 1.0, "crossing", generator=generator())
    np.testing.assert_allclose(front.mean, [0.5, NAN])


@pytest.mark.parametrize("points", [51, 201, 1601])
@pytest.mark.parametrize(
    ("truth", "times", "level"),
    [
        (Stefan(0.6), (0.002, 0.1), 0.3),
        (Advection(2.0), (0.0, 0.24), 0.5),
        (Burgers(3.0), (0.35, 0.95), 1.5),
    ],
)
def test_crossings_of_half_the_jump_do_not_drift_when_the_grid_is_refined(
    points, truth, times, level
):
    t, x = line(203, *times), line(points, *truth.domain)
    field, dx = certain(truth.on_grid(t, x)), float(x[1] - x[0])
    error = front_position(
        field, x, level, "crossing", samples=1, generator=generator()
    ).mean - truth.front(t)
    assert error.abs().max() < 0.6 * dx
    assert error.mean().abs() < 0.12 * dx
    ahead = front_position(field, x).mean - truth.front(t)
    assert 0.35 * dx < ahead.mean() < 0.65 * dx  # what the paper's definition costs


def test_only_independent_noise_moves_a_crossing_when_the_grid_is_refined(rng):
    """The first of many independent points to dip is an early one: no rule's fault."""
    means = {}
    for points in (201, 3201):
        x = line(points)
        u = 0.6 * ((0.235 - x) / 0.02).sigmoid()
        variance = u * (0.6 - u) / 2
        fields = {"shared": pc.LowRank(u, variance.sqrt()[None]), "own": pc.Diagonal(u, variance)}
        for kind, field in fields.items():
            front = front_position(field, x, 0.3, "crossing", samples=4000, generator=rng)
            means[kind, points] = float(front.mean)
    assert means["shared", 3201] == pytest.approx(means["shared", 201], abs=0.0025)
    assert means["own", 3201] < means["own", 201] - 0.015 < means["shared", 201] - 0.03


def test_a_smooth_profile_is_crossed_between_the_points_to_second_order():
    errors = []
    for points in (21, 41, 81):
        x = line(points, 1.0, 3.0)
        front = front_position(
            certain((2.2 - x).tanh()), x, 0.1, "crossing", samples=1, generator=generator()
        )
        errors.append(abs(float(front.mean) - (2.2 - math.atanh(0.1))))
        assert errors[-1] < 0.1 * float(x[1] - x[0]) ** 2
    assert errors[-1] < 2e-5


def test_looking_from_the_right_is_looking_at_the_mirror_image(rng):
    mean, variance, x = normal(3, 8, rng=rng), uniform(3, 8, rng=rng), grid(8, rng)
    right = front_position(pc.Diagonal(mean, variance), x, start="right")
    mirror = front_position(pc.Diagonal(mean.flip(-1), variance.flip(-1)), -x.flip(0))
    torch.testing.assert_close(right.mean, -mirror.mean)
    torch.testing.assert_close(right.none, mirror.none)
    for rule in ("point", "crossing"):
        right = front_position(
            certain(mean), x, 0.0, rule, "right", samples=1, generator=generator()
        )
        mirror = front_position(
            certain(mean.flip(-1)), -x.flip(0), 0.0, rule, samples=1, generator=generator()
        )
        torch.testing.assert_close(right.mean, -mirror.mean, equal_nan=True)


# Defects of the published estimates


@pytest.mark.parametrize("samples", [None, 2000])
def test_variances_are_not_taken_for_standard_deviations_nor_the_other_way_round(samples, rng):
    """u >= 0.6 has a standard deviation of 0.1, six to the level 0; its root would be two."""
    x, truth = line(201), Stefan(0.6)
    u = truth.solution(0.05, x)
    field = pc.Diagonal(u, torch.where(u > 0, 0.01, 0.0).double())
    front = front_position(field, x, samples=samples, generator=rng)
    assert float(front.mean) == pytest.approx(0.24, abs=1e-5)
    wrong = front_position(pc.Diagonal(u, field.std), x)
    assert wrong.mean < 0.22  # the defect would show


@pytest.mark.parametrize("rule", ["point", "crossing"])
@pytest.mark.parametrize("samples", [None, 50])
def test_no_front_is_not_a_front_at_zero(rule, samples):
    u = torch.ones(2, 6).double()
    u[1, 4:] = -1.0
    front = front_position(
        certain(u), line(6, -1.0, 4.0), 0.0, rule, samples=samples, generator=generator()
    )
    np.testing.assert_array_equal(front.none, [1.0, 0.0])
    for value in (front.mean, front.std, front.quantile(0.1), *front.interval(0.9)):
        np.testing.assert_array_equal(value.isnan(), [True, False])
    assert front.mean[1] > 2


def test_draws_without_a_front_do_not_pull_the_mean(rng):
    """The last point is below in half of the draws, and the first two never are."""
    field = pc.Diagonal([1.0, 1.0, 0.0], [0.0, 0.0, 1.0])
    for samples in (None, DRAWS):
        front = front_position(field, [5.0, 6.0, 7.0], samples=samples, generator=rng)
        assert float(front.none) == pytest.approx(0.5, abs=CLOSE)
        assert float(front.mean) == pytest.approx(7.0)
        assert float(front.std) == pytest.approx(0.0, abs=1e-12)


def test_positions_are_those_of_a_domain_that_does_not_start_at_zero():
    x = line(401, *Burgers.domain)
    field = certain(Burgers(3.0).solution(0.5, x))
    front = front_position(field, x, 1.5, "crossing", samples=1, generator=generator())
    assert float(front.mean) == pytest.approx(0.25, abs=0.6 * 0.005)
    moved = front_position(field, x - 7, 1.5, "crossing", samples=1, generator=generator())
    assert float(moved.mean) == pytest.approx(float(front.mean) - 7)
    for samples in (None, 3):
        point = front_position(field, x - 7, samples=samples, generator=generator())
        assert float(point.mean) == pytest.approx(0.255 - 7)


def test_the_papers_definition_is_off_by_a_cell_on_the_exact_stefan_solution():
    x = line(201)
    field = certain(Stefan(0.6).solution(0.05, x))
    assert float(Stefan(0.6).front(0.05)) == pytest.approx(0.2351, abs=5e-5)
    assert float(front_position(field, x).mean) == pytest.approx(0.24)
    half = front_position(field, x, 0.3, "crossing", samples=1, generator=generator())
    assert float(half.mean) == pytest.approx(0.2351, abs=0.0026)
