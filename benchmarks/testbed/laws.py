"""The laws of each equation of the test bed, and how well the stored truth obeys them.

    python benchmarks/testbed/laws.py

`mean` is over space: mean(u) times the volume of the domain is the total. No law is claimed that
the trajectories break by more than its tolerance, relative to what the table says.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from equations import EQUATIONS, Equation

Array = np.ndarray


@dataclass(frozen=True)
class Truth:
    """Trajectories (n, 61, channels, *space) and means (320, 61, channels) of u and u^2."""

    equation: Equation
    u: Array
    totals: Array
    energies: Array

    @property
    def space(self) -> tuple[int, ...]:
        return tuple(range(3, self.u.ndim))


@dataclass(frozen=True)
class Law:
    """A statement, by how much trajectories break it, and how much is rounding or method."""

    name: str
    words: str
    broken: Callable[[Truth], float]
    tolerance: float


def mass_moved(truth: Truth) -> float:
    moved = np.abs(truth.totals - truth.totals[:, :1]).max()
    return moved / np.sqrt(truth.energies[:, 0].mean())


def energy_moved(truth: Truth) -> float:
    return np.abs(truth.energies / truth.energies[:, :1] - 1).max()


def energy_rose(truth: Truth) -> float:
    return max(0.0, (np.diff(truth.energies, axis=1) / truth.energies[:, :1]).max())


def between(low: float, high: float) -> Callable[[Truth], float]:
    return lambda truth: max(0.0, low - truth.u.min(), truth.u.max() - high)


def refined(u: Array, space: tuple[int, ...], factor: int = 8) -> Array:
    """The trigonometric interpolant at `factor` times as many points."""
    for axis in space:
        n = u.shape[axis]
        u = np.fft.irfft(np.fft.rfft(u, axis=axis), factor * n, axis=axis) * factor
    return u


def extremes(u: Array, space: tuple[int, ...]) -> tuple[Array, Array]:
    """Least and largest value of the first state between grid points: (n, 1, channels)."""
    first = refined(u[:, :1], space)
    return first.min(space), first.max(space)


def outside_start(truth: Truth) -> float:
    low, high = extremes(truth.u, truth.space)
    below, above = low - truth.u.min(truth.space), truth.u.max(truth.space) - high
    return max(0.0, (np.maximum(below, above) / (high - low)).max())


def outside_grid(truth: Truth) -> float:
    """As `outside_start`, by the values on the grid alone."""
    low, high = truth.u.min(truth.space), truth.u.max(truth.space)
    out = np.maximum(low[:, :1] - low, high - high[:, :1])
    return max(0.0, (out / (high - low)[:, :1]).max())


def fisher_rate(truth: Truth) -> Array:
    """r mean(u (1 - u)), exact from both means: (n, times, 1)."""
    return truth.equation.coefficients["reactivity"] * (truth.totals - truth.energies)


def gray_scott_rate(truth: Truth) -> Array:
    """f (1 - mean(u) - mean(v)) - k mean(v) of mean(u + v): linear in the fields."""
    feed, kill = (truth.equation.coefficients[name] for name in ("feed_rate", "kill_rate"))
    u, v = truth.totals[..., :1], truth.totals[..., 1:]
    return feed * (1 - u - v) - kill * v


def gray_scott_rates(truth: Truth) -> Array:
    """f (1 - mean(u)) - mean(u v^2) of u, -(f + k) mean(v) + mean(u v^2) of v."""
    feed, kill = (truth.equation.coefficients[name] for name in ("feed_rate", "kill_rate"))
    u, v = truth.u[:, :, 0], truth.u[:, :, 1]
    reaction = (u * v**2).mean(-1)
    return np.stack([feed * (1 - u.mean(-1)) - reaction, reaction - (feed + kill) * v.mean(-1)], -1)


def simpson(total: Array, rate: Array, dt: float) -> float:
    """Largest error of T(t + 2 dt) - T(t) = dt / 3 (S(t) + 4 S(t + dt) + S(t + 2 dt))."""
    source = dt / 3 * (rate[:, :-2] + 4 * rate[:, 1:-1] + rate[:, 2:])
    return (
        np.abs(total[:, 2:] - total[:, :-2] - source).max() / np.abs(np.diff(total, axis=1)).max()
    )


def trapezoid(total: Array, rate: Array, dt: float) -> float:
    """Largest error of T(t + dt) - T(t) = dt / 2 (S(t) + S(t + dt))."""
    change = np.diff(total, axis=1)
    return np.abs(change - dt / 2 * (rate[:, 1:] + rate[:, :-1])).max() / np.abs(change).max()


def budget(
    rule: Callable, rate: Callable[[Truth], Array], total: Callable[[Truth], Array]
) -> Callable[[Truth], float]:
    """How far a budget is off, relative to the largest change in a step."""
    return lambda truth: rule(total(truth), rate(truth), truth.equation.dt)


def means(truth: Truth) -> Array:
    return truth.totals


def sum_of_means(truth: Truth) -> Array:
    return truth.totals.sum(-1, keepdims=True)


def means_of_complete(truth: Truth) -> Array:
    return truth.u.mean(-1)


def wavenumbers(truth: Truth) -> list[Array]:
    """Of each spatial axis, ready to multiply a transform over all of them."""
    points = truth.equation.points
    k = 2 * np.pi / truth.equation.extent * np.fft.fftfreq(points, 1 / points)
    return np.meshgrid(*[k] * truth.equation.dims, indexing="ij")


def hamiltonian_moved(truth: Truth) -> float:
    """Of H = mean(u^3 + u_x^2 / 2), relative to the mean of |u|^3 + u_x^2 / 2."""
    (k,) = wavenumbers(truth)
    slope = np.fft.ifft(1j * k * np.fft.fft(truth.u)).real
    u = refined(truth.u, truth.space, 2)  # u^3 has three times the modes of u
    value = (u**3).mean(-1) + (slope**2).mean(-1) / 2
    size = (np.abs(u) ** 3).mean(-1) + (slope**2).mean(-1) / 2
    return (np.abs(value - value[:, :1]) / size[:, :1]).max()


def kinetic(truth: Truth) -> Array:
    """Mean of |velocity|^2 / 2 from the vorticity: (n, times, 1)."""
    square = sum(k**2 for k in wavenumbers(truth))
    inverse = np.where(square > 0, 1 / np.where(square > 0, square, 1), 0)
    modes = np.abs(np.fft.fftn(truth.u, axes=truth.space)) ** 2 * inverse
    return modes.sum(truth.space) / (2 * truth.equation.points**4)


def kinetic_rose(truth: Truth) -> float:
    energy = kinetic(truth)
    return max(0.0, (np.diff(energy, axis=1) / energy[:, :1]).max())


MASS = Law("mass", "mean(u) is kept; error over RMS of u", mass_moved, 1e-14)
ENERGY = Law("energy", "mean(u^2) is kept; relative", energy_moved, 1e-12)
DECAY = Law("energy", "mean(u^2) never rises; rise over start", energy_rose, 1e-12)
START = Law(
    "bounds",
    "between the extremes of the first state, between points too; excess over their distance",
    outside_start,
    1e-3,
)

LAWS = {
    "advection": (MASS, ENERGY, START),
    "burgers": (MASS, DECAY, START),
    "kdv": (
        MASS,
        Law("energy", "mean(u^2) is kept; relative", energy_moved, 1e-6),
        Law(
            "hamiltonian", "mean(u^3 + u_x^2 / 2) is kept; over its terms", hamiltonian_moved, 1e-6
        ),
    ),
    "kuramoto_sivashinsky": (MASS,),
    "fisher": (
        Law("bounds", "0 <= u <= 1; excess", between(0, 1), 1e-12),
        Law(
            "source",
            "d mean(u) / dt = r (mean(u) - mean(u^2)); Simpson, over a step's change",
            budget(simpson, fisher_rate, means),
            1e-4,
        ),
        Law(
            "source", "the same by the trapezoid rule", budget(trapezoid, fisher_rate, means), 1e-2
        ),
    ),
    "gray_scott": (
        Law("bounds", "0 <= u, v <= 1; excess", between(0, 1), 1e-6),
        Law(
            "source of u + v",
            "d mean(u + v) / dt = f (1 - mean(u + v)) - k mean(v); Simpson",
            budget(simpson, gray_scott_rate, sum_of_means),
            1e-2,
        ),
        Law(
            "source of u + v",
            "the same by the trapezoid rule",
            budget(trapezoid, gray_scott_rate, sum_of_means),
            1e-1,
        ),
        Law(
            "source of u, of v",
            "d mean(u) / dt = f (1 - mean(u)) - mean(u v^2), "
            "d mean(v) / dt = mean(u v^2) - (f + k) mean(v); Simpson",
            budget(simpson, gray_scott_rates, means_of_complete),
            1e-2,
        ),
    ),
    "advection_diffusion_2d": (MASS, DECAY, START),
    "navier_stokes_2d": (
        MASS,
        DECAY,
        Law("kinetic energy", "mean(|velocity|^2) never rises", kinetic_rose, 1e-12),
        START,
    ),
}

# What does not hold, or not as stated: the same measures, for the table.
NOT_LAWS = {
    "advection": (Law("bounds of the grid", "extremes of grid values", outside_grid, 0.0),),
    "burgers": (Law("energy kept", "", energy_moved, 0.0),),
    "kdv": (Law("bounds", "", outside_start, 0.0),),
    "kuramoto_sivashinsky": (Law("energy kept", "", energy_moved, 0.0),),
    "fisher": (Law("mass kept", "", mass_moved, 0.0),),
    "gray_scott": (Law("mass kept", "", mass_moved, 0.0),),
    "advection_diffusion_2d": (
        Law("bounds of the grid", "extremes of grid values", outside_grid, 0.0),
        Law("energy kept", "", energy_moved, 0.0),
    ),
    "navier_stokes_2d": (Law("energy kept", "", energy_moved, 0.0),),
}


def read(name: str, test_set: str, folder: Path) -> Truth:
    """The truth of `test` or `beyond`."""
    with np.load(folder / f"{name}.npz") as file:
        parts = (file[f"{test_set}_{part}"] for part in ("complete", "totals", "energies"))
        return Truth(EQUATIONS[name], *parts)


def rows(name: str, folder: Path) -> list[tuple[Law, float, float, bool]]:
    """Laws of an equation, broken in `test` and `beyond`, and whether claimed."""
    truths = [read(name, test_set, folder) for test_set in ("test", "beyond")]
    table = []
    for laws, claimed in ((LAWS, True), (NOT_LAWS, False)):
        for law in laws.get(name, ()):
            inside, beyond = (law.broken(truth) for truth in truths)
            table.append((law, inside, beyond, claimed))
    return table


def check(folder: Path = Path("build/testbed/truth")) -> bool:
    """Prints the table; whether all that is claimed holds."""
    print("| equation | law | in words | tolerance | test | beyond | |")
    print("|---|---|---|---|---|---|---|")
    good = True
    for name in EQUATIONS:
        for law, inside, beyond, claimed in rows(name, folder):
            holds = max(inside, beyond) <= law.tolerance
            good &= holds or not claimed
            verdict = ("holds" if holds else "BROKEN") if claimed else "not a law"
            numbers = f"{law.tolerance:.0e} | {inside:.1e} | {beyond:.1e}"
            print(f"| {name} | {law.name} | {law.words} | {numbers} | {verdict} |")
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/testbed/truth"))
    raise SystemExit(not check(parser.parse_args().folder))
