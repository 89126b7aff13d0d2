"""The benchmark: each case, in the range of training and at three distances from it."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...conditioning.condition import condition
from ...data import Grids
from ...diagnostics.diagnose import diagnose
from ...diagnostics.inflate import inflate
from ...diagnostics.metrics import evaluate
from ...diagnostics.noise import quadrature_noise
from ...fields.gaussian import Diagonal, Field
from ...fields.mixture import Mixture
from ...laws.inequalities import Inequality, bounds, monotone
from ...laws.sums import integral
from ...models import FNO, Calibration, Widths
from ...problems import ClosedForm
from ...support import checks as check
from ...support.errors import surprises_expected
from .._runs import Record
from ._cases import CASES, HELD_OUT, Case, Where, load_ensemble

METHODS = ("no law", "paper's update", "law", "law and shape")
NOISE = 2.0  # times the error of the quadrature rule, chosen on the functions held out
TESTED: tuple[Where, ...] = ("in", "near", "other side", "far")
PAIRS = 20  # of draws, for the energy score
AT_ONCE = 50  # functions
RESCALED = 0.95  # n-MeRCI: the share of errors that the rescaled deviations hold


@dataclass(frozen=True)
class OperatorCell:
    """One case at one distance: a record for each method, and one function to draw.

    Parameters
    ----------
    records : list of dict
        case, where, low, high, seed, method, functions, the scores, the published CRPS, and the
        share of functions for which `diagnose` says that b contradicts the ensemble (`alarms`)
        or its first member alone (`alarms_of_one`).
    example : dict
        t, x, truth, and mean and std of each method, of the first function.
    """

    records: list[Record]
    example: dict[str, Any]


@surprises_expected()
@torch.no_grad()
def benchmark(
    cases: Sequence[str] = tuple(CASES),
    seeds: int = 1,
    n: int = 200,
    folder: str | Path | None = None,
    where: Sequence[Where] = TESTED,
    tell: Callable[[str], None] = lambda _: None,
) -> list[OperatorCell]:
    """Every method on every case, inside the range of training and outside.

    Parameters
    ----------
    cases : sequence of str
        Some of "heat", "pme", "advection" and "stefan".
    seeds : int
        How many ensembles of each; the first is shipped.
    n : int
        Test functions in each cell.
    folder : str or Path
        Where other ensembles are, as `train_ensembles` leaves them.
    where : sequence of str
        Some of "in", "beside" (to choose by), "near", "other side" and "far".
    tell : callable
        Called with what is being done.

    Returns
    -------
    list of Cell
        One for each case, distance and seed.

    Raises
    ------
    InputError
        If a name is not known, or there are no weights of a seed.
    """
    for name in cases:
        check.choice("cases", name, CASES)
    for name in where:
        check.choice("where", name, CASES["heat"].ranges)
    check.samples(n, "n")
    found = []
    for name in cases:
        for seed in range(check.samples(seeds, "seeds")):
            network = load_ensemble(name, seed, folder)
            tell(f"{CASES[name].title}, functions held out, ensemble {seed}")
            confirmed = _confirmed(CASES[name], network)
            for distance in where:
                tell(f"{CASES[name].title}, {distance}, ensemble {seed}")
                found.append(_cell(name, distance, seed, n, network, confirmed))
    return found


def _confirmed(case: Case, network: FNO) -> tuple[Calibration, Widths]:
    """From functions held out, of the range of training and of the range beside it."""
    ranges: tuple[Where, ...] = "in", "beside"
    held_out = [case.functions(where, "validation", HELD_OUT) for where in ranges]
    members = [network.predict(grids.inputs, grids.axes) for _, grids in held_out]
    truths = [grids.targets for _, grids in held_out]
    calibration = Calibration.fit(*zip(members, truths, strict=True))
    shaped = [
        conditioned(case, *functions, moments(calibration(components)))[1]
        for functions, components in zip(held_out, members, strict=True)
    ]
    return calibration, Widths.fit(*zip(shaped, truths, members, strict=True))


def _cell(
    name: str, where: Where, seed: int, n: int, network: FNO, confirmed: tuple[Calibration, Widths]
) -> OperatorCell:
    case = CASES[name]
    split = "validation" if where == "beside" else "test"
    problem, grids = case.functions(where, split, n)
    t, x = grids.axes
    assert grids.totals is not None
    means: dict[str, list[Tensor]] = {}
    alarms = torch.zeros(2)
    for start in range(0, n, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        components = network.predict(grids[part].inputs, (t, x))
        for method, field in fields_of(
            case, problem[part], grids[part], components, *confirmed
        ).items():
            means.setdefault(method, []).append(torch.stack([field.mean, field.variance]))
        for i, field in enumerate((moments(components), components[0])):
            alarms[i] += _alarms(field, x, grids.totals[part])
    joined = {m: Diagonal(*torch.cat(parts, 1).unbind(0)) for m, parts in means.items()}
    low, high = case.ranges[where]
    common = {"case": name, "where": where, "low": low, "high": high, "seed": seed}
    records = [
        common
        | {"method": method, "functions": n}
        | dict(zip(("alarms", "alarms_of_one"), (alarms / n).tolist(), strict=True))
        | scores(field, grids.targets, integral(x, grids.totals))
        | {"published_CRPS": published()[name].get(where)}
        for method, field in joined.items()
    ]
    example = {"t": t, "x": x, "truth": grids.targets[0], "title": case.title, "where": where}
    example["fields"] = {m: (f.mean[0], f.variance[0].sqrt()) for m, f in joined.items()}
    return OperatorCell(records, example)


def scores(field: Field, truth: Tensor, law: Any) -> dict[str, float]:
    """Averages over functions, times and places."""
    each = evaluate(field, truth, law, samples=PAIRS, generator=torch.Generator().manual_seed(0))
    error, std = (truth - field.mean).abs(), field.variance.sqrt()
    rescale = float((error / std).flatten().kthvalue(math.ceil(RESCALED * error.numel())).values)
    mean, most = float(error.mean()), float(error.max())
    return {
        "MSE": float(each.MSE.mean()),
        "CRPS": float(each.CRPS.mean()),
        "energy": float(each.energy.mean()),
        "NLL": -float(each.LL.mean()),
        "coverage_90": float(each.coverage_90.mean()),
        "n_MeRCI": (rescale * float(std.mean()) - mean) / (most - mean),
        "CE": float(each.CE.abs().mean()),
    }


def _alarms(field: Diagonal, x: Tensor, totals: Tensor) -> int:
    """For how many functions `diagnose` finds that b contradicts the prediction at some time."""
    found = [diagnose(field[i], integral(x, totals[i])) for i in range(len(totals))]
    return sum(one.answer == "does not agree" for one in found)


def published() -> dict[str, dict[str, float]]:
    """The lowest CRPS of the published code, of either network and with or without its update."""
    text = (files(__package__) / "published.json").read_text(encoding="utf-8")
    return {name: dict(row) for name, row in json.loads(text).items()}


def fields_of(
    case: Case,
    problem: ClosedForm,
    grids: Grids,
    components: Diagonal,
    calibration: Calibration,
    widths: Widths,
) -> dict[str, Field]:
    """The prediction after each method.

    "no law": the calibrated ensemble. "paper's update": each member as it is, given the total
    exactly. "law" and "law and shape" are those of `conditioned`, the latter with its widths.
    """
    assert grids.totals is not None
    exact = integral(grids.axes[-1], grids.totals)
    ensemble = moments(calibration(components))
    law, shaped = conditioned(case, problem, grids, ensemble)
    return {
        "no law": ensemble,
        "paper's update": moments(Mixture(condition(components, exact))),
        "law": law,
        "law and shape": widths(shaped, components),
    }


def conditioned(
    case: Case, problem: ClosedForm, grids: Grids, ensemble: Diagonal
) -> tuple[Diagonal, Diagonal]:
    """The ensemble after the law, and after law and shape.

    The first: wide enough for b, given the total up to the error of the quadrature rule. The
    second: its mean moved to the nearest that falls in x and stays within the bounds that the
    equation gives, with the same variance.
    """
    x = grids.axes[-1]
    assert grids.totals is not None
    known = integral(x, grids.totals, noise=NOISE * quadrature_noise(ensemble, x))
    wide = inflate(ensemble, known)
    after = condition(wide, known)
    own = torch.Generator(wide.device).manual_seed(0)  # the point does not hang on it
    shape = shape_of(case, problem, grids)
    shaped = condition(wide, known, *shape, draws=2, generator=own).point
    assert shaped is not None
    return Diagonal(after.mean, after.variance), Diagonal(shaped, after.variance)


def moments(components: Diagonal | Mixture) -> Diagonal:
    """Mean and variance of a mixture with members on axis 0."""
    mixture = components if isinstance(components, Mixture) else Mixture(components)
    return Diagonal(mixture.mean, mixture.variance)


def shape_of(case: Case, problem: ClosedForm, grids: Grids) -> tuple[Inequality, ...]:
    """What the equation says of its solutions beside the total.

    They fall in x from the value at the left end to 0; or, for heat, they stay between 0 and the
    initial values, by the maximum principle.
    """
    t, x = grids.axes
    if case.falls:
        left: Tensor = problem[:, None, None].solution(t[:, None], x[:1])
        return monotone(decreasing=True), bounds(0.0, left)
    initial = problem[:, None, None].solution(torch.zeros_like(t[:1, None]), x)
    return (bounds(initial.clamp(max=0), initial.clamp(min=0)),)
