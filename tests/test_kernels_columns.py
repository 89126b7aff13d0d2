"""Kernels of columns in Triton's interpreter: the same states, ledgers and words as by torch.

They run where Triton is there and TRITON_INTERPRET is 1.
"""

import os

import pytest
import torch
from test_fixers import LAWS, case, off
from weather import FLUXES, STEP, air, grid_of, levels_of, stepped

from probconserv import ImplausibleWarning
from probconserv.support.errors import InfeasibleError, InputError
from probconserv.weather import Fixer, Levels, _fixer, _fused

pytest.importorskip("triton")
pytestmark = [
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="without a GPU"),
    pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning"),  # it rains too much
]
WIDE = grid_of(9, 16)  # more columns than a programme takes


@pytest.fixture
def taken(monkeypatch):
    """Which calls were done by kernels."""
    found, original = [], _fixer.close_fused

    def counted(task, constants, rounds):
        found.append(rounds)
        return original(task, constants, rounds)

    monkeypatch.setattr(_fixer, "close_fused", counted)
    return found


@pytest.fixture(params=[torch.float32, torch.float64])
def dtype(request):
    return request.param


def steps(monkeypatch, by_kernels, dtype, count=5, grid=WIDE, call=None, **given):
    """Two steps of a rollout, and the fixer."""
    monkeypatch.setattr(_fused, "has_kernels", lambda x: by_kernels)
    levels = levels_of(count)
    fixer, state = Fixer(grid, levels, **given), air(grid, levels, 3, dtype)
    for seed in (1, 2):
        state = fixer(state, stepped(state, seed), STEP, FLUXES, **(call or {}))
    return state, fixer


def both(monkeypatch, *given, **named):
    return [steps(monkeypatch, by_kernels, *given, **named) for by_kernels in (True, False)]


def check_alike(state, other, share):
    for name, x in other.items():
        close = {"rtol": 0, "atol": share * float(x.abs().max())}
        torch.testing.assert_close(state[name], x, **close)


SHARE = {torch.float32: 3e-5, torch.float64: 1e-10}  # the precipitation of float32 most of all


@pytest.mark.parametrize("count", [1, 5])
def test_a_rollout_by_kernels_is_that_of_torch(monkeypatch, taken, dtype, count):
    (fixed, fixer), (other, _) = both(monkeypatch, dtype, count)
    assert len(taken) == 2
    check_alike(fixed, other, SHARE[dtype])
    assert off(fixer, fixed) < {torch.float32: 1e-7, torch.float64: 1e-14}[dtype]
    assert min(float(fixed[n].min()) for n in ("specific_humidity", "precipitation")) == 0


@pytest.mark.parametrize("laws", [("water",), ("dry_air", "energy")])
def test_some_laws_by_kernels_are_those_of_torch(monkeypatch, taken, laws):
    (fixed, _), (other, _) = both(monkeypatch, torch.float64, laws=laws)
    assert len(taken) == 2
    check_alike(fixed, other, 1e-10)


def test_errors_that_are_given_are_taken_by_kernels(monkeypatch, taken):
    rng = torch.Generator().manual_seed(0)
    std = {
        "surface_pressure": 50 * (1 + torch.rand(9, 16, generator=rng)),
        "temperature": 1 + torch.rand(3, 5, 9, 16, generator=rng),
        "specific_humidity": 1e-4 * (1 + torch.rand(5, generator=rng)),
        "precipitation": 1e-5,
    }
    (fixed, _), (other, _) = both(monkeypatch, torch.float64, std=std)
    assert len(taken) == 2
    check_alike(fixed, other, 1e-10)


def test_the_spread_of_members_is_taken_by_kernels(monkeypatch, taken):
    (fixed, _), (other, _) = both(monkeypatch, torch.float64, call={"members": 3})
    assert len(taken) == 2
    check_alike(fixed, other, 1e-9)


def test_the_ledger_of_kernels_is_that_of_torch(monkeypatch, taken):
    pytest.importorskip("xarray")
    ledgers = [fixer.ledger.to_xarray() for _, fixer in both(monkeypatch, torch.float64)]
    for name, x in ledgers[1].data_vars.items():
        y = ledgers[0][name]
        assert y.dims == x.dims
        scale = abs(x).max([d for d in x.dims if d not in ("law", "variable", "on_levels")])
        assert float((abs(x - y) / scale).max()) < 1e-9


