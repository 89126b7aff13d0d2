"""User code as someone with a type checker writes it; `test_types.py` has two of them read it.

`assert_type` says what they must find; nothing of it happens when the page runs.
"""

from pathlib import Path
from typing import assert_type

import numpy as np
import torch
from torch import Tensor

import probconserv as pc
from probconserv import data, problems
from probconserv.conditioning.posterior import FieldPosterior, StatePosterior
from probconserv.models import AttentiveNeuralProcess, Emulator

x = np.linspace(0.0, 1.0, 6)
t = torch.linspace(0.1, 0.5, 4, dtype=torch.float64)
generator = torch.Generator().manual_seed(0)


def priors() -> tuple[pc.Diagonal, pc.LowRank, pc.Dense, pc.Mixture]:
    """Of arrays, tensors, lists and numbers."""
    mean = np.ones((4, 6))
    points = pc.Diagonal(mean, 0.1)
    assert_type(points, pc.Diagonal)
    pc.Diagonal(torch.ones(4, 6), torch.full((4, 6), 0.1))
    pc.Diagonal([[1.0, 1.0]], np.float64(0.1))
    members = pc.Ensemble(np.random.default_rng(0).normal(1, 0.3, (9, 4, 6)), batch_dims=1)
    assert_type(members, pc.LowRank)
    assert_type(members.factor, Tensor)
    process = pc.Dense(mean, np.broadcast_to(np.exp(-((x[:, None] - x) ** 2)), (4, 6, 6)))
    assert_type(process, pc.Dense)
    latent = pc.Mixture(pc.Diagonal(np.ones((3, 4, 6)), 0.2), weights=[0.2, 0.3, 0.5])
    assert_type(latent, pc.Mixture)
    assert_type(latent.weights, Tensor)
    assert_type(pc.fields.as_field((mean, 0.1 * mean)), pc.fields.Field)
    return points, members, process, latent


def laws() -> list[pc.laws.Law]:
    every = [
        pc.integral(x, 1.0),
        pc.integral(torch.from_numpy(x), t, rule="simpson", noise=0.01, times=[0, 1, 2, 3]),
        pc.integral((t, x), value=0.5, where=np.ones((4, 6), dtype=bool)),
        pc.weighted_sum([1.0, 2.0, 3.0, 3.0, 2.0, 1.0], value=12.0, times=slice(1, None)),
        pc.weighted_sum({"u": x, "v": torch.ones(3)}, value=2.0),
        pc.integral(x, 2.0, of=["u", "v"]),
        pc.integral(x, 2.0, of={"u": 1.0, "v": 0.5}),
        pc.regions(np.array([0, 0, 0, 1, 1, 1]), value=[3.0, 3.0]),
        pc.linear(np.eye(6)[:2], value=[1.0, 1.0], noise=np.array([0.1, 0.2])),
        pc.boundary(left=1.0, right=t),
        pc.initial(np.ones(6), noise=0.1),
        pc.periodic(),
        pc.smoothness(x, np.full((4, 6), 0.1), rho=0.9),
    ]
    assert_type(every, list[pc.laws.Law])
    assert_type(pc.laws.balance(t, initial=1.0, inflow=[0.1] * 4), Tensor)
    assert_type(every[0].residual(np.ones((4, 6))), Tensor)
    assert_type(every[0].value, Tensor)
    return every


def given(law: pc.laws.Law) -> None:
    """`condition` gives a posterior, a posterior of a state, or a mixture."""
    points, members, process, latent = priors()
    post = pc.condition(points, law)
    assert_type(post, FieldPosterior)
    assert_type(pc.condition(members, law, pc.periodic(noise=0.1)), FieldPosterior)
    assert_type(pc.condition(process, law), FieldPosterior)
    assert_type(pc.condition((np.ones((4, 6)), 0.1), law), FieldPosterior)
    assert_type(
        pc.condition(torch.distributions.Normal(torch.ones(4, 6), 0.5), law), FieldPosterior
    )
    assert_type(pc.condition(latent, law), pc.Mixture)
    assert_type(pc.condition(post, pc.periodic(noise=0.1)), FieldPosterior)
    state = pc.State(u=points, v=pc.Diagonal(np.ones((4, 3)), 0.1))
    assert_type(pc.condition(state, pc.integral(x, 1.0, of="u")), StatePosterior)
    kept: list[pc.Posterior] = [post, pc.condition(state, pc.integral(x, 1.0, of="u"))]
    assert_type(kept[0].laws, tuple[str, ...])
    assert_type(kept[0].log_evidence, Tensor)
    known: list[pc.Draws] = [
        pc.Draws(np.ones((2, 4, 6))),
        pc.condition(points, law, pc.bounds(low=0.0)),
        pc.condition(state, pc.bounds(low=0.0, of="u")),
    ]
    assert_type(known[0].to("cpu"), pc.Draws)
    assert_type(pc.Draws(np.ones((2, 4, 6))).mean, Tensor)
    assert_type(pc.Ensemble({"u": torch.randn(5, 4, 6)}), pc.State)


