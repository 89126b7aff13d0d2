"""Neural operators inside and outside what they were trained on: what a law is worth there."""

from ._benchmark import METHODS as METHODS
from ._benchmark import TESTED as TESTED
from ._benchmark import OperatorCell as OperatorCell
from ._benchmark import benchmark as benchmark
from ._cases import CASES as CASES
from ._cases import Case as Case
from ._cases import load_ensemble as load_ensemble
from ._cases import train_ensembles as train_ensembles
from ._tables import cells_of as cells_of
from ._tables import summaries as summaries
from ._tables import write as write
