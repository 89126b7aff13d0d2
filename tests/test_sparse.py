"""Many sparse rows by the factor of S, against dense matrices."""

import copy
import pickle

import mpmath
import numpy as np
import pytest
import scipy.sparse
import torch
from oracle import normal, uniform
from seeds import generator
from test_iterative import (
    KINDS,
    MESHES,
    TIMES,
    TUBE,
    budgets,
    closed_box,
    correlated,
    every_mesh,
    extra_laws,
    inputs,
    missed,
    off,
    state_of,
)

import probconserv as pc
import probconserv.laws.maps as maps
import probconserv.solvers.engine as engine
import probconserv.solvers.iterative as iterative
import probconserv.solvers.sparse as sparse
import probconserv.solvers.tridiagonal as tridiagonal


@pytest.fixture
def factored(monkeypatch):
    """Says that all rows that come are solved by the factor of a sparse matrix."""
    monkeypatch.setattr(iterative, "SOON", 0)
    monkeypatch.setattr(tridiagonal, "WIDEST", 0)
    return lambda: monkeypatch.setattr(engine, "MOST_DENSE", 0)


def both(factored, prior, *laws):
    dense = pc.condition(prior, *laws)
    factored()
    return dense, pc.condition(prior, *laws)


def the_stage(post):
    way = post._solved.way
    stage = getattr(way, "chain", way).stages[-1]
    assert isinstance(stage, iterative.Iterative)
    assert stage.known is not None
    return stage


def agree(factored, rng, prior, *laws):
    """Mean, variance, evidence and draws are those of the dense matrix."""
    dense, post = both(factored, prior, *laws)
    the_stage(post)
    assert off(*zip(dense._solved.mean, post._solved.mean, strict=True)) < 1e-9
    assert off(*zip(dense._solved.variance, post._solved.variance, strict=True)) < 1e-9
    torch.testing.assert_close(
        post._solved.log_evidence, dense._solved.log_evidence, rtol=1e-9, atol=1e-8
    )
    assert max(missed(law, post, rng) for law in laws) < 1e-12
    return post


@every_mesh
@pytest.mark.parametrize("noise", ["none", "some", "mixed"])
def test_all_is_as_by_the_dense_matrix(factored, rng, mesh, noise):
    sigma = uniform(3, *mesh.shape, rng=rng)
    sigma = {"none": 0.0, "some": sigma, "mixed": sigma * (sigma > 0.8)}[noise]
    agree(factored, rng, state_of(mesh, rng), budgets(mesh, rng, noise=sigma))


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
@pytest.mark.parametrize("name", extra_laws(torch.Generator()))
def test_other_laws_may_stand_beside(factored, rng, name):
    agree(factored, rng, state_of(TUBE, rng), budgets(TUBE, rng), *extra_laws(rng)[name])


@pytest.mark.parametrize("kind", KINDS[:3])
def test_fields_that_move_together(factored, rng, kind):
    agree(factored, rng, correlated(kind, TUBE, rng), budgets(TUBE, rng))


@pytest.mark.parametrize("shared", [False, True])
def test_a_batch_is_as_each_of_it(factored, rng, shared):
    state, law = state_of(TUBE, rng, 2), budgets(TUBE, rng)
    if shared:
        state = pc.State(**{k: (f.mean, f.variance[:1]) for k, f in state.fields.items()})
    post = agree(factored, rng, state, law)
    assert the_stage(post).known.shared == shared
    alone = pc.condition(state[1], law)
    torch.testing.assert_close(post[1]["F"].variance, alone["F"].variance)
    torch.testing.assert_close(post[1].log_evidence, alone.log_evidence)


@pytest.mark.parametrize("order", [1, -1])
def test_rows_that_follow_from_others_are_met_and_left_out(factored, rng, order):
    prior, laws = closed_box(rng)
    dense, post = both(factored, prior, *laws[::order])
    assert int((~the_stage(post).known.keep).sum()) == 3  # totals after the first follow
    assert off(*zip(dense._solved.mean, post._solved.mean, strict=True)) < 1e-9
    assert off(*zip(dense._solved.variance, post._solved.variance, strict=True)) < 1e-9
    assert max(missed(law, post, rng) for law in laws) < 1e-12


@pytest.mark.parametrize("miss", [1e-9, 1e-3])
def test_repeated_rows_that_contradict_each_other_are_refused(factored, rng, miss):
    factored()
    prior, laws = closed_box(rng, miss)
    with pytest.raises(
        pc.errors.InfeasibleError, match=r"cannot be met.*contradict.*make the values"
    ):
        pc.condition(prior, *laws)


