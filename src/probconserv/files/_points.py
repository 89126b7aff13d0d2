"""The points of a law: what each of them weighs in which variable, and to which row it belongs.

The unit of a law is that of the first of its variables that has one; the others are converted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import xarray as xr

from ..support.errors import InputError
from ._attributes import conversion, product
from ._law import FileLaw, array, find, in_words, match, nearest, taken
from ._weights import cell_measure, for_all

REGION = "region"


@dataclass(frozen=True, eq=False)
class FilePoints:
    """What a law sums; arrays are without coordinates, which were compared before."""

    fields: Mapping[str, xr.DataArray]
    weights: Mapping[str, xr.Variable]  # of each: cell size times factor, 0 where left out
    cells: xr.Variable  # cell sizes of the first, 0 where left out
    regions: xr.Variable | None  # number of the region of each point, from 0
    rows: Mapping[str, int]  # the axes of the rows and their sizes, REGION last if there are any
    coords: Mapping[str, xr.DataArray]  # of the rows
    unit: str | None  # of the total
    mean_unit: str | None  # of the mean over the cells
    measure: str  # in words
    remarks: tuple[str, ...] = ()  # for the report: what was found, assumed or converted

    @cached_property
    def first(self) -> xr.DataArray:
        return next(iter(self.fields.values()))

    @cached_property
    def names(self) -> dict[str, xr.Variable]:
        """The coordinates of the rows, without those of their own."""
        return {dim: coord.variable for dim, coord in self.coords.items()}


@dataclass(frozen=True, eq=False)
class PointTerm:
    """One variable of a law."""

    cells: xr.Variable  # cell sizes, 0 where the law does not count a point
    weights: xr.Variable  # and times the factor, 0 where that is missing
    mean_unit: str | None  # of the variable times its factor
    unit: str | None  # and times the cell size
    measure: str


def points(dataset: xr.Dataset, law: FileLaw, member: str | None) -> FilePoints:
    """The law's points in this dataset; `member` is the dimension of an ensemble, if any."""
    fields = {name: _field(dataset, name) for name in law.factors}
    rows = _rows(fields, law, member)
    first = next(iter(fields.values()))
    coords = {dim: first[dim] for dim in rows if dim in first.coords}
    one = {member: 0} if member else {}  # a law asks the same of all members
    like = {name: f.isel(one, drop=True, missing_dims="ignore") for name, f in fields.items()}
    regions, names = _regions(dataset, law, like, rows)
    terms = {name: _term(dataset, law, field, regions, member) for name, field in like.items()}
    unit = next((term.unit for term in terms.values() if term.unit), None)
    weights, said = {}, [f"units of {name} assumed: {u}" for name, u in law.assume_units.items()]
    for name, term in terms.items():
        called = name if term.unit else f"{name} times its factor"
        found = conversion(called, term.unit, unit, f"the rest of {law.label}")
        weights[name] = term.weights if found.factor == 1 else term.weights * found.factor
        said += found.remarks
    if law.where is not None:
        said.append(f"points count where {in_words(law.where)} is not 0")
    if law.regions is not None:
        said.append(f"regions: {len(names)} of {in_words(law.regions)}")
        rows[REGION] = len(names)
        coords[REGION] = xr.DataArray(names, dims=REGION, name=REGION)
    main = next(iter(terms.values()))
    return FilePoints(
        fields=fields,
        weights=weights,
        cells=main.cells,
        regions=None if regions is None else regions.clip(0),
        rows=rows,
        coords=coords,
        unit=unit,
        mean_unit=main.mean_unit,
        measure=main.measure,
        remarks=tuple(said),
    )


