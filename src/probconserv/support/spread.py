"""How far values lie apart: the unit in which networks see them."""

from torch import Tensor

from .tolerances import HOLDS


def spread_of(values: Tensor) -> float:
    """The standard deviation; 1 of what is constant, up to rounding."""
    return 1.0 if is_constant(values) else float(values.double().std(correction=0))


def is_constant(values: Tensor) -> bool:
    low, high = (float(end) for end in values.double().aminmax())
    return high - low <= HOLDS * max(abs(low), abs(high))
