"""The fixer inside ACE and CREDIT: with the packages where they are installed, else stand-ins."""

import datetime
import importlib.util
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from probconserv import ImplausibleWarning
from probconserv.errors import InputError
from probconserv.weather import Fixer, Grid, Levels
from probconserv.weather.ace import AceCorrection, register

# states are drawn at random, one by one: no weather changes so fast
pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
STANDINS = Path(__file__).parent / "standins"
LAT, LON = torch.linspace(-75, 75, 6), torch.arange(5) * 72.0
A, B = torch.tensor([500.0, 20000.0, 9000.0, 0.0]), torch.tensor([0.0, 0.1, 0.6, 1.0])
HOURS = 6
FLUXES = ("LHTFLsfc", "SHTFLsfc", "USWRFtoa", "ULWRFtoa", "DSWRFsfc", "USWRFsfc", "DLWRFsfc")


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    if importlib.util.find_spec("fme") is None:
        monkeypatch.syspath_prepend(STANDINS)
        yield
        for name in [n for n in sys.modules if n.split(".")[0] in ("fme", "credit")]:
            del sys.modules[name]
    else:
        yield


def fixer():
    return Fixer(Grid.regular(LAT, LON), Levels.hybrid(A, B), ledger=False)


def air(rng, members=2):
    def field(mean, spread, *shape):
        noise = torch.rand(members, *shape, 6, 5, generator=rng, dtype=torch.float64)
        return mean + spread * noise

    return {
        "surface_pressure": field(99000.0, 2000.0),
        "temperature": field(240.0, 40.0, 3),
        "specific_humidity": field(0.001, 0.008, 3),
        "precipitation": field(1e-5, 5e-5),
    }


def of_ace(state):
    """The fields under the names of ACE, with fluxes."""
    named = {"PRESsfc": state["surface_pressure"], "PRATEsfc": state["precipitation"]}
    for k in range(3):
        named[f"air_temperature_{k}"] = state["temperature"][:, k]
        named[f"specific_total_water_{k}"] = state["specific_humidity"][:, k]
    ones = torch.ones_like(state["surface_pressure"])
    return (
        named
        | {name: 10.0 * (i + 3) * ones for i, name in enumerate(FLUXES)}
        | {"ULWRFsfc": 90.0 * ones}
    )


def forcing():
    ones = torch.ones(2, 6, 5, dtype=torch.float64)
    return {"DSWRFtoa": 200.0 * ones, "HGTsfc": 100.0 * ones}


def state_of_ace(named):
    levels = {"temperature": "air_temperature", "specific_humidity": "specific_total_water"}
    found = {n: torch.stack([named[f"{k}_{i}"] for i in range(3)], 1) for n, k in levels.items()}
    height = 9.80665 * forcing()["HGTsfc"]
    return found | {"surface_pressure": named["PRESsfc"], "surface_geopotential": height}


def test_ace_gets_the_fields_that_were_fixed_and_the_running_totals(rng):
    before, after = air(rng), air(rng)
    correction = AceCorrection(fixer(), HOURS * 3600)
    changed, state = correction(of_ace(before), of_ace(after), forcing(), None)
    both = "air_temperature", "specific_total_water"
    levels = {f"{name}_{k}" for name in both for k in range(3)}
    assert set(changed) == {"PRESsfc", "PRATEsfc"} | levels
    found = fixer().totals(state_of_ace(changed))
    start = fixer().totals(state_of_ace(of_ace(before)))
    rain = Grid.regular(LAT, LON).mean(changed["PRATEsfc"])
    into = 200 - 50 - 60 + (-70 + 80 - 90 + 90 + 40 + 30)  # W m-2, top and surface
    asked = {
        "dry_air": start["dry_air"],
        "water": start["water"] + HOURS * 3600 * (30 / 2.5e6 - rain),
        "energy": start["energy"] + HOURS * 3600 * into,
    }
    for i, name in enumerate(asked):
        assert found[name].tolist() == pytest.approx(asked[name].tolist(), rel=1e-12)
        assert state.global_dry_air_mass[:, 0, i].tolist() == pytest.approx(asked[name].tolist())


def test_the_totals_of_ace_follow_their_samples(rng):
    """Two steps of two samples give what two steps of the second alone give."""
    first, second, third = (of_ace(air(rng)) for _ in range(3))
    correction = AceCorrection(fixer(), 3600.0)
    changed, state = correction(first, second, forcing(), None)
    both, _ = correction({**second, **changed}, third, forcing(), state)

    def last(data):
        return {name: x[1:] for name, x in data.items()}

    carried = type(state).from_state_dict(state.select_sample_slice(slice(1, 2)).to_state_dict())
    alone, _ = correction(last({**second, **changed}), last(third), last(forcing()), carried)
    for name in both:
        torch.testing.assert_close(both[name][1:], alone[name], rtol=1e-12, atol=1e-18)


