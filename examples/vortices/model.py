"""Vortices on a periodic square of side 2 pi, and networks that predict one step of them.

The vorticity w of an ideal fluid in two dimensions is carried along by the velocity that it makes:

    dw/dt + v . grad w = 0,    v = (d psi/dy, -d psi/dx),    laplace psi = -w

Energy mean(psi w) / 2, enstrophy mean(w^2) / 2 and the mean of w, 0, stay what they are.
"""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

CELLS, STEP = 32, 0.05
FINE, SUBSTEPS = 80, 3  # points along each axis and times within a step, of the solver
MEMBERS = 3
FOLDER = Path(__file__).parent  # of the trained networks


def _wavenumbers(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Along x (n, 1) and y (n / 2 + 1), in the order of `rfft2`."""
    k = n * torch.fft.fftfreq(n, dtype=torch.float64, device=device)
    return k[:, None], k[: n // 2 + 1].abs()


def _inverse_laplacian(kx: Tensor, ky: Tensor) -> Tensor:
    """From the spectrum of w to that of psi; the mean of psi is 0."""
    square = kx.square() + ky.square()
    return (square > 0) / square.clamp(min=1)


def energy(w: Tensor) -> Tensor:
    """mean(psi w) / 2 of fields (..., n, n): (...)."""
    n = w.shape[-1]
    inverse = _inverse_laplacian(*_wavenumbers(n, w.device)).to(w.dtype)
    psi = torch.fft.irfft2(inverse * torch.fft.rfft2(w), s=(n, n))
    return (psi * w).mean((-2, -1)) / 2


def enstrophy(w: Tensor) -> Tensor:
    """mean(w^2) / 2 of fields (..., n, n): (...)."""
    return w.square().mean((-2, -1)) / 2


def drawn(seed: int, n: int, device: str = "cpu") -> Tensor:
    """Four vortices in each of n fields, two that turn left and two right, (n, 80, 80).

    Each is a Gaussian made periodic, exp((cos(x - x0) - 1) / width^2) and alike along y. They
    start near the corners of a lattice, moved by the same amount anywhere.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        numbers = torch.rand(n, *shape, generator=generator, dtype=torch.float64)
        return (low + (high - low) * numbers).to(device)

    corners = [[0, 0], [0, math.pi], [math.pi, 0], [math.pi, math.pi]]
    lattice = torch.tensor(corners, dtype=torch.float64, device=device)
    place = lattice + uniform(-0.7, 0.7, 4, 2) + uniform(0, 2 * math.pi, 1, 2)
    width, order = uniform(0.55, 0.8, 4, 2), uniform(0, 1, 4).argsort(-1)
    peak = uniform(2.0, 3.2, 4) * (1 - 2 * (order % 2))
    x = 2 * math.pi / FINE * torch.arange(FINE, dtype=torch.float64, device=device)
    along = (((x - place[..., None]).cos() - 1) / width[..., None].square()).exp()
    w = torch.einsum("nv, nvx, nvy -> nxy", peak, along[:, :, 0], along[:, :, 1])
    return w - w.mean((-2, -1), keepdim=True)


def _change(spectrum: Tensor) -> Tensor:
    """-v . grad w, without the upper third of wavenumbers, which the product would alias."""
    kx, ky = _wavenumbers(FINE, spectrum.device)
    psi = _inverse_laplacian(kx, ky) * spectrum
    slopes = torch.stack([1j * ky * psi, -1j * kx * psi, 1j * kx * spectrum, 1j * ky * spectrum])
    vx, vy, along_x, along_y = torch.fft.irfft2(slopes, s=(FINE, FINE))
    kept = (kx.abs() < FINE / 3) & (ky < FINE / 3)
    return kept * torch.fft.rfft2(-vx * along_x - vy * along_y)


def _after(spectrum: Tensor, dt: float) -> Tensor:
    """One step of the classical Runge-Kutta method."""
    a = _change(spectrum)
    b = _change(spectrum + dt / 2 * a)
    c = _change(spectrum + dt / 2 * b)
    d = _change(spectrum + dt * c)
    return spectrum + dt / 6 * (a + 2 * b + 2 * c + d)


def _coarse(spectrum: Tensor) -> Tensor:
    """The wavenumbers below 16, on 32 x 32 points."""
    half = CELLS // 2
    rows = torch.cat([spectrum[..., :half, :half], spectrum[..., -half:, :half]], -2)
    rows[..., half, :] = 0  # -16, of which +16 is missing
    return (CELLS / FINE) ** 2 * torch.fft.irfft2(rows, s=(CELLS, CELLS))


def solved(w: Tensor, steps: int) -> Tensor:
    """The vorticity at the start (n, 80, 80) and after each step, (n, steps + 1, 32, 32)."""
    spectrum = torch.fft.rfft2(w)
    found = [_coarse(spectrum)]
    for _ in range(steps):
        for _ in range(SUBSTEPS):
            spectrum = _after(spectrum, STEP / SUBSTEPS)
        found.append(_coarse(spectrum))
    return torch.stack(found, 1)


class Networks(nn.Module):
    """From w (members, n, 32, 32) to w after a step: Fourier neural operators side by side.

    All parameters have the axis of members first. In each layer every channel has a Fourier
    multiplier of its own for wavenumbers below `modes`; then the channels are mixed.
    """

    scale: Tensor

    def __init__(
        self, members: int = MEMBERS, width: int = 16, modes: int = 10, layers: int = 4
    ) -> None:
        super().__init__()
        self.read, self.write = _Mix(members, 1, width), _Mix(members, width, 1)
        self.layers = nn.ModuleList(_Layer(members, width, modes) for _ in range(layers))
        self.register_buffer("scale", torch.ones(members, 1, 1, 1))  # of the change in a step

    def forward(self, w: Tensor) -> Tensor:
        hidden = self.read(w[:, :, None])
        for layer in self.layers:
            hidden = layer(hidden)
        return w + self.scale * self.write(hidden)[:, :, 0]


class _Layer(nn.Module):
    def __init__(self, members: int, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        shape = (members, 1, width, 2 * modes - 1, modes, 2)  # real and imaginary parts
        self.multiplier = nn.Parameter(torch.randn(shape) / 2**0.5)
        self.far, self.near = _Mix(members, width, width), _Mix(members, width, width)
        self.out = _Mix(members, width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        n, m = hidden.shape[-1], self.modes
        spectrum = torch.fft.rfft2(hidden)[..., :m]
        kept = torch.cat([spectrum[..., :m, :], spectrum[..., 1 - m :, :]], -2)
        kept = kept * torch.view_as_complex(self.multiplier)
        none = kept.new_zeros(*kept.shape[:-2], n + 1 - 2 * m, m)
        filtered = torch.cat([kept[..., :m, :], none, kept[..., m:, :]], -2)
        far = torch.fft.irfft2(filtered, s=(n, n))  # fills up with zeros along y
        return hidden + self.out(F.gelu(self.far(far) + self.near(hidden)))


class _Mix(nn.Module):
    """From inputs to outputs channels at every point, for each member."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(members, outputs, inputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(members, 1, outputs, 1, 1))

    def forward(self, hidden: Tensor) -> Tensor:
        mixed = self.weights[:, None] @ hidden.flatten(-2)
        return mixed.unflatten(-1, hidden.shape[-2:]) + self.bias


def save(networks: Networks, folder: Path = FOLDER) -> None:
    """One file for each member."""
    state = {name: value.cpu() for name, value in networks.state_dict().items()}
    for i in range(len(networks.scale)):
        member = {name: value[i].clone() for name, value in state.items()}
        save_file(member, folder / f"{i}.safetensors")


def load(folder: Path = FOLDER) -> Networks:
    """The trained networks."""
    members = [load_file(path) for path in sorted(folder.glob("*.safetensors"))]
    *_, width, _, modes, _ = members[0]["layers.0.multiplier"].shape
    networks = Networks(len(members), width, modes)
    networks.load_state_dict(
        {name: torch.stack([member[name] for member in members]) for name in members[0]}
    )
    return networks


@torch.no_grad()
def predicted(networks: Networks, w: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the members after a step of w (n, 32, 32), (n, 32, 32) each.

    With three members the variance of one point is a guess: that of 5 x 5 points is taken.
    """
    each = networks(w.float().expand(len(networks.scale), *w.shape)).double()
    around = F.pad(each.var(0), (2, 2, 2, 2), mode="circular")
    return each.mean(0), F.avg_pool2d(around, 5, 1)
