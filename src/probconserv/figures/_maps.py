"""Pictures of a field on the cells of a plane, before and after laws for each cell."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm, Normalize
from matplotlib.figure import Figure

from ..laws.law import Law, check_law
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ._fields import Array, _axis

VALUES, SIGNED = "viridis", "cividis"  # both from dark to light, in colour as in grey
ASPECT = 0.5, 2.0  # of the height of a panel to its width


def maps_figure(
    edges: Mapping[str, ArrayLike],
    before: Any,
    after: Any,
    law: Law,
    truth: ArrayLike | None = None,
    interval: int = -1,
    units: str = "",
    names: tuple[str, str] = ("before", "after"),
) -> Figure:
    """A figure of u before and after an update, what moved, and what each cell makes or loses.

    With the truth, if it is given. The first maps share a scale, and so do the two imbalances.

    Parameters
    ----------
    edges : dict of arrays
        The edges of the cells along the two axes of the field, in order, by the labels of the axes:
        ``{"x (km)": x, "y (km)": y}``. An axis whose label starts with y or lat points upwards.
    before, after : Field or State
        What `condition` took and gave, of one function.
    law : Law
        With a row for each cell, as `cell_budgets` makes it.
    truth : array
        u at the end of the interval, as `edges` say.
    interval : int
        Which interval of the law is drawn; u is at its end.
    units : str
        The unit of u.
    names : tuple of str
        What the titles call `before` and `after`.

    Returns
    -------
    matplotlib.figure.Figure
        Six panels, five without the truth.

    Raises
    ------
    InputError
        If `edges` are not of two axes, or the law has no such interval.
    """
    check_law(law)
    grid = _grid(edges)
    shape = tuple(len(axis) - 1 for axis in grid.values())
    given = {"before": before, "after": after}
    means = {name: _cells(name, _mean(law, field), shape) for name, field in given.items()}
    rows = {
        name: _cells(f"law.residual({name})", law.residual(field), shape)
        for name, field in given.items()
    }
    count = len(rows["before"])
    if not -count <= check.whole("interval", interval) < count:
        raise InputError(f"`interval` {interval} does not exist: the law has {count} of them.")
    u = {name: mean[1:][interval] for name, mean in zip(names, means.values(), strict=True)}
    off = {name: each[interval] for name, each in zip(names, rows.values(), strict=True)}
    moved = u[names[1]] - u[names[0]]
    if truth is not None:
        u["truth"] = _cells("truth", truth, shape)[-1]

    figure = Figure(figsize=(9.5, 3.2 + 5.8 * _aspect(grid)), layout="constrained")
    panels = figure.subplots(2, 3)
    per = f" ({units})" if units else ""
    ends = Normalize(min(map(np.min, u.values())), max(map(np.max, u.values())))
    for axes, (name, values) in zip(panels[0], u.items(), strict=False):
        seen = _draw(axes, grid, values, VALUES, ends, name)
    _bar(figure, seen, list(panels[0, : len(u)]), f"u{per}")
    panels[0, 2].set_visible(truth is not None)
    title = f"{names[1]} - {names[0]}\n{_most(moved)}"
    seen = _draw(panels[1, 0], grid, moved, SIGNED, _centred(moved), title)
    _bar(figure, seen, [panels[1, 0]], f"difference of u{per}")
    both = _centred(*off.values())
    for axes, (name, values) in zip(panels[1, 1:], off.items(), strict=True):
        seen = _draw(axes, grid, values, SIGNED, both, f"imbalance {name}\n{_most(values)}")
    _bar(figure, seen, list(panels[1, 1:]), f"gain less inflow{per}, times cell size")
    for axes in panels[:, 1:].flat:
        axes.set(ylabel="", yticklabels=[])
    return figure


def _grid(edges: Mapping[str, ArrayLike]) -> dict[str, Array]:
    if not isinstance(edges, Mapping) or len(edges) != 2:
        raise InputError("`edges` must be a dictionary of the edges along two axes.")
    return {name: _axis(f"edges[{name!r}]", given) for name, given in edges.items()}


def _mean(law: Law, field: Any) -> ArrayLike:
    """Of the field whose cells the law counts, among those of a state."""
    name = next(iter(law.maps))
    one = field[name] if isinstance(field, Mapping) or hasattr(field, "fields") else field
    return one.mean if hasattr(one, "covariance_times") else one


def _cells(name: str, values: Any, shape: tuple[int, ...]) -> Array:
    """(times, *shape); axes of length 1 before that of time are dropped."""
    tensor = check.as_tensor(name, values)
    check.finite(name, tensor)
    array = tensor.double().numpy(force=True)
    times = array.shape[-3] if array.ndim > 2 else 1
    if array.shape[-2:] != shape or array.size != times * shape[0] * shape[1]:
        raise InputError(
            f"`{name}` must have one value for each of the {shape[0]} x {shape[1]} cells, and at "
            f"most an axis of time before these, but has shape {array.shape}. Draw one function."
        )
    return array.reshape(times, *shape)


def _centred(*values: Array) -> CenteredNorm:
    return CenteredNorm(0, max(float(np.abs(each).max()) for each in values) or 1.0)


def _most(values: Array) -> str:
    return f"at most {np.abs(values).max():.2g}"


def _bar(figure: Figure, seen: Any, panels: list[Axes], label: str) -> None:
    """One colour bar below all panels of a scale."""
    bar = figure.colorbar(seen, ax=panels, location="bottom", label=label, aspect=15 * len(panels))
    bar.formatter.set_powerlimits((-3, 4))  # type: ignore[attr-defined]


def _upright(grid: dict[str, Array]) -> bool:
    """Whether the first axis points upwards."""
    return next(iter(grid)).lower().startswith(("y", "lat"))


def _aspect(grid: dict[str, Array]) -> float:
    first, second = map(np.ptp, grid.values())
    return float(np.clip(first / second if _upright(grid) else second / first, *ASPECT))


def _draw(
    axes: Axes, grid: dict[str, Array], values: Array, cmap: str, norm: Normalize, title: str
) -> Any:
    (across, x), (up, y) = reversed(grid.items()) if _upright(grid) else grid.items()
    axes.set(title=title, xlabel=across, ylabel=up)
    axes.set_box_aspect(_aspect(grid))
    shown = values if _upright(grid) else values.T
    return axes.pcolormesh(x, y, shown, cmap=cmap, norm=norm, rasterized=True)
