from pathlib import Path

import pytest
from commands import script

ROOT = Path(__file__).parents[1]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()  # its scripts run in test_tutorial.py
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.name not in TUTORIAL]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_and_leave_a_picture(path, tmp_path):
    script(path, tmp_path)
    assert (tmp_path / "out" / f"{path.stem}.png").stat().st_size > 10_000
