"""The names of the library, as users write them: `import probconserv as pc`, `pc.condition`.

What is used less stands one level down: in `pc.fields`, `pc.laws`, `pc.diagnostics`, `pc.models`
and `pc.errors`.
"""

from . import data as data
from . import diagnostics as diagnostics
from . import errors as errors
from . import fields as fields
from . import laws as laws
from . import models as models
from . import problems as problems
from .conditioning.condition import audit as audit
from .conditioning.condition import condition as condition
from .conditioning.condition import project as project
from .conditioning.draws import Draws as Draws
from .conditioning.inequalities.constrained import Truncated as Truncated
from .conditioning.layer import ConstraintLayer as ConstraintLayer
from .conditioning.posterior import Posterior as Posterior
from .diagnostics.compare import compare as compare
from .diagnostics.diagnose import diagnose as diagnose
from .diagnostics.inflate import inflate as inflate
from .diagnostics.metrics import evaluate as evaluate
from .diagnostics.rollouts import rollout as rollout
from .diagnostics.select import select as select
from .fields.dense import Dense as Dense
from .fields.ensemble import Ensemble as Ensemble
from .fields.gaussian import Diagonal as Diagonal
from .fields.low_rank import LowRank as LowRank
from .fields.mixture import Mixture as Mixture
from .fields.state import State as State
from .laws.budgets import budget as budget
from .laws.budgets import cell_budgets as cell_budgets
from .laws.inequalities import at_least as at_least
from .laws.inequalities import at_most as at_most
from .laws.inequalities import bounds as bounds
from .laws.inequalities import monotone as monotone
from .laws.nonlinear import nonlinear as nonlinear
from .laws.sums import boundary as boundary
from .laws.sums import initial as initial
from .laws.sums import integral as integral
from .laws.sums import linear as linear
from .laws.sums import periodic as periodic
from .laws.sums import regions as regions
from .laws.sums import smoothness as smoothness
from .laws.sums import weighted_sum as weighted_sum
from .meshes import Mesh as Mesh
from .support.errors import ImplausibleWarning as ImplausibleWarning
from .support.errors import ProbConservError as ProbConservError
