"""The paper's experiments: its tables, computed again, beside what it published."""

from ._experiments import EXPERIMENTS as EXPERIMENTS
from ._experiments import Experiment as Experiment
from ._methods import METHODS as METHODS
from ._methods import PROTOCOLS as PROTOCOLS
from ._outputs import bold as bold
from ._outputs import cells as cells
from ._outputs import remarks as remarks
from ._outputs import write as write
from ._reproduce import reproduce as reproduce
