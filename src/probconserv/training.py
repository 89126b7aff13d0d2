"""Training Step 1: one loop, from nothing but torch, NumPy and safetensors.

Everything random is a function of (seed, step): the functions of a batch, the noise of z, dropout.
A run that is stopped anywhere and resumed from its checkpoint therefore takes the same path.
"""

import dataclasses
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from . import _checks as check
from ._errors import InputError, ProbConservError
from ._files import complete
from .data import Functions, Layout, Shuffled, Stream, draw
from .models._checkpoints import read, write
from .models._network import log_normal
from .models.anp import AttentiveNeuralProcess
from .problems import ClosedForm

Batches: TypeAlias = Callable[[Tensor], Functions]
Report: TypeAlias = Callable[[dict[str, float]], None]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a network is trained."""

    learning_rate: float
    schedule: str  # constant, or one cycle: up over a tenth of the steps, down to 0 as a cosine
    dropout: float
    functions: int | None  # a fixed set of so many, or None: fresh ones at every step
    clip: float | None  # the largest norm of the gradient, or None
    steps: int = 20_000
    batch: int = 250
    context: Layout = (10, 10)
    target: Layout = (10, 10)

    def rate(self, step: Tensor) -> Tensor:
        """The learning rate of a step, as a tensor on its device."""
        done = step / self.steps
        if self.schedule == "constant":
            return torch.full_like(done, self.learning_rate)
        down = (1 + (math.pi * ((done - 0.1) / 0.9).clamp(min=0)).cos()) / 2
        return self.learning_rate * (done / 0.1).clamp(max=1) * down


RECIPES = {
    "paper": Recipe(
        learning_rate=1e-4, schedule="constant", dropout=0.1, functions=10_000, clip=None
    ),
    "modern": Recipe(
        learning_rate=1e-3, schedule="one cycle", dropout=0.0, functions=None, clip=1e3, target=100
    ),
}


class DivergedError(ProbConservError):
    """The loss is no longer a number."""


def train(
    problem: type[ClosedForm],
    out: Path,
    recipe: str = "modern",
    device: str = "auto",
    seed: int = 0,
    report: Report | None = None,
    sizes: dict[str, int] | None = None,
    **changes: Any,
) -> AttentiveNeuralProcess:
    """A network trained on the problem; its weights and card are in the folder `out`.

    recipe: paper or modern; `changes` replace its entries (steps=1000, batch=32, ...). sizes: of
    the network (hidden, latent, heads). report: called every so many steps with what there is to
    show. A folder with a checkpoint is continued. Ctrl-C leaves one.
    """
    check.choice("recipe", recipe, RECIPES)
    check.whole("seed", seed)
    for name, count in {"steps": 1, **changes}.items():
        if name in ("steps", "batch"):
            check.samples(count, name)
    plan = dataclasses.replace(RECIPES[recipe], **changes)
    place = _device(device)
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
        run = _Run(problem, recipe, plan, Path(out), place, seed, sizes or {})
        return _finished(run, report or (lambda _: None))


def _finished(run: "_Run", report: Report) -> AttentiveNeuralProcess:
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # TF32 where there is a GPU
    run.resume()
    try:
        with _interrupts() as asked:
            run.go(report, asked)
    except KeyboardInterrupt:  # between two steps, see `_interrupts`
        run.save()
        raise
    finally:
        torch.set_float32_matmul_precision(precision)
    return run.network


def loss(network: AttentiveNeuralProcess, functions: Functions) -> Tensor:
    """The negative evidence lower bound: summed over points, averaged over functions."""
    known, asked = (torch.stack([p.t, p.x], dim=-1) for p in (functions.context, functions.target))
    u, answer = functions.context.u, functions.target.u
    prior = network.latent(known, u)
    both = network.latent(torch.cat([known, asked], dim=1), torch.cat([u, answer], dim=1))
    z = both.sample(torch.randn_like(both.mean))
    mean, std = network.decode(network.common(known, u, asked), z)
    return (both.divergence(prior) - log_normal(answer, mean, std).sum(-1)).mean()


@torch.no_grad()
def validation_ll(
    network: AttentiveNeuralProcess, functions: Functions, samples: int = 32
) -> float:
    """The paper's LL at the targets: of the normal with the moments of `samples` latent draws."""
    known, asked = (torch.stack([p.t, p.x], dim=-1) for p in (functions.context, functions.target))
    latent = network.latent(known, functions.context.u)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(samples, *latent.mean.shape, generator=generator).to(known)
    common = network.common(known, functions.context.u, asked)
    mean, std = network.decode(common, latent.sample(noise))
    total = (std**2).mean(0) + mean.var(0, correction=0)
    return float(log_normal(functions.target.u, mean.mean(0), total.sqrt()).mean())


