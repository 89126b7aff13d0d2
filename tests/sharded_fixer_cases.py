"""Two processes fix states in shards; the first writes what came out as JSON.

Run by `test_fixers_sharded.py`.
"""

import copy
import json
import os
import sys
import warnings
from datetime import timedelta

import torch
import torch._dynamo  # which DTensor imports, here once before the forks
import torch.distributed as dist
import torch.distributed.tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.multiprocessing import start_processes
from weather import STEP, air, grid_of, levels_of, stepped

from probconserv.support.checks import unlooked
from probconserv.weather import Fixer

GRID, LEVELS, MEMBERS = grid_of(7, 9), levels_of(4), 3
SURFACE = "surface_pressure", "precipitation", "evaporation"
WHERE = {"batch": 0, "rows": 1, "columns": 2}  # the axis of a map
WET = 3e-5 + 1e-6 * torch.randn(3, 7, 9, generator=torch.Generator().manual_seed(3))


def fluxes():
    heat = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    return {"evaporation": WET.double(), "top_energy": heat, "surface_energy": -2.5}


def put(name, x, mesh, axis):
    own = axis + (axis > 0 and name not in SURFACE)
    return distribute_tensor(x, mesh, [Replicate() if axis < 0 else Shard(own)])


def laid(name, x, mesh, axis):
    """The ground has no axis of members."""
    if name != "surface_geopotential":
        return put(name, x, mesh, axis)
    return distribute_tensor(x, mesh, [Shard(axis - 1) if axis > 0 else Replicate()])


def spread(state, mesh, axis):
    return {name: put(name, x, mesh, axis) for name, x in state.items()}


def off(found, wanted):
    found = found.full_tensor() if isinstance(found, DTensor) else found
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    return float((found - wanted).detach().abs().max() / wanted.detach().abs().max())


def clouded(state):
    """With what counts and does not move."""
    winds, ground = 10 + state["temperature"] / 30, 1e3 * torch.linspace(-1, 1, 63).reshape(7, 9)
    more = {"eastward_wind": winds, "surface_geopotential": ground, "other": "as it was"}
    return state | {"cloud_ice": 1e-5 + 0 * winds, **more}


def start():
    return air(GRID, LEVELS, MEMBERS)


def rollout(fixer, place, flows, **more):
    """Three steps, from one state, each of which is fixed as the processes hold it."""
    now, found = place(start()), []
    for seed in range(3):
        whole = {n: x.full_tensor() if isinstance(x, DTensor) else x for n, x in now.items()}
        now = fixer(now, place(stepped(whole, seed)), STEP, flows, **more)
        found.append(now)
    return found


STD = {"temperature": 0.5 + torch.rand(4, 7, 9, generator=torch.Generator().manual_seed(5))}
STD |= {"precipitation": 2e-6 + 1e-6 * torch.arange(3 * 63.0).reshape(3, 7, 9)}
KINDS = {"usual": ({}, {}), "std": ({"std": STD}, {}), "members": ({}, {"members": 3})}

TIGHT = {"surface_pressure": 0.1, "specific_humidity": 1e-9}

ALONE = {}  # what one process finds, before the forks


def alone():
    for kind, (given, more) in KINDS.items():
        fixer = Fixer(GRID, LEVELS, **given)
        ALONE[kind] = fixer, rollout(fixer, lambda x: x, fluxes(), **more), fixer.ledger.to_xarray()


def same(mesh):
    """The largest difference to one process, of states, totals, targets and ledger."""
    found = {}
    for kind, (given, more) in KINDS.items():
        one, wanted, old = ALONE[kind]
        for where, axis in WHERE.items():
            if (kind, where) == ("members", "batch"):
                continue
            fixer = Fixer(GRID, LEVELS, **given)
            flows = fluxes() | {"evaporation": put("evaporation", WET.double(), mesh, axis)}
            states = rollout(fixer, lambda x, axis=axis: spread(x, mesh, axis), flows, **more)
            each = {n: off(states[2][n], wanted[2][n]) for n in wanted[2]}
            totals, targets = fixer.totals(states[2]), fixer.targets()
            for law, x in one.totals(wanted[2]).items():
                each[law] = max(off(totals[law], x), off(targets[law], one.targets()[law]))
            new = copy.deepcopy(fixer).ledger.to_xarray()
            for name in old:
                size = abs(old[name]).max([d for d in old[name].dims if d in ("step", "member")])
                if name in ("correction", "map", "profile"):  # differences of what the state has
                    size = old["variable" if name != "profile" else "on_levels"].copy()
                    size = size.copy(data=[float(start()[str(n)].max()) for n in size.values])
                each[f"ledger {name}"] = float(abs((new[name] - old[name]) / size).max())
            placements = {n: str(x.placements) for n, x in states[2].items()}
            assert placements == {
                n: str(x.placements) for n, x in spread(start(), mesh, axis).items()
            }
            found[f"{kind}, {where}"] = each
    return found


