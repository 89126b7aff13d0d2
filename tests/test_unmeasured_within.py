"""Points of infinite variance beside inequalities, and beside laws that are not linear."""

import math

import numpy as np
import pytest
import torch
from networks import given, network
from scipy.linalg import null_space
from scipy.optimize import minimize, nnls
from seeds import generator

import probconserv as pc

INF = math.inf
NODES = np.array(
    [
        [1, 1, -1, 0, 0, 0, 0, 0],
        [0, 0, 1, -1, -1, 0, 0, 0],
        [0, 0, 0, 1, 0, -1, -1, 0],
        [0, 0, 0, 0, 1, 1, 0, -1.0],
    ]
)


def low_network(rng, unmeasured=0.3):
    """A network whose measured flows are too low, so that many end at 0."""
    matrix, measured, missing = network(rng, unmeasured)
    low = measured - 6 * rng.random(len(measured))
    return matrix, np.where(missing, 0.0, low), missing


def off_optimal(u, y, missing, matrix, std=2.0):
    """How far the pull of measured flows, none of others, is from rows and bounds that are met."""
    pull = np.where(missing, 0.0, (u - y) / std)
    made_of = np.concatenate([matrix, -matrix, np.eye(len(u))[u == 0]]).T * std
    return nnls(made_of, pull, maxiter=10_000)[1] / (1 + np.linalg.norm(pull))


def test_flows_that_nobody_measured_are_not_negative_and_all_are_the_most_probable():
    rng, at_zero, undetermined = np.random.default_rng(0), 0, 0
    for _ in range(6):
        matrix, measured, missing = low_network(rng)
        mean, variance, g = given(matrix, measured, missing, 4.0)
        law = pc.linear(g, torch.zeros(len(g)).double())
        post = pc.condition(pc.Diagonal(mean, variance), law, pc.bounds(low=0.0), draws=0)
        u = post.point.numpy()
        assert u.min() >= 0
        assert abs(matrix @ u).max() < 1e-10
        assert off_optimal(u, measured, missing, matrix) < 1e-8
        at_zero, undetermined = at_zero + (u == 0).sum(), undetermined + post.undetermined.sum()
    assert at_zero > 10
    assert undetermined > 0


def test_draws_of_a_network_obey_and_move_as_the_point_does():
    rng, seen = np.random.default_rng(1), 0
    while seen < 3:
        matrix, measured, missing = low_network(rng, 0.15)
        mean, variance, g = given(matrix, measured, missing, 4.0)
        laws = pc.linear(g, torch.zeros(len(g)).double()), pc.bounds(low=0.0)
        about = pc.condition(pc.Diagonal(mean, variance), *laws, draws=0)
        if about.infinite:
            continue
        seen += 1
        post = pc.condition(pc.Diagonal(mean, variance), *laws, draws=10, generator=generator())
        assert float(post.draws.min()) >= 0
        assert float((post.draws @ g.T).abs().max()) < 1e-10
        np.testing.assert_allclose(post.point, about.point, atol=1e-7)


@pytest.mark.parametrize("unmeasured", [0.0, 0.3])
def test_streams_that_lie_on_no_cycle_are_held_at_zero(unmeasured):
    """Bounds and balances alone fix them: a set without an inside."""
    matrix = np.array([[-1.0, 1, -1, 0, 0], [1, -1, 0, 0, 0], [0, 0, 1, -1, 1], [0, 0, 0, 1, -1]])
    variance = np.full(5, 0.25)
    variance[[2, 4]] = INF if unmeasured else 0.25
    field, law = pc.Diagonal([3.0, 2, 5, 1, 2], variance), pc.linear(matrix, np.zeros(4))
    about = pc.condition(field, law, pc.bounds(low=0.0), draws=0)
    post = pc.condition(field, law, pc.bounds(low=0.0), draws=10, generator=generator())
    assert float(about.point[2]) == 0
    assert float(post.draws[:, 2].abs().max()) < 1e-14
    assert float((post.draws @ torch.tensor(matrix).T).abs().max()) < 1e-12


