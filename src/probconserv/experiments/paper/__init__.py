"""The paper's experiments: its tables and figures, computed again, beside what it published."""

from ._ablate import NETWORKS as NETWORKS
from ._ablate import ablate as ablate
from ._ablate import update_name as update_name
from ._ablate import write_ablation as write_ablation
from ._experiments import EXPERIMENTS as EXPERIMENTS
from ._experiments import METHODS as METHODS
from ._experiments import PROTOCOLS as PROTOCOLS
from ._experiments import UPDATES as UPDATES
from ._experiments import Experiment as Experiment
from ._experiments import sweep as sweep
from ._outputs import write as write
from ._reproduce import Cell as Cell
from ._reproduce import reproduce as reproduce
from ._tables import cells as cells
from ._tables import remarks as remarks
