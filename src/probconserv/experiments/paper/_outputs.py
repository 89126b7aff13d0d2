"""What a run leaves in its folder: results.json, CSV, figures and the report."""

from collections.abc import Sequence
from pathlib import Path

from ...support.complete_files import sole_writer
from .._runs import as_csv, at_least_one, written
from ._experiments import sweep
from ._reproduce import Cell
from ._tables import as_json, remarks


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
        results.json, results.csv and, with curves, report.html.

    Raises
    ------
    InputError
        If there is no cell.
    """
    at_least_one("cells", cells, "cell", "reproduce")
    out, asked = Path(out), {(cell.experiment.name, cell.plan.protocol) for cell in cells}
    penalties = [r for r in sweep() if (r["problem"], r["protocol"]) in asked]
    records = [record for cell in cells for record in cell.records]
    fronts = [record for cell in cells for record in cell.fronts]
    texts = {
        "results.json": as_json(records, fronts, penalties),
        "results.csv": as_csv(records),
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
        return written(out, texts)