def test_bounds_on_an_unmeasured_difference_are_a_limit_on_what_was_measured():
    mean, variance = [1.0, 2.5, 0.7], [0.3, 0.2, 0.1]
    field = pc.State(u=(mean, variance), gap=([9.0], INF))
    law = pc.linear({"u": [[1.0, -1.0, 1.0]], "gap": [[-1.0]]}, 0.0)
    post = pc.condition(field, law, pc.bounds(low=0.5, of="gap"), draws=0)
    same = pc.at_least(pc.linear([[1.0, -1.0, 1.0]], 0.5))
    plain = pc.condition(pc.Diagonal(mean, variance), same, draws=0)
    np.testing.assert_allclose(post["u"].point, plain.point, atol=1e-12)
    np.testing.assert_allclose(post["u"].variance, plain.variance, atol=1e-12)
    assert post["gap"].point.tolist() == [0.5]
    assert post["gap"].variance.tolist() == [0.0]
    draws = pc.condition(field, law, pc.bounds(low=0.5, of="gap"), draws=9, generator=generator())
    assert float(draws["gap"].draws.min()) == 0.5


def test_noise_of_a_row_that_reads_an_unmeasured_point_is_weighed():
    rows, noise, variance = np.array([[1.0, 0, 1], [0, 1, -1]]), [0.3, 0.4], np.array([0.5, 0.7])
    field, law = pc.Diagonal([0.1, 0.2, 5.0], [*variance, INF]), pc.linear(rows, [3.0, 0], noise)
    post = pc.condition(field, law, pc.bounds(low=0.0, high=[9.0, 1.0, 9.0]), draws=0)
    first = 0.1 + 0.5 * (3 - 1 - 0.1) / (0.5 + 0.25)  # u0 + u1 = 3 up to both noises, u1 is 1
    np.testing.assert_allclose(post.point[:2], [first, 1.0], atol=1e-9)


@pytest.mark.parametrize("limits", [(), (pc.bounds(low=0.0, of="gap"),)])
def test_members_beside_an_unmeasured_number_are_as_given_the_law_without_it(limits):
    members = np.random.default_rng(12).normal(size=(6, 3, 4))
    u, ones = pc.Ensemble(members, batch_dims=1, shrinkage=0.3), np.ones((2, 4))
    state = pc.State(u=u, gap=(np.zeros((3, 1)), INF))
    law = pc.linear({"u": ones, "gap": [[1.0], [-1.0]]}, [3.0, 2.0])
    low = pc.bounds(low=0.1, of="u")
    post = pc.condition(state, law, low, *limits, draws=0)
    plain = pc.condition(u, pc.weighted_sum(np.ones(4), 2.5), pc.bounds(low=0.1), draws=0)
    np.testing.assert_allclose(post["u"].point, plain.point, atol=1e-9)
    np.testing.assert_allclose(post["gap"].point, 0.5, atol=1e-9)


def test_entries_of_a_batch_have_unmeasured_points_of_their_own():
    rng = np.random.default_rng(8)
    g, b, mean = rng.normal(size=(4, 6)), rng.normal(size=4), rng.uniform(0, 1, (2, 6))
    spread = np.full((2, 6), 0.3)
    spread[0, 1], spread[1, [2, 3]] = INF, INF
    square = pc.nonlinear(lambda u: u[0] * u[1], 0.3, batch_dims=1)
    for laws in ((pc.bounds(low=-2.0),), (square, pc.bounds(low=-2.0))):
        law = pc.linear(g[:2], b[:2])
        post = pc.condition(pc.Diagonal(mean, spread), law, *laws, draws=0)
        for i in range(2):
            own = [pc.nonlinear(lambda u: u[0] * u[1], 0.3) if x is square else x for x in laws]
            alone = pc.condition(pc.Diagonal(mean[i], spread[i]), law, *own, draws=0)
            np.testing.assert_allclose(post.point[i], alone.point, atol=1e-7)
            np.testing.assert_allclose(post.variance[i], alone.variance, atol=1e-6)


def test_parallel_streams_stay_within_bounds_and_are_named():
    field, law = pc.Diagonal([3.0, 5.0, 0.0], [0.1, INF, INF]), pc.linear([[1.0, -1, -1]], 0.0)
    post = pc.condition(field, law, pc.bounds(low=0.0, high=[9.0, 1.0, 9.0]), draws=0)
    np.testing.assert_allclose(post.point, [3.0, 1.0, 2.0], atol=1e-9)
    assert post.undetermined.tolist() == [False, True, True]
    assert post.variance[1:].tolist() == [INF, INF]  # not held by the bound that one is at
    np.testing.assert_allclose(post.variance[0], 0.1)
    with pytest.raises(pc.errors.DegenerateError, match="2 points of infinite variance"):
        post.sample(3)
    with pytest.raises(pc.errors.DegenerateError, match=r"no law determines 2 .*`draws=0`"):
        pc.condition(field, law, pc.bounds(low=0.0), draws=10)


