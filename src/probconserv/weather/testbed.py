"""A world in which the truth is known: a toy atmosphere, an emulator that leaks."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ..air.contents import GRAVITY
from ..air.contents import HEAT_CAPACITY as HEAT
from ..air.contents import VAPORIZATION as LATENT
from ._grid import Grid, Levels

RADIUS, VAPOUR = 6.371e6, 461.5  # m, J kg-1 K-1
HALF_A = (2000.0, 9000.0, 12000.0, 7000.0, 2000.0, 0.0)  # Pa
HALF_B = (0.0, 0.02, 0.2, 0.5, 0.8, 1.0)
DAY = 86400.0
SIX_HOURS = 21600.0
SPIN_UP = 120  # steps from the start to weather
LEARNED = 60  # steps from which the emulator knows how much its fields move
SMOOTHINGS = 4
SIGNS = {"surface_pressure": 1.0, "temperature": 1.0, "specific_humidity": -1.0}

State = dict[str, Tensor]


class ToyAtmosphere:
    """Air, heat and water that a given wind carries over a sphere, with rain and radiation.

    Every layer loses to its neighbours what they gain: air, water and heat are carried upwind in
    flux form, and the column settles on its hybrid levels the same way. Water evaporates from a
    surface of given temperature, mixes upward, and rains out where air is saturated and flows to
    a pole; its latent heat stays. Radiation draws the temperature to a profile. So the totals
    change by the fluxes that a step returns, and by nothing else. The wind is given: this is
    no weather forecast.

    Parameters
    ----------
    lat, lon : int
        Numbers of cells; the first and the last row touch the poles.
    """

    def __init__(self, lat: int = 12, lon: int = 24) -> None:
        edges = torch.linspace(-90, 90, lat + 1, dtype=torch.float64)
        self.lat = (edges[1:] + edges[:-1]) / 2
        self.lon = torch.arange(lon, dtype=torch.float64) * (360 / lon)
        self.a = torch.tensor(HALF_A, dtype=torch.float64)
        self.b = torch.tensor(HALF_B, dtype=torch.float64)
        self._edges = edges.deg2rad()
        width = 2 * math.pi / lon
        self.grid = Grid.regular(self.lat, self.lon)
        self.levels = Levels.hybrid(self.a, self.b)
        self.area = (RADIUS**2 * width * self._edges.sin().diff())[:, None].expand(lat, lon)
        across = self.lat.deg2rad()[:, None]
        self._surface = 271 + 29 * across.cos() ** 2 + 2 * (3 * self.lon.deg2rad()).cos()  # K
        middle = _middle(self.a + self.b * 1e5)[:, None, None] / 1e5
        wanted = self._surface * middle**0.19 - 4 * across.sin() ** 2
        self._wanted = wanted.clamp(min=205.0)  # (level, lat, lon): where radiation draws to

    def start(self, members: int = 1) -> State:
        """Return a state at rest, near what radiation asks for.

        Parameters
        ----------
        members : int
            Copies of it along the first axis.

        Returns
        -------
        dict of Tensor
            The state under its four names, float64.
        """
        pressure = 1e5 - 1500 * (2 * self.lat.deg2rad()).cos()[:, None] + 0 * self._surface
        middle = _middle(self.a[:, None, None] + self.b[:, None, None] * pressure)
        state = {
            "surface_pressure": pressure,
            "temperature": self._wanted,
            "specific_humidity": 0.7 * _saturation(self._wanted, middle),
            "precipitation": torch.zeros_like(pressure),
        }
        return {name: x.expand(members, *x.shape).clone() for name, x in state.items()}

    def step(self, before: Mapping[str, Tensor], time: float, dt: float) -> tuple[State, State]:
        """Return the state a step later, and the fluxes during the step.

        Parameters
        ----------
        before : dict of Tensor
            Surface pressure, temperature and humidity: (batch, lat, lon) or
            (batch, level, lat, lon).
        time, dt : float
            When the step begins and how long it is, in seconds.

        Returns
        -------
        after : dict of Tensor
            The same, and the mean precipitation.
        fluxes : dict of Tensor
            The mean evaporation, and the energy through top and surface, into the air.
        """
        pressure, temperature = before["surface_pressure"], before["temperature"]
        mass = self.mass(pressure)
        water, heat = before["specific_humidity"] * mass, temperature * mass
        sums = dict.fromkeys(("rain", "evaporation", "top", "surface"), 0 * pressure)
        parts = max(2, len(self.lon) // 12, len(self.lat) // 6)  # no air may cross a whole cell
        short = dt / parts
        for part in range(parts):
            winds = self._winds(time + (part + 0.5) * short)
            mass, water, heat = self._carried(mass, water, heat, winds, short)
            water = _mixed(mass, water, short)
            mass, water, heat, gained = self._forced(mass, water, heat, self._rises(winds), short)
            mass, water, heat = self._settled(mass, water, heat)
            sums = {name: sums[name] + gained[name] for name in sums}
        after = {
            "surface_pressure": self.a[0] + GRAVITY * mass.sum(-3),
            "temperature": heat / mass,
            "specific_humidity": water / mass,
            "precipitation": sums["rain"] / dt,
        }
        fluxes = {
            "evaporation": sums["evaporation"] / dt,
            "top_energy": sums["top"] / dt,
            "surface_energy": sums["surface"] / dt,
        }
        return after, fluxes

    def mass(self, pressure: Tensor) -> Tensor:
        """Return the mass of every layer.

        Parameters
        ----------
        pressure : Tensor, shape ``(batch, lat, lon)``
            At the surface, in Pa.

        Returns
        -------
        Tensor, shape ``(batch, level, lat, lon)``
            In kg m-2.
        """
        a, b = self.a.diff()[:, None, None], self.b.diff()[:, None, None]
        return (a + b * pressure.unsqueeze(-3)) / GRAVITY  # kg m-2

    def _winds(self, time: float) -> tuple[Tensor, Tensor]:
        """The flow through the east and the north face of every cell, m2 s-1.

        Differences of a stream function at the corners, which pile up no air, and a weak tide.
        """
        count = len(self.lon)
        wide = 2 * math.pi / count
        lon = (torch.arange(count + 1, dtype=torch.float64) - 0.5) * wide
        lat, days = self._edges[:, None], 2 * math.pi * time / DAY
        fast = torch.linspace(1.6, 0.4, len(self.a) - 1, dtype=torch.float64)[:, None, None]
        turning = -16 * fast * lat.sin()
        waves = (12 + 7 * math.sin(days / 11)) * lat.cos() ** 3 * (3 * lon - days / 9).cos()
        eddies = 20 * lat.cos() ** 3 * lat.sin() * (5 * lon + days / 5).sin()
        stream = RADIUS * (turning + waves + eddies)
        east, north = -stream.diff(dim=-2)[..., 1:], stream.diff(dim=-1)[..., 1:-1, :]
        tall = math.pi / len(self.lat)
        across = self.lat.deg2rad()[:, None]
        tide = 0.5 * RADIUS * across.cos() ** 3 * (2 * self.lon.deg2rad() - days / 2).cos()
        east = east + (tide.roll(-1, -1) - tide) * tall / (wide * across.cos())
        north = north + tide.diff(dim=-2) * lat[1:-1].cos() * wide / tall
        return east, north

    def _rises(self, winds: tuple[Tensor, Tensor]) -> Tensor:
        """Where it may rain: where the wind blows from the equator, air rises."""
        edge = torch.zeros_like(winds[1][..., :1, :])
        north = torch.cat([edge, winds[1], edge], -2)
        return (north[..., 1:, :] + north[..., :-1, :]) * self.lat[:, None] > 0

    def _carried(
        self, mass: Tensor, water: Tensor, heat: Tensor, winds: tuple[Tensor, Tensor], dt: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Each cell hands to the next what flows through the face between them."""
        east, north = (flow * dt for flow in winds)
        none = torch.zeros_like(north[..., :1, :])

        def moved(x: Tensor) -> Tensor:
            along = east.clamp(min=0) * x + east.clamp(max=0) * x.roll(-1, -1)
            up = north.clamp(min=0) * x[..., :-1, :] + north.clamp(max=0) * x[..., 1:, :]
            edge = none.expand(*x.shape[:-2], 1, x.shape[-1])
            out = along - along.roll(1, -1) + torch.cat([edge, up, edge], -2).diff(dim=-2)
            return x - out / self.area

        return moved(mass), moved(water), moved(heat)

    def _forced(
        self, mass: Tensor, water: Tensor, heat: Tensor, rises: Tensor, dt: float
    ) -> tuple[Tensor, Tensor, Tensor, State]:
        """Evaporation, sensible heat, radiation, rain; what came in by each."""
        temperature, humidity = heat / mass, water / mass
        full = self.a[0] + GRAVITY * mass.cumsum(-3)
        middle = full - GRAVITY * mass / 2
        low = temperature[..., -1, :, :]
        lack = 0.8 * _saturation(self._surface, full[..., -1, :, :]) - humidity[..., -1, :, :]
        evaporation = 0.012 * lack.clamp(min=0) * dt  # kg m-2
        warmth = 12.0 * (self._surface - low) * dt  # J m-2
        radiation = HEAT * mass * (self._wanted - temperature) * (dt / (12 * DAY))
        wet = _saturation(temperature, middle)
        steep = 1 + LATENT**2 * wet / (HEAT * VAPOUR * temperature**2)
        rain = rises * mass * (humidity - wet).clamp(min=0) / steep
        heat = heat + (radiation + LATENT * rain) / HEAT - temperature * rain
        ground = torch.zeros_like(mass)
        ground[..., -1, :, :] = evaporation
        heat = heat + ground * low.unsqueeze(-3)  # vapour comes in as warm as the lowest layer
        heat[..., -1, :, :] += warmth / HEAT
        gained = {
            "rain": rain.sum(-3),
            "evaporation": evaporation,
            "top": radiation.sum(-3),
            "surface": warmth
            + (LATENT + HEAT * low) * evaporation
            - HEAT * (temperature * rain).sum(-3),  # rain leaves as warm as its layer
        }
        return mass + ground - rain, water + ground - rain, heat, gained

    def _settled(self, mass: Tensor, water: Tensor, heat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Air sinks or rises until every layer has the mass of its hybrid level."""
        wanted = self.mass(self.a[0] + GRAVITY * mass.sum(-3))
        down = (mass - wanted).cumsum(-3)[..., :-1, :, :]

        def moved(x: Tensor) -> Tensor:
            ratio = x / mass
            flow = down.clamp(min=0) * ratio[..., :-1, :, :]
            flow = flow + down.clamp(max=0) * ratio[..., 1:, :, :]
            edge = torch.zeros_like(flow[..., :1, :, :])
            return x - torch.cat([edge, flow, edge], -3).diff(dim=-3)

        return wanted, moved(water), moved(heat)


def _saturation(temperature: Tensor, pressure: Tensor) -> Tensor:
    """The specific humidity of saturated air.

    Parameters
    ----------
    temperature, pressure : Tensor
        In K and Pa.

    Returns
    -------
    Tensor
        In kg/kg.
    """
    vapour = 611.2 * (17.67 * (temperature - 273.15) / (temperature - 29.65)).exp()
    return (0.622 * vapour / pressure).clamp(max=0.05)


def _mixed(mass: Tensor, water: Tensor, dt: float) -> Tensor:
    """Turbulence swaps moist air for the same mass of drier air between neighbours in a column."""
    humidity = water / mass
    between = torch.minimum(mass[..., 1:, :, :], mass[..., :-1, :, :])
    often = torch.linspace(0, 1, between.shape[-3], dtype=mass.dtype)[:, None, None] / (5 * DAY)
    up = between * humidity.diff(dim=-3) * often * dt
    edge = torch.zeros_like(up[..., :1, :, :])
    return water + torch.cat([edge, up, edge], -3).diff(dim=-3)


def _middle(half: Tensor) -> Tensor:
    return (half[1:] + half[:-1]) / 2


class LeakyEmulator:
    """The toy atmosphere with errors: noise of each member, and a leak that all members share.

    The errors are as large as `error` times the usual change of a value in one step, there and at
    that moment. Half of their variance is smooth in space and through the levels, the rest
    is white. The leak has the same sign at every step and a pattern of its own:
    pressure and temperature rise, humidity falls, and it rains too little. Humidity and
    precipitation may become negative. The fluxes are those of the toy atmosphere for the
    state that a step begins with.

    Parameters
    ----------
    toy : ToyAtmosphere
        What it emulates.
    error, leak : float
        Noise and leak of one step, as parts of the usual change of a value in one step.
    uniform : bool
        If True, the leak is one number for every variable, the same everywhere.
    quiet_top : bool
        If True, the highest level does not leak.
    seed : int
        Of the noise. The pattern of the leak is the same for all.
    """

    dt = SIX_HOURS

    def __init__(
        self,
        toy: ToyAtmosphere,
        error: float = 0.15,
        leak: float = 0.03,
        uniform: bool = False,
        quiet_top: bool = False,
        seed: int = 0,
    ) -> None:
        self.toy, self.error, self.seed = toy, error, seed
        self.begin, self._usual = _weather(toy)
        fixed = torch.Generator().manual_seed(1)
        self._leak = {}
        for name, sign in SIGNS.items():
            usual = self._usual[name]
            pattern = usual * (1 + 0.5 * _smooth(_normal(usual[None].shape, fixed))[0])
            if uniform:
                pattern = pattern.mean().expand(pattern.shape).clone()
            if quiet_top and usual.dim() == 3:
                pattern[0] = 0.0
            self._leak[name] = sign * leak * pattern

    def truth(self, steps: int) -> list[State]:
        """Return what the toy atmosphere does, from `begin` on.

        Parameters
        ----------
        steps : int
            How many.

        Returns
        -------
        list of dict of Tensor
            States with one member: the beginning, and one after each step.
        """
        states = [self.begin]
        for number in range(steps):
            states.append(self.toy.step(states[-1], self.time(number), self.dt)[0])
        return states

    def time(self, number: int) -> float:
        """Return the time at which a step begins, in seconds.

        Parameters
        ----------
        number : int
            Of the step, counted from 0.

        Returns
        -------
        float
            Since the start of the toy atmosphere.
        """
        return (SPIN_UP + LEARNED + number) * self.dt

    def step(self, before: Mapping[str, Tensor], number: int) -> tuple[State, State]:
        """Return the state a step later, with errors, and the fluxes.

        Parameters
        ----------
        before : dict of Tensor
            The state of every member.
        number : int
            Of the step. A step with the same number has the same noise.

        Returns
        -------
        after, fluxes : dict of Tensor
            As of `ToyAtmosphere.step`.
        """
        after, fluxes = self.toy.step(before, self.time(number), self.dt)
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + number)
        for name, leak in self._leak.items():
            moved = (after[name] - before[name]).abs()
            size = self.error * (self._usual[name] + moved) / 2
            after[name] = after[name] + size * self._noise(after[name].shape, generator) + leak
        rain = after["precipitation"]
        wrong = 2 * self.error * self._noise(rain.shape, generator)
        little = 0.02 * self._usual["precipitation"] * _normal(rain.shape, generator)
        after["precipitation"] = 0.95 * rain * wrong.exp() + little
        return after, fluxes

    def _noise(self, shape: torch.Size, generator: torch.Generator) -> Tensor:
        white, smooth = _normal(shape, generator), _smooth(_normal(shape, generator))
        return (white + smooth) / 2**0.5


def _weather(toy: ToyAtmosphere) -> tuple[State, State]:
    """A state after the spin-up, and the size of the changes in a step before it."""
    state, changes = toy.start(), []
    for number in range(SPIN_UP + LEARNED):
        after, _ = toy.step(state, number * SIX_HOURS, SIX_HOURS)
        if number >= SPIN_UP:
            changes.append({name: after[name] - state[name] for name in after})
        state = after
    usual = {name: torch.cat([c[name] for c in changes]).std(0) for name in state}
    return state, usual


def _normal(shape: torch.Size, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _smooth(noise: Tensor) -> Tensor:
    """Independent numbers averaged along longitude, latitude and levels; the variance stays 1."""
    noise = noise @ _average(noise.shape[-1], periodic=True).T
    noise = _average(noise.shape[-2]) @ noise
    if noise.dim() == 3:  # (batch, lat, lon)
        return noise
    return torch.einsum("kl,...lij->...kij", _average(noise.shape[-3]), noise)


def _average(size: int, periodic: bool = False) -> Tensor:
    """A matrix that averages neighbours several times, with rows of norm 1."""
    index = torch.arange(size)
    left, right = (index - 1) % size, (index + 1) % size
    if not periodic:
        left, right = (index - 1).clamp(min=0), (index + 1).clamp(max=size - 1)
    eye = torch.eye(size, dtype=torch.float64)
    power = torch.linalg.matrix_power((eye[left] + 2 * eye + eye[right]) / 4, SMOOTHINGS)
    return power / power.norm(dim=-1, keepdim=True)
