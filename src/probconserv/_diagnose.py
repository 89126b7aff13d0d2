"""Is b right? What a prior expects of G u, beside b, row by row.

A row looks wrong when |G mu - b| is beyond `LIMIT` standard deviations with the points of the prior
taken as fully correlated, sum_j |g_j| s_j: no covariance with these spreads makes G u less certain.
Independent points would not do, since neighbours share the errors of a model: under them the right
b is often 10 standard deviations off.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from . import _checks as check
from ._causes import Cause, Rows
from ._constraints import Constraint, Weighted, check_law
from ._convert import as_field
from ._fields import Diagonal, Field, LowRank
from ._given import UNMET
from ._mixture import Mixture
from ._noise import quadrature_noise

MUCH = 0.25  # of a variance: a share of the quadrature rule that is worth a word
HEADS = ("row", "G mu", "b", "G mu - b", "z independent", "z own", "z full", "quadrature", "")


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """How b compares with what a prior expects of G u, row by row.

    z is G mu - b in standard deviations. These count the noise of the law and, as far as that does
    not cover it, the noise of the quadrature rule.
    """

    value: Tensor  # b, (*batch, T) or as the rows of the law are; so is all that follows
    residual: Tensor  # G mu - b
    std: Tensor  # of G u - b, if the points of the prior are fully correlated
    z_independent: Tensor  # if they are independent
    z_own: Tensor  # with the prior's own covariance, as `condition` takes it
    z_full: Tensor  # if they are fully correlated; the verdict goes by this
    quadrature_share: Tensor  # of the variance of `z_own`; NaN if the law is no `integral` of one x
    wrong: Tensor  # whether the row looks wrong
    causes: tuple[Cause, ...]  # what would make b right, the best first; empty if nothing would

    @property
    def verdict(self) -> str:
        """Whether b agrees with the prior, and if not what is the matter, in words."""
        wrong, rows = int(self.wrong.sum()), self.wrong.numel()
        if not wrong:
            worst = float(self.z_full.abs().max()) if rows else 0.0
            return (
                f"b agrees with the prior: in {_rows(rows)} G mu - b is at most {worst:.1f} "
                f"standard deviations. {self._about_quadrature()}"
            ).rstrip()
        return f"b does not agree with the prior in {wrong} of {_rows(rows)}: {self._why()}."

    def table(self, rows: int = 20) -> str:
        """The `rows` rows with the largest |z|, in their order, as a table in Markdown."""
        worst = self.z_full.abs().flatten().argsort(descending=True, stable=True)
        numbers = sorted(worst[: check.samples(rows, "rows")].tolist())
        lines = ["| " + " | ".join(HEADS) + " |", "|---" * len(HEADS) + "|"]
        return "\n".join([*lines, *(f"| {' | '.join(self._cells(i))} |" for i in numbers)])

    def _cells(self, number: int) -> list[str]:
        columns = (self.value + self.residual, self.value, self.residual)
        scores = (self.z_independent, self.z_own, self.z_full)
        share = float(self.quadrature_share.flatten()[number])
        return [
            _name(self.wrong.shape, number),
            *(f"{column.flatten()[number]:.4g}" for column in columns),
            *(f"{score.flatten()[number]:.1f}" for score in scores),
            "unknown" if share != share else f"{share:.0%}",
            "wrong" if self.wrong.flatten()[number] else "",
        ]

    def _why(self) -> str:
        if not self.causes:
            return (
                "no factor, shift in time or constant explains it. Check b, and that the prior is "
                "of the same quantity and grid"
            )
        return "; or ".join(
            f"check {self._wrong_rows()} (the others agree)" if cause.kind == "rows" else str(cause)
            for cause in self.causes
        )

    def _wrong_rows(self, most: int = 8) -> str:
        wrong = self.wrong.flatten().nonzero().flatten().tolist()
        names = ", ".join(_name(self.wrong.shape, number) for number in wrong[:most])
        more = f" and {len(wrong) - most} more" if len(wrong) > most else ""
        return f"row{'s' * (len(wrong) > 1)} {names}{more}"

    def _about_quadrature(self) -> str:
        share = float(self.quadrature_share.mean())
        if share != share:
            return "What the quadrature rule adds to this law is not known."
        if share < MUCH:
            return ""
        return (
            f"{share:.0%} of the variance that `condition` would need is the error of the "
            "quadrature rule: give the law `noise=quadrature_noise(prior, x)`."
        )


@torch.no_grad()
def diagnose(prior: Any, law: Constraint) -> Diagnosis:
    """Whether b of a law is right, judged by what a prior expects: see `.verdict`, `.table()`.

    prior: any field, or what `as_field` takes, before `condition`. law: one constraint.

    >>> import probconserv as pc
    >>> x, t = torch.linspace(0, 1, 5).double(), torch.linspace(1, 2, 6).double()
    >>> prior = pc.Diagonal(t[:, None] * (1 + x), 0.0001)
    >>> print(diagnose(prior, pc.integral(x, 1500 * t)).verdict)  # in grams, not in kilograms
    b does not agree with the prior in 6 of 6 rows: b is about 1000 times what the prior says, \
