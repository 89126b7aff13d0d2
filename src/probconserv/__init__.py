"""Predictions that obey conservation laws, with honest uncertainty.

A Gaussian field goes in, a law is stated, a Gaussian field comes out, and the law holds.
"""

from . import data as data
from . import models as models
from . import problems as problems
from ._budgets import budget as budget
from ._budgets import cell_budgets as cell_budgets
from ._builders import boundary as boundary
from ._builders import cells as cells
from ._builders import initial as initial
from ._builders import integral as integral
from ._builders import linear as linear
from ._builders import periodic as periodic
from ._builders import regions as regions
from ._builders import smoothness as smoothness
from ._condition import audit as audit
from ._condition import condition as condition
from ._condition import project as project
from ._constrained import Truncated as Truncated
from ._convert import as_field as as_field
from ._dense import Dense as Dense
from ._diagnose import Diagnosis as Diagnosis
from ._diagnose import diagnose as diagnose
from ._draws import Draws as Draws
from ._draws import StateDraws as StateDraws
from ._errors import DegenerateError as DegenerateError
from ._errors import ImplausibleWarning as ImplausibleWarning
from ._errors import InfeasibleError as InfeasibleError
from ._errors import InputError as InputError
from ._errors import ProbConservError as ProbConservError
from ._fields import Diagonal as Diagonal
from ._fields import Field as Field
from ._fields import LowRank as LowRank
from ._inequalities import Inequality as Inequality
from ._inequalities import bounds as bounds
from ._inequalities import monotone as monotone
from ._laws import Law as Law
from ._mixture import Mixture as Mixture
from ._noise import learned_noise as learned_noise
from ._noise import quadrature_noise as quadrature_noise
from ._nonlinear import NonlinearLaw as NonlinearLaw
from ._nonlinear import law as law
from ._nonlinear_posterior import LinearisationError as LinearisationError
from ._nonlinear_posterior import NonlinearPosterior as NonlinearPosterior
from ._nonlinear_posterior import NonlinearStatePosterior as NonlinearStatePosterior
from ._plausible import plausible as plausible
from ._posterior import Posterior as Posterior
from ._posterior import StatePosterior as StatePosterior
from ._quadrature import balance as balance
from ._state import State as State
from .fronts import FrontPosition as FrontPosition
from .fronts import front_position as front_position
from .meshes import Mesh as Mesh
from .metrics import Scores as Scores
from .metrics import evaluate as evaluate
from .models import load as load

__version__ = "0.2.0"
