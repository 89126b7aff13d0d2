"""A short run of the fuzz: two hundred random problems against the oracle in fixed point."""

import numpy as np
import pytest
from exact import posterior
from fuzzing import KINDS, run, table
from oracle import kalman

PROBLEMS = 20  # of each kind; `make fuzz` solves many more


def test_the_oracle_agrees_with_dense_matrices_where_those_are_good():
    rng = np.random.default_rng(0)
    mean, root, G, b = (rng.normal(size=s) for s in (5, (5, 8), (3, 5), 3))
    sigma, noise = root @ root.T, np.array([0.0, 0.0, 0.5])
    found = posterior(mean, G, b, noise, covariance=sigma)
    wanted_mean, wanted = kalman(mean, sigma, G, b, noise)
    np.testing.assert_allclose(found.mean, wanted_mean, rtol=1e-10)
    np.testing.assert_allclose(found.variance, np.diagonal(wanted), rtol=1e-10)
    S, r = G @ sigma @ G.T + np.diag(noise**2), G @ mean - b
    density = -(r @ np.linalg.solve(S, r) + np.linalg.slogdet(2 * np.pi * S)[1]) / 2
    assert found.log_evidence == pytest.approx(density, rel=1e-12)


def test_the_oracle_tells_redundant_rows_from_contradictory_ones():
    G, b = [[7.0, 5.0], [4.0, 3.0], [3.0, 6.0]], [12.0, 7.0, 9.0]
    agreed = posterior([0.0, 0.0], G, b, variance=8.0)
    assert (agreed.redundant, agreed.miss) == (1, 0.0)
    np.testing.assert_allclose(agreed.mean, [1.0, 1.0], rtol=1e-15)
    np.testing.assert_allclose(agreed.variance, 0.0, atol=1e-100)
    assert posterior([0.0, 0.0], G, [1.0, 5.0, 6.0], variance=8.0).miss > 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_random_problems_are_solved_as_the_oracle_does(kind):
    seeds = range(KINDS.index(kind), len(KINDS) * PROBLEMS, len(KINDS))
    outcomes = run(seeds)
    assert all(one.right for one in outcomes), table(outcomes)
