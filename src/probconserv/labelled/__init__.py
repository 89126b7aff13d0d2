"""Labelled data, xarray in and xarray out: predictions in files that obey conservation laws."""

from ._enforce import check as check
from ._enforce import enforce as enforce
from ._law import Law as Law
