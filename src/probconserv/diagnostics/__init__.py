"""Whether laws and predictions agree, how wrong a law may be, and how good a prediction is."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .diagnosis import Diagnosis as Diagnosis
    from .fronts import FrontPosition as FrontPosition
    from .fronts import front_position as front_position
    from .metrics import Scores as Scores
    from .metrics import best as best
    from .metrics import crps as crps
    from .metrics import table as table
    from .noise import learned_noise as learned_noise
    from .noise import quadrature_noise as quadrature_noise
else:  # when asked for: files read `causes` of this room without torch
    PLACES = {
        "diagnosis": ("Diagnosis",),
        "fronts": ("FrontPosition", "front_position"),
        "metrics": ("Scores", "best", "crps", "table"),
        "noise": ("learned_noise", "quadrature_noise"),
    }

    def __getattr__(name: str) -> object:
        for place, names in PLACES.items():
            if name in names:
                return getattr(importlib.import_module(f"{__name__}.{place}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted(name for names in PLACES.values() for name in names)
