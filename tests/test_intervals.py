"""Intervals of a few members: against the regression they are, and how often they hold."""

import numpy as np
import pytest
import torch
from scipy import stats

import probconserv as pc
from probconserv.errors import InputError
from probconserv.fields.student import quantile

MEMBERS, TIMES, POINTS = 9, 2, 6
X = np.random.default_rng(0).normal(2, 1, (MEMBERS, TIMES, POINTS))
W = np.random.default_rng(1).uniform(0.5, 1.5, (2, POINTS))
B = np.array([11.0, 9.0])


def predicted(u, totals, b, level=0.9):
    """The prediction interval of a regression of u on totals, (N,) and (N, K), at totals b."""
    count, rows = totals.shape
    design = np.column_stack([np.ones(count), totals])
    slopes, *_ = np.linalg.lstsq(design, u, rcond=None)
    free = count - 1 - rows
    at = np.concatenate([[1.0], b])
    leverage = at @ np.linalg.inv(design.T @ design) @ at
    std = np.sqrt(((u - design @ slopes) ** 2).sum() / free * (1 + leverage))
    return stats.t.interval(level, free, at @ slopes, std)


def check(post, samples, totals, b):
    low, high = (end.numpy() for end in post.interval(0.9))
    for i in range(samples.shape[-1]):
        ends = predicted(samples[:, i], totals, b)
        np.testing.assert_allclose((low[i], high[i]), ends, rtol=1e-6, atol=1e-6)


def test_before_a_law_they_are_those_of_a_new_draw():
    low, high = pc.Ensemble(X, batch_dims=1).interval(0.8)
    std = X.std(0, ddof=1) * np.sqrt(1 + 1 / MEMBERS)
    ends = stats.t.interval(0.8, MEMBERS - 1, X.mean(0), std)
    np.testing.assert_allclose((low, high), ends, rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 2])
def test_given_exact_laws_they_are_those_of_a_regression_on_the_totals(rows):
    field = pc.Ensemble(X, batch_dims=1, shrinkage=0.0)
    post = pc.condition(field, pc.linear(W[:rows], B[:rows]))
    for t in range(TIMES):
        check(post[t], X[:, t], X[:, t] @ W[:rows].T, B[:rows])


def test_a_row_that_follows_from_others_is_not_counted():
    field = pc.Ensemble(X, batch_dims=1, shrinkage=0.0)
    once = pc.condition(field, pc.linear(W, B)).interval(0.9)
    both = pc.condition(field, pc.linear(W, B), pc.weighted_sum(W.sum(0), B.sum())).interval(0.9)
    torch.testing.assert_close(once, both)


def test_fields_of_a_state_that_move_together_are_predicted_from_a_common_total():
    samples = {"u": X[:, 0], "v": X[:, 1, :4]}
    state = pc.Ensemble(samples, shrinkage=0.0)
    post = pc.condition(state, pc.linear({"u": W[:1], "v": W[1:, :4]}, [17.0]))
    totals = samples["u"] @ W[0] + samples["v"] @ W[1, :4]
    for name, each in samples.items():
        check(post[name], each, totals[:, None], np.array([17.0]))


def test_too_few_members_for_exact_rows_are_refused():
    for count, rows in ((3, 2), (2, 1)):
        field = pc.Ensemble(X[:count], batch_dims=1, shrinkage=0.0)
        post = pc.condition(field, pc.linear(W[:rows], X[:count].mean(0) @ W[:rows].T))
        with pytest.raises(
            InputError, match=rf"`samples`: {count} members given {rows} rows leave"
        ):
            post.interval(0.9)
        assert post.mean.isfinite().all()
    found = pc.condition(pc.Ensemble(X[:2], batch_dims=1), pc.linear(W[:1], B[:1]))
    assert all(end.isfinite().all() for end in found.interval(0.9))


@pytest.mark.parametrize(("noise", "shrinkage"), [(0.01, 0.0), (0.1, 0.0), (0.0, 0.01)])
def test_laws_that_leave_next_to_no_degree_of_freedom_are_refused_too(noise, shrinkage):
    field = pc.Ensemble(X[:3], batch_dims=1, shrinkage=shrinkage)
    post = pc.condition(field, pc.linear(W, X[0] @ W.T, noise=noise))
    with pytest.raises(InputError, match="`samples`: 3 members given 2 rows leave too few degrees"):
        post.interval(0.9)


@pytest.mark.parametrize("shrinkage", [None, 0.0, 0.3])
@pytest.mark.parametrize(("variance", "noise"), [(0.2, 0.0), (0.0, 0.3)])
def test_their_gradients_know_that_degrees_of_freedom_depend_on_the_members(
    shrinkage, variance, noise
):
    def high(samples):
        field = pc.Ensemble(samples, variance, batch_dims=1, shrinkage=shrinkage)
        law = pc.weighted_sum(W[0], B[0], noise=noise)
        return field.interval(0.9)[1] + pc.condition(field, law).interval(0.9)[1]

    samples = torch.tensor(X[:5, :1], requires_grad=True)
    assert torch.autograd.gradcheck(high, samples)
    forward, backward = torch.func.jacfwd(high), torch.func.jacrev(high)
    torch.testing.assert_close(forward(samples.detach()), backward(samples.detach()))


