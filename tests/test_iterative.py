"""Many local rows by conjugate gradients, against dense matrices, and what must never come back."""

import re

import numpy as np
import pytest
import scipy.sparse
import torch
from oracle import exact_residual, normal, uniform
from seeds import generator
from test_mesh import edges, random_unstructured

import probconserv as pc
import probconserv.solvers.engine as engine
import probconserv.solvers.estimate as estimate
import probconserv.solvers.iterative as iterative
import probconserv.solvers.sparse as sparse
import probconserv.solvers.tridiagonal as tridiagonal

DENSE, ITERATED = 10**9, 0
TIMES = [0.0, 0.4, 1.3, 1.5]
LINE = pc.Mesh(x=edges(6, 0))
TUBE = pc.Mesh(x=edges(5, 1), y=edges(3, 2), periodic="y")
CLOSED = pc.Mesh(x=edges(5, 1), y=edges(4, 2))
BOX = pc.Mesh(x=edges(2, 3), y=edges(5, 4), z=edges(3, 5), periodic="x")
MESHES = {
    "line": LINE,
    "tube": TUBE,
    "box": BOX,
    "one cell": pc.Mesh(x=[0.0, 2.0]),
    "ring of one": pc.Mesh(x=[0.0, 2.0], y=edges(4, 1), periodic="x"),
    "ring of two": pc.Mesh(x=edges(2, 1), y=edges(4, 1), periodic="x"),
    "unstructured": random_unstructured(),
}
every_mesh = pytest.mark.parametrize("mesh", MESHES.values(), ids=MESHES)


@pytest.fixture
def rows(monkeypatch):
    """rows(DENSE) or rows(ITERATED) says how all that comes is solved: without a factor."""
    monkeypatch.setattr(sparse, "MOST_ROWS", 0)
    monkeypatch.setattr(tridiagonal, "WIDEST", 0)
    return lambda most: monkeypatch.setattr(engine, "MOST_DENSE", most)


def state_of(mesh, rng, *batch, times=4, closed=False):
    """Fields of every point's own variance; closed: nothing passes the boundary."""
    found = {"u": (torch.tensor(True), (*batch, times, *mesh.shape))}
    for name, shape, end in zip("FGH", mesh.face_shapes, mesh.boundary, strict=False):
        found[name] = (~(end & closed), (*batch, times - 1, *shape))
    return pc.State(
        **{k: (normal(*s, rng=rng) * o, uniform(*s, rng=rng) * o) for k, (o, s) in found.items()}
    )


def budgets(mesh, rng, **more):
    source = normal(3, *mesh.shape, rng=rng)
    return pc.cell_budgets(mesh, TIMES, tuple("FGH"[: len(mesh.axes)]), **{"source": source} | more)


def both(rows, prior, *laws):
    rows(DENSE)
    dense = pc.condition(prior, *laws)
    rows(ITERATED)
    return dense, pc.condition(prior, *laws)


def stage_of(post):
    (stage,) = (s for s in post._solved.way.stages if isinstance(s, iterative.Iterative))
    return stage


ESTIMATED = 3 * (2 / estimate.DRAWS) ** 0.5  # three standard errors of a mean square


def off(*pairs):
    """The largest difference of two fields, beside the largest value."""
    return max(float((a - b).abs().max() / a.abs().max()) for a, b in pairs)


def missed(law, post, rng):
    """Of the mean and of three draws, beside |G| (|u| + standard deviation) + |b|."""
    spread = {k: post[k].mean.abs() + 3 * post.prior[k].std for k in post}
    size = law.magnitude(spread) + law.value.abs()
    each = [law.residual(post), law.residual(post.sample(3, rng))]
    return max(float((r.abs() * (law.noise == 0) / size).nan_to_num(0.0).max()) for r in each)


def agree(rows, rng, prior, *laws):
    dense, post = both(rows, prior, *laws)
    assert off(*zip(dense._solved.mean, post._solved.mean, strict=True)) < 1e-9
    assert max(missed(law, post, rng) for law in laws) < 1e-12
    assert stage_of(post)
    return post


@every_mesh
@pytest.mark.parametrize("noise", ["none", "some", "mixed"])
def test_the_mean_is_that_of_the_dense_matrix_and_every_draw_obeys(rows, rng, mesh, noise):
    sigma = uniform(3, *mesh.shape, rng=rng)
    sigma = {"none": 0.0, "some": sigma, "mixed": sigma * (sigma > 0.8)}[noise]
    agree(rows, rng, state_of(mesh, rng), budgets(mesh, rng, noise=sigma))


