"""What a prediction is: `Diagonal`, `LowRank`, `Dense`, `Mixture`, `State`; and its covariance."""

from .gaussian import Field as Field
from .state import as_field as as_field
