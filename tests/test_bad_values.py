"""Bad values for every argument of every public function: an error with words, or a result."""

import inspect
import math
import warnings

import numpy as np
import pytest
import torch
from seeds import seeded

import probconserv as pc

X, T = np.linspace(0.0, 1.0, 5), np.linspace(0.0, 1.0, 3)
MEAN = np.arange(15.0).reshape(3, 5)
LAW = pc.integral(X, 8.0, noise=1.0)
FIELD = pc.Diagonal(MEAN, 1.0)
MIXTURE = pc.Mixture(pc.Diagonal(np.stack([MEAN, MEAN + 1]), 1.0))
POST = pc.condition(FIELD, LAW)
STATE = pc.State(u=FIELD, v=FIELD)
MESH, LINE = pc.Mesh(y=T, x=np.arange(6.0), periodic="x"), pc.Mesh(x=np.arange(6.0))
FLUXES = np.ones((3, 5)), np.ones((2, 5))
ERRORS = pc.diagnostics.StepErrors(np.random.default_rng(0).normal(size=(4, 2, 5)))
TRUTH = np.random.default_rng(1).normal(size=(6, 3, 5))
SEEN, WAYS = pc.Diagonal(TRUTH + 0.1, 1.0), {"condition": pc.diagnostics.Way()}
COMPARISON = pc.compare(SEEN, TRUTH, pc.weighted_sum(X, (TRUTH * X).sum(-1)), ways=WAYS)
GOOD = {
    "Diagonal": (pc.Diagonal, {"mean": MEAN, "variance": 1.0}),
    "LowRank": (pc.LowRank, {"mean": MEAN, "factor": MEAN[None], "variance": 1.0, "event_dims": 1}),
    "Ensemble": (
        pc.Ensemble,
        {"members": np.stack([MEAN, 2 * MEAN]), "variance": 1.0, "batch_dims": 1, "shrinkage": 0.5},
    ),
    "LowRank.correlated": (
        pc.LowRank.correlated,
        {"mean": MEAN, "variance": 1.0, "correlation": 0.5, "event_dims": 1},
    ),
    "Dense": (pc.Dense, {"mean": MEAN[0], "covariance": np.eye(5), "event_dims": 1}),
    "Draws": (
        pc.Draws,
        {"draws": np.stack([MEAN, -MEAN]), "event_dims": 1, "point": MEAN},
    ),
    "Mixture": (pc.Mixture, {"components": MIXTURE.components, "weights": [1, 2], "event_dims": 2}),
    "State": (pc.State, {"u": FIELD}),
    "Ensemble of a state": (
        pc.Ensemble,
        {"members": {"u": np.stack([MEAN, -MEAN])}, "variance": {"u": 1.0}, "batch_dims": 1},
    ),
    "as_field": (pc.fields.as_field, {"prediction": (MEAN, MEAN)}),
    "integral": (
        pc.integral,
        {"coords": X, "value": 1.0, "rule": "left", "noise": 0.1, "where": X > 0, "times": [0]}
        | {"period": None, "of": ""},
    ),
    "weighted_sum": (
        pc.weighted_sum,
        {"weights": X, "value": 1.0, "noise": 0.1, "where": X > 0, "times": [0], "of": ""}
        | {"space_dims": 1},
    ),
    "regions": (
        pc.regions,
        {"labels": [0, 0, 1, 1, 1], "value": [1.0, 2.0], "volumes": X, "noise": 0.1, "of": ""}
        | {"where": X > 0, "times": [0]},
    ),
    "smoothness": (pc.smoothness, {"x": X, "variance": np.ones(5), "rho": 0.5, "of": ""}),
    "boundary": (pc.boundary, {"left": 1.0, "right": [1.0, 2.0], "noise": 0.1, "of": ""}),
    "periodic": (pc.periodic, {"noise": 0.1, "of": ""}),
    "initial": (pc.initial, {"values": X, "noise": 0.1, "space_dims": 1, "of": ""}),
    "bounds": (pc.bounds, {"low": 0.0, "high": X, "truncated": False, "of": ""}),
    "nonlinear": (
        pc.nonlinear,
        {"function": lambda u: u.sum(), "value": 1.0, "noise": 0.1, "batch_dims": 0, "of": ""}
        | {"label": "sum"},
    ),
    "condition on a law that is not linear": (
        pc.condition,
        {"field": FIELD, "laws": pc.nonlinear(lambda u: u.square().mean(), 80.0)},
    ),
    "monotone": (pc.monotone, {"decreasing": False, "axis": -1, "of": ""}),
    "at_least": (pc.at_least, {"law": pc.integral(X, 8.0)}),
    "at_most": (pc.at_most, {"law": pc.integral(X, 8.0)}),
    "condition within bounds": (
        pc.condition,
        {"field": FIELD, "laws": pc.bounds(low=0.0), "draws": 2, "generator": None},
    ),
    "linear": (
        pc.linear,
        {"matrix": np.eye(5)[:2], "value": [1.0, 2.0], "noise": 0.1, "times": [0], "of": ""}
        | {"space": (5,), "batch_dims": 0},
    ),
    "cell_budgets": (
        pc.cell_budgets,
        {"mesh": LINE, "t": T, "fluxes": "f", "source": np.ones((3, 5)), "velocity": 1.0}
        | {"diffusivity": 0.1, "scheme": "centred", "noise": 0.1, "where": X >= 0, "of": "u"},
    ),
    "cell_budgets of known fluxes": (
        pc.cell_budgets,
        {"mesh": MESH, "t": T, "fluxes": FLUXES, "source": "q", "velocity": (1.0, FLUXES[1])},
    ),
    "budget": (
        pc.budget,
        {"cells": X, "t": T, "inflow": "inflow", "outflow": 1.0, "rule": "left", "noise": 0.1}
        | {"of": "u"},
    ),
    "budget of a mesh": (pc.budget, {"cells": LINE, "t": T, "inflow": [1.0, 2.0]}),
    "balance": (pc.laws.balance, {"t": T, "initial": 1.0, "inflow": T, "outflow": 0.0}),
    "condition": (pc.condition, {"field": FIELD, "laws": LAW}),
    "project": (pc.project, {"field": FIELD, "laws": pc.integral(X, 8.0)}),
    "diagnose": (pc.diagnose, {"prior": FIELD, "laws": LAW}),
    "inflate": (pc.inflate, {"prior": FIELD, "laws": LAW}),
    "audit": (pc.audit, {"post": POST}),
    "quadrature_noise": (pc.diagnostics.quadrature_noise, {"prior": FIELD, "x": X, "rule": "left"}),
    "learned_noise": (
        pc.diagnostics.learned_noise,
        {"solutions": np.stack([MEAN, MEAN]), "law": LAW},
    ),
    "evaluate": (
        pc.evaluate,
        {"field": FIELD, "truth": MEAN, "law": LAW, "samples": 2, "generator": None}
        | {"space_dims": 1},
    ),
    "compare": (
        pc.compare,
        {"prediction": SEEN, "truth": TRUTH, "laws": LAW, "where": TRUTH[0] > -9, "ways": WAYS}
        | {"scores": {"own": lambda field, truth: TRUTH[:, 0, 0]}, "space_dims": 1, "samples": 2}
        | {"draws": 4, "calibrated": False},
    ),
    "select": (
        pc.select,
        {"prediction": SEEN, "truth": TRUTH, "laws": LAW, "score": "CRPS", "ways": [*WAYS.values()]}
        | {"where": TRUTH[0] > -9, "folds": 2, "draws": 4},
    ),
    "conformal": (
        pc.diagnostics.conformal,
        {"field": SEEN, "truth": TRUTH, "level": 0.5, "by": "time", "where": TRUTH[0] > -9},
    ),
    "Way": (
        pc.diagnostics.Way,
        {"how": "condition", "laws": ("a",), "scale": 1.0, "common": 0.5, "noise": 0.5}
        | {"inflated": False, "points": "given", "draws": 4},
    ),
    "Way.load": (pc.diagnostics.Way.load, {"path": "nowhere.json"}),
    "Comparison.difference": (
        COMPARISON.difference,
        {"way": "condition", "score": "CRPS", "by": "time"},
    ),
    "rollout": (
        pc.rollout,
        {
            "step": lambda u: u,
            "state": MEAN,
            "laws": LAW,
            "steps": 1,
            "members": 2,
            "errors": ERRORS,
        }
        | {"every": 1, "batch_dims": 1, "plausible": None, "generator": None},
    ),
    "rollout without errors": (
        lambda state, laws: pc.rollout(lambda u: u, state, laws, 1),
        {"state": MEAN, "laws": LAW},
    ),
    "StepErrors": (
        pc.diagnostics.StepErrors,
        {"residuals": np.stack([MEAN, -MEAN]), "bias": True, "relative": "no", "periodic": -1},
    ),
    "StepErrors.learned": (
        pc.diagnostics.StepErrors.learned,
        {"step": lambda u: u, "truth": np.stack([MEAN, -MEAN]), "bias": True, "relative": "field"}
        | {"periodic": (-1,)},
    ),
    "front_position": (pc.diagnostics.front_position, {"field": FIELD, "x": X}),
    "ConstraintLayer": (
        lambda law, prediction, total, **options: pc.ConstraintLayer(law, **options)(
            prediction, total
        ),
        {"law": LAW, "prediction": torch.from_numpy(MEAN), "total": 8.0, "std": 1.0}
        | {"learn_std": False, "members": False, "batch_dims": 0, "returns": "same"}
        | {"checks": True},
    ),
    "ConstraintLayer of a dict": (
        lambda law, prediction: pc.ConstraintLayer(law)(prediction),
        {"law": pc.integral(X, 8.0), "prediction": {"u": (torch.from_numpy(MEAN), 1.0)}},
    ),
    "Law.apply": (LAW.apply, {"u": MEAN}),
    "Law.residual": (LAW.residual, {"u": MEAN}),
    "Law.adjoint": (LAW.adjoint, {"v": T, "shape": (3, 5)}),
    "Law.to": (LAW.to, {"device": "cpu"}),
    "Field.sample": (FIELD.sample, {"n": 2, "generator": None}),
    "Field.sample_with": (FIELD.sample_with, {"normals": np.zeros((2, 15))}),
    "Field.interval": (FIELD.interval, {"level": 0.9}),
    "Field.quantile": (FIELD.quantile, {"p": 0.9}),
    "Field.log_prob": (FIELD.log_prob, {"u": MEAN}),
    "Field.marginal_log_prob": (FIELD.marginal_log_prob, {"u": MEAN}),
    "Field.covariance_times": (FIELD.covariance_times, {"v": MEAN}),
    "Field.to": (FIELD.to, {"device": "cpu"}),
    "Field[...]": (FIELD.__getitem__, {"index": 0}),
    "Field.load": (pc.fields.Field.load, {"path": "nowhere.safetensors"}),
    "Posterior.sample": (POST.sample, {"n": 2, "generator": None}),
    "Posterior.sample_with": (POST.sample_with, {"normals": np.zeros((2, 18))}),
    "Posterior.log_prob": (POST.log_prob, {"u": MEAN}),
    "Posterior.covariance_times": (POST.covariance_times, {"v": MEAN}),
    "Mixture.sample": (MIXTURE.sample, {"n": 2, "generator": None}),
    "Mixture.interval": (MIXTURE.interval, {"level": 0.9}),
    "Mixture.quantile": (MIXTURE.quantile, {"p": 0.9}),
    "State[...]": (STATE.__getitem__, {"key": "u"}),
    "State.to": (STATE.to, {"device": "cpu"}),
    "Mesh": (pc.Mesh, {"y": T, "x": X, "periodic": ("x",)}),
    "Mesh.sphere": (
        pc.Mesh.sphere,
        {"lat_edges": [-90, 0, 90], "lon_edges": [0, 120, 240, 360], "radius": 1.0},
    ),
    "Mesh.unstructured": (
        pc.Mesh.unstructured,
        {"volumes": [1, 2, 3], "neighbours": [[0, 1], [1, 2], [2, -1]], "face_sizes": 1.0}
        | {"distances": 1.0},
    ),
    "Mesh.integral": (MESH.integral, {"u": MEAN[:2]}),
    "Mesh.divergence": (MESH.divergence, {"fluxes": FLUXES}),
    "Mesh.divergence on a line": (LINE.divergence, {"fluxes": np.ones(6)}),
    "Mesh.outflow": (MESH.outflow, {"fluxes": FLUXES}),
    "Mesh.gradient": (MESH.gradient, {"u": MEAN[:2]}),
    "Mesh.centred": (MESH.centred, {"u": MEAN[:2]}),
    "Mesh.upwind": (MESH.upwind, {"u": MEAN[:2], "velocity": (1.0, FLUXES[1])}),
    "Mesh.upwind on a line": (LINE.upwind, {"u": np.ones(5), "velocity": 1.0}),
    "Mesh.open_faces": (MESH.open_faces, {"where": MEAN[:2] > 3}),
    "Mesh.to": (MESH.to, {"device": "cpu"}),
    "Mesh.load": (pc.Mesh.load, {"path": "nowhere.safetensors"}),
}
BAD = {
    "None": None,
    "a word": "gpu",
    "a number": -3,
    "nan": math.nan,
    "infinite": math.inf,
    "huge": 1e308,
    "a float": 0.3,
    "true": True,
    "float32 scalar": np.float32(0.5),
    "empty": [],
    "words": ["a", "b", "c", "d", "e"],
    "ragged": [[1.0, 2.0], [3.0]],
    "complex": np.ones((3, 5), dtype=complex),
    "objects": np.array([None, 1.0], dtype=object),
    "dates": np.array(["2000-01-01"] * 5, dtype="datetime64[D]"),
    "another shape": np.ones((4, 2)),
    "no axis": np.array(1.0),
    "no points": np.zeros((3, 0)),
    "reversed": MEAN[::-1, ::-1],
    "reversed booleans": (X > 0)[::-1],
    "masked": np.ma.masked_less(MEAN, 3.0),
    "integers": np.arange(15).reshape(3, 5),
    "a tensor of integers": torch.arange(5),
    "sparse": torch.eye(5).to_sparse(),
    "a dict": {"u": 1.0},
    "a set": {1.0, 2.0},
    "an object": object(),
    "a type": pc.Diagonal,
    "a law": LAW,
    "a field": FIELD,
    "a state": STATE,
    "a slice": slice(None, None, 2),
}


