"""Labelled data, xarray in and xarray out: predictions in files that obey conservation laws.

Needs xarray, dask and the like: `pip install 'probconserv[files]'`.
"""

from importlib.util import find_spec as _find_spec

try:
    import dask.array as _dask  # noqa: F401
    import netCDF4 as _netcdf  # noqa: F401
    import xarray as _xarray  # noqa: F401

    if _find_spec("zarr") is None:  # imported where it is used: it takes a quarter of a second
        raise ModuleNotFoundError(name="zarr")
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"labelled data need {error.name}, which is not here; pip install 'probconserv[files]'"
    ) from None

from ._compare import compare as compare
from ._compare import compare_file as compare_file
from ._describe import Description as Description
from ._describe import describe as describe
from ._describe import describe_file as describe_file
from ._enforce import Accessor as Accessor
from ._enforce import check as check
from ._enforce import check_file as check_file
from ._enforce import enforce as enforce
from ._enforce import enforce_file as enforce_file
from ._enforce import totals as totals
from ._law import FileLaw as FileLaw
from ._recipes import RECIPES as RECIPES
from ._recipes import dry_air as dry_air
from ._recipes import energy as energy
from ._recipes import moisture as moisture
from ._report import Budget as Budget
from ._report import Report as Report
from ._weights import cell_measure as cell_measure
