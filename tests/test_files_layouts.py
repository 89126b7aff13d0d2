"""Each layout of the table in the docs, made small, is summed as the table says."""

import csv
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from commands import called

PAGE = Path(__file__).parents[1] / "docs" / "learn" / "files_reading.md"
SECTION = PAGE.read_text().split("\n## Layouts\n")[1].split("\n## ")[0]
ROWS = [[cell.strip() for cell in row.strip("|").split("|")] for row in SECTION.splitlines()]
TABLE = {row[0]: re.findall("`(--.*?)`", row[2])[0] for row in ROWS if "`--" in row[-1]}
NY, NX, R = 6, 8, 6371229.0
LAT, LON = np.linspace(75, -75, NY), np.arange(NX) * 45.0
NORTH, EAST = {"units": "degrees_north"}, {"units": "degrees_east"}
HOURS = np.datetime64("2020-01-01T00", "ns") + np.arange(3) * np.timedelta64(1, "h")
E1, E2 = np.random.default_rng(0).uniform(1e4, 2e4, (2, NY, NX))


def values(*shape, low=10.0, high=20.0):
    return np.random.default_rng(1).uniform(low, high, shape or (3, NY, NX)).astype("f4")


def zones(edges, columns=NX):
    """Areas between latitudes, for every longitude."""
    by_row = abs(np.diff(np.sin(np.radians(edges)))) * R**2 * 2 * np.pi / columns
    return np.tile(by_row[:, None], columns)


EDGES = np.array([90, *(LAT[1:] + LAT[:-1]) / 2, -90])


def summed(u, areas):
    return np.nansum(u.astype(float) * areas, axis=tuple(range(1, u.ndim)))


def field(name, dims, u, attrs=None, time="time", coords=None, **variables):
    """A field on hours, with its cells and whatever is beside it."""
    found = {name: ((time, *dims), u, attrs or {})} | variables
    return xr.Dataset(found, {time: HOURS} | (coords or {}))


def regular(lat="lat", lon="lon", at=LAT, lon_at=LON):
    return {lat: (lat, at, NORTH), lon: (lon, lon_at, EAST)}


def curvilinear(dims, lat, lon):
    """Latitudes and longitudes of each cell, without corners."""
    y, x = np.meshgrid(np.linspace(40, 45, NY), np.linspace(-20, -10, NX), indexing="ij")
    return {lat: (dims, y, NORTH), lon: (dims, x, EAST)}


def cmip(path):
    edges = np.array([90, 70, 40, 0, -40, -70, -90.0])
    bounds = np.stack([edges[:-1], edges[1:]], 1)
    made = field("tas", ("lat", "lon"), values(), coords=regular(), lat_bnds=(("lat", "b"), bounds))
    made.lat.attrs["bounds"] = "lat_bnds"
    made.to_netcdf(path)
    return summed(made.tas.values, zones(edges))


def cmip_ocean(path):
    places = curvilinear(("j", "i"), "latitude", "longitude")
    attrs = {"cell_measures": "area: areacello"}
    made = field("tos", ("j", "i"), values(), attrs, coords=places)
    made.to_netcdf(path)
    area = {"areacello": (("j", "i"), E1 * E2, {"units": "m2"})}
    xr.Dataset(area).to_netcdf(path.with_name("areacello_Ofx.nc"))
    return summed(made.tos.values, E1 * E2)


def era5(path, words=True, time="valid_time"):
    dims = ("latitude", "longitude")

    def flux(sign, unit):
        said = {"GRIB_stepType": "accum"} if words else {}
        return (time, *dims), sign * values(low=0, high=1e-3), {"units": unit} | said

    said = {"GRIB_stepType": "instant"} if words else {}
    fluxes = {"tp": flux(2, "m"), "e": flux(-1, "m of water equivalent")}
    attrs = {"units": "kg m**-2"} | said
    made = field("tcwv", dims, values(), attrs, time, regular(*dims), **fluxes)
    if words:
        made = made.assign_coords(number=0, expver=(time, ["0001"] * 3))
    made.to_netcdf(path)
    first = summed(made.tcwv.values, zones(EDGES))
    lost = summed(1e3 * (made.tp.values.astype(float) + made.e.values), zones(EDGES))
    return first, first[0] - np.cumsum([0, *lost[1:]])


def era5_old(path):
    return era5(path, False, "time")


