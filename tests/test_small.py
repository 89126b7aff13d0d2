"""Fields of a few points: draws, copies, what they were made of, and what is refused."""

import copy
import pickle

import pytest
import torch
from seeds import generator

import probconserv as pc


def draw(seed, shape):
    g = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, generator=g, dtype=torch.float64)
    variance = torch.rand(shape, generator=g, dtype=torch.float64) + 0.01
    weights = torch.randn(shape[-1:], generator=g, dtype=torch.float64)
    return pc.Diagonal(mean, variance), pc.weighted_sum(weights, 0.1)


def test_draws_of_a_small_field_conserve_and_need_no_second_mean():
    field, law = draw(1, (3, 5))
    post = pc.condition(field, law)
    mean = post.mean
    draws = post.sample(50, torch.Generator().manual_seed(0))
    assert law.residual(draws).abs().max() < 1e-13
    assert torch.equal(post.mean, mean)


def test_what_is_first_asked_for_without_gradients_is_solved_all_the_same():
    field, law = draw(1, (3, 5))
    with torch.no_grad():
        post = pc.condition(field, law)
        assert post.sample(2, generator=generator()).shape == (2, 3, 5)


def test_a_small_posterior_is_kept_copied_and_indexed(tmp_path):
    field, law = draw(2, (3, 4, 5))
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
    smoothed = pc.condition(field, pc.smoothness(torch.arange(5.0), field.variance, 0.6))
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


def test_what_a_small_field_does_not_allow_is_explained():
    law = pc.weighted_sum([1.0, 1.0], 3.0)
    with pytest.raises(pc.errors.InfeasibleError, match="weighted_sum"):
        pc.condition(([[1.0, 1.0]], 0.0), law)
    with pytest.warns(pc.ImplausibleWarning):
        pc.condition(([[1.0, 1.0]], 1e-6), law)
    with pytest.raises(pc.errors.InputError, match="end in"):
        pc.condition(([[1.0, 1.0, 1.0]], 1.0), law)
    with pytest.raises(pc.errors.InputError, match="value"):
        pc.condition(([[1.0, 1.0]], 1.0), pc.weighted_sum([1.0, 1.0], [1.0, 2.0]))
