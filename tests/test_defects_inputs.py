"""A wrong number of version 0.1.0: a posterior changed with its inputs. Each test failed there."""

import pytest
import torch
from seeds import generator

import probconserv as pc

KINDS = ["Diagonal", "LowRank", "Dense"]
LAW = pc.weighted_sum([1.0, 1.0, 1.0], 3.0)


def parts_of(kind, rng):
    """Tensors of a field by name, and the field made of them."""
    mean, factor = (torch.randn(s, generator=rng).double() for s in ((2, 3), (4, 2, 3)))
    variance, square = torch.full((2, 3), 2.0).double(), torch.eye(3).double().repeat(2, 1, 1)
    if kind == "Diagonal":
        return [mean, variance], pc.Diagonal(mean, variance)
    if kind == "LowRank":
        return [mean, factor, variance], pc.LowRank(mean, factor, variance)
    return [mean, square], pc.Dense(mean, square)


def state_of(post):
    draw = post.sample(2, generator())
    return [t.clone() for t in (post.mean, post.variance, post.log_evidence, draw)]


@pytest.mark.parametrize("read_first", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_posterior_stays_when_its_inputs_change(kind, read_first, rng):
    tensors, field = parts_of(kind, rng)
    wanted = state_of(pc.condition(parts_of(kind, generator(20))[1], LAW))
    post = pc.condition(field, LAW)
    if read_first:
        state_of(post)
    for t in tensors:
        t.mul_(5)
    for found, was in zip(state_of(post), wanted, strict=True):
        assert torch.equal(found, was)


@pytest.mark.parametrize("kind", KINDS)
def test_a_posterior_stays_when_its_law_changes(kind, rng):
    weights, total, noise = torch.ones(3).double(), torch.ones(2).double(), torch.ones(2).double()
    field = parts_of(kind, rng)[1]
    wanted = state_of(
        pc.condition(field, pc.weighted_sum(weights.clone(), total.clone(), noise.clone()))
    )
    post = pc.condition(field, pc.weighted_sum(weights, total, noise))
    for t in (weights, total, noise):
        t.mul_(5)
    for found, was in zip(state_of(post), wanted, strict=True):
        assert torch.equal(found, was)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_posterior_returns_can_be_changed_without_harm(kind, rng):
    tensors, field = parts_of(kind, rng)
    before = [t.clone() for t in tensors]
    post = pc.condition(field, LAW)
    wanted = state_of(post)
    post.mean.clamp_(max=0)
    post.variance.mul_(7)
    for found, was in zip([*state_of(post), *tensors], [*wanted, *before], strict=True):
        assert torch.equal(found, was)
