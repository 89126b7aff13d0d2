"""Cases at the edge: hardly any variance, decided rows, shared memory, gradients, precision."""

import math

import gpytorch
import mpmath
import numpy as np
import pytest
import torch
from linear_operator.operators import IdentityLinearOperator
from oracle import exact_residual, field_of, normal, stacked, uniform
from seeds import generator

import probconserv as pc
from probconserv.conditioning.audit import largest_move

SHAPE = (4, 7)
pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")  # random fields
X = torch.linspace(0, 1, 7, dtype=torch.float64)


# Gradients and memory


def test_reading_the_mean_under_no_grad_does_not_lose_its_gradient(rng):
    mean = normal(*SHAPE, rng=rng).requires_grad_()
    for field in (pc.Diagonal(mean, 1.0), pc.LowRank(mean, normal(2, *SHAPE, rng=rng), 0.1)):
        law = pc.integral(X, 0.5)
        assert pc.condition(field, law, law).mean.requires_grad
        post = pc.condition(field, law)
        with torch.no_grad():
            assert post.mean.isfinite().all()
        assert post.mean.requires_grad


@pytest.mark.parametrize("kind", ["diagonal", "low rank few 1", "low rank few 2", "dense 1"])
def test_everything_works_under_no_grad(kind, rng):
    field, law = field_of(kind, SHAPE, rng), pc.integral(X, 0.5)
    wanted = pc.condition(field, law)
    with torch.no_grad():
        post = pc.condition(field, law, law)
        torch.testing.assert_close(post.mean, wanted.mean)
        torch.testing.assert_close(post.variance, wanted.variance)
        assert exact_residual(law, post.sample(3, rng)) < 1e-12


def test_gradients_of_noise_and_variance_are_finite_at_zero():
    noise = torch.tensor([0.0, 0.1], dtype=torch.float64, requires_grad=True)
    variance = torch.tensor([[0.0, 0.5, 1.0]], dtype=torch.float64, requires_grad=True)
    prior = pc.Diagonal(torch.ones(2, 3, dtype=torch.float64), 1.0)
    rng = torch.Generator().manual_seed(0)
    x = [0.0, 1.0, 2.0]
    pc.condition(prior, pc.integral(x, 1.0, noise=noise)).sample(3, rng).sum().backward()
    pc.condition(prior, pc.smoothness(x, variance, 0.5)).mean.sum().backward()
    assert noise.grad.isfinite().all()
    assert variance.grad.isfinite().all()


def test_gradients_are_finite_where_a_low_rank_field_does_not_move(rng):
    factor = normal(9, *SHAPE, rng=rng)
    factor[:, :, 3] = 0
    factor.requires_grad_()
    for event_dims in (1, 2):
        field = pc.LowRank(normal(*SHAPE, rng=rng), factor, 0.0, event_dims)
        post = pc.condition(field, pc.integral(X, 0.5), pc.boundary(left=0.1))
        (slope,) = torch.autograd.grad(post.mean.sum() + post.variance.sum(), factor)
        assert slope.isfinite().all()


def test_numpy_buffers_can_be_reused_after_condition(rng):
    mean, variance = normal(*SHAPE, rng=rng).numpy(), uniform(*SHAPE, rng=rng).numpy()
    law = pc.integral(X, 0.5)
    wanted = pc.condition((mean.copy(), variance.copy()), law)
    post = pc.condition((mean, variance), law)
    mean += 100
    variance *= 4
    torch.testing.assert_close(post.mean, wanted.mean)
    torch.testing.assert_close(post.variance, wanted.variance)


def test_a_covariance_that_returns_its_argument_leaves_the_law_alone(rng):
    law = pc.integral(X, 0.5)
    kept = law.map.weights.clone()
    identity = IdentityLinearOperator(7, dtype=torch.float64)
    prediction = gpytorch.distributions.MultivariateNormal(normal(7, rng=rng), identity)
    post = pc.condition(prediction, law)
    assert law.residual(post).abs() < 1e-14
    assert torch.equal(law.map.weights, kept)


# Rows that are decided, or nearly