def era5_grib(path):
    attrs = {"units": "kg m**-2", "GRIB_stepType": "instant", "GRIB_gridType": "regular_ll"}
    dims = ("latitude", "longitude")
    made = field("tcwv", dims, values(), attrs, coords=regular(*dims))
    made["time"].attrs["standard_name"] = "time"
    more = {"number": 0, "step": np.timedelta64(0, "ns"), "valid_time": ("time", HOURS)}
    made.assign_coords(more).to_netcdf(path)
    return summed(made.tcwv.values, zones(EDGES))


def weatherbench(path):
    p, ps = np.array([250, 500, 850.0]), values(3, NX, NY, low=99e3, high=100e3)
    dims = ("longitude", "latitude", "level")
    coords = {"longitude": LON, "latitude": LAT[::-1], "level": p.astype(int)}
    q = values(3, NX, NY, 3, low=0, high=0.01)
    beside = {"surface_pressure": (("time", *dims[:2]), ps)}
    field("specific_humidity", dims, q, coords=coords, **beside).to_netcdf(path)
    half = np.array([125, 375, 675.0]) * 100
    bottom = np.concatenate([np.broadcast_to(half[1:], (*ps.shape, 2)), ps[..., None]], -1)
    return summed(q, (bottom - half) / 9.80665 * zones(EDGES).T[..., None])


def wrf(path):
    dims = ("south_north", "west_east")
    factor = np.broadcast_to(np.linspace(0.9, 1.1, NX), (3, NY, NX))
    beside = {"MAPFAC_M": (("Time", *dims), factor, {"units": ""})}
    made = field("T2", dims, values(), {"units": "K"}, "Time", **beside).drop_vars("Time")
    places = {
        name: (("Time", *dims), np.tile(at, (3, 1, 1)), attrs)
        for name, (_, at, attrs) in curvilinear(dims, "XLAT", "XLONG").items()
    }
    said = {"DX": np.float32(9000), "DY": np.float32(3000), "MAP_PROJ": 1}
    made.assign_coords(places).assign_attrs(said).to_netcdf(path)
    return summed(made.T2.values, 27e6 / factor**2)


def roms(path):
    dims, mask = ("eta_rho", "xi_rho"), np.ones((NY, NX))
    mask[:2, :3] = 0
    beside = {"pm": 1 / E1, "pn": 1 / E2}
    beside = {name: (dims, each, {"units": "meter-1"}) for name, each in beside.items()}
    places = curvilinear(dims, "lat_rho", "lon_rho")
    made = field("zeta", dims, values(), {"units": "meter"}, "ocean_time", places, **beside)
    made.assign(mask_rho=(dims, mask)).to_netcdf(path)
    return summed(made.zeta.values, E1 * E2 * mask)


def nemo(path):
    """With halo columns: the last two are the first two again."""
    u, cells = values(), np.r_[0:NX, 0, 1]
    places = curvilinear(("y", "x"), "nav_lat", "nav_lon")
    made = field("tos", ("y", "x"), u, {"units": "degC"}, "time_counter", places)
    made.isel(x=cells).to_netcdf(path)
    sizes = {name: (("t", "y", "x"), each[None]) for name, each in (("e1t", E1), ("e2t", E2))}
    xr.Dataset(sizes).isel(x=cells).to_netcdf(path.with_name("mesh_mask.nc"))
    return summed(u, E1 * E2)


def mom6(path):
    made = field("tos", ("yh", "xh"), values(), coords=regular("yh", "xh"))
    for name in ("yh", "xh"):
        made[name].attrs["long_name"] = f"h point nominal {name}"
    made.tos.attrs["cell_measures"] = "area: areacello"
    made.to_netcdf(path)
    area = xr.Dataset({"areacello": (("yh", "xh"), E1 * E2, {"units": "m2"})})
    area.to_netcdf(path.with_name("ocean_static.nc"))
    return summed(made.tos.values, E1 * E2)


def mpas(path):
    u, area = values(3, NX), ("nCells", E1[0] * E2[0], {"units": "m^2"})
    places = {"latCell": ("nCells", np.radians(LON / 4)), "lonCell": ("nCells", np.radians(LON))}
    field("u", ("nCells",), u, time="Time", **places, areaCell=area).to_netcdf(path)
    return summed(u, E1[0] * E2[0])


