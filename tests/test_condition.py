"""Step 2 on every kind of field and law, against dense matrices by another route."""

import copy

import mpmath
import numpy as np
import pytest
import torch
from oracle import (
    KINDS,
    LAWS,
    covariance,
    exact_residual,
    field_of,
    laws_of,
    normal,
    posterior,
    stacked,
    uniform,
)
from seeds import generator

import probconserv as pc

SHAPE = (4, 7)
MIXED = [pytest.param(kind, law, id=f"{kind}, {law}") for kind in KINDS for law in LAWS]


@pytest.mark.parametrize(("kind", "law"), MIXED)
def test_mean_variance_and_covariance_are_the_textbook_ones(kind, law, rng):
    field, laws = field_of(kind, SHAPE, rng), laws_of(law, SHAPE, rng)
    post = pc.condition(field, *laws)
    mean, sigma = posterior(field.mean.numpy().ravel(), covariance(field), laws, SHAPE)
    np.testing.assert_allclose(post.mean.numpy().ravel(), mean, atol=1e-8)
    np.testing.assert_allclose(post.variance.numpy().ravel(), np.diag(sigma), atol=1e-8)
    np.testing.assert_allclose(covariance(post), sigma, atol=1e-8)


@pytest.mark.parametrize(("kind", "law"), MIXED)
def test_exact_rows_hold_for_the_mean_and_every_sample(kind, law, rng):
    field, laws = field_of(kind, SHAPE, rng), laws_of(law, SHAPE, rng)
    post = pc.condition(field, *laws)
    for one in laws:
        assert exact_residual(one, post.mean) < 1e-12
        assert exact_residual(one, post.sample(9, rng)) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_two_steps_equal_one_in_either_order(kind, rng):
    field = field_of(kind, SHAPE, rng)
    laws = laws_of("all of the paper", SHAPE, rng)
    once = pc.condition(field, *laws)
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        steps = field
        for i in order:
            steps = pc.condition(steps, laws[i])
        torch.testing.assert_close(steps.mean, once.mean, rtol=0, atol=1e-10)
        torch.testing.assert_close(steps.variance, once.variance, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_fields_are_solved_in_float64(kind, rng):
    field = field_of(kind, SHAPE, rng)._map(lambda t: t.float())
    (law,) = laws_of("integral", SHAPE, rng)
    post = pc.condition(field, law)
    assert post.mean.dtype == post.variance.dtype == post.sample(2, rng).dtype == torch.float32
    assert exact_residual(law, post.mean) < 1e-6
    assert exact_residual(law, post.sample(5, rng)) < 1e-6
    full = pc.condition(field._map(lambda t: t.double()), law)
    torch.testing.assert_close(post.variance.double(), full.variance, rtol=1e-6, atol=1e-7)


def test_a_prior_far_off_still_conserves_to_rounding_of_the_posterior():
    prior = pc.Diagonal(torch.full((3, 50), 1e9, dtype=torch.float64), 1.0)
    law = pc.integral(torch.linspace(0, 1, 50, dtype=torch.float64), 1e-3)
    with pytest.warns(pc.ImplausibleWarning):
        post = pc.condition(prior, law)
    assert exact_residual(law, post.mean) < 1e-12


def test_variances_of_very_different_size_conserve(rng):
    variance = 10 ** torch.linspace(-14, 3, 50, dtype=torch.float64).expand(3, 50)
    law = pc.integral(torch.linspace(0, 1, 50, dtype=torch.float64), 2.0)
    post = pc.condition(pc.Diagonal(normal(3, 50, rng=rng), variance), law)
    assert exact_residual(law, post.mean) < 1e-12
    assert (post.variance >= 0).all()


def test_no_variance_is_negative_where_one_point_holds_all_of_it():
    variance = torch.zeros(1, 1, 6, dtype=torch.float64)
    variance[..., 2] = 0.1
    law = pc.integral(torch.linspace(0, 1, 6, dtype=torch.float64) ** 2, 0.7)
    post = pc.condition(pc.Diagonal(torch.ones_like(variance), variance), law)
    assert (post.variance >= 0).all()
    assert post.variance.max() < 1e-15
    assert exact_residual(law, post.mean) < 1e-12


@pytest.mark.parametrize("own", [1e-4, 1e-10, 1e-16])
@pytest.mark.parametrize("event_dims", [1, 2])
def test_low_rank_fields_with_hardly_any_variance_of_their_own(own, event_dims, rng):
    """Squared condition numbers would spoil the directions that the law does not see."""
    law = pc.integral(uniform(7, rng=rng).cumsum(0), normal(4, rng=rng), noise=1e-8)
    shapes = normal(3, *SHAPE, rng=rng)
    shapes[0] -= (law.apply(shapes[0]) / law.map.weights.sum())[:, None]  # not seen by the integral
    turn = torch.linalg.qr(normal(3, 3, rng=rng)).Q
    field = pc.LowRank(
        normal(*SHAPE, rng=rng), (turn @ shapes.flatten(1)).reshape(3, *SHAPE), own, event_dims
    )
    post = pc.condition(field, law)
    with mpmath.workdps(60):
        wanted = _variance_with_60_digits(field, law)
    np.testing.assert_allclose(post.variance.flatten(), wanted, rtol=1e-5, atol=1e-12)


def _variance_with_60_digits(field, law):
    factor = mpmath.matrix(field.factor.flatten(1).numpy())
    sigma = factor.T * factor + mpmath.diag(field.rest.flatten().tolist())
    for i in range(28):
        for j in range(28):
            if field.event_dims == 1 and i // 7 != j // 7:
                sigma[i, j] = 0
    G, _, r = stacked([law], SHAPE)
    cross = mpmath.matrix(G) * sigma
    left = sigma - cross.T * (cross * mpmath.matrix(G).T + mpmath.diag(r.tolist())) ** -1 * cross
    return [float(left[i, i]) for i in range(28)]


def test_redundant_but_consistent_rows_change_nothing(rng):
    for kind in KINDS:
        field = field_of(kind, SHAPE, rng)
        (law,) = laws_of("integral", SHAPE, rng)
        scale = torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64)
        rows = pc.linear(scale[:, None] * law.map.weights, law.value[:, None] * scale)
        once, twice = pc.condition(field, law), pc.condition(field, law, rows, law)
        torch.testing.assert_close(twice.mean, once.mean, rtol=0, atol=1e-9)
        torch.testing.assert_close(twice.variance, once.variance, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["diagonal", "low rank few 1", "low rank bare 1", "dense 1"])