def whole_and_counted(mesh):
    """All of a state on both processes; clouds and winds, which are handed through."""
    before, after = clouded(start()), clouded(stepped(start()))
    wanted = Fixer(GRID, LEVELS)(before, after, STEP)
    found = {}
    for axis in (-1, 0, 2):
        old, new = (
            {n: x if n == "other" else laid(n, x, mesh, axis) for n, x in state.items()}
            for state in (before, after)
        )
        fixed = Fixer(GRID, LEVELS)(old, new, STEP)
        assert fixed["other"] == "as it was"
        assert fixed["cloud_ice"] is new["cloud_ice"]
        found[str(axis)] = max(off(x, wanted[n]) for n, x in fixed.items() if n != "other")
    return found


def gradients(mesh):
    """Of a sum of squares, to the state before, after, and the fluxes."""

    def of(place, axis=None):
        flows = fluxes()
        if axis is not None:
            flows["evaporation"] = put("evaporation", flows["evaporation"], mesh, axis)
        old, new = place(start()), place(stepped(start()))
        leaves = [*old.values(), *new.values(), flows["evaporation"], flows["top_energy"]]
        for x in leaves:
            x.requires_grad_()
        fixer = Fixer(GRID, LEVELS)
        fixed = fixer(old, new, STEP, flows)
        total = fixer.totals(fixed)["energy"].square().sum() / 1e18
        loss = sum((x / float(start()[n].max())).square().sum() for n, x in fixed.items())
        loss = loss.full_tensor() if isinstance(loss, DTensor) else loss
        (loss + total).backward()
        return [x.grad for x in leaves if x.grad is not None]

    wanted, found = of(lambda x: x), {}
    for where, axis in WHERE.items():
        each = of(lambda x, axis=axis: spread(x, mesh, axis), axis)
        found[where] = [off(x, y) for x, y in zip(each, wanted, strict=True)]
    return found


def said(work):
    """What it raises or warns of, the same on both processes."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            work()
            text = "; ".join(str(each.message) for each in seen)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
    every = [None, None]
    dist.all_gather_object(every, text)
    assert every[0] == every[1], every
    return text


def wrong(mesh):
    def step(axis, change, fluxes=None, **given):
        after = stepped(start())
        change(after)
        old, new = spread(start(), mesh, axis), spread(after, mesh, axis)
        return said(lambda: Fixer(GRID, LEVELS, **given)(old, new, STEP, fluxes))

    def spoil(name, value, member=2):
        return lambda state: state[name][member, ..., -1, -1].fill_(value)

    def none(state):
        pass

    dry = {"evaporation": torch.tensor([0.0, 0.0, -0.05], dtype=torch.float64)}
    return {
        "nan, batch": step(0, spoil("temperature", torch.nan)),
        "nan, columns": step(2, spoil("temperature", torch.nan)),
        "units": step(1, spoil("temperature", 10.0)),
        "infeasible, batch": step(0, none, dry),
        "infeasible, columns": step(2, none, dry),
        "far, batch": step(0, none, std=TIGHT, laws=["dry_air"]),
        "far, columns": step(2, none, std=TIGHT, laws=["dry_air"]),
    }


def refused(mesh):
    old, new = (spread(x, mesh, 2) for x in (start(), stepped(start())))
    plain, fixer = stepped(start()), Fixer(GRID, LEVELS)
    warm, rows = plain["temperature"], [Shard(1)]
    partial = DTensor.from_local(plain["surface_pressure"], mesh, [Partial()], run_check=False)
    cut = 2 if mesh.get_local_rank() else 7
    odd = DTensor.from_local(
        warm[..., :cut], mesh, [Shard(3)], run_check=False, shape=warm.shape, stride=warm.stride()
    )
    batch = [spread(x, mesh, 0) for x in (start(), plain)]
    one = [spread({n: x[:1] for n, x in s.items()}, mesh, 0) for s in (start(), plain)]

    def step(change, before=None, fluxes=None, **more):
        return said(lambda: fixer(before or old, new | change, STEP, fluxes, **more))

    def unseen():
        with unlooked():
            fixer(old, new, STEP)

    return {
        "levels": step({"temperature": distribute_tensor(warm, mesh, rows)}),
        "mixed": step({"temperature": warm}),
        "plain before": step({}, start()),
        "plain after": said(lambda: fixer(old, plain, STEP)),
        "fewer before": step({}, spread({n: x[:2] for n, x in start().items()}, mesh, 2)),
        "no before": said(lambda: fixer(None, new, STEP)),
        "partial": step({"surface_pressure": partial}),
        "odd": step({"temperature": odd}),
        "members": said(lambda: fixer(*batch, STEP, members=3)),
        "empty": said(lambda: fixer(*one, STEP)),
        "std": step({}, std={"temperature": new["temperature"]}),
        "flux": step({}, fluxes={"evaporation": WET.double()}),
        "flux of one process": said(
            lambda: fixer(start(), plain, STEP, {"evaporation": old["precipitation"]})
        ),
        "compiled": said(unseen),
        "totals": said(lambda: fixer.totals(plain | {"temperature": new["temperature"]})),
    }


CASES = same, whole_and_counted, gradients, wrong, refused


def run(rank, path):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{path}.store", rank=rank, world_size=2,
        timeout=timedelta(seconds=30),
    )  # fmt: skip
    mesh, found = init_device_mesh("cpu", (2,)), {}
    for case in CASES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found[case.__name__] = case(mesh)
    if rank == 0:
        with open(path, "w") as file:
            json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")
    alone()
    start_processes(run, (sys.argv[1],), nprocs=2, start_method="fork")
