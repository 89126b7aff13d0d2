"""Rows that cannot hold are an error: never NaN, never a pseudo-inverse in silence."""

import numpy as np
import pytest
import scipy.linalg
import torch
from oracle import KINDS, field_of, normal, uniform

import probconserv as pc

SHAPE = (4, 7)
X = torch.linspace(0, 1, 7, dtype=torch.float64)
MEAN = torch.ones(SHAPE, dtype=torch.float64)


def raises(message):
    return pytest.raises(pc.errors.InfeasibleError, match=message)


def test_zero_variance_names_the_row_and_the_ways_out():
    variance = MEAN.clone()
    variance[2] = 0
    law = pc.integral(X, 3.0)
    with raises(r"1 row cannot be met: `integral` at \[2\] is off by 2 .*`noise`.*`times`"):
        pc.condition(pc.Diagonal(MEAN, variance), law)
    right = pc.condition(pc.Diagonal(MEAN, variance), pc.integral(X, [3.0, 3.0, 1.0, 3.0]))
    assert right.mean.isfinite().all()
    soft = pc.condition(pc.Diagonal(MEAN, variance), pc.integral(X, 3.0, noise=0.1))
    assert torch.equal(soft.mean[2], MEAN[2])


def test_a_region_without_points_is_said_to_have_none():
    law = pc.regions([0, 0, 1], [2.0, 1.0, 3.0])
    with pytest.raises(
        pc.errors.InfeasibleError, match=r"region 2 is off by 3 .* it reads no point, "
    ):
        pc.condition(pc.Diagonal([1.0, 1.0, 1.0], 0.1), law)


def test_batches_are_named():
    variance = torch.ones(3, *SHAPE, dtype=torch.float64)
    variance[1, 2] = 0
    field = pc.Diagonal(MEAN.expand(3, *SHAPE), variance)
    with raises(r"`integral` at \[1, 2\] is off by 2 "):
        pc.condition(field, pc.integral(X, 3.0))
    with raises("4 rows cannot be met"):
        pc.condition(pc.Diagonal(MEAN, 0.0), pc.integral(X, 3.0))


@pytest.mark.parametrize("kind", KINDS)
def test_contradictory_laws(kind, rng):
    field = field_of(kind, SHAPE, rng)
    with raises(r"cannot be met: `integral` at \[.\] .*contradicts them: `integral` at \[.\]"):
        pc.condition(field, pc.integral(X, 1.0), pc.integral(X, 2.0))


def test_contradictory_laws_are_told_apart_by_their_labels():
    laws = pc.integral(X, 1.0, label="salt in spring"), pc.integral(X, 2.0, label="salt in autumn")
    with raises("cannot be met: `salt in .*contradicts them: `salt in "):
        pc.condition(pc.Diagonal(MEAN, 1.0), *laws)


@pytest.mark.parametrize("build", [pc.integral, pc.weighted_sum, pc.linear, pc.regions])
def test_a_law_on_numbers_takes_a_label(build):
    given = {pc.regions: [0] * 7, pc.linear: [[1.0] * 7]}.get(build, X)
    law = build(given, 1.0, label="salt")
    assert (law.label, build(given, 1.0).label) == ("salt", build.__name__)
    with pytest.raises(pc.errors.InputError, match="`label`"):
        build(given, 1.0, label=3)


@pytest.mark.parametrize("kind", KINDS)
def test_contradictory_rows_of_one_law(kind, rng):
    field = field_of(kind, SHAPE, rng)
    with raises(r"cannot be met: `linear` at \[.\], row . .*contradicts them: `linear`"):
        pc.condition(field, pc.linear(X.expand(2, 7), [1.0, 2.0]))


def test_a_low_rank_field_of_too_low_rank(rng):
    members = normal(3, *SHAPE, rng=rng)
    totals = torch.trapezoid(members, X)
    law = pc.integral(X, totals[[0, 1, 2, 0], range(4)])  # of another member at each time
    with raises("cannot be met: `integral` .*directions .* too few"):
        pc.condition(pc.Ensemble(members, shrinkage=0.0), law)
    for event_dims, shrinkage in ((1, 0.0), (2, None), (2, 0.1)):
        field = pc.Ensemble(members, batch_dims=2 - event_dims, shrinkage=shrinkage)
        assert law.residual(pc.condition(field, law)).abs().max() < 1e-12


def test_initial_and_integral_at_a_jump_say_which_rows():
    start = (X <= 0.4).double()
    law = pc.integral(X, 0.4 + 0.0 * X[:4])
    with raises(r"`integral` at \[0\] is off by .*contradicts them: `initial` at point 0"):
        pc.condition(pc.Diagonal(MEAN, 1.0), pc.initial(start), law)
    later = pc.integral(X, 0.4, times=slice(1, None))
    post = pc.condition(pc.Diagonal(MEAN, 1.0), pc.initial(start), later)
    assert torch.equal(post.mean[0], start)


def test_boundary_and_initial_that_disagree():
    start = uniform(7, rng=torch.Generator().manual_seed(0))
    with raises(r"`boundary` at \[0\], point 0 is off by .*contradicts them: `initial`"):
        pc.condition(pc.Diagonal(MEAN, 1.0), pc.initial(start), pc.boundary(left=5.0))


