"""Large fields in few passes, where field and laws are of the kinds that can be."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .posterior import FieldPosterior
from .swept import swept, takes
from .swept_joint import swept_joint
from .swept_members import swept_members


def in_few_passes(field: Any, laws: Sequence[Any]) -> FieldPosterior | None:
    """The field given the laws; None if the engine is to do it."""
    first = (
        field[0] if type(field) is tuple and field else getattr(field, "__dict__", {}).get("mean")
    )
    if type(first) is Tensor and first.is_cpu and not takes(first):
        return None
    for way in (swept, swept_members, swept_joint):
        if (found := way(field, laws)) is not None:
            return found
    return None