def test_rows_that_all_but_follow_have_no_determinant_and_an_estimated_variance(factored):
    """The second row is the first but for 1e-6 of a point: neither left out nor sure."""
    matrix = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1e-6]], dtype=torch.float64)
    law = pc.linear(matrix.to_sparse(), [2.0, 2.0])
    factored()
    post = pc.condition(pc.Diagonal(torch.zeros(3), 1.0), law)
    torch.testing.assert_close(post.mean, torch.tensor([1.0, 1.0, 0.0]), rtol=1e-9, atol=1e-3)
    assert post.variance_estimate.solves > 0
    with pytest.raises(pc.errors.DegenerateError, match="no determinant"):
        _ = post.log_evidence


@pytest.mark.parametrize("what", ["mean", "variance", "log_evidence"])
def test_gradients_are_those_of_finite_differences(factored, rng, what):
    factored()

    def answers(u, du, F, dF, q, noise):
        law = pc.cell_budgets(MESHES["line"], TIMES, "F", source=q, noise=noise, velocity=0.2)
        solved = pc.condition(pc.State(u=(u, du), F=(F, dF)), law)._solved
        return getattr(solved, what)

    assert torch.autograd.gradcheck(answers, inputs(rng), fast_mode=True)


def test_gradients_of_directions_are_those_of_the_dense_matrix(factored, rng):
    state, law = state_of(TUBE, rng), budgets(TUBE, rng)
    u, found = state["u"], []
    for now in (lambda: None, factored):
        now()
        inputs = [normal(3, *u.shape, rng=generator()), u.variance.clone()]
        rows, rest = (x.requires_grad_() for x in inputs)
        low = pc.LowRank(u.mean, rows, rest, 3)
        post = pc.condition(pc.State(**state.fields | {"u": low}), law)
        asks = post["u"].mean.square().sum() + post["F"].variance.sum() + post.log_evidence
        found.append(torch.autograd.grad(asks, inputs))
    assert off(*zip(*found, strict=True)) < 1e-9


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
def test_a_mixture_is_weighed_as_by_the_dense_matrix(factored, rng):
    field = pc.Diagonal(normal(3, 4, 6, rng=rng), uniform(3, 4, 6, rng=rng))
    law = pc.cell_budgets(MESHES["line"], TIMES, velocity=0.2, noise=0.3)
    dense, post = both(factored, pc.Mixture(field), law)
    torch.testing.assert_close(post.log_weights, dense.log_weights, rtol=1e-9, atol=1e-9)


def test_a_factor_is_not_kept_but_made_again(factored, rng, tmp_path):
    factored()
    post = pc.condition(state_of(TUBE, rng, 2), budgets(TUBE, rng))
    evidence = post.log_evidence
    post.save(tmp_path / "post.safetensors")
    again = [type(post).load(tmp_path / "post.safetensors"), pickle.loads(pickle.dumps(post))]
    for other in (*again, copy.deepcopy(post), post.detach()):
        torch.testing.assert_close(other.log_evidence, evidence)
        torch.testing.assert_close(other[1].log_evidence, evidence[1])


def test_a_prior_that_knows_nothing_leaves_the_right_variance(factored):
    """1e-12 of the prior is left: a difference would have four digits. The oracle has 60."""
    factored()
    matrix = scipy.sparse.random(12, 20, 0.2, random_state=0) + scipy.sparse.eye(12, 20)
    variance = torch.logspace(0, 12, 20, dtype=torch.float64)
    post = pc.condition(pc.Diagonal(torch.zeros(20), variance), pc.linear(matrix, 0.0, noise=0.1))
    assert the_stage(post)
    with mpmath.workdps(60):
        g, d = mpmath.matrix(matrix.toarray().tolist()), mpmath.diag(variance.tolist())
        left = (
            d
            - d * g.T * mpmath.inverse(g * d * g.T + mpmath.mpf(0.1) ** 2 * mpmath.eye(12)) * g * d
        )
        wanted = torch.tensor([float(left[i, i]) for i in range(20)], dtype=torch.float64)
    torch.testing.assert_close(post.variance, wanted, rtol=1e-6, atol=0)


def test_a_total_beside_many_rows_is_no_dense_matrix(factored, rng):
    law, total = budgets(TUBE, rng), pc.weighted_sum(TUBE.volumes, 1.0, of="u", noise=0.1)
    post = agree(factored, rng, state_of(TUBE, rng), law, total)
    known = the_stage(post).known
    assert known.pairs.lower.shape[1] < 0.3 * known.noise.numel() ** 2 / 2


