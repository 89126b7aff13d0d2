"""Errors learned from held-out steps: what belongs together is corrected together."""

import pytest
import torch

from probconserv.errors import InputError
from probconserv.weather import Fixer, Grid, LearnedErrors, Levels

GRID = Grid.regular(torch.linspace(-80, 80, 9), torch.arange(7) * 360 / 7)
LEVELS = Levels.hybrid([1000.0, 15000.0, 8000.0, 0.0], [0.0, 0.1, 0.6, 1.0])


def air(rng, n):
    def field(mean, spread, *shape):
        return mean + spread * torch.rand(n, *shape, 9, 7, generator=rng, dtype=torch.float64)

    return {
        "surface_pressure": field(99000.0, 2000.0),
        "temperature": field(240.0, 40.0, 3),
        "specific_humidity": field(0.001, 0.008, 3),
        "precipitation": field(0.0, 5e-5),
    }


def wrong(truth, rng, names=None):
    """Truth plus one pattern for each variable, as much of it as each step happens to have."""
    made, patterns = {}, {}
    fixed = torch.Generator().manual_seed(3)
    for name, x in truth.items():
        pattern = 0.01 * x.mean() * torch.rand(x.shape[1:], generator=fixed, dtype=x.dtype)
        pattern = x if name == "precipitation" else pattern
        amount = torch.randn(len(x), generator=rng, dtype=x.dtype) + 1
        size = (amount * 0.3).reshape(-1, *[1] * (x.dim() - 1))
        made[name] = x + size * pattern if names is None or name in names else x
        patterns[name] = pattern
    return made, patterns


@pytest.mark.parametrize("name", ["surface_pressure", "temperature", "precipitation"])
def test_an_error_of_the_learned_pattern_is_taken_back_whole(rng, name):
    truth = air(rng, 50)
    learned = LearnedErrors(GRID, LEVELS, wrong(truth, rng)[0], truth)
    before = {n: x[:4] for n, x in truth.items()}
    after, _ = wrong(before, rng, names=(name,))
    law = {"surface_pressure": "dry_air", "precipitation": "water", "temperature": "energy"}[name]
    std = {n: s if n == name else 0.0 for n, s in learned(after).items()}
    start = Fixer(GRID, LEVELS).totals(before)
    rain = GRID.mean(before["precipitation"])
    fluxes = {"evaporation": rain}  # as much as the truth rains
    fixed = Fixer(GRID, LEVELS, laws=(law,))(before, after, 3600.0, fluxes, std=std)
    torch.testing.assert_close(fixed[name], before[name], rtol=2e-3, atol=1e-9)
    assert torch.allclose(Fixer(GRID, LEVELS).totals(fixed)[law], start[law], rtol=1e-12)


def test_precipitation_is_corrected_by_a_factor(rng):
    truth = air(rng, 20)
    learned = LearnedErrors(GRID, LEVELS, wrong(truth, rng)[0], truth)
    after = truth | {"precipitation": truth["precipitation"] * (truth["precipitation"] > 2e-5)}
    fluxes = {"evaporation": GRID.mean(truth["precipitation"])}
    std = dict.fromkeys(truth, 0.0) | {"precipitation": learned(after)["precipitation"]}
    rain = Fixer(GRID, LEVELS, laws=("water",))(truth, after, 3600.0, fluxes, std)["precipitation"]
    factor = GRID.mean(truth["precipitation"]) / GRID.mean(after["precipitation"])
    torch.testing.assert_close(rain, after["precipitation"] * factor[:, None, None])


def test_steps_of_different_shapes_are_refused(rng):
    truth = air(rng, 5)
    made, _ = wrong(truth, rng)
    few = {name: x[:3] for name, x in made.items()}
    with pytest.raises(InputError, match=r"`predicted\['surface_pressure'\]` .* one shape"):
        LearnedErrors(GRID, LEVELS, few, truth)
    with pytest.raises(InputError, match=r"`predicted\['temperature'\]` has the shape \(3, 3, 9"):
        LearnedErrors(GRID, LEVELS, made | {"temperature": few["temperature"]}, truth)


def test_steps_that_are_not_whole_states_are_refused(rng):
    truth = air(rng, 5)
    made, _ = wrong(truth, rng)
    dry = {name: x for name, x in made.items() if name != "precipitation"}
    with pytest.raises(InputError, match="`predicted` has no 'precipitation'; it needs"):
        LearnedErrors(GRID, LEVELS, dry, truth)
    with pytest.raises(InputError, match="`after` has no 'precipitation'; it needs precipitation"):
        LearnedErrors(GRID, LEVELS, made, truth)(dry)
    with pytest.raises(InputError, match=r"`truth\['temperature'\]` must be finite"):
        LearnedErrors(GRID, LEVELS, made, truth | {"temperature": truth["temperature"] * torch.nan})
    with pytest.raises(InputError, match=r"`predicted\['temperature'\]` has the shape"):
        LearnedErrors(GRID, Levels.hybrid([0.0, 1e4, 0.0], [0.0, 0.1, 1.0]), made, truth)


def test_steps_without_errors_are_refused(rng):
    truth = air(rng, 5)
    with pytest.raises(InputError, match=r"`predicted\['surface_pressure'\]` has no error"):
        LearnedErrors(GRID, LEVELS, truth, truth)