@pytest.mark.parametrize("v", [0.3, 0.7, 1.1])
def test_exact_points_and_exact_second_differences_that_disagree(v, rng):
    variance = torch.full(SHAPE, v, dtype=torch.float64)
    line = pc.smoothness(X, variance, rho=1.0)
    line.noise_variance = torch.zeros_like(line.noise)
    prior = pc.Diagonal(normal(*SHAPE, rng=rng), variance)
    with pytest.raises(
        pc.errors.InfeasibleError, match=r"`smoothness` at \[0\], row .* contradicts"
    ):
        pc.condition(prior, pc.initial(normal(7, rng=rng)), line)
    straight = pc.initial(2 * X + 1)
    post = pc.condition(prior, straight, line)
    assert exact_residual(straight, post.mean) < 1e-12


def test_points_known_exactly_have_no_variance_left(rng):
    variance = 10 ** uniform(*SHAPE, rng=rng, low=-3, high=12)
    ends = pc.boundary(left=0.3, right=0.1)
    law = pc.weighted_sum(torch.ones(7, dtype=torch.float64), 7.0)
    post = pc.condition(pc.Diagonal(normal(*SHAPE, rng=rng), variance), ends, law)
    assert (post.variance[:, [0, -1]] == 0).all()
    for u in (post.mean, post.sample(5, rng)):
        assert exact_residual(ends, u) < 1e-12
        assert exact_residual(law, u) < 1e-12


@pytest.mark.parametrize(
    "kind", ["diagonal", "low rank few 1", "low rank bare 2", "dense 1", "dense 2"]
)
def test_contradictions_count_from_1e_8_of_the_terms(kind, rng):
    field = field_of(kind, SHAPE, rng)
    ones = torch.ones(7, dtype=torch.float64)
    first = pc.weighted_sum(ones, 1.0)
    size = (field.mean.abs() + field.std).sum(-1).max() + 1
    pc.condition(field, first, pc.weighted_sum(ones, 1.0 + 1e-9))
    with pytest.raises(pc.errors.InfeasibleError, match="is off by"):
        pc.condition(field, first, pc.weighted_sum(ones, 1.0 + float(5e-8 * size)))


@pytest.mark.parametrize("kind", ["diagonal", "low rank few 1", "dense 1"])
def test_rows_that_differ_by_little_are_both_met(kind, rng):
    """An angle of 1e-5 leaves 1e-10 of the variance: not decided."""
    field, row = field_of(kind, SHAPE, rng), uniform(7, rng=rng)
    rows = torch.stack([row, row + 1e-5 * normal(7, rng=rng)])
    law = pc.linear(rows, [1.0, 1.0 + 3e-6])
    assert law.residual(pc.condition(field, law)).abs().max() < 1e-11
    apart = [pc.weighted_sum(r, b) for r, b in zip(rows, law.value, strict=True)]
    post = pc.condition(field, *apart)
    assert max(float(one.residual(post).abs().max()) for one in apart) < 1e-11


def test_exact_rows_win_over_nearly_exact_ones_in_any_order(rng):
    field = field_of("diagonal", SHAPE, rng)
    exact, near = pc.integral(X, 1.0), pc.integral(X, 1.0 + 1e-4, noise=1e-7)
    for laws in ((exact, near), (near, exact)):
        assert exact_residual(exact, pc.condition(field, *laws).mean) < 1e-12


def test_nearly_exact_points_do_not_decide_exact_rows():
    prior = pc.Diagonal(torch.zeros(1, 4, dtype=torch.float64), 1.0)
    near = pc.boundary(left=1.0, noise=3e-7)
    for value in (1.001, 1 + 1e-9):
        exact = pc.linear([[1.0, 0.0, 0.0, 0.0]], [value])
        assert exact_residual(exact, pc.condition(prior, near, exact).mean) < 1e-12


