"""The trajectories of the test bed: `make testbed-data`.

Solved by the steppers of exponax, on which apebench stands, in float64 with fourth-order
exponential time differencing; KdV by a stepper of this file. For each equation two files:

data/NAME.npz, float32, for training: `train`, `validation` (trajectories) and `test`, `beyond`
(initial states).
truth/NAME.npz, float64: `validation`; of `test` and `beyond` all functions at `horizons`, the
first ones at all steps (`test_complete`), and `test_totals`, `test_energies`: means of u and u^2
over space at all steps.
"""

import argparse
import time
import zlib
from functools import reduce
from pathlib import Path

import exponax
import jax
import jax.numpy as jnp
import numpy as np
from equations import (
    COMPLETE,
    EQUATIONS,
    FUNCTIONS,
    HORIZONS,
    STEPS,
    TRAINING_STEPS,
    VALIDATION,
    Equation,
    Start,
)

jax.config.update("jax_enable_x64", True)


class KortewegDeVries:
    """One step of u_t - 3 (u^2)_x + u_xxx = 0: Runge-Kutta 4 with an integrating factor.

    The modes below a third of `points` alone, where products are free of aliasing: they keep the
    mean to rounding and the energy to the error of the step. exponax 0.1 drops the imaginary part
    of the coefficients of u_xxx, which makes its steps first order and loses energy.
    """

    def __init__(self, dims: int, extent: float, points: int, dt: float):
        modes = np.arange(points // 2 + 1)
        k = 2 * np.pi / extent * modes
        self.points, self.dt, self.kept = points, dt, 3 * modes < points
        self.half, self.slope = np.exp(0.5j * dt * k**3), 3j * k * self.kept

    def rate(self, u):
        return self.slope * jnp.fft.rfft(jnp.fft.irfft(u, self.points) ** 2)

    def __call__(self, state):
        u, half, dt = jnp.fft.rfft(state) * self.kept, self.half, self.dt
        a = self.rate(u)
        b = self.rate(half * (u + dt / 2 * a))
        c = self.rate(half * u + dt / 2 * b)
        d = self.rate(half * (half * u + dt * c))
        after = half**2 * u + dt / 6 * (half**2 * a + 2 * half * (b + c) + d)
        return jnp.fft.irfft(after, self.points)


def stepper(equation: Equation):
    """What advances one state by `dt`."""
    arguments = (equation.dims, equation.extent, equation.points, equation.dt / equation.substeps)
    if equation.stepper == "KortewegDeVries":
        return exponax.repeat(KortewegDeVries(*arguments), equation.substeps)
    names = equation.stepper.split(".")
    kind = reduce(getattr, names, exponax.stepper)
    linear = "Advection" in names[-1]
    coefficients = {
        name: np.asarray(value) if isinstance(value, tuple) else value
        for name, value in equation.coefficients.items()
    }
    step = kind(*arguments, **coefficients, **({} if linear else {"order": 4}))
    return exponax.RepeatedStepper(step, equation.substeps)


def series(equation: Equation, modes: int, n: int, seed: int) -> np.ndarray:
    """Random Fourier series of mean 0 and largest absolute value 1: (n, 1, *space)."""
    draw = exponax.ic.RandomTruncatedFourierSeries(equation.dims, cutoff=modes, max_one=True)
    key = jax.random.PRNGKey(seed)
    return np.asarray(
        exponax.build_ic_set(draw, num_points=equation.points, num_samples=n, key=key)
    )


def bumps(equation: Equation, start: Start, n: int, rng: np.random.Generator) -> np.ndarray:
    """Two fields in [0, 1] whose sum is 1: (n, 2, *space)."""
    x = np.arange(equation.points) / equation.points
    centre, width, height = (
        rng.uniform(*limits, (n, start.modes, 1))
        for limits in ((0, 1), (0.2, 0.4), start.amplitude)
    )
    each = height * np.exp((np.cos(2 * np.pi * (x - centre)) - 1) / width**2)
    v = 1 - (1 - each).prod(axis=1)
    return np.stack([1 - v, v], axis=1)


def initial(equation: Equation, start: Start, n: int, seed: int) -> np.ndarray:
    """Initial states before the warm-up: (n, channels, *space)."""
    rng = np.random.default_rng(seed)
    if start.kind == "bumps":
        return bumps(equation, start, n, rng)
    waves = series(equation, start.modes, n, seed)
    single = (n, 1) + (1,) * equation.dims
    amplitude, offset = (rng.uniform(*r, single) for r in (start.amplitude, start.offset))
    if start.kind == "peaks":
        space = tuple(range(1, waves.ndim))
        waves = waves - waves.min(space, keepdims=True)
        return offset + (amplitude - offset) * waves / waves.max(space, keepdims=True)
    return amplitude * waves + offset * rng.choice([-1.0, 1.0], single)


def trajectories(equation: Equation, name: str, n: int, steps: int) -> np.ndarray:
    """Solutions of one set: (n, steps + 1, channels, *space)."""
    seed = zlib.crc32(f"{equation.stepper} {equation.dims} {name}".encode())
    start = equation.beyond if name == "beyond" else equation.inside
    step = stepper(equation)
    u = initial(equation, start, n, seed)
    if equation.warmup:
        u = jax.jit(jax.vmap(exponax.repeat(step, equation.warmup)))(u)
    if name == "beyond":
        mean = u.mean(tuple(range(2, u.ndim)), keepdims=True)
        u = mean + equation.scaled * (u - mean) if equation.scaled != 1 else u
    roll = jax.jit(jax.vmap(exponax.rollout(step, steps, include_init=True)))
    return np.concatenate([np.asarray(roll(u[i : i + 80])) for i in range(0, n, 80)])


def truth(u: np.ndarray, name: str, equation: Equation) -> dict:
    """What is kept of a test set."""
    space = tuple(range(3, u.ndim))
    kept = HORIZONS if equation.dims == 1 else (0, *equation.horizons)
    return {
        "horizons": np.array(kept),
        name: u[:, list(kept)],
        f"{name}_complete": u[: COMPLETE if equation.dims == 1 else COMPLETE // 2],
        f"{name}_totals": u.mean(space),
        f"{name}_energies": (u**2).mean(space),
    }


def write(name: str, out: Path) -> None:
    """Both files of an equation, and a line of their sizes."""
    equation, begin = EQUATIONS[name], time.time()
    train = trajectories(equation, "train", equation.training, TRAINING_STEPS)
    validation = trajectories(equation, "validation", VALIDATION, STEPS)
    small, large = {"train": train, "validation": validation}, {"validation": validation}
    for each in ("test", "beyond"):
        u = trajectories(equation, each, FUNCTIONS, STEPS)
        assert np.isfinite(u).all(), (name, each)
        small[each] = u[:, 0]
        large |= truth(u, each, equation)
    paths = out / "data" / f"{name}.npz", out / "truth" / f"{name}.npz"
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(paths[0], **{k: v.astype(np.float32) for k, v in small.items()})
    np.savez_compressed(paths[1], **large)
    sizes = " ".join(f"{path.stat().st_size / 1e6:.1f} MB" for path in paths)
    print(f"{name}: {time.time() - begin:.0f} s, {sizes}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(EQUATIONS))
    parser.add_argument("--out", type=Path, default=Path("build/testbed"))
    options = parser.parse_args()
    for each in options.names or EQUATIONS:
        write(each, options.out)
