"""Does a law help, and did `compare` and `select` know it from 20 functions?

    python benchmarks/testbed/study.py rollouts operators paper --out build/testbed/study.jsonl

Writes a line for each cell (resumable), and prints what `report.py` makes of them.
"""

import argparse
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from cells import CALIBRATE, GIVEN, JUDGED, USELESS, Cell, of_the_paper, operators, rolled_out

import probconserv as pc
from probconserv.diagnostics import conformal
from probconserv.diagnostics.ways import usual_ways

DRAWS = 25  # where there are inequalities
RUNS = Path("build/testbed/runs")


def sources(names: list[str]) -> Any:
    if "rollouts" in names:
        yield from rolled_out(RUNS)
    if "operators" in names:
        yield from operators()
    if "paper" in names:
        yield from of_the_paper()


def judged(cell: Cell) -> dict[str, Any]:
    """What 20 functions say of each way, what 200 others do, and what was selected."""
    found: dict[str, Any] = {"cell": cell.key, "source": cell.source, "equation": cell.equation}
    found |= {"model": cell.model, "where": cell.where, "horizon": cell.horizon}
    few, many = ((cell.prior(p), cell.truth(p), cell.laws(p)) for p in (GIVEN, JUDGED))
    relative = _relative(many[0], many[1])
    if not relative < USELESS:
        return found | {"useless": relative}
    start = time.perf_counter()
    tried = usual_ways(few[0], few[2], DRAWS)
    tried = {n: w for n, w in tried.items() if not w.inflated and w.points == "given"}
    del tried["no law"]
    said, true = (pc.compare(f, u, *laws, ways=tried, samples=4) for f, u, laws in (few, many))
    ways = {}
    for way in true.ways[1:]:
        if way not in said.ways:
            continue
        one, other, reach = said.difference(way), true.difference(way), true.reach(way)
        spread = other.error * math.sqrt(other.count)
        ways[way] = {
            "said": one.answer,
            "said_gain": one.gain / one.base,
            "true": other.answer,
            "gain": other.gain / other.base,
            "error": other.error / other.base,
            "effect": abs(other.gain) / spread if spread else 0.0,
            "reach": reach.share,
            "multiple": reach.multiple,
            "coverage": float(true.scores[way]["coverage_90"].mean()),
            "mse": float((true.scores[way]["RMSE"] ** 2).mean()),
            "crps": other.value,
        }
    found |= {"relative": relative, "ways": ways, "failed": [*said.failed, *true.failed]}
    base = true.scores["no law"]
    found |= {
        "crps": float(base["CRPS"].mean()),
        "mse": float((base["RMSE"] ** 2).mean()),
        "coverage": float(base["coverage_90"].mean()),
    }
    return found | _selected(cell, few, many) | {"seconds": time.perf_counter() - start}


def _selected(cell: Cell, few: Any, many: Any) -> dict[str, Any]:
    """The way that 20 functions ask for, and what it is worth for 200 others."""
    choice = pc.select(few[0], few[1], *few[2], draws=DRAWS)
    scaled = pc.select(few[0], few[1], ways=[]).way  # no law, with the variance it asks for
    true = pc.compare(
        many[0], many[1], *many[2], ways={"chosen": choice.way, "scaled": scaled}, samples=2
    )
    one = true.difference("chosen")
    honest = choice.honest
    field = choice.way(cell.prior(CALIBRATE), *cell.laws(CALIBRATE))
    widths = conformal(field, cell.truth(CALIBRATE))
    after = choice.way(many[0], *many[2])
    return {
        "chosen": str(choice.way),
        "ratio": one.value / one.base,
        "chosen_gain": one.gain / one.base,
        "chosen_error": one.error / one.base,
        "promised": honest.gain / honest.base,
        "promised_error": honest.error / honest.base,
        "scaled": true.difference("scaled").value / one.base,
        "chosen_coverage": float(true.scores["chosen"]["coverage_90"].mean()),
        "conformal": _inside(widths.interval(after), many[1]),
    }


def _scaled(few: Any, many: Any) -> dict[str, Any]:
    """No law, with the variance that it asks for."""
    way = pc.select(few[0], few[1], ways=[]).way
    found = pc.compare(many[0], many[1], ways={"scaled": way}, samples=1).difference("scaled")
    return {"scaled": found.value / found.base}


def _inside(ends: Any, truth: Any) -> float:
    if isinstance(truth, dict):
        return sum(_inside(ends[name], truth[name]) for name in truth) / len(truth)
    low, high = ends
    return float(((low <= truth) & (truth <= high)).double().mean())


def _relative(prior: Any, truth: Any) -> float:
    """The error of the mean over the spread of the truth; of a state the largest."""
    if isinstance(truth, dict):
        return max(_relative(prior[name], truth[name]) for name in truth)
    return float((prior.mean - truth).square().mean().sqrt() / truth.std())


def again(given: argparse.Namespace, done: dict[str, Any]) -> None:
    """What is selected by the code as it is now, beside verdicts as they were."""
    out = given.out.with_suffix(".again.jsonl")
    there = (
        {json.loads(line)["cell"] for line in out.read_text().splitlines()} if out.exists() else {}
    )
    with out.open("a") as file:
        for cell in sources(given.sources):
            if cell.key not in done or cell.key in there:
                continue
            found = done[cell.key]
            if "useless" not in found:
                few, many = ((cell.prior(p), cell.truth(p), cell.laws(p)) for p in (GIVEN, JUDGED))
                found |= _scaled(few, many) if given.scaled else _selected(cell, few, many)
            file.write(json.dumps(found) + "\n")
            file.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="+", choices=["rollouts", "operators", "paper"])
    parser.add_argument("--again", action="store_true", help="select again, for cells in --out")
    parser.add_argument("--scaled", action="store_true", help="of these no law alone")
    parser.add_argument("--every", type=int, nargs=2, default=(0, 1), help="every B-th cell from A")
    parser.add_argument("--out", type=Path, default=Path("build/testbed/study.jsonl"))
    given = parser.parse_args()
    there = given.out.read_text().splitlines() if given.out.exists() else []
    done = {found["cell"]: found for found in map(json.loads, there)}
    warnings.simplefilter("ignore", pc.ImplausibleWarning)
    if given.again:
        again(given, done)
        return
    with given.out.open("a") as file:
        for number, cell in enumerate(sources(given.sources)):
            if cell.key in done or number % given.every[1] != given.every[0]:
                continue
            found = judged(cell)
            file.write(json.dumps(found) + "\n")
            file.flush()
            text = f"{found.get('seconds', 0):.0f} s, {found.get('chosen', 'useless')}"
            print(f"{cell.key}: {text}, {found.get('ratio', math.nan):.3f}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