class _Run:
    """The state of a training, and its files."""

    def __init__(
        self,
        problem: type[ClosedForm],
        name: str,
        recipe: Recipe,
        out: Path,
        device: torch.device,
        seed: int,
        sizes: dict[str, int],
    ) -> None:
        self.recipe, self.out, self.device, self.seed = recipe, out, device, seed
        torch.manual_seed(seed)
        self.network = AttentiveNeuralProcess(dropout=recipe.dropout, **sizes).to(device)
        self.network.attend_in_float16(device.type == "cuda")
        self.rate = torch.zeros((), device=device)
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.Adam(
            self.network.parameters(), lr=self.rate, fused=on_gpu, capturable=on_gpu
        )
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        self.failed = torch.full_like(self.step, -1)  # the first step without a loss
        self.batches = _batches(problem, recipe, seed, device)
        held_out = draw(problem, "validation", 200, recipe.context, 100)
        self.validation = held_out.to(torch.float32).to(device)
        settings = json.loads(json.dumps(dataclasses.asdict(recipe)))  # as files have them
        self.card: dict[str, Any] = {"problem": problem.name, "model": "anp", "recipe": name}
        self.card |= {"seed": seed, "settings": settings, "sizes": self.network.sizes}
        self.seconds = 0.0
        self.lines: list[dict[str, float]] = []

    def go(self, report: Report, interrupts: list[int]) -> None:
        work = _Graphed(self.advance) if self.device.type == "cuda" else self.advance
        self.loss_of = torch.compile(self._loss_of) if self.device.type == "cuda" else self._loss_of
        every, validate = max(1, self.recipe.steps // 200), max(1, self.recipe.steps // 20)
        done, started = int(self.step), time.perf_counter() - self.seconds
        while done < self.recipe.steps:
            torch.manual_seed((self.seed * 1_000_003 + done) % 2**63)
            value = work()
            done += 1
            if interrupts:
                self._check_loss()
                raise KeyboardInterrupt
            if done % every and done != self.recipe.steps:
                continue
            self._check_loss()
            line = {"step": done, "loss": float(value), "learning_rate": float(self.rate)}
            self.seconds = time.perf_counter() - started
            if done % validate == 0 or done == self.recipe.steps:
                line["validation_ll"] = self.validate()
                self.seconds = time.perf_counter() - started
                self.lines.append(line | {"seconds": self.seconds})
                self.save()
            report(line | {"steps": self.recipe.steps, "seconds": self.seconds})
        self.finish()

    def advance(self) -> Tensor:
        """One step; on a GPU this is captured once and replayed."""
        self.optimizer.zero_grad(set_to_none=True)
        self.rate.copy_(self.recipe.rate(self.step))
        value = self.loss_of(self.step)
        value.backward()
        limit = math.inf if self.recipe.clip is None else self.recipe.clip
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), limit)
        for parameter in self.network.parameters():
            if parameter.grad is not None:  # a gradient that overflows is left out
                parameter.grad = torch.where(norm.isfinite(), parameter.grad, 0)
        self.optimizer.step()
        self.skipped.add_(~norm.isfinite())
        first = ~value.isfinite() & (self.failed < 0)
        self.failed.copy_(torch.where(first, self.step, self.failed))
        self.step.add_(1)
        return value.detach()

    def _loss_of(self, step: Tensor) -> Tensor:
        return loss(self.network, self.batches(step))

    def _check_loss(self) -> None:
        failed = int(self.failed)
        if failed >= 0:
            raise DivergedError(
                f"The loss stopped being a number at step {failed}. The last checkpoint in "
                f"{self.out} is from before. Try a lower learning_rate or a lower clip."
            )

    def validate(self) -> float:
        self.network.eval()
        value = validation_ll(self.network, self.validation)
        self.network.train()
        return value

    def save(self) -> None:
        state = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                state[f"adam.{key}.{name}"] = value
        state |= {"step": self.step, "skipped": self.skipped}
        notes = {"seconds": self.seconds, "lines": self.lines, "card": self.card}
        write(self.out / "checkpoint.safetensors", state, notes)
        self._write_log()

    def resume(self) -> None:
        path = self.out / "checkpoint.safetensors"
        if not path.exists():
            return
        state, notes = read(path)
        kept_plan = _flat(notes.get("card", {}))
        for name, value in _flat(self.card).items():
            where, hint = f"the checkpoint in {self.out}", "Use another folder."
            check.equal(name, value, kept_plan.get(name), where, hint)
        weights = {
            k.removeprefix("network."): v for k, v in state.items() if k.startswith("network.")
        }
        self.network.load_state_dict(weights)
        for name, parameter in self.network.named_parameters():
            if f"adam.step.{name}" in state:
                kept = {k: state[f"adam.{k}.{name}"] for k in ("step", "exp_avg", "exp_avg_sq")}
                self.optimizer.state[parameter] = {k: v.to(self.device) for k, v in kept.items()}
        self.step.copy_(state["step"])
        self.skipped.copy_(state["skipped"])
        self.seconds, self.lines = notes["seconds"], notes["lines"]

    def finish(self) -> None:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        self.card |= {
            "min_std": self.network.min_std,
            "steps": int(self.step),
            "skipped_steps": int(self.skipped),
            "seconds": round(self.seconds, 1),
            "device": name,
            "torch": torch.__version__,
            "validation_ll": round(self.validate(), 4),
        }
        self.network.eval()
        self.network.attend_in_float16(False)
        write(self.out / "weights.safetensors", self.network.state_dict(), self.card)
        with complete(self.out / "card.json") as part:
            part.write_text(json.dumps(self.card, indent=1) + "\n")

    def _write_log(self) -> None:
        columns = ["step", "loss", "learning_rate", "validation_ll", "seconds"]
        rows = [",".join(columns)]
        rows += [",".join(f"{line[c]:.8g}" for c in columns) for line in self.lines]
        with complete(self.out / "metrics.csv") as part:
            part.write_text("\n".join(rows) + "\n")


