"""How wrong a step is, learned from steps whose truth is known."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..air.contents import mass as mass_of
from ..support.errors import InputError
from ._grid import Grid, Levels
from ._state import check_state, check_values
from ._std import MOVED

LEAST = 0.02  # of the mean variance of a level: no point counts as less


class LearnedErrors:
    """Standard deviations for `Fixer`, from steps that were predicted and whose truth is known.

    A law sees of all errors only what they add up to, R. Errors are alike over many cells, and a
    step that is too warm may be so everywhere; then the size of an error says little about its
    part in R. So the variance here is what makes the correction of a point the one that is
    best on average, the error e of that point that goes with R:

        std^2 = E[e R] / m,    R = sum of m e over all points

    where m is 1 at the surface, and on levels the mass of the layer over what a fixer allows for
    it already. A bias counts as an error. The precipitation is corrected by a factor: its std^2 is
    proportional to the precipitation.

    Parameters
    ----------
    grid : Grid
    levels : Levels
    predicted, truth : dict of Tensor
        States after one step from the same beginning, (n, ...), for steps that are not those to be
        fixed.

    Raises
    ------
    InputError
        If a variable is missing, not finite or without errors, or the shapes differ.
    """

    def __init__(
        self,
        grid: Grid,
        levels: Levels,
        predicted: Mapping[str, Tensor],
        truth: Mapping[str, Tensor],
    ) -> None:
        self._grid, self._levels, self._std = grid, levels, {}
        for what, state in (("predicted", predicted), ("truth", truth)):
            self._check_names(what, state, MOVED)
            check_values(what, state, levels)
        thickness = levels.thickness(truth["surface_pressure"]).mean(0)
        for name in MOVED:
            if predicted[name].shape != truth[name].shape:
                raise InputError(
                    f"`predicted[{name!r}]` and `truth[{name!r}]` must have one shape; got "
                    f"{tuple(predicted[name].shape)} and {tuple(truth[name].shape)}."
                )
            error = (predicted[name] - truth[name]).double()
            on_levels = error.dim() > len(grid.shape) + 1
            mass = mass_of(thickness) if on_levels else torch.ones_like(error[0])
            adds = grid.mean(error * mass)  # (n,) or (n, level)
            total = adds.sum(-1) if on_levels else adds
            if not bool((total != 0).any()):
                raise InputError(f"`predicted[{name!r}]` has no error that adds up to anything.")
            if name == "precipitation":
                self._rain = total.square().mean()
                continue
            together = torch.tensordot(total, error, dims=1) / len(total)
            variance = together / mass
            if on_levels:  # a fixer divides by the same
                share = levels.count * levels.shares
                variance = variance * share.reshape(-1, *[1] * len(grid.shape))
            least = LEAST * grid.mean(variance).abs()
            least = least.reshape(*least.shape, *[1] * len(grid.shape))
            self._std[name] = torch.maximum(variance, least).sqrt()

    def __call__(self, after: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the standard deviations of a step, for the argument `std` of a `Fixer`.

        Parameters
        ----------
        after : dict of Tensor
            The state after the step.

        Returns
        -------
        dict of Tensor
            By variable; that of the precipitation has the batch axis.

        Raises
        ------
        InputError
            If there is no precipitation, or a shape is wrong.
        """
        self._check_names("after", after, ("precipitation",))
        rain = after["precipitation"].double().clamp(min=0)
        mean = self._grid.mean(rain).clamp(min=1e-12)
        share = rain / mean.reshape(-1, *[1] * len(self._grid.shape))
        return {**self._std, "precipitation": (self._rain * share).sqrt()}

    def _check_names(self, what: str, state: Mapping[str, Tensor], needed: Sequence[str]) -> None:
        check_state(what, state, (), self._levels, self._grid.shape)
        if lost := [name for name in needed if name not in state]:
            raise InputError(f"`{what}` has no {lost[0]!r}; it needs {', '.join(needed)}.")
