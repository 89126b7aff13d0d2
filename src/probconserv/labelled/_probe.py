"""Opening a file in a child process first: its library may crash over a damaged one, or hang."""

import os
import signal
import time
from pathlib import Path

import netCDF4
from xarray.backends.netCDF4_ import NETCDF4_PYTHON_LOCK as LOCK

from .._errors import InputError

PATIENCE = 30.0  # seconds


def check_opens(path: Path, patience: float = PATIENCE) -> None:
    """Refuses a NetCDF file whose opening does not end, or ends the process."""
    if not hasattr(os, "fork"):  # Windows
        return
    with LOCK:  # so that the child finds the library idle
        child = os.fork()
    if child == 0:
        _open_and_leave(path)
    status = _wait(child, patience)
    if status is None or os.WIFSIGNALED(status):
        raise InputError(
            f"`path` {path} is damaged: opening it "
            + (f"does not end within {patience:g} s" if status is None else "crashes its library")
            + ". Copy or download it again."
        )


def _open_and_leave(path: Path) -> None:
    """Ends the child; an error is for the parent to find."""
    try:
        netCDF4.Dataset(path).close()
    finally:
        os._exit(0)


def _wait(child: int, patience: float) -> int | None:
    """How the child ended; none where it had to be killed."""
    until = time.monotonic() + patience
    ended, status = 0, 0
    try:
        while not ended and time.monotonic() < until:
            ended, status = os.waitpid(child, os.WNOHANG)
            time.sleep(0 if ended else 0.002)
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return status if ended else None
