"""Step 1: models that give a Gaussian field."""

from ._calibrate import Calibration as Calibration
from ._calibrate import Widths as Widths
from ._load import load as load
from ._load import open_weights as open_weights
from ._load import save as save
from .anp import AttentiveNeuralProcess as AttentiveNeuralProcess
from .emulator import Emulator as Emulator
from .fno import FNO as FNO