def test_limits_alone_leave_points_open():
    field = pc.Diagonal([-3.0, -1.0], [0.1, INF])
    low = pc.condition(field, pc.bounds(low=0.0), draws=0)
    assert low.point.tolist() == [0.0, 0.0]
    assert low.undetermined.tolist() == [False, True]
    most = pc.condition(field, pc.at_least(pc.weighted_sum([1.0, 1.0], 5.0)), draws=0)
    np.testing.assert_allclose(most.point, [-3.0, 8.0], atol=1e-9)
    assert most.variance.tolist() == [0.1, INF]


def sheet(rng, wide=2):
    """Flows and fractions of 8 streams, with components in balance; some flows unmeasured."""
    a, b = rng.uniform(5, 10, 2)
    share = rng.uniform(0.3, 0.7, 2)
    c = (a + b) * share[0]
    flow = np.array([a, b, a + b, c, a + b - c, c * share[1], c * (1 - share[1]), 0])
    flow[7] = flow[4] + flow[5]
    part = np.array([0.5 * a, 0.02 * b, 0, 0, 0, 0, 0, 0])
    part[2] = part[:2].sum()
    part[3] = 0.9 * part[2]
    part[4], part[5] = 0.1 * part[2], 0.03 * part[3]
    part[6], part[7] = part[3] - part[5], part[4] + part[5]
    mean = np.concatenate([flow, part / flow])
    std = np.concatenate([0.03 * flow, np.full(8, 0.02)])
    mean = mean + std * rng.normal(size=16)
    variance = std**2
    variance[rng.choice(8, wide, replace=False)] = INF
    return mean, variance


def balances(u):
    return np.concatenate([NODES @ u[:8], NODES @ (u[:8] * u[8:])])


def slopes(u):
    return np.block([[NODES, 0 * NODES], [NODES * u[8:], NODES * u[:8]]])


