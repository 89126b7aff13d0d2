"""Everything that laws and data can get wrong, and what is said about it."""

import re

import numpy as np
import pytest
import xarray as xr

from probconserv.errors import InputError
from probconserv.files import FileLaw, check, enforce

SPACE = ("lat", "lon")


def made(seed=0):
    rng = np.random.default_rng(seed)
    dims, shape = ("time", *SPACE), (3, 4, 5)
    return xr.Dataset(
        {
            "u": (dims, rng.normal(2, 1, shape)),
            "v": (dims, rng.normal(2, 1, shape)),
            "s": (dims, rng.uniform(0.2, 1.5, shape)),
            "flat": (SPACE, rng.normal(size=shape[1:])),
            "basin": ("lat", [0, 1, 1, 2]),
        },
        {"time": [0.0, 1.0, 3.0], "lat": [-60.0, -20.0, 20.0, 60.0]},
    )


def law(**how):
    return FileLaw(**({"variables": "u", "over": SPACE, "total": 9.0, "measure": 1.0} | how))


def over(dim, values, *coords):
    return xr.DataArray(values, dict([(dim, coords[0])] if coords else []), dim)


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"variables": {}}, "`variables` of a law must be a name, or names with factors"),
        ({"variables": ["u", "v"]}, "{'rain': 1.0, 'snow': 0.9}; got ['u', 'v']."),
        ({"over": ()}, "`over` must name the dimensions to sum over; got ()."),
        ({"over": 3}, "`over` must name the dimensions to sum over; got 3."),
        ({"over": None}, "`over` must name the dimensions to sum over; got None."),
        ({"over": ("lat", 1)}, "`over` must name the dimensions to sum over; got ('lat', 1)."),
        ({"over": ("lat", "lat")}, "`over` names a dimension twice: lat, lat."),
    ],
)
def test_a_law_must_make_sense(how, text):
    with pytest.raises(InputError, match=re.escape(text)):
        law(**how)


LAWS = [
    ({"variables": "w"}, "`variables`: no variable 'w' here. There are: u, v, s"),
    ({"variables": "basim"}, "`variables`: no variable 'basim' here. Did you mean 'basin'?"),
    ({"variables": "basin"}, "`basin` holds int64, not floats. Decode packed integers"),
    ({"over": ("lat", "lev")}, "`over`: u has no dimension 'lev'. There are: lat, lon, time."),
    (
        {"variables": {"u": 1.0, "flat": 1.0}},
        "must have the same dimensions beside `over`: `u` has {'time': 3}, `flat` has none.",
    ),
    ({"variables": {"u": np.inf}}, "`factor of u` must be a finite number"),
    ({"variables": {"u": "w"}}, "`factor of u`: no variable 'w' here."),
    ({"variables": {"u": 0.0}}, "no point of u counts: all are missing, or have no weight by"),
    ({"where": over("lat", [0, 0, 0, 0])}, "no point of u counts"),
    ({"where": over("lat", list("abcd"))}, "`where` must hold real numbers, got <U1. Convert it."),
    ({"regions": over("time", [0, 1, 1])}, "`regions` change along 'time', which `over`"),
    ({"regions": over("lat", [np.nan] * 4)}, "`regions` has no region: every point is missing."),
    ({"regions": 3}, "`regions` must be a name or an array; got 3."),
    (
        {"total": [1.0, 2.0]},
        "`total` must be a finite number, a name in the dataset or an array with named",
    ),
    (
        {"total": True},
        "`total` must be a finite number, a name in the dataset or an array with named",
    ),
    (
        {"total": 1j},
        "`total` must be a finite number, a name in the dataset or an array with named",
    ),
    (
        {"total": np.ones(3)},
        "`total` must be a finite number, a name in the dataset or an array with named",
    ),
    ({"total": np.nan}, "`total` must be a finite number"),
    ({"total": "intial"}, "`total`: no variable 'intial' here."),
    (
        {"total": over("time", [1.0, np.nan, 2.0])},
        "missing or infinite at time 1. Every row",
    ),
    ({"total": over("time", list("abc"))}, "`total` must hold real numbers, got <U1. Convert it."),
    (
        {"total": over("time", np.array([1, 2, 3], "datetime64[s]"))},
        "`total` must hold real numbers, got datetime64[s]. Convert it.",
    ),
    (
        {"total": over("lat", np.ones(4))},
        "`total` has a dimension 'lat', which the totals of u have not. There are: time.",
    ),
    (
        {"total": over("time", [1.0, 2.0, 3.0], [0.0, 1.0, 2.0])},
        "`total` and `u` differ along 'time'. The first entry that differs is number 2: 2.0 "
        "instead of 3.0.",
    ),
    (
        {"total": over("time", [1.0, 2.0], [0.0, 1.0])},
        "`total` has 2 entries along 'time', `u` has 3. Give one for each.",
    ),
    ({"total": over("time", [1.0, 2.0])}, "`total` has 2 entries along 'time', `u` has 3."),
    ({"noise": -1.0}, "`noise` is a standard deviation, finite and not negative; 0 is"),
    (
        {"noise": over("time", [1.0, np.nan, 1.0])},
        "`noise` is a standard deviation, finite and not",
    ),
    ({"noise": np.ones(3)}, "`noise` must be a finite number"),
    (
        {"total": "initial", "time": "tim"},
        "`time` must be one of time, lat, lon; got 'tim'. Did you mean 'time'?",
    ),
    (
        {"total": "initial", "over": ("time", *SPACE)},
        "`total` is 'initial', but u is summed over 'time', its time. Give it as a number",
    ),
    (
        {"total": over("time", [1.0, 2.0, 3.0]), "inflow": 1.0},
        "`inflow` and `outflow` change the total of the first time, but `total` of u has an entry",
    ),
    (
        {"inflow": over("time", [1.0, np.nan, 2.0])},
        "`inflow` is missing or infinite at time 1, where u counts",
    ),
    ({"inflow": "w"}, "`inflow`: no variable 'w' here."),
    ({"outflow": over("depth", [1.0])}, "`outflow` has a dimension 'depth', which `u` has not."),
    ({"outflow": np.ones(3)}, "`outflow` must be a finite number"),
]


