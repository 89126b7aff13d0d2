"""Scores of rollouts (members, n, steps + 1, 3, 32, 32), and the picture of the example.

The first half of the n waters is for validation: it says how wide intervals are to be.
"""

import math
from collections.abc import Callable
from time import process_time
from typing import Any, TypeVar

import torch
from matplotlib.axes import Axes
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from torch import Tensor

from .model import CELLS, STEP, energy, spread

Result = TypeVar("Result")
LINES: dict[str, dict[str, Any]] = {  # colours that differ for all eyes, lines for grey prints
    "truth": {"color": "black", "linestyle": ":", "zorder": 3},
    "no law": {"color": "#E69F00", "linestyle": "-"},
    "mass and momentum": {"color": "#009E73", "linestyle": "-."},
    "all laws": {"color": "#5C3D99", "linestyle": "--"},
}
SHOWN = (10, 25, 50)  # steps
TITLES = (
    "                        RMSE at step        worst drift of mass,   % in 90 % intervals\n"
    "law                   10      25      50    momentum and energy    10    25    50   cost"
)


def timed(call: Callable[..., Result], *given: Any) -> tuple[Result, float]:
    """The result, and seconds of the processor: others may share it."""
    start = process_time()
    return call(*given), process_time() - start


def line(name: str, run: Tensor, truth: Tensor, cost: float) -> str:
    """RMSE, drift after the last step, coverage; cost in forward passes of the networks."""
    off, inside = rmse(run, truth), 100 * coverage(run, truth)
    scores = " ".join(f"{off[i]:.5f}" for i in SHOWN)
    drift = "  ".join(f"{each[:, _tested(truth), -1].max():.0e}" for each in drifts(run))
    shown = "  ".join(f"{inside[i - 1]:4.1f}" for i in SHOWN)
    return f"{name:<18} {scores}   {drift}   {shown}   {cost:4.1f}"


def further(run: Tensor) -> str:
    """The depths and the energy at the end of long rollouts, and how many went astray."""
    h, energies = run[:, :, -1, 0], energy(run)
    share = energies / energies[..., :1]
    astray = ((share > 2) | (share < 0)).any(-1)
    return (
        f"h {h.min():.3g} to {h.max():.3g}, energy {share[..., -1].min():.3g} to "
        f"{share[..., -1].max():.3g} of the start, {int(astray.sum())} of {astray.numel()} astray"
    )


