"""S from the entries of G, and one factor for many parts, against dense NumPy."""

import numpy as np
import pytest
import scipy.sparse
import torch
from oracle import normal, uniform

import probconserv as pc
from probconserv.conditioning.condition import laid_on
from probconserv.solvers import entries, joint
from probconserv.solvers.engine import free_axes
from probconserv.solvers.factor import pivoted

SHAPE = (3, 4, 6)
PLACES = [2, 0, 1, 1, 0, 3]
MESH = pc.Mesh(x=np.linspace(0, 1, 5) ** 2, y=np.linspace(0, 2, 7), periodic="y")


def laws(rng):
    sparse = scipy.sparse.random(5, 6, 0.4, random_state=1) + scipy.sparse.eye(5, 6)
    return {
        "integral": [pc.integral(np.arange(6.0), 1.0)],
        "both axes": [pc.weighted_sum(uniform(4, 6, rng=rng), 1.0)],
        "weights in time": [
            pc.weighted_sum(uniform(4, 6, rng=rng), 1.0),
            pc.integral(np.arange(6.0), 1.0),
        ],
        "regions and total": [pc.regions(PLACES, 0.0), pc.weighted_sum(np.ones(6), 1.0, noise=0.2)],
        "some times": [pc.integral(np.arange(6.0), 1.0, times=[0, 2]), pc.regions(PLACES, 0.0)],
        "points": [
            pc.boundary(left=0.0, right=1.0),
            pc.initial(np.ones(6)),
            pc.weighted_sum(np.ones(6), 1.0),
        ],
        "sparse": [pc.linear(sparse, 0.0, noise=0.1), pc.weighted_sum(np.ones(6), 1.0)],
        "full": [pc.linear(normal(2, 6, rng=rng), 0.0), pc.weighted_sum(np.ones(6), 1.0)],
        "differences": [pc.smoothness(np.arange(6.0), np.ones(6), 0.5), pc.regions(PLACES, 0.0)],
        "budgets": [pc.cell_budgets(MESH, np.arange(3.0), velocity=(1.0, 0.5))],
    }


def rows_of(found, shape, lead):
    """G of all rows of a part as a dense matrix, column by column."""
    size = int(np.prod(shape[lead:]))
    unit = torch.eye(size, dtype=torch.float64).reshape(size, *[1] * lead, *shape[lead:])
    unit = unit.expand(size, *shape)
    flat = [r.apply((unit,)).reshape(size, *shape[:lead], -1) for r in found]
    return torch.cat(flat, -1).movedim(0, -1)  # (*lead, K, P)


@pytest.mark.parametrize("name", laws(torch.Generator()))
def test_entries_are_those_of_the_maps(name, rng):
    field = pc.Diagonal(normal(*SHAPE, rng=rng), uniform(*SHAPE, rng=rng))
    for lead in range(min(1, free_axes(laid_on(field, laws(rng)[name]), [SHAPE])) + 1):
        found = tuple(r.over([SHAPE], lead) for r in laid_on(field, laws(rng)[name]))
        dense, own = rows_of(found, SHAPE, lead), entries.Entries(found, [SHAPE], lead)
        variance = field.variance.flatten(lead)
        wanted = (dense * variance[..., None, :]) @ dense.mT
        torch.testing.assert_close(own.gram(variance).expand(wanted.shape), wanted)
        chunks = torch.cat([g for _, g in own.chunks(1)], -1)
        torch.testing.assert_close(chunks.expand(dense.shape), dense)
        x = normal(*SHAPE[:lead], 2, variance.shape[-1], rng=rng)
        torch.testing.assert_close(own.apply(x), x @ dense.mT)
        torch.testing.assert_close(own.adjoint(x @ dense.mT), x @ dense.mT @ dense)


@pytest.mark.parametrize("chunk", [1, 50, 1 << 22])
@pytest.mark.parametrize("name", laws(torch.Generator()))
def test_mean_and_variance_are_those_of_dense_matrices(name, chunk, rng, monkeypatch):
    monkeypatch.setattr(entries, "CHUNK", chunk)
    monkeypatch.setattr(joint, "CHUNK", chunk)
    field = pc.Diagonal(normal(*SHAPE, rng=rng), uniform(*SHAPE, rng=rng))
    found = laid_on(field, laws(rng)[name])
    post = joint.Joint(found, *[pc.fields.state.covariance_of(field)] * 2, 0)
    dense, noise = rows_of(post.rows, SHAPE, 0).numpy(), post.noise.numpy()
    d = field.variance.flatten().numpy()
    wanted = d - d**2 * (
        dense * (np.linalg.pinv((dense * d) @ dense.T + np.diag(noise)) @ dense)
    ).sum(0)
    np.testing.assert_allclose(post.variance[0].flatten(), wanted, atol=1e-12)