def test_factors_that_would_be_large_are_left_to_conjugate_gradients(factored, rng, monkeypatch):
    factored()
    monkeypatch.setattr(sparse, "MOST_NUMBERS", 100)
    post = pc.condition(state_of(TUBE, rng), budgets(TUBE, rng))
    assert post._solved.way.stages[-1].direct is None
    assert post["u"].variance_estimate.solves > 0
    assert "variance estimated" in repr(post["u"])


def test_of_many_points_that_keep_next_to_nothing_the_variance_is_estimated(
    factored, rng, monkeypatch
):
    """One by one they would take too long. What directions add is in the error that is said."""
    monkeypatch.setattr(sparse, "MOST_AGAIN", 3)
    state, law = state_of(TUBE, rng), budgets(TUBE, rng)
    start = pc.initial(torch.ones(5, 3), noise=0.1, space_dims=2, of="u")
    u = pc.LowRank(state["u"].mean, normal(1, *state["u"].shape, rng=rng), 1e12, 3)
    dense, post = both(factored, pc.State(**state.fields | {"u": u}), law, start)
    found = (post["u"].variance / dense["u"].variance - 1).square().mean().sqrt()
    assert 0.4 < post["u"].variance_estimate.relative_error / float(found) < 2.5


@pytest.mark.parametrize("decades", [0.0, 1.0])
@pytest.mark.parametrize("aspect", [1, 30, 1000])
def test_cells_of_any_shape_take_few_iterations(factored, decades, aspect):
    """128 x 128 of them took 10,000 iterations at aspect 30."""
    mesh = pc.Mesh(
        x=torch.linspace(0, 1, 25), y=torch.linspace(0, 1 / aspect, 25), periodic=("x", "y")
    )
    rng = torch.Generator().manual_seed(0)
    shapes = {"u": (2, 24, 24), "F": (1, 24, 24), "G": (1, 24, 24)}
    size = {k: 10 ** (decades * uniform(*s, rng=rng)) for k, s in shapes.items()}
    state = pc.State(**{k: (v.sqrt() * normal(*v.shape, rng=rng), v) for k, v in size.items()})
    factored()
    post = pc.condition(state, pc.cell_budgets(mesh, [0.0, 1.0], ("F", "G")))
    assert post._solved.way.stages[-1].iterations < 150


def every_map():
    """Maps, and the sizes of the space that each reads."""
    rng = torch.Generator().manual_seed(3)
    found = {
        "sum": (maps.Sum(normal(4, 5, rng=rng), 1), (4, 5)),
        "one point": (maps.Sum(normal(4, 5, rng=rng), 0), (4, 5)),
        "regions": (maps.Regions(normal(5, rng=rng), torch.tensor([0, 2, 2, 1, 0]), 3), (4, 5)),
        "points": (maps.Select(-2, (0, -1)), (3, 4, 5)),
        "a time": (maps.Select(-2, 2), (3, 4, 5)),
        "sparse": (maps.Matrix(normal(3, 5, rng=rng).to_sparse(), (5,)), (4, 5)),
        "bands": (maps.SecondDifferences(*normal(3, 3, rng=rng)), (4, 5)),
    }
    for name, mesh in MESHES.items():
        law = budgets(mesh, rng, velocity=[0.3] * len(mesh.axes))
        found |= {f"{name}, {k}": (m, state_of(mesh, rng)[k].shape) for k, m in law.maps.items()}
    total = pc.budget(TUBE, TIMES, inflow=normal(3, rng=rng)).map
    return found | {"budget": (total, (4, 5, 3))}


@pytest.mark.parametrize("name", every_map())
def test_the_numbers_of_a_map_are_those_that_it_applies(rng, name):
    m, shape = every_map()[name]
    m, u = m.on(shape), normal(*shape, rng=rng)
    space, places = shape[len(shape) - m.dims :], shape[: len(shape) - m.dims]
    rows, points, values = m.nonzeros(space)
    wanted = m.apply(u)
    wanted = wanted.reshape(*places, -1)
    each = values * u.reshape(*places, -1).index_select(-1, points)
    torch.testing.assert_close(torch.zeros_like(wanted).index_add(-1, rows, each), wanted)


@pytest.mark.parametrize("seed", [1, 3, 5, 6])
def test_as_many_exact_rows_as_points_leave_nothing_of_variances_over_12_decades(factored, seed):
    rng = np.random.default_rng(seed)
    matrix = scipy.sparse.random(24, 24, 0.15, random_state=seed) + scipy.sparse.eye(24)
    std = 10 ** rng.uniform(-3, 3, 24)
    factored()
    law = pc.linear(matrix, matrix @ (std * rng.normal(size=24)))
    post = pc.condition(pc.Diagonal(0 * std, std=std), law)
    the_stage(post)
    assert (post.std.numpy() / std).max() < 3e-10
