"""What laws say of functions on a grid, and whether it is so."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..conditioning.condition import AnyLaw
from ..diagnostics.noise import quadrature_noise
from ..fields.gaussian import Diagonal
from ..laws.inequalities import Bounds, Inequality, Monotone, OneSided, limits_of
from ..laws.law import Law
from ..laws.nonlinear import NonlinearLaw
from ..support.errors import InputError, warn_implausible
from ._totals import LITTLE

NOISY = 5.0  # standard deviations of a law's noise
JUMPS = 3.0  # times the error of a quadrature rule at jumps, in root mean square


def as_laws(given: Any) -> tuple[AnyLaw, ...]:
    """What the function `law` of grids returned."""
    found = tuple(given) if isinstance(given, tuple | list) else (given,)
    if not found or not all(isinstance(one, Law | NonlinearLaw | Inequality) for one in found):
        kinds = ", ".join(type(one).__name__ for one in found)
        raise InputError(
            "`law` must be a function from `Grids` to a law such as `integral(x, grids.totals)`, "
            f"or a tuple of laws; it returned {kinds or 'none'}."
        )
    if any(one.truncated for one in found if isinstance(one, Inequality)):
        raise InputError("`law`: `truncated` bounds have no gradient. Leave `truncated` out.")
    return found


def warn_of_laws(parts: Iterator[tuple[Tensor, tuple[AnyLaw, ...]]]) -> None:
    """Warns of laws that targets do not obey. parts: some targets (1, n, ...), and their laws."""
    totals: dict[str, list[float]] = {}  # of each label: wrong rows, rows, largest share
    for u, laws in parts:
        for law in laws:
            wrong, share = _missed(law, u)
            said = totals.setdefault(law.label, [0.0, 0.0, 0.0])
            said[0] += int(wrong.sum())
            said[1] += wrong.numel()
            said[2] = max(said[2], float(share[wrong].max()) if bool(wrong.any()) else 0.0)
    for label, (wrong_rows, rows, most) in totals.items():
        if wrong_rows:
            warn_implausible(
                f"`law`: `{label}` does not hold in `targets`: {wrong_rows:.0f} of {rows:.0f} rows "
                f"are off, by up to {100 * most:.3g} % of their terms. It would move right fields "
                "away from the truth. Correct its values, or give it noise."
            )


def _missed(law: AnyLaw, u: Tensor) -> tuple[Tensor, Tensor]:
    """Which rows u misses by more than chance, and by how much of their terms."""
    if isinstance(law, Bounds | Monotone):
        return _outside(law, u)
    one: Any = law.law if isinstance(law, OneSided) else law
    side = law.side if isinstance(law, OneSided) else 0
    residual = one.residual(u)
    miss = ((residual * side).clamp_max(0) if side else residual).abs()
    size = (residual + one.value.to(u.device)).abs()
    if isinstance(one, Law):
        size = one.magnitude(u)
    size = torch.maximum(size, one.value.to(u.device).abs())
    allowed = LITTLE * size + NOISY * one.noise.to(u.device)
    if isinstance(one, Law) and one.quadrature is not None:
        x, rule = one.quadrature
        error = quadrature_noise(Diagonal._unchecked(u, torch.zeros_like(u)), x.to(u.device), rule)
        allowed = allowed + JUMPS * one.at_times(error, u.shape)
    return miss > allowed, miss / size.clamp_min(torch.finfo(torch.float64).tiny)


def _outside(law: Bounds | Monotone, u: Tensor) -> tuple[Tensor, Tensor]:
    """The same of values beyond bounds, or of steps the wrong way; terms are the largest value."""
    (limits,) = limits_of([law], ("",), [u.shape], [torch.float64], u.device)
    miss = torch.maximum(limits.low - u, u - limits.high).clamp_min(0)
    for axis, sign in limits.slopes:
        miss = (-sign * u.diff(dim=axis)).clamp_min(0)
    size = u.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    return miss > LITTLE * size, miss / size