def test_sums_of_many_numbers_are_rounded_once():
    x = torch.full((100_000,), 0.1, dtype=torch.float64)
    found = entries.added_up(torch.zeros(100_000, dtype=torch.int64), x, 1)
    assert float(found) == 100_000 * 0.1


def test_parts_that_share_covariance_and_rows_share_a_factor(rng):
    root = normal(5, 5, rng=rng)
    shared = pc.Dense(normal(4, 5, rng=rng), root @ root.mT)
    law = pc.linear(normal(2, 5, rng=rng), normal(4, 2, rng=rng), noise=0.3)
    post = pc.condition(shared, law)
    assert post._solved.way.stages[0].factor.root.shape == (1, 2, 2)
    alone = pc.condition(pc.Dense(shared.mean, shared.covariance().clone()), law)
    torch.testing.assert_close(post.mean, alone.mean)
    torch.testing.assert_close(post.variance, alone.variance)
    torch.testing.assert_close(post.log_evidence, alone.log_evidence)
    torch.testing.assert_close(post[2].variance, alone.variance[2])


@pytest.mark.parametrize("exact", [0, 5, 9])
def test_the_pivoted_factor_of_lapack_is_that_of_the_loop(exact, rng):
    root = normal(9, 4, rng=rng)
    matrix = root @ root.mT
    matrix = matrix * matrix.diagonal().rsqrt() * matrix.diagonal().rsqrt()[:, None]
    noise = 1e-3 * (torch.arange(9) >= exact).double()
    matrix, none = matrix + noise.diag_embed(), torch.zeros_like(noise)
    for many in (1, 20):  # parts: LAPACK takes few of them
        given = [x.expand(many, *x.shape) for x in (matrix, noise, noise == 0, none)]
        order, root, keep = (x[0] for x in pivoted(*given))
        kept = order[: int(keep.sum())]
        assert bool(keep[kept].all())
        assert int(keep.sum()) == min(exact, 4) + 9 - exact
        again = (root @ root.mT)[: len(kept), : len(kept)]
        torch.testing.assert_close(again, matrix[kept][:, kept], rtol=0, atol=1e-13)


def test_gradients_pass_sparse_products_and_redundant_rows(rng):
    mean, variance = normal(6, rng=rng), uniform(6, rng=rng).requires_grad_()

    def both(variance):
        field = pc.Diagonal(mean, variance)
        parts, total = pc.regions(PLACES, np.ones(4)), pc.weighted_sum(np.ones(6), 4.0)
        post = pc.condition(field, parts, total)
        return post.mean, post.variance

    torch.autograd.gradcheck(both, (variance,))


def test_a_sparse_matrix_without_entries_reads_nothing(rng):
    nothing, both = scipy.sparse.csr_array((2, 6)), [pc.LowRank, pc.Diagonal]
    for kind in both:
        mean, factor = normal(3, 6, rng=rng), [normal(2, 3, 6, rng=rng)] * (kind is pc.LowRank)
        prior = kind(mean, *factor, uniform(3, 6, rng=rng))
        post = pc.condition(prior, pc.linear(nothing, 0.0))
        assert torch.equal(post.mean, prior.mean)
        torch.testing.assert_close(post.variance, prior.variance)


@pytest.mark.parametrize("kind", ["Diagonal", "Dense"])
def test_what_float64_cannot_weigh_is_an_error_beside_correlated_fields_too(kind, rng):
    mean, wide = normal(5, rng=rng), pc.Diagonal(torch.zeros(5).double(), 1e14)
    known = {"Diagonal": pc.Diagonal(mean, 1.0), "Dense": pc.Dense(mean, np.eye(5))}[kind]
    total = pc.weighted_sum(torch.ones(5), 3.0, of={"u": 1.0, "w": -1.0})
    seen = pc.regions(range(5), normal(5, rng=rng), noise=0.1, of="w")
    with pytest.raises(pc.errors.InfeasibleError, match="float64 cannot weigh"):
        pc.condition(pc.State(u=known, w=wide), total, seen)
