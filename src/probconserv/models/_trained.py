"""What every network that can be trained and opened again has in common."""

import sys
from typing import Any, ClassVar, Self

from torch import nn

from ..support.values import between

CLASSES: "dict[str, type[Trained]]" = {}  # by the name of a model on a card


class Trained(nn.Module):
    """A network that its card says how to build.

    A subclass names its `models`: what cards call the networks of this class.
    """

    models: ClassVar[tuple[str, ...]] = ()

    def __init__(self, sizes: dict[str, Any], min_std: float) -> None:
        super().__init__()
        self.card: dict[str, Any] = {}  # how it was trained, where known
        self.sizes, self.min_std = sizes, between("min_std", min_std, 0, sys.float_info.max)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        CLASSES.update(dict.fromkeys(cls.models, cls))

    @classmethod
    def from_card(cls, card: dict[str, Any]) -> Self:
        """The network of a card, with weights of no use yet."""
        network: Self = cls(**card["sizes"], min_std=card["min_std"])
        return network
