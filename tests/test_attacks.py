"""What strangers found who tried to get wrong numbers out of the core."""

import copy
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse
import torch

import probconserv as pc

ONE_BY_THREE = np.zeros((1, 3))


@pytest.mark.parametrize(
    "law", [pc.boundary(0.0, noise=1.0), pc.boundary(0.0, 0.5, noise=0.5)], ids=["left", "both"]
)
def test_the_density_given_noisy_ends_is_that_of_independent_points(law):
    post, u = pc.condition(pc.Diagonal(ONE_BY_THREE, 1.0), law), np.ones((1, 3))
    torch.testing.assert_close(post.log_prob(u).sum(), post.marginal_log_prob(u).sum())


def test_the_density_given_a_noisy_start_is_that_of_independent_points():
    post = pc.condition(pc.Diagonal(np.zeros((2, 3)), 1.0), pc.initial([0.0] * 3, noise=1.0))
    u = np.ones((2, 3))
    torch.testing.assert_close(post.log_prob(u).sum(), post.marginal_log_prob(u).sum())


def test_the_density_given_a_start_and_totals_does_not_depend_on_a_vague_law():
    field, laws = (
        pc.Diagonal(np.zeros((4, 3)), 1.0),
        (pc.initial([0.1, 0.2, 0.3], noise=0.7), pc.weighted_sum(np.ones(3), 1.0, noise=0.5)),
    )
    u = np.linspace(-1, 1, 12).reshape(4, 3)
    one = pc.condition(field, *laws).log_prob(u).sum()
    other = (
        pc.condition(field, *laws, pc.weighted_sum(np.ones((4, 3)), 0.0, noise=1e7))
        .log_prob(u)
        .sum()
    )
    torch.testing.assert_close(one, other)


def test_each_solution_has_its_own_factor_beside_a_start():
    totals = pc.weighted_sum([1.0, 1.0, 1.0], [[0.0, 0.0], [300.0, 300.0]])
    field = pc.Diagonal(np.zeros((2, 2, 3)), 1.0)
    start = pc.initial([0.0, 0.0, 0.0])
    wider = pc.inflate(field, totals, start).variance[:, 0, 0]
    assert wider[0] == 1
    assert wider[1] > 100


@pytest.mark.parametrize("of_cells", [False, True])
def test_each_solution_has_its_own_factor_under_a_budget(of_cells):
    """All shared one: a solution in balance was widened for another that is not."""
    mesh, t = pc.Mesh(x=[0.0, 0.5, 2.0, 3.0]), [0.0, 0.5, 2.0]
    law = pc.cell_budgets(mesh, t, fluxes="F") if of_cells else pc.budget(mesh, t, "F")
    u = torch.zeros(4, 3, 3, dtype=torch.float64)
    u[2, 1] = 900.0
    flux = pc.Diagonal(torch.zeros(4, 2, *[4] * of_cells, dtype=torch.float64), 1.0)
    state = pc.State(u=pc.Diagonal(u, 1.0), F=flux)
    wider = pc.inflate(state, law)
    for i in range(4):
        alone = pc.inflate(pc.State(u=state["u"][i], F=flux[i]), law)
        torch.testing.assert_close(wider["u"].variance[i], alone["u"].variance)
        torch.testing.assert_close(wider["F"].variance[i], alone["F"].variance)
    assert wider["u"].variance[0, 0, 0] == 1


def test_fields_that_share_no_axis_can_be_smooth_and_widened():
    u, v = pc.Diagonal(np.zeros((3, 5)), [1.0, 1, 1e8, 1, 1]), pc.Diagonal(np.ones(2), 1.0)
    law = pc.smoothness(np.arange(5.0), np.ones(5), 0.9, of="u")
    post = pc.condition(pc.State(u=u, v=v), law)
    torch.testing.assert_close(post["u"].variance, pc.condition(u, law).variance)
    wider = pc.inflate(pc.State(u=u, v=v), pc.weighted_sum(np.ones(5), 1e9, of="u"))
    assert (wider["u"].variance > u.variance).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_laws_contradict_each_other_whatever_the_field_is_rounded_to(dtype):
    field = pc.Diagonal(torch.zeros(1, 4, dtype=dtype), 1.0)
    with pytest.raises(pc.errors.InfeasibleError, match="contradicts them"):
        pc.condition(field, pc.weighted_sum(np.ones(4), 1.0), pc.weighted_sum(np.ones(4), 1.02))