@pytest.mark.parametrize(("how", "text"), LAWS, ids=[text[:40] for _, text in LAWS])
def test_a_law_must_fit_the_data(how, text):
    for function in (enforce, check):
        with pytest.raises(InputError, match=re.escape(text)):
            function(made(), law(**how), std="s" if how.get("variables") != "w" else None)


def test_the_times_of_rates_must_be_known_and_differ():
    d = made()
    for times, text in (
        (
            d.drop_vars("time"),
            "`inflow` and `outflow` need dates or numbers as times; 'time' has no coordinate.",
        ),
        (d.assign_coords(time=[0.0, 2.0, 2.0]), "need times that differ; 'time' has 2 twice."),
        (
            d.assign_coords(time=list("abc")),
            "need dates or numbers as times; 'time' holds 'a'",
        ),
    ):
        with pytest.raises(InputError, match=re.escape(text)):
            check(times, law(inflow=1.0))


def test_an_initial_total_needs_a_time_and_data_at_it():
    d = made()
    with pytest.raises(
        InputError, match=r"which of the dimensions of `u`, day, lat, lon, is time\?"
    ):
        check(d.rename(time="day"), law(total="initial"))
    assert check(d.rename(time="day"), law(total="initial", time="day")).budgets[0].time == "day"
    late = d.assign(u=d.u.where((d.time > 0) | (d.lat < 0)))
    with pytest.raises(
        InputError, match="u has no data at the first 'time' where it has some later"
    ):
        enforce(late, law(total="initial", regions="basin"), std="s")


def test_totals_of_regions_need_an_entry_for_each():
    for axis, *labels in (("basin",), ("region",), ("basin", [0, 2]), ("basin", [0, 1, 2, 2])):
        total = over(axis, np.ones(len(labels[0]) if labels else 3), *labels)
        text = f"`total`: its axis '{axis}' needs a coordinate with each region once: 0, 1, 2"
        with pytest.raises(InputError, match=text):
            enforce(made(), law(total=total, regions="basin"), std="s")
    with pytest.raises(InputError, match="`regions` make an axis 'region': rename the one"):
        enforce(made().rename(time="region"), law(regions="basin"), std="s")


