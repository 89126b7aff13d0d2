"""The algebra of the two passes on arrays, against dense matrices; blocks against the whole."""

import numpy as np
import pytest
from oracle import kalman

from probconserv import InfeasibleError, InputError
from probconserv.labelled._passes import Members, Moments
from probconserv.labelled._terms import (
    Layout,
    Term,
    adjoint,
    counted,
    quadratic,
    seen_totals,
    squares,
    totals,
    uncounted,
)

INDICES, POINTS = 3, 7
LABELS = np.array([0, 2, 1, 1, 0, 2, 2])


def terms(varies):
    """Two laws: three regions, and everything with some weights of 0 and some below."""
    rng = np.random.default_rng(5)
    lead = INDICES if varies else 1
    regions = rng.uniform(0.5, 2, (lead, POINTS))
    whole = rng.normal(size=(1, POINTS)) * [1, 1, 0, 1, 1, 0, 1]
    return [Term(regions, LABELS, 0, 3), Term(whole, None, 3, 1)]


def matrix(given, rows, index):
    """G of an index, (K, P), point by point."""
    G = np.zeros((rows, POINTS))
    for term in given:
        for point in range(POINTS):
            row = term.first + (0 if term.labels is None else term.labels[point])
            G[row, point] += term.weights[index if len(term.weights) > 1 else 0, point]
    return G


@pytest.fixture
def rng():
    return np.random.default_rng(6)


@pytest.mark.parametrize("varies", [False, True])
def test_sums_and_their_way_back_are_those_of_the_matrix(rng, varies):
    given, u = terms(varies), rng.normal(size=(INDICES, POINTS))
    coefficients = rng.normal(size=(INDICES, 4))
    for i in range(INDICES):
        G = matrix(given, 4, i)
        np.testing.assert_allclose(totals(u, given, 4)[i], G @ u[i], atol=1e-14)
        np.testing.assert_allclose(adjoint(given, coefficients)[i], G.T @ coefficients[i])


@pytest.mark.parametrize("varies", [False, True])
def test_products_of_the_rows_are_those_of_the_matrix(rng, varies):
    given, variance = terms(varies), rng.uniform(1, 2, (INDICES, POINTS))
    inverse = rng.normal(size=(INDICES, 4, 4))
    inverse = inverse + inverse.swapaxes(-1, -2)
    for i in range(INDICES):
        G = matrix(given, 4, i)
        S = G @ np.diag(variance[i]) @ G.T
        np.testing.assert_allclose(squares(variance, given, 4, False)[i], S, atol=1e-14)
        wanted = np.diag(G.T @ inverse[i] @ G)
        np.testing.assert_allclose(quadratic(given, inverse, False)[i], wanted, atol=1e-13)


def test_the_rows_of_a_single_law_need_only_a_diagonal(rng):
    given, variance = terms(True)[:1], rng.uniform(1, 2, (INDICES, POINTS))
    full = squares(variance, given, 3, False)
    np.testing.assert_allclose(squares(variance, given, 3, True), np.einsum("ikk->ik", full))
    assert np.count_nonzero(full) == INDICES * 3
    inverse = rng.uniform(1, 2, (INDICES, 3))
    wanted = quadratic(given, inverse[:, :, None] * np.eye(3), False)
    np.testing.assert_allclose(quadratic(given, inverse, True), wanted)


def test_ones_summed_with_weights_that_change_have_a_row_for_each_index():
    sizes = totals(np.ones((1, POINTS)), terms(True), 4)
    assert sizes.shape == (INDICES, 4)
    np.testing.assert_allclose(sizes[2], matrix(terms(True), 4, 2).sum(1))


def test_missing_values_are_found_wherever_they_are(rng):
    u = rng.normal(size=(INDICES, POINTS)).astype(np.float32)
    total, seen, missing = seen_totals(u, terms(False), 4)
    assert (missing, seen.dtype) == (None, np.float64)
    u[1, 2] = np.nan
    total, seen, missing = seen_totals(u, terms(False), 4)
    assert np.argwhere(missing).tolist() == [[1, 2]]
    filled = np.nan_to_num(u[1].astype(float))
    np.testing.assert_allclose(total[1], matrix(terms(False), 4, 1) @ filled)


def test_a_point_that_no_law_counts_is_known():
    whole = terms(False)[1]
    assert uncounted(terms(False)) is None
    assert np.flatnonzero(uncounted([whole])).tolist() == [2, 5]
    np.testing.assert_array_equal(counted([whole])[0], [1, 1, 0, 1, 1, 0, 1])


@pytest.mark.parametrize("lead", [(), (INDICES,), (2, INDICES)])
def test_a_layout_gives_back_what_it_packed(rng, lead):
    layout = Layout({"a": (), "b": (4,), "c": (2, 3)})
    parts = {name: rng.normal(size=(6, *shape)) for name, shape in layout.shapes.items()}
    packed = layout.pack(parts)
    assert packed.shape == (6, layout.size) == (6, 11)
    found = layout.unpack(packed[: int(np.prod(lead))].reshape(*lead, 11))
    for name, shape in layout.shapes.items():
        assert found[name].shape == (*lead, *shape)
        np.testing.assert_array_equal(
            found[name].ravel(), parts[name][: int(np.prod(lead))].ravel()
        )