def test_they_are_compiled_without_a_graph_break():
    def high(samples):
        law = pc.weighted_sum(W[0], B[0])
        post = pc.condition(pc.Ensemble(samples, batch_dims=1), law)
        return post.interval(0.83)[1] + post.quantile(0.2)

    samples = torch.tensor(X)
    compiled = torch.compile(high, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(samples), high(samples))


def test_members_that_are_moved_one_by_one_give_the_same(monkeypatch):
    post = pc.condition(pc.Ensemble(X, batch_dims=1), pc.linear(W, B, noise=0.3))
    together = post.interval(0.9)
    monkeypatch.setattr("probconserv.conditioning.predictive.AT_ONCE", 1)
    torch.testing.assert_close(post.interval(0.9), together)


def test_a_known_variance_widens_no_tail():
    field = pc.Ensemble(1e-6 * X, 1.0, batch_dims=1)
    post = pc.condition(field, pc.weighted_sum(W[0], 0.0))
    for each in (field, post):
        ends = stats.norm.interval(0.9, each.mean.numpy(), each.std.numpy())
        np.testing.assert_allclose(each.interval(0.9), ends, atol=1e-6)


def test_times_that_no_law_reaches_keep_their_intervals():
    field = pc.Ensemble(X, batch_dims=1)
    post = pc.condition(field, pc.initial(X[0, 0]))
    for one, other in zip(post.interval(0.9), field.interval(0.9), strict=True):
        torch.testing.assert_close(one[1], other[1])
        np.testing.assert_allclose(one[0], X[0, 0])


def test_they_are_kept_in_files_and_variance_is_that_of_the_posterior(tmp_path):
    post = pc.condition(pc.Ensemble(X, batch_dims=1), pc.linear(W, B))
    post.save(tmp_path / "post.safetensors")
    same = pc.fields.Field.load(tmp_path / "post.safetensors")
    torch.testing.assert_close(same.interval(0.9), post.interval(0.9), rtol=0, atol=0)
    low, high = post.interval(0.9)
    assert ((high - low) > 2 * 1.86 * post.std).all()  # t of eight degrees


def test_quantiles_are_those_of_scipy():
    degrees = np.geomspace(0.3, 1e6, 97)
    for p in (0.5, 0.05, 0.95, 0.999999):
        found = quantile(p, torch.tensor(degrees))
        np.testing.assert_allclose(found, stats.t.ppf(p, degrees), rtol=1e-5, atol=1e-15)


def drawn(count, repeats=4000, points=12):
    """Truth and members, a fifth of whose variance is shared by all points."""
    rng = np.random.default_rng(count)
    shape = count + 1, repeats, 1
    u = rng.normal(size=(*shape, points)) + 0.5 * rng.normal(size=(*shape, 1))
    return u[0] * np.linspace(1, 2, points), u[1:] * np.linspace(1, 2, points)


def share_inside(field, truth):
    low, high = field.interval(0.9)
    return float(((low.numpy() <= truth) & (truth <= high.numpy())).mean())


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")  # of four members' spread
@pytest.mark.parametrize("shrinkage", [None, 0.0])
@pytest.mark.parametrize("count", [4, 8, 20])
def test_they_hold_as_often_as_they_say_before_and_after_a_total(count, shrinkage):
    """The standard error of these shares is 0.2 %."""
    truth, members = drawn(count)
    prior = pc.Ensemble(members, batch_dims=2, shrinkage=shrinkage)
    post = pc.condition(prior, pc.weighted_sum(np.ones(12), truth.sum(-1)))
    assert share_inside(prior, truth) == pytest.approx(0.9, abs=0.02)
    assert share_inside(post, truth) == pytest.approx(0.9, abs=0.02)


def test_the_total_of_a_hierarchy_is_not_taken_as_independent_of_its_parts():
    """Forecasts with their past errors as members: intervals of the total once held 15 %."""
    rng = np.random.default_rng(0)
    parts = rng.normal(size=(21, 2000, 1, 20)) + 2 * rng.normal(size=(21, 2000, 1, 1))
    errors = np.concatenate([parts.sum(-1, keepdims=True), parts], -1)
    errors[..., 0] += 10 * rng.normal(size=errors[..., 0].shape)
    prior = pc.Ensemble(errors[1:] - errors[0], batch_dims=2)  # the truth is 0
    post = pc.condition(prior, pc.weighted_sum(np.r_[1.0, -np.ones(20)], 0.0))
    assert share_inside(post, np.zeros((2000, 1, 21))) > 0.88
    low, high = (end[..., 0] for end in post.interval(0.9))
    assert ((low <= 0) & (high >= 0)).double().mean() == pytest.approx(0.9, abs=0.04)
