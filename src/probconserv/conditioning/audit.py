"""What must hold of a posterior, looked at after the solve; and what is not plausible."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..fields.covariances import Correlated, Fields, Independent, shared_axes
from ..fields.gaussian import Field
from ..fields.mixture import Mixture
from ..laws.law import Rows
from ..solvers.engine import Chain
from ..solvers.factor import Factor
from ..solvers.joint import Joint
from ..solvers.shared import Shared
from ..support.checks import concrete, numbers, unravelled
from ..support.errors import FAR, InfeasibleError, warn_implausible
from ..support.slices import by_slices
from ..support.tolerances import EASY, FOLLOWS, HOLDS, SETTLED, TINY, UNMET, WEIGHED
from .unmeasured import Way

LEAST_NUMBER = 2.0  # of components that should still count
LEAST_OF_ALL = 0.1  # of the components, where they are many
LEAST_OF_TWO = 1.1  # of two components: the lesser one has 5 %
MOST_DECIMALS = 9  # of values that were written down
NOT_WEIGHED = (
    "rows with hardly any `noise` contradict each other, or the prior is so wide beside the "
    "`noise`, or numbers are so large, that float64 cannot weigh them. Give the laws more `noise`, "
    "the prior less variance, or leave out laws that repeat others."
)
CONTRADICTED = 16 * torch.finfo(torch.float32).eps  # the most that values of other rows are rounded


def misses(laws: Sequence[Rows], *fields: Fields) -> list[tuple[Tensor, Tensor]]:
    """|G u - b| of the exact rows of each law, and the size of their terms in all fields given."""
    return [(_miss(rows, fields[0]), _size(rows, *fields)) for rows in laws]


def _miss(rows: Rows, u: Fields) -> Tensor:
    miss = rows.residual(u).abs()
    return miss if rows.exact else miss * (rows.noise_variance == 0)


def _size(rows: Rows, *fields: Fields) -> Tensor:
    sizes, size = rows.entrywise(1), rows.value.abs()
    for one in fields:
        size = size + sizes.apply(tuple(x.abs() for x in one))
    return size


def settled(way: Way, u: Fields, laws: Sequence[Rows]) -> tuple[Fields, bool]:
    """`u` with the rounding taken off its exact rows; and whether these are seen to hold."""
    if not concrete(*u):
        return (u if way.is_simple else way.settle(u)), True
    if way.is_iterative:  # it looks at every row itself
        return u, True
    for _ in range(4):
        if exact_rows_hold(laws, u):
            return u, True
        u = way.settle(u)
    return u, False


def plainly_fine(way: Way, laws: Sequence[Rows], u: Fields, residuals: Sequence[Tensor]) -> bool:
    """Whether one look shows that all rows hold and that no point moves far.

    For exact rows that do not see each other: u = mu - D G^T lambda is finite where lambda and G u
    are. A GPU is waited for once.
    """
    if not way.is_simple or not all(map(Tensor.numel, u)):
        return False
    ends = [way.square(residuals, way.lead).max()]
    for rows in laws:
        if not rows.exact:
            return False
        ends += (rows.apply(u) / rows.value - 1).aminmax()
    far, *found = numbers(*ends)
    if not far <= FAR**2:
        return False
    for share in found:
        if not abs(share) <= SETTLED:
            return exact_rows_hold(laws, u)
    return True


def exact_rows_hold(laws: Sequence[Rows], u: Fields, share: float = SETTLED) -> bool:
    """Whether no exact row misses by more than a share of b or, if need be, of all its terms."""
    for rows in filter(_has_exact, laws):
        miss = _miss(rows, u)
        some = ~(miss <= share * rows.value.abs())
        if not bool(some.any()):
            continue
        if not bool((miss[some] <= share * _size_of_some(rows, u, some)).all()):
            return False
    return True


def _size_of_some(rows: Rows, u: Fields, some: Tensor) -> Tensor:
    """As `_size`; with the same weights at every place, only these rows are summed."""
    m = rows.map
    if len(u) == 1 and m.is_shared_sum:
        terms = m.entrywise(1).apply(u[0][some].abs())
        return terms + rows.value.expand(some.shape)[some].abs()
    return _size(rows, u).expand(some.shape)[some]


def _has_exact(rows: Rows) -> bool:
    noise = rows.noise_variance
    return rows.exact or (bool(noise.numel()) and float(noise.detach().min()) == 0)


@torch.no_grad()
def check_met(
    laws: tuple[Rows, ...], u: Fields, before: Fields, root: Independent | Correlated, slack: float
) -> None:
    """Every exact row holds.

    slack: what the rounding of the input may leave, as a share of a row's terms.
    """
    if exact_rows_hold(laws, u, UNMET):
        return
    std = tuple(v.sqrt() for v in root.variance)
    exact = [*filter(_has_exact, laws)]
    for rows, (miss, size) in zip(exact, misses(exact, u, before), strict=True):
        spread = _size(rows, std)
        miss = (miss - HOLDS * spread).clamp_min(0)  # what may move far is rounded as far
        worst = torch.where(miss == 0, 0.0, miss / torch.where(size > 0, size, 1.0))
        worst = torch.where(worst.isnan(), torch.inf, worst)
        own = rows.entrywise(2).apply(root.variance)
        _check_range(rows, spread.square() == torch.inf, "more", "smaller")
        _check_range(rows, (own > 0) & (own <= TINY) & (worst > UNMET), "less", "larger")
        if bool((worst > max(UNMET, min(slack, CONTRADICTED))).any()):
            index = unravelled(int(worst.argmax()), worst.shape)
            others, made_of = _decided_by(laws, rows, index, root)
            if others or bool((worst > max(UNMET, slack)).any()):
                why = _by_decimals(made_of, float(miss[tuple(index)]))
                raise InfeasibleError(_explained(rows, miss, worst, index, others, why))


def _check_range(rows: Rows, lost: Tensor, amount: str, way_out: str) -> None:
    if bool(lost.any()):
        raise InfeasibleError(
            f"the variance of a row of `{rows.label}` is {amount} than float64 can hold. Give the "
            f"field, or the law, in units in which numbers are {way_out}."
        )


@torch.no_grad()
def check_weighed(laws: tuple[Rows, ...], u: Fields, way: Way, residuals: Sequence[Tensor]) -> None:
    """Noisy rows are weighed right, and nothing is NaN."""
    right = all(math.isfinite(x.sum()) or bool(x.isfinite().all()) for x in u)
    off = way.weighed(u, residuals) if right and isinstance(way, Chain | Shared) else None
    if off is not None:  # by more than rounding
        terms = sum(float(size.amax()) for rows in laws if (size := _size(rows, u)).numel())
        right = bool((off.abs() <= WEIGHED * (residuals[-1].abs().amax() + WEIGHED * terms)).all())
    if not right:
        raise InfeasibleError(NOT_WEIGHED)


@torch.no_grad()
def warn_if_far(square: Tensor | None, moved: Fields, prior: Sequence[Field]) -> None:
    """A move of a point, in its standard deviations, is at most the square root of `square`."""
    if square is not None and (not square.numel() or float(square.max()) <= FAR**2):
        return
    warn_of_move(largest_move(moved, prior))


def warn_of_move(far: float) -> None:
    """far: the largest move of a point, in its standard deviations."""
    if far > FAR:
        warn_implausible(
            f"the laws move a point by {far:.3g} of its standard deviations. Either b is wrong "
            "(see `diagnose`), or the field is surer than it should be: widen it with `inflate`, "
            "give the laws `noise`, or an ensemble more `shrinkage`."
        )


def slack_of(fields: Sequence[Field], laws: Sequence[Rows]) -> float:
    """What the rounding of fields and values may leave of an exact row, as a share of its terms."""
    most = 0.0
    for field in fields:
        most = max(most, torch.finfo(field.dtype).eps)
    for rows in laws:
        most = max(most, rows.rounding)
    return 16 * most


@torch.no_grad()
def warn_if_collapsed(before: Mixture, after: Mixture) -> None:
    """Says how many components of a mixture are left by the laws, where these are too few."""
    if not concrete(before.log_weights, after.log_weights):
        return
    count, left = len(after.log_weights), after.effective_sample_size
    enough = max(LEAST_NUMBER, count * LEAST_OF_ALL) if count > 2 else LEAST_OF_TWO
    collapsed = (left < enough) & (before.effective_sample_size >= enough)
    entries = int(collapsed.sum())
    if entries:
        where = f" in {entries} of {left.numel()} entries, at worst" * (left.numel() > 1)
        warn_implausible(
            f"the laws leave{where} {float(left[collapsed].min()):.3g} of the {count} components "
            "of the mixture (1 / sum of squared weights): by their own variances the others fit b "
            "much worse. Where these variances are too small, keep the weights with "
            "Mixture(condition(components, law)), the paper's update, widen the components with "
            "`inflate`, or give the laws `noise`."
        )


def largest_move(moved: Fields, prior: Sequence[Field]) -> float:
    """The largest change of a point of positive variance, in its standard deviations."""
    most = 0.0
    for new, field in zip(moved, prior, strict=True):
        old, v = field._moments()
        if v.numel():  # 0 / 0, and rounding / 0, where nothing can move
            found = by_slices(_furthest, new, old, v, whole=max(new.ndim - 1, 0))
            most = max(most, math.sqrt(found.max()))
    return most


def _furthest(new: Tensor, old: Tensor, variance: Tensor, out: Tensor | None) -> Tensor:
    """The largest square of a move beside its variance, for each entry of the first axis."""
    square = (new - old).square_().div_(variance).nan_to_num_(0.0, posinf=0.0)
    if square.ndim > 1:
        return torch.amax(square.flatten(1), -1, out=out)
    return square if out is None else out.copy_(square)


def _explained(
    rows: Rows,
    miss: Tensor,
    worst: Tensor,
    index: Sequence[int],
    others: Sequence[str],
    why: str,
) -> str:
    count = int((worst > UNMET).sum())
    text = (
        f"{count} row{'s' * (count != 1)} cannot be met: {rows.name(index)} is off by "
        f"{float(miss[tuple(index)]):.3g} ({float(worst[tuple(index)]):.1e} of its terms)."
    )
    if others:
        return (
            f"{text} It follows from other exact rows, and contradicts them: {'; '.join(others)}. "
            f"{why}Ways out: make the values agree, leave one of these rows out, or give it "
            "`noise`."
        )
    return (
        f"{text} Nothing is left to move there: it reads no point, those that it reads have no "
        "variance, or the directions of the field are too few. Ways out: more variance, `noise` on "
        "the law, `shrinkage` above 0 for an ensemble, or leave this time out of the law with "
        "`times`."
    )


def _decided_by(
    laws: tuple[Rows, ...], rows: Rows, index: Sequence[int], root: Independent | Correlated
) -> tuple[list[str], list[tuple[float, float]]]:
    """The exact rows that a row is made of, whatever the directions; none if it is not.

    Also the values of all of them, the row's own first, and what these are multiplied with.
    """
    shapes = root.shapes
    lead = min([shared_axes(shapes), *(each.places(shapes) for each in laws)])
    at, inner = tuple(index[:lead]), tuple(index[lead:])
    part = Independent(root.variance)._at(at)
    joint = Joint(tuple(each._at(at) for each in laws), part, part, 0)
    pairs = zip(laws, joint.tails, strict=True)
    every = [(each, i) for each, tail in pairs for i in itertools.product(*map(range, tail))]
    number = next(n for n, (each, i) in enumerate(every) if each is rows and i == inner)
    gram, others = joint.gram(part), joint.noise == 0
    others[number] = False
    if not bool(others.any()):
        return [], []
    some, sizes = gram[others][:, others], gram.diagonal().sqrt()
    factor = Factor(some, some.diagonal(), torch.zeros_like(some[0]))
    made_of = factor.solve(gram[number, others][None])[0]
    left = gram[number, number] - made_of @ gram[number, others]
    if left > FOLLOWS * gram[number, number]:
        return [], []
    large = made_of.abs() * sizes[others]
    large = large > EASY * large.max().clamp_min(TINY)
    named = [every[i] for i in others.nonzero()[large, 0].tolist()[:6]]
    values = joint.flat([r.value.expand(r.row_shape(part.shapes)) for r in joint.rows])
    made = zip(values[others][large].tolist(), made_of[large].tolist(), strict=True)
    names = [each.name((*at, *i)) for each, i in named]
    return names, [(float(values[number]), 1.0), *made]


def _by_decimals(made_of: Sequence[tuple[float, float]], miss: float) -> str:
    """Whether values with few decimals can miss each other by as much."""
    values = [value for value, _ in made_of]
    for decimals in range(MOST_DECIMALS):
        if all(math.isclose(round(x, decimals), x, rel_tol=HOLDS) for x in values):
            unit = 10.0**-decimals
            explained = unit / 2 * sum(abs(factor) for _, factor in made_of)
            if not miss <= explained * (1 + HOLDS):
                return ""
            return (
                f"The values have {decimals} decimals, and rounding them explains up to "
                f"{explained:.2g}: give them with all digits, or `noise` of {0.3 * unit:.1g}. "
            )
    return ""