def test_slices_of_wider_arrays_are_read_where_they_lie(monkeypatch, taken):
    monkeypatch.setattr(_fused, "has_kernels", lambda x: True)
    fixer, before, after = case()
    wide = {n: torch.cat([x, x], 1)[:, : x.shape[1]] for n, x in after.items() if x.ndim == 4}
    states = [Fixer(fixer.grid, fixer.levels)(before, x, STEP) for x in (after, after | wide)]
    check_alike(*states, 0.0)


def test_totals_that_cannot_be_met_are_refused_in_the_same_words(monkeypatch, taken):
    words = []
    for by_kernels in (True, False):
        monkeypatch.setattr(_fused, "has_kernels", lambda x, there=by_kernels: there)
        fixer, before, after = case()
        nothing = dict.fromkeys(before, 0.0)
        with pytest.raises(InfeasibleError, match=f"no state closes the budget of {LAWS[0]}") as e:
            fixer(before, after, STEP, std=nothing)
        words.append(str(e.value).split(" is missing")[0].rsplit(" ", 1)[0])
        assert not len(fixer.targets())
        assert not len(fixer.ledger)
    assert words[0] == words[1]
    assert len(taken) == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's
@pytest.mark.parametrize("name", ["temperature", "specific_humidity", "surface_pressure"])
def test_values_that_are_not_finite_are_refused_before_all_else(monkeypatch, taken, name):
    monkeypatch.setattr(_fused, "has_kernels", lambda x: True)
    fixer, before, after = case()
    after[name][1, ..., 2, 3] = torch.nan
    with pytest.raises(InputError, match=rf"`after\['{name}'\]` must be finite"):
        fixer(before, after, STEP)
    assert fixer.steps == 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's
@pytest.mark.parametrize("name", ["temperature", "specific_humidity", "surface_pressure"])
def test_a_change_that_is_not_finite_is_no_error_to_go_by(monkeypatch, taken, name):
    fixed, fixer = steps(monkeypatch, True, torch.float32, grid=grid_of())
    kept, after = fixer.targets(), stepped(fixed, 3)
    before = {n: x.clone() for n, x in fixed.items()}
    before[name][1, ..., 2, 3] = torch.nan
    with pytest.raises(InputError, match=rf"step 3: `before\['{name}'\]` must be finite"):
        fixer(before, after, STEP, FLUXES)
    assert len(taken) == 3
    assert all(bool((x == kept[law]).all()) for law, x in fixer.targets().items())


def test_a_far_move_gives_the_same_warning(monkeypatch, taken):
    words = []
    for by_kernels in (True, False):
        monkeypatch.setattr(_fused, "has_kernels", lambda x, there=by_kernels: there)
        fixer, before, after = case()
        with pytest.warns(ImplausibleWarning, match="of its standard deviations") as said:
            fixer(before, after, STEP, FLUXES | {"top_energy": 3000.0})
        words.append([str(each.message)[:90] for each in said])
    assert words[0] == words[1]


@pytest.mark.parametrize("what", ["gradient", "cut", "clouds"])
def test_what_kernels_do_not_take_is_done_by_torch(monkeypatch, taken, what):
    monkeypatch.setattr(_fused, "has_kernels", lambda x: True)
    cut = Levels.pressure([100.0, 2e4, 5e4, 8e4, 9e4, 1.01e5])
    fixer, before, after = case(levels=cut if what == "cut" else None)
    if what == "gradient":
        after["temperature"].requires_grad_()
    if what == "clouds":
        before, after = (x | {"cloud_liquid": 0 * x["temperature"]} for x in (before, after))
    fixed = fixer(before, after, STEP, FLUXES)
    assert not taken
    assert off(fixer, {name: x.detach() for name, x in fixed.items()}) < 1e-13


def test_a_compiled_fixer_takes_the_kernels_in_its_graph(monkeypatch):
    found = []
    for by_kernels in (True, False):
        for module in (_fused, _fixer):
            monkeypatch.setattr(module, "has_kernels", lambda x, there=by_kernels: there)
        fixer, before, after = case(dtype=torch.float32)
        made, graphs = [], []

        def kept(graph, inputs, graphs=graphs):
            graphs.append(graph.code)
            return graph

        called = torch.compile(fixer, fullgraph=True, backend=kept)
        with torch.no_grad():
            for _ in range(2):
                made.append(called(before, after, STEP, FLUXES))
        assert all(("closed_columns" in code) is by_kernels for code in graphs)
        assert off(fixer, made[-1]) < 1e-7
        found.append(made[-1])
    check_alike(*found, SHARE[torch.float32])
