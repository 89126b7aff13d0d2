"""Networks that saw 1860 to 1979 miss the warming after it; the mean of each year corrects them."""

from pathlib import Path

import iris_sample_data
import matplotlib.pyplot as plt
import numpy as np
import torch
import xarray as xr
from torch import nn

from probconserv.files import FileLaw, enforce, totals

# Yearly means of a climate model, 1860 to 2099, over North America: (240, 37, 49).
truth = xr.load_dataset(Path(iris_sample_data.path) / "A1B_north_america.nc")
real, over = truth["air_temperature"], ("latitude", "longitude")
usual = real[:120].mean("time")
axes = [torch.linspace(-1, end, size) for size, end in zip(real.shape, (3, 1, 1), strict=True)]
places = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).flatten(0, 2)
anomalies = torch.from_numpy((real - usual).values).flatten()


# The model: plain PyTorch. Put yours here.
def predicted(seed):
    """All years, by a network trained on the first 120."""
    torch.manual_seed(seed)
    layers = nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    network = nn.Sequential(*layers, nn.Flatten(-2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2, fused=True)
    for _ in range(150):
        batch = torch.randint(len(places) // 2, (1024,))
        optimizer.zero_grad()
        nn.functional.mse_loss(network(places[batch]), anomalies[batch]).backward()
        optimizer.step()
    return network(places).detach().reshape(real.shape).numpy() + usual.values


def area_mean(field):
    return field.weighted(np.cos(np.deg2rad(real.latitude))).mean(over)


members = np.stack([predicted(seed) for seed in range(5)])  # (5, 240, 37, 49)
mean = real.copy(data=members.mean(0))
held_out = (mean - real)[120:140]  # errors of 1980 to 1999, which no network saw
squared = (held_out**2).mean("time")
std = real.copy(data=np.sqrt(squared.values + members.var(0, ddof=1)))
correlation = float((area_mean(held_out) ** 2).mean() / area_mean(squared**0.5) ** 2)
total = totals(truth, FileLaw("air_temperature", over))

# What a model leaves behind, and the totals that somebody knows: a file.
names = {"air_temperature": mean, "air_temperature_std": std, "known_total": total}
prediction = truth.assign(names)
prediction["known_total"].attrs["long_name"] = "integral of air temperature"
Path("out").mkdir(exist_ok=True)
prediction.to_netcdf("out/air_temperature.nc")

law = FileLaw("air_temperature", over, total="known_total")
conserving = enforce(prediction, law, std="air_temperature_std", correlation=correlation)

# What it did.
year = real.time.dt.year
_, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
styles = {"before": ("#C98500", "--", prediction), "after": ("#5C3D99", "-", conserving)}
for name, (colour, line, dataset) in styles.items():
    field = dataset["air_temperature"]
    squares = area_mean((field - real) ** 2)
    print(f"{name:>6}: root mean square error {np.sqrt(squares[140:].mean()):.2f} K, 2000 to 2099")
    left.plot(year, area_mean(field), line, color=colour, label=name)
    middle.plot(year, squares**0.5, line, color=colour, label=name)
left.plot(year, area_mean(real), "k:", label="truth")
left.set(xlabel="year", ylabel="mean over the area (K)", title="The budget")
middle.set(xlabel="year", ylabel="root mean square error (K)", title="The error")
for panel in (left, middle):
    panel.axvspan(1860, 1980, color="0.93", label="trained on")
    panel.set(xlim=(1860, 2100))
    panel.legend()
change = (conserving["air_temperature"] - mean)[140:].mean("time")
shown = right.pcolormesh(real.longitude, real.latitude, change, cmap="cividis")
right.set(xlabel="longitude (°E)", ylabel="latitude (°N)", title="The change, mean 2000 to 2099")
plt.colorbar(shown, ax=right, label="K")
plt.savefig("out/air_temperature.png", dpi=110)
