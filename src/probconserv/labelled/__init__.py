"""Labelled data, xarray in and xarray out: predictions in files that obey conservation laws."""