def icon(path):
    u, area = values(3, NX), ("cell", E1[0] * E2[0], {"units": "m2"})
    places = {
        "clat": ("ncells", np.radians(LON / 4), {"units": "radian"}),
        "clon": ("ncells", np.radians(LON), {"units": "radian"}),
    }
    field("u", ("ncells",), u, {"coordinates": "clat clon"}, **places).to_netcdf(path)
    xr.Dataset({"cell_area": area}).rename(cell="ncells").to_netcdf(path.with_name("grid.nc"))
    return summed(u, E1[0] * E2[0])


def ugrid(path):
    """The eight faces of an octahedron, whose areas are the same."""
    u = values(3, 8)
    said = {"cf_role": "mesh_topology", "topology_dimension": 2}
    said |= {"node_coordinates": "node_x node_y", "face_node_connectivity": "faces"}
    faces = [(pole, i, (i + 1) % 4) for pole in (4, 5) for i in range(4)]
    beside = {
        "mesh": ((), 0, said),
        "faces": (("face", "corner"), np.array(faces), {"start_index": 0}),
        "node_x": ("node", np.array([0, 90, 180, 270, 0, 0.0]), EAST),
        "node_y": ("node", np.array([0, 0, 0, 0, 90, -90.0]), NORTH),
    }
    field("u", ("face",), u, {"mesh": "mesh", "location": "face"}, **beside).to_netcdf(path)
    return summed(u, 4 * np.pi * R**2 / 8)


def healpix(path):
    u, crs = values(3, 48), ((), 0, {"grid_mapping_name": "healpix", "refinement_level": 1})
    field("u", ("cell",), u, {"grid_mapping": "crs"}, crs=crs).to_netcdf(path)
    return summed(u, 4 * np.pi * R**2 / 48)


def projection(path):
    places = {
        axis: (axis, np.arange(n) * 25e3, {"units": "m", "axis": axis.upper()})
        for axis, n in (("y", NY), ("x", NX))
    }
    crs = ((), 0, {"grid_mapping_name": "lambert_azimuthal_equal_area"})
    made = field("u", ("y", "x"), values(), {"grid_mapping": "crs"}, coords=places, crs=crs)
    made["cell_area"] = ("y", "x"), np.linspace(6e8, 7e8, NY * NX).reshape(NY, NX), {"units": "m2"}
    made.to_netcdf(path)
    return summed(made.u.values, made.cell_area.values)


def angles(path):
    crs = ((), 0, {"grid_mapping_name": "latitude_longitude"})
    places = {"y": LAT, "x": LON}
    made = field("u", ("y", "x"), values(), {"grid_mapping": "crs"}, coords=places, crs=crs)
    made.to_netcdf(path)
    return summed(made.u.values, zones(EDGES))


def gaussian(path):
    at, weights = np.polynomial.legendre.leggauss(NY)
    places = regular(at=np.degrees(np.arcsin(at)))
    made = field("u", ("lat", "lon"), values(), coords=places)
    made.to_netcdf(path)
    return summed(made.u.values, np.tile(weights[:, None], NX) * R**2 * 2 * np.pi / NX)


LAYOUTS = {
    "CMIP, atmosphere": cmip,
    "CMIP, ocean": cmip_ocean,
    "ERA5, NetCDF of the Climate Data Store": era5,
    "ERA5, NetCDF from before 2024": era5_old,
    "ERA5, GRIB by cfgrib": era5_grib,
    "WeatherBench2": weatherbench,
    "WRF": wrf,
    "ROMS, CROCO": roms,
    "NEMO": nemo,
    "MOM6": mom6,
    "MPAS": mpas,
    "ICON": icon,
    "UGRID": ugrid,
    "HEALPix": healpix,
    "x, y of a projection": projection,
    "x, y under latitude_longitude": angles,
    "Gaussian grid": gaussian,
}


def test_every_layout_of_the_table_is_tested():
    assert list(TABLE) == list(LAYOUTS)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_options_of_the_table_sum_the_layout(layout, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = LAYOUTS[layout](tmp_path / "in.nc")
    wanted = dict(
        zip(("field", "total"), made if isinstance(made, tuple) else [made], strict=False)
    )
    done = called("check", "in.nc", *shlex.split(TABLE[layout]), "--format", "csv")
    assert done.returncode in (0, 1, 3), done.stderr
    rows = list(csv.DictReader(done.stdout.splitlines()))
    for column, numbers in wanted.items():
        found = [float(row[column]) for row in rows]
        np.testing.assert_allclose(found, numbers, rtol=1e-12)
