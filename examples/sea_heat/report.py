"""What examples/heat_budget.py prints and draws."""

import matplotlib.pyplot as plt
import numpy as np


def held_out(found, flux):
    """A line for each way: RMSE and the share inside the 90 % intervals, where there are any."""
    ways, names = (list(dict.fromkeys(words)) for words in zip(*found, strict=True))
    lines = ["held out: RMSE (W m-2), % in 90 %  " + "".join(f"{k:>15}" for k in names)]
    for way in ways:
        line = f"{way:<35}"
        for k in names:
            mean, std = found[way, k]
            error = mean - flux[k]
            inside = (abs(error) < 1.645 * std).mean()
            share = "" if np.isnan(std).all() else f"{100 * inside:.1f}"
            line += f"{np.sqrt((error**2).mean()):9.2f} {share:>5}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def maps(sea, before, *after):
    """The year's net flux, and how each of two posteriors changes it."""
    titles = "In the file", "Change, errors by counts alone", "Change, errors of formulas as well"
    colours = [{"cmap": "PuOr", "vmin": -150, "vmax": 150}]
    colours += 2 * [{"cmap": "cividis", "vmin": -20, "vmax": 0}]
    figure, panels = plt.subplots(1, 3, figsize=(15, 3.4), sharey=True, layout="constrained")
    fields = before, *(x - before for x in after)
    for panel, x, title, colour in zip(panels, fields, titles, colours, strict=True):
        mesh = panel.pcolormesh(*sea.edges, sea.on_map(x.mean(0)), **colour)
        panel.set(xlabel="longitude (°E)", title=title, facecolor="0.85", ylim=(-72, 80))
        extend = "min" if x.mean(0).min() < colour["vmin"] else "neither"
        plt.colorbar(mesh, ax=panel, extend=extend, label="net flux, year's mean (W m$^{-2}$)")
    panels[0].set(ylabel="latitude (°N)")
    return figure
