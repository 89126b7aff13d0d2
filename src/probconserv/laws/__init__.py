"""What is known: `Law`, the maps it is made of, and the functions that build laws."""

from .inequalities import Inequality as Inequality
from .law import Law as Law
from .nonlinear import NonlinearLaw as NonlinearLaw
from .quadrature import balance as balance