def test_contradictions_within_noise_too_small_to_weigh(rng):
    """Half-way between the two is right, but float64 has lost it: an error, not one of the two."""
    field, ones = field_of("diagonal", SHAPE, rng), torch.ones(7, dtype=torch.float64)
    with pytest.raises(pc.errors.InfeasibleError, match="contradict"):
        pc.condition(
            field, pc.weighted_sum(ones, 1.0, noise=1e-9), pc.weighted_sum(ones, 2.0, noise=1e-9)
        )
    post = pc.condition(
        field, pc.weighted_sum(ones, 1.0, noise=1e-3), pc.weighted_sum(ones, 2.0, noise=1e-3)
    )
    halfway = torch.full((4,), 1.5, dtype=torch.float64)
    torch.testing.assert_close(post.mean.sum(-1), halfway, rtol=0, atol=1e-5)


@pytest.mark.parametrize("own", [0.0, 0.1])
@pytest.mark.parametrize("event_dims", [1, 2])
def test_zeros_at_the_ends_and_at_the_start_are_feasible(own, event_dims, rng):
    """Terms that are all 0 must not make rounding look like a contradiction."""
    low = pc.LowRank(normal(*SHAPE, rng=rng), normal(30, *SHAPE, rng=rng), own, event_dims)
    others = field_of(f"dense {event_dims}", SHAPE, rng), field_of("diagonal", SHAPE, rng)
    ends, start = pc.boundary(0.0, 0.0), pc.initial(torch.zeros(7, dtype=torch.float64))
    for law in (ends, start, pc.linear(torch.eye(7, dtype=torch.float64)[[0, 5]], 0.0)):
        for field in (low, *others):
            assert law.residual(pc.condition(field, law)).abs().max() < 1e-12


