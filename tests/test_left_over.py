"""Points of which laws leave next to nothing: what is left is right, and 0 where it is 0."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from exact import posterior

import probconserv as pc

NEARLY = [[1.0, 0.0, 1e-9, 2e-9], [1.0, 1e-1, 1e-8, 1e-9]]
SHARED = np.array([[1.0, 2.0, 1.0, 0.5], [0.3, -1.0, 2.0, 1.0], [1.0, 1.0, -3.0, 0.25]])


def left(field, rows, noise=0.0, **prior):
    """By `condition`, a law for each row, and by the oracle."""
    noise = np.broadcast_to(noise, len(rows))
    laws = [pc.linear([row], [1.0], noise=[s]) for row, s in zip(rows, noise, strict=True)]
    found = pc.condition(field, *laws).variance
    wanted = posterior(np.zeros(len(found)), rows, np.ones(len(rows)), noise, **prior).variance
    return found.numpy(), wanted


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
@pytest.mark.parametrize("noise", [[0.0, 0.0], [1e-9, 0.0], [1e-8, 1e-9]])
def test_what_rows_that_all_but_fix_a_point_leave_of_it(noise):
    found, wanted = left(pc.Diagonal(np.zeros(4), 1.0), NEARLY, noise, variance=1.0)
    assert 0 < wanted.min() < 2e-16
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_point_of_which_exact_rows_leave_less_than_1e_20_is_fixed():
    for row, own in (([1.0, 1e-11], 0.0), ([1.0, 3e-10], 9e-20)):
        found = pc.condition(pc.Diagonal([0.0, 0.0], 1.0), *(pc.linear([row], [1.0]),) * 2).variance
        np.testing.assert_allclose(found, [own, 1.0], rtol=1e-6)


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
@pytest.mark.parametrize("rest", [0.0, 1e-3, 10.0])
def test_the_same_where_directions_are_shared(rest):
    field = pc.LowRank(np.zeros(4), SHARED, rest)
    found, wanted = left(field, NEARLY, variance=rest, factor=SHARED)
    assert 0 < wanted.min() < 2e-16
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
def test_the_same_of_a_value_with_hardly_any_noise_beside_a_field_with_a_rest():
    v = pc.Dense(np.zeros((3, 2)), np.tile([[2.0, 1.0], [1.0, 3.0]], (3, 1, 1)))
    state = pc.State(u=pc.LowRank(np.zeros((3, 4)), np.ones((1, 3, 4)), 1.0, 2), v=v)
    found = pc.condition(state, pc.boundary(left=1.0, noise=1e-11, of="v"))["v"].variance
    np.testing.assert_allclose(found[:, 0], 1e-22, rtol=1e-8)


def test_the_same_of_a_full_covariance():
    covariance = SHARED.T @ SHARED + np.diag([1.0, 2.0, 3.0, 4.0])
    found, wanted = left(pc.Dense(np.zeros(4), covariance), NEARLY, covariance=covariance)
    assert 0 < wanted.min() < 2e-16
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_points_that_nearly_dependent_rows_fix_have_none():
    rows = [[1.0, 1.0, 1.0, 0.0], [1.0, 1.0001, 1.0, 0.0], [1.0, 1.0, 1.0001, 0.0]]
    for field in (
        pc.Diagonal(np.zeros(4), 3.0),
        pc.LowRank(np.zeros(4), SHARED, 0.1),
        pc.LowRank(np.zeros(4), SHARED),
    ):
        found = pc.condition(field, *(pc.linear([row], [1.0]) for row in rows)).variance
        assert (found[:3] == 0).all()


def test_in_a_batch_only_the_entries_that_are_fixed_change():
    variance = torch.ones(5, 1, 3, dtype=torch.float64)
    variance[2, 0, 0] = 1e6
    laws = pc.weighted_sum([1.0, 1.0, 1.0], 0.0), pc.weighted_sum([1.0, 1.0, 2.0], 0.0)
    found = pc.condition(pc.Diagonal(torch.zeros(5, 1, 3), variance), *laws).variance
    torch.testing.assert_close(found[2, 0], torch.tensor([1 - 1e-6, 1 - 1e-6, 0.0]).double())
    torch.testing.assert_close(found[3, 0], torch.tensor([0.5, 0.5, 0.0]).double())
    assert (found[..., 2] == 0).all()


def test_a_field_of_a_state_may_have_no_axes_of_its_own():
    v = pc.Dense(np.zeros((2, 3, 4)), np.tile(np.eye(4), (2, 3, 1, 1)))
    state = pc.State(u=pc.Diagonal(np.zeros((2, 3)), 1.0), v=v)
    post = pc.condition(state, pc.initial(np.ones((2, 4)), noise=1.0, of="v"))
    torch.testing.assert_close(post["u"].variance, torch.ones(2, 3).double())
    torch.testing.assert_close(post["v"].variance[:, 0], torch.full((2, 4), 0.5).double())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_members_that_as_many_rows_fix_are_left_with_no_rounding(dtype):
    rng = np.random.default_rng(0)
    for _ in range(6):
        members = (1e3 + rng.normal(size=(3, 7))).astype(dtype)
        weights = rng.uniform(0.5, 1, (2, 7))
        laws = [pc.weighted_sum(w, float(members.mean(0) @ w)) for w in weights]
        post = pc.condition(pc.Ensemble(members, shrinkage=0.0), *laws)
        assert (post.variance == 0).all()


def test_a_singular_covariance_that_a_row_fixes_is_left_with_no_rounding():
    for seed in range(20):
        root, row = np.random.default_rng(seed).normal(size=(2, 7))
        field = pc.Dense(np.zeros(7), np.outer(root, root))
        assert (pc.condition(field, pc.linear([row], [row @ root])).variance == 0).all()


def test_values_of_one_direction_that_all_but_repeat_each_other():
    """S has hardly a digit left for what the sharpest two values leave: steps must find it."""
    std, noise = np.array([0.17, 0.18, 0.42, 0.09, 0.32]), [2.6e-9, 127, 3e8, 1e-3, 2.6e-8, 3]
    rows = np.concatenate([np.eye(5), [[1, 0, 0, 0, -1]]])
    field = pc.Dense(np.zeros(5), np.outer(std, std))
    found = pc.condition(field, pc.linear(rows, rows @ std, noise=noise)).variance
    wanted = std**2 / (1 + np.square(rows @ std / noise).sum())
    assert wanted.max() < 1e-16
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_value_with_hardly_any_noise_does_not_blur_directions():
    rng, noise = np.random.default_rng(21), np.array([3e-13, 2.5, 2.6e6, 6e5])
    shared, rest = rng.normal(size=(3, 12)).round(2), np.full(12, 1e-23)
    field = pc.LowRank(np.zeros((3, 4)), shared.reshape(3, 3, 4), rest.reshape(3, 4), 2)
    found = pc.condition(field, pc.initial(np.zeros(4), noise=noise)).variance.ravel()
    wanted = posterior(np.zeros(12), np.eye(12)[:4], np.zeros(4), noise, rest, shared).variance
    np.testing.assert_allclose(found, wanted, rtol=1e-7)


def test_a_field_of_no_direction_is_one_of_independent_points():
    field = pc.LowRank(torch.zeros(4), torch.zeros(0, 4), 1.0)
    found = pc.condition(field, pc.weighted_sum([1.0] * 4, 2.0)).variance
    torch.testing.assert_close(found, torch.full((4,), 0.75))


@pytest.mark.parametrize("wide", [1e6, 1e12])
def test_a_wide_point_on_one_of_many_smooth_lines(wide):
    """Many lines are solved row by row, where rounding grows with what the rows see."""
    x, variance = np.arange(102.0), np.ones((60, 102))
    variance[7, 50] = wide
    law = pc.smoothness(x, np.ones(102), rho=0.5)
    found = pc.condition(pc.Diagonal(np.zeros((60, 102)), variance), law).variance[7]
    near = slice(40, 61)  # what lies farther says nothing about this point
    rows = np.eye(21)[:19] - 2 * np.eye(21, k=1)[:19] + np.eye(21, k=2)[:19]
    sigma = law.noise.expand(100)[:19].numpy()
    wanted = posterior(np.zeros(21), rows, np.zeros(19), sigma, variance=variance[7, near])
    np.testing.assert_allclose(found[50], wanted.variance[10], rtol=1e-7)


def test_what_is_left_beside_a_field_with_one_number_on_each_line():
    variance = torch.ones(60, 102, dtype=torch.float64)
    variance[7, 50] = 1e12
    law = pc.smoothness(np.arange(102.0), np.ones(102), rho=0.5, of="u")
    state = pc.State(u=(torch.zeros(60, 102), variance), rate=(torch.zeros(60), 1.0))
    alone = pc.condition(pc.Diagonal(torch.zeros(60, 102), variance), law)
    torch.testing.assert_close(pc.condition(state, law)["u"].variance, alone.variance)


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["diagonal", "low rank", "dense"])
def test_the_covariance_beside_a_point_that_dominates_a_row(kind, noise):
    """It was a difference of numbers of 1e18: 111 or 0 on the diagonal, where 3 or 4 is left."""
    d = np.array([1e18, 1.0, 2.0])
    fields = {
        "diagonal": pc.Diagonal(np.zeros(3), d),
        "low rank": pc.LowRank(np.zeros(3), np.zeros((1, 3)), d),
        "dense": pc.Dense(np.zeros(3), np.diag(d)),
    }
    post = pc.condition(fields[kind], pc.weighted_sum([1.0, 1.0, 1.0], 2.0, noise=noise))
    exact = [Fraction(x) for x in d]
    seen = sum(exact) + Fraction(noise) ** 2
    wanted = [
        [(i == j) * a - a * b / seen for j, b in enumerate(exact)] for i, a in enumerate(exact)
    ]
    found = post.covariance()
    np.testing.assert_allclose(found, np.array(wanted, float), rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(found.diagonal(), post.variance, rtol=1e-13, atol=0)
