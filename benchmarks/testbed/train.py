"""Trains an ensemble of networks on one equation and stores what it predicts.

    python benchmarks/testbed/train.py burgers --architecture fno resnet --minutes 1.5 --out out

For each architecture OUT/EQUATION-ARCHITECTURE*.safetensors has, in float32,
test, beyond: (members, functions, horizons, channels, *space), of rollouts
one_step: (members, trajectories, times, channels, *space), each from a true validation state
horizons, one_step_from: their steps
weights.*: the networks, normalisation included.
Test sets are in files of their own if all together would exceed LIMIT.
"""

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from equations import EQUATIONS, FUNCTIONS, ONE_STEP
from networks import ARCHITECTURES, Emulator, ensemble
from safetensors.torch import save_file
from torch import Tensor

LIMIT = 14_000_000  # bytes of one file
FOLDER = Path("build/testbed/data")


def load(name: str, device: str, tiny: bool) -> dict[str, Tensor]:
    """The arrays of an equation on the device."""
    with np.load(FOLDER / f"{name}.npz") as file:
        data = {key: torch.from_numpy(file[key]).to(device) for key in file}
    if tiny:
        data |= {key: data[key][:8] for key in ("test", "beyond")}
    return {key: u[:FUNCTIONS] for key, u in data.items()}


class Batches:
    """Windows of `length` states, other ones for each member: (members, batch, length, ...)."""

    def __init__(self, train: Tensor, members: int, batch: int, length: int, seed: int):
        self.states, self.length, self.shape = train.flatten(0, 1), length, (members, batch)
        self.n, self.times = train.shape[:2]
        self.generator = torch.Generator(train.device).manual_seed(seed)
        self.after = torch.arange(length, device=train.device)

    def draw(self, size: int) -> Tensor:
        return torch.randint(size, self.shape, generator=self.generator, device=self.states.device)

    def __call__(self) -> Tensor:
        start = self.draw(self.n) * self.times + self.draw(self.times - self.length + 1)
        return self.states[start[..., None] + self.after]


def loss_of(emulator: Emulator, window: Tensor) -> Tensor:
    """Mean square errors of the steps of a rollout, in units of what a step adds: (members,)."""
    u, losses = window[:, :, 0], []
    scale = emulator.scale.squeeze(1)
    for step in range(1, window.shape[2]):
        u = emulator(u)
        losses.append(((u - window[:, :, step]) / scale).square().flatten(1).mean(1) / step)
    return torch.stack(losses).mean(0)


def clip(gradients: list[Tensor], largest: float = 5.0) -> None:
    """Shortens the gradient of each member to the largest norm."""
    squares = torch.stack([g.flatten(1).square().sum(1) for g in gradients])  # (arrays, members)
    factor = largest / squares.sum(0).sqrt().clamp(min=largest)
    for gradient in gradients:
        gradient.mul_(factor.reshape(-1, *(1,) * (gradient.ndim - 1)))


class Step:
    """One step of Adam; on a GPU one CUDA graph."""

    def __init__(self, emulator: Emulator, window: Tensor, graph: bool):
        on_gpu = window.device.type == "cuda"
        self.emulator, self.window, self.graph = emulator, window, None
        self.rate = torch.zeros((), device=window.device)
        self.adam = torch.optim.Adam(
            emulator.parameters(), lr=self.rate, capturable=on_gpu, foreach=on_gpu
        )
        self.loss = torch.zeros(window.shape[0], device=window.device)
        if on_gpu and graph:
            self.capture()

    def advance(self) -> None:
        self.adam.zero_grad(set_to_none=False)
        losses = loss_of(self.emulator, self.window)
        losses.sum().backward()
        clip([p.grad for p in self.emulator.parameters()])
        self.adam.step()
        self.loss.copy_(losses.detach())

    def capture(self) -> None:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):  # at rate 0
                self.advance()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.advance()

    def __call__(self, window: Tensor, rate: float) -> None:
        self.window.copy_(window)
        self.rate.fill_(rate)
        self.graph.replay() if self.graph else self.advance()


def one_cycle(done: float, peak: float) -> float:
    """The learning rate when a part `done` of the training is over."""
    rise = 0.1
    if done < rise:
        return peak * (0.04 + 0.96 * done / rise)
    return peak * (1e-3 + (1 - 1e-3) * (1 + math.cos(math.pi * (done - rise) / (1 - rise))) / 2)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def fit(emulator: Emulator, train: Tensor, options: argparse.Namespace) -> dict:
    """Trains in place; steps, seconds and the last losses of the members."""
    batches = Batches(train, options.members, options.batch, options.unroll + 1, options.seed)
    step = Step(emulator, batches().clone(), not options.eager)
    synchronize(options.device)
    begin, done, count, last, total = time.time(), 0.0, 0, 0, torch.zeros_like(step.loss)
    while done < 1:
        step(batches(), one_cycle(done, options.rate))
        total += step.loss
        count += 1
        if options.steps:
            done = count / options.steps
        if count % 50 == 0 or done >= 1:
            synchronize(options.device)
            seconds = time.time() - begin
            done = done if options.steps else seconds / (60 * options.minutes)
        if count >= last + 2000 or done >= 1:
            losses = (total / (count - last)).tolist()
            print(f"  step {count}, {seconds:.0f} s, loss {' '.join(f'{x:.2e}' for x in losses)}")
            last, total = count, torch.zeros_like(total)
    return {"steps": count, "seconds": round(seconds, 1), "loss": losses}