def test_rows_that_only_the_latent_part_can_tell_apart():
    field = pc.LowRank([0.0, 0.0, 0.0], [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [1.0, 0.0, 0.0])
    rows = [[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    wanted = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
    post = pc.condition(field, pc.linear(rows, [1.0, 2.0]))
    torch.testing.assert_close(post.mean, wanted)
    torch.testing.assert_close(post.variance, torch.full_like(wanted, 1 / 3))
    near = pc.condition(field, pc.linear(rows, [1.0, 2.0], noise=[0.0, 1e-8]))
    torch.testing.assert_close(near.mean, wanted)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_members_that_all_conserve_cannot_be_moved_by_their_rounding(dtype, rng):
    x = torch.linspace(0, 1, 51, dtype=torch.float64)
    members = (-(((x - 0.5 + 0.1 * normal(10, 4, 1, rng=rng)) / 0.1) ** 2)).exp()
    members = (members / torch.trapezoid(members, x)[..., None]).to(dtype)
    field = pc.Ensemble(members, batch_dims=1, shrinkage=0.0)
    with pytest.raises(pc.errors.InfeasibleError, match=r"`integral` at .* directions .* too few"):
        pc.condition(field, pc.integral(x, 1.01))
    post = pc.condition(field, pc.integral(x, 1.0))
    torch.testing.assert_close(post.mean, field.mean)
    torch.testing.assert_close(post.variance, field.variance)


def test_samples_of_a_singular_covariance_obey_rows_that_it_decides(rng):
    factor = normal(3, 8, rng=rng)
    field = pc.Dense(torch.zeros(1, 8, dtype=torch.float64), (factor.T @ factor)[None])
    rows, truth = normal(5, 8, rng=rng), normal(1, 3, rng=rng) @ factor
    law = pc.linear(rows, truth @ rows.T)
    assert exact_residual(law, pc.condition(field, law).sample(50, rng)) < 1e-12


def test_float32_totals_of_a_known_start_are_no_contradiction(rng):
    x = torch.linspace(0, 1, 40)
    variance = torch.tensor([[0.0], [1.0], [1.0]])
    for _ in range(20):
        mean = torch.rand(3, 40, generator=rng)
        law = pc.integral(x, torch.trapezoid(mean, x))
        assert exact_residual(law, pc.condition(pc.Diagonal(mean, variance), law).mean) < 1e-6


def test_points_on_a_bare_joint_field_need_no_square_of_the_field(rng):
    """160 rows, 40,000 points: nothing that is kept is larger than the field's own directions."""
    field = pc.LowRank(normal(80, 500, rng=rng), normal(200, 80, 500, rng=rng), event_dims=2)
    ends = pc.boundary(left=0.5, right=normal(80, rng=rng))
    post = pc.condition(field, ends)
    assert ends.residual(post).abs().max() < 1e-10
    sizes = []
    post._map(lambda t: sizes.append(t.numel()) or t)
    assert max(sizes) <= field.factor.numel()


# Low-rank fields with hardly any variance of their own


@pytest.mark.parametrize("own", [1e-4, 1e-8, 1e-11, 1e-16, 1e-30, 0.0])
@pytest.mark.parametrize("event_dims", [1, 2])
@pytest.mark.parametrize("rows", ["ends", "first time"])
def test_hardly_any_own_variance_against_60_digits(own, event_dims, rows, rng):
    """As many rows as points count, so that the system has the size of the rank."""
    field = pc.LowRank(normal(*SHAPE, rng=rng), normal(6, *SHAPE, rng=rng), own, event_dims)
    ends, first = pc.boundary(left=normal(4, rng=rng)), pc.integral(X, 0.4, times=[0])
    law = ends if rows == "ends" else first
    post = pc.condition(field, law)
    with mpmath.workdps(60):
        mean, variance = _with_60_digits(field, law, max(own, 1e-45))
    np.testing.assert_allclose(post.mean.flatten(), mean, rtol=0, atol=1e-7)
    np.testing.assert_allclose(post.variance.flatten(), variance, rtol=0, atol=1e-7)


def _with_60_digits(field, law, own):
    factor = mpmath.matrix(field.factor.flatten(1).numpy())
    sigma = factor.T * factor + own * mpmath.eye(28)
    for i in range(28):
        for j in range(28):
            if field.event_dims == 1 and i // 7 != j // 7:
                sigma[i, j] = 0
    G, b, r = stacked([law], SHAPE)
    G, mean = mpmath.matrix(G), mpmath.matrix(field.mean.flatten().tolist())
    cross = G * sigma
    gain = cross.T * (cross * G.T + mpmath.diag(r.tolist())) ** -1
    mean, left = mean - gain * (G * mean - mpmath.matrix(b.tolist())), sigma - gain * cross
    return [float(m) for m in mean], [float(left[i, i]) for i in range(28)]


@pytest.mark.parametrize("own", [1e-2, 1e-8, 1e-12])
def test_evidence_and_density_with_hardly_any_own_variance(own, rng):
    field = pc.LowRank(normal(*SHAPE, rng=rng), normal(3, *SHAPE, rng=rng), own, event_dims=2)
    law, u = pc.integral(X, normal(4, rng=rng), noise=1e-6), normal(*SHAPE, rng=rng)
    G, b, r = stacked([law], SHAPE)
    with mpmath.workdps(60):
        F = mpmath.matrix(field.factor.flatten(1).numpy())
        sigma = F.T * F + own * mpmath.eye(28)
        away = mpmath.matrix((u - field.mean).flatten().tolist())
        wanted = _log_normal(away, sigma)
        G, mean = mpmath.matrix(G), mpmath.matrix(field.mean.flatten().tolist())
        seen = _log_normal(
            G * mean - mpmath.matrix(b.tolist()), G * sigma * G.T + mpmath.diag(r.tolist())
        )
    assert float(field.log_prob(u)) == pytest.approx(wanted, rel=1e-5)
    assert float(pc.condition(field, law).log_evidence) == pytest.approx(seen, rel=1e-5)


def _log_normal(r, sigma):
    square = (r.T * sigma**-1 * r)[0]
    return float(-(square + mpmath.log(mpmath.det(sigma)) + len(r) * mpmath.log(2 * mpmath.pi)) / 2)


# Shapes, precision, mixtures


@pytest.mark.parametrize("kind", ["diagonal", "low rank few 1", "low rank few 2", "dense 1"])
def test_an_empty_batch_stays_empty(kind, rng):
    field, law = field_of(kind, (2, *SHAPE), rng)[:0], pc.integral(X, 0.5)
    post = pc.condition(field, law)
    assert post.mean.shape == post.variance.shape == (0, *SHAPE)
    assert post.sample(3, rng).shape == (3, 0, *SHAPE)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0, 4)])
