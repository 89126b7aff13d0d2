"""The layer compiled, exported, traced, in ONNX, in several processes, with checkpoints."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from seeds import generator, made
from torch import nn
from torch.utils.checkpoint import checkpoint

import probconserv as pc

T, M = 3, 7
X = torch.linspace(0, 1, M, dtype=torch.float64) ** 2
LAWS = {
    "integral": lambda: (pc.integral(X, 0.4),),
    "regions": lambda: (pc.regions([0, 0, 1, 1, 2, 2, 2], [0.5, 1.0, 2.0], noise=0.1),),
    "two": lambda: (pc.integral(X, 0.4), pc.linear(torch.eye(M)[:2], 0.3, noise=0.5)),
    "ends": lambda: (pc.boundary(left=0.1, right=0.2),),
}
BATCH = torch.export.Dim("batch", min=2)


def given(batch, seed=0):
    u = torch.randn(2, batch, T, M, generator=generator(seed + batch), dtype=torch.float64)
    return u[0], u[1].exp()


def total_for(layer, batch):
    """Values that no law has, for each entry of a batch."""
    return layer.laws[0].apply(given(batch, 1)[0])


@pytest.mark.parametrize(
    ("law", "options", "pair", "backend"),  # aot_eager traces it all once more
    [
        ("integral", {}, True, "aot_eager"),
        ("integral", {}, False, "eager"),
        ("regions", {"std": 0.5, "returns": "moments"}, False, "eager"),
        ("two", {"std": 0.5, "learn_std": True}, False, "eager"),
        ("integral", {"members": True, "batch_dims": 1}, False, "eager"),
    ],
)
def test_compiled_without_a_graph_break_and_with_its_gradients(law, options, pair, backend):
    torch._dynamo.reset()
    layer = pc.ConstraintLayer(*LAWS[law](), **options)
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    found = []
    for each in (compiled, layer):
        mean, variance = (t.requires_grad_() for t in given(4))
        out = each((mean, variance) if pair else mean)
        outs = out if isinstance(out, tuple) else (out,)
        sum(t.square().sum() for t in outs).backward()
        grads = [p.grad.clone() for p in (mean, *layer.parameters())]
        layer.zero_grad()
        found.append([*outs, *grads])
    torch.testing.assert_close(*found)


def test_compiled_it_follows_its_totals_and_what_is_loaded():
    torch._dynamo.reset()
    layer = pc.ConstraintLayer(*LAWS["integral"](), std=0.5)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    mean, total = given(4)[0], total_for(layer, 4)
    torch.testing.assert_close(pc.integral(X, 0.0).apply(compiled(mean, total)), total)
    compiled(mean)
    layer.load_state_dict(pc.ConstraintLayer(pc.integral(X, 0.9), std=0.5).state_dict())
    now = pc.integral(X, 0.0).apply(compiled(mean))
    torch.testing.assert_close(now, torch.full((4, T), 0.9).double())


def exported(layer):
    sizes = {"prediction": ({0: BATCH}, {0: BATCH}), "totals": ({0: BATCH},)}
    return torch.export.export(layer, (given(4), total_for(layer, 4)), dynamic_shapes=sizes)


@pytest.mark.parametrize("law", LAWS)
def test_exported_it_takes_any_batch_and_other_totals(law):
    layer = pc.ConstraintLayer(*LAWS[law]())
    program = exported(layer)
    assert set(program.state_dict) == set(layer.state_dict())
    for size in (2, 9):
        wanted = layer(given(size), total_for(layer, size))
        torch.testing.assert_close(program.module()(given(size), total_for(layer, size)), wanted)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("law", LAWS)
def test_traced_it_keeps_no_number(law):
    layer = pc.ConstraintLayer(*LAWS[law]())
    traced = torch.jit.trace(layer, (given(4), total_for(layer, 4)))
    other = given(4, 7), total_for(layer, 4) + 0.1
    torch.testing.assert_close(traced(*other), layer(*other))
    other = given(9), total_for(layer, 9)
    if law in ("integral", "regions"):
        torch.testing.assert_close(traced(*other), layer(*other))
    else:  # these keep the size of the batch
        with pytest.raises(RuntimeError, match="size"):
            traced(*other)


@pytest.mark.filterwarnings("ignore")  # of the exporter, about packages that are not there
def test_onnx_runs_it_with_any_batch_and_other_totals():
    runtime = pytest.importorskip("onnxruntime")
    layer = pc.ConstraintLayer(*LAWS["integral"]())
    model = torch.onnx.export(exported(layer), dynamo=True, verbose=False).model_proto
    session = runtime.InferenceSession(model.SerializeToString())
    asked = (*given(9), total_for(layer, 9))
    names = [each.name for each in session.get_inputs()]
    inputs = {name: t.numpy() for name, t in zip(names, asked, strict=True)}
    found = tuple(map(torch.from_numpy, session.run(None, inputs)))
    torch.testing.assert_close(found, layer(given(9), total_for(layer, 9)))


def test_a_checkpoint_of_activations_changes_no_gradient():
    net = nn.Sequential(made(nn.Linear, M, M), pc.ConstraintLayer(*LAWS["two"](), std=0.5)).double()
    found = []
    for run in (net, lambda u: checkpoint(net, u, use_reentrant=False)):
        u = given(4)[0].requires_grad_()
        run(u).square().sum().backward()
        found.append([u.grad, net[0].weight.grad.clone()])
        net.zero_grad()
    torch.testing.assert_close(*found, rtol=0, atol=0)


def test_a_network_under_autocast_trains_and_its_totals_hold():
    layer = pc.ConstraintLayer(pc.integral(X, 0.4), std=0.5, learn_std=True, returns="moments")
    net = nn.Sequential(made(nn.Linear, M, M), layer)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        with torch.autocast("cpu", torch.bfloat16):
            assert net[0](given(4)[0].float()).dtype == torch.bfloat16
            mean, variance = net(given(4)[0].float())
        assert mean.dtype == torch.float32
        assert layer.laws[0].residual(mean).abs().max() < 3e-7
        losses.append((mean.square() + variance).mean())
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0]
    assert {b.dtype for b in layer.buffers()} == {torch.float64}


def test_two_processes_train_it_as_one_does(tmp_path):
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-W", "ignore", here / "layer_processes.py", tmp_path / "meet"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "the same\n", done.stderr
