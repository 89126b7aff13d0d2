"""What Step 2 sums over blocks of points, for fields that are never seen as a whole.

    statistics   G mu, G F^T, G D G^T         sums of every block, added up
    solve        S lambda = b - G mu          with S = G (F^T F + diag(D)) G^T + sigma^2
    update       mu + F^T z + D G^T lambda    block by block, with z = F G^T lambda
    settle       the same for what exact rows still miss, where rows are nearly dependent

Here are the two kinds of field, and the solve where S is a number for each row, without torch,
whose import takes longer. The other solves are in `sums_solve.py`. Whoever has the blocks makes
the sums and the update. I is the number of indices (times, say) that
no law ties together, K that of the rows of all laws.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..support.errors import InfeasibleError, InputError
from ..support.rowwise import solved_by_row
from ..support.tolerances import EASY, ROUNDED, UNMET

SLACK = 16  # times the rounding of the input, as a share of a row's terms, is no contradiction

MOVES = ("along", "mixing", "latent", "independent")  # one after the other, on axis 1

STUCK = {  # why a total is not met, and what to do, by the way that points move
    "uniform": ("no point can move there", "laws that agree, or `noise` for them and `std`"),
    "proportional": (
        "`how` 'proportional' multiplies values, and all are 0 there",
        "`how` 'uniform', or another total",
    ),
    "variance": ("the standard deviations leave nothing to move there", "more spread, `noise`"),
    "members": (
        "the members' spread leaves nothing to move there",
        "more members, `shrinkage`, `noise`",
    ),
}

Array = NDArray[Any]
Sums = Mapping[str, Array]  # under names, with the indices on axis 0
How = Literal["variance", "uniform", "proportional"]


@dataclass(frozen=True)
class MeanAndStd:
    """Fields given as mean and standard deviation, each with one correlation of any two points.

    That is F = sqrt(correlation) std, one row for each variable, and D = (1 - correlation) d, where
    d of a point with weight g in its row is

        std^2            if every point has a standard deviation of its own
        std^2 m / |g|    if one number is given: errors are alike per unit of area
        m / |g|          for `how` uniform: all points of a row move alike
        |mean| m / |g|   for `how` proportional: all values of a row are multiplied alike

    with the mean m of |g|. The last two know nothing of uncertainty.
    """

    laws: tuple[str, ...]  # of each row, its name
    disjoint: bool  # one law: no point is in two of its rows
    correlation: float = 0.0
    rounding: float = 0.0  # of the input, relative
    how: How = "variance"
    variables: int = 1

    @property
    def knows_std(self) -> bool:
        return self.how == "variance"

    @property
    def is_rowwise(self) -> bool:
        """Whether S is a number for each row."""
        return self.disjoint and not self.correlation


@dataclass(frozen=True)
class Ensemble:
    """A field given as N members, (N, I, P).

    Sigma is their covariance, mixed with one common correlation, see `shrinkage.py`: F are the
    deviations from the mean over sqrt(N - 1), times sqrt(1 - a), and one more row, the standard
    deviation times sqrt(a c); D is the variance times a (1 - c). Every member is moved by its own
    residual, see `sums_solve.py`. Without a `shrinkage` it is found for each index.
    """

    laws: tuple[str, ...]
    disjoint: bool
    members: int
    shrinkage: float | None
    rounding: float = 0.0


Kind = MeanAndStd | Ensemble


def solved_rows(kind: MeanAndStd, sums: Sums, value: Array, noise: Array) -> dict[str, Array]:
    """What the update needs, for a kind that is rowwise; value, noise: b and its std, (I, 1, K)."""
    value, noise = value[:, 0], noise[:, 0]
    matrix, inverse = solved_by_row(sums["gram"], np.square(noise))
    residual = np.where(sums["size"] > 0, value - sums["total"][:, 0], 0.0)
    along = residual * inverse
    check_met(kind, np.abs(residual - matrix * along), np.abs(value), sums)
    exact = ((noise == 0) & (inverse > 0)).any(-1)
    least = np.where(exact, ROUNDED, 0.0)
    return {"along": along[:, None], "inverse": inverse, "least": least}


def is_hard(least: Any) -> Any:
    """Whether rows are so nearly dependent that exact ones miss by more than rounding."""
    return least > ROUNDED / EASY


def check_met(kind: Kind, missed: Any, value: Any, sums: Mapping[str, Any]) -> None:
    """Rows that nothing can move must hold already; arrays or tensors, (I, K)."""
    size = sums["terms"] + sums["spread"] + value
    slack = max(UNMET, SLACK * kind.rounding) * size
    wrong = np.asarray(~(missed <= slack) & (sums["size"] > 0))
    if wrong.any():
        index, row = np.argwhere(wrong)[0].tolist()
        stuck, way = STUCK[kind.how if isinstance(kind, MeanAndStd) else "members"]
        error = InfeasibleError(
            f"{int(wrong.sum())} totals cannot be met, the first of `{kind.laws[row]}`, by "
            f"{float(missed[index, row]):.3g}: {stuck}, or laws contradict each other. Ways out: "
            f"{way}."
        )
        error._place = index, row
        raise error


def check_usable(sums: Sums) -> None:
    """Refuse infinite values and what is no standard deviation."""
    _refuse(
        ~np.isfinite(sums["terms"]),
        "the field or a factor has infinite values. Missing ones are NaN or _FillValue.",
    )
    _refuse(
        (sums["negative"][..., None] > 0) | ~np.isfinite(sums["spread"]),
        "`std` is negative, infinite or missing at points that have a mean. It is a standard "
        "deviation, at every point of the field.",
    )


def _refuse(wrong: Array, message: str) -> None:  # (*index, K)
    if wrong.any():
        error = InputError(message)
        error._place = (*np.argwhere(wrong.reshape(-1, wrong.shape[-1]))[0].tolist(),)
        raise error