def test_an_empty_batch_can_be_smoothed(shape):
    x, field = [0.0, 0.1, 0.3, 1.0], pc.Diagonal(torch.zeros(shape), 1.0)
    post = pc.condition(field, pc.smoothness(x, torch.ones(shape), 0.5))
    assert post.mean.shape == post.variance.shape == shape


@pytest.mark.parametrize("known", [pc.boundary(0.2, 0.1), pc.initial(torch.zeros(7))])
@pytest.mark.parametrize("shared", [0.0, 0.5])
def test_known_points_beside_many_smooth_lines_take_no_dense_matrix(known, shared, monkeypatch):
    def variance(lines):
        mean = torch.zeros(lines, 7)
        field = pc.LowRank(mean, mean[None] + shared, 1.0) if shared else pc.Diagonal(mean, 1.0)
        return pc.condition(field, known, pc.smoothness(X, field.variance, 0.5)).variance

    few = variance(4)  # few lines are solved by dense matrices
    monkeypatch.delattr("probconserv.solvers.joint.Joint.variance")
    torch.testing.assert_close(variance(40)[:4], few)


def test_a_point_that_is_known_to_be_0_is_exactly_0(rng):
    field = pc.Diagonal(normal(*SHAPE, rng=rng), uniform(*SHAPE, rng=rng))
    post = pc.condition(field, pc.boundary(left=0.0), pc.integral(X, 1.0))
    assert (
        post.mean[:, 0].count_nonzero()
        == post.sample(5, generator=generator())[..., 0].count_nonzero()
        == 0
    )


def test_results_for_many_smooth_lines_lie_as_their_shape_says():
    x, field = torch.linspace(0, 1, 100), pc.Diagonal(torch.zeros(60, 100), 1.0)
    laws = pc.smoothness(x, field.variance, 0.5), pc.integral(x, 1.0)
    post = pc.condition(field, *laws)
    found = [
        post.mean,
        post.variance,
        post[3:5].variance,
        post.sample(2, generator=generator()),
        post.std,
    ]
    found += [pc.condition(field, laws[0]).variance, post.covariance_times(field.variance)]
    assert all(t.is_contiguous() for t in found)


def test_a_view_with_another_sign_is_read_as_any_other():
    turned = torch.fft.fft(torch.arange(6.0).double().reshape(2, 3)).conj().imag
    assert turned.is_neg()
    law = pc.weighted_sum([1.0, 2.0, 3.0], 5.0)
    new = [pc.condition((u, 1.0), law).mean for u in (turned, turned.clone())]
    torch.testing.assert_close(*new)


def test_numbers_of_one_byte_are_refused():
    with pytest.raises(pc.errors.InputError, match=r"`mean` is torch.float8_e4m3fn.*Convert it"):
        pc.Diagonal(torch.zeros(3).to(torch.float8_e4m3fn), 1.0)


@pytest.mark.parametrize("noise", [1e200, 1e-147, 1e-170, [1.0, 1e-170]])
def test_noise_whose_square_is_lost_is_refused(noise):
    with pytest.raises(pc.errors.InputError, match="has a square that float64 does not hold"):
        pc.boundary(left=[2.0, 2.0], noise=noise)


def test_the_evidence_of_a_row_as_wide_as_float64_holds():
    law = pc.weighted_sum([1.0, 1.0], 0.0, noise=1e154)
    found = float(pc.condition(([0.0, 0.0], 1.0), law).log_evidence)
    assert found == pytest.approx(-0.5 * math.log(2 * math.pi) - 154 * math.log(10))


@pytest.mark.parametrize(("variance", "scale"), [(3e307, 1.0), (1.0, 1e154)])
def test_a_row_whose_variance_overflows_is_refused(variance, scale):
    law = pc.weighted_sum([scale, 2 * scale, 3 * scale], 1.0)
    with pytest.raises(pc.errors.InfeasibleError, match="more than float64 can hold"):
        pc.condition(([[1.0, 2.0, 3.0]], variance), law)


