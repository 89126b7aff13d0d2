"""Figures as files."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from ..support import values as check
from ..support.complete_files import complete
from ..support.errors import InputError

ENDINGS = sorted(FigureCanvasBase.get_supported_filetypes())
SAME_EVERY_TIME: Any = {"svg.hashsalt": "probconserv"}  # names inside the file


def save(figure: Figure, path: str | Path) -> Path:
    """Writes a figure to a file and returns its path; the ending says as what.

    It appears under its name only when it is complete. The same figure gives the same file.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        What to write.
    path : str or Path
        The file, such as "mass.svg" or "mass.png".

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    InputError
        If the ending is none that matplotlib can write.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save(Figure(), f"{folder}/empty.svg").name
    'empty.svg'
    """
    path = check.path("path", path)
    if not isinstance(figure, Figure):
        raise InputError(f"`figure` must be a figure of matplotlib, got {type(figure).__name__}.")
    check.choice("ending of path", path.suffix.removeprefix("."), ENDINGS)
    dated: dict[str, Any] = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    with complete(path) as part, matplotlib.rc_context(SAME_EVERY_TIME):
        figure.savefig(part, dpi=150, **dated)
    return path