def test_the_std_must_be_one_of_every_variable():
    d, two = made(), law(variables={"u": 1.0, "v": 2.0})
    for given, text in (
        (None, "how should `u` be moved? Give `how`: uniform, the same amount"),
        ({"u": "s"}, "how should `v` be moved? Give `how`"),
        ("s", "`std` of `v` is 's', which cannot hold what the update makes of `u` as well."),
        (
            {"u": "s", "v": "u"},
            "`std` of `v` is 'u', which cannot hold what the update makes of `u`",
        ),
        ("w", "`std`: no variable 'w' here."),
        ([1.0], "`std` must be a finite number, a name in the dataset or an array"),
        (d.basin, "`std` of `u` holds int64, not floats. Convert it."),
        (over("lev", np.ones(2)), "`std` has a dimension 'lev', which `u` has not."),
        (-1.0, "`std` is negative, infinite or missing at points that have a mean."),
    ):
        with pytest.raises(InputError, match=re.escape(text)):
            enforce(d, two, std=given)
    with pytest.raises(InputError, match="`std` is negative, infinite or missing at points that"):
        enforce(d, law(), std=d.s.where(d.s > 0.5))


def test_an_array_as_std_gets_a_name_of_its_own():
    d = made()
    out = enforce(d, law(), std=abs(d.u))  # an array that is called u
    assert set(out.data_vars) == {*d.data_vars, "u_std"}
    np.testing.assert_allclose(out.u.sum(SPACE), 9.0, rtol=1e-12)
    assert "sigma" in enforce(d, law(), std=abs(d.u).rename("sigma"))


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"correlation": 1.1}, "`correlation` must lie between 0 and 1, got 1.1."),
        ({"correlation": "a"}, "`correlation` must lie between 0 and 1, got 'a'."),
        ({"minimum": "a"}, "`minimum` must be a number, got 'a'."),
        ({"jointly": "time"}, "`jointly` is for an ensemble: give its dimension as `member`."),
        ({"shrinkage": 0.0}, "`shrinkage` is for an ensemble: give its dimension as `member`."),
        (
            {"jointly": ("lev",), "member": "time", "std": None},
            "`jointly`: no dimension 'lev' here. There are: time, lat, lon.",
        ),
    ],
)
def test_arguments_of_enforce_are_checked(how, text):
    with pytest.raises(InputError, match=re.escape(text)):
        enforce(made(), law(), **({"std": "s"} | how))


def test_data_and_laws_must_be_what_they_are():
    d = made()
    with pytest.raises(InputError, match=r"must be an xarray.Dataset, got DataArray.*`.to_dataset"):
        enforce(d.u, law(), std="s")
    with pytest.raises(InputError, match="at least one law is needed"):
        enforce(d, std="s")
    with pytest.raises(InputError, match=r"laws are made by `FileLaw\(...\)`; got str."):
        enforce(d, "u", std="s")
    for dtype in ("int32", "bool", "complex128", "U5", "object", "datetime64[ns]"):
        with pytest.raises(InputError, match=r"`u` holds .*, not floats"):
            enforce(d.assign(u=d.u.astype(int).astype(dtype)), law(), std="s")
    for dim in d.u.dims:
        with pytest.raises(InputError, match=f"`u` is empty: it has no entries along '{dim}'"):
            enforce(d.isel({dim: slice(0)}), law(), std="s")
    with pytest.raises(InputError, match="the field or a factor has infinite values"):
        enforce(d.assign(u=d.u.where(d.s > 0.5, np.inf)), law(), std="s")


def test_odd_indexes_are_no_hindrance():
    d = made()
    twice = d.assign_coords(time=[0.0, 0.0, 1.0], lat=[1.0, 1.0, 2.0, 2.0])
    np.testing.assert_allclose(enforce(twice, law(), std="s").u.sum(SPACE), 9.0, rtol=1e-12)
    gaps = d.assign_coords(time=[0.0, np.nan, 1.0])
    np.testing.assert_allclose(enforce(gaps, law(), std="s").u.sum(SPACE), 9.0, rtol=1e-12)
    short = (d.basin > 0).assign_coords(lat=d.lat.astype("float32") / 7)
    out = enforce(d.assign_coords(lat=d.lat / 7), law(where=short), std="s")
    np.testing.assert_allclose(out.u[:, 1:].sum(SPACE), 9.0, rtol=1e-12)
    stacked = d.stack(place=("time", "lat"))
    out = enforce(stacked, law(over="lon"), std="s")
    np.testing.assert_allclose(out.u.sum("lon"), 9.0, rtol=1e-12)
    xr.testing.assert_identical(out.u.coords.to_dataset(), stacked.u.coords.to_dataset())
    out = enforce(stacked, law(over=("place", "lon")), std="s")
    np.testing.assert_allclose(out.u.sum(), 9.0, rtol=1e-12)