@pytest.mark.parametrize("times", ["together", "each by itself"])
def test_rows_over_times_and_space_make_independent_times_joint(kind, times, rng):
    field, rows = field_of(kind, SHAPE, rng), normal(5, *SHAPE, rng=rng)
    if times == "each by itself":
        rows = rows * torch.eye(4, dtype=torch.float64)[[2, 0, 2, 3, 0], :, None]
    law = pc.linear(rows, normal(5, rng=rng))
    post = pc.condition(field, law)
    mean, sigma = posterior(field.mean.numpy().ravel(), covariance(field), [law], SHAPE)
    np.testing.assert_allclose(post.mean.numpy().ravel(), mean, atol=1e-9)
    np.testing.assert_allclose(covariance(post), sigma, atol=1e-9)
    assert post.event_dims == 2
    assert exact_residual(law, post.sample(9, rng)) < 1e-12


def test_integrals_over_two_axes_of_space(rng):
    x, y = uniform(4, rng=rng).cumsum(0), uniform(5, rng=rng).cumsum(0)
    law = pc.integral((x, y), normal(3, rng=rng))
    field = pc.Diagonal(normal(3, 4, 5, rng=rng), uniform(3, 4, 5, rng=rng))
    post = pc.condition(field, law)
    by_hand = torch.trapezoid(torch.trapezoid(post.mean, y, dim=-1), x, dim=-1)
    torch.testing.assert_close(by_hand, law.value)
    draws = post.sample(4, rng)
    assert law.residual(draws).abs().max() < 1e-12


