"""The equations: exact solutions, conserved totals and fronts.

A new file is found by itself: `PROBLEMS` holds every problem of this folder by its name.
"""

import pkgutil
from importlib import import_module
from typing import get_args

from ..support import checks as check
from ._problem import ClosedForm as ClosedForm
from ._problem import Difficulty as Difficulty
from ._problem import Diffusive as Diffusive
from ._problem import Parameter as Parameter
from ._problem import Problem as Problem
from ._problem import default as default
from ._problem import parametric as parametric
from ._simulate import Simulation as Simulation
from ._simulate import simulate as simulate
from .advection import Advection as Advection
from .burgers import Burgers as Burgers
from .diffusion import Diffusion as Diffusion
from .pme import PorousMedium as PorousMedium
from .rods import GeneralStefan as GeneralStefan
from .rods import SuperSlow as SuperSlow
from .rods import VariableCoefficient as VariableCoefficient
from .stefan import Stefan as Stefan

LEVELS = get_args(Difficulty)
FACTS = (
    *("name", "title", "equation", "parameter", "train_range", "domain", "time_range"),
    *("difficulty", "example"),
)


def _found() -> dict[str, type[Problem]]:
    """Closed forms first, from easy to hard."""
    names = [m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")]
    modules = [import_module(f"{__name__}.{name}") for name in names]
    found = [
        cls
        for module in modules
        for cls in vars(module).values()
        if isinstance(cls, type) and issubclass(cls, Problem) and cls.__module__ == module.__name__
    ]
    order = sorted(
        filter(_whole, found),
        key=lambda p: (not issubclass(p, ClosedForm), LEVELS.index(p.difficulty), p.name),
    )
    return {problem.name: problem for problem in order}


def _whole(problem: type[Problem]) -> bool:
    """A problem that says all that it must; one that does not is refused by name."""
    problem._check_facts(*FACTS)
    check.choice(f"{problem.__name__}.difficulty", problem.difficulty, LEVELS)
    return True


PROBLEMS = _found()


def find(name: str) -> type[Problem]:
    """The problem of that name, as in the command line and in files.

    Parameters
    ----------
    name : str
        One of `PROBLEMS`.

    Returns
    -------
    type
        The class of the problem.

    Raises
    ------
    InputError
        If there is no such problem; the message has the nearest name.

    Examples
    --------
    >>> find("pme").__name__
    'PorousMedium'
    """
    check.choice("name", name, PROBLEMS)
    return PROBLEMS[name]
