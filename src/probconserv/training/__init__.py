"""Training Step 1: one loop, from nothing but torch, NumPy and safetensors.

Everything random is a function of (seed, step): the functions of a batch, the noise of z, dropout.
A run that is stopped anywhere and resumed from its checkpoint therefore takes the same path.
"""

from ._kinds import KINDS as KINDS
from ._kinds import Kind as Kind
from ._points import loss as loss
from ._points import share_from_context as share_from_context
from ._points import validation_ll as validation_ll
from ._recipes import RECIPES as RECIPES
from ._recipes import Recipe as Recipe
from ._run import DivergedError as DivergedError
from ._train import train as train
