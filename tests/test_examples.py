from pathlib import Path

import pytest
import torch
from commands import script

import probconserv as pc

ROOT = Path(__file__).parents[1]
ELSEWHERE = "air_temperature", "sea_surface", "heat_budget"  # test_climate_files, test_heat_budget
FEWER = {  # of what makes an example slow and shows nothing more
    "euler_tube": {"CELLS, DRAWS, TIME, GAMMA = 64, 20,": "CELLS, DRAWS, TIME, GAMMA = 20, 2,"},
    "falling_front": {"draws=1000": "draws=100"},
    "finite_volumes": {"CELLS, TIMES, SPEED, WIDTH = 201,": "CELLS, TIMES, SPEED, WIDTH = 33,"},
    "flow_sheet": {"UNITS, OUT, DRAWS = 12, 12, 50": "UNITS, OUT, DRAWS = 12, 12, 2"},
    "foreign_network": {"in range(500)": "in range(5)"},
    "positive_tracer": {"STEPS = 3_000_000, 20": "STEPS = 3_000_000, 3", "TEST, 16": "TEST, 3"},
    "shallow_water": {"STEPS, FURTHER = 8, 50, 150": "STEPS, FURTHER = 2, 3, 4"},
    "tracer": {"TEST, 32": "TEST, 3", "steps=20": "steps=3", "range(20)": "range(3)"}
    | {", 20]": ", 3]"},
    "vortex": {"STEPS = 3_000_000, 50": "STEPS = 3_000_000, 3", "TEST, 8": "TEST, 3"},
}
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.stem not in ELSEWHERE]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_leave_a_picture(path, tmp_path, monkeypatch):
    text = path.read_text()
    for whole, fewer in FEWER.get(path.stem, {}).items():
        assert whole in text
        text = text.replace(whole, fewer)
    (tmp_path / path.name).write_text(text)
    monkeypatch.syspath_prepend(path.parent)
    for report in ("vortices.report", "waters.report"):
        monkeypatch.setattr(f"{report}.SHOWN", (1, 2, 3))
    script(tmp_path / path.name, tmp_path)
    assert (tmp_path / "out" / f"{path.stem}.png").stat().st_size > 10_000


def test_the_tracers_of_the_example_obey_the_laws_of_its_cells_and_blocks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    from tracers.laws import of_blocks
    from tracers.model import CELLS, EDGES, STEP, averages, drawn, fluxes

    tracers = drawn(seed=5, n=2)
    fields = dict(zip(("fx", "fy"), fluxes(*tracers), strict=True), u=averages(*tracers))
    mesh = pc.Mesh(x=EDGES, y=EDGES, periodic=("x", "y"))
    law = pc.cell_budgets(mesh, t=[0.0, STEP], fluxes=("fx", "fy"))
    for each in (law, of_blocks(law, CELLS, 4)):
        assert each.residual(fields).abs().max() < 1e-15
        assert each.residual(fields | {"u": 2 * fields["u"]}).abs().max() > 1e-6


def test_the_vortices_of_the_example_keep_their_energy_and_enstrophy(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    from vortices.model import CELLS, drawn, energy, enstrophy, solved

    x = 2 * torch.pi / CELLS * torch.arange(CELLS, dtype=torch.float64)
    wave = (2 * x[:, None] + 3 * x).cos()  # psi = wave / 13
    assert float(energy(wave)) == pytest.approx(1 / 4 / 13)
    assert float(enstrophy(wave)) == pytest.approx(1 / 4)
    w = solved(drawn(seed=5, n=2), steps=4)
    assert (w[:, -1] - w[:, 0]).abs().max() > 0.1
    for invariant in (energy, enstrophy):
        assert (invariant(w) / invariant(w[:, :1]) - 1).abs().max() < 1e-9


def test_the_waters_of_the_example_keep_their_mass_momentum_and_energy(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    from waters.model import CELLS, drawn, energy, rescaled, solved

    x = 2 * torch.pi / CELLS * torch.arange(CELLS, dtype=torch.float64).expand(CELLS, CELLS)
    resting, moving = torch.ones_like(x), 0.1 * x.cos()
    assert float(energy(torch.stack([resting, moving, moving]))) == pytest.approx(0.01 / 2)
    assert float(energy(torch.stack([1 + moving, 0 * x, 0 * x]))) == pytest.approx(0.01 / 4)
    state = solved(drawn(seed=5, n=2), steps=4)
    assert (state[:, -1] - state[:, 0]).abs().max() > 0.03
    means = state.mean((-2, -1))
    assert (means - means[:, :1]).abs().max() < 1e-8
    assert (energy(state) / energy(state[:, :1]) - 1).abs().max() < 1e-6
    mended = rescaled(1.02 * state[None, :, 4], state[:, 0])
    torch.testing.assert_close(mended.mean((-2, -1))[0], means[:, 0])
    torch.testing.assert_close(energy(mended)[0], energy(state[:, 0]))


def test_the_wave_of_a_small_disturbance_travels_at_speed_one(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "examples")
    from waters.model import CELLS, FINE, STEP, solved

    x = 2 * torch.pi * torch.arange(FINE, dtype=torch.float64)[:, None].expand(FINE, FINE) / FINE
    wave = 1e-6 * (2 * x).cos()
    after = solved(torch.stack([1 + wave, wave, 0 * wave])[None], steps=5)[0, -1, 0]
    x = 2 * torch.pi * torch.arange(CELLS, dtype=torch.float64)[:, None] / CELLS
    expected = 1 + 1e-6 * (2 * (x - 5 * STEP)).cos().expand(CELLS, CELLS)
    torch.testing.assert_close(after, expected, atol=1e-10, rtol=0)
