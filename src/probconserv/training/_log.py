"""Metrics of a run as CSV and, where it is installed, for TensorBoard."""

from pathlib import Path
from typing import Any

from ..support.complete_files import complete

COLUMNS = ["step", "loss", "learning_rate", "validation_ll", "seconds"]
OTHERS = ["validation_crps", "constrained_ll", "constrained_crps"]  # where there are any


class Log:
    """The lines of a run so far; a resumed run takes those of its checkpoint."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.lines: list[dict[str, float]] = []
        self.board: Any = None

    def add(self, line: dict[str, float]) -> None:
        self.lines.append(line)
        if self.board is None:
            self.board = _board(self.out / "tensorboard", int(line["step"]))
        for name, value in line.items():
            if name != "step" and self.board:
                self.board.add_scalar(name, value, int(line["step"]))

    def write(self) -> None:
        columns = COLUMNS + [c for c in OTHERS if any(c in line for line in self.lines)]
        rows = [",".join(columns)]
        for line in self.lines:
            rows.append(",".join(f"{line[c]:.8g}" if c in line else "" for c in columns))
        with complete(self.out / "metrics.csv") as part:
            part.write_text("\n".join(rows) + "\n")
        if self.board:
            self.board.flush()

    def close(self) -> None:
        if self.board:
            self.board.close()


def _board(folder: Path, step: int) -> Any:
    """A writer that takes back what an earlier, killed run wrote from this step on; or nothing."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return False
    return SummaryWriter(folder, purge_step=step, filename_suffix=f".{step:09d}")
