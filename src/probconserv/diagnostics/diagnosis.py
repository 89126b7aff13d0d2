"""What `diagnose` found, in numbers and in words."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ..support import checks as check
from ..support.errors import FAR
from .causes import Cause

Answer: TypeAlias = Literal["agrees", "agrees if shared", "does not agree"]
LEAST_SHARE = 0.25  # of a variance: a share of the quadrature rule that is worth a word
HEADS = ("row", "G mu", "b", "G mu - b", "z own", "z full", "quadrature", "")


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """How b compares with what a prior expects of G u, row by row.

    z is G mu - b in standard deviations. The standard deviations include the noise of the law and,
    as far as that does not cover it, the noise of the quadrature rule; for N members also that of
    their mean, 1 / N of their variance. `diagnose` makes it.

    Attributes
    ----------
    answer : str
        "agrees", "agrees if shared" or "does not agree". The second: b is further off than the
        prior states, and errors that many points share would explain it.
    value : Tensor, shape (..., T) or as the rows of the law are
        b, one for each row. All tensors up to `wrong` have this shape.
    residual : Tensor
        G mu - b.
    std : Tensor
        The standard deviation of G u - b by the covariance that the prior states. For members it
        is that of their totals, without `shrinkage`.
    std_full : Tensor
        The same if the points of the prior are fully correlated.
    z_own, z_full : Tensor
        z with `std` and with `std_full`.
    limit : Tensor
        The largest absolute value of `z_own` that is taken as chance.
    quadrature_share : Tensor
        How much of the variance of `std` the quadrature rule adds; NaN if the law is no
        `integral` over one x.
    wrong : Tensor of bool
        Whether the row does not agree.
    causes : tuple of Cause
        What would make b right, the best first; empty if nothing would.
    mahalanobis : Tensor, shape (...)
        (G mu - b)^T S^-1 (G mu - b) of all rows of a part, with S as `std` has it. As `condition`
        has it, if no part has two members more than rows.
    degrees_of_freedom : Tensor, shape (...)
        How many rows do not follow from others.
    largest_move : float
        How far `condition` would move a point, in its standard deviations.
    members : int or None
        How many members the prior is made of; the fewest, in a state.
    curvature : Tensor
        In `std`, by how much the mean of a law over draws of the prior lies above what the
        prior's mean gives; 0 of linear laws. NaN where draws give NaN or infinity, and the
        tangent at the mean alone stands for the law.
    curved : tuple of str
        The laws that are not linear.
    unjudged : tuple of str
        The inequalities that state no b.
    """

    answer: Answer
    value: Tensor
    residual: Tensor
    std: Tensor
    std_full: Tensor
    z_own: Tensor
    z_full: Tensor
    limit: Tensor
    quadrature_share: Tensor
    wrong: Tensor
    causes: tuple[Cause, ...]
    mahalanobis: Tensor
    degrees_of_freedom: Tensor
    largest_move: float
    members: int | None
    curvature: Tensor
    curved: tuple[str, ...]
    unjudged: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """The answer in words: how far b lies, what is the matter, and what to do."""
        rows = _rows(self.wrong.numel())
        notes = "".join(f" {note}" for note in (self._about_curves(), self._left_out()) if note)
        if self.answer == "does not agree":
            return f"b does not agree with the prior{self._where()}: {self._why()}.{notes}"
        if self.answer == "agrees":
            most = f"at most {_largest(self.z_own)} standard deviations"
            text = f"b agrees with the prior: in {rows} G mu - b is {most}."
        else:
            text = f"{self._how_far()} {self._what_to_do()}"
        return f"{text} {self._about_quadrature()}".rstrip() + notes

    def _where(self) -> str:
        wrong, rows = int(self.wrong.sum()), self.wrong.numel()
        return f" in {wrong} of {_rows(rows)}" if wrong else f": of {_rows(rows)} {self._jointly()}"

    def _jointly(self) -> str:
        worst = self.mahalanobis.flatten().argmax()
        square, count = (x.flatten()[worst] for x in (self.mahalanobis, self.degrees_of_freedom))
        return (
            "each may be right by itself, but not all together (Mahalanobis square "
            f"{square:.3g} on {count:.0f} degrees of freedom)"
        )

    def _how_far(self) -> str:
        by = "by the stated variances"
        by = by if self.members is None else f"by the spread of {self.members} members"
        beyond = bool((self.z_own.abs() > self.limit.clamp_max(FAR)).any())
        return (
            "b agrees with the prior only if the errors of many points are shared: in "
            f"{_rows(self.wrong.numel())} G mu - b is up to {_largest(self.z_own)} standard "
            f"deviations {by}, and up to {_largest(self.z_full)} if all points err together."
            + ("" if beyond else f" Of these {self._jointly()}.")
        )

    def _what_to_do(self) -> str:
        if self.members is not None:
            do = "So few members cannot rule it out: take more, or widen them with `inflate`."
        else:
            do = (
                "If they are, say so: give members as an `Ensemble`, with "
                "`LowRank.correlated`, or widen the prior with `inflate`."
            )
        return f"{do} If not, b is wrong{': ' * bool(self.causes)}{self._named_causes()}."

    def _about_curves(self) -> str:
        if not self.curved:
            return ""
        if bool(self.curvature.isnan().any()):
            return (
                f"{_quoted(self.curved)} cannot be computed for all draws of the prior, and is "
                "judged by its slope at the mean."
            )
        return (
            f"What the prior expects of {_quoted(self.curved)} comes from draws: their mean is up "
            f"to {_largest(self.curvature)} standard deviations from what the prior's mean gives."
        )

    def _left_out(self) -> str:
        return f"{_quoted(self.unjudged)} had no part in this." if self.unjudged else ""

    def table(self, rows: int = 20) -> str:
        """A table in Markdown of the `rows` rows with the largest z, in their order."""
        worst = self.z_own.abs().flatten().argsort(descending=True, stable=True)
        numbers = sorted(worst[: check.samples(rows, "rows")].tolist())
        lines = ["| " + " | ".join(HEADS) + " |", "|---" * len(HEADS) + "|"]
        return "\n".join([*lines, *(f"| {' | '.join(self._cells(i))} |" for i in numbers)])

    def _cells(self, number: int) -> list[str]:
        columns = (self.value + self.residual, self.value, self.residual)
        share = float(self.quadrature_share.flatten()[number])
        return [
            _name(self.wrong.shape, number),
            *(f"{column.flatten()[number]:.4g}" for column in columns),
            *(f"{score.flatten()[number]:.1f}" for score in (self.z_own, self.z_full)),
            "unknown" if share != share else f"{share:.0%}",
            "wrong" if self.wrong.flatten()[number] else "",
        ]

    def _why(self) -> str:
        if self.causes:
            return self._named_causes()
        return (
            "no factor, shift in time or constant explains it. Check b, and that the prior is of "
            "the same quantity and grid, and not too sure"
        )

    def _named_causes(self) -> str:
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
            "quadrature rule: give the law `noise=diagnostics.quadrature_noise(prior, x)`."
        )


def _largest(z: Tensor) -> str:
    return f"{float(z.abs().max()) if z.numel() else 0.0:.1f}"


def _quoted(labels: tuple[str, ...]) -> str:
    return " and ".join(f"`{label}`" for label in labels)


def _rows(count: int) -> str:
    return f"{count} row{'s' * (count != 1)}"


def _name(shape: torch.Size, number: int) -> str:
    """A row as its index: 3, or (1, 3) with a batch."""
    if len(shape) < 2:
        return str(number)
    return f"({', '.join(str(int(i)) for i in torch.unravel_index(torch.tensor(number), shape))})"
