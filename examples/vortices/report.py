"""The lines that the example prints, and its picture."""

import math

import torch
from matplotlib.colors import CenteredNorm
from matplotlib.figure import Figure
from torch import Tensor

from .model import STEP, energy, enstrophy

LINES = {  # colours that differ for all eyes, and lines for grey prints
    "truth": {"color": "black", "linestyle": ":", "zorder": 3},
    "without the law": {"color": "#C98500", "linestyle": "-"},
    "with the law": {"color": "#5C3D99", "linestyle": "--"},
}
SHOWN = (10, 25, 50)  # steps


def line(name: str, w: Tensor, truth: Tensor) -> str:
    """RMSE at some steps, and how far the mean, E and Z of the worst field have drifted."""
    off = (w - truth).square().mean((0, 2, 3)).sqrt()
    scores = "  ".join(f"step {i}: {off[i]:.4f}" for i in SHOWN)
    drift = [(relative(f, w) - 1)[:, -1].abs().max() for f in (energy, enstrophy)]
    shown = "  ".join(f"{d:.0e}" for d in (w[:, -1].mean((-2, -1)).abs().max(), *drift))
    return f"{name:<14} RMSE at {scores}   drift {shown}"


def relative(invariant, w: Tensor) -> Tensor:
    """An invariant of (n, steps, 32, 32) over that of the first field, (n, steps)."""
    each = invariant(w)
    return each / each[:, :1]


def picture(truth: Tensor, without: Tensor, given: Tensor) -> Figure:
    """w at the last step of the field whose error without the law is the median; E and Z of it."""
    i = int((without - truth)[:, -1].square().mean((1, 2)).median(0).indices)
    fields = dict(zip(LINES, (truth[i], without[i], given[i]), strict=True))
    figure = Figure(figsize=(10, 6.6), layout="constrained")
    maps, curves = figure.subfigures(2, 1, height_ratios=(1.25, 1))
    panels = maps.subplots(1, 3, sharey=True)
    norm = CenteredNorm(0, float(truth[i].abs().max()))
    for (name, w), axes in zip(fields.items(), panels, strict=True):
        extent = (0, 2 * math.pi, 0, 2 * math.pi)
        seen = axes.imshow(w[-1].T.numpy(), cmap="PuOr_r", norm=norm, origin="lower", extent=extent)
        axes.set(title=name, xlabel="x (dimensionless)")
    panels[0].set_ylabel("y (dimensionless)")
    maps.colorbar(seen, ax=list(panels), label=f"vorticity at t = {STEP * (len(w) - 1):g}")
    t = STEP * torch.arange(truth.shape[1])
    named = {"energy E(t) / E(0)": energy, "enstrophy Z(t) / Z(0)": enstrophy}
    for (label, invariant), axes in zip(named.items(), curves.subplots(1, 2), strict=True):
        for name, w in fields.items():
            axes.plot(t, relative(invariant, w[None])[0], label=name, linewidth=1.6, **LINES[name])
        axes.set(xlabel="t (dimensionless)", ylabel=label)
        axes.ticklabel_format(axis="y", useOffset=False)
    axes.legend()
    return figure
