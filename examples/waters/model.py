"""Shallow water on a periodic square of side 2 pi, and networks that predict one step of it.

Depth h and transports p = h u and q = h v, with gravity 1, a mean depth of 1, no rotation, a flat
bottom and no friction:

    dh/dt + div(h u, h v) = 0,    dV/dt + (V . grad) V + grad h = 0,    V = (u, v)

Mass mean(h), momentum mean(p) and mean(q), and energy stay what they are. Waves travel at speed 1.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from probconserv.models import FNO

CELLS, STEP = 32, 0.2  # points along each axis, and the time that a network steps over
FINE, SUBSTEPS = 48, 4  # points along each axis and times within a step, of the solver
MEMBERS = 4
WEIGHTS = Path(__file__).parent / "networks.safetensors"


def _wavenumbers(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Along x (n, 1) and y (n / 2 + 1), in the order of `rfft2`."""
    k = n * torch.fft.fftfreq(n, dtype=torch.float64, device=device)
    return k[:, None], k[: n // 2 + 1].abs()


def energy(state: Tensor) -> Tensor:
    """mean((h - 1)^2 + (p^2 + q^2) / h) / 2 of (..., 3, n, n), (...): 0 for water at rest.

    With gravity 1 the energy is mean(h^2 + (p^2 + q^2) / h) / 2: the difference is of mass alone.
    """
    h, p, q = state.unbind(-3)
    return ((h - 1).square() + (p.square() + q.square()) / h).mean((-2, -1)) / 2


def drawn(seed: int, n: int, device: str = "cpu") -> Tensor:
    """Depth and velocities at the start, (n, 3, FINE, FINE): waves, eddies and a current."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        numbers = torch.rand(n, *shape, generator=generator, dtype=torch.float64)
        return (low + (high - low) * numbers).to(device)

    kx, ky = _wavenumbers(FINE, torch.device(device))
    square = kx.square() + ky.square()
    noise = torch.randn(n, 3, 7, 4, 2, generator=generator, dtype=torch.float64).to(device)
    few = torch.view_as_complex(noise)  # wavenumbers of at most 3 along each axis
    whole = few.new_zeros(n, 3, FINE, FINE // 2 + 1)
    whole[:, :, :4, :4], whole[:, :, -3:, :4] = few[:, :, :4], few[:, :, 4:]
    whole = whole * ((square > 0) & (square <= 10)) / square.clamp(min=1)
    h, potential, stream = whole.unbind(1)
    waves = _scaled(torch.fft.irfft2(h, s=(FINE, FINE))[:, None], uniform(0.01, 0.03))
    slopes = [torch.stack([kx * potential, ky * potential], 1)]
    slopes.append(torch.stack([ky * stream, -kx * stream], 1))
    swell, eddies = (torch.fft.irfft2(1j * s, s=(FINE, FINE)) for s in slopes)
    velocity = _scaled(swell, uniform(0.01, 0.03)) + _scaled(eddies, uniform(0.03, 0.08))
    velocity = velocity + uniform(-0.1, 0.1, 2, 1, 1)
    return torch.cat([1 + waves, velocity], 1)


def _scaled(fields: Tensor, size: Tensor) -> Tensor:
    """Of (n, c, FINE, FINE), with this root mean square (n)."""
    now = fields.square().sum(1).mean((-2, -1)).sqrt()
    return fields * (size / now)[:, None, None, None]


def _change(spectrum: Tensor) -> Tensor:
    """Of h, u and v in time, without the upper third of wavenumbers, which products alias."""
    kx, ky = _wavenumbers(FINE, spectrum.device)
    parts = torch.cat([spectrum, 1j * kx * spectrum[:, 1:], 1j * ky * spectrum[:, 1:]], 1)
    h, u, v, ux, vx, uy, vy = torch.fft.irfft2(parts, s=(FINE, FINE)).unbind(1)
    p, q, du, dv = torch.fft.rfft2(
        torch.stack([h * u, h * v, u * ux + v * uy, u * vx + v * vy], 1)
    ).unbind(1)
    depth = spectrum[:, 0]
    change = torch.stack([kx * p + ky * q, kx * depth - 1j * du, ky * depth - 1j * dv], 1)
    return -1j * change * ((kx.abs() < FINE / 3) & (ky < FINE / 3))


def _after(spectrum: Tensor, dt: float) -> Tensor:
    """One step of the classical Runge-Kutta method."""
    a = _change(spectrum)
    b = _change(spectrum + dt / 2 * a)
    c = _change(spectrum + dt / 2 * b)
    d = _change(spectrum + dt * c)
    return spectrum + dt / 6 * (a + 2 * b + 2 * c + d)


def _coarse(spectrum: Tensor) -> Tensor:
    """(h, p, q) of the wavenumbers below 16, on 32 x 32 points."""
    h, u, v = torch.fft.irfft2(spectrum, s=(FINE, FINE)).unbind(1)
    whole = torch.fft.rfft2(torch.stack([h, h * u, h * v], 1))
    half = CELLS // 2
    rows = torch.cat([whole[..., :half, :half], whole[..., -half:, :half]], -2)
    rows[..., half, :] = 0  # -16, of which +16 is missing
    return (CELLS / FINE) ** 2 * torch.fft.irfft2(rows, s=(CELLS, CELLS))


def solved(start: Tensor, steps: int) -> Tensor:
    """(h, p, q) at the start (n, 3, FINE, FINE) and after each step, (n, steps + 1, 3, 32, 32)."""
    spectrum = torch.fft.rfft2(start)
    found = [_coarse(spectrum)]
    for _ in range(steps):
        for _ in range(SUBSTEPS):
            spectrum = _after(spectrum, STEP / SUBSTEPS)
        found.append(_coarse(spectrum))
    return torch.stack(found, 1)


def load(path: Path = WEIGHTS) -> FNO:
    """The trained networks, side by side."""
    state = {name: value.float() for name, value in load_file(path).items()}
    networks = untrained()
    networks.load_state_dict(state)
    return networks


def save(networks: FNO, path: Path = WEIGHTS) -> None:
    """Weights in half precision; the scales as they are."""
    state = networks.cpu().state_dict()
    scales = {name for name in state if name.endswith(("middle", "spread"))}
    save_file({n: v if n in scales else v.half() for n, v in state.items()}, path)


def untrained() -> FNO:
    """Networks with random weights: from (h, p, q) to what a step adds to them."""
    return FNO(
        inputs=3,
        fields=3,
        modes=(7, 7),
        width=12,
        layers=3,
        members=MEMBERS,
        variance=False,
        periodic=(True, True),
    )


def stepped(networks: FNO, state: Tensor) -> Tensor:
    """Of (members, n, 3, 32, 32), after a step of each member from its own state."""
    axis = torch.arange(CELLS, device=state.device)
    return state + networks.predict(state, (axis, axis)).mean


def spread(states: Tensor) -> Tensor:
    """The variance of the members (members, ..., 32, 32): (..., 32, 32).

    With four members the variance of one point is a guess: that of 5 x 5 points is taken.
    """
    variance = (states - states.mean(0)).square().sum(0) / (len(states) - 1)
    around = F.pad(variance.flatten(0, -3), (2, 2, 2, 2), mode="circular")
    return F.avg_pool2d(around, 5, 1).reshape(variance.shape)


def rescaled(state: Tensor, start: Tensor) -> Tensor:
    """A plain repair of (members, n, 3, 32, 32), without uncertainties.

    Each field is shifted so that its mean is that of the start; then what differs from the means
    is multiplied by one number, so that energy is right too.
    """
    means = start.mean((-2, -1), keepdim=True)
    waves, least = state - state.mean((-2, -1), keepdim=True), energy(means)
    factor = torch.ones_like(energy(state))
    for _ in range(20):  # energy is all but a square of the factor
        now = energy(means + factor[..., None, None, None] * waves)
        factor = factor * ((energy(start) - least) / (now - least)).sqrt()
    return means + factor[..., None, None, None] * waves