@pytest.mark.parametrize("kind", ["diagonal", "low rank few 1", "low rank many 2", "dense 2"])
@pytest.mark.parametrize("law", ["noisy integral", "all of the paper", "rows"])
def test_gradients_are_right(kind, law, rng):
    shape = (2, 4)
    if law == "rows":
        laws = [pc.linear(normal(2, 4, rng=rng), normal(2, rng=rng), noise=0.3)]
    else:
        laws = laws_of(law, (3, 4), rng) if law != "noisy integral" else laws_of(law, shape, rng)
        shape = (3, 4) if law != "noisy integral" else shape
    field = field_of(kind, shape, rng)
    inputs = [field.mean.clone().requires_grad_(), laws[0].value.clone().requires_grad_()]
    inputs.append(uniform(1, rng=rng)[0].requires_grad_())  # a factor on variance and noise

    def outputs(mean, value, size):
        moved = field._map(lambda t: t * size)._with_mean(mean)
        first = copy.copy(laws[0])
        first.value, first.noise_variance = value, laws[0].noise_variance * size**2
        post = pc.condition(moved, first, *laws[1:])
        return post.mean, post.variance

    assert torch.autograd.gradcheck(outputs, inputs)


def test_gradients_survive_a_row_that_is_decided_already(rng):
    """The check of such rows must not cache a mean without its graph."""
    mean = normal(2, 5, rng=rng).requires_grad_()
    variance = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    value = torch.stack([torch.tensor(2.0).double(), torch.trapezoid(mean[1].detach())])
    post = pc.condition(pc.Diagonal(mean, variance), pc.integral(torch.arange(5.0).double(), value))
    assert post.mean.requires_grad
    (slope,) = torch.autograd.grad(post.mean[0, 0], mean)
    assert slope.abs().sum() > 0


def test_gradients_reach_mean_variance_value_and_noise(rng):
    x = uniform(5, rng=rng).cumsum(0)

    def outputs(mean, variance, value, noise):
        post = pc.condition(pc.Diagonal(mean, variance), pc.integral(x, value, noise=noise))
        return post.mean, post.variance

    inputs = [normal(2, 3, 5, rng=rng), uniform(2, 3, 5, rng=rng), normal(3, rng=rng)]
    inputs = [t.requires_grad_() for t in (*inputs, uniform(3, rng=rng))]
    assert torch.autograd.gradcheck(outputs, inputs)
    assert torch.autograd.gradcheck(lambda *a: outputs(*a, 0.0), inputs[:3])


def _step2(mean, variance, value):
    x = torch.linspace(0, 2, 7, dtype=torch.float64)
    post = pc.condition(pc.Diagonal(mean, variance), pc.integral(x, value))
    return post.mean, post.variance


def test_the_fast_path_compiles_without_graph_breaks(rng):
    inputs = normal(3, 4, 7, rng=rng), uniform(3, 4, 7, rng=rng), normal(4, rng=rng)
    compiled = torch.compile(_step2, fullgraph=True, backend="aot_eager")  # inductor: test_cuda
    for got, wanted in zip(compiled(*inputs), _step2(*inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-13)


def test_the_fast_path_works_under_vmap(rng):
    inputs = normal(3, 4, 7, rng=rng), uniform(3, 4, 7, rng=rng), normal(3, 4, rng=rng)
    for got, wanted in zip(torch.func.vmap(_step2)(*inputs), _step2(*inputs), strict=True):
        torch.testing.assert_close(got, wanted)


def test_inputs_stay_as_they_were(rng):
    mean, variance, b = normal(4, 7, rng=rng), uniform(4, 7, rng=rng), normal(4, rng=rng)
    kept = [t.clone() for t in (mean, variance, b)]
    post = pc.condition(pc.Diagonal(mean, variance), pc.integral(torch.arange(7.0).double(), b))
    post.sample(3, generator=generator()), post.variance, post.mean
    for now, before in zip((mean, variance, b), kept, strict=True):
        assert torch.equal(now, before)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "bare" not in kind])