def call(function, arguments):
    """With what is not named by the signature given by position."""
    names = inspect.signature(function).parameters
    many = [n for n, p in names.items() if p.kind is p.VAR_POSITIONAL]
    rest = [arguments[n] for n in many if n in arguments]
    only = [n for n, p in names.items() if p.kind is p.KEYWORD_ONLY] if rest else arguments
    named = {n: v for n, v in arguments.items() if n in only}
    first = [v for n, v in arguments.items() if n not in many and n not in named]
    with seeded():  # no generator is a good value
        return function(*first, *rest, **named)


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
@pytest.mark.parametrize("name", GOOD)
def test_a_bad_value_gets_an_error_with_words(name):
    function, good = GOOD[name]
    if not name.endswith(".load"):
        call(function, good)  # it works with good values
    raw = []
    for argument in good:
        for what, value in BAD.items():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
                    call(function, good | {argument: value})
            except pc.ProbConservError:
                continue
            except Exception as error:
                raw.append(f"{argument}={what}: {type(error).__name__}: {str(error)[:80]}")
    assert not raw, "\n".join(raw)


def test_every_public_function_is_thrown_at():
    """A new one must be added above."""
    own = {n for n, f in vars(pc).items() if callable(f) and not n.startswith("_")}
    results = {
        "Posterior",
        "Truncated",
        "NonlinearLaw",
        "LinearisationError",
        "Diagnosis",
        "Scores",
        "FrontPosition",
        "Law",
        "Inequality",
        "Field",
    }
    errors = {n for n in own if inspect.isclass(vars(pc)[n]) and issubclass(vars(pc)[n], Exception)}
    assert own - results - errors - {"load"} <= set(GOOD)