@pytest.mark.parametrize("kind", [pc.Diagonal, lambda m, v: pc.LowRank(m, v[None].sqrt(), v)])
def test_a_row_whose_variance_is_too_small_is_refused_for_that_reason(kind):
    mean = 1e-150 * torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    for law in (pc.weighted_sum([1.0, 1.0, 1.0], 7e-150), pc.boundary(left=2e-150)):
        with pytest.raises(pc.errors.InfeasibleError, match="less than float64 can hold"):
            pc.condition(kind(mean, mean.square()), law)


def test_a_smaller_u_is_scored_as_if_expanded(rng):
    for kind in ("diagonal", "low rank few 2", "dense 2"):
        law = pc.integral(X, 0.5, noise=0.3)
        post = pc.condition(field_of(kind, SHAPE, rng), law)
        u = normal(7, rng=rng)
        torch.testing.assert_close(post.log_prob(u), post.log_prob(u.expand(SHAPE)))


def test_float32_covariances_can_be_sampled_and_conditioned(rng):
    sigma = (-((X[:, None] - X) ** 2) / 0.5).exp().float().expand(4, 7, 7)
    field = pc.Dense(normal(*SHAPE, rng=rng).float(), sigma)
    law = pc.integral(X, 0.5)
    draws = pc.condition(field, law).sample(20, rng)
    assert exact_residual(law, draws) < 1e-6


def test_float32_mixtures_add_up(rng):
    """Evidences of a million in size leave nothing of float32 to normalise with."""
    components = pc.Diagonal(normal(5, 200, 50, rng=rng).float(), 1e-6)
    law = pc.integral(torch.linspace(0, 1, 50, dtype=torch.float64), normal(200, rng=rng))
    with pytest.warns(pc.ImplausibleWarning):
        post = pc.condition(pc.Mixture(components), law)
    assert float(post.weights.sum(0)) == pytest.approx(1, abs=1e-6)
    assert exact_residual(law, post.mean) < 1e-6


def test_redundant_rows_of_another_size_do_not_change_the_weights(rng):
    components = pc.Diagonal(normal(8, 1, 7, rng=rng), uniform(8, 1, 7, rng=rng))
    row = uniform(7, rng=rng)
    one = pc.condition(pc.Mixture(components), pc.linear(row[None], [0.3]))
    law = pc.linear(torch.stack([row, 1000 * row]), [0.3, 300.0])
    torch.testing.assert_close(pc.condition(pc.Mixture(components), law).weights, one.weights)


def test_components_with_and_without_variance_cannot_be_compared():
    means, variances = [[[1.0, 1.0]], [[0.0, 0.0]]], [[[0.0, 0.0]], [[1.0, 1.0]]]
    with pytest.raises(pc.errors.DegenerateError, match="their evidences cannot be compared"):
        pc.condition(pc.Mixture(pc.Diagonal(means, variances)), pc.weighted_sum([1.0, 1.0], 2.0))


def test_per_time_weights_with_values_at_some_times_can_be_sampled(rng):
    components = pc.Diagonal(torch.zeros(2, *SHAPE, dtype=torch.float64), 1.0)
    law = pc.integral(X, [[1.0, 2.0], [5.0, 6.0]], times=[3, 0])
    mixture = pc.Mixture(pc.condition(components, law), event_dims=1)
    totals = torch.trapezoid(mixture.sample(200, rng), X)
    assert set(totals[:, 3].round(decimals=6).tolist()) == {1.0, 5.0}
    assert set(totals[:, 0].round(decimals=6).tolist()) == {2.0, 6.0}


def test_gpytorch_components_can_be_sampled(rng):
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=0.5)).double()
    lazy = kernel(normal(3, 7, 1, rng=rng))
    prediction = gpytorch.distributions.MultivariateNormal(normal(3, 7, rng=rng), lazy)
    mixture = pc.Mixture(pc.fields.as_field(prediction), event_dims=1)
    assert mixture.sample(5, rng).shape == (5, 7)


def test_the_largest_move_of_a_long_row_of_points_is_found():
    field = pc.Diagonal(torch.zeros(2**19 + 3, dtype=torch.float64), 4.0)
    moved = torch.zeros_like(field.mean)
    moved[2**19] = -50.0
    assert largest_move((moved,), (field,)) == 25.0
