"""Predictions that obey conservation laws, with their uncertainty.

A Gaussian field goes in, a law is stated, and a field that obeys it comes out. The names are in
`api.py`, and imported when the first is asked for: torch takes seconds, and the command line
can often do without.
"""

import importlib.util
from typing import TYPE_CHECKING

__version__ = "0.2.0"
ROOMS = ("experiments", "figures", "files", "training", "weather")  # beside those of api.py
BELOW = ("diagnostics", "errors", "fields", "laws", "models")  # where names that are used less are

if TYPE_CHECKING:
    from .api import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if importlib.util.find_spec(f"{__name__}.{name}"):
            return importlib.import_module(f"{__name__}.{name}")
        names = _names()
        globals().update(names)
        if name not in names:
            below = [f"{room}.{name}" for room in BELOW if hasattr(names[room], name)]
            hint = "".join(f": it is {__name__}.{place}" for place in below)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
        return names[name]

    def __dir__() -> list[str]:
        own = [name for name in globals() if name.startswith("__")]
        return sorted([*own, *_names(), *ROOMS])

    def _names() -> dict[str, object]:
        found = vars(importlib.import_module(".api", __name__))
        return {name: value for name, value in found.items() if not name.startswith("_")}
