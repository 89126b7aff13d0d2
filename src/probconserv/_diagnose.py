"""Is b right? What a prior expects of G u, beside b, row by row.

A row looks wrong when |G mu - b| is beyond `LIMIT` standard deviations with the points of the prior
taken as fully correlated, sum_j |g_j| s_j: no covariance with these spreads makes G u less certain.
Independent points would not do, since neighbours share the errors of a model: under them the right
b is often 10 standard deviations off.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import _checks as check
from ._audit import largest_move
from ._causes import Cause, Comparison
from ._condition import solved
from ._dense import Dense
from ._draws import StateDraws
from ._errors import FAR, InputError
from ._fields import Diagonal, Field, LowRank
from ._laws import Law, check_laws
from ._mixture import Mixture
from ._noise import quadrature_noise
from ._posterior import StatePosterior
from ._rowwise import UNMET
from ._solvers.covariances import Correlated, Independent, expanded
from ._state import Prediction, State, as_field

LEAST_SHARE = 0.25  # of a variance: a share of the quadrature rule that is worth a word
HEADS = ("row", "G mu", "b", "G mu - b", "z independent", "z own", "z full", "quadrature", "")


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """How b compares with what a prior expects of G u, row by row.

    z is G mu - b in standard deviations. The standard deviations include the noise of the law and,
    as far as that does not cover it, the noise of the quadrature rule. `diagnose` makes it.

    Attributes
    ----------
    value : Tensor, shape (..., T) or as the rows of the law are
        b, one for each row. All tensors up to `wrong` have this shape.
    residual : Tensor
        G mu - b.
    std : Tensor
        The standard deviation of G u - b, if the points of the prior are fully correlated.
    z_independent : Tensor
        z if the points are independent.
    z_own : Tensor
        z with the prior's own covariance, as `condition` takes it.
    z_full : Tensor
        z if the points are fully correlated. The verdict uses this one.
    quadrature_share : Tensor
        How much of the variance of `z_own` the quadrature rule adds; NaN if the law is no
        `integral` over one x.
    wrong : Tensor of bool
        Whether the row looks wrong.
    causes : tuple of Cause
        What would make b right, the best first; empty if nothing would.
    mahalanobis : Tensor, shape (...)
        (G mu - b)^T S^-1 (G mu - b) of all rows, as `condition` takes it.
    degrees_of_freedom : Tensor, shape (...)
        How many rows do not follow from others.
    largest_move : float
        How far `condition` would move a point, in its standard deviations.
    far : bool
        Whether `condition` would move the field further than its covariance allows.
    """

    value: Tensor
    residual: Tensor
    std: Tensor
    z_independent: Tensor
    z_own: Tensor
    z_full: Tensor
    quadrature_share: Tensor
    wrong: Tensor
    causes: tuple[Cause, ...]
    mahalanobis: Tensor
    degrees_of_freedom: Tensor
    largest_move: float
    far: bool

    @property
    def verdict(self) -> str:
        """Whether b agrees with the prior, and if not what is the matter, in words."""
        wrong, rows = int(self.wrong.sum()), self.wrong.numel()
        if wrong:
            return f"b does not agree with the prior in {wrong} of {_rows(rows)}: {self._why()}."
        if self.far:
            text = f"b does not agree with the covariance of the prior: {self._how_far()}"
        else:
            worst = float(self.z_full.abs().max()) if rows else 0.0
            most = f"at most {worst:.1f} standard deviations"
            text = f"b agrees with the prior: in {_rows(rows)} G mu - b is {most}."
        return f"{text} {self._about_quadrature()}".rstrip()

    def _how_far(self) -> str:
        worst = self.mahalanobis.argmax() if self.mahalanobis.ndim else 0
        square = float(self.mahalanobis.flatten()[worst])
        return (
            f"`condition` would move a point by {self.largest_move:.3g} of its standard deviations "
            f"(joint Mahalanobis square {square:.3g} on "
            f"{int(self.degrees_of_freedom.flatten()[worst])} degrees of freedom). Each row by "
            "itself is possible if all points err together: widen the prior with `plausible`, give "
            "the laws `noise`, or an ensemble more `shrinkage`."
        )

    def table(self, rows: int = 20) -> str:
        """A table in Markdown of the `rows` rows with the largest z, in their order."""
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
        if share < LEAST_SHARE:
            return ""
        return (
            f"{share:.0%} of the variance that `condition` would need is the error of the "
            "quadrature rule: give the law `noise=quadrature_noise(prior, x)`."
        )


@torch.no_grad()
def diagnose(prior: Prediction | State, *laws: Law) -> Diagnosis:
    """Whether b of the laws is right, judged by what a prior expects.

    `Diagnosis.verdict` is the answer in words, `Diagnosis.table` has the rows.

    Parameters
    ----------
    prior : Field, State, or what `as_field` takes
        Any field or state before `condition`.
    *laws : Law
        One or more. The rows of several stand one after the other.

    Returns
    -------
    Diagnosis
        b and the prior side by side, and what would explain a difference.

    Raises
    ------
    InputError
        If there is no law, or a mean or variance of the prior is not finite.

    Examples
    --------
    >>> import probconserv as pc
    >>> x, t = torch.linspace(0, 1, 5).double(), torch.linspace(1, 2, 6).double()
    >>> prior = pc.Diagonal(t[:, None] * (1 + x), 0.0001)
    >>> print(diagnose(prior, pc.integral(x, 1500 * t)).verdict)  # in grams, not in kilograms
    b does not agree with the prior in 6 of 6 rows: b is about 1000 times what the prior says, \
