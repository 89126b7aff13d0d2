"""Fixers for weather models in the loop: each step closes its budgets of air, water and energy."""

from ._fixer import Fixer as Fixer
from ._grid import Grid as Grid
from ._grid import Levels as Levels
from ._learned import LearnedErrors as LearnedErrors
from ._ledger import Ledger as Ledger
