"""The experiments as data: which equation, parameters and time, and what was published."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ...problems import ClosedForm, find

PUBLISHED: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text())


@dataclass(frozen=True)
class Experiment:
    """One table of the paper.

    Parameters
    ----------
    name : str
        The name of the problem.
    values : tuple of float
        The values of its parameter, at test time.
    published : dict
        The paper's numbers.
    fronts : bool
        Whether the position of the front is a task.

    Examples
    --------
    >>> EXPERIMENTS["stefan"].values, EXPERIMENTS["stefan"].time
    ((0.6, 0.5), 0.05)
    """

    name: str
    values: tuple[float, ...]
    published: dict[str, Any] = field(repr=False)
    fronts: bool = False

    @property
    def problem(self) -> type[ClosedForm]:
        """The class of the problem."""
        return cast(type[ClosedForm], find(self.name))

    def at(self, value: float) -> ClosedForm:
        """The problem with that parameter."""
        return self.problem(**{self.problem.parameter: value})

    @property
    def time(self) -> float:
        """The time of the evaluation."""
        return self.published["time"]

    @property
    def warning(self) -> str:
        """Why the published numbers should not be trusted; empty if they can be."""
        return self.published.get("warning", "")

    def paper(self, value: float, method: str) -> dict[str, tuple[float, float]]:
        """Published CE, LL and MSE with their standard errors; empty where there are none.

        Parameters
        ----------
        value : float
            The value of the parameter.
        method : str
            One of `METHODS`.

        Returns
        -------
        dict of tuples
            By the name of the score, its average and standard error.
        """
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
