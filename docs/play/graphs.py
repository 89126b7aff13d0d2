"""What runs in the browser: the trained networks and Step 2 as ONNX graphs.

Both are the library's own code, traced. A network's graph reads observations and gives the
components of its prediction at `TIMES` times and `POINTS` points. The graph of Step 2 reads
components and a law, and gives what every update makes of them; it serves all equations.
"""

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxscript import opset20 as op
from torch import Tensor, nn

import probconserv as pc
from probconserv.conditioning.condition import solved
from probconserv.diagnostics import diagnose as _diagnose
from probconserv.diagnostics.causes import LEVEL, row_limit
from probconserv.diagnostics.fronts import RULES
from probconserv.diagnostics.tangents import Seen
from probconserv.experiments.paper._experiments import UPDATES
from probconserv.fields.state import covariance_of
from probconserv.laws.law import Law
from probconserv.models import AttentiveNeuralProcess, load
from probconserv.problems import find

TIMES, POINTS, SAMPLES, DRAWS = 20, 101, 3, 64
OPSET = 20
X = torch.linspace(0.0, 1.0, POINTS, dtype=torch.float64)


class Method(NamedTuple):
    """One way to bring the law to the components."""

    title: str
    update: Callable[[pc.Diagonal, Law, Tensor], pc.Mixture]
    exact: bool = False  # whether it takes a law without noise only


METHODS = {
    "ANP": Method("no law", UPDATES["none"], True),
    "HardC-ANP": Method("HardC", UPDATES["HardC"], True),
    "ProbConserv-ANP": Method("ProbConserv (paper)", UPDATES["ProbConserv"]),
    "mixture, per time": Method("exact mixture update", UPDATES["mixture, per time"]),
    "widened": Method(
        "widened prior",
        lambda parts, law, x: pc.Mixture(pc.condition(pc.inflate(parts, law), law)),
    ),
}


def times(name: str) -> Tensor:
    """The times at which a field is shown: evenly spaced, without the start."""
    first, last = find(name).time_range
    return torch.linspace(first, last, TIMES + 1, dtype=torch.float64)[1:]


def places(name: str) -> Tensor:
    """All times and points, (T M, 2), as a network reads them."""
    return torch.cartesian_prod(times(name), X).float()


