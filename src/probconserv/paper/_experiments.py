"""The experiments as data: which equation, parameters and time, and what was published."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ..problems import ClosedForm, find

PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text())


@dataclass(frozen=True)
class Experiment:
    """One table of the paper."""

    name: str  # of the problem
    values: tuple[float, ...]  # of its parameter, at test time
    published: dict[str, Any] = field(repr=False)
    fronts: bool = False  # whether the position of the front is a task

    @property
    def problem(self) -> type[ClosedForm]:
        """Its class."""
        return cast(type[ClosedForm], find(self.name))

    def at(self, value: float) -> ClosedForm:
        """The problem with that parameter."""
        return self.problem(**{self.problem.parameter: value})

    @property
    def time(self) -> float:
        return self.published["time"]

    @property
    def warning(self) -> str:
        """Why the published numbers are not to be taken at their word; empty if they are."""
        return self.published.get("warning", "")

    def paper(self, value: float, method: str) -> dict[str, tuple[float, float]]:
        """Published CE, LL and MSE with their standard errors; empty where there are none."""
        return self.published["values"].get(f"{value:g}", {}).get(method, {})


EXPERIMENTS = {
    name: Experiment(name, values, PUBLISHED[name], fronts=name in ("stefan", "advection"))
    for name, values in {
        "diffusion": (1.0, 5.0),
        "pme": (1.0, 3.0, 6.0),
        "stefan": (0.6, 0.5),  # 0.5 lies outside the training range
        "advection": (1.0, 3.0),
        "burgers": (1.0, 3.0),  # figures only in the paper: these numbers are the first
    }.items()
}
