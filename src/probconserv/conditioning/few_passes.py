"""Large fields in few passes, where field and laws are of the kinds that can be."""

from collections.abc import Sequence
from typing import Any

from .posterior import FieldPosterior
from .swept import swept
from .swept_joint import swept_joint
from .swept_members import swept_members


def in_few_passes(field: Any, laws: Sequence[Any]) -> FieldPosterior | None:
    """The field given the laws; None if the engine is to do it."""
    for way in (swept, swept_members, swept_joint):
        if (found := way(field, laws)) is not None:
            return found
    return None
