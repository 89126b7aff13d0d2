"""An emulator of the toy atmosphere that is noisy and leaks."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ._atmosphere import State, ToyAtmosphere

SIX_HOURS = 21600.0
SPIN_UP = 120  # steps from the start to weather
LEARNED = 60  # steps from which the emulator knows how much its fields move
SMOOTHINGS = 4
SIGNS = {"surface_pressure": 1.0, "temperature": 1.0, "specific_humidity": -1.0}


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
