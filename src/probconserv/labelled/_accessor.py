"""`dataset.probconserv`, once `probconserv.labelled` is imported."""

import json
from typing import Any

import xarray as xr

from ._enforce import check, enforce, totals
from ._law import Law, Recipe
from ._report import Report
from ._work import REPORT


@xr.register_dataset_accessor("probconserv")
class Accessor:
    """The functions of `probconserv.labelled` for this dataset, as `dataset.probconserv`.

    Parameters
    ----------
    dataset : xarray.Dataset
        The dataset that the functions are applied to.
    """

    def __init__(self, dataset: xr.Dataset) -> None:
        self._dataset = dataset

    def enforce(self, *laws: Law | Recipe, **how: Any) -> xr.Dataset:
        """As `labelled.enforce`.

        Parameters
        ----------
        *laws : Law or recipe
            One or more.
        **how
            The other arguments of `labelled.enforce`.

        Returns
        -------
        xarray.Dataset
            The updated dataset.
        """
        return enforce(self._dataset, *laws, **how)

    def totals(self, law: Law) -> xr.DataArray:
        """As `labelled.totals`."""
        return totals(self._dataset, law)

    @property
    def report(self) -> dict[str, Any] | None:
        """The figures of the report that `enforce` left in the dataset; None if there is none."""
        text = self._dataset.attrs.get(REPORT)
        return None if text is None else json.loads(text)

    def check(self, *laws: Law | Recipe, **how: Any) -> Report:
        """As `labelled.check`.

        Parameters
        ----------
        *laws : Law or recipe
            One or more.
        **how
            The other arguments of `labelled.check`.

        Returns
        -------
        Report
            Whether the laws hold.
        """
        return check(self._dataset, *laws, **how)
