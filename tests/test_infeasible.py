"""Rows that cannot hold are an error: never NaN, never a pseudo-inverse in silence."""

import pytest
import torch
from oracle import field_of, normal, uniform

import probconserv as pc

SHAPE = (4, 7)
X = torch.linspace(0, 1, 7, dtype=torch.float64)
MEAN = torch.ones(SHAPE, dtype=torch.float64)


def raises(message, error=pc.InfeasibleError):
    return pytest.raises(error, match=message)


def test_zero_variance_names_the_row_and_the_ways_out():
    variance = MEAN.clone()
    variance[2] = 0
    law = pc.integral(X, 3.0)
    with raises("cannot satisfy 1 row.*`integral` at time 2 is off by 2 ", pc.InfeasibleError):
        pc.condition(pc.Diagonal(MEAN, variance), law)
    with raises("`noise` on the row.*event_dims=1 .*times=slice", pc.InfeasibleError):
        pc.condition(pc.Diagonal(MEAN, variance), law)
    right = pc.condition(pc.Diagonal(MEAN, variance), pc.integral(X, [3.0, 3.0, 1.0, 3.0]))
    assert right.mean.isfinite().all()
    soft = pc.condition(pc.Diagonal(MEAN, variance), pc.integral(X, 3.0, noise=0.1))
    assert torch.equal(soft.mean[2], MEAN[2])


def test_batches_are_named():
    variance = torch.ones(3, *SHAPE, dtype=torch.float64)
    variance[1, 2] = 0
    field = pc.Diagonal(MEAN.expand(3, *SHAPE), variance)
    with raises("`integral` at batch 1, time 2 is off by 2 ", pc.InfeasibleError):
        pc.condition(field, pc.integral(X, 3.0))
    with raises("4 row.*; and 1 more", pc.InfeasibleError):
        pc.condition(pc.Diagonal(MEAN, 0.0), pc.integral(X, 3.0))


def test_contradictory_constraints(rng):
    for kind in ("diagonal", "low rank few 1", "low rank many 2", "dense 1", "dense 2"):
        field = field_of(kind, SHAPE, rng)
        with raises("`integral` at time . is off by 1 ", pc.InfeasibleError):
            pc.condition(field, pc.integral(X, 1.0), pc.integral(X, 2.0))
        rows = X.expand(2, 7)
        with raises("`linear` at time ., row . is off by ", pc.InfeasibleError):
            pc.condition(field, pc.linear(rows, [1.0, 2.0]))


def test_a_low_rank_field_of_too_low_rank(rng):
    members = normal(3, *SHAPE, rng=rng)
    law = pc.integral(X, normal(4, rng=rng))
    with raises("directions are too few", pc.InfeasibleError):
        pc.condition(pc.LowRank.from_samples(members, event_dims=2), law)
    post = pc.condition(pc.LowRank.from_samples(members, event_dims=1), law)
    assert law.residual(post).abs().max() < 1e-12


def test_initial_and_integral_at_a_jump_say_why():
    start = (X <= 0.4).double()
    law = pc.integral(X, 0.4 + 0.0 * X[:4])
    with raises(
        "`integral` at time 0 is off by .*`initial` and `integral` disagree by the error of the "
        "quadrature rule",
        pc.InfeasibleError,
    ):
        pc.condition(pc.Diagonal(MEAN, 1.0), pc.initial(start), law)
    later = pc.integral(X, 0.4, times=slice(1, None))
    post = pc.condition(pc.Diagonal(MEAN, 1.0), pc.initial(start), later)
    assert torch.equal(post.mean[0], start)


def test_boundary_and_initial_that_disagree():
    start = uniform(7, rng=torch.Generator().manual_seed(0))
    with raises("at time 0, point 0 is off by", pc.InfeasibleError):
        pc.condition(pc.Diagonal(MEAN, 1.0), pc.initial(start), pc.boundary(left=5.0))


def test_rows_of_regrouped_constraints_keep_their_numbers(rng):
    rows = torch.zeros(4, *SHAPE, dtype=torch.float64)
    rows[0, 1], rows[3, 1], rows[1, 0], rows[2, 2] = X, X, X, X
    law = pc.linear(rows, [1.0, 1.0, 1.0, 2.0])
    with raises("`linear` at row [03] is off by", pc.InfeasibleError):
        pc.condition(field_of("low rank few 1", SHAPE, rng), law)