check its units.
    """
    check_laws(laws)
    if isinstance(prior, StatePosterior | StateDraws):
        raise InputError("`prior` must be a state before `condition`: judge all laws at once.")
    given = prior if isinstance(prior, State) else _plain(as_field(prior))
    points = {}
    for name, field in zip(given.names, given.parts, strict=True):
        mean, variance = field._moments()
        check.finite("mean of the prior", mean)
        check.finite("variance of the prior", variance)
        points[name] = Diagonal._unchecked(mean, variance.clamp_min(0))
    joint, rounding = solved(given, laws, audit=False), rounding_of(given.parts)
    found = [by_row(law.to(given.device), points, joint.way.root, rounding) for law in laws]
    rows = {name: _side_by_side([each[name] for each in found]) for name in found[0]}
    slack = rows.pop("slack")
    causes: tuple[Cause, ...] = ()
    if len(laws) == 1 and bool(rows["wrong"].any()):
        timed = not laws[0].is_initial and not laws[0].row_names and slack.ndim > 0
        total = rows["value"] + rows["residual"]
        causes = Comparison(total, rows["value"], rows["std"], slack, timed).causes()
    move, count = largest_move(joint.mean, [*points.values()]), joint.way.count(joint.lead)
    tied = not all(isinstance(field, Diagonal) for field in given.parts)  # else nobody believes it
    return Diagnosis(
        **rows,
        causes=causes,
        mahalanobis=joint.square,
        degrees_of_freedom=count,
        largest_move=move,
        far=move > FAR or (tied and bool((joint.square > FAR**2 * count).any())),
    )


def rounding_of(fields: Sequence[Field]) -> float:
    """What rounding may make of a row, as a share of its terms."""
    return max(UNMET, *(100 * torch.finfo(field.dtype).eps for field in fields))


def by_row(
    law: Law, points: dict[str, Diagonal], covariance: Independent | Correlated, rounding: float
) -> dict[str, Tensor]:
    """What the prior expects of each row of one law.

    points: the fields by name, taken as independent. covariance: with parts that no row joins, as
    `solve` has it. rounding: as `rounding_of` says.
    """
    std = {name: field.std for name, field in points.items()}
    variance = {name: field.variance for name, field in points.items()}
    total, residual = law.apply(points), law.residual(points)
    noise, rule = law.noise_variance, _variance_of_rule(law, points, residual)
    beyond = (rule - noise).clamp_min(0)  # NaN where the rule is not known
    known = noise + beyond.nan_to_num(0)
    own = _own_variance(law, tuple(points), covariance) + known
    full = law.magnitude(std) ** 2 + known
    value = law.value.expand(total.shape)
    slack = rounding * (law.magnitude(points) + value.abs())
    rows = Comparison(total, value, full.sqrt(), slack, False)
    return {
        "value": value,
        "residual": residual,
        "std": rows.std,
        "z_independent": rows.z((law.squares(variance) + known).sqrt()),
        "z_own": rows.z(own.sqrt()),
        "z_full": rows.z(rows.std),
        "quadrature_share": torch.where(own > 0, beyond / own, 0 * beyond),
        "wrong": rows.wrong,
        "slack": slack,
    }


def _variance_of_rule(law: Law, points: dict[str, Diagonal], residual: Tensor) -> Tensor:
    """Of the quadrature's error, for each row; NaN where the law does not say its rule."""
    if law.quadrature is None:
        return torch.full_like(residual, torch.nan)
    (name,) = law._named(tuple(points))
    x, rule = law.quadrature
    noise = quadrature_noise(points[name], x.to(points[name].mean), rule)
    return law.at_times(noise, points[name].shape) ** 2


def _own_variance(law: Law, names: Sequence[str], covariance: Independent | Correlated) -> Tensor:
    """The diagonal of G Sigma G^T, one entry per row."""
    if isinstance(covariance, Independent):
        return law.squares(dict(zip(names, covariance.variance, strict=True)))
    along = dict(zip(names, covariance.directions, strict=True))  # no row reads two of its parts
    shared = law.apply(along).square().sum(0)
    rest = covariance.rest
    return shared if rest is None else shared + _own_variance(law, names, rest)


def _side_by_side(each: list[Tensor]) -> Tensor:
    return each[0] if len(each) == 1 else torch.cat([t.flatten() for t in each])


def _plain(field: Field) -> Field:
    """A Diagonal, LowRank or Dense field with the same mean and covariance."""
    if isinstance(field, Diagonal | LowRank | Dense):
        return field
    parts = field.components if isinstance(field, Mixture) else None
    if isinstance(field, Mixture) and isinstance(parts, Diagonal | LowRank):
        mean, weights = field._moments()[0], field._wide(field.log_weights.exp())
        directions, own = weights.sqrt() * (parts.mean - mean), parts.variance
        if isinstance(parts, LowRank):
            each = expanded(parts.factor.double(), parts.event_dims, field.event_dims)
            each, own = (weights.sqrt() * each).flatten(0, 1), parts.rest
            directions = torch.cat([directions, each])
        return LowRank(mean, directions, (weights * own).sum(0), field.event_dims)
    mean, dims = field.mean.double(), max(field.event_dims, 1)
    return Dense(mean, field.covariance().double(), dims)


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"


def _name(shape: torch.Size, number: int) -> str:
    """A row as its index: 3, or (1, 3) with a batch."""
    if len(shape) < 2:
        return str(number)
    return f"({', '.join(str(int(i)) for i in torch.unravel_index(torch.tensor(number), shape))})"