def energies(rng, data, over):
    """The energy that a step of ACE is corrected to, kJ m-2."""
    before, after = of_ace(air(rng)), of_ace(air(rng))
    correction = AceCorrection(fixer(), 3600.0)
    _, state = correction(before | data, after | data, over, None)
    return state.global_dry_air_mass[:, 0, 2] / 1000


def test_the_ground_of_ace_may_be_a_height_or_a_geopotential():
    ones = torch.ones(2, 6, 5, dtype=torch.float64)
    slope = torch.linspace(-50, 900, 5, dtype=torch.float64) * ones
    grounds = {"HGTsfc": slope}, {"PHIS": 9.80665 * slope}, {}
    sun = {"DSWRFtoa": 200.0 * ones}
    by_height, by_phis, flat = (
        energies(torch.Generator().manual_seed(3), {}, sun | ground) for ground in grounds
    )
    torch.testing.assert_close(by_phis, by_height, rtol=1e-13, atol=0)
    assert (by_phis - flat).min() > 1e3  # some 400 m of ground under 10,000 kg of air


def test_frozen_precipitation_of_ace_may_be_given_in_parts():
    ones = torch.ones(2, 6, 5, dtype=torch.float64)
    parts = {"ICEsfc": 1e-6 * ones, "GRAUPELsfc": 2e-6 * ones, "SNOWsfc": 4e-6 * ones}
    given = {"total_frozen_precipitation_rate": 7e-6 * ones}, parts, {}
    whole, summed, none = (
        energies(torch.Generator().manual_seed(3), data, forcing()) for data in given
    )
    torch.testing.assert_close(summed, whole, rtol=1e-14, atol=0)
    gained = torch.full((2,), 3600 * 3.34e5 * 7e-6 / 1000, dtype=torch.float64)  # 2.3 W m-2
    torch.testing.assert_close(summed - none, gained, rtol=1e-6, atol=0)


def corrector(where, **config):
    """As a configuration of ACE makes it."""
    register("probconserv")
    from fme.core.coordinates import HybridSigmaPressureCoordinate
    from fme.core.dataset_info import DatasetInfo
    from fme.core.registry.corrector import CorrectorSelector

    info = DatasetInfo(
        horizontal_coordinates=where,
        vertical_coordinate=HybridSigmaPressureCoordinate(ak=A, bk=B),
        timestep=datetime.timedelta(hours=HOURS),
    )
    return CorrectorSelector("probconserv", config).get_corrector(info)


def test_ace_finds_the_fixer_by_its_name(rng):
    from fme.core.coordinates import LatLonCoordinates

    laws = ["dry_air", "water", "energy"]
    made = corrector(
        LatLonCoordinates(lon=LON, lat=LAT), std={"temperature": [0.1, 0.5, 1.0]}, laws=laws
    )(of_ace(air(rng)), of_ace(air(rng)), forcing(), None)
    assert made.corrected["PRATEsfc"].min() >= 0
    assert "air_temperature_2" in made.modified_names
    assert made.corrector_state.global_dry_air_mass.shape == (2, 1, 6)


def test_ace_may_have_rows_on_the_poles(rng):
    from fme.core.coordinates import LatLonCoordinates

    lat = torch.linspace(90, -90, 6)  # in float32 the cosine of a pole is -4e-8
    where = LatLonCoordinates(lon=LON, lat=lat)
    before, after = of_ace(air(rng)), of_ace(air(rng))
    made = corrector(where)(before, after, forcing(), None).corrected
    areas = torch.deg2rad(lat.double()).cos().clamp(min=0)
    half = [
        A.double()[:, None, None] + B.double()[:, None, None] * x["PRESsfc"][:, None]
        for x in (before, made)
    ]
    q = [torch.stack([x[f"specific_total_water_{k}"] for k in range(3)], 1) for x in (before, made)]
    dry = [(h.diff(dim=1) * (1 - x)).sum(1).mean(-1) @ areas for h, x in zip(half, q, strict=True)]
    torch.testing.assert_close(*dry, rtol=1e-6, atol=0)


def test_areas_of_ace_that_are_clearly_negative_are_refused():
    from fme.core.coordinates import LatLonCoordinates

    where = LatLonCoordinates(lon=LON, lat=torch.linspace(100, -80, 6))
    with pytest.raises(InputError, match="`areas` must be >= 0"):
        corrector(where)


