"""What air holds, defined once for files and for rollouts.

Plain arithmetic, so that numbers, NumPy, torch and xarray all do.
"""

from typing import Any

GRAVITY = 9.80665  # m s-2
HEAT_CAPACITY = 1004.64  # of dry air at constant pressure, J kg-1 K-1
VAPORIZATION = 2.501e6  # latent heat of water, J kg-1
FUSION = 3.337e5  # latent heat of ice, J kg-1

LAWS = ("dry_air", "water", "energy")
CLOUDS = ("cloud_liquid", "cloud_ice")
WINDS = ("eastward_wind", "northward_wind")
GROUND = "surface_geopotential"
SHARES = {  # of each law, kg, kg and J, in a kilogram of it; in a kilogram of air a kelvin warmer
    "specific_humidity": (-1.0, 1.0, VAPORIZATION),
    "temperature": (0.0, 0.0, HEAT_CAPACITY),
    "cloud_liquid": (-1.0, 1.0, 0.0),
    "cloud_ice": (-1.0, 1.0, -FUSION),
    GROUND: (0.0, 0.0, 1.0),  # of energy, m2 s-2
}


def mass(thickness: Any) -> Any:
    """Of a layer of air, kg m-2, by the difference of pressure across it, Pa."""
    return thickness / GRAVITY


def dry(*water: Any) -> Any:
    """Of a kilogram of air what is not water: vapour and clouds, kg/kg each."""
    return 1 - sum(water)


def energy(name: str, x: Any) -> Any:
    """What a part of the state brings to a kilogram of air, J."""
    return x**2 / 2 if name in WINDS else SHARES[name][2] * x


def geopotential(height: Any) -> Any:
    """Of a height in m, m2 s-2."""
    return GRAVITY * height
