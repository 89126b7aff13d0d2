"""Labelled data, xarray in and xarray out: predictions in files that obey conservation laws.

Needs xarray, dask and the like: `pip install 'probconserv[files]'`.
"""

from importlib.util import find_spec as _find_spec

for _name in ("xarray", "dask", "netCDF4", "zarr"):
    if _find_spec(_name) is None:
        raise ModuleNotFoundError(
            f"labelled data need {_name}, which is not here; pip install 'probconserv[files]'",
            name=_name,
        )

from ._budget import Budget as Budget
from ._cells import cell_measure as cell_measure
from ._enforce import Accessor as Accessor
from ._enforce import check as check
from ._enforce import enforce as enforce
from ._enforce import totals as totals
from ._law import Law as Law
from ._recipes import RECIPES as RECIPES
from ._recipes import dry_air as dry_air
from ._recipes import energy as energy
from ._recipes import moisture as moisture
from ._report import Report as Report
from ._stores import check_file as check_file
from ._stores import enforce_file as enforce_file
