"""Whether laws help, whether they agree with a prediction, and how good a prediction is."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .comparison import Comparison as Comparison
    from .comparison import Difference as Difference
    from .comparison import Reach as Reach
    from .diagnosis import Diagnosis as Diagnosis
    from .fronts import FrontPosition as FrontPosition
    from .fronts import front_position as front_position
    from .intervals import Conformal as Conformal
    from .intervals import conformal as conformal
    from .metrics import Scores as Scores
    from .metrics import best as best
    from .metrics import crps as crps
    from .metrics import table as table
    from .noise import learned_noise as learned_noise
    from .noise import quadrature_noise as quadrature_noise
    from .rollouts import Rollout as Rollout
    from .select import Choice as Choice
    from .step_errors import StepErrors as StepErrors
    from .stepping import Corrected as Corrected
    from .ways import Way as Way
    from .ways import names_of as names_of
else:  # when asked for: files read `causes` of this room without torch
    PLACES = {
        **dict.fromkeys(("FrontPosition", "front_position"), "fronts"),
        **dict.fromkeys(("Scores", "best", "crps", "table"), "metrics"),
        **dict.fromkeys(("learned_noise", "quadrature_noise"), "noise"),
        **dict.fromkeys(("Comparison", "Difference", "Reach"), "comparison"),
        **dict.fromkeys(("Way", "names_of"), "ways"),
        **dict.fromkeys(("Conformal", "conformal"), "intervals"),
        "Choice": "select",
        "Corrected": "stepping",
        "Diagnosis": "diagnosis",
        "Rollout": "rollouts",
        "StepErrors": "step_errors",
    }

    def __getattr__(name: str) -> object:
        if name not in PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{__name__}.{PLACES[name]}"), name)

    def __dir__() -> list[str]:
        return sorted(PLACES)