class Network(nn.Module):
    """Observations (N, 3), rows (t, x, u), and places (T M, 2) to the components of `predict`."""

    def __init__(self, network: AttentiveNeuralProcess) -> None:
        super().__init__()
        self.network = network.eval()
        noise = torch.randn(
            SAMPLES, 1, network.sizes["latent"], generator=torch.Generator().manual_seed(0)
        )
        self.register_buffer("noise", noise)

    def forward(self, observations: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        known, u = observations[None, :, :2], observations[None, :, 2]
        z = self.network.latent(known, u).sample(self.noise)
        mean, std = self.network.decode(self.network.common(known, u, places[None]), z)
        shape = SAMPLES, TIMES, POINTS
        return mean.double().reshape(shape), (std.double() ** 2).reshape(shape)


class Step2(nn.Module):
    """Components, b and sigma_G to what each of `METHODS` makes of them, and to the diagnosis."""

    def forward(
        self,
        means: Tensor,  # (S, T, M)
        variances: Tensor,  # (S, T, M)
        b: Tensor,  # (T,)
        sigma: Tensor,  # (T,)
        truth: Tensor,  # (T, M)
        level: Tensor,  # (), of u at the front
        normals: Tensor,  # (DRAWS, S T (M + 1))
    ) -> tuple[Tensor, ...]:
        parts = pc.Diagonal._unchecked(means, variances)
        fields = [m.update(parts, _law(m, b, sigma), X) for m in METHODS.values()]
        points = [field.gaussian() for field in fields]
        mean = torch.stack([each.mean for each in points])
        variance = torch.stack([each.variance for each in points])
        return (
            mean,
            variance,
            pc.integral(X, b).residual(mean),  # CE
            pc.Diagonal._unchecked(mean, variance).marginal_log_prob(truth).mean(-1),  # LL
            RULES["crossing"](torch.stack([_draws(f, normals) for f in fields]), X, level),
            torch.stack([_weights(field) for field in fields]),
            *_diagnosis(parts, pc.integral(X, b, noise=sigma)),
        )


# With the methods on axis 0; `fronts` (METHODS, DRAWS, S, T) is NaN where there is no front.
RESULTS = ("field", "variance", "CE", "LL", "fronts", "weights")
DIAGNOSIS = ("total", "std_full", "z_own", "z_full", "wrong", "causes", "move", "share")
CAUSES = ("rows", "factor", "shift", "offset")  # in the order of `Comparison.candidates`


def _law(method: Method, b: Tensor, sigma: Tensor) -> Law:
    return pc.integral(X, b) if method.exact else pc.integral(X, b, noise=sigma)


def _draws(field: pc.Mixture, normals: Tensor) -> Tensor:  # (DRAWS, S, T, M)
    """Draws of every component."""
    return field.components.sample_with(normals[:, : field.components.normals_per_draw])


def _weights(field: pc.Mixture) -> Tensor:  # (S, T)
    return field.log_weights.exp().reshape(SAMPLES, -1).expand(-1, TIMES)


def _diagnosis(parts: pc.Diagonal, law: Law) -> tuple[Tensor, ...]:
    """The numbers of `diagnose(Mixture(parts).gaussian(), law)`, as in `DIAGNOSIS`."""
    points = pc.Mixture(parts).gaussian()
    covariance, rounding = covariance_of(points), _diagnose.rounding_of((points,))
    seen = Seen(law, law.value)
    rows = _diagnose.by_row(seen, points.mean.device, {"": points}, covariance, rounding)
    limit = row_limit(TIMES, None, rows["estimated"], LEVEL)
    _, sharing, wrong = _diagnose.judged(rows, limit, independent=True)
    compared = _diagnose.compared(rows, limit, sharing, timed=True)
    causes = [(c.amount, c.misfit, c.holds) for c in compared.candidates()]
    moved = solved(points, (law,), audit=False)
    largest = ((moved.mean[0] - points.mean).square() / points.variance).max().sqrt()
    return (
        compared.total,
        rows["std_full"],
        rows["z_own"],
        rows["z_full"],
        wrong.double(),
        torch.stack([torch.stack([n.double() for n in one]) for one in causes]),
        largest,
        rows["quadrature_share"].mean(),
    )


def network_graph(name: str) -> bytes:
    """The trained network of an equation; its weights in float16 where that changes nothing."""
    graph = _exported(
        Network(load(name)),
        (torch.full((12, 3), 0.5), places(name)),
        ["means", "variances"],
        {"observations": {0: torch.export.Dim("observed", min=2, max=400)}, "places": None},
    )
    return _halved(graph).SerializeToString()


def step2_graph() -> bytes:
    """Step 2, for all equations."""
    return _exported(Step2(), example(), [*RESULTS, *DIAGNOSIS]).SerializeToString()


def example() -> tuple[Tensor, ...]:
    """Something for Step 2 to work on."""
    rng = torch.Generator().manual_seed(1)
    shape = SAMPLES, TIMES, POINTS
    means = (0.4 - X).expand(shape) + 0.01 * torch.randn(shape, generator=rng)
    variances = 0.01 + 0.01 * torch.rand(shape, generator=rng).double()
    b, sigma = torch.linspace(-0.11, -0.09, TIMES).double(), torch.full((TIMES,), 0.01).double()
    normals = torch.randn(DRAWS, SAMPLES * TIMES * (POINTS + 1), generator=rng)
    return means, variances, b, sigma, means[0], torch.tensor(0.1).double(), normals


def _exported(
    module: nn.Module,
    given: tuple[Tensor, ...],
    outputs: list[str],
    sizes: dict[str, dict[int, torch.export.Dim]] | None = None,
) -> onnx.ModelProto:
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(module.eval(), given, dynamic_shapes=sizes)
        made = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            output_names=outputs,
            custom_translation_table={torch.ops.aten.median.dim: _median},
            optimize=False,
            verbose=False,
        )
    return _folded(made.model_proto)


def _folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with all that is constant computed: so it opens sooner."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/folded.onnx"
        onnxruntime.InferenceSession(model.SerializeToString(), options)
        return onnx.load(options.optimized_model_filepath)


def _median(x: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """The lower median along an axis, which ONNX lacks: the middle of all, sorted."""
    count = x.shape[dim]
    found = op.TopK(x, op.Constant(value_ints=[count]), axis=dim, largest=0)
    middle, axis = op.Constant(value_ints=[(count - 1) // 2]), op.Constant(value_ints=[dim])
    values, places = (op.Gather(each, middle, axis=dim) for each in found)
    return (values, places) if keepdim else (op.Squeeze(values, axis), op.Squeeze(places, axis))


def _halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with weights kept in float16 and cast, where no weight changes by that."""
    casts = []
    for weight in model.graph.initializer:
        array = numpy_helper.to_array(weight)
        with np.errstate(over="ignore"):
            half = array.astype("float16")
        if array.dtype == "float32" and array.size > 64 and (half == array).all():
            name = weight.name
            weight.CopyFrom(numpy_helper.from_array(half, f"{name}_half"))
            casts.append(helper.make_node("Cast", [weight.name], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model
