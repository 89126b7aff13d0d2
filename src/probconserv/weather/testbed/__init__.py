"""A small world in which the truth is known: a conservative atmosphere and a leaky emulator."""

from ._atmosphere import ToyAtmosphere as ToyAtmosphere
from ._blunt import BluntFixer as BluntFixer
from ._emulator import LeakyEmulator as LeakyEmulator
