"""The command that trains networks."""

import os
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console

from ..support.errors import InputError
from .words import pair, split

Names = Annotated[list[str] | None, Parameter(consume_multiple=True, negative=())]
SHOWN = "step", "steps", "loss", "learning_rate", "seconds"  # of a line; the rest are scores


def train(
    data: str,
    /,
    *,
    model: str = "anp",
    recipe: str = "modern",
    inputs: Names = None,
    targets: Names = None,
    totals: Names = None,
    rule: str = "trapezoid",
    sample: str = "sample",
    steps: int | None = None,
    batch: int | None = None,
    set_: Annotated[Names, Parameter(name="--set", consume_multiple=True, negative=())] = None,
    start: Path | None = None,
    out: Path | None = None,
    device: str = "auto",
    seed: int = 0,
) -> None:
    """Train a network; a folder with a checkpoint is continued.

    Parameters
    ----------
    data
        An equation with a closed form, or a .zarr or .nc file.
    model
        anp, softc, emulator or fno.
    recipe
        modern or paper.
    inputs
        For a file: the variables that are known.
    targets
        Variables to predict.
    totals
        The integrals of these, if known.
    rule
        How they add up: trapezoid, periodic, cell, ...
    sample
        The dimension that counts functions.
    steps
        How many, if not those of the recipe.
    batch
        Functions in a step, likewise.
    set_
        NAME=VALUE of recipe or network: loss=ll width=32
    start
        weights.safetensors to go on from, or its folder.
    out
        The folder; out/DATA-MODEL-RECIPE if not given.
    device
        auto, cpu or cuda.
    seed
        The seed of all random numbers.
    """
    from ..training import train as run

    given = _data(data, split(inputs), split(targets), split(totals), sample, rule)
    sizes, changes = _settings(model, set_ or [])
    changes |= {k: v for k, v in (("steps", steps), ("batch", batch)) if v is not None}
    name = given if isinstance(given, str) else given.name
    folder = Path("out", f"{name}-{model}-{recipe}") if out is None else out
    first = os.environ.get("RANK", "0") == "0"  # of the processes of torchrun
    bar = _Bar(first)
    kind: Any = model  # `train` refuses what it does not know
    known: Any = recipe
    try:
        run(given, folder, kind, known, device, seed, bar.show, sizes or None, start, **changes)
    finally:
        bar.stop()
    if first:
        print(f"weights, card and metrics in {folder}")


class _Bar:
    """A bar on stderr, from the first report on: what is refused is refused without one."""

    def __init__(self, on: bool) -> None:
        from rich.progress import Progress

        self.progress = Progress(console=Console(stderr=True), disable=not on)
        self.task = self.progress.add_task("")
        self.shown: dict[str, str] = {}

    def show(self, line: dict[str, float]) -> None:
        self.progress.start()
        scores = [f"{name} {value:.4g}" for name, value in line.items() if name not in SHOWN]
        found = {"loss": [f"loss {line['loss']:.4g}"] if "loss" in line else [], "score": scores}
        self.shown |= {kind: texts[-1] for kind, texts in found.items() if texts}
        said = "  ".join([f"step {line['step']:g}/{line['steps']:g}", *self.shown.values()])
        done, total = line["step"], line["steps"]
        self.progress.update(self.task, description=said, completed=done, total=total, refresh=True)

    def stop(self) -> None:
        if self.progress.live.is_started:
            self.progress.stop()


def _data(
    data: str, inputs: list[str], targets: list[str], totals: list[str], sample: str, rule: Any
) -> Any:
    """The name of an equation, or what a file holds."""
    if Path(data).suffix not in (".zarr", ".nc", ".nc4", ".h5"):
        if Path(data).suffix:
            raise InputError(
                f"`data` {data} is no .zarr or .nc file. Arrays without names of axes, as in .npz, "
                "are given to `Grids` and `train` in Python, or written with xarray's to_netcdf."
            )
        if inputs or targets or totals:
            raise InputError(f"`--inputs`, `--targets` and `--totals` are for files; got {data!r}.")
        return data
    if not inputs or not targets:
        raise InputError("`--inputs` and `--targets` must name variables of the file.")
    from ..data import Grids

    return Grids.open(data, inputs, targets, sample, totals or None, rule)


def _settings(model: str, given: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sizes of the network and entries of the recipe."""
    from ..support.values import choice
    from ..training import KINDS
    from ..training._recipes import Changes

    choice("model", model, KINDS)
    entries, sizes = list(Changes.__annotations__), KINDS[model].sizes
    found: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for text in given:
        name, value = pair(text, "set")
        choice("--set", name, [*entries, *sizes])
        found[name in entries][name] = _value(value)
    return found


def _value(text: str) -> Any:
    """A number, yes or no, a list of these with commas or in brackets, none, or a word."""
    if "," in text or text[:1] in ("[", "("):
        return tuple(_value(part.strip()) for part in text.strip("[]()").split(",") if part.strip())
    words = {"none": None, "true": True, "yes": True, "false": False, "no": False}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def register(app: App) -> None:
    app.command(train)