def test_log_prob_is_that_of_the_dense_posterior(kind, rng):
    field = field_of(kind, SHAPE, rng)
    x = uniform(7, rng=rng).cumsum(0)
    laws = [pc.integral(x, normal(4, rng=rng), noise=0.3), pc.boundary(left=0.0, noise=0.2)]
    post = pc.condition(field, *laws)
    u = normal(*SHAPE, rng=rng)
    mean, sigma = posterior(field.mean.numpy().ravel(), covariance(field), laws, SHAPE)
    wanted = torch.distributions.MultivariateNormal(torch.from_numpy(mean), torch.from_numpy(sigma))
    rounding = 1e-7 + np.finfo(float).eps * np.linalg.cond(sigma) ** 2  # the oracle inverts twice
    given = post.log_prob(u).sum(), wanted.log_prob(u.flatten())
    torch.testing.assert_close(*given, rtol=rounding, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_log_evidence_is_the_density_of_b_under_the_prior(kind, rng):
    field = field_of(kind, SHAPE, rng)
    x = uniform(7, rng=rng).cumsum(0)
    smooth = pc.smoothness(x, uniform(*SHAPE, rng=rng), 0.7)
    laws = [pc.integral(x, normal(4, rng=rng)), smooth, pc.boundary(left=0.1, noise=0.2)]
    G, b, r = (torch.from_numpy(part) for part in stacked(laws, SHAPE))
    total = G @ torch.from_numpy(covariance(field)) @ G.T + r.diag()
    seen = torch.distributions.MultivariateNormal(G @ field.mean.flatten(), total)
    post = pc.condition(field, *laws)
    torch.testing.assert_close(post.log_evidence.sum(), seen.log_prob(b), rtol=1e-8, atol=1e-8)


def test_project_is_the_nearest_mean_and_leaves_the_covariance(rng):
    (law,) = laws_of("integral", SHAPE, rng)
    ends = pc.boundary(left=1.0, right=0.0)
    for kind in KINDS:
        field = field_of(kind, SHAPE, rng)
        hard = pc.project(field, law, ends)
        unit, mean = np.eye(28), field.mean.numpy().ravel()
        wanted, _ = posterior(mean, unit, [law, ends], SHAPE)
        np.testing.assert_allclose(hard.mean.numpy().ravel(), wanted, atol=1e-11)
        np.testing.assert_allclose(covariance(hard), covariance(field))
        assert type(hard) is type(field)


@pytest.mark.parametrize("limits", [(), (pc.bounds(0.0, of="u"), pc.bounds(0.0, of="v"))])
def test_project_moves_the_fields_of_a_state_as_one(rng, limits):
    u, v = normal(4, 5, rng=rng), normal(4, 3, rng=rng)
    state = pc.State(u=pc.Diagonal(u, 0.1), v=pc.LowRank(v, normal(2, 4, 3, rng=rng), 0.2))
    weights = {"u": torch.ones(5), "v": 2 * torch.ones(3)}
    near = pc.project(state, pc.weighted_sum(weights, 3.0), *limits)
    whole = pc.Diagonal(torch.cat([u, v], -1), 1.0)
    alone = (pc.bounds(0.0),) if limits else ()
    wanted = pc.project(whole, pc.weighted_sum(torch.cat([*weights.values()]), 3.0), *alone)
    found = torch.cat([near["u"].mean, near["v"].mean], -1)
    torch.testing.assert_close(found, wanted.mean)
    assert torch.equal(near["v"].variance, state["v"].variance)


def test_project_of_a_state_takes_laws_that_are_not_linear(rng):
    state = pc.State(u=(normal(5, rng=rng), 1.0), v=(normal(3, rng=rng), 1.0))
    law = pc.nonlinear(lambda s: s["u"].square().sum() + s["v"].sum(), 4.0)
    near = pc.project(state, law)
    u, v = near["u"].mean, near["v"].mean
    terms = 4.0 + 2 * u.square().sum() + v.abs().sum()  # |b| + |J| |u|; 1e-12 of it may be missed
    assert law.residual({"u": u, "v": v}).abs() <= 1.1e-12 * terms


@pytest.mark.parametrize("size", [2, 10_000])  # in NumPy, by the engine
def test_an_implausible_law_is_told_at_the_line_of_the_caller(size):
    with pytest.warns(pc.ImplausibleWarning) as caught:
        pc.condition((torch.ones(1, size), 1e-6), pc.weighted_sum(torch.ones(size), 3.0 * size))
    assert [warning.filename for warning in caught] == [__file__]
