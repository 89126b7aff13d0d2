"""The points of a law: which variables it sums, what each point weighs, to which row it belongs."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import xarray as xr

from .._errors import InputError
from . import _units
from ._cells import cell_measure
from ._law import Law
from ._lookup import array, find, nearest, placed

REGION = "region"


@dataclass(frozen=True, eq=False)
class Points:
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

    @property
    def first(self) -> xr.DataArray:
        return next(iter(self.fields.values()))


@dataclass(frozen=True, eq=False)
class Term:
    """One variable of a law."""

    cells: xr.Variable  # cell sizes, 0 where the law does not count a point
    factor: xr.Variable  # 0 where missing
    mean_unit: str | None  # of the variable times its factor
    unit: str | None  # and times the cell size
    measure: str

    def weights(self, conversion: float) -> xr.Variable:
        factor = self.factor * conversion
        return self.cells * factor if factor.dims or factor != 1 else self.cells  # 1 costs nothing


def points(dataset: xr.Dataset, law: Law, member: str | None) -> Points:
    """The law's points in this dataset; `member` is the dimension of an ensemble, if any."""
    fields = {name: _field(dataset, name) for name in law.factors}
    rows = _rows(fields, law, member)
    first = next(iter(fields.values()))
    one = {member: 0} if member else {}  # a law asks the same of all members
    like = {each: f.isel(one, drop=True, missing_dims="ignore") for each, f in fields.items()}
    coords = {dim: first[dim] for dim in rows if dim in first.coords}
    regions, names = _regions(dataset, law, like, rows)
    if names is not None:
        rows = rows | {REGION: len(names)}
        coords = coords | {REGION: xr.DataArray(names, dims=REGION, name=REGION)}
    terms = {each: _term(dataset, law, field, regions, member) for each, field in like.items()}
    unit, converted = _one_unit(law, terms)
    main = next(iter(terms.values()))
    said = [f"units of {each} assumed: {its}" for each, its in law.assume_units.items()]
    said += [remark for each in converted.values() for remark in each.remarks]
    if law.where is not None:
        said.append(f"points count where {_name(law.where)} is not 0")
    if names is not None:
        said.append(f"regions: {len(names)} of {_name(law.regions)}")
    return Points(
        fields=fields,
        weights={e: t.weights(converted[e].factor) for e, t in terms.items()},
        cells=main.cells,
        regions=None if regions is None else regions.clip(0),
        rows=rows,
        coords=coords,
        unit=unit,
        mean_unit=main.mean_unit,
        measure=main.measure,
        remarks=tuple(said),
    )


def _name(given: object) -> str:
    return given if isinstance(given, str) else str(getattr(given, "name", None) or "an array")


def _one_unit(
    law: Law, terms: Mapping[str, Term]
) -> tuple[str | None, dict[str, _units.Conversion]]:
    """The unit of the sum, the first that is known, and how each variable comes to it."""
    unit = next((term.unit for term in terms.values() if term.unit), None)
    names = {each: each if t.unit else f"{each} times its factor" for each, t in terms.items()}
    rest = f"the rest of {law.label}"
    return unit, {e: _units.conversion(names[e], t.unit, unit, rest) for e, t in terms.items()}


def _term(
    dataset: xr.Dataset,
    law: Law,
    field: xr.DataArray,
    regions: xr.Variable | None,
    member: str | None,
) -> Term:
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
        cells = cells * (array(dataset, law.where, "where", field).variable.fillna(0) != 0)
    if regions is not None:
        cells = cells * (regions >= 0)
    if factor.dims:
        cells = cells * factor.variable.notnull()
    mean_unit = _units.product(field.attrs.get("units"), _factor_unit(factor, given))
    unit = _units.product(mean_unit, sizes.attrs.get("units"))
    plain = factor.variable.astype(float).fillna(0.0)
    return Term(cells, plain, mean_unit, unit, sizes.attrs["description"])


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


def _rows(fields: Mapping[str, xr.DataArray], law: Law, member: str | None) -> dict[str, int]:
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
    dataset: xr.Dataset, law: Law, fields: Mapping[str, xr.DataArray], rows: Mapping[str, int]
) -> tuple[xr.Variable | None, np.ndarray | None]:
    """The number of each point's region, -1 for none; and what the regions are called."""
    if law.regions is None:
        return None, None
    for name, field in fields.items():
        found = placed(dataset, law.regions, "regions", field)
        if REGION in field.dims:
            raise InputError(
                f"`regions` make an axis {REGION!r}, but `{name}` has one already. Rename that."
            )
    for dim in found.dims:
        if dim in rows:
            raise InputError(
                f"`regions` change along {dim!r}, which is not summed over. They must be fixed."
            )
    values = found.values
    present = found.notnull().values
    fill = found.encoding.get("_FillValue", found.attrs.get("_FillValue"))
    present &= values != fill if fill is not None else True
    if not present.any():
        raise InputError("`regions` has no region: every point is missing.")
    names, codes = np.unique(values[present], return_inverse=True)
    numbers = np.full(values.shape, -1)
    numbers[present] = codes
    return xr.Variable(found.dims, numbers), names


def _factor_unit(factor: xr.DataArray, given: object) -> str | None:
    """A plain number has no unit, and only 1 and -1 leave that of the field."""
    if isinstance(given, int | float):
        return "1" if abs(given) == 1 else None
    return factor.attrs.get("units")
