"""Every Python block of the README runs, in order, in one namespace."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def test_the_code_in_the_readme_runs_and_conserves(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    law, post = names["law"], names["post"]
    assert len(blocks) == 4
    assert names["melt"].residual(names["field"]).abs().max() < 1e-12
    assert law.residual(names["mean"]).abs().max() > 1e-3
    for field in (post, names["hard"], names["joint"], names["paper"], names["exact"]):
        assert law.residual(field).abs().max() < 1e-12
    assert names["draws"].shape == (500, 10, 101)
    assert names["its_law"].residual(names["run"].u).abs().max() < 1e-12
    assert float(names["front"]) == pytest.approx(0.2351, abs=5e-5)
    assert "dtype=torch.float64" in capsys.readouterr().out


def test_links_lead_somewhere():
    for page in (README, *README.parent.glob("docs/*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
