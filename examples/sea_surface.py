"""Networks that saw no sea south of 40° S; the mean of the world's sea corrects them there."""

from pathlib import Path

import iris_sample_data
import matplotlib.pyplot as plt
import numpy as np
import torch
import xarray as xr
from torch import nn

from probconserv.files import FileLaw, enforce, totals

# A month of a sea model on a curvilinear grid, land missing: (1, 330, 360).
source = Path(iris_sample_data.path) / "NEMO" / "nemo_1m_20150101-20150201_grid-T.nc"
truth = xr.load_dataset(source)
real, over = truth["tos"], ("y", "x")
lat, lon = (np.deg2rad(truth[name].values.ravel()) for name in ("nav_lat", "nav_lon"))
sphere = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], -1)
places, u = torch.from_numpy(sphere), torch.from_numpy(real.values.ravel())
observed = (lat > np.deg2rad(-40)) & np.isfinite(u.numpy())


# The model: plain PyTorch. Put yours here.
def predicted(seed):
    """The whole sea, by a network trained on 500 of the cells that can be observed."""
    torch.manual_seed(seed)
    layers = nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1)
    network = nn.Sequential(*layers, nn.Flatten(-2))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2, fused=True)
    chosen = torch.from_numpy(np.flatnonzero(observed))[torch.randint(observed.sum(), (500,))]
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.mse_loss(10 * network(places[chosen]) + 15, u[chosen]).backward()
        optimizer.step()
    return (10 * network(places).detach() + 15).where(~u.isnan(), torch.nan)


members = torch.stack([predicted(seed) for seed in range(8)]).reshape(8, *real.shape).numpy()
total = totals(truth, FileLaw("tos", over))

# What a model leaves behind, and the total that somebody knows: a file.
prediction = truth.assign(tos=real.expand_dims(member=8).copy(data=members), known_total=total)
prediction["known_total"].attrs["long_name"] = "integral of sea surface temperature"
Path("out").mkdir(exist_ok=True)
prediction.to_netcdf("out/sea_surface.nc")

conserving = enforce(prediction, FileLaw("tos", over, total="known_total"), member="member")

# What it did.
sea, panels = real[0].notnull().values, plt.subplots(1, 2, figsize=(12, 3.4), sharey=True)[1]
for panel, name, dataset in zip(panels, ("before", "after"), (prediction, conserving), strict=True):
    off = abs(dataset["tos"].mean("member") - real)[0].values[sea]
    print(f"{name:>6}: root mean square error {np.sqrt((off**2).mean()):.2f} K")
    where = truth.nav_lon.values[sea], truth.nav_lat.values[sea]
    shown = panel.hexbin(*where, off, gridsize=(180, 60), vmin=0, vmax=8, cmap="cividis_r")
    panel.axhline(-40, color="k", lw=1, ls="--")
    panel.text(-175, -38, "trained on cells north of this line")
    panel.set(xlabel="longitude (°E)", title=f"Error of the mean {name}", facecolor="0.9")
panels[0].set(ylabel="latitude (°N)")
plt.colorbar(shown, ax=panels, label="|error| (K)")
plt.savefig("out/sea_surface.png", dpi=110, bbox_inches="tight")
