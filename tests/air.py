"""Air at three times on hybrid or pressure levels, and its mass by NumPy."""

import numpy as np
import xarray as xr

G, CP, L = 9.80665, 1004.64, 2.501e6
A = np.array([200.0, 2e4, 1e4, 0.0])  # of half levels, from the top down
B = np.array([0.0, 0.0, 0.5, 1.0])
LAT, LON = np.array([-60.0, 0.0, 60.0]), np.arange(0.0, 360, 90)
AREA = np.repeat(np.diff(np.sin(np.radians([-90.0, -30, 30, 90])))[:, None], 4, 1)
AREA *= np.pi / 2 * 6371229.0**2
GRID, CELLS = ("time", "lat", "lon"), ("time", "lev", "lat", "lon")
HYBRID = {
    "standard_name": "atmosphere_hybrid_sigma_pressure_coordinate",
    "formula_terms": "ap: ap b: b ps: ps",
    "bounds": "lev_bnds",
}


def air(**more):
    """Humidity, temperature and surface pressure at three times on hybrid levels."""
    rng = np.random.default_rng(1)

    def made(low, high, unit, name, dims=CELLS):
        shape = (3, 3, 3, 4) if dims == CELLS else (3, 3, 4)
        return dims, rng.uniform(low, high, shape), {"units": unit, "standard_name": name}

    pairs = {"ap_bnds": A, "b_bnds": B, "lev_bnds": A / 1e5 + B}
    variables = {
        "q": made(0.001, 0.02, "kg kg-1", "specific_humidity"),
        "T": made(210, 300, "K", "air_temperature"),
        "ps": made(9e4, 1.02e5, "Pa", "surface_air_pressure", GRID),
        "ap": ("lev", (A[1:] + A[:-1]) / 2, {"units": "Pa"}),
        "b": ("lev", (B[1:] + B[:-1]) / 2),
        **{name: (("lev", "n"), np.stack([x[:-1], x[1:]], -1)) for name, x in pairs.items()},
    }
    coords = {
        "time": np.array(["2000-01-01", "2000-01-02", "2000-01-03"], "datetime64[ns]"),
        "lev": ("lev", [1.0, 2.0, 3.0], HYBRID),
        "lat": ("lat", LAT, {"units": "degrees_north"}),
        "lon": ("lon", LON, {"units": "degrees_east"}),
    }
    made_of = {name: made(*each) if len(each) > 3 else each for name, each in more.items()}
    dataset = xr.Dataset(variables | made_of, coords)
    dataset.lev_bnds.attrs["formula_terms"] = "ap: ap_bnds b: b_bnds ps: ps"
    return dataset


def mass(ps):
    """kg of air in every cell, (time, lev, lat, lon)."""
    edges = A[:, None, None] + B[:, None, None] * np.asarray(ps)[:, None]
    return np.diff(edges, axis=1) / G * AREA


CLOUDS = {
    "clw": (0, 1e-4, "kg kg-1", "mass_fraction_of_cloud_liquid_water_in_air"),
    "cli": (0, 1e-4, "kg kg-1", "mass_fraction_of_cloud_ice_in_air"),
}


def on_pressure_levels(levels=(1000.0, 500.0, 100.0)):
    dataset = air().drop_vars(["ap", "b", "ap_bnds", "b_bnds", "lev_bnds"])
    attrs = {"units": "hPa", "standard_name": "air_pressure"}
    return dataset.assign_coords(lev=("lev", np.array(levels), attrs))