def by_slsqp(mean, variance):
    found = minimize(
        lambda u: ((u - mean) ** 2 / variance).sum() / 2,
        mean,
        jac=lambda u: (u - mean) / variance,
        constraints={"type": "eq", "fun": balances, "jac": slopes},
        bounds=[(0, None)] * 16,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    return found.fun


def conditioned(mean, variance, *limits, **how):
    nodes, flow, part = torch.tensor(NODES), slice(0, 8), slice(8, 16)
    state = pc.State(
        flow=pc.Diagonal(mean[flow], variance[flow]), part=pc.Diagonal(mean[part], variance[part])
    )
    components = pc.nonlinear(lambda u: nodes @ (u["flow"] * u["part"]), np.zeros(4))
    return pc.condition(state, pc.linear({"flow": NODES}, np.zeros(4)), components, *limits, **how)


def positive():
    return [pc.bounds(low=0.0, of=name) for name in ("flow", "part")]


def test_a_flow_sheet_with_unmeasured_flows_is_as_probable_as_slsqp_finds():
    for seed in range(2):
        mean, variance = sheet(np.random.default_rng(seed))
        post = conditioned(mean, variance, *positive(), draws=0)
        u = torch.cat([post["flow"].point, post["part"].point]).numpy()
        own = ((u - mean) ** 2 / variance).sum() / 2
        assert u.min() >= 0
        assert abs(balances(u)).max() < 1e-10
        assert own <= by_slsqp(mean, variance) * (1 + 1e-6)
        started = mean.copy()
        started[np.isinf(variance)] = 0.0  # only a place to start
        again = conditioned(started, variance, *positive(), draws=0)
        np.testing.assert_allclose(again["flow"].point, post["flow"].point, atol=1e-6)


def test_the_gaussian_about_a_flow_sheet_is_that_of_its_tangent():
    mean, variance = sheet(np.random.default_rng(4))
    post = conditioned(mean, variance)
    u = torch.cat([post["flow"].point, post["part"].point]).numpy()
    z = null_space(slopes(u))
    left = z @ np.linalg.inv(z.T @ ((1 / variance)[:, None] * z)) @ z.T
    found = torch.cat([post["flow"].variance, post["part"].variance])
    np.testing.assert_allclose(found, left.diagonal(), rtol=1e-7, atol=1e-14)
    pull = z.T @ ((u - mean) / variance)
    assert abs(pull).max() < 1e-5 * np.linalg.norm((u - mean) / np.sqrt(variance))
    draws = post.sample(4, generator())
    both = torch.cat([draws["flow"], draws["part"]], -1).numpy()
    assert max(abs(balances(each)).max() for each in both) < 1e-10


@pytest.mark.parametrize("draws", [0, 2])
def test_gradients_of_points_and_draws_beside_unmeasured_points(draws):
    rng, known = np.random.default_rng(2), torch.tensor([0, 2, 3, 5])
    g, truth = torch.tensor(rng.normal(size=(3, 6))), torch.tensor(rng.uniform(0.0, 2, 6))
    truth[1] = 0.0

    def found(mean, variance, b):
        spread = torch.full((6,), INF).double().index_copy(0, known, variance)
        law = pc.linear(g, b, noise=[0, 0, 0.1])
        how = {"draws": draws, "generator": torch.Generator().manual_seed(0)}
        post = pc.condition(pc.Diagonal(mean, spread), law, pc.bounds(low=0.0), **how)
        return post.draws if draws else post.point

    mean = truth + 0.3 * torch.tensor(rng.normal(size=6))
    inputs = (mean, torch.tensor(rng.uniform(0.2, 1, 4)), g @ truth)
    inputs = tuple(x.requires_grad_() for x in inputs)
    assert torch.autograd.gradcheck(found, inputs, atol=1e-5, fast_mode=True)
    (own,) = torch.autograd.grad(found(*inputs).sum(), inputs[0])
    assert float(own[[1, 4]].abs().max()) < 1e-10  # what is determined forgets its mean


def test_gradients_given_laws_that_are_not_linear():
    known = torch.tensor([0, 1])

    def found(mean, variance, b):
        spread = torch.full((4,), INF).double().index_copy(0, known, variance)
        law = pc.nonlinear(lambda u: torch.stack([u[0] * u[2], u[1] + u[2] ** 2]), b)
        return pc.condition(pc.Diagonal(mean, spread), law).point

    mean = torch.tensor([1.0, 2.0, 0.8, 5.0]).double()
    inputs = (mean, torch.tensor([0.1, 0.2]).double(), torch.tensor([1.0, 3.0]).double())
    inputs = tuple(x.requires_grad_() for x in inputs)
    assert torch.autograd.gradcheck(found, inputs, eps=1e-5, atol=1e-4)
    slope = torch.autograd.grad(found(*inputs)[3], inputs[0])[0]
    assert slope.tolist() == [0.0, 0.0, 0.0, 1.0]  # no law reads it: it keeps its mean


def test_what_does_not_go_with_unmeasured_points_says_so():
    field = pc.Diagonal([1.0, 2.0], [0.5, INF])
    law = pc.weighted_sum([1.0, 1.0], 2.0)
    with pytest.raises(pc.errors.InputError, match=r"`truncated` bounds do not take"):
        pc.condition(field, law, pc.bounds(low=0.0, truncated=True))
    many = pc.nonlinear(lambda u: u.sum() * torch.arange(1.0, 1101.0).double(), np.zeros(1100))
    with pytest.raises(pc.errors.InputError, match=r"1100 rows .* infinite variance"):
        pc.condition(field, many)


def test_an_unmeasured_point_that_grows_without_end_is_an_error():
    law = pc.nonlinear(lambda u: u[0] * (1 + 1 / (1 + u[1] ** 2)), 1.0)
    with pytest.raises(pc.errors.InfeasibleError, match=r"do not settle.* grow without end"):
        pc.condition(pc.Diagonal([1.0, 2.0], [0.5, INF]), law)


@pytest.mark.parametrize(
    "given",
    [
        [pc.at_least(pc.weighted_sum([1.0, 1.0, 1.0], 3.0))],
        [pc.nonlinear(lambda u: u[0] ** 3, 0.5), pc.bounds(low=-1.0)],
    ],
)
def test_limits_and_curved_laws_give_no_draws_of_what_no_law_determines(given):
    prior = pc.Diagonal([0.1, 0.0, 0.0], [1.0, np.inf, np.inf])
    assert pc.condition(prior, *given, draws=0).undetermined.tolist() == [False, True, True]
    for each in (prior, pc.State(u=prior)):
        own = given if each is prior else [pc.at_least(pc.weighted_sum([1.0] * 3, 3.0, of="u"))]
        with pytest.raises(pc.errors.DegenerateError, match=r"no law determines 2 .*`draws=0`"):
            pc.condition(each, *own, draws=3)