@every_mesh
def test_flow_within_u_and_unknown_sources_are_solved_too(rows, rng, mesh):
    prior = state_of(mesh, rng)
    prior = pc.State(q=(normal(3, *mesh.shape, rng=rng), 0.3), **prior.fields)
    speeds = [0.3] * len(mesh.axes)
    agree(rows, rng, prior, budgets(mesh, rng, velocity=speeds, diffusivity=0.2, source="q"))


def test_two_times_and_a_batch(rows, rng):
    law = pc.cell_budgets(TUBE, [0.0, 1.0], ("F", "G"))
    assert agree(rows, rng, state_of(TUBE, rng, 2, times=2), law)["u"].shape == (2, 2, 5, 3)


def extra_laws(rng):
    labels = torch.arange(15).reshape(5, 3) % 4
    total = pc.weighted_sum(TUBE.volumes, normal(4, rng=rng), of="u")
    return {
        "totals": [total],
        "noisy totals": [pc.weighted_sum(TUBE.volumes, normal(4, rng=rng), noise=0.3, of="u")],
        "initial": [pc.initial(normal(5, 3, rng=rng), space_dims=2, of="u")],
        "boundary": [pc.boundary(left=0.3, right=-0.2, of="G", noise=0.1)],
        "regions": [pc.regions(labels, normal(4, 4, rng=rng), TUBE.volumes, of="u")],
        "budget": [pc.budget(TUBE, TIMES, inflow=normal(3, rng=rng))],
        "several": [total, pc.initial(torch.ones(5, 3), noise=0.2, space_dims=2, of="u")],
    }


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", extra_laws(torch.Generator()))
def test_other_laws_may_stand_beside_in_any_order(rows, rng, name, first):
    law, others = budgets(TUBE, rng), extra_laws(rng)[name]
    agree(rows, rng, state_of(TUBE, rng), *([*others, law] if first else [law, *others]))


def correlated(kind, mesh, rng):
    prior = state_of(mesh, rng)
    if "LowRank" in kind:
        u, dims = prior["u"], 2 if "each time" in kind else 3
        low = pc.LowRank(u.mean, normal(3, *u.shape, rng=rng), u.variance, dims)
        return pc.State(**prior.fields | {"u": low})
    many = kind == "many samples alone"
    count, shrinkage = (200, 0.0) if many else (9, None)
    samples = {k: f.mean + normal(count, *f.shape, rng=rng) for k, f in prior.fields.items()}
    return pc.Ensemble(samples, shrinkage=shrinkage)


KINDS = ["LowRank", "LowRank of each time", "Ensemble", "many samples alone"]


@pytest.mark.parametrize("kind", KINDS)
def test_fields_that_move_together(rows, rng, kind):
    agree(rows, rng, correlated(kind, TUBE, rng), budgets(TUBE, rng))


def test_points_without_variance_stay_where_they_are(rows, rng):
    prior = state_of(TUBE, rng)
    some = prior["u"].variance * (prior["u"].variance > 0.6)
    changed = pc.State(**prior.fields | {"u": (prior["u"].mean, some)})
    post = agree(rows, rng, changed, budgets(TUBE, rng))
    assert torch.equal(post["u"].mean[some == 0], prior["u"].mean[some == 0])
    assert float(post["u"].variance[some == 0].abs().max()) == 0


def closed_box(rng, miss=0.0):
    """Cells that nothing leaves, and their totals, the last of which may contradict the sources."""
    mesh = CLOSED
    q = normal(3, *mesh.shape, rng=rng)
    made = (mesh.volumes * q).sum((-1, -2)) * torch.tensor(TIMES, dtype=torch.float64).diff()
    totals = torch.cat([torch.zeros(1), made.cumsum(0)]) + 3
    totals[2] *= 1 + miss
    law = pc.cell_budgets(mesh, TIMES, ("F", "G"), source=q)
    return state_of(mesh, rng, closed=True), (law, pc.weighted_sum(mesh.volumes, totals, of="u"))


def test_rows_that_follow_from_others_are_met(rows, rng):
    prior, laws = closed_box(rng)
    agree(rows, rng, prior, *laws)
    agree(rows, rng, prior, *laws[::-1])


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("miss", [1e-9, 1e-6, 1e-3, 1.0])
def test_a_contradiction_is_refused_at_once_with_its_laws_and_rows(rows, rng, miss, order):
    prior, laws = closed_box(rng, miss)
    rows(ITERATED)
    words = r"cannot be met.*worst are off: `\w+.*contradict.*Ways out: make the values agree"
    with pytest.raises(pc.errors.InfeasibleError, match=words) as error:
        pc.condition(prior, *laws[::order])
    assert int(re.search(r"(\d+) iterations", str(error.value))[1]) < 100