@torch.no_grad()
def rollout(emulator: Emulator, start: Tensor, horizons: tuple[int, ...], members: int) -> Tensor:
    """States at the horizons: (members, functions, horizons, channels, *space)."""
    u, kept = start.expand(members, *start.shape), []
    for step in range(1, max(horizons) + 1):
        u = emulator(u)
        if step in horizons:
            kept.append(u)
    return torch.stack(kept, 2)


@torch.no_grad()
def one_step(emulator: Emulator, validation: Tensor, members: int) -> Tensor:
    """Predictions from true states at the times ONE_STEP: (members, n, times, channels, *space)."""
    states = validation[:, list(ONE_STEP)].flatten(0, 1)
    after = emulator(states.expand(members, *states.shape))
    return after.unflatten(1, (len(validation), len(ONE_STEP)))


def scores(emulator: Emulator, found: dict[str, Tensor], data: dict[str, Tensor]) -> dict:
    """Errors on validation and drifts of the mean, to see whether training worked."""
    validation, members = data["validation"], found["test"].shape[0]
    following = validation[:, [t + 1 for t in ONE_STEP]]
    persistence = (following - validation[:, list(ONE_STEP)]).square().mean().sqrt()
    error = (found["one_step"] - following).square().mean().sqrt()
    steps = (1, 10, 60)
    rolled = rollout(emulator, validation[:, 0], steps, members)
    truth = validation[:, list(steps)]
    relative = (rolled - truth).square().mean((0, 1, *range(3, rolled.ndim))).sqrt() / truth.std()
    result = {
        "one_step_over_persistence": round(float(error / persistence), 5),
        "validation_rmse_over_std_at_1_10_60": [round(x, 5) for x in relative.tolist()],
    }
    for name in ("test", "beyond"):
        u = found[name][:, :, -1]
        drift = (u - data[name]).mean(tuple(range(3, u.ndim))).abs()
        result[f"{name}_mean_moved_at_the_end"] = round(float(drift.nanmedian()), 7)
        result[f"{name}_not_finite"] = int((~u.isfinite()).flatten(2).any(2).sum())
    return result


def store(found: dict[str, Tensor], emulator: Emulator, facts: dict, path: Path) -> list[Path]:
    """Writes one file, or one more for each test set if it would be too large."""
    tensors = {key: u.cpu().contiguous() for key, u in found.items()}
    weights = {
        f"weights.{k}": u.detach().cpu().contiguous() for k, u in emulator.state_dict().items()
    }
    rest = {key: u for key, u in tensors.items() if key not in ("test", "beyond")} | weights
    files = {path.name: tensors | rest}
    if sum(u.nbytes for u in files[path.name].values()) > LIMIT:
        files = {path.name: rest}
        files |= {f"{path.name}-{key}": {key: tensors[key]} for key in ("test", "beyond")}
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_name(f"{name}.safetensors") for name in files]
    for target, content in zip(written, files.values(), strict=True):
        save_file(content, target, {"facts": json.dumps(facts)})
    return written


def run(name: str, architecture: str, options: argparse.Namespace) -> None:
    """Trains one architecture on one equation and stores what it predicts."""
    equation, data = EQUATIONS[name], load(name, options.device, options.tiny)
    emulator = ensemble(
        architecture,
        equation.channels,
        equation.dims,
        equation.points,
        options.members,
        options.seed,
    )
    emulator.to(options.device)
    emulator.normalise(data["train"])
    count = sum(p.numel() for p in emulator.parameters()) // options.members
    print(f"{name} {architecture}: {count} parameters for each member", flush=True)
    facts = {"equation": name, "architecture": architecture, "parameters": count}
    facts |= fit(emulator, data["train"], options)
    horizons = tuple(options.horizons or equation.horizons)
    found = {
        key: rollout(emulator, data[key], horizons, options.members) for key in ("test", "beyond")
    }
    found["one_step"] = one_step(emulator, data["validation"], options.members)
    facts |= scores(emulator, found, data)
    found |= {"horizons": torch.tensor(horizons), "one_step_from": torch.tensor(ONE_STEP)}
    written = store(found, emulator, facts, options.out / f"{name}-{architecture}")
    print(json.dumps(facts))
    print(*(f"{path} {path.stat().st_size / 1e6:.1f} MB" for path in written), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("equation", choices=EQUATIONS)
    parser.add_argument(
        "--architecture", nargs="+", choices=ARCHITECTURES, default=list(ARCHITECTURES)
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="of training, for each")
    parser.add_argument("--steps", type=int, help="of training, instead of minutes")
    parser.add_argument("--unroll", type=int, default=2, help="steps of the loss")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=3e-3, help="largest learning rate")
    parser.add_argument("--members", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--horizons", type=int, nargs="+", help="at which rollouts are stored")
    parser.add_argument("--eager", action="store_true", help="no CUDA graph")
    parser.add_argument("--tiny", action="store_true", help="eight functions of each test set")
    parser.add_argument("--out", type=Path, default=Path("build/testbed/runs"))
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default)
    return parser.parse_args()


if __name__ == "__main__":
    options = parse()
    for architecture in options.architecture:
        run(options.equation, architecture, options)
