import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()  # its scripts run in test_tutorial.py
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name not in TUTORIAL]


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_leave_a_picture(script, tmp_path):
    environment = {**os.environ, "MPLBACKEND": "Agg"}
    run = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "out" / f"{script.stem}.png").stat().st_size > 10_000
