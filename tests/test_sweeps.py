"""Large fields in few passes, by blocks and by kernels: the numbers of the engine."""

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from oracle import matrix, normal, uniform
from seeds import generator
from sweeping import CASES, SHAPE, by_the_engine, case, needs_interpreter, take, wait, ways
from torch.utils._python_dispatch import TorchDispatchMode

import probconserv as pc
from probconserv.conditioning.swept import Swept
from probconserv.conditioning.swept_members import SweptMembers
from probconserv.errors import InputError

pytestmark = pytest.mark.parametrize("way", ways())


@pytest.fixture(autouse=True)
def the_way(monkeypatch, way):
    take(monkeypatch, way)


@pytest.mark.parametrize("points", [37, 83])  # short rows and long ones
@pytest.mark.parametrize("name", CASES)
def test_they_equal_dense_matrices(name, points):
    law, mean, variance = case(name, generator(), points)
    post = pc.condition((mean, variance), law)
    assert isinstance(post._solved, Swept)
    for i in range(len(mean)):
        own = copy.copy(law)
        own.value = law.value[i] if law.value.ndim and len(law.value) == len(mean) else law.value
        G, b, noise = matrix(own, mean[i].shape)
        read = np.abs(G).sum(1) > 0
        u, d = mean[i].flatten().numpy(), variance[i].flatten().numpy()
        G, b, S = G[read], b[read], (G * d @ G.T + np.diag(noise))[read][:, read]
        gain = np.linalg.solve(S, G * d)
        np.testing.assert_allclose(post.mean[i].flatten(), u - (G @ u - b) @ gain, atol=1e-11)
        left = d - (gain * G * d).sum(0)
        np.testing.assert_allclose(post.variance[i].flatten(), left, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_they_equal_the_engine_in_the_dtype_of_the_field(name, dtype, monkeypatch):
    law, mean, variance = case(name, generator())
    field = mean.to(dtype), variance.to(dtype)
    post, want = pc.condition(field, law), by_the_engine(monkeypatch, field, law)
    assert isinstance(post._solved, Swept)
    assert post.mean.dtype == post.variance.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(post.mean, want.mean, rtol=4 * eps, atol=40 * eps)
    torch.testing.assert_close(post.variance, want.variance, rtol=4 * eps, atol=4 * eps)
    torch.testing.assert_close(post.log_evidence, want.log_evidence)


@pytest.mark.parametrize("of", [(), (37,), (3, 1), (3, 37), (2, 1, 1)])
def test_a_variance_that_repeats_itself_is_not_spread_out_wrongly(of, monkeypatch):
    law, mean, _ = case("integral", generator())
    variance = uniform(*of, rng=generator(1)).expand(of)
    post = pc.condition((mean, variance), law)
    want = by_the_engine(monkeypatch, (mean, variance.expand(mean.shape).clone()), law)
    torch.testing.assert_close(post.mean, want.mean)
    torch.testing.assert_close(post.variance, want.variance)


@pytest.mark.draws_freely("gradcheck draws directions")
@pytest.mark.parametrize("name", ["noisy for each row", "regions", "at some times"])
@pytest.mark.parametrize("points", [37, 83])
def test_gradients_and_their_gradients_are_right(name, points):
    law, mean, variance = case(name, generator(), points)
    value, noise = law.value.clone(), law.noise_variance.clone()
    given = [t.requires_grad_() for t in (mean, variance, value, noise)]

    def step2(mean, variance, value, noise):
        law.value, law.noise_variance = value, noise
        post = pc.condition((mean, variance), law)
        assert isinstance(post._solved, Swept)
        return post.mean[0, 0, ::9], post.variance[1, 2, ::9]

    some = [given[0], given[1]] if name != "noisy for each row" else given
    fixed = given[len(some) :]
    if name == "noisy for each row":
        law.noise_variance = noise
    assert torch.autograd.gradcheck(lambda *t: step2(*t, *fixed), some, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *t: step2(*t, *fixed), some, fast_mode=True)


def test_the_gradient_of_the_mean_alone_and_of_the_variance_alone(monkeypatch):
    law, mean, variance = case("integral", generator())
    given = mean.requires_grad_(), variance.requires_grad_()
    g = normal(*SHAPE, rng=generator(2))
    for read in ("mean", "variance"):
        found, want = (
            torch.autograd.grad(getattr(post, read), given, g, materialize_grads=True)
            for post in (pc.condition(given, law), by_the_engine(monkeypatch, given, law))
        )
        torch.testing.assert_close(found, want)
        assert (found[1] != 0).any()


@pytest.mark.parametrize("points", [37, 83])
def test_a_point_with_nearly_all_of_the_variance_keeps_its_digits(points):
    law, mean, variance = case("integral", generator(), points)
    variance[0, 1, 5], variance[1, 2, 8] = 1e9, 1e7
    post = pc.condition((mean, variance), law)
    G = law.map.weights
    for at in ((0, 1, 5), (1, 2, 8)):
        terms = variance[at[:2]] * G**2
        others = terms[torch.arange(points) != at[2]].sum()
        left = variance[at] * others / (others + terms[at[2]])
        torch.testing.assert_close(post.variance[at], left, rtol=1e-12, atol=0.0)


def test_what_is_looked_at_is_what_was_stored(way):
    from probconserv.conditioning.swept import plan_of, points_of
    from probconserv.solvers.sweeps import moved

    law, mean, variance = case("integral", generator())
    mean, variance = mean.float(), variance.float()
    found = moved(points_of(plan_of(law, mean), mean, variance))
    stored = found.mean.double().view(SHAPE)
    missed = law.residual(stored).abs() / (law.magnitude(stored) + law.value.abs())
    largest = float(found.found[3].max())
    assert largest > 1e-10  # float32 holds no more: it is not the 1e-16 of before it was stored
    if way == "blocks":
        torch.testing.assert_close(found.found[3], missed.flatten())


class Float64(TorchDispatchMode):
    """Sees every array in float64 that is made."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for t in found if isinstance(found, tuple | list) else [found]:
            if isinstance(t, torch.Tensor) and t.dtype == torch.float64:
                self.largest = max(self.largest, t.untyped_storage().nbytes() // 8)
        return found


@pytest.mark.parametrize("name", ["integral", "regions"])
def test_a_field_in_float32_never_goes_through_arrays_in_float64(name):
    law, mean, variance = case(name, generator(), 1000)
    mean, variance = mean.float(), variance.float()
    with Float64() as seen:
        post = pc.condition((mean, variance), law)
        assert post.mean.dtype == post.variance.dtype == torch.float32
    assert 0 < seen.largest <= 1000  # the weights of one row


def test_bad_values_are_named_as_ever():
    law, mean, variance = case("integral", generator())
    for wrong, words in (
        (torch.nan, "`mean` must be finite"),
        (torch.inf, "`mean` must be finite"),
    ):
        bad = mean.clone()
        bad[1, 0, 3] = wrong
        with pytest.raises(pc.errors.InputError, match=words):
            pc.condition((bad, variance), law)
    for wrong, words in ((-1.0, "`variance` must be >= 0"), (torch.nan, "`variance` must be fin")):
        bad = variance.clone()
        bad[1, 0, 3] = wrong
        with pytest.raises(pc.errors.InputError, match=words):
            pc.condition((mean, bad), law)


def test_infinite_variances_go_to_the_elimination():
    law, mean, variance = case("integral", generator())
    variance[0, 0, 3] = torch.inf
    post = pc.condition((mean, variance), law)
    assert not isinstance(post._solved, Swept)
    assert law.residual(post).abs().max() < 1e-12


def test_a_row_that_nothing_can_move_is_an_error():
    law, mean, variance = case("integral", generator())
    variance[1, 2] = 0
    with pytest.raises(pc.errors.InfeasibleError, match="`integral` at"):
        pc.condition((mean, variance), law)


def test_a_far_move_is_warned_of_and_still_made():
    law, mean, variance = case("integral", generator())
    with pytest.warns(pc.ImplausibleWarning, match="move a point by"):
        post = pc.condition((mean, 1e-6 * variance), law)
    assert isinstance(post._solved, Swept)
    assert law.residual(post).abs().max() < 1e-12


def test_the_posterior_is_moved_indexed_saved_and_sampled_as_any(tmp_path, monkeypatch):
    law, mean, variance = case("noisy for each row", generator())
    post, want = (
        pc.condition((mean, variance), law),
        by_the_engine(monkeypatch, (mean, variance), law),
    )
    post.save(tmp_path / "post.safetensors")
    for other in (post.detach(), pc.Posterior.load(tmp_path / "post.safetensors")):
        torch.testing.assert_close(other.mean, want.mean)
        torch.testing.assert_close(other.variance, want.variance)
        draws = [p.sample(3, generator(4)) for p in (other, want)]
        torch.testing.assert_close(*draws)
    torch.testing.assert_close(post[1].variance, want[1].variance)
    v = normal(*SHAPE, rng=generator(3))
    torch.testing.assert_close(post.covariance_times(v), want.covariance_times(v))
    again = pc.condition(post, pc.boundary(left=0.0))
    torch.testing.assert_close(again.mean, pc.condition(want, pc.boundary(left=0.0)).mean)
    assert "given integral" in repr(post)


def test_the_inputs_may_change_afterwards():
    law, mean, variance = case("integral", generator())
    post = pc.condition((mean, variance), law)
    before, draws = post.mean.clone(), post.sample(2, generator(1))
    mean += 1
    post.mean.zero_()
    torch.testing.assert_close(post.mean, before)
    torch.testing.assert_close(post.sample(2, generator(1)), draws)


def test_a_law_that_was_changed_in_place_is_not_taken_for_the_old_one():
    law, mean, variance = case("integral", generator())
    pc.condition((mean, variance), law)
    with torch.no_grad():
        law.value += 0.25
    assert law.residual(pc.condition((mean, variance), law)).abs().max() < 1e-12
    law.value = law.value + 0.25
    assert law.residual(pc.condition((mean, variance), law)).abs().max() < 1e-12


def test_inside_torch_func_and_with_forward_derivatives_the_engine_is_used():
    law, mean, variance = case("integral", generator())
    found = torch.func.vmap(
        lambda m: pc.condition((m, variance[0]), pc.integral(torch.linspace(0, 1, 37), 1.0)).mean
    )(mean)
    assert found.shape == mean.shape
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(mean, torch.ones_like(mean))
        tangent = torch.autograd.forward_ad.unpack_dual(pc.condition((dual, variance), law).mean)
        assert law.apply(tangent.tangent).abs().max() < 1e-12


# Several rows on the same points, and members: kernels alone; elsewhere the engine does it.


@pytest.mark.parametrize("count", [2, 5, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_several_rows_on_the_same_points(way, count, dtype, monkeypatch):
    law, mean, variance = case("integral", generator())
    rows = [normal(37, rng=generator(i + 9)) for i in range(count - 1)]
    others = [pc.weighted_sum(w, 0.3, noise=0.1 * (i == 1)) for i, w in enumerate(rows)]
    field = mean.to(dtype), variance.to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pc.ImplausibleWarning)
        post = pc.condition(field, law, *others)
        want = by_the_engine(monkeypatch, field, law, *others)
    assert isinstance(post._solved, Swept) or way == "blocks" or count == 8
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(post.mean, want.mean, rtol=4 * eps, atol=400 * eps)
    torch.testing.assert_close(post.variance, want.variance, rtol=4 * eps, atol=400 * eps)


def test_a_matrix_beside_a_masked_sum(way, monkeypatch):
    law, mean, variance = case("masked at each time", generator())
    matrix = pc.linear(normal(3, 37, rng=generator(5)), normal(2, 3, 3, rng=generator(6)))
    given = (mean, variance), matrix, law
    post, want = pc.condition(*given), by_the_engine(monkeypatch, *given)
    assert isinstance(post._solved, Swept) or way == "blocks"
    torch.testing.assert_close(post.mean, want.mean, rtol=0, atol=1e-12)
    torch.testing.assert_close(post.variance, want.variance, rtol=0, atol=1e-12)


def test_rows_that_repeat_each_other_and_points_that_keep_little_go_to_the_engine():
    law, mean, variance = case("integral", generator())
    post = pc.condition((mean, variance), law, law)
    assert not isinstance(post._solved, Swept)
    assert law.residual(post).abs().max() < 1e-12
    variance[0, 0, 4] = 1e5
    other = pc.weighted_sum(normal(37, rng=generator(8)), 0.0)
    assert not isinstance(pc.condition((mean, variance), law, other)._solved, Swept)


@needs_interpreter()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shrinkage", [None, 0.3])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_ensembles(dtype, shrinkage, noise, monkeypatch, way):
    if way == "blocks":
        pytest.skip("the engine does it")
    shared = normal(6, 2, 3, 1, rng=generator(1)) + normal(2, 3, 83, rng=generator(2))
    members = (shared + 0.5 * normal(6, 2, 3, 83, rng=generator(3))).to(dtype)
    law, _, _ = case("integral", generator(), 83)
    law = pc.weighted_sum(law.map.weights, law.value, noise=noise)
    build = {"batch_dims": 2, "shrinkage": shrinkage}
    post = pc.condition(pc.Ensemble(members, **build), law)
    assert isinstance(post._solved, SweptMembers)
    with monkeypatch.context() as other:
        from probconserv.fields import ensemble, gaussian, low_rank

        for module in (ensemble, gaussian, low_rank):
            other.setattr(module, "may_wait", lambda x: False)
        want = pc.condition(pc.Ensemble(members, **build), law)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(post.mean, want.mean, rtol=8 * eps, atol=8 * eps)
    torch.testing.assert_close(post.members(), want.members(), rtol=8 * eps, atol=16 * eps)
    torch.testing.assert_close(post.variance, want.variance)
    torch.testing.assert_close(post.interval(0.9), want.interval(0.9))
    torch.testing.assert_close(post.detach().mean, want.mean, rtol=8 * eps, atol=8 * eps)


@needs_interpreter()
def test_members_that_are_changed_before_they_are_used_are_an_error(way):
    if way == "blocks":
        pytest.skip("they are used at once")
    members = normal(4, 2, 3, 37, rng=generator())
    field = pc.Ensemble(members, batch_dims=2)
    members += 1
    with pytest.raises(pc.errors.InputError, match="`members` were changed in place"):
        field.sample(2, generator())


def test_without_looks_the_same_comes_out_and_nothing_is_read():
    from probconserv.support import checks

    law, mean, variance = case("integral", generator())
    want = pc.condition((mean, variance), law)
    with checks.unlooked(), NoReads():
        post = pc.condition((mean, variance), law)
    assert isinstance(post._solved, Swept)
    torch.testing.assert_close(post.mean, want.mean)
    torch.testing.assert_close(post.variance, want.variance)


class NoReads(TorchDispatchMode):
    """Nothing is turned into a number."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert "_local_scalar_dense" not in str(func)
        return func(*args, **(kwargs or {}))


def test_a_field_that_nobody_looked_at_yet_is_looked_at_before_it_is_pickled(monkeypatch):
    wait(monkeypatch)
    members = normal(3, 7, rng=generator(0)).mul_(2.0)  # changed in place before it was given
    found = pickle.loads(pickle.dumps(pc.Ensemble(members)))
    assert torch.equal(found.mean, members.mean(0))
    with pytest.raises(InputError, match="`members` must be finite"):
        pickle.dumps(pc.Ensemble(members * torch.nan))


def test_a_variance_has_a_gradient_only_where_something_that_it_hangs_on_has(monkeypatch):
    law, mean, variance = case("integral", generator())
    given, found = (mean.requires_grad_(), variance), []
    for post in (pc.condition(given, law), by_the_engine(monkeypatch, given, law)):
        assert not post.variance.requires_grad
        loss = post.mean.square().sum() + post.variance.sum()
        found += torch.autograd.grad(loss, mean, create_graph=True)
    torch.testing.assert_close(*found)


def test_a_posterior_that_shares_memory_is_pickled_as_one_that_does_not(monkeypatch):
    monkeypatch.setattr(Swept, "_versions", lambda self: tuple(t._version for t in self.held))
    law, mean, variance = case("integral", generator())
    post = pc.condition((mean.add_(1.0), variance), law)
    for found in (pickle.loads(pickle.dumps(post)), copy.copy(post)):
        assert torch.equal(found.mean, post.mean)
        assert torch.equal(found.log_evidence, post.log_evidence)


@needs_interpreter()
def test_the_variance_of_an_ensemble_that_shares_memory_has_the_dtype_of_its_mean(way, monkeypatch):
    if way != "kernels":
        pytest.skip("by kernels alone")
    monkeypatch.setattr(Swept, "_versions", lambda self: tuple(t._version for t in self.held))
    members = normal(4, 2, 37, rng=generator(0)).float()
    law = pc.weighted_sum(uniform(37, rng=generator(1)), 1.0)
    post = pc.condition(pc.Ensemble(members, batch_dims=1), law)
    assert isinstance(post._solved, SweptMembers)
    assert post.variance.dtype == post.mean.dtype == torch.float32
    found = pickle.loads(pickle.dumps(post))
    torch.testing.assert_close(found.mean, post.mean)


def test_a_law_that_holds_at_other_times_from_now_on_is_no_longer_the_old_one(monkeypatch):
    law, mean, variance = case("at some times", generator())
    pc.condition((mean, variance), law)
    law.times = (1, 2)
    found, want = (
        pc.condition((mean, variance), law),
        by_the_engine(monkeypatch, (mean, variance), law),
    )
    torch.testing.assert_close(found.mean, want.mean)


def test_gradients_where_a_point_has_nearly_all_of_the_variance_are_those_of_the_engine():
    law, mean, variance = case("integral", generator())
    variance[0, 1, 5] = 1e9
    post = pc.condition((mean, variance.requires_grad_()), law)
    assert not isinstance(post._solved, Swept)


def test_gradients_of_half_precision_have_its_type(way):
    law, mean, variance = case("integral", generator())
    given = mean.bfloat16().requires_grad_(), variance.bfloat16().requires_grad_()
    post = pc.condition(given, law)
    found = torch.autograd.grad(post.mean.square().sum(), given)
    wide = [t.detach().float().requires_grad_() for t in given]
    want = torch.autograd.grad(pc.condition(wide, law).mean.square().sum(), wide)
    for a, b in zip(found, want, strict=True):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a.float(), b, rtol=0.01, atol=0.01)


def test_more_regions_than_a_gpu_can_number_go_block_by_block(way, monkeypatch):
    from probconserv.solvers import sweeps

    if way == "kernels":
        from probconserv.solvers.kernels import launch

        monkeypatch.setattr(launch, "row_sums", None)
        monkeypatch.setattr(launch, "gradient_sums", None)
    monkeypatch.setattr(sweeps, "MOST_REGIONS", 3)
    law, mean, variance = case("regions", generator())
    given = mean.requires_grad_(), variance.requires_grad_()
    posts = pc.condition(given, law), by_the_engine(monkeypatch, given, law)
    assert isinstance(posts[0]._solved, Swept)
    found, want = (torch.autograd.grad((p.mean + p.variance).square().sum(), given) for p in posts)
    torch.testing.assert_close(found, want)
