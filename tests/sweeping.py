"""Fields and laws for the sweeps, and how a test asks for one way of doing them or another."""

import importlib.util
import os

import pytest
import torch
from oracle import grid, normal, uniform

import probconserv as pc
from probconserv.conditioning import condition as _condition
from probconserv.conditioning import few_passes as _few_passes
from probconserv.conditioning import swept as _swept
from probconserv.conditioning import swept_joint as _swept_joint
from probconserv.conditioning import swept_members as _swept_members
from probconserv.fields import ensemble as _ensemble
from probconserv.fields import gaussian as _gaussian
from probconserv.fields import low_rank as _low_rank
from probconserv.solvers import sweeps as _sweeps

HAS_INTERPRETER = os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton")
SHAPE = (2, 3, 37)
CASES = [
    "integral",
    "noisy for each row",
    "at some times",
    "weights of each time",
    "masked at each time",
    "regions",
    "regions at some times",
    "two axes",
]


def ways():
    """By blocks of points, and where Triton interprets kernels, by these."""
    return ["blocks", pytest.param("kernels", marks=needs_interpreter())]


def needs_interpreter():
    return pytest.mark.skipif(not HAS_INTERPRETER, reason="`make test-kernels` interprets kernels")


def take(monkeypatch, way):
    """Small fields on a CPU take the sweeps, by blocks that cut them or by kernels."""
    for module in (_swept, _few_passes):
        monkeypatch.setattr(module, "takes", lambda mean: True)
    monkeypatch.setattr(_sweeps, "IN_CACHE", 64)
    if way == "kernels":
        from probconserv.solvers.kernels import launch

        for module in (_sweeps, _swept_joint, _swept_members):
            monkeypatch.setattr(module, "has_kernels", lambda u: True)
        wait(monkeypatch)
        monkeypatch.setattr(launch, "SHORT", 64)
        monkeypatch.setattr(launch, "BLOCK", 16)
        monkeypatch.setattr(launch, "SOME", 16)


def wait(monkeypatch, there=True):
    """Whether looks at values wait, as on a GPU."""
    for module in (_gaussian, _low_rank, _ensemble):
        monkeypatch.setattr(module, "may_wait", lambda x: there)


def by_the_engine(monkeypatch, *given):
    with monkeypatch.context() as other:
        other.setattr(_condition, "in_few_passes", lambda field, laws: None)
        return pc.condition(*given)


def case(name, rng, points=SHAPE[-1]):
    """A law, and mean and variance on (2, 3, points)."""
    batch, times = SHAPE[:2]
    mean = normal(batch, times, points, rng=rng)
    variance = uniform(batch, times, points, rng=rng)
    x, b = grid(points, rng), normal(batch, times, rng=rng)
    labels = torch.arange(points) % 5 - 1  # some points are in no region
    values = normal(batch, times, 4, rng=rng)
    law = {
        "integral": lambda: pc.integral(x, b),
        "noisy for each row": lambda: pc.integral(x, b, noise=uniform(times, rng=rng)),
        "at some times": lambda: pc.integral(x, b[:, 1:], times=[0, 2]),
        "weights of each time": lambda: pc.weighted_sum(
            normal(times, points, rng=rng), b, space_dims=1
        ),
        "masked at each time": lambda: pc.integral(
            x, b, where=torch.rand(times, points, generator=rng) > 0.3
        ),
        "regions": lambda: pc.regions(labels, values, uniform(points, rng=rng)),
        "regions at some times": lambda: pc.regions(labels, values[:, :2], times=[2, 0], noise=0.1),
        "two axes": lambda: pc.integral((torch.tensor([0.0, 1.0, 3.0]), x), b[:, 0]),
    }[name]()
    return law, mean, variance
