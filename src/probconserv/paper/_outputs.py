"""What a run leaves in its folder: results.json, CSV, LaTeX, figures and the report."""

import json
from collections.abc import Sequence
from pathlib import Path

from .._files import complete
from ._cell import Cell, Record
from ._sweep import sweep
from ._tables import as_csv, as_latex, remarks


def write(cells: Sequence[Cell], out: Path) -> list[Path]:
    """Results and, where the cells have curves, figures and report.html; each whole or as it was.

    results.json is described in docs/results.md.
    """
    out = Path(out)
    records, fronts, penalties = _records(cells), _fronts(cells), _penalties(cells)
    content = {"schema": 1, "records": records, "fronts": fronts, "sweep": penalties}
    texts = {
        "results.json": json.dumps(content, indent=1) + "\n",
        "results.csv": as_csv(records),
        "results.tex": as_latex(records),
    }
    if all(cell.curves for cell in cells):
        from ._figures import draw  # needs matplotlib
        from ._report import report  # needs jinja2

        pictures = [picture for cell in cells for picture in draw(cell, out / "figures")]
        texts["report.html"] = report(records, penalties, remarks(records), pictures)
    for name, text in texts.items():
        with complete(out / name) as part:
            part.write_text(text, encoding="utf-8")
    return [out / name for name in texts]


def _records(cells: Sequence[Cell]) -> list[Record]:
    return [record for cell in cells for record in cell.records]


def _fronts(cells: Sequence[Cell]) -> list[Record]:
    return [record for cell in cells for record in cell.fronts]


def _penalties(cells: Sequence[Cell]) -> list[Record]:
    """The sweep of lambda, beside cells of its problem and protocol."""
    asked = {(cell.experiment.name, cell.records[0]["protocol"]) for cell in cells}
    return [r for r in sweep() if (r["problem"], r["protocol"]) in asked]
