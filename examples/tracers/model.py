"""Tracers on a periodic square, and networks that predict one step of them."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import probconserv as pc

CELLS, STEP = 32, 0.05
EDGES = torch.linspace(0, 1, CELLS + 1, dtype=torch.float64)
FOLDER = Path(__file__).parent  # of the trained networks
IMAGES = torch.arange(-5, 6, dtype=torch.float64)  # of a cloud around the square
NODES, WEIGHTS = (torch.from_numpy(a) / 2 for a in np.polynomial.legendre.leggauss(32))  # in time


@dataclass(frozen=True)
class Clouds:
    """Gaussians on [0, 1]^2 around (x0 + velocity_x t, y0 + velocity_y t), all their images summed.

    The variance along both axes is width^2 + 2 k t, the integral `mass`. Parameters broadcast.
    """

    k: Tensor
    velocity_x: Tensor
    velocity_y: Tensor
    width: Tensor
    x0: Tensor
    y0: Tensor
    mass: Tensor

    def cell_averages(self, t: Tensor, edges: Tensor) -> Tensor:
        """u averaged over cells, (..., T, nx, ny)."""
        x, y = (self._means(axis, t, edges) for axis in (0, 1))
        return self.mass[..., None, None, None] * x[..., None] * y[..., None, :]

    def step_fluxes(self, step: float, edges: Tensor) -> list[Tensor]:
        """The fluxes across x and y averaged over faces and over the first step, (..., nx, ny)."""
        t, weights, fluxes = step * (NODES + 0.5), WEIGHTS[:, None, None], []
        for axis, speed in enumerate((self.velocity_x, self.velocity_y)):
            z, s = self._places(axis, t, edges[:-1])
            density = (-(z**2) / 2).exp() / (s * math.sqrt(2 * math.pi))
            speed, k = (a[..., None, None, None] for a in (speed, self.k))
            across = ((speed + k * z / s) * density).sum(-1)  # c u - k u_x
            means = self._means(1 - axis, t, edges)
            through = across[..., None] * means[..., None, :]
            through = self.mass[..., None, None] * (weights * through).sum(-3)
            fluxes.append(through if axis == 0 else through.mT)
        return fluxes

    def _places(self, axis: int, t: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Distances from all images in standard deviations, (..., T, n, images), and these."""
        start, speed = ((self.x0, self.velocity_x), (self.y0, self.velocity_y))[axis]
        centre = (start[..., None] + speed[..., None] * t).remainder(1)[..., None, None]
        s = (self.width[..., None] ** 2 + 2 * self.k[..., None] * t).sqrt()[..., None, None]
        return (x[:, None] + IMAGES - centre) / s, s

    def _means(self, axis: int, t: Tensor, edges: Tensor) -> Tensor:
        """The part along an axis averaged over its cells, (..., T, n)."""
        below = torch.special.ndtr(self._places(axis, t, edges)[0]).sum(-1)
        return below.diff() / edges.diff()


def drawn(seed: int, n: int) -> tuple[Clouds, Tensor]:
    """Three clouds for each of n tracers, (n, 3), and which of them count: two or all, (n, 3)."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, clouds: int = 3) -> Tensor:
        numbers = torch.rand(n, clouds, generator=generator, dtype=torch.float64)
        return low + (high - low) * numbers

    flow = {"k": uniform(0.001, 0.01, 1), "velocity_x": uniform(-1, 1, 1)}
    flow |= {"velocity_y": uniform(-1, 1, 1)}  # the same for all clouds of a tracer
    places = {"x0": uniform(0, 1), "y0": uniform(0, 1)}
    clouds = Clouds(**flow, **places, width=uniform(0.06, 0.2), mass=uniform(0.05, 0.15))
    counts = uniform(0, 1) < torch.tensor([1.0, 1.0, 0.5])
    return clouds, counts.double()


def averages(clouds: Clouds, counts: Tensor, steps: int = 1) -> Tensor:
    """The exact averages of cells at the start and after each step, (n, steps + 1, 32, 32)."""
    t = STEP * torch.arange(steps + 1, dtype=torch.float64)
    return torch.einsum("nctxy, nc -> ntxy", clouds.cell_averages(t, EDGES), counts)


def fluxes(clouds: Clouds, counts: Tensor) -> list[Tensor]:
    """The exact fluxes through faces, averaged over one step, (n, 1, 32, 32) for each axis."""
    found = clouds.step_fluxes(STEP, EDGES)
    return [torch.einsum("ncxy, nc -> nxy", flux, counts)[:, None] for flux in found]


def flow_of(clouds: Clouds) -> Tensor:
    """Velocities and k, (n, 3), of about the same size."""
    return torch.cat([clouds.velocity_x, clouds.velocity_y, 100 * clouds.k], -1)


class Network(nn.Module):
    """From u (n, 32, 32) and the flow (n, 3) to u after a step and two fluxes, (n, 3, 32, 32).

    The part that predicts u and the part that predicts fluxes know nothing of each other.
    """

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.state, self.fluxes = _Part(1), _Part(2)
        self.register_buffer("scale", torch.ones(3, 1, 1))  # of a change of u, of fluxes

    def forward(self, u: Tensor, flow: Tensor) -> Tensor:
        constant = flow[..., None, None].expand(*flow.shape, *u.shape[-2:])
        seen = torch.cat([u[:, None], constant], 1)
        found = self.scale * torch.cat([self.state(seen), self.fluxes(seen)], 1)
        change, *fluxes = found.unbind(1)
        return torch.stack([u + change, *fluxes], 1)


class _Part(nn.Module):
    def __init__(self, outputs: int, width: int = 16, blocks: int = 2) -> None:
        super().__init__()
        self.read, self.write = _conv(4, width), _conv(width, outputs)
        self.blocks = nn.ModuleList(
            nn.Sequential(_conv(width, width), nn.ReLU(), _conv(width, width), nn.ReLU())
            for _ in range(blocks)
        )

    def forward(self, seen: Tensor) -> Tensor:
        hidden = self.read(seen)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.write(hidden)


def _conv(inputs: int, outputs: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode="circular")


def load() -> list[Network]:
    """The trained networks."""
    networks = []
    for path in sorted(FOLDER.glob("*.safetensors")):
        networks.append(Network())
        networks[-1].load_state_dict(load_file(path))
    return networks


@torch.no_grad()
def predicted(networks: list[Network], u: Tensor, flow: Tensor) -> dict[str, Tensor]:
    """u after a step, fx and fy of every member, (members, n, 1, 32, 32) each."""
    found = torch.stack([network(u.float(), flow.float()) for network in networks]).double()
    return dict(zip(("u", "fx", "fy"), found[:, :, :, None].unbind(2), strict=True))


def prior(members: dict[str, Tensor], u: Tensor, factors: dict[str, float]) -> pc.State:
    """Mean and spread of the members: u (n, 2, 32, 32), known now and uncertain after the step.

    With five members the spread of one cell is a guess: that of 5 x 5 cells is taken, times a
    factor for each field.
    """
    mean, variance = {}, {}
    for name, each in members.items():
        around = F.pad(each.var(0), (2, 2, 2, 2), mode="circular")
        mean[name], variance[name] = each.mean(0), factors[name] * F.avg_pool2d(around, 5, 1)
    mean["u"] = torch.cat([u[:, None], mean["u"]], 1)
    variance["u"] = torch.cat([torch.zeros_like(u)[:, None], variance["u"]], 1)
    return pc.State(**{name: pc.Diagonal(mean[name], variance[name]) for name in members})
