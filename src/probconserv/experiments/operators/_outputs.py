"""What a run leaves in its folder: results, two figures and one page."""

from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

from ... import __version__
from ...support.complete_files import complete, sole_writer
from ...support.errors import InputError
from ._benchmark import Cell
from ._methods import METHODS
from ._tables import as_csv, as_json, cells_of, heading, summaries


def write(cells: Sequence[Cell], out: str | Path, figures: bool = True) -> list[Path]:
    """Writes results.json, results.csv and, with `figures`, two pictures and report.html.

    Parameters
    ----------
    cells : sequence of Cell
        As `benchmark` returns them.
    out : str or Path
        The folder.
    figures : bool
        Whether to draw; needs matplotlib and jinja2.

    Returns
    -------
    list of Path
        The files, each whole or as it was.

    Raises
    ------
    InputError
        If there is no cell.
    """
    if not cells:
        raise InputError("`cells` must hold at least one cell, as `benchmark` returns them.")
    out, records = Path(out), [record for cell in cells for record in cell.records]
    rows = summaries(records)
    texts = {"results.json": as_json(records), "results.csv": as_csv(rows)}
    written = []
    with sole_writer(out):
        if figures:
            from ._figures import examples_figure, save, scores_figure  # needs matplotlib

            pictures = [out / "scores.png", out / "examples.png"]
            save(scores_figure(rows), pictures[0])
            save(examples_figure(cells), pictures[1])
            texts["report.html"] = _report(rows, pictures)
            written += pictures
        for name, text in texts.items():
            with complete(out / name) as part:
                part.write_text(text, encoding="utf-8")
            written.append(out / name)
    return written


def _report(rows: Sequence[dict[str, object]], pictures: Sequence[Path]) -> str:
    from jinja2 import Environment, StrictUndefined

    here = Path(__file__).parent
    css = (here.parent / "paper" / "report.css").read_text("utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(
        (here / "report.html").read_text("utf-8")
    )
    images = [b64encode(path.read_bytes()).decode() for path in pictures]
    return template.render(
        css=css,
        images=images,
        methods=METHODS,
        cells=cells_of(rows),
        heading=heading,
        version=__version__,
    )