def _term(
    dataset: xr.Dataset,
    law: FileLaw,
    field: xr.DataArray,
    regions: xr.Variable | None,
    member: str | None,
) -> PointTerm:
    over = tuple(dim for dim in law.dims if dim in field.dims)
    sizes = cell_measure(dataset, str(field.name), over, law.measure, law.radius, law.fraction)
    given = law.factors[str(field.name)]
    for what, each in (("measure", sizes), (f"factor of {field.name}", given)):
        if member and member in getattr(each, "dims", ()):
            raise InputError(
                f"`{what}` changes along {member!r} ({getattr(each, 'description', 'as given')}). "
                "It must be the same for all members: give that of one surface pressure or one "
                "grid, or `std` or `how` instead of `member`, which makes each a field of its own."
            )
    factor = array(dataset, given, f"factor of {field.name}", field)
    cells = sizes.variable
    if law.where is not None:
        mask, longer = for_all(taken(dataset, law.where, "where"), field, law.dims)
        mask = array(dataset, law.where if longer else mask, "where", field)
        cells = cells * (mask.variable.fillna(0) != 0)
    if regions is not None:
        cells = cells * (regions >= 0)
    if factor.dims:
        cells = cells * factor.variable.notnull()
    its = factor.attrs.get("units")
    if isinstance(given, int | float):  # a plain number: only 1 and -1 leave the unit of the field
        its = "1" if abs(given) == 1 else None
    mean_unit = product(field.attrs.get("units"), its)
    unit = product(mean_unit, sizes.attrs.get("units"))
    by = factor.variable.astype(float).fillna(0.0)
    weights = cells * by if by.dims or by != 1 else cells
    return PointTerm(cells, weights, mean_unit, unit, sizes.attrs["description"])


def _field(dataset: xr.Dataset, name: str) -> xr.DataArray:
    field = find(dataset, name, "variables")
    if field.dtype.kind != "f":
        raise InputError(
            f"`{name}` holds {field.dtype}, not floats. Decode packed integers, or convert it."
        )
    for dim, size in field.sizes.items():
        if not size:
            raise InputError(f"`{name}` is empty: it has no entries along {dim!r}.")
    return field


def _rows(fields: Mapping[str, xr.DataArray], law: FileLaw, member: str | None) -> dict[str, int]:
    """Axes that are not summed over, the same for all variables of the law."""
    known = {str(dim) for field in fields.values() for dim in field.dims}
    for dim in law.dims:
        if dim == member:
            raise InputError(f"`over` names {dim!r}, the members: each keeps a total of its own.")
        if dim not in known:
            raise InputError(
                f"`over`: {law.label} has no dimension {dim!r}. {nearest(dim, sorted(known))}"
            )
    left = {
        name: {str(d): n for d, n in field.sizes.items() if d not in law.dims and d != member}
        for name, field in fields.items()
    }
    (name, rows), *others = left.items()
    for other, theirs in others:
        if theirs != rows:
            raise InputError(
                f"the variables of a law must have the same dimensions beside `over`: `{name}` has "
                f"{rows or 'none'}, `{other}` has {theirs or 'none'}."
            )
    return rows


def _regions(
    dataset: xr.Dataset, law: FileLaw, fields: Mapping[str, xr.DataArray], rows: Mapping[str, int]
) -> tuple[xr.Variable | None, np.ndarray]:
    """The number of each point's region, -1 for none; and what the regions are called."""
    if law.regions is None:
        return None, np.empty(0)
    found = taken(dataset, law.regions, "regions")
    for field in fields.values():
        match(found, field, "regions")
    if REGION in rows:
        raise InputError(
            f"`regions` make an axis {REGION!r}: rename the one that is there already."
        )
    for dim in found.dims:
        if dim in rows:
            raise InputError(f"`regions` change along {dim!r}, which `over` does not name.")
    fill = found.encoding.get("_FillValue", found.attrs.get("_FillValue"))
    present = found.notnull().values & (True if fill is None else found.values != fill)
    if not present.any():
        raise InputError("`regions` has no region: every point is missing.")
    names, codes = np.unique(found.values[present], return_inverse=True)
    numbers = np.full(found.shape, -1)
    numbers[present] = codes
    return xr.Variable(found.dims, numbers), names
