"""Functions on a grid, of any origin: what a neural operator learns from."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..conditioning.condition import AnyLaw
from ..problems import ClosedForm
from ..support import checks as check
from ..support.checks import ArrayLike
from ..support.errors import InputError
from ..support.tolerances import HOLDS
from ._functions import uniform
from ._laws import as_laws, warn_of_laws
from ._read import TIME, Names, arrays_of, open_dataset, values_of
from ._totals import AT_ONCE, RuleName, name_of, warn_of_totals, weights_of

LawOf: TypeAlias = Callable[["Grids"], AnyLaw | tuple[AnyLaw, ...]]
SPLIT, PARAMETERS = 9, 10  # seeds, beside those of the other files


@dataclass(frozen=True, eq=False)
class Grids:
    """n functions on one grid: what is known of each, and what is to be predicted.

    `grids[i]` are some of them; `len(grids)` is n.

    Parameters
    ----------
    inputs : array, shape (n, c) or (n, c, ...)
        Numbers, or functions on the grid; along an axis of size 1 they are the same everywhere.
    targets : array, shape (n, ...) or (n, f, ...)
        One field on the grid, or f of them.
    coordinates : dict of arrays
        The axes of the grid in order, by name. An axis called t or time is time.
    totals : array, shape (n, ...)
        The integral of each target over the last axis, where it is known: its shape is that of
        the targets without that axis. With a `law` any values that it asks for.
    name : str
        What it is called on the card of a network.
    rule : {"trapezoid", "simpson", "left", "right", "periodic", "cell"} or array, shape (M,)
        How totals add up: as in `integral`; cell means averages over cells around the points of
        the last axis, periodic an even axis without the end of the period. Or what each point
        counts. Training `through` the law takes the same rule.
    law : callable
        What else than integrals is known of each function: from some of these `Grids` to a law or
        a tuple of laws, inequalities among them. They are laid on fields of the shape of `targets`
        with one more axis in front, for the members of a network. Training goes `through` them.

    Raises
    ------
    InputError
        If shapes do not fit, values are missing, or coordinates do not increase.

    Warns
    -----
    ImplausibleWarning
        If totals differ from those of the targets by more than the rule's own error, or if
        targets do not obey the laws.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.linspace(0, 1, 20)
    >>> speeds = np.linspace(1, 2, 50)[:, None]
    >>> Grids(speeds, np.sin(speeds * x), {"x": x}).split(0.8, 0.2)
    (Grids(40 of 1 input, 1 field on x 20), Grids(10 of 1 input, 1 field on x 20))

    A law of energy, known for each function:

    >>> import probconserv as pc
    >>> u = np.sin(speeds * x)
    >>> def law(some):
    ...     return pc.nonlinear(lambda u: u.square().mean(), some.totals, batch_dims=2)
    >>> Grids(speeds, u, {"x": x}, totals=(u**2).mean(-1), law=law)
    Grids(50 of 1 input, 1 field on x 20)
    """

    inputs: Tensor
    targets: Tensor
    coordinates: Mapping[str, Tensor]
    totals: Tensor | None = None
    name: str = "arrays"
    rule: RuleName | Tensor = "trapezoid"
    law: LawOf | None = None

    def __init__(
        self,
        inputs: ArrayLike,
        targets: ArrayLike,
        coordinates: Mapping[str, ArrayLike],
        totals: ArrayLike | None = None,
        name: str = "arrays",
        rule: RuleName | ArrayLike = "trapezoid",
        law: LawOf | None = None,
    ) -> None:
        axes = _axes(coordinates)
        known, asked = _values("inputs", inputs), _values("targets", targets)
        weights = weights_of(rule, [*axes.values()][-1])
        adding: Any = rule if isinstance(rule, str) else weights
        self._set(known, asked, axes, None, name, adding, law)
        grid = self.shape
        fields = asked.ndim - len(grid)
        if fields not in (1, 2) or asked.shape[fields:] != grid or not len(asked):
            raise InputError(
                f"`targets` must be (n, *grid) or (n, fields, *grid) with the grid {grid} of "
                f"`coordinates`, got {tuple(asked.shape)}."
            )
        fits = known.ndim in (2, 2 + len(grid)) and all(
            a in (1, b) for a, b in zip(known.shape[2:], grid, strict=False)
        )
        if not fits or len(known) != len(asked) or not known.shape[1]:
            raise InputError(
                f"`inputs` must be (n, channels) or (n, channels, *grid) with n = {len(asked)} and "
                f"the grid {grid}, got {tuple(known.shape)}."
            )
        values = None if totals is None else _values("totals", totals)
        if law is not None:
            self._check_law(values)
        elif values is not None:
            totals = values
            if totals.shape != asked.shape[:-1]:
                raise InputError(
                    "`totals` must have the shape of `targets` without the last axis, "
                    f"{tuple(asked.shape[:-1])}, got {tuple(totals.shape)}."
                )
            self._set(known, asked, axes, totals, name, adding, None)
            if check.concrete(asked, totals):
                warn_of_totals(asked, totals, self.axes[-1], weights, name_of(rule))

    def _check_law(self, values: Tensor | None) -> None:
        """Takes values for a law, and warns where targets do not obey it."""
        if not callable(self.law):
            raise InputError(
                "`law` must be a function from `Grids` to laws, such as lambda some: "
                f"nonlinear(energy, some.totals, batch_dims=2); got {type(self.law).__name__}."
            )
        if self.rule != "trapezoid":
            raise InputError("`rule` is for totals without `law`: give the law its own.")
        if values is not None and (not values.ndim or len(values) != len(self)):
            raise InputError(
                f"`totals` must have an entry for each of the {len(self)} functions, got shape "
                f"{tuple(values.shape)}."
            )
        object.__setattr__(self, "totals", values)
        each = max(1, AT_ONCE // max(1, self.targets[0].numel()))
        some = (self[start : start + each] for start in range(0, len(self), each))
        if check.concrete(self.targets):
            warn_of_laws((one.targets.detach().double()[None], one.laws) for one in some)

    @property
    def laws(self) -> tuple[AnyLaw, ...]:
        """What `law` says of these functions."""
        if self.law is None:
            raise InputError("`law` was not given: only `totals` are known of these functions.")
        return as_laws(self.law(self))

    def _set(
        self,
        inputs: Tensor,
        targets: Tensor,
        coordinates: Mapping[str, Tensor],
        totals: Tensor | None,
        name: str,
        rule: RuleName | Tensor,
        law: LawOf | None,
    ) -> None:
        values = {"inputs": inputs, "targets": targets, "coordinates": coordinates}
        more = {"totals": totals, "name": name, "rule": rule, "law": law}
        for key, value in {**values, **more}.items():
            object.__setattr__(self, key, value)

    def _changed(self, rows: Callable[[Tensor], Tensor], axes: Mapping[str, Tensor]) -> "Grids":
        """The same with `rows` of all that has a row for each function; known to be right."""
        grids = object.__new__(Grids)
        totals = None if self.totals is None else rows(self.totals)
        more = self.name, self.rule, self.law
        grids._set(rows(self.inputs), rows(self.targets), axes, totals, *more)
        return grids

    @classmethod
    def from_xarray(
        cls,
        dataset: Any,
        inputs: Names,
        targets: Names,
        sample: str = "sample",
        totals: Names | None = None,
        name: str = "xarray",
        rule: RuleName | ArrayLike = "trapezoid",
        law: LawOf | None = None,
    ) -> "Grids":
        """Variables of an xarray dataset.

        Parameters
        ----------
        dataset : xarray.Dataset
            With a dimension of samples; the other dimensions of the targets are the grid, t or time
            first. An axis whose coordinates decrease is turned round.
        inputs, targets : str or sequence of str
            Variables. An input without a dimension is the same along it.
        sample : str
            The dimension that counts functions.
        totals : str or sequence of str
            Variables, one for each target; with a `law` any that have the samples.
        name : str
            What it is called on the card of a network.
        rule : str or array
            How totals add up, as for `Grids`; weights are those of an axis that increases.
        law : callable
            As for `Grids`.

        Returns
        -------
        Grids
            Dates as seconds since the first, durations as seconds.

        Raises
        ------
        InputError
            If a name is not there, a dimension does not fit, or values are missing.
        """
        sums = totals if law is None else None
        known, asked, axes, values = arrays_of(dataset, inputs, targets, sample, sums)
        if law is not None and totals is not None:
            values = values_of(dataset, totals, sample)
        return cls(known, asked, axes, values, name, rule, law)

    @classmethod
    def open(
        cls,
        path: str | Path,
        inputs: Names,
        targets: Names,
        sample: str = "sample",
        totals: Names | None = None,
        rule: RuleName | ArrayLike = "trapezoid",
        law: LawOf | None = None,
    ) -> "Grids":
        """Variables of a Zarr store or a NetCDF file, read into memory.

        Parameters
        ----------
        path : str or Path
            The store or the file.
        inputs, targets, sample, totals, rule, law : as in `from_xarray`

        Returns
        -------
        Grids
            Called by the name of the file.

        Raises
        ------
        InputError
            If there is no such file, or for what `from_xarray` refuses.
        """
        path = check.path("path", path)
        with open_dataset(path) as dataset:
            more = path.stem, rule, law
            return cls.from_xarray(dataset, inputs, targets, sample, totals, *more)

    @classmethod
    def of_problem(
        cls,
        problem: ClosedForm | type[ClosedForm],
        t: ArrayLike,
        x: ArrayLike,
        n: int | None = None,
        seed: int = 0,
    ) -> "Grids":
        """Exact solutions of an equation on a grid; the input is its parameter.

        Parameters
        ----------
        problem : ClosedForm, or a class of these
            An instance with n parameters, or a class, of which n are drawn.
        t, x : array
            The times and the places.
        n : int
            With a class, how many parameters are drawn from its training range.
        seed : int
            Another number draws others.

        Returns
        -------
        Grids
            With the totals of the solutions.

        Raises
        ------
        InputError
            If the problem has no closed form, or `n` is missing.

        Examples
        --------
        >>> from probconserv.problems import Stefan
        >>> Grids.of_problem(Stefan([0.6, 0.7]), *Stefan.grid(times=5, points=11))
        Grids(2 of 1 input, 1 field on t 5, x 11)
        """
        if isinstance(problem, type) and issubclass(problem, ClosedForm):
            if n is None:
                raise InputError(
                    f"`n` must say how many parameters of {problem.__name__} to draw; or give "
                    "a `problem` with parameters."
                )
            low, high = problem.train_range
            address = PARAMETERS, check.whole("seed", seed)
            drawn = low + (high - low) * uniform(address, (check.samples(n),), "cpu")
            problem = problem(**{problem.parameter: drawn})
        if not isinstance(problem, ClosedForm):
            raise InputError(f"`problem` must have a closed form; got {problem!r}.")
        problem, times, places = problem.to(torch.float64), check.wide("t", t), check.wide("x", x)
        parameters = problem._parameters()[problem.parameter].expand(problem.shape).reshape(-1, 1)
        u = problem.on_grid(times, places).reshape(-1, len(times), len(places))
        totals = problem[..., None].total(times).reshape(u.shape[:-1])
        return cls(parameters, u, {"t": times, "x": places}, totals, problem.name)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int | slice | Tensor) -> "Grids":
        one = isinstance(index, int) or getattr(index, "ndim", None) == 0
        which = [int(index)] if one else index  # type: ignore[arg-type]
        return self._changed(lambda a: a[which], self.coordinates)

    def to(self, device_or_dtype: torch.device | str | torch.dtype) -> "Grids":
        """The same, moved or converted.

        Parameters
        ----------
        device_or_dtype : device or dtype
            Such as "cuda" or `torch.float32`.

        Returns
        -------
        Grids
            With every tensor moved.
        """
        axes = {name: a.to(device_or_dtype) for name, a in self.coordinates.items()}
        return self._changed(lambda a: a.to(device_or_dtype), axes)

    def split(self, *shares: float, seed: int = 0) -> "tuple[Grids, ...]":
        """Parts that share no function, in an order drawn by the seed.

        Parameters
        ----------
        *shares : float
            The share of each part, such as 0.8, 0.1, 0.1; together at most 1.
        seed : int
            Another number gives other parts.

        Returns
        -------
        tuple of Grids
            A part for each share.

        Raises
        ------
        InputError
            If a share is not positive, their sum is more than 1, or a part would be empty.
        """
        each = [check.between("shares", share, 0, 1) for share in shares]
        if not each or min(each) == 0 or sum(each) > 1 + 1e-9:
            raise InputError(f"`shares` must be positive and together at most 1, got {shares}.")
        ends = [0, *(round(sum(shares[: i + 1]) * len(self)) for i in range(len(shares)))]
        if any(a == b for a, b in pairwise(ends)):
            raise InputError(
                f"`shares` {shares} of {len(self)} functions would leave a part empty."
            )
        order = uniform((SPLIT, check.whole("seed", seed)), (len(self),), "cpu").argsort()
        order = order.to(self.device)
        return tuple(self[order[a:b]] for a, b in pairwise(ends))

    @property
    def shape(self) -> tuple[int, ...]:
        """How many points each axis of the grid has."""
        return tuple(len(axis) for axis in self.coordinates.values())

    @property
    def axes(self) -> list[Tensor]:
        """The coordinates of each axis of the grid, in order."""
        return list(self.coordinates.values())

    @property
    def weights(self) -> Tensor:
        """What each point of the last axis counts in a total, float64."""
        return weights_of(self.rule, self.axes[-1])

    @property
    def fields(self) -> Tensor:
        """The targets with an axis for fields, (n, f, ...)."""
        return self.targets if self.targets.ndim == 2 + len(self.shape) else self.targets[:, None]

    def check_digits(self) -> None:
        """Refuses values whose differences are lost in float32, in which networks are trained.

        Raises
        ------
        InputError
            If there are such values.
        """
        rows = {f"coordinates[{name}]": a for name, a in self.coordinates.items()}
        rows |= {f"inputs[:, {i}]": a for i, a in enumerate(self.inputs.unbind(1))}
        rows |= {f"targets, field {i}": a for i, a in enumerate(self.fields.unbind(1))}
        for name, given in rows.items():
            values = given.double()
            rounding = float((values.float().double() - values).abs().max())
            if not rounding <= 0.01 * spread_of(values) and not is_constant(values):
                raise InputError(
                    f"`{name}` has differences that float32 does not hold: values lie about "
                    f"{float(values.mean()):.6g} and differ by {spread_of(values):.2g}. Subtract a "
                    "number, or use another unit."
                )

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.targets.device

    @property
    def time(self) -> int | None:
        """Which axis is time, where there is one."""
        return next((i for i, name in enumerate(self.coordinates) if name in TIME), None)

    def describe(self) -> dict[str, Any]:
        """What a card says: how many functions, on which grid, and a digest of the values."""
        digest = hashlib.sha256()
        totals = () if self.totals is None else (self.totals,)
        weights = () if isinstance(self.rule, str) else (self.rule,)
        for values in (self.inputs, self.targets, *self.axes, *totals, *weights):
            digest.update(values.detach().cpu().contiguous().numpy().tobytes())
        return {
            "count": len(self),
            "axes": list(self.coordinates),
            "grid": list(self.shape),
            "digest": digest.hexdigest()[:12],
            "rule": name_of(self.rule),
        } | ({} if self.law is None else {"laws": [law.label for law in self.laws]})

    def __repr__(self) -> str:
        grid = ", ".join(f"{name} {len(axis)}" for name, axis in self.coordinates.items())
        channels, fields = self.inputs.shape[1], self.fields.shape[1]
        inputs = f"{channels} input{'s' * (channels > 1)}"
        return f"Grids({len(self)} of {inputs}, {fields} field{'s' * (fields > 1)} on {grid})"


def _values(name: str, given: ArrayLike) -> Tensor:
    values = check.as_tensor(name, given)
    bad = ~values.isfinite()
    bad = bad.flatten(1).any(1) if bad.ndim > 1 else bad
    if bool(bad.any()):
        raise InputError(
            f"`{name}` must be finite; {int(bad.sum())} of its {bad.numel()} functions have NaN or "
            "infinite values. Drop these functions, or fill the values."
        )
    return values


def _axes(given: Mapping[str, ArrayLike]) -> dict[str, Tensor]:
    if not isinstance(given, Mapping) or not given:
        raise InputError(
            "`coordinates` must be the axes of the grid by name, such as {'t': t, 'x': x}; got "
            f"{type(given).__name__}."
        )
    axes = {str(name): check.tensor(f"coordinates[{name}]", a) for name, a in given.items()}
    for name, axis in axes.items():
        check.increasing(f"coordinates[{name}]", axis)
    return axes


def spread_of(values: Tensor) -> float:
    """The standard deviation; 1 of what is constant, up to rounding."""
    return 1.0 if is_constant(values) else float(values.double().std(correction=0))


def is_constant(values: Tensor) -> bool:
    low, high = (float(end) for end in values.double().aminmax())
    return high - low <= HOLDS * max(abs(low), abs(high))