def test_a_contradiction_in_a_batch_names_its_entry(rows, rng):
    prior, (law, totals) = closed_box(rng)
    two = pc.State(**{k: (f.mean.expand(2, *f.shape), f.variance) for k, f in prior.fields.items()})
    value = totals.value + torch.tensor([[0.0], [5.0]]) * (torch.arange(4) == 3)
    rows(ITERATED)
    with pytest.raises(
        pc.errors.InfeasibleError, match=r"budgets of u, F, G` at \[1\], interval \d, x \d"
    ):
        pc.condition(two, law, pc.weighted_sum(CLOSED.volumes, value, of="u"))


def test_a_cell_that_cannot_move_is_named(rows, rng):
    prior = state_of(LINE, rng)
    u, F = prior["u"].variance.clone(), prior["F"].variance.clone()
    u[1:3, 4], F[1, 4:6] = 0.0, 0.0
    prior = pc.State(u=(prior["u"].mean, u), F=(prior["F"].mean, F))
    rows(ITERATED)
    with pytest.raises(
        pc.errors.InfeasibleError, match=r"^1 row .*`cell budgets.*interval 1, x 4 by"
    ):
        pc.condition(prior, budgets(LINE, rng))


@pytest.mark.parametrize("decades", [4, 8])
def test_variances_that_differ_much_from_cell_to_cell(rows, rng, decades):
    prior = state_of(TUBE, rng)
    spread = {k: decades * (uniform(*f.shape, rng=rng) - 0.85) for k, f in prior.fields.items()}
    wild = pc.State(**{k: (f.mean, 10 ** spread[k]) for k, f in prior.fields.items()})
    agree(rows, rng, wild, budgets(TUBE, rng))


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
def test_units_do_not_matter(rows, rng, scale):
    prior = state_of(TUBE, rng)
    big = pc.State(**{k: (f.mean * scale, f.variance * scale**2) for k, f in prior.fields.items()})
    agree(rows, rng, big, budgets(TUBE, rng, source=scale * normal(3, 5, 3, rng=rng)))


@pytest.mark.parametrize("noise", [1e-9, 1e-4, 1e3, 1e8])
def test_noise_of_any_size_is_weighed(rows, rng, noise):
    where = torch.arange(15).reshape(5, 3) != 7  # a row that reads nothing but its noise
    post = agree(rows, rng, state_of(TUBE, rng), budgets(TUBE, rng, noise=noise, where=where))
    assert post.sample(3, rng)["u"].isfinite().all()


@pytest.mark.parametrize("rank", [0, 2])
def test_draws_have_the_covariance_of_the_dense_posterior(rows, rng, rank):
    law = pc.cell_budgets(LINE, [0.0, 1.0], velocity=0.3, noise=uniform(1, 6, rng=rng))
    prior = pc.Diagonal(normal(2, 6, rng=rng), uniform(2, 6, rng=rng))
    if rank:
        prior = pc.LowRank(prior.mean, normal(rank, 2, 6, rng=rng), prior.variance, 2)
    dense, post = both(rows, prior, law)
    count = 20_000
    draws = post.sample(count, rng).flatten(1) - post.mean.flatten()
    wanted = dense.covariance().reshape(12, 12)
    spread = wanted.diagonal().sqrt()
    error = (draws.T @ draws / count - wanted) / (spread[:, None] * spread)
    assert float(error.abs().max()) < 5 * np.sqrt(2 / count)
    v = normal(3, 2, 6, rng=rng)
    torch.testing.assert_close(post.covariance_times(v), dense.covariance_times(v))


def variance_error(dense, post):
    pairs = zip(dense._solved.variance, post._solved.variance, strict=True)
    each = torch.cat([((b - a) / a)[a > 0] for a, b in pairs])
    return float(each.square().mean().sqrt())


@pytest.mark.parametrize(
    "name", ["plain", "noise", "totals", "totals first", "LowRank", "Ensemble", "closed"]
)
def test_the_variance_is_estimated_to_10_percent_and_says_how_well(rows, rng, name):
    mesh = pc.Mesh(x=edges(9, 1), y=edges(7, 2), periodic="y")
    laws = [budgets(mesh, rng, noise=0.3 if name == "noise" else 0.0)]
    laws += [pc.weighted_sum(mesh.volumes, normal(4, rng=rng), of="u")] * ("totals" in name)
    laws = laws[::-1] if "first" in name else laws
    prior = state_of(mesh, rng, closed=name == "closed")
    prior = correlated(name, mesh, rng) if name in KINDS else prior
    dense, post = both(rows, prior, *laws)
    found, said = variance_error(dense, post), post["u"].variance_estimate.relative_error
    assert found < 0.1
    assert said / 2 < found < 2 * said
    assert all(bool((v >= 0).all()) for v in post._solved.variance)
    assert torch.equal(pc.condition(prior, *laws)["u"].variance, post["u"].variance)