def asked(post: FieldPosterior, truth: Tensor) -> None:
    """What a posterior answers."""
    assert_type(post.mean, Tensor)
    assert_type(post.variance, Tensor)
    assert_type(post.std, Tensor)
    assert_type(post.shape, torch.Size)
    assert_type(post.dtype, torch.dtype)
    assert_type(post.event_dims, int)
    assert_type(post.laws, tuple[str, ...])
    assert_type(post.sample(3, generator), Tensor)
    assert_type(post.sample_with(np.zeros((2, post.normals_per_draw))), Tensor)
    assert_type(post.interval(0.9), tuple[Tensor, Tensor])
    assert_type(post.quantile(0.5), Tensor)
    assert_type(post.covariance(), Tensor)
    assert_type(post.covariance_times(np.ones(post.shape)), Tensor)
    assert_type(post.marginal_log_prob(truth), Tensor)
    assert_type(post.log_evidence, Tensor)
    assert_type(post.prior, pc.fields.Field)
    assert_type(post[0], FieldPosterior)
    assert_type(post.to("cpu").detach(), FieldPosterior)


def kept(post: FieldPosterior, folder: Path) -> pc.fields.Field:
    post.save(folder / "post.safetensors")
    field = pc.fields.Field.load(str(folder / "post.safetensors"))
    assert_type(field, pc.fields.Field)
    return field


def judged(prior: pc.Diagonal, law: pc.laws.Law, truth: Tensor) -> dict[str, float]:
    found = pc.diagnose(prior, law)
    assert_type(found, pc.diagnostics.Diagnosis)
    assert_type(found.verdict, str)
    assert_type(found.z_full, Tensor)
    wider: pc.Diagonal = pc.inflate(prior, law)
    moved = pc.project(wider, law)
    assert_type(moved.mean, Tensor)
    scores = pc.evaluate(moved, truth, law, samples=5, generator=generator)
    assert_type(scores, pc.diagnostics.Scores)
    assert_type(scores.CRPS, Tensor)
    assert_type(scores[:1], pc.diagnostics.Scores)
    front = pc.diagnostics.front_position(prior, x, level=0.5, rule="crossing", samples=5)
    assert_type(front, pc.diagnostics.FrontPosition)
    assert_type(front.interval(0.9), tuple[Tensor, Tensor])
    assert_type(pc.diagnostics.quadrature_noise(prior, x, rule="left"), Tensor)
    assert_type(pc.diagnostics.learned_noise(truth[None].expand(2, 4, 6), law), Tensor)
    return {"CE": float(scores.CE.abs().max())}


def meshes() -> None:
    mesh = pc.Mesh(x=x, y=[0, 1, 3], periodic="x")
    assert_type(mesh, pc.Mesh)
    assert_type(mesh.volumes, Tensor)
    assert_type(mesh.face_shapes, tuple[tuple[int, ...], ...])
    assert_type(mesh.gradient(np.ones((5, 2))), tuple[Tensor, ...])
    assert_type(mesh.divergence(mesh.gradient(torch.ones(5, 2))), Tensor)
    assert_type(mesh.upwind(torch.ones(5, 2), (1.0, np.ones((5, 3)))), tuple[Tensor, ...])
    assert_type(mesh.to("cpu"), pc.Mesh)
    assert_type(pc.Mesh.sphere([-90, 0, 90], np.linspace(0, 360, 5)).closed, bool)
    assert_type(pc.Mesh.unstructured([1.0, 2.0], [[0, 1]], 1.0), pc.Mesh)


def networks() -> None:
    assert_type(problems.Stefan(u_star=0.6, k_min=[0.0, 0.1]).k_min, Tensor)
    assert_type(problems.PorousMedium(np.array([1.0, 2.0])).total(0.5), Tensor)
    assert_type(problems.Stefan(torch.tensor(0.6)).on_grid(*problems.Stefan.grid(5, 6)), Tensor)
    assert_type(problems.simulate(problems.SuperSlow(1.0), [0.1, 0.2], cells=9).total, Tensor)
    functions = data.draw(problems.Stefan, "test", n=2, context=(3, 3))
    assert_type(functions.context.u, Tensor)
    network = pc.models.load("stefan")
    assert_type(network, AttentiveNeuralProcess)
    parts = network.predict(functions.context, (t / 10, x), samples=2, generator=generator)
    assert_type(parts, pc.Diagonal)
    assert_type(pc.Mixture(parts).gaussian(), pc.Diagonal)
    assert_type(pc.Ensemble(parts.mean, parts.variance.mean(0)), pc.LowRank)


def emulators() -> None:
    """Whose weights may not be here."""
    assert_type(pc.models.load("pme", "softc", recipe="paper"), AttentiveNeuralProcess)
    assert_type(pc.models.load("pme", model="emulator"), Emulator)


def a_step(mean: Tensor, variance: Tensor, law: pc.laws.Law) -> Tensor:
    """Training through a law."""
    mean = mean.requires_grad_()
    loss = pc.condition(pc.Diagonal(mean, variance), law).mean.square().sum()
    (slope,) = torch.autograd.grad(loss, [mean])
    return slope


def main(folder: Path) -> None:
    law, truth = laws()[0], torch.ones(4, 6, dtype=torch.float64)
    prior = priors()[0]
    post = pc.condition(prior, law)
    given(law)
    asked(post, truth)
    kept(post, folder)
    judged(prior, law, truth)
    meshes()
    networks()
    a_step(truth.clone(), truth / 10, law)