def test_a_diagnosis_sees_members_as_condition_does():
    samples = np.random.default_rng(0).normal(size=(4, 1, 30))
    for shrinkage in (None, 0.0, 0.9):
        prior = pc.Ensemble(samples, batch_dims=1, shrinkage=shrinkage)
        found = pc.diagnose(prior, pc.weighted_sum(np.ones(30), 20.0))
        torch.testing.assert_close(found.z_own.square(), found.mahalanobis)


@pytest.mark.parametrize("members", [2, 3, 4, 7])
def test_members_that_are_equal_but_for_rounding_have_nothing_to_move(members):
    field = pc.Ensemble(np.full((members, 1, 6), 0.1), batch_dims=1)
    with pytest.raises(pc.errors.InfeasibleError, match="Nothing is left to move"):
        pc.condition(field, pc.weighted_sum(np.ones(6), 0.7))


def test_a_contradiction_names_the_field_the_end_and_all_rows_that_it_follows_from():
    state = pc.State(u=pc.Diagonal(ONE_BY_THREE, 1.0), v=pc.Diagonal(ONE_BY_THREE, 1.0))
    laws = [pc.weighted_sum(np.ones(3), b, of="v") for b in (1.0, 2.0)]
    with pytest.raises(
        pc.errors.InfeasibleError, match=r"`weighted_sum of v` at \[0\].*: `weighted_sum of v`"
    ):
        pc.condition(state, *laws)
    fixed = pc.Diagonal(ONE_BY_THREE, [1.0, 1.0, 0.0])
    with pytest.raises(pc.errors.InfeasibleError, match=r"`boundary` at .*point -1 is off"):
        pc.condition(fixed, pc.boundary(right=1.0))
    flat, middle = pc.smoothness(np.arange(5.0), np.zeros(5), 1.0), [[0, 0, 1.0, 0, 0]]
    field = pc.Diagonal(np.zeros((1, 5)), 1.0)
    with pytest.raises(pc.errors.InfeasibleError, match="contradicts them") as refused:
        pc.condition(field, flat, pc.boundary(0.0, 4.0), pc.linear(middle, [3.0]))
    named = [f"row {i}" for i in range(3)] + ["point 0", "point -1"]
    assert sum(name in str(refused.value) for name in named) >= 4


def posterior():
    return pc.condition(pc.Diagonal(np.zeros((3, 4)), 1.0), pc.weighted_sum(np.ones(4), 1.0))


def of_a_state():
    return pc.condition(
        pc.State(u=pc.Diagonal(ONE_BY_THREE, 1.0)), pc.weighted_sum(np.ones(3), 1.0)
    )


BAD = {
    "backwards": (lambda: posterior()[::-1], "`index`"),
    "a slice of words": (lambda: posterior()[slice("a")], "`index`"),
    "times in words": (lambda: pc.integral([0.0, 1.0], 1.0, times=slice("a")), "`times`"),
    "a folder": (lambda: posterior().save("."), "`path`.* folder"),
    "no component": (lambda: pc.Mixture(pc.Diagonal(np.zeros((0, 4, 3)), 1.0)), "`components`"),
    "complex": (lambda: pc.linear(torch.tensor([[1j, 1]]).to_sparse(), [1.0]), "`matrix`"),
    "complex of SciPy": (lambda: pc.linear(scipy.sparse.coo_array([[1j, 1]]), [1.0]), "`matrix`"),
    "one axis": (lambda: pc.linear(scipy.sparse.coo_array(np.ones(4)), [1.0]), "`matrix`"),
    "no points": (
        lambda: pc.condition(pc.Diagonal(np.zeros((2, 0)), 1.0), pc.periodic()),
        "`periodic`.* no points",
    ),
    "gradients in a list": (
        lambda: pc.Diagonal([torch.tensor(1.0, requires_grad=True)], 1.0),
        "`mean`",
    ),
    "a wrong name": (
        lambda: pc.Ensemble({"u": np.eye(3)}, {"U": 1.0}),
        "`variance` must be one of u",
    ),
}


@pytest.mark.parametrize(("call", "message"), BAD.values(), ids=BAD)
def test_what_cannot_be_meant_is_refused_in_words(call, message):
    with pytest.raises(pc.errors.InputError, match=message):
        call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_in_words():
    with pytest.raises(pc.errors.InputError, match=r"`device`.* no GPU"):
        posterior().to("cuda")


