"""Commands and scripts run in this process: a new one takes seconds to import torch."""

import contextlib
import io
import runpy
import subprocess

import matplotlib.pyplot as plt
import pytest
import torch
from rich.console import Console

from probconserv.cli.main import app, main


def called(*words, columns=80):
    """What the command says and its exit status, as of a process."""
    words = [str(word) for word in words]
    out, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("COLUMNS", str(columns))
        patch.setattr(app, "console", Console())  # the one of another call is as wide as it was
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
    return subprocess.CompletedProcess(words, status or 0, out.getvalue(), errors.getvalue())


def script(path, folder):
    """Run a script in that folder, as `python path` does; it may draw."""
    plt.switch_backend("Agg")
    with (
        contextlib.chdir(folder),
        torch.random.fork_rng(),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.syspath_prepend(path.parent)
        runpy.run_path(str(path), run_name="__main__")
    plt.close("all")
