"""The paper's experiments: its tables and figures, computed again, beside what it published."""

from ._ablate import ablate as ablate
from ._ablate import update_name as update_name
from ._ablate import write_ablation as write_ablation
from ._cell import Cell as Cell
from ._experiments import EXPERIMENTS as EXPERIMENTS
from ._experiments import Experiment as Experiment
from ._methods import METHODS as METHODS
from ._methods import PROTOCOLS as PROTOCOLS
from ._outputs import write as write
from ._reading import Reading as Reading
from ._reading import reading as reading
from ._reproduce import reproduce as reproduce
from ._sweep import sweep as sweep
from ._tables import cells as cells
from ._tables import remarks as remarks
from ._trial import NETWORKS as NETWORKS
from ._updates import UPDATES as UPDATES