def test_one_field_of_a_state_is_audited_with_the_state():
    state = pc.State(u=pc.Diagonal(ONE_BY_THREE, 1.0), v=pc.Diagonal(ONE_BY_THREE, 1.0))
    post = pc.condition(state, pc.weighted_sum(np.ones(3), 1.0, of="u"))
    pc.audit(post)
    with pytest.raises(pc.errors.InputError, match="audit the state"):
        pc.audit(post["u"])


def test_members_with_masked_values_are_refused_in_a_list_too():
    members = [np.ma.masked_array([1.0 + k, 1e20, 2.0], [0, 1, 0]) for k in range(4)]
    for build in (pc.Ensemble, lambda x: pc.Diagonal(x, 1.0)):
        with pytest.raises(pc.errors.InputError, match="masked"):
            build(members)
    whole = [np.ma.masked_array([1.0 + k, 2.0]) for k in range(3)]
    assert pc.Ensemble(whole).mean.tolist() == [2.0, 2.0]


def test_a_point_that_is_known_leaves_the_others_the_gradients_of_their_std():
    variance = torch.ones(1, 4, dtype=torch.float64, requires_grad=True)
    laws = pc.smoothness([0.0, 1.0, 2.0, 3.0], variance, rho=0.9), pc.boundary(left=0.0)
    post = pc.condition(pc.Diagonal(np.ones((1, 4)), variance), *laws)
    some = post.std[..., 1:]
    (by_std,) = torch.autograd.grad(some.sum(), variance, retain_graph=True)
    rest = (post.variance[..., 1:] / (2 * some.detach())).sum()
    (by_variance,) = torch.autograd.grad(rest, variance)
    torch.testing.assert_close(by_std, by_variance)
    assert all(end[..., 1:].isfinite().all() for end in post.interval(0.9))


@pytest.mark.parametrize("x", [[0.0, 0.3, 1.0], [0.0, 0.1, 0.3, 0.7, 1.0]])
def test_neighbours_that_move_as_one_make_second_differences_exact_on_any_grid(x):
    assert not pc.smoothness(x, np.ones((1, len(x))), rho=1.0).noise.any()
    assert pc.smoothness(x, 1.0 + np.arange(len(x))[None], rho=1.0).noise.all()


def test_a_field_is_gone_through_entry_by_entry():
    field = pc.Diagonal(np.arange(6.0).reshape(2, 3), 1.0)
    assert [each.mean.tolist() for each in field] == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


@pytest.mark.parametrize("kind", [">f8", ">f4", ">i4"])
def test_the_order_of_bytes_does_not_matter(kind):
    field = pc.Diagonal(np.ones((2, 3), kind), 1.0)
    labels = np.array([0, 0, 1], ">i4")
    total = pc.regions(labels, [1.0, 2.0], where=np.ones(3, bool)).residual(field)
    assert total.tolist() == [[1.0, -1.0]] * 2


def test_a_posterior_with_gradients_is_copied():
    mean = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    post = pc.condition(pc.Diagonal(mean, 1.0), pc.weighted_sum(np.ones(3), 2.0))
    other = copy.deepcopy(post)
    assert torch.equal(other.mean, post.mean)
    other.mean[0, 0].backward()
    assert mean.grad is not None


@pytest.mark.parametrize("place", ["file/x", "none/x", "x" * 400, "a\0b", "."])
def test_a_place_that_cannot_be_written_is_named(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(pc.errors.InputError, match="`path`"):
        pc.Diagonal([1.0], 1.0).save(f"{tmp_path}/{place}")


def test_numbers_of_any_library_are_numbers():
    members = np.arange(8.0).reshape(2, 4)
    half = pc.Ensemble(members, shrinkage=Fraction(1, 2))
    assert (
        pc.condition(half, pc.weighted_sum(np.ones(4), 7.0))
        .mean.sum()
        .isclose(torch.tensor(7.0).double())
    )
    assert pc.smoothness([0.0, 1.0, 2.0], [[1.0] * 3], rho=np.array(0.9)).noise.shape == (1, 1)
    with pytest.raises(pc.errors.InputError, match=r"`rho`.*no plain number"):
        pc.smoothness([0.0, 1.0, 2.0], [[1.0] * 3], rho=torch.tensor(0.9))