def test_the_healpix_grids_of_ace_have_equal_areas(rng):
    from fme.core.coordinates import HEALPixCoordinates

    def on_faces(data):  # 30 cells, twice and cut, as 12 faces of 2 x 2
        flat = {name: x.flatten(1).repeat(1, 2)[:, :48] for name, x in data.items()}
        return {name: x.unflatten(1, (12, 2, 2)) for name, x in flat.items()}

    where = HEALPixCoordinates(*(torch.arange(float(n)) for n in (12, 2, 2)))
    before, after, over = (on_faces(x) for x in (of_ace(air(rng)), of_ace(air(rng)), forcing()))
    made = corrector(where)(before, after, over, None)
    dry = [(x["PRESsfc"] - 500) * 1.0 for x in (before, made.corrected)]
    for x, data in zip(dry, (before, made.corrected), strict=True):
        half = A.double()[:, None] + B.double()[:, None] * data["PRESsfc"].flatten(1)[:, None]
        q = torch.stack([data[f"specific_total_water_{k}"].flatten(1) for k in range(3)], 1)
        x -= (half.diff(dim=1) * q).sum(1).unflatten(1, (12, 2, 2))
    torch.testing.assert_close(*(x.mean((1, 2, 3)) for x in dry), rtol=1e-12, atol=0)


def test_gradients_reach_the_network_of_ace(rng):
    before, after = of_ace(air(rng)), of_ace(air(rng))
    after["PRATEsfc"].requires_grad_()
    changed, _ = AceCorrection(fixer(), 3600.0)(before, after, forcing(), None)
    changed["air_temperature_1"].sum().backward()
    assert after["PRATEsfc"].grad.abs().max() > 0


def test_ace_itself_finds_its_dry_air_where_it_was(rng):
    theirs = pytest.importorskip("fme.core.atmosphere_data").AtmosphereData
    from fme.core.coordinates import HybridSigmaPressureCoordinate, LatLonCoordinates

    where = LatLonCoordinates(lon=LON, lat=LAT)
    vertical = HybridSigmaPressureCoordinate(ak=A.double(), bk=B.double())
    own = Fixer(Grid(where.area_weights), Levels.hybrid(A, B), ledger=False)
    before, after = of_ace(air(rng)), of_ace(air(rng))
    changed, _ = AceCorrection(own, 3600.0)(before, after, forcing(), None)
    dry = [theirs(x, vertical).surface_pressure_due_to_dry_air for x in (before, changed)]
    means = [(x * where.area_weights / where.area_weights.sum()).sum((-2, -1)) for x in dry]
    torch.testing.assert_close(means[0], means[1], rtol=1e-6, atol=0)


def test_a_field_that_ace_does_not_have_is_named(rng):
    data = of_ace(air(rng))
    without = {name: x for name, x in data.items() if name != "LHTFLsfc"}
    with pytest.raises(InputError, match="LHTFLsfc or LHFLX"):
        AceCorrection(fixer(), 3600.0)(data, without, forcing(), None)


def test_the_state_of_another_correction_is_refused(rng):
    from fme.core.corrector.state import CorrectorState

    data, state = of_ace(air(rng)), CorrectorState(torch.ones(2, 1, 1))
    with pytest.raises(InputError, match=r"`corrector_state` .* another correction"):
        AceCorrection(fixer(), 3600.0)(data, data, forcing(), state)


KEYS = {
    "surface_pressure": "cam/prognostic/2d/PS",
    "temperature": "cam/prognostic/3d/T",
    "specific_humidity": "cam/prognostic/3d/Qtot",
    "precipitation": "cam/diagnostic/2d/PRECT",
}
SECONDS = HOURS * 3600.0
BLOCK = {"object_type": "postblock", "module_path": "probconserv.weather.credit"}
CONFIG = {
    "custom_objects": {"ConservationFixer": BLOCK},
    "postblocks": {"per_step": {"fix": {"type": "ConservationFixer", "args": {}}}},
}


def of_credit(state):
    """(batch, level, time, lat, lon) by source and variable, rain in metres a step."""
    held = {}
    for name, key in KEYS.items():
        field = state[name] / 1000 * SECONDS if name == "precipitation" else state[name]
        field = field if field.dim() == 4 else field[:, None]
        held[key] = field[:, :, None]
    held["cam/diagnostic/2d/QFLX"] = torch.full_like(held[KEYS["surface_pressure"]], -2e-3)
    return {"cam": held}


