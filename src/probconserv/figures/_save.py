"""Figures as files."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from .._files import complete

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

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save(Figure(), f"{folder}/empty.svg").name
    'empty.svg'
    """
    path = Path(path)
    dated: dict[str, Any] = {"metadata": {"Date": None}} if path.suffix == ".svg" else {}
    with complete(path) as part, matplotlib.rc_context(SAME_EVERY_TIME):
        figure.savefig(part, dpi=150, **dated)
    return path
