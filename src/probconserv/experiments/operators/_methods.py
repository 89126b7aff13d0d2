"""What is done with the prediction of an ensemble: nothing, the paper's update, or ours."""

import torch
from torch import Tensor

from ...conditioning.condition import condition
from ...data import Grids
from ...diagnostics.inflate import inflate
from ...diagnostics.noise import quadrature_noise
from ...fields.gaussian import Diagonal, Field
from ...fields.mixture import Mixture
from ...laws.inequalities import Inequality, bounds, monotone
from ...laws.sums import integral
from ...models._calibrate import Calibration, Widths
from ...problems import ClosedForm
from ._cases import Case

METHODS = ("no law", "paper's update", "law", "law and shape")
NOISE = 2.0  # times the error of the quadrature rule, chosen on the functions held out


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
