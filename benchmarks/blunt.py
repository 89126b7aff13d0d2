"""What emulators of the atmosphere have in place of a fixer: a number for each budget."""

from probconserv.air.contents import GRAVITY
from probconserv.air.contents import HEAT_CAPACITY as HEAT
from probconserv.air.contents import VAPORIZATION as LATENT


class BluntFixer:
    """The fixers that emulators of the atmosphere have, one after the other.

    Negative humidity and precipitation become 0. One offset on the surface pressure brings dry air
    to what it was at the first step. One factor on precipitation closes the budget of
    water, and one shift of temperature that of energy, each since the last step.

    Parameters
    ----------
    toy : ToyAtmosphere
        Its areas and levels.
    """

    def __init__(self, toy):
        self.toy = toy
        self._dry = None

    def __call__(self, before, after, dt, fluxes):
        """Return the state after the step, fixed.

        Parameters
        ----------
        before, after, fluxes : dict of Tensor
            As of `ToyAtmosphere.step`.
        dt : float
            The length of the step, in seconds.

        Returns
        -------
        dict of Tensor
            The four variables.
        """
        area, fixed = self.toy.area, dict(after)

        def total(x):
            return (x * area).sum((-2, -1))[:, None, None]

        for name in ("specific_humidity", "precipitation"):
            fixed[name] = fixed[name].clamp(min=0)
        if self._dry is None:
            self._dry = total(self._paths(before)[0])
        dry, _, _ = self._paths(fixed)
        b = self.toy.b.diff()[:, None, None]
        gain = total((b * (1 - fixed["specific_humidity"])).sum(-3)) / GRAVITY  # kg Pa-1
        pressure = fixed["surface_pressure"] + (self._dry - total(dry)) / gain
        fixed["surface_pressure"] = pressure
        was, now = self._paths(before), self._paths(fixed)
        rain = total(fluxes["evaporation"]) - (total(now[1]) - total(was[1])) / dt
        fixed["precipitation"] = fixed["precipitation"] * rain / total(fixed["precipitation"])
        came = dt * total(fluxes["top_energy"] + fluxes["surface_energy"])
        capacity = total(HEAT * (pressure - self.toy.a[0]) / GRAVITY)
        shift = (total(was[2]) + came - total(now[2])) / capacity
        fixed["temperature"] = fixed["temperature"] + shift.unsqueeze(-3)
        return fixed

    def _paths(self, state):
        """Dry air, water and energy of every column, per square metre."""
        mass = self.toy.mass(state["surface_pressure"])
        water = mass * state["specific_humidity"]
        energy = HEAT * mass * state["temperature"] + LATENT * water
        return (mass - water).sum(-3), water.sum(-3), energy.sum(-3)
