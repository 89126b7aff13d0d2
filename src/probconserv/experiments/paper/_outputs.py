"""What a run leaves in its folder: results.json, CSV, LaTeX, figures and the report."""

from collections.abc import Sequence
from pathlib import Path

from ...support.complete_files import complete, sole_writer
from ...support.errors import InputError
from ._cell import Cell, Record
from ._sweep import sweep
from ._tables import as_csv, as_json, as_latex, remarks


def write(cells: Sequence[Cell], out: str | Path) -> list[Path]:
    """Writes results and, where the cells have curves, figures and report; returns the files.

    Each file is whole, or as it was.

    Parameters
    ----------
    cells : sequence of Cell
        As `reproduce` returns them.
    out : str or Path
        The folder.

    Returns
    -------
    list of Path
        results.json, results.csv, results.tex and, with curves, report.html.

    Raises
    ------
    InputError
        If there is no cell.
    """
    if not cells:
        raise InputError("`cells` must hold at least one cell, as `reproduce` returns them.")
    out, penalties = Path(out), _penalties(cells)
    records = [record for cell in cells for record in cell.records]
    fronts = [record for cell in cells for record in cell.fronts]
    texts = {
        "results.json": as_json(records, fronts, penalties),
        "results.csv": as_csv(records),
        "results.tex": as_latex(records),
    }
    with sole_writer(out):
        if all(cell.curves for cell in cells):
            from ._figures import draw, draw_overview  # needs matplotlib
            from ._report import report  # needs jinja2

            pictures = [picture for cell in cells for picture in draw(cell, out / "figures")]
            overview = draw_overview(records, out / "figures")
            texts["report.html"] = report(
                records, penalties, remarks(records), pictures, fronts, overview
            )
        for name, text in texts.items():
            with complete(out / name) as part:
                part.write_text(text, encoding="utf-8")
    return [out / name for name in texts]


def _penalties(cells: Sequence[Cell]) -> list[Record]:
    """The sweep of lambda, beside cells of its problem and protocol."""
    asked = {(cell.experiment.name, cell.plan.protocol) for cell in cells}
    return [r for r in sweep() if (r["problem"], r["protocol"]) in asked]
