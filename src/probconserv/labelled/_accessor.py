"""`dataset.probconserv`, once `probconserv.labelled` is imported."""

from typing import Any

import xarray as xr

from ._enforce import check, enforce
from ._law import Law
from ._report import Report


@xr.register_dataset_accessor("probconserv")
class Accessor:
    """The functions of `probconserv.labelled` for this dataset."""

    def __init__(self, dataset: xr.Dataset) -> None:
        self._dataset = dataset

    def enforce(self, *laws: Law, **how: Any) -> xr.Dataset:
        """As `labelled.enforce`."""
        return enforce(self._dataset, *laws, **how)

    def check(self, *laws: Law, **how: Any) -> Report:
        """As `labelled.check`."""
        return check(self._dataset, *laws, **how)
