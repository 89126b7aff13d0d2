"""Constants of the air, in one place: for files and for rollouts."""

GRAVITY = 9.80665  # m s-2
HEAT_CAPACITY = 1004.64  # of dry air at constant pressure, J kg-1 K-1
VAPORIZATION = 2.501e6  # latent heat of water, J kg-1
FUSION = 3.337e5  # latent heat of ice, J kg-1
