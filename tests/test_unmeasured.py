"""Points of infinite variance: what nobody measured."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from networks import given, network
from scipy.linalg import null_space

import probconserv as pc

INF = math.inf


def by_null_space(g, b, mean, variance, noise):
    """Mean and covariance of all points, NaN where undetermined: an SVD for each question.

    The noise of each row is one more measured point.
    """
    g = np.concatenate([g, np.eye(len(g))], 1)
    mean, variance = np.append(mean, 0 * noise), np.append(variance, noise)
    free = np.isinf(variance)
    z, d = null_space(g[:, free].T, rcond=1e-9), variance[~free]
    rows = z.T @ g[:, ~free] * np.sqrt(d)
    u, s, vt = np.linalg.svd(rows, full_matrices=False)
    u, s, vt = (x[..., s > 1e-9] if x is not vt else x[s > 1e-9] for x in (u, s, vt))
    miss = z.T @ (b - g[:, ~free] @ mean[~free])
    known = mean[~free] + np.sqrt(d) * (vt.T @ (u.T @ miss / s))
    left = np.sqrt(d)[:, None] * (np.eye(len(d)) - vt.T @ vt) * np.sqrt(d)
    back = np.linalg.pinv(g[:, free])
    along = np.zeros((len(mean), len(d)))
    along[~free], along[free] = np.eye(len(d)), -back @ g[:, ~free]
    found, cov = mean.copy(), along @ left @ along.T
    found[~free], found[free] = known, back @ (b - g[:, ~free] @ known)
    null = null_space(g[:, free], rcond=1e-9)
    open_ = np.flatnonzero(free)[(null**2).sum(1) > 1e-12]
    found[open_], cov[open_], cov[:, open_] = np.nan, np.nan, np.nan
    count = len(mean) - len(g)
    return found[:count], cov[:count, :count]


def agrees(post, mean, cov, atol=1e-10):
    """Mean, variance and undetermined points of one part are those of an oracle."""
    open_ = np.isnan(mean)
    np.testing.assert_array_equal(post.undetermined.flatten(), open_)
    np.testing.assert_allclose(post.mean.flatten()[~open_], mean[~open_], atol=atol)
    np.testing.assert_allclose(post.variance.flatten()[~open_], cov.diagonal()[~open_], atol=atol)
    assert bool((post.variance.flatten()[open_] == INF).all())


def test_no_consistent_network_is_refused_and_all_agree_with_null_spaces():
    rng, undetermined = np.random.default_rng(0), 0
    for _ in range(100):
        matrix, measured, missing = network(rng)
        mean, variance, g = given(matrix, measured, missing)
        law = pc.linear(g, torch.zeros(len(g)).double())
        post = pc.condition(pc.Diagonal(mean, variance), law)
        zero = np.zeros(len(g))
        agrees(post, *by_null_space(matrix, zero, measured, variance.numpy(), zero))
        assert law.residual(post).abs().max() <= 1e-12 * law.magnitude(post.mean).max()
        undetermined += int(post.undetermined.sum())
    assert undetermined > 50


def by_fractions(matrix, measured, missing):
    """The means that are determined, of streams with the same variance, in exact arithmetic."""
    nodes, count = matrix.shape
    g = [[Fraction(int(x)) for x in row] for row in matrix]
    rows = [row + [Fraction(0)] * (nodes + 1) for row in g]
    for j in range(count):
        own = [Fraction(int(i == j and not missing[j])) for i in range(count)]
        value = Fraction(0) if missing[j] else Fraction(str(measured[j]))
        rows.append([*own, *(g[i][j] for i in range(nodes)), value])
    pivots, done = {}, 0
    for column in range(count + nodes):
        at = next((i for i in range(done, len(rows)) if rows[i][column]), None)
        if at is None:
            continue
        rows[done], rows[at] = rows[at], rows[done]
        rows[done] = [x / rows[done][column] for x in rows[done]]
        for i, row in enumerate(rows):
            if i != done and row[column]:
                rows[i] = [x - row[column] * y for x, y in zip(row, rows[done], strict=True)]
        pivots[column], done = done, done + 1
    free = [c for c in range(count + nodes) if c not in pivots]
    sure = {
        j: rows[i] for j, i in pivots.items() if j < count and not any(rows[i][c] for c in free)
    }
    return {j: float(row[-1]) for j, row in sure.items()}


@pytest.mark.parametrize("seed", range(4))
def test_a_network_agrees_with_exact_fractions(seed):
    rng = np.random.default_rng(seed)
    matrix, measured, missing = next(x for x in iter(lambda: network(rng), None) if len(x[0]) < 9)
    mean, variance, g = given(matrix, measured, missing)
    post = pc.condition(pc.Diagonal(mean, variance), pc.linear(g, torch.zeros(len(g)).double()))
    exact = by_fractions(matrix, measured, missing)
    assert sorted(exact) == (~post.undetermined).nonzero()[:, 0].tolist()
    np.testing.assert_allclose(post.mean[list(exact)], list(exact.values()), atol=2e-14)


def some_rows(rng, rows=6, points=8, missing=3):
    """A law with exact and noisy rows, two of which repeat others, of points some unmeasured."""
    g = rng.normal(size=(rows, points))
    g[3, :] = g[0] + g[1]
    g[4, -missing:] = g[2, -missing:]
    noise = np.where(np.arange(rows) > 1, 0.3, 0.0)
    b = g @ rng.normal(size=points)
    mean, variance = rng.normal(size=points), rng.uniform(0.2, 2, points)
    variance[-missing:] = INF
    return g, b, mean, variance, noise


@pytest.mark.parametrize("missing", [1, 3, 5, 7])
def test_exact_and_noisy_rows_agree_with_null_spaces(missing):
    g, b, mean, variance, noise = some_rows(np.random.default_rng(missing), missing=missing)
    law = pc.linear(g, b, noise=noise)
    post = pc.condition(pc.Diagonal(mean, variance), law)
    oracle, cov = by_null_space(g, b, mean, variance, noise**2)
    agrees(post, oracle, cov)
    open_ = post.undetermined
    sure = torch.where(open_, 0.0, torch.arange(8.0).double())
    np.testing.assert_allclose(
        post.covariance_times(sure)[~open_],
        (np.nan_to_num(cov) @ sure.numpy())[~open_],
        atol=1e-10,
    )


@pytest.mark.parametrize("seed", range(40))
def test_units_of_rows_and_points_change_nothing(seed):
    rng = np.random.default_rng(seed)
    rows, points = rng.integers(2, 8), rng.integers(3, 12)
    g = rng.integers(-2, 3, (rows, points)) * (rng.random((rows, points)) < 0.6)
    truth = np.round(rng.normal(size=points), 2)
    noise = np.where(rng.random(rows) < 0.4, 0.1, 0.0)
    variance = rng.choice([0.01, 0.25, 4.0], points)
    mean = truth + rng.normal(size=points) * np.sqrt(variance)
    variance[rng.random(points) < 0.4] = INF
    units, sizes = 10.0 ** rng.integers(-6, 7, points), 10.0 ** rng.integers(-6, 7, rows)
    units[np.isfinite(variance)] = 1.0
    law = pc.linear(g * units * sizes[:, None], g @ truth * sizes, noise=noise * sizes)
    post = pc.condition(pc.Diagonal(mean / units, variance), law)
    oracle, cov = by_null_space(g, g @ truth, mean, variance, noise**2)
    open_ = np.isnan(oracle)
    np.testing.assert_array_equal(post.undetermined, open_)
    np.testing.assert_allclose((post.mean.numpy() * units)[~open_], oracle[~open_], atol=1e-10)
    left = (post.variance.numpy() * units**2)[~open_]
    np.testing.assert_allclose(left, cov.diagonal()[~open_], atol=1e-10)


def test_it_is_what_a_growing_variance_tends_to():
    g, b, mean, variance, noise = some_rows(np.random.default_rng(7))
    law, post = (
        pc.linear(g, b, noise=noise),
        pc.condition(pc.Diagonal(mean, variance), pc.linear(g, b, noise=noise)),
    )
    wide = pc.condition(pc.Diagonal(mean, np.where(np.isinf(variance), 1e6, variance)), law)
    np.testing.assert_allclose(post.mean, wide.mean, rtol=1e-4)
    np.testing.assert_allclose(post.variance, wide.variance, rtol=1e-4)


def test_draws_obey_exact_laws_and_have_the_covariance():
    g, b, mean, variance, noise = some_rows(np.random.default_rng(3))
    law, generator = pc.linear(g, b, noise=noise), torch.Generator().manual_seed(0)
    post = pc.condition(pc.Diagonal(mean, variance), law)
    draws = post.sample(20000, generator)
    terms = law.magnitude(draws)
    assert (law.residual(draws).abs() / terms)[:, :2].max() < 1e-12
    spread, cov = np.cov(draws.numpy().T), post.covariance().numpy()
    np.testing.assert_allclose(spread, cov, atol=0.05 * cov.diagonal().max())


def test_one_unmeasured_field_read_by_several_laws():
    rng = np.random.default_rng(5)
    widths, first = rng.uniform(0.5, 1, 6), rng.normal(size=(3, 4, 6))
    state = pc.State(
        a=(first, 0.5), b=(rng.normal(size=(3, 4, 6)), 0.1), gap=(np.zeros((3, 4, 1)), INF)
    )
    ones = np.ones((1, 1))
    laws = [
        pc.linear({"a": widths[None], "gap": ones}, 1.0),
        pc.linear({"b": widths[None], "gap": -ones}, 2.0, noise=0.2),
    ]
    post = pc.condition(state, *laws)
    g = np.zeros((2, 13))
    g[0, :6], g[0, 12], g[1, 6:12], g[1, 12] = widths, 1, widths, -1
    means = [part.mean.numpy() for part in state.parts]
    spread = np.concatenate([np.full(6, 0.5), np.full(6, 0.1), [INF]])
    for i, t in np.ndindex(3, 4):
        own = np.concatenate([m[i, t] for m in means])
        oracle, cov = by_null_space(g, np.array([1.0, 2.0]), own, spread, np.array([0, 0.04]))
        found = [torch.cat([getattr(p, w)[i, t] for p in post.parts]) for w in ("mean", "variance")]
        np.testing.assert_allclose(found[0], oracle, atol=1e-12)
        np.testing.assert_allclose(found[1], cov.diagonal(), atol=1e-12)


def test_the_mean_of_a_point_that_laws_determine_is_forgotten():
    g, b, mean, variance, noise = some_rows(np.random.default_rng(11))
    filled = np.where(np.isinf(variance), 1e20, mean)
    law = pc.linear(g, b, noise=noise)
    one, other = (pc.condition(pc.Diagonal(m, variance), law).mean for m in (mean, filled))
    assert torch.equal(one, other)


def test_a_whole_field_is_found_from_budgets_of_cells():
    rng = np.random.default_rng(6)
    now, later = rng.normal(1, 0.1, (2, 40))
    state = pc.State(
        now=(now, 0.01), later=(later, 0.02), flux=(np.zeros(41), INF), inflow=([0.3], 0.0)
    )
    eye, step = np.eye(40), np.eye(40, 41, 1) - np.eye(40, 41)
    budget = pc.linear({"now": -eye, "later": eye, "flux": step}, np.zeros(40))
    edge = pc.linear({"flux": np.eye(1, 41), "inflow": [[-1.0]]}, 0.0)
    post = pc.condition(state, budget, edge)
    assert not post["flux"].infinite
    np.testing.assert_allclose(
        post["flux"].mean, 0.3 - np.append(0, (later - now).cumsum()), atol=1e-13
    )
    np.testing.assert_allclose(post["flux"].variance, 0.03 * np.arange(41), atol=1e-14)
    assert torch.equal(post["now"].mean, state["now"].mean)


def test_entries_of_a_batch_have_unmeasured_points_of_their_own():
    rng = np.random.default_rng(8)
    g, b, mean, _, noise = some_rows(rng)
    spread = rng.uniform(0.2, 2, (5, 3, 8))
    spread[rng.random(spread.shape) < 0.3] = INF
    law = pc.linear(g, b, noise=noise)
    post = pc.condition(pc.Diagonal(np.tile(mean, (5, 3, 1)), spread), law)
    for i, t in np.ndindex(5, 3):
        agrees(post[i, t], *by_null_space(g, b, mean, spread[i, t], noise**2))


def test_points_that_nothing_determines_are_named_and_move_no_further_than_laws_need():
    field = pc.Diagonal([1.0, 2.0, 3.0, 4.0], [0.5, INF, INF, INF])
    law = pc.linear([[1.0, 1.0, 1.0, 0.0]], 10.0)
    post = pc.condition(field, law)
    assert post.undetermined.tolist() == [False, True, True, True]
    np.testing.assert_allclose(post.mean, [1.0, 4.0, 5.0, 4.0], rtol=1e-15)
    low, high = post.interval(0.9)
    assert torch.stack([low, high])[:, 1:].tolist() == [[-INF] * 3, [INF] * 3]
    assert "3 points of infinite variance" in repr(post)
    assert torch.equal(post.mean, post.quantile(0.5))


@pytest.mark.parametrize(
    "ask",
    [
        lambda p: p.sample(2),
        lambda p: p.marginal_log_prob([0.0, 0.0, 0.0]),
        lambda p: p.log_prob([0.0, 0.0, 0.0]),
        lambda p: p.covariance(),
        lambda p: pc.condition(pc.State(u=p.prior), pc.weighted_sum([0.0, 0.0, 1.0], 1.0)).sample(
            2
        ),
    ],
)
def test_what_undetermined_points_cannot_have_is_refused(ask):
    field = pc.Diagonal([1.0, 2.0, 3.0], [0.5, INF, INF])
    with pytest.raises(pc.errors.DegenerateError, match="infinite"):
        ask(pc.condition(field, pc.linear([[1.0, 1.0, 1.0]], 10.0)))


def test_rows_that_contradict_each_other_through_unmeasured_points_are_named():
    field = pc.Diagonal([1.0, 2.0, 3.0], [0.0, INF, INF])
    law = pc.linear([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [-1.0, 0.0, 1.0]], [1.0, 2.0, 3.0])
    with pytest.raises(pc.errors.InfeasibleError, match=r"`linear` at row \d"):
        pc.condition(field, law)


def test_rows_that_repeat_each_other_change_nothing():
    g, b, mean, variance, noise = some_rows(np.random.default_rng(9))
    exact = noise == 0
    once = pc.condition(pc.Diagonal(mean, variance), pc.linear(g[exact], b[exact]))
    twice = pc.condition(
        pc.Diagonal(mean, variance), pc.linear(np.tile(g[exact], (2, 1)), np.tile(b[exact], 2))
    )
    np.testing.assert_allclose(once.mean, twice.mean, atol=1e-12)
    assert torch.equal(once.undetermined, twice.undetermined)


def test_log_evidence_is_the_density_of_rows_combined_orthonormally():
    g, b, mean, variance, noise = some_rows(np.random.default_rng(4))
    g[3] = np.random.default_rng(0).normal(size=8)  # no row follows from others
    post = pc.condition(pc.Diagonal(mean, variance), pc.linear(g, b, noise=noise))
    free = np.isinf(variance)
    z, d = null_space(g[:, free].T), variance[~free]
    rows = z.T @ g[:, ~free]
    cov = rows * d @ rows.T + z.T * noise**2 @ z
    miss = z.T @ (b - g[:, ~free] @ mean[~free])
    expected = -0.5 * (miss @ np.linalg.solve(cov, miss) + np.linalg.slogdet(2 * np.pi * cov)[1])
    assert float(post.log_evidence) == pytest.approx(expected, rel=1e-10)


def test_diagnose_judges_the_combined_rows():
    known = pc.Diagonal([3.0, 7.0, 2.0], 0.01)
    state = pc.State(known=known, gap=([0.0], [INF]))
    sums = pc.linear(
        {"known": [[1.0, 0, 0], [0, 1, 0], [0, 0, 1]], "gap": [[1.0]] * 3}, [9.0, 13, 8]
    )
    assert pc.diagnose(state, sums).answer == "agrees"
    third = pc.linear({"known": sums.maps["known"].matrix, "gap": [[1.0]] * 3}, [9.0, 13, 18])
    found = pc.diagnose(state, third)
    assert found.answer == "does not agree"
    assert found.value.shape == (2,)
    with torch.no_grad(), pytest.warns(pc.ImplausibleWarning):
        post = pc.condition(state, third)
    z = np.array([[1, -1, 0], [1, 1, -2]]) / np.sqrt([[2], [6]])  # orthonormal, and no gap
    miss = z @ (np.array([9.0, 13, 18]) - known.mean.numpy())
    assert float(found.mahalanobis) == pytest.approx(miss @ miss / 0.01)
    assert float(post._solved.square) == pytest.approx(miss @ miss / 0.01)
    with pytest.raises(pc.errors.InputError, match="nothing is left to judge"):
        pc.diagnose(pc.Diagonal([1.0, 2.0], [INF, 1.0]), pc.weighted_sum([1.0, 1.0], 1.0))


def test_a_determined_field_of_a_state_has_draws_beside_one_that_is_not():
    state = pc.State(u=([1.0, 2.0], [INF, 0.5]), v=([0.0], [INF]))
    post = pc.condition(state, pc.weighted_sum([1.0, 1.0], 5.0, of="u"))
    draws = post["u"].sample(5, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(draws.sum(-1), 5.0, rtol=1e-14)
    assert post["v"].undetermined.tolist() == [True]
    with pytest.raises(pc.errors.DegenerateError, match="1 point of infinite variance"):
        post.sample(5)


def test_transforms_that_hide_values_are_refused():
    field, law = (
        pc.Diagonal(torch.ones(2, 3), torch.tensor([1.0, INF, 1.0])),
        pc.weighted_sum([1.0] * 3, 2.0),
    )

    def mean(variance):
        return pc.condition(field._with(variance=variance), law).mean

    with pytest.raises(pc.errors.InputError, match=r"not inside `torch.func` transforms"):
        torch.vmap(mean)(torch.ones(2, 2, 3))


def test_gradients_through_mean_variance_values_noise_and_weights():
    rng = np.random.default_rng(2)
    g, known = torch.tensor(rng.normal(size=(4, 6))), torch.tensor([0, 2, 3, 5])

    def found(mean, variance, b, noise, g):
        spread = torch.full((6,), INF).double().index_copy(0, known, variance)
        post = pc.condition(pc.Diagonal(mean, spread), pc.linear(g, b, noise=noise))
        return (
            post.mean,
            post.variance,
            post.log_evidence,
            post.covariance_times(known.sum() * mean),
        )

    given_ = (torch.tensor(rng.uniform(0.5, 1, size)) for size in (6, 4, 4, 4))
    inputs = tuple(x.requires_grad_() for x in (*given_, g))
    assert torch.autograd.gradcheck(found, inputs, fast_mode=True)


def test_directions_beside_an_unmeasured_field_agree_with_their_dense_covariance():
    rng = np.random.default_rng(1)
    factor, g = rng.normal(size=(2, 5)), rng.normal(size=(4, 8))
    state = pc.State(
        u=pc.LowRank(rng.normal(size=5), factor, 0.1), gap=(np.zeros(3), [INF, 0.5, INF])
    )
    law = pc.linear({"u": g[:, :5], "gap": g[:, 5:]}, rng.normal(size=4), noise=[0, 0, 0.2, 0.3])
    post = pc.condition(state, law)
    dense = pc.State(
        u=pc.Diagonal(np.zeros(7), [1.0, 1.0, *[0.1] * 5]), gap=(np.zeros(3), [INF, 0.5, INF])
    )
    wide = np.concatenate([g[:, :5] @ factor.T, g], 1)
    b = law.value.numpy() - g[:, :5] @ state["u"].mean.numpy()
    mean, cov = by_null_space(
        wide,
        b,
        np.zeros(10),
        np.concatenate([p.variance for p in dense.parts]),
        np.array([0, 0, 0.04, 0.09]),
    )
    moved = np.concatenate([factor.T, np.eye(5)], 1)
    np.testing.assert_allclose(
        post["u"].mean, state["u"].mean.numpy() + moved @ mean[:7], atol=1e-12
    )
    np.testing.assert_allclose(post["u"].covariance(), moved @ cov[:7, :7] @ moved.T, atol=1e-12)
    np.testing.assert_allclose(post["gap"].covariance(), cov[7:, 7:], atol=1e-12)


def test_members_beside_an_unmeasured_number_are_as_given_the_law_without_it():
    members = np.random.default_rng(12).normal(size=(6, 3, 4))
    u, ones = pc.Ensemble(members, batch_dims=1, shrinkage=0.0), np.ones((2, 4))
    state = pc.State(u=u, gap=(np.zeros((3, 1)), INF))
    post = pc.condition(state, pc.linear({"u": ones, "gap": [[1.0], [-1.0]]}, [1.0, 2.0]))
    plain = pc.condition(u, pc.weighted_sum(np.ones(4), 1.5))
    np.testing.assert_allclose(post["u"].covariance(), plain.covariance(), atol=1e-14)
    np.testing.assert_allclose(post["u"].interval(0.9), plain.interval(0.9), atol=1e-13)
    np.testing.assert_allclose(post["gap"].mean, -0.5, atol=1e-14)


def test_single_precision_an_index_a_file_and_no_gradient(tmp_path):
    field = pc.Diagonal(torch.ones(4, 3), torch.tensor([1.0, INF, 0.5]))
    post = pc.condition(
        field, pc.linear(torch.ones(1, 3), torch.tensor([[5.0], [6.0], [7.0], [8.0]]))
    )
    post.save(tmp_path / "post")
    for same in (post, pc.Posterior.load(tmp_path / "post"), post.to("cpu"), post.detach()):
        assert same.dtype == torch.float32
        assert torch.equal(same.mean, post.mean)
        one, generator = same[2], torch.Generator().manual_seed(0)
        assert one.mean.tolist() == [1.0, 5.0, 1.0]
        assert one.variance.tolist() == [1.0, 1.5, 0.5]
        np.testing.assert_allclose(one.sample(3, generator).sum(-1), 7.0, rtol=1e-6)


def test_a_posterior_is_conditioned_again_with_all_laws():
    field = pc.Diagonal([1.0, 2.0, 3.0], [0.5, INF, INF])
    first, second = (
        pc.linear([[1.0, 1.0, 1.0]], 10.0),
        pc.linear([[0.0, 1.0, -1.0]], 0.0, noise=0.1),
    )
    post = pc.condition(pc.condition(field, first), second)
    both = pc.condition(field, first, second)
    assert torch.equal(post.mean, both.mean)
    assert not post.infinite


X = np.linspace(0, 1, 6)
TRUTH = torch.tensor(np.random.default_rng(0).uniform(1, 2, (5, 6)))
TOTALS = pc.integral(X, 0.0).apply(TRUTH)
THIRDS = TRUTH.unflatten(-1, (3, 2)).sum(-1)


@pytest.mark.parametrize(
    "laws",
    [
        [pc.integral(X, TOTALS), pc.initial(TRUTH[0])],
        [pc.integral(X, TOTALS), pc.initial(TRUTH[0], noise=0.3)],
        [pc.integral(X, TOTALS[[1, 3]], times=[1, 3])],
        [pc.regions([0, 0, 1, 1, 2, 2], THIRDS), pc.integral(X, TOTALS, noise=0.05)],
        [pc.smoothness(X, np.full(6, 0.01), 0.5), pc.integral(X, TOTALS)],
    ],
    ids=["initial", "initial with noise", "times", "regions", "smoothness"],
)
def test_laws_of_every_kind_read_unmeasured_points(laws):
    rng, unit = np.random.default_rng(3), torch.eye(30).double().reshape(30, 5, 6)
    variance = rng.uniform(0.1, 1, (5, 6))
    variance[rng.random((5, 6)) < 0.4] = INF
    mean = TRUTH + 0.3 * torch.tensor(rng.normal(size=(5, 6)))
    g = [law.apply(unit).reshape(30, -1).T.numpy() for law in laws]
    sizes = [law.apply(TRUTH).shape for law in laws]
    b, noise = (
        np.concatenate(
            [getattr(law, x).expand(s).flatten() for law, s in zip(laws, sizes, strict=True)]
        )
        for x in ("value", "noise_variance")
    )
    post = pc.condition(pc.Diagonal(mean, variance), *laws)
    agrees(
        post, *by_null_space(np.concatenate(g), b, mean.numpy().ravel(), variance.ravel(), noise)
    )


def test_times_that_no_row_ties_are_eliminated_by_themselves():
    x, spread = np.linspace(0, 1, 4), np.full((3, 4), 0.2)
    spread[1, 2] = INF
    post = pc.condition(pc.Diagonal(np.ones((3, 4)), spread), pc.integral(x, [1.0, 2.0, 3.0]))
    plain = pc.condition(pc.Diagonal(np.ones((3, 4)), 0.2), pc.integral(x, [1.0, 2.0, 3.0]))
    np.testing.assert_allclose(post.mean[[0, 2]], plain.mean[[0, 2]], atol=1e-14)
    np.testing.assert_allclose(post.mean[1], [1.0, 1.0, 4.0, 1.0], atol=1e-13)
    assert not post.infinite


@pytest.mark.parametrize(
    "refused",
    [
        lambda f: pc.project(f, pc.weighted_sum([1.0, 1.0], 1.0)),
        lambda f: pc.inflate(f, pc.weighted_sum([1.0, 1.0], 1.0)),
        lambda f: pc.evaluate(f, [[1.0, 1.0]]),
        lambda f: pc.diagnostics.front_position(f, [0.0, 1.0]),
        lambda f: pc.Mixture(f),
        lambda f: pc.LowRank(f.mean, f.mean[None], f.variance),
        lambda f: pc.LowRank.correlated(f.mean, f.variance, correlation=0.5),
        lambda f: pc.Dense(f.mean, f.variance.diag_embed()),
    ],
)
def test_what_takes_finite_variances_says_so(refused):
    field = pc.Diagonal([[1.0, 2.0]], [[0.5, INF]])
    with pytest.raises(pc.errors.InputError, match=r"infinite variance|`variance` is infinite"):
        refused(field)


def test_a_prior_gives_what_it_has_and_refuses_the_rest():
    field = pc.Diagonal([1.0, 2.0], [4.0, INF])
    assert field.std.tolist() == [2.0, INF]
    assert field.covariance().tolist() == [[4.0, 0.0], [0.0, INF]]
    assert field.quantile(0.5).tolist() == [1.0, 2.0]
    assert field.quantile(0.9)[1] == INF
    with pytest.raises(
        pc.errors.DegenerateError, match="the field has 1 point of infinite variance"
    ):
        field.sample(1)
    with pytest.raises(pc.errors.InputError, match="NaN"):
        pc.Diagonal([1.0, 2.0], [math.nan, INF])


@pytest.mark.parametrize("seed", [10, 60, 133])
def test_rows_said_twice_change_nothing_beside_noisy_ones(seed):
    rng = np.random.default_rng(seed)
    variance = np.where(rng.random((40, 6)) < 0.5, INF, 1.0)
    exact, noisy = (rng.normal(size=(3, 6)) * (rng.random((3, 6)) < 0.6) for _ in range(2))
    u = rng.normal(size=(40, 6))
    first = pc.linear(exact, u @ exact.T)
    second, prior = pc.linear(noisy, u @ noisy.T + 0.1, noise=0.1), pc.Diagonal(0 * u, variance)
    once, twice = (pc.condition(prior, *laws) for laws in ([first, second], [first, first, second]))
    assert torch.equal(once.undetermined, twice.undetermined)
    torch.testing.assert_close(once.mean, twice.mean, rtol=1e-9, atol=1e-9)
