"""`torch.compile` without a graph break, and `torch.func.vmap`: what the README promises."""

import shutil

import pytest
import torch

import probconserv as pc
from probconserv.laws.maps import Select

B, T, M = 3, 4, 7
rng = torch.Generator().manual_seed(3)


def normal(*shape):
    return torch.randn(shape, generator=rng, dtype=torch.float64)


X, W = torch.linspace(0, 1, M, dtype=torch.float64), normal(M).abs() + 0.1
TOTAL, MATRIX = 0.1 * normal(T), normal(2, M)
LABELS, WHERE = torch.tensor([0, 0, 1, 1, 2, 2, 2]), torch.tensor([True] * 5 + [False] * 2)
MEAN, VARIANCE, FACTOR = normal(B, T, M), normal(B, T, M).abs() + 0.5, normal(2, B, T, M)
LAWS = {
    "integral": lambda of: [pc.integral(X, TOTAL, of=of)],
    "cells where": lambda of: [pc.weighted_sum(W, TOTAL, where=WHERE, of=of)],
    "regions": lambda of: [pc.regions(LABELS, [0.1, 0.2, 0.3], of=of)],
    "noisy linear": lambda of: [pc.linear(MATRIX, [0.1, 0.2], noise=0.3, of=of)],
    "some times": lambda of: [pc.integral(X, TOTAL[1:], times=slice(1, None), of=of)],
    "two laws": lambda of: [
        pc.integral(X, TOTAL, of=of),
        pc.weighted_sum(W, 0.0, noise=0.3, of=of),
    ],
}
FIELDS = {
    "Diagonal": lambda mean, variance, factor: pc.Diagonal(mean, variance),
    "LowRank": lambda mean, variance, factor: pc.LowRank(mean, factor, variance),
    "bare LowRank": lambda mean, variance, factor: pc.LowRank(mean, factor),
    "State": lambda mean, variance, factor: pc.State(
        u=pc.Diagonal(mean, variance), flux=pc.LowRank(mean, factor, variance)
    ),
}
IMPOSSIBLE = pc.weighted_sum([1.0, 1.0], 1.0), pc.weighted_sum([1.0, 1.0], 2.0)
CASES = [(f, law) for f in FIELDS for law in LAWS if (f, law) != ("bare LowRank", "regions")]


def step_2(field, law, mean, variance, factor, normals=None):
    """Everything that is promised of a posterior."""
    prior = FIELDS[field](mean, variance, factor)
    post = pc.condition(prior, *LAWS[law]("u" if field == "State" else ""))
    post = post["u"] if field == "State" else post
    found = [post.mean, post.variance, *post.interval(0.9)]
    if law == "noisy linear" and field in ("Diagonal", "LowRank"):
        found.append(post.log_prob(mean + 0.1))
    draws = [] if normals is None else [post.sample_with(normals)]
    return found, draws


def normals_for(field, law, *arrays):
    prior = FIELDS[field](*arrays)
    post = pc.condition(prior, *LAWS[law]("u" if field == "State" else ""))
    return normal(2, (post["u"] if field == "State" else post).normals_per_draw)


@pytest.mark.parametrize(("field", "law"), CASES)
def test_vmap_gives_what_a_loop_gives(field, law):
    one = MEAN[0], VARIANCE[0], FACTOR[:, 0]
    normals = normals_for(field, law, *one)
    mapped, draws = torch.func.vmap(
        lambda m, v, f: step_2(field, law, m, v, f, normals), (0, 0, 1)
    )(MEAN, VARIANCE, FACTOR)
    for i in range(B):
        alone, _ = step_2(field, law, MEAN[i], VARIANCE[i], FACTOR[:, i])
        for got, wanted in zip(mapped, alone, strict=True):
            torch.testing.assert_close(got[i], wanted, rtol=1e-9, atol=1e-10)
    for each in LAWS[law](""):
        if not each.noise.any():
            assert each.residual(draws[0]).abs().max() < 1e-10


@pytest.mark.parametrize("periodic", [(), ("x",)])
def test_vmap_over_a_velocity_gives_what_a_loop_gives(periodic):
    """It ended in an error of torch, and `vmap` over means in a warning of torch."""
    mesh = pc.Mesh(x=[0.0, 0.3, 1.0, 1.2, 2.0], y=[0.0, 1.0, 3.0], periodic=periodic)
    means, speeds = normal(2, 3, 4, 2), normal(2)

    def step(mean, speed):
        velocity = [speed.expand(shape) for shape in mesh.face_shapes]
        law = pc.cell_budgets(mesh, [0.0, 0.4, 1.0], velocity=velocity, noise=0.2)
        post = pc.condition(pc.Diagonal(mean, 1.0), law)
        return torch.stack([post.mean, post.variance])

    mapped = torch.func.vmap(step)(means, speeds)
    torch.testing.assert_close(mapped, torch.stack([*map(step, means, speeds)]))
    of_speed = torch.func.jacfwd(step, argnums=1)(means[0], speeds[0])
    up, down = (step(means[0], speeds[0] + each) for each in (1e-6, -1e-6))
    torch.testing.assert_close(of_speed, (up - down) / 2e-6, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("field", "law", "backend"),  # aot_eager traces it all once more, in twice the time
    [
        ("Diagonal", "integral", "eager"),  # compiled to the end in test_condition.py
        ("Diagonal", "some times", "aot_eager"),
        ("LowRank", "cells where", "eager"),
        ("LowRank", "noisy linear", "eager"),
        ("bare LowRank", "two laws", "eager"),
        ("State", "regions", "eager"),
    ],
)
def test_compiled_without_a_graph_break(field, law, backend):
    torch._dynamo.reset()
    normals = normals_for(field, law, MEAN, VARIANCE, FACTOR)
    compiled = torch.compile(
        lambda m, v, f: step_2(field, law, m, v, f, normals), fullgraph=True, backend=backend
    )
    found, draws = compiled(MEAN, VARIANCE, FACTOR)
    wanted, _ = step_2(field, law, MEAN, VARIANCE, FACTOR)
    for got, each in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, each, rtol=1e-9, atol=1e-10)
    for each in LAWS[law](""):
        if not each.noise.any():
            assert each.residual(draws[0]).abs().max() < 1e-10


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a compiler")
def test_known_ends_compile_to_the_end(monkeypatch):
    """Inductor writes to all entries at once where a tensor is expanded: means were off by 100."""
    # Inductor else compiles four programs to see which vector instructions there are.
    monkeypatch.setattr("torch._inductor.cpu_vec_isa.valid_vec_isa_list", list, raising=False)
    torch._dynamo.reset()
    ends = Select(-1, (0, -1)).on([3, 5])

    def step(mean):
        post = pc.condition(pc.Diagonal(mean, 1.0), pc.boundary(left=1.0, right=2.0, noise=0.1))
        return post.mean, ends.adjoint(post.mean[:, 1:3])

    mean = torch.arange(15.0, dtype=torch.float64).reshape(3, 5).sin()
    torch.testing.assert_close(torch.compile(step, fullgraph=True)(mean), step(mean))


def test_a_compiled_posterior_is_audited():
    def step(mean):
        return pc.condition(pc.Diagonal(mean, torch.ones_like(mean)), *IMPOSSIBLE)

    post = torch.compile(step, fullgraph=True, backend="eager")(torch.zeros(2, 2))
    with pytest.raises(pc.errors.InfeasibleError, match=r"`weighted_sum`.*contradicts"):
        pc.audit(post)
