"""How far `inflate` widens priors that are right, and priors that are three times too sure."""

import pytest
import torch

import probconserv as pc

N, T, M = 100, 10, 21  # solutions, rows of each, points
X = torch.linspace(0, 1, M, dtype=torch.float64)
SMOOTH = torch.exp(-0.5 * ((X[:, None] - X) / 0.3) ** 2) + 1e-9 * torch.eye(M)
ROOTS = {
    "shared": torch.ones(1, M, dtype=torch.float64),
    "smooth": torch.linalg.cholesky(SMOOTH).T,
    "independent": torch.eye(M, dtype=torch.float64),
}
LAW = pc.integral(X, 0.0)


def errors(kind, *lead, seed=0):
    root, rng = ROOTS[kind], torch.Generator().manual_seed(seed)
    return torch.randn(*lead, N, T, len(root), generator=rng, dtype=torch.float64) @ root


def widened(prior):
    """k, on average over solutions."""
    return float((pc.inflate(prior, LAW).variance / prior.variance).mean())


@pytest.mark.parametrize(
    ("kind", "least", "most"), [("shared", 8, 10), ("smooth", 4, 6.5), ("independent", 1, 1.01)]
)
def test_points_that_say_nothing_of_shared_errors_are_widened_by_the_least(kind, least, most):
    assert least <= widened(pc.Diagonal(3 * errors(kind), 1.0)) <= most
    assert widened(pc.Diagonal(errors(kind), 1.0)) < 1.3


def test_a_covariance_that_is_three_times_too_sure_is_widened_by_nine():
    """By 5 it was: all points were taken to err together, whatever the covariance said."""
    for size, factor in ((3, 9), (1, 1.2)):
        prior = pc.Dense(size * errors("smooth"), SMOOTH.expand(N, T, M, M))
        assert widened(prior) == pytest.approx(factor, rel=0.1)


@pytest.mark.parametrize("members", [8, 20])
def test_an_ensemble_that_is_three_times_too_sure_is_widened_by_about_nine(members):
    apart = errors("smooth", members, seed=1)
    assert 7.5 < widened(pc.Ensemble(3 * errors("smooth") + apart, batch_dims=2)) < 10.5
    assert widened(pc.Ensemble(errors("smooth") + apart, batch_dims=2)) < 1.4


def test_members_that_agree_on_their_total_do_not_widen_without_bound():
    """That variance is rounding: no less counts than that of independent points."""
    apart = errors("independent", 8)
    weights = LAW.map.weights
    apart = apart - LAW.apply(apart)[..., None] * weights / weights.square().sum()
    prior = pc.Ensemble(apart + 1.0, batch_dims=2, shrinkage=0.0)  # a total of 1 each, and b is 0
    assert widened(prior) < 50


def test_three_members_say_nothing_of_shared_errors():
    apart = errors("smooth", 3, seed=2)
    prior = pc.Ensemble(errors("smooth") + apart, batch_dims=2)
    assert widened(prior) == pytest.approx(widened(pc.Diagonal(prior.mean, prior.variance)))


def test_one_row_and_a_total_of_two_fields_by_hand():
    """k is r^2 over the variance of the total, 1 + 4 + 2 * 0.5 * 1 * 2."""
    covariance = torch.tensor([[1.0, 1.0], [1.0, 4.0]], dtype=torch.float64)
    prior = pc.State(a=pc.Dense([0.0, 0.0], covariance), b=pc.Dense([0.0], [[2.0]]))
    law = pc.weighted_sum({"a": [1.0, 1.0], "b": [1.0]}, 6.0)
    assert float(pc.inflate(prior, law)["b"].variance) == pytest.approx(2 * 36 / 9)