def in_blocks(kind, arrays, given, cut):
    """The sums of two blocks of points, added."""

    def part(where):
        here = [
            Term(
                t.weights[:, where], None if t.labels is None else t.labels[where], t.first, t.rows
            )
            for t in given
        ]
        return kind.summed(*(array[:, where] for array in arrays), here)

    return part(slice(cut)) + part(slice(cut, None))


@pytest.mark.parametrize("noise", [0.0, 0.6])
@pytest.mark.parametrize("correlation", [0.0, 0.3])
@pytest.mark.parametrize("laws", [1, 2])
@pytest.mark.parametrize("varies", [False, True])
def test_moments_in_blocks_are_the_dense_posterior(rng, varies, laws, correlation, noise):
    given = terms(varies)[:laws]
    rows = 3 if laws == 1 else 4
    kind = Moments(("law",) * rows, laws == 1, correlation)
    mean, std = rng.normal(size=(INDICES, POINTS)), rng.uniform(0.5, 2, (INDICES, POINTS))
    mean[2, 3] = np.nan
    value, noises = rng.normal(size=(INDICES, rows)), np.full((INDICES, rows), noise)
    steps = kind.solved(in_blocks(kind, [mean, std], given, 4), value, noises)
    new, spread = kind.mean(mean, std, given, steps), kind.std(std, mean, given, steps)
    for i in range(INDICES):
        here = np.isfinite(mean[i])
        m, s, G = mean[i, here], std[i, here], matrix(given, rows, i)[:, here]
        sigma = correlation * np.outer(s, s) + (1 - correlation) * np.diag(s**2)
        wanted, covariance = kalman(m, sigma, G, value[i], noise)
        np.testing.assert_allclose(new[i, here], wanted, atol=1e-11)
        np.testing.assert_allclose(spread[i, here] ** 2, np.diag(covariance), atol=1e-11)
        np.testing.assert_array_equal(spread[i, ~here], std[i, ~here])


@pytest.mark.parametrize("noise", [0.0, 0.6])
@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
@pytest.mark.parametrize("laws", [1, 2])
def test_members_in_blocks_have_the_dense_posterior_mean(rng, laws, shrinkage, noise):
    given, members = terms(False)[:laws], 9
    rows = 3 if laws == 1 else 4
    kind = Members(("law",) * rows, laws == 1, members, shrinkage)
    x = rng.normal(size=(INDICES, POINTS, members))
    value, noises = rng.normal(size=(INDICES, 1, rows)), np.full((INDICES, rows), noise)
    steps = kind.solved(in_blocks(kind, [x], given, 2), value, noises)
    new = kind.each(x, given, steps)
    for i in range(INDICES):
        G, sigma = matrix(given, rows, i), np.cov(x[i])
        sigma = (1 - shrinkage) * sigma + shrinkage * np.diag(np.diag(sigma))
        mean, covariance = kalman(x[i].mean(-1), sigma, G, value[i, 0], noise)
        np.testing.assert_allclose(new[i].mean(-1), mean, atol=1e-11)
        if not shrinkage:
            np.testing.assert_allclose(np.cov(new[i]), covariance, atol=1e-11)
        if not noise:
            np.testing.assert_allclose(
                G @ new[i], value[i, 0][:, None] + np.zeros(members), atol=1e-10
            )


def test_laws_of_very_different_units_are_solved_together(rng):
    small, large = np.full((1, POINTS), 1e-9), rng.uniform(1e8, 1e9, (1, POINTS))
    given = [Term(small, None, 0, 1), Term(large, None, 1, 1)]
    kind = Moments(("mass", "energy"), False)
    mean, std = rng.normal(size=(INDICES, POINTS)), rng.uniform(0.5, 2, (INDICES, POINTS))
    value = np.array([[2e-9, 3e9]] * INDICES)
    steps = kind.solved(kind.summed(mean, std, given), value, np.zeros((INDICES, 2)))
    found = totals(kind.mean(mean, std, given, steps), given, 2)
    np.testing.assert_allclose(found, value, rtol=1e-11)


def solved(mean, std, value=1.0):
    kind = Moments(("heat",), True)
    given = [Term(np.ones((1, POINTS)), None, 0, 1)]
    return kind.solved(kind.summed(mean, std, given), np.full((1, 1), value), np.zeros((1, 1)))


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_a_std_that_is_none_is_refused(bad):
    std = np.ones((1, POINTS))
    std[0, 2] = bad
    with pytest.raises(InputError, match="`std` is negative, infinite or missing at points that"):
        solved(np.zeros((1, POINTS)), std)


def test_a_field_that_is_infinite_is_refused():
    with pytest.raises(
        InputError, match=r"has infinite values. Missing ones are NaN or _FillValue"
    ):
        solved(np.full((1, POINTS), np.inf), np.ones((1, POINTS)))


def test_rows_that_nothing_can_move_must_hold():
    zeros = np.zeros((1, POINTS))
    with pytest.raises(InfeasibleError, match="1 totals cannot be met, the first of `heat`, by 1:"):
        solved(zeros, zeros)
    assert not solved(zeros, zeros, value=0.0).any()