def _tested(truth: Tensor) -> slice:
    return slice(len(truth) // 2, None)


def rmse(run: Tensor, truth: Tensor) -> Tensor:
    """Of the mean of the members, over h, p and q alike, (steps + 1)."""
    off = (run.mean(0) - truth)[_tested(truth)]
    return off.square().mean((0, 2, 3, 4)).sqrt()


def drifts(run: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of mass, momentum and energy since the start, (..., steps + 1) each.

    Momentum is relative to the root mean square of the transport, the others to themselves.
    """
    means, each = run.mean((-2, -1)), energy(run)
    off = (means - means[..., :1, :]).abs()
    size = run[..., :1, 1:, :, :].square().sum(-3).mean((-2, -1)).sqrt()
    momentum = off[..., 1:].norm(dim=-1) / size
    return off[..., 0] / means[..., :1, 0], momentum, (each / each[..., :1] - 1).abs()


def coverage(run: Tensor, truth: Tensor, factor: float | None = None) -> Tensor:
    """The share of points in intervals of 90 %, after each step, (steps).

    An interval is `factor` standard deviations of the members to each side of their mean; if it is
    not given, one number for all steps, by which 90 % of the points for validation are inside.
    """
    away = (run.mean(0) - truth)[:, 1:].abs() / spread(run[:, :, 1:]).sqrt()
    known = away[: len(truth) // 2].flatten()
    factor = factor or float(known.kthvalue(round(0.9 * len(known))).values)
    return (away[_tested(truth)] <= factor).double().mean((0, 2, 3, 4))


def spectrum(h: Tensor) -> Tensor:
    """The variance of h (..., 32, 32) in rings of wavenumbers 1 to 15, mean over fields, (15)."""
    k = CELLS * torch.fft.fftfreq(CELLS, dtype=h.dtype)
    ring = (k[:, None].square() + k.square()).sqrt().round().long().flatten()
    power = torch.fft.fft2(h).abs().square().flatten(0, -3).mean(0).flatten() / CELLS**4
    return power.new_zeros(int(ring.max()) + 1).index_add(0, ring, power)[1 : CELLS // 2]


def picture(truth: Tensor, runs: dict[str, Tensor], far: dict[str, Tensor]) -> Figure:
    """One water after the last step; energy of long rollouts; scores of all waters for testing."""
    figure = Figure(figsize=(10, 9.2), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)
    maps, kept, scores = figure.subfigures(3, 1, height_ratios=(1.1, 1, 1))
    panels = maps.subplots(1, 3, width_ratios=(1, 1, 1.05))
    _maps(maps, panels[:2], truth, runs)
    for name in (name for name in LINES if name in far):
        energies = energy(far[name])
        most = (energies / energies[..., :1]).amax((0, 1)).cummax(0).values
        panels[2].plot(STEP * torch.arange(len(most)), most, label=name, **LINES[name])
    panels[2].set(yscale="log", ylim=(0.5, 1e3), xlabel="t (dimensionless)")
    panels[2].set(ylabel="largest E so far / E at t = 0", title="energy, three times as far")
    panels[2].legend(fontsize=8)
    shown = {"truth": truth[None], **{name: runs[name] for name in LINES if name in runs}}
    t = STEP * torch.arange(truth.shape[1])
    panels = kept.subplots(1, 3, sharey=True)
    for name, run in shown.items():
        for axes, each in zip(panels, drifts(run[:, _tested(truth)]), strict=True):
            axes.plot(t[1:], each.amax((0, 1))[1:].clamp(min=1e-17), label=name, **LINES[name])
    for axes, what in zip(panels, ("mass", "momentum", "energy"), strict=True):
        axes.set(yscale="log", ylim=(1e-17, 1), xlabel="t (dimensionless)", title=what)
    panels[0].set_ylabel("worst relative drift")
    panels[0].legend(fontsize=8, loc="center right")
    _scores(scores.subplots(1, 3), t, truth, shown)
    return figure


def _maps(figure: Any, panels: list[Axes], truth: Tensor, runs: dict[str, Tensor]) -> None:
    """Depth after the last step of the water with the median error."""
    off = (runs["no law"].mean(0) - truth)[_tested(truth), -1].square().mean((1, 2, 3))
    i = len(truth) // 2 + int(off.median(0).indices)
    fields = {"truth": truth[i, -1, 0], "all laws": runs["all laws"][:, i, -1, 0].mean(0)}
    norm = CenteredNorm(1, float((truth[i, -1, 0] - 1).abs().max()))
    for (name, h), axes in zip(fields.items(), panels, strict=True):
        extent = (0, 2 * math.pi, 0, 2 * math.pi)
        seen = axes.imshow(h.T.numpy(), cmap="PuOr_r", norm=norm, origin="lower", extent=extent)
        axes.set(title=name, xlabel="x (dimensionless)")
    panels[0].set_ylabel("y (dimensionless)")
    last = STEP * (truth.shape[1] - 1)
    figure.colorbar(seen, ax=list(panels), label=f"depth h at t = {last:g}", shrink=0.9)


def _scores(panels: list[Axes], t: Tensor, truth: Tensor, shown: dict[str, Tensor]) -> None:
    wavenumbers = torch.arange(1, CELLS // 2)
    for name, run in shown.items():
        power = spectrum(run[:, _tested(truth), -1, 0])
        panels[1].plot(wavenumbers, power, label=name, **LINES[name])
        if name != "truth":
            panels[0].plot(t, rmse(run, truth), label=name, **LINES[name])
            panels[2].plot(t[1:], 100 * coverage(run, truth), label=name, **LINES[name])
    raw = 100 * coverage(shown["all laws"], truth, 1.645)
    panels[2].plot(t[1:], raw, color="#999999", linewidth=1, label="all laws, not calibrated")
    panels[2].axhline(90, color="black", linewidth=0.8)
    panels[0].set(xlabel="t (dimensionless)", ylabel="RMSE of the members' mean")
    panels[1].set(
        xscale="log", yscale="log", xlabel="wavenumber", ylabel="variance of h, last step"
    )
    panels[2].set(xlabel="t (dimensionless)", ylabel="% of points in 90 % intervals", ylim=(0, 100))
    panels[2].legend(fontsize=8)