@pytest.mark.parametrize("aspect", [1, 10, 100, 1000])
def test_the_error_of_an_estimate_is_that_of_each_field_on_cells_of_any_shape(rows, aspect):
    """One number for all fields said 0.20 where it was 0.47 to 0.88."""
    mesh = pc.Mesh(x=np.arange(17.0), y=np.arange(17.0) / aspect, periodic=("x", "y"))
    rng = torch.Generator().manual_seed(0)
    shapes = {"u": (3, 16, 16), "F": (2, 16, 16), "G": (2, 16, 16)}
    variance = {k: 10 ** uniform(*s, rng=rng) for k, s in shapes.items()}
    state = pc.State(**{k: (torch.zeros_like(v), v) for k, v in variance.items()})
    dense, post = both(rows, state, pc.cell_budgets(mesh, [0.0, 1.0, 2.0], ("F", "G")))
    for name, field in post.fields.items():
        found = (field.variance / dense[name].variance - 1).square().mean().sqrt()
        assert 0.7 < field.variance_estimate.relative_error / float(found) < 1.5


@pytest.mark.parametrize("kind", ["Diagonal", "LowRank"])
def test_one_of_a_batch_has_the_variance_that_it_has_among_all(rows, rng, kind):
    rows(ITERATED)
    prior = state_of(TUBE, rng, 2)
    if kind == "LowRank":
        u = prior["u"]
        low = pc.LowRank(u.mean, normal(2, *u.shape, rng=rng), u.variance, 3)
        prior = pc.State(**{**prior.fields, "u": low})
    post = pc.condition(prior, budgets(TUBE, rng))
    alone = post[1]["u"].variance
    torch.testing.assert_close(alone, post["u"].variance[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("mesh", ["ring of one", "ring of two"])
def test_the_variance_of_flow_around_a_short_ring(rows, rng, mesh):
    law = budgets(MESHES[mesh], rng, velocity=(0.4, 0.3), diffusivity=0.2)
    assert variance_error(*both(rows, state_of(MESHES[mesh], rng), law)) < 0.1


def asked(given, what):
    """The mean, variance or draws of a posterior as one vector, of all that it is made of."""
    u, du, F, dF, q, noise = given
    law = pc.cell_budgets(LINE, TIMES, "F", source=q, noise=noise, velocity=0.2)
    post = pc.condition(pc.State(u=(u, du), F=(F, dF)), law)
    if what == "draws":
        return torch.cat([x.flatten() for x in post.sample(2, torch.Generator()).values()])
    return torch.cat([x.flatten() for x in getattr(post._solved, what)])


def inputs(rng, noise=0.5):
    shapes = [(4, 6), (4, 6), (3, 7), (3, 7), (3, 6)]
    makes = [normal, uniform, normal, uniform, normal]
    found = [make(*shape, rng=rng) for make, shape in zip(makes, shapes, strict=True)]
    return [x.requires_grad_() for x in (*found, noise * uniform(3, 6, rng=rng))]


def test_gradients_of_the_mean_are_those_of_finite_differences(rows, rng):
    rows(ITERATED)
    assert torch.autograd.gradcheck(lambda *x: asked(x, "mean"), inputs(rng), fast_mode=True)


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize(("what", "to"), [("mean", 1e-9), ("draws", 1e-9), ("variance", ESTIMATED)])
def test_gradients_are_those_of_the_dense_matrix(rows, rng, what, to, noise):
    given = inputs(rng, noise)
    found = []
    for most in (DENSE, ITERATED):
        rows(most)
        out = asked(given, what)
        weights = torch.linspace(-1, 2, len(out), dtype=torch.float64)
        found.append(torch.autograd.grad(out @ weights, given[:-1], allow_unused=True))
    assert off(*((a, b) for a, b in zip(*found, strict=True) if a is not None)) < to


def test_a_posterior_is_indexed_and_kept_without_a_new_solve(rows, rng, tmp_path, monkeypatch):
    rows(ITERATED)
    post = pc.condition(state_of(TUBE, rng, 2), budgets(TUBE, rng))
    variance = post["u"].variance
    post.save(tmp_path / "post.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr(iterative, "conjugate_gradients", None)
        again = type(post).load(tmp_path / "post.safetensors")
        for other in (again, post.detach(), post.to("cpu")):
            assert torch.equal(other["u"].mean, post["u"].mean)
            assert torch.equal(other["u"].variance, variance)
        assert torch.equal(post[1]["u"].variance, variance[1])
        assert torch.equal(post[1]["F"].mean, post["F"].mean[1])
    one, other = (each.sample(2, torch.Generator().manual_seed(3)) for each in (again, post))
    assert torch.equal(one["u"], other["u"])


def test_two_steps_are_one(rows, rng):
    rows(ITERATED)
    prior, law, total = (
        state_of(TUBE, rng),
        budgets(TUBE, rng),
        pc.weighted_sum(TUBE.volumes, 1.0, of="u"),
    )
    twice, once = pc.condition(pc.condition(prior, law), total), pc.condition(prior, law, total)
    torch.testing.assert_close(twice["u"].mean, once["u"].mean, rtol=1e-12, atol=1e-12)


def test_what_needs_a_determinant_is_refused(rows, rng):
    rows(ITERATED)
    prior = pc.Diagonal(normal(4, 6, rng=rng), 1.0)
    law = pc.cell_budgets(LINE, TIMES, velocity=0.2, noise=0.3)
    post, mixture = pc.condition(prior, law), pc.Mixture(pc.Diagonal(torch.ones(3, 4, 6), 1.0))
    asks = [
        lambda: post.log_evidence,
        lambda: post.log_prob(0.0),
        lambda: pc.condition(mixture, law),
    ]
    for ask in asks:
        with pytest.raises(pc.errors.DegenerateError, match=r"no determinant.*`marginal_log_prob`"):
            ask()
    with pytest.raises(pc.errors.InputError, match=r"`laws` for every cell .*batch axis"):
        torch.func.grad(lambda u: pc.condition(pc.Diagonal(u, 1.0), law).mean.sum())(prior.mean)


def test_other_questions_are_answered_as_by_the_dense_matrix(rows, rng):
    prior = pc.Diagonal(normal(4, 6, rng=rng), uniform(4, 6, rng=rng))
    law = pc.cell_budgets(LINE, TIMES, velocity=0.2)
    truth = normal(4, 6, rng=rng)
    found = []
    for most in (DENSE, ITERATED):
        rows(most)
        post = pc.condition(prior, law)
        pc.audit(post)
        answers = (
            pc.diagnose(prior, law).mahalanobis,
            pc.evaluate(post, truth, generator=generator()).MSE,
        )
        found.append([*answers, pc.project(prior, law).mean])
    for dense, other in zip(*found, strict=True):
        torch.testing.assert_close(dense, other, rtol=1e-9, atol=1e-9)


def test_sparse_matrices_of_many_rows_are_as_dense_ones(rows, rng):
    matrix = scipy.sparse.random(520, 900, 0.01, random_state=0) + scipy.sparse.eye(520, 900)
    prior = pc.Diagonal(normal(2, 900, rng=rng), uniform(2, 900, rng=rng))
    law = pc.linear(matrix, normal(2, 520, rng=rng))
    dense = pc.condition(prior, pc.linear(matrix.toarray(), law.value))
    rows(ITERATED)
    post = pc.condition(prior, law)
    assert stage_of(post)
    torch.testing.assert_close(post.mean, dense.mean, rtol=1e-9, atol=1e-9)
    assert exact_residual(law, post.sample(2, rng)) < 1e-11


def test_nothing_given_is_changed_or_shared(rows, rng):
    rows(ITERATED)
    u, variance = normal(4, 6, rng=rng), uniform(4, 6, rng=rng)
    copies = u.clone(), variance.clone()
    law = pc.cell_budgets(LINE, TIMES, velocity=0.2)
    with torch.no_grad():
        post = pc.condition(pc.Diagonal(u, variance), law)
    mean, spread = post.mean, post.variance
    assert torch.equal(torch.stack([u, variance]), torch.stack(copies))
    for t in (u, variance, post.mean, post.variance):
        t.zero_()
    assert torch.equal(torch.stack([post.mean, post.variance]), torch.stack([mean, spread]))


def test_an_empty_batch_stays_empty(rows):
    rows(ITERATED)
    law = pc.cell_budgets(LINE, TIMES, velocity=0.2)
    post = pc.condition(pc.Diagonal(torch.zeros(0, 4, 6), 1.0), law)
    assert post.mean.shape == (0, 4, 6)
    assert post[0:0].sample_with(torch.zeros(2, post.normals_per_draw)).shape == (2, 0, 4, 6)