@pytest.fixture
def blocks(tmp_path):
    import numpy as np
    import xarray
    from credit.postblock import build_postblocks

    names = {"latitude": LAT, "longitude": LON, "hyai": A, "hybi": B}
    arrays = {name: ((name,), np.asarray(x)) for name, x in names.items() if name[0] == "l"}
    arrays |= {name: (("half",), np.asarray(x)) for name, x in names.items() if name[0] == "h"}
    xarray.Dataset(arrays).to_netcdf(tmp_path / "statics.nc")
    CONFIG["postblocks"]["per_step"]["fix"]["args"] = {
        "statics": str(tmp_path / "statics.nc"),
        "variables": KEYS,
        "seconds": SECONDS,
        "precipitation_factor": 1000 / SECONDS,
        "fluxes": {"evaporation": {"cam/diagnostic/2d/QFLX": -1000 / SECONDS}},
    }
    return build_postblocks(CONFIG, phase="per_step")


def physical(held):
    found = {name: held["cam"][key][:, :, 0] for name, key in KEYS.items()}
    levels = "temperature", "specific_humidity"
    return {name: x if name in levels else x[:, 0] for name, x in found.items()}


def test_credit_applies_the_fixer_after_a_step(rng, blocks):
    from credit.postblock import apply_postblocks

    before, after = of_credit(air(rng)), of_credit(air(rng))
    kept = after["cam"][KEYS["temperature"]].clone()
    batch = {"x_physical": before, "y_processed": after, "metadata": {}}
    fixed = apply_postblocks(blocks, batch)["y_processed"]
    assert {k: x.shape for k, x in fixed["cam"].items()} == {
        k: x.shape for k, x in after["cam"].items()
    }
    start, found = fixer().totals(physical(before)), fixer().totals(physical(fixed))
    rain = Grid.regular(LAT, LON).mean(physical(fixed)["precipitation"]) * 1000  # kg m-2
    torch.testing.assert_close(found["dry_air"], start["dry_air"], rtol=1e-12, atol=0)
    torch.testing.assert_close(found["water"], start["water"] + 2.0 - rain, rtol=1e-12, atol=0)
    torch.testing.assert_close(found["energy"], start["energy"], rtol=1e-12, atol=0)
    assert torch.equal(after["cam"][KEYS["temperature"]], kept)


def test_credit_goes_on_with_the_rollout_that_its_input_belongs_to(rng, blocks):
    """In float32: the totals stay those of the first step, whatever the rounding in between."""
    start = {name: x.float() for name, x in air(rng).items()}
    held = of_credit(start)
    for _ in range(5):
        after = of_credit({name: x.float() for name, x in air(rng).items()})
        (block,) = blocks.values()
        held = block({"x_physical": held, "y_processed": after})["y_processed"]
    wanted = block.fix.fixer.targets()["dry_air"]
    torch.testing.assert_close(wanted, fixer().totals(start)["dry_air"], rtol=1e-14, atol=0)
    assert block.fix.fixer.steps == 5
    block({"x_physical": of_credit(start), "y_processed": after})
    assert block.fix.fixer.steps == 1


def test_metres_of_credit_without_their_factor_are_said(rng, blocks):
    (block,) = blocks.values()
    block.fix.factor = 1.0
    before = of_credit(air(rng))
    with pytest.warns(ImplausibleWarning, match=r"looks like metres in each step: multiply it by"):
        block({"x_physical": before, "y_processed": before})


def test_ace_is_warned_once_in_a_rollout(rng):
    data = of_ace(air(rng))
    data["LHTFLsfc"] = torch.full_like(data["PRESsfc"], 85.0)  # 3.4e-5 kg m-2 s-1
    rain = data | {"PRATEsfc": data["PRATEsfc"] / 1000}
    correction, state = AceCorrection(fixer(), HOURS * 3600), None
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(3):
            _, state = correction(data, rain, forcing(), state)
    told = [str(w.message) for w in found]
    assert sum("looks like m s-1" in text for text in told) == 1
    assert len({text.partition(": ")[2][:20] for text in told}) == len(told)  # others once too


def test_a_variable_that_credit_does_not_have_is_named(rng, blocks):
    before, after = of_credit(air(rng)), of_credit(air(rng))
    del after["cam"][KEYS["specific_humidity"]]
    (block,) = blocks.values()
    with pytest.raises(InputError, match=r"cam/prognostic/3d/Qtot.* specific_humidity"):
        block({"x_physical": before, "y_processed": after})


def test_the_adapters_import_nothing_of_theirs():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import probconserv.weather.ace, "
        "probconserv.weather.credit; assert not {'fme', 'credit'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(STANDINS)], check=True)
