"""Small fields are solved in NumPy, by the formulas of the engine: the two give the same."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from seeds import generator

import probconserv as pc
from probconserv.conditioning import small as _small


def by_engine(field, law):
    """The posterior as fields have it that are too large for NumPy."""
    kept, _small.SMALL = _small.SMALL, 0
    try:
        return pc.condition(field, law)
    finally:
        _small.SMALL = kept


def draw(seed, shape, dims, dtype, total, scale):
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, generator=g, dtype=torch.float64)
    variance = torch.rand(shape, generator=g, dtype=torch.float64) + 0.01
    weights = torch.randn(shape[len(shape) - dims :], generator=g, dtype=torch.float64)
    law = pc.weighted_sum(weights, scale * total * torch.ones(shape[: len(shape) - dims]).double())
    return pc.Diagonal((scale * mean).to(dtype), (scale**2 * variance).to(dtype)), law


def is_small(post):
    return isinstance(post._solved, _small.SmallSolved)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([((1, 7), 1), ((3, 5), 1), ((2, 3, 4), 1), ((2, 3, 4), 2), ((5, 1), 1)]),
    st.sampled_from([torch.float64, torch.float32]),
    st.sampled_from([0.0, 0.7, -3.0]),
    st.sampled_from([1e-12, 1.0, 1e12]),
)
@pytest.mark.filterwarnings("ignore::probconserv.support.errors.ImplausibleWarning")
def test_numpy_and_the_engine_give_the_same(seed, shape, dtype, total, scale):
    field, law = draw(seed, *shape, dtype, total, scale)
    small, large = pc.condition(field, law), by_engine(field, law)
    assert not is_small(large)
    r, a = (1e-9, 1e-11) if dtype == torch.float64 else (1e-5, 1e-6)
    torch.testing.assert_close(small.mean, large.mean, rtol=r, atol=a * scale)
    torch.testing.assert_close(small.variance, large.variance, rtol=r, atol=a * scale**2)
    torch.testing.assert_close(small.log_evidence, large.log_evidence, rtol=1e-5, atol=1e-5)
    assert (small.shape, small.dtype, small.event_dims, small.laws) == (
        large.shape,
        large.dtype,
        large.event_dims,
        large.laws,
    )


def draw_smooth(seed, shape, dtype, rho, scale):
    g = torch.Generator().manual_seed(seed)
    x = torch.rand(shape[-1], generator=g, dtype=torch.float64).add(0.1).cumsum(0)
    std = 10 ** (2 * torch.rand(shape, generator=g, dtype=torch.float64) - 2)
    mean = std * torch.randn(shape, generator=g, dtype=torch.float64)
    field = pc.Diagonal((scale * mean).to(dtype), (scale * std).square().to(dtype))
    return field, pc.smoothness(x, field.variance, rho)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([(1, 3), (2, 4), (1, 5), (2, 3, 9), (1, 40)]),
    st.sampled_from([torch.float64, torch.float32]),
    st.sampled_from([0.0, 0.6, 0.99]),
    st.sampled_from([1e-12, 1.0, 1e12]),
)
@pytest.mark.filterwarnings("ignore::probconserv.support.errors.ImplausibleWarning")
def test_second_differences_in_numpy_and_by_the_engine_give_the_same(
    seed, shape, dtype, rho, scale
):
    field, law = draw_smooth(seed, shape, dtype, rho, scale)
    small, large = pc.condition(field, law), by_engine(field, law)
    r, a = (1e-9, 1e-11) if dtype == torch.float64 else (1e-5, 1e-6)
    torch.testing.assert_close(small.mean, large.mean, rtol=r, atol=a * scale)
    torch.testing.assert_close(small.variance, large.variance, rtol=r, atol=0)
    torch.testing.assert_close(small.log_evidence, large.log_evidence, rtol=1e-5, atol=1e-5)
    assert (small.shape, small.dtype, small.event_dims, small.laws) == (
        large.shape,
        large.dtype,
        large.event_dims,
        large.laws,
    )


def test_few_plain_lines_are_smoothed_in_numpy_and_others_are_not():
    field, law = draw_smooth(0, (2, 9), torch.float64, 0.6, 1.0)
    assert is_small(pc.condition(field, law))
    known = pc.Diagonal(field.mean, torch.zeros_like(field.variance))
    exact = pc.smoothness(torch.arange(9.0), known.variance, 0.6)  # without noise
    assert not is_small(pc.condition(pc.Diagonal(field.mean, 1.0), exact))
    with pytest.warns(pc.ImplausibleWarning):
        pc.condition(pc.Diagonal(1000 * field.mean, field.variance), law)
    with pytest.raises(pc.InputError, match="noise"):
        pc.condition(pc.Diagonal(torch.ones(3, 9), 1.0), law)


def test_what_is_plain_is_solved_in_numpy_and_the_rest_is_not():
    field, law = draw(0, (3, 5), 1, torch.float64, 0.1, 1.0)
    assert is_small(pc.condition(field, law))
    grown = torch.ones(3, 5, dtype=torch.float64, requires_grad=True)
    assert not is_small(pc.condition((grown, 1.0), law))
    half = pc.Diagonal(torch.ones(3, 5, dtype=torch.bfloat16), 1.0)
    assert not is_small(pc.condition(half, law))
    assert not is_small(pc.condition(field, law, pc.boundary(left=0.0)))


def test_draws_of_a_small_field_conserve_and_need_no_second_mean():
    field, law = draw(1, (3, 5), 1, torch.float64, 0.1, 1.0)
    post = pc.condition(field, law)
    mean = post.mean
    draws = post.sample(50, torch.Generator().manual_seed(0))
    assert law.residual(draws).abs().max() < 1e-13
    assert torch.equal(post.mean, mean)


def test_what_is_first_asked_for_without_gradients_is_solved_all_the_same():
    field, law = draw(1, (3, 5), 1, torch.float64, 0.1, 1.0)
    with torch.no_grad():
        post = pc.condition(field, law)
        assert post.sample(2, generator=generator()).shape == (2, 3, 5)


def test_a_small_posterior_is_kept_copied_and_indexed(tmp_path):
    field, law = draw(2, (3, 4, 5), 1, torch.float64, 0.1, 1.0)
    post = pc.condition(field, law)
    post.save(tmp_path / "post.safetensors")
    others = [
        pc.Posterior.load(tmp_path / "post.safetensors"),
        copy.deepcopy(post),
        pickle.loads(pickle.dumps(post)),
        post.detach(),
        post.to("cpu"),
    ]
    for other in others:
        assert torch.equal(other.mean, post.mean)
        torch.testing.assert_close(other.variance, post.variance)
    lines, smooth = draw_smooth(3, (2, 9), torch.float64, 0.6, 1.0)
    smoothed = pc.condition(lines, smooth)
    torch.testing.assert_close(pickle.loads(pickle.dumps(smoothed)).variance, smoothed.variance)
    assert torch.equal(post[1].mean, post.mean[1])
    torch.testing.assert_close(post[1].variance, post.variance[1])


def test_a_small_posterior_does_not_change_with_what_it_was_made_of():
    mean, variance = torch.zeros(1, 3).double(), torch.ones(1, 3).double()
    post = pc.condition((mean, variance), pc.weighted_sum([1.0, 1.0, 1.0], 0.3))
    mean += 5
    variance *= 9
    post.mean.add_(7)
    post.variance.add_(7)
    torch.testing.assert_close(post.mean, torch.full((1, 3), 0.1).double())
    torch.testing.assert_close(post.variance, torch.full((1, 3), 2 / 3).double())
    torch.testing.assert_close(post.prior.mean, torch.zeros(1, 3).double())


def test_a_point_that_has_nearly_all_of_a_row_keeps_the_digits_of_its_variance():
    post = pc.condition(([[0.0, 0.0]], [[1.0, 1e-20]]), pc.weighted_sum([1.0, 1.0], 0.5))
    left = torch.full((1, 2), 1e-20, dtype=torch.float64)
    torch.testing.assert_close(post.variance, left, rtol=1e-12, atol=0)


@pytest.mark.parametrize("solve", [pc.condition, by_engine])
def test_a_large_weight_of_a_known_point_leaves_the_others_their_variance(solve):
    field = pc.Diagonal([[0.0, 0.0, 0.0]], [[1e-200, 1e-200, 0.0]])
    post = solve(field, pc.weighted_sum([1.0, 1.0, 1e150], 0.0))
    torch.testing.assert_close(post.variance / 1e-200, torch.tensor([[0.5, 0.5, 0.0]]).double())


def test_what_numpy_does_not_pass_is_explained_by_the_engine():
    law = pc.weighted_sum([1.0, 1.0], 3.0)
    with pytest.raises(pc.InfeasibleError, match="weighted_sum"):
        pc.condition(([[1.0, 1.0]], 0.0), law)
    with pytest.warns(pc.ImplausibleWarning):
        pc.condition(([[1.0, 1.0]], 1e-6), law)
    with pytest.raises(pc.InputError, match="end in"):
        pc.condition(([[1.0, 1.0, 1.0]], 1.0), law)
    with pytest.raises(pc.InputError, match="value"):
        pc.condition(([[1.0, 1.0]], 1.0), pc.weighted_sum([1.0, 1.0], [1.0, 2.0]))