def test_rows_over_times_keep_their_numbers(rng):
    rows = torch.zeros(4, *SHAPE, dtype=torch.float64)
    rows[0, 1], rows[3, 1], rows[1, 0], rows[2, 2] = X, X, X, X
    law = pc.linear(rows, [1.0, 1.0, 1.0, 2.0])
    with raises("`linear` at row [03] is off by .*contradicts them: `linear` at row [03]"):
        pc.condition(field_of("low rank few 1", SHAPE, rng), law)


def test_a_value_is_not_refused_for_the_rounding_of_a_sum_that_repeats_it():
    """The sum gives v to seven digits of its 1.9e-7: the value that says it better is taken."""
    u, v = 7512.001130570613, 2.232043867467889e-07
    state = pc.State(u=([u], 0.0), v=([2.2154e-07], 2e-16))
    both = {"u": [[-2.1680515614831031e-07]], "v": [[1.6546334312849721e-07]]}
    total = pc.linear(both, both["u"][0][0] * u + both["v"][0][0] * v)
    post = pc.condition(state, total, pc.weighted_sum([1.0], v, of="v"))
    assert float(post["v"].mean[0]) == pytest.approx(v, rel=1e-14)


@pytest.mark.parametrize("variance", [1e10, 1e16, 1e20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_laws_that_contradict_each_other_are_refused_however_wide_the_prior_is(variance, dtype):
    field = pc.Diagonal(MEAN.to(dtype), variance)
    with raises("contradicts them"):
        pc.condition(field, pc.integral(X, 1.0), pc.integral(X, 3.0))


@pytest.mark.parametrize("variance", [1e16, 1e18])
def test_a_row_that_float64_cannot_tell_from_another_is_not_missed_in_silence(variance):
    field = pc.Diagonal([1.0, 2.0, 3.0], [1.0, 1.0, variance])
    with raises("cannot be met"):
        pc.condition(
            field, pc.weighted_sum([1.0, 2.0, 1.0], 5.0), pc.weighted_sum([1.0, -1.0, 1.0], 1.0)
        )


def flow_network(seed, wide):
    """A balance for each node, flows that obey all of them, and what was measured of these."""
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(3, 9))
    ends = [rng.choice(nodes + 1, 2, replace=False) for _ in range(nodes + int(rng.integers(1, 6)))]
    every = np.arange(nodes)[:, None]
    balance = 1.0 * (every == [to for _, to in ends]) - (every == [start for start, _ in ends])
    free = scipy.linalg.null_space(balance)
    flow = 10 * free @ rng.normal(size=free.shape[1])
    measured = (flow + 0.5 * rng.normal(size=len(flow))) * (rng.random(len(flow)) < 0.9)
    variance = np.where(rng.random(len(flow)) < 0.3, wide, 0.25)
    return balance, measured, variance


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
@pytest.mark.parametrize("wide", [0.25, 1e4, 1e10])
def test_flow_networks_that_can_balance_do(wide):
    for seed in range(100):
        balance, measured, variance = flow_network(seed, wide)
        post = pc.condition((measured, variance), pc.linear(balance, np.zeros(len(balance))))
        size = np.abs(balance) @ (np.abs(measured) + np.sqrt(variance))
        assert (np.abs(balance @ post.mean.numpy()) <= 1e-12 * size).all()


@pytest.mark.parametrize("wide", [1.0, 1e10])
def test_a_contradiction_is_refused_however_wide_the_prior(wide):
    rows = [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 2.0, 1.0]]
    with pytest.raises(pc.errors.InfeasibleError, match="follows from other exact rows"):
        pc.condition((np.ones(3), wide), pc.linear(rows, [2.0, 2.0, 4.01]))


def test_totals_that_agree_but_for_the_rounding_to_float32_are_taken(rng):
    u = normal(3, 10, rng=rng)
    parts = u.unflatten(-1, (5, 2)).sum(-1)
    exact = pc.regions(np.arange(10) // 2, parts.numpy().astype(np.float32))
    total = pc.weighted_sum(np.ones(10), parts.sum(-1).numpy().astype(np.float32))
    post = pc.condition((u, 1.0), exact, total)
    torch.testing.assert_close(post.mean, u, rtol=0, atol=8 * 2.0**-23)


def test_of_values_with_few_decimals_the_error_says_what_rounding_explains(rng):
    parts = normal(5, rng=rng)
    laws = pc.regions(np.arange(5), parts.round(decimals=3)), pc.weighted_sum(np.ones(5), 1.234)
    with pytest.raises(pc.errors.InfeasibleError) as error:
        pc.condition((parts, 1.0), *laws)
    assert "decimals" not in str(error.value)  # off by far more
    total = float(parts.round(decimals=3).sum()) + 0.002
    laws = laws[0], pc.weighted_sum(np.ones(5), round(total, 3))
    with pytest.raises(
        pc.errors.InfeasibleError, match=r"3 decimals, and .* up to 0\.003: .* 0\.0003"
    ):
        pc.condition((parts, 1.0), *laws)