check its units.
    """
    check_law(law)
    field = as_field(prior)
    law = law._beside(field.device)
    check.same_device(f"value of {law.label}", law.value.device, "the prior", field.device)
    points = Diagonal._unchecked(field.mean.double(), field.variance.double().clamp_min(0))
    check.finite("mean of the prior", points.mean)
    check.finite("variance of the prior", points.variance)
    total, residual = law.apply(points.mean), law.residual(points)
    noise, rule = law.noise_variance.double(), _variance_of_rule(points, law, residual)
    beyond = (rule - noise).clamp_min(0)  # NaN where the rule is not known
    known = noise + beyond.nan_to_num(0)
    own, full = _own_variance(field, law) + known, law.magnitude(points.std) ** 2 + known
    value = law.value.double().expand(total.shape)
    small = max(UNMET, 100 * torch.finfo(field.dtype).eps)
    slack = small * (law.magnitude(points.mean) + value.abs())
    timed = not law.timeless and not law.row_names and total.ndim > 0
    rows = Rows(total, value, full.sqrt(), slack, timed)
    return Diagnosis(
        value=value,
        residual=residual,
        std=rows.std,
        z_independent=rows.z((law.squares(points.variance) + known).sqrt()),
        z_own=rows.z(own.sqrt()),
        z_full=rows.z(rows.std),
        quadrature_share=torch.where(own > 0, beyond / own, 0 * beyond),
        wrong=rows.wrong,
        causes=rows.causes() if bool(rows.wrong.any()) else (),
    )


def _variance_of_rule(points: Diagonal, law: Constraint, residual: Tensor) -> Tensor:
    """Of the quadrature's error, for each row; NaN where the law does not say its rule."""
    if not isinstance(law, Weighted) or law.quadrature is None:
        return torch.full_like(residual, torch.nan)
    x, rule = law.quadrature
    noise = quadrature_noise(points, x.to(points.mean), rule)
    return law.at_times(noise, points.shape) ** 2


def _own_variance(field: Field, law: Constraint) -> Tensor:
    """The diagonal of G Sigma G^T, one entry per row."""
    parts = _parts(field, law.space_dims)
    if parts is None:
        return _variance_by_rows(field, law).clamp_min(0)
    factor, variance = parts
    return law.squares(variance) + law.apply(factor).square().sum(0)


def _parts(field: Field, dims: int) -> tuple[Tensor, Tensor] | None:
    """Shared directions (rank, *shape) and a variance of the rest that make Sigma over `dims` axes.

    None for a field that is not made so.
    """
    if isinstance(field, Diagonal):
        return field.mean[None][:0], field.variance
    if isinstance(field, LowRank):
        return (field.factor, field.residual.variance) if field.event_dims >= dims else None
    if not isinstance(field, Mixture) or field.event_dims < dims:
        return None
    inner = _parts(field.components, dims)
    if inner is None:
        return None
    factor, variance = inner
    root = field._wide.sqrt()
    between = root * (field.components.mean - field.mean)
    return torch.cat([between, (root * factor).flatten(0, 1)]), (field._wide * variance).sum(0)


def _variance_by_rows(field: Field, law: Constraint) -> Tensor:
    """For each row by itself; rows that are independent of each other together."""
    shape = law._row_shape(field.shape)
    joint = 0 if law.timeless else max(field.event_dims - law.space_dims, 0)
    axes = shape[len(shape) - min(joint + len(law.row_names), len(shape)) :]
    variance = torch.zeros(shape, dtype=torch.float64, device=field.device)
    for index in product(*map(range, axes)):
        at: Any = (..., *index)
        row = torch.zeros_like(variance)
        row[at] = 1
        along = field.covariance_times(law.adjoint(row, field.shape).to(field.dtype))
        variance[at] = law.apply(along)[at]
    return variance


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"


def _name(shape: torch.Size, number: int) -> str:
    """A row as its index: 3, or (1, 3) with a batch."""
    if len(shape) < 2:
        return str(number)
    return f"({', '.join(str(int(i)) for i in torch.unravel_index(torch.tensor(number), shape))})"
