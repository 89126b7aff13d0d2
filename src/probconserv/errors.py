"""What may be raised: each is a `ProbConservError`."""

from .support.errors import DegenerateError as DegenerateError
from .support.errors import ImplausibleError as ImplausibleError
from .support.errors import InfeasibleError as InfeasibleError
from .support.errors import InputError as InputError
