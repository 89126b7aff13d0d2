"""What `study.py` found, as the tables of docs/research/laws_that_help.md.

python benchmarks/testbed/report.py build/testbed/*.jsonl
"""

import argparse
import json
import math
from collections import Counter
from pathlib import Path
from statistics import mean, median
from typing import Any

DECIDES = 0.8  # standard deviations of a function's difference
NAMES = {
    "advection_diffusion_2d": "Advection and diffusion in 2-D",
    "fisher": "Fisher-KPP",
    "gray_scott": "Gray-Scott",
    "kdv": "Korteweg-de Vries",
    "kuramoto_sivashinsky": "Kuramoto-Sivashinsky",
    "navier_stokes_2d": "Navier-Stokes in 2-D",
    "pme": "Porous medium",
}
OPPOSITE = {"helps": "harms", "harms": "helps"}


def read(paths: list[str]) -> list[dict[str, Any]]:
    lines = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    return list({found["cell"]: found for found in lines}.values())


def group_of(cell: dict[str, Any]) -> str:
    if cell["where"] == "beyond":
        return "beyond"
    last = cell["source"] == "rollouts" and cell["horizon"] == "60"
    return "rollouts of 60 steps" if last else "in range"


def verdicts(cells: list[dict[str, Any]]) -> None:
    """How often what 20 functions say is right."""
    print("| | laws x cells | help | harm | no difference | contradicted | clear | said |")
    print("|---|---|---|---|---|---|---|---|")
    for name in ("in range", "beyond", "rollouts of 60 steps", "all"):
        ways = [w for c in cells if name in ("all", group_of(c)) for w in c["ways"].values()]
        true = Counter(w["true"] for w in ways)
        wrong = sum(OPPOSITE.get(w["said"]) == w["true"] for w in ways)
        clear = [w for w in ways if w["effect"] > DECIDES]
        said = sum(w["said"] == w["true"] for w in clear)
        share = said / len(clear) if clear else math.nan
        counts = " | ".join(str(true[a]) for a in ("helps", "harms", "no difference"))
        print(f"| {name} | {len(ways)} | {counts} | {wrong} | {len(clear)} | {share:.0%} |")


def answers(cells: list[dict[str, Any]]) -> None:
    """What 20 functions say against what 200 others say."""
    ways = [w for c in cells for w in c["ways"].values()]
    kinds = "helps", "no difference", "harms"
    print("\n| 20 functions say | 200 others: helps | no difference | harms |\n|---|---|---|---|")
    for said in kinds:
        counts = [sum((w["said"], w["true"]) == (said, true) for w in ways) for true in kinds]
        print(f"| {said} | {' | '.join(map(str, counts))} |")
    harms = [-w["gain"] for w in ways if w["true"] == "harms"]
    missed = [-w["gain"] for w in ways if (w["said"], w["true"]) == ("no difference", "harms")]
    print(f"\nharms: median {median(harms):.1%}, {sum(h < 0.01 for h in harms)} below 1 %")
    print(f"missed: median {median(missed):.1%}, {sum(h > 0.05 for h in missed)} above 5 %")


def selected(cells: list[dict[str, Any]]) -> None:
    """What the selected way is worth."""
    print(
        "\n| | cells | no law chosen | CRPS / no law | / no law scaled | worse by three errors "
        "| 90 % intervals: no law | chosen | conformal |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for name in ("in range", "beyond", "rollouts of 60 steps", "all"):
        own = [c for c in cells if name in ("all", group_of(c))]
        none = sum(c["chosen"].startswith("no law") for c in own)
        ratio, scaled = mean(c["ratio"] for c in own), mean(c["ratio"] / c["scaled"] for c in own)
        worse = sum(c["chosen_gain"] < -3 * c["chosen_error"] for c in own)
        shares = (mean(c[key] for c in own) for key in ("coverage", "chosen_coverage", "conformal"))
        inside = " | ".join(f"{x:.0%}" for x in shares)
        print(f"| {name} | {len(own)} | {none} | {ratio:.3f} | {scaled:.3f} | {worse} | {inside} |")


def by_equation(cells: list[dict[str, Any]]) -> list[list[str]]:
    """Where laws help: each law alone and all of them, and the way that was selected."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for c in cells:
        rows.setdefault((NAMES.get(c["equation"], c["equation"].title()), group_of(c)), []).append(
            c
        )
    table = [
        ["equation", "where", "cells", "ways", "help", "harm", "chosen: CRPS / no law", "worst"]
    ]
    for (name, where), own in sorted(rows.items()):
        true = Counter(w["true"] for c in own for w in c["ways"].values())
        ratios = [c["ratio"] for c in own]
        counts = len(own), sum(true.values()), true["helps"], true["harms"]
        table.append([name, where, *map(str, counts), f"{mean(ratios):.2f}", f"{max(ratios):.2f}"])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--csv", type=Path, help="for the table by equation")
    given = parser.parse_args()
    found = read(given.files)
    cells = [c for c in found if "useless" not in c]
    print(f"{len(cells)} cells, {len(found) - len(cells)} left out as useless\n")
    verdicts(cells)
    answers(cells)
    selected(cells)
    table = by_equation(cells)
    print("\n" + "\n".join(" | ".join(row) for row in table))
    if given.csv:
        given.csv.write_text("\n".join(",".join(row) for row in table) + "\n")
    for c in cells:
        if c["chosen_gain"] < -3 * c["chosen_error"]:
            print("worse:", c["cell"], c["chosen"], c["chosen_gain"], c["chosen_error"])
        for way, w in c["ways"].items():
            if OPPOSITE.get(w["said"]) == w["true"]:
                print("contradicted:", c["cell"], way, w["said_gain"], w["gain"], w["error"])


if __name__ == "__main__":
    main()
