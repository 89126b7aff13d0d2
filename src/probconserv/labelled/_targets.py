"""What blocks are written into: a Zarr array, by anyone, or a NetCDF file, by this process."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import netCDF4
import numpy.typing as npt
import zarr
from xarray.backends.netCDF4_ import NETCDF4_PYTHON_LOCK as LOCK  # the one that reading takes

from .._errors import InputError, ProbConservError

Region = tuple[slice, ...]


class Target(Protocol):
    def write(self, where: Region, block: npt.NDArray[Any]) -> None: ...


@contextmanager
def errors_of_writing(path: Path) -> Iterator[None]:
    """Whatever the disk or a library refuses becomes an error that names the output."""
    try:
        yield
    except ProbConservError:
        raise
    except (OSError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        raise InputError(
            f"`path` {path} cannot be written: {error}. Nothing was left of it; is there room on "
            "the disk, and does the format know these values?"
        ) from error


class ZarrArray:
    """A Zarr array; blocks that share no chunk can be written at the same time, or twice."""

    def __init__(self, path: Path, stage: Path) -> None:
        self.path, self.stage = path, stage

    def write(self, where: Region, block: npt.NDArray[Any]) -> None:
        if not self.stage.exists():
            raise InputError(
                f"{self.stage} is not there: the run was ended, or this worker does not see the "
                "folder of the output. Use a folder that all workers share."
            )
        zarr.open_array(self.path, mode="r+")[where] = block


class NetcdfFile:
    """A NetCDF file whose variables are defined, open for writing by threads of this process."""

    def __init__(self, path: Path) -> None:
        with LOCK:
            self.file: Any = netCDF4.Dataset(path, "r+")
            self.file.set_auto_maskandscale(False)
            self.file.set_auto_chartostring(False)
        self.closed = False

    def variable(self, name: str) -> "NetcdfVariable":
        return NetcdfVariable(self, name)

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        with LOCK:
            self.file.setncatts(dict(attributes))

    def __enter__(self) -> "NetcdfFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        with LOCK, suppress(*([] if kind is None else [Exception])):
            self.closed = True
            self.file.close()


class NetcdfVariable:
    def __init__(self, file: NetcdfFile, name: str) -> None:
        self.file, self.name = file, name

    def write(self, where: Region, block: npt.NDArray[Any]) -> None:
        with LOCK:
            if self.file.closed:  # a thread that went on after an error or Ctrl-C
                raise InputError("the run was ended before this block was written.")
            variable = self.file.file.variables[self.name]
            variable[where or ...] = block