class _Graphed:
    """Work captured in a CUDA graph after a few calls, which warm up what it compiles."""

    def __init__(self, work: Callable[[], Tensor], warm_up: int = 3) -> None:
        self.work, self.left = work, warm_up
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> Tensor:
        if self.left:
            self.left -= 1
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                value = self.work()
            torch.cuda.current_stream().wait_stream(side)
            return value
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.value = self.work()
        self.graph.replay()
        return self.value


def _batches(problem: type[ClosedForm], recipe: Recipe, seed: int, device: torch.device) -> Batches:
    if recipe.functions is None:
        return Stream(problem, recipe.batch, recipe.context, recipe.target, seed, device)
    fixed = draw(problem, "train", recipe.functions, recipe.context, recipe.target, seed)
    return Shuffled(fixed.to(torch.float32).to(device), recipe.batch, seed)


def _flat(card: dict[str, Any]) -> dict[str, Any]:
    parts = {**card, **card.get("settings", {}), **card.get("sizes", {})}
    return {name: value for name, value in parts.items() if not isinstance(value, dict)}


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Ctrl-C is noted, to be obeyed between two steps: a step that is torn could not be resumed."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted  # no signal gets here
        return
    before = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check.choice("device", name.split(":")[0], ["auto", "cpu", "cuda"])
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InputError("`device` is cuda, but torch finds no GPU here. Use auto or cpu.")
    return torch.device(name)
