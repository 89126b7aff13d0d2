"""A small atmosphere for the tests of fixers, and a step that leaks."""

import torch

from probconserv.weather import Grid, Levels

STEP = 21600.0  # s
FLUXES = {"evaporation": 3e-5, "top_energy": 1.0, "surface_energy": -2.5}


def levels_of(count=5):
    s = torch.linspace(0, 1, count + 1, dtype=torch.float64)
    return Levels.hybrid(2e4 * s * (1 - s) + 100 * (1 - s), s**2)


def grid_of(rows=7, columns=12):
    return Grid.regular(torch.linspace(90, -90, rows), torch.arange(columns) * 360 / columns)


def air(grid, levels, members=2, dtype=torch.float64, seed=0):
    rng = torch.Generator().manual_seed(seed)

    def noise(*shape):
        return torch.randn(members, *shape, *grid.shape, generator=rng, dtype=torch.float64)

    height = levels.nominal.reshape(-1, *(1 for _ in grid.shape)) / 1e5
    found = {
        "surface_pressure": 1e5 + 1000 * noise(),
        "temperature": 200 + 90 * height + 5 * noise(levels.count),
        "specific_humidity": 0.015 * height**3 * (1 + 0.5 * noise(levels.count)).clamp(0.0),
        "precipitation": (3e-5 * noise()).clamp(0.0),
    }
    return {name: x.to(dtype) for name, x in found.items()}


def stepped(state, seed=1):
    """What a leaky model makes of a state: noise, biases, and values below zero."""
    rng = torch.Generator().manual_seed(seed)

    def noise(name):
        x = state[name]
        return torch.randn(x.shape, generator=rng, dtype=torch.float64).to(x.dtype)

    return state | {
        "surface_pressure": state["surface_pressure"] - 10 + 20 * noise("surface_pressure"),
        "temperature": state["temperature"] + 0.1 + 0.5 * noise("temperature"),
        "specific_humidity": state["specific_humidity"] * (1.01 + 0.3 * noise("temperature"))
        - 1e-6,
        "precipitation": state["precipitation"] * (1 + 0.3 * noise("precipitation")) - 1e-7,
    }
