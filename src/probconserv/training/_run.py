"""The state of a training, its steps, its log and its files."""

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..models._network import attend_in_float16
from ..models._trained import read, write
from ..support import checks as check
from ..support.complete_files import complete
from ..support.errors import InputError, ProbConservError
from ._kinds import Kind
from ._machine import Graphed, Team
from ._recipes import Recipe
from ._source import Source

COLUMNS = ["step", "loss", "learning_rate", "validation_ll", "seconds"]
OTHERS = ["validation_crps", "constrained_ll", "constrained_crps"]  # where there are any


Reporter: TypeAlias = Callable[[dict[str, float]], None]


class DivergedError(ProbConservError):
    """The loss is no longer a number."""


class Run:
    """One training. `card` says what was asked for and, at the end, what came of it."""

    def __init__(
        self,
        kind: Kind,
        source: Source,
        names: dict[str, Any],  # of the recipe, and the seed
        recipe: Recipe,
        out: Path,
        device: torch.device,
        team: Team,
        sizes: dict[str, Any],
        start: str | Path | None,
    ) -> None:
        self.recipe, self.out, self.device, self.team = recipe, out, device, team
        self.seed = names["seed"]
        torch.manual_seed(self.seed)
        self.network = kind.build(source, recipe, sizes).float().to(device)
        attend_in_float16(self.network, device.type == "cuda")
        share = team.share(recipe.batch)
        self.task = kind.task(self.network, source, recipe, self.seed, share, device)
        settings = json.loads(json.dumps(dataclasses.asdict(recipe)))  # as files have them
        self.sizes: dict[str, Any] = getattr(self.network, "sizes", sizes)
        self.card = {"problem": source.name, "model": kind.name, **names, **source.describe()}
        self.card |= {"settings": settings, "sizes": self.sizes}
        if start is not None:
            self._start_from(check.path("start", start))
        self.parameters = list(self.network.parameters())
        self.rate = torch.zeros((), dtype=torch.float32, device=device)
        self.stop = torch.zeros_like(self.rate)  # whether any process was asked to
        on_gpu = device.type == "cuda"
        all_real = not any(p.is_complex() for p in self.parameters)  # not so in some guests
        self.optimizer = torch.optim.Adam(
            self.parameters, lr=self.rate, fused=on_gpu and all_real, capturable=on_gpu
        )
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        self.failed = torch.full_like(self.step, -1)  # the first step without a loss
        self.best: dict[str, Tensor] = {}  # the weights to keep, where they may not be the last
        self.best_score = -math.inf
        self.seconds = 0.0
        self.lines: list[dict[str, float]] = []  # of the log
        self._resume()
        if team.first:
            self._write_log()  # a folder that cannot be written to is known at once

    def go(self, report: Reporter, interrupts: list[int]) -> None:
        """To the end, or to the next step after an interrupt."""
        if self.team.first:
            start = {"step": 0.0, "learning_rate": 0.0, "seconds": 0.0}  # there is no loss yet
            report((self.lines or [start])[-1] | {"steps": self.recipe.steps})
        if not self._restored():
            self._go(report, interrupts)

    def _go(self, report: Reporter, interrupts: list[int]) -> None:
        on_gpu = self.device.type == "cuda" and getattr(self.task, "traced", True)
        self.loss_of = torch.compile(self.task.loss) if on_gpu else self.task.loss
        work = Graphed(self.advance) if on_gpu else self.advance
        every, validate = max(1, self.recipe.steps // 200), max(1, self.recipe.steps // 20)
        done, started = int(self.step), time.perf_counter() - self.seconds
        while done < self.recipe.steps:
            torch.manual_seed((self.seed * 1_000_003 + done * 997 + self.team.rank) % 2**63)
            self.stop.fill_(bool(interrupts))
            value = work()
            done += 1
            due = done % every == 0 or done == self.recipe.steps
            if self._asked_to_stop(interrupts, due):
                self._stop()
            if not due:
                continue
            self._check_finite()
            line = {"step": done, "loss": float(value), "learning_rate": float(self.rate)}
            whole = done % validate == 0 or done == self.recipe.steps
            if whole:
                scores = self.task.scores()
                self._keep(scores)
                line |= scores
            self.seconds = time.perf_counter() - started
            if self.team.first:
                self.lines.append(line | {"seconds": self.seconds})
                if whole:
                    self.save()
                report(line | {"steps": self.recipe.steps, "seconds": self.seconds})
        self._finish()

    def advance(self) -> Tensor:
        """One step; on a GPU this is captured once and replayed."""
        self.optimizer.zero_grad(set_to_none=True)
        self.rate.copy_(self.recipe.rate(self.step))
        value = self.loss_of(self.step)
        value.backward()
        value = value.detach()
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        as_real = [torch.view_as_real(g) if g.is_complex() else g for g in gradients]
        self.team.average([value, self.stop, *as_real])
        limit = math.inf if self.recipe.clip is None else self.recipe.clip
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, limit)
        overflown = ~norm.isfinite()
        for gradient in gradients:  # counts as 0 then
            gradient.masked_fill_(overflown, 0)
        self.optimizer.step()
        self.skipped.add_(overflown)
        first = ~value.isfinite() & (self.failed < 0)
        self.failed.copy_(torch.where(first, self.step, self.failed))
        self.step.add_(1)
        return value

    def _check_finite(self) -> None:
        failed = int(self.failed)
        if failed < 0 and all(bool(p.isfinite().all()) for p in self.parameters):
            return
        what = "weights" if failed < 0 else "loss"
        step = int(self.step) if failed < 0 else failed
        kept = self.out / "checkpoint.safetensors"
        raise DivergedError(
            f"The {what} stopped being a number at step {step}. "
            + (f"The checkpoint in {self.out} is from before. " if kept.exists() else "")
            + "Try a lower learning_rate or a lower clip."
        )

    def _asked_to_stop(self, interrupts: list[int], due: bool) -> bool:
        """A team stops after the same step; to read its flag makes a GPU wait, so not too often."""
        if self.team.size == 1:
            return bool(interrupts)
        return (due or self.device.type == "cpu") and bool(self.stop > 0)

    def _stop(self) -> None:
        self._check_finite()
        if self.team.first:
            self.save()
        raise KeyboardInterrupt

    def _keep(self, scores: dict[str, float]) -> None:
        name, score = [*scores.items()][-1]
        score = -score if name.endswith("crps") else score
        if self.recipe.keep == "best" and score > self.best_score:
            self.best = {name: t.clone() for name, t in _tensors(self.network).items()}
            self.best_score = score

    def save(self) -> None:
        state = {f"network.{k}": v for k, v in _tensors(self.network).items()}
        state |= {f"best.{k}": v for k, v in self.best.items()}
        for name, parameter in self.network.named_parameters():
            for key, value in self.optimizer.state[parameter].items():
                state[f"adam.{key}.{name}"] = value
        state |= {"step": self.step, "skipped": self.skipped}
        notes = {"seconds": self.seconds, "lines": self.lines, "card": self.card}
        notes["best_score"] = self.best_score if self.best else None
        write(self.out / "checkpoint.safetensors", state, notes)
        self._write_log()

    def _write_log(self) -> None:
        columns = COLUMNS + [c for c in OTHERS if any(c in line for line in self.lines)]
        rows = [[f"{line[c]:.8g}" if c in line else "" for c in columns] for line in self.lines]
        with complete(self.out / "metrics.csv") as part:
            part.write_text("\n".join(map(",".join, [columns, *rows])) + "\n")

    def _start_from(self, path: Path) -> None:
        path = path / "weights.safetensors" if path.is_dir() else path
        state, card = read(path)
        for name, size in self.sizes.items():
            _check_equal(name, size, card.get("sizes", {}).get(name), str(path))
        self._load(state)
        names = [str(card.get(name)) for name in ("problem", "model", "recipe")]
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]  # which of that name
        self.card["start"] = "-".join([*names, digest])

    def _resume(self) -> None:
        path = self.out / "checkpoint.safetensors"
        if not path.exists():
            return
        state, notes = read(path)
        asked, kept_plan = _flat(self.card), _flat(notes.get("card", {}))
        for name in {**asked, **kept_plan}:
            where, hint = f"the checkpoint in {self.out}", "Use another folder."
            _check_equal(name, asked.get(name), kept_plan.get(name), where, hint)
        self.network.load_state_dict(_under("network.", state))
        self.best = {name: t.to(self.device) for name, t in _under("best.", state).items()}
        self.best_score = notes["best_score"] if self.best else -math.inf
        for name, parameter in self.network.named_parameters():
            if f"adam.step.{name}" in state:
                kept = {k: state[f"adam.{k}.{name}"] for k in ("step", "exp_avg", "exp_avg_sq")}
                self.optimizer.state[parameter] = {k: v.to(self.device) for k, v in kept.items()}
        self.step.copy_(state["step"])
        self.skipped.copy_(state["skipped"])
        self.seconds, self.lines = notes["seconds"], notes["lines"]

    def _restored(self) -> bool:
        """Whether the run is finished; its weights and card are then left as they are."""
        path = self.out / "weights.safetensors"
        if int(self.step) < self.recipe.steps or not path.exists():
            return False
        state, self.card = read(path)
        self._load(state)
        self.network.eval()
        self.network.card = self.card  # type: ignore[assignment]
        return True

    def _load(self, state: dict[str, Tensor]) -> None:
        real = {name: t.float() for name, t in state.items() if t.is_floating_point()}
        self.network.load_state_dict(state | real)

    def _finish(self) -> None:
        if self.best:
            self.network.load_state_dict(self.best)
        attend_in_float16(self.network, False)  # the card's LL is that of whole float32
        torch.set_float32_matmul_precision("highest")
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        self.card |= {
            "min_std": getattr(self.network, "min_std", 0.0),
            "steps": int(self.step),
            "skipped_steps": int(self.skipped),
            "seconds": round(self.seconds, 1),
            "device": name,
            "processes": self.team.size,
            "torch": torch.__version__,
        }
        self.card |= {name: float(f"{score:.5g}") for name, score in self.task.scores().items()}
        self.network.eval()
        reading = self.task.reading()
        if not math.isnan(reading):  # of one function alone, which JSON has no number for
            self.card["reading"] = float(f"{reading:.3g}")
        self.network.card = self.card  # type: ignore[assignment]
        if not self.team.first:
            return
        self._write_log()
        with complete(self.out / "card.json") as part:
            part.write_text(json.dumps(self.card, indent=1) + "\n")
        write(self.out / "weights.safetensors", _tensors(self.network), self.card)  # the last


def _tensors(network: torch.nn.Module) -> dict[str, Tensor]:
    """Its weights and buffers, without the notes that some guests put beside them."""
    return {name: t for name, t in network.state_dict().items() if isinstance(t, Tensor)}


def _under(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _flat(card: dict[str, Any]) -> dict[str, Any]:
    parts = {**card, **card.get("data", {}), **card.get("settings", {}), **card.get("sizes", {})}
    return {name: value for name, value in parts.items() if not isinstance(value, dict)}


def _check_equal(name: str, given: object, expected: object, of: str, hint: str = "") -> None:
    if given != expected:
        raise InputError(f"`{name}` is {given!r} but {of} has {expected!r}. {hint}".rstrip())
