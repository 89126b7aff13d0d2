"""Every trained network over the whole range of its parameter, not at one value of it."""

import runpy
from pathlib import Path

import pytest
import torch

import probconserv as pc
from probconserv.data import draw
from probconserv.experiments.paper import EXPERIMENTS
from probconserv.problems import find
from probconserv.training import share_from_context

reading = runpy.run_path(str(Path(__file__).parents[1] / "weights" / "measure.py"))["reading"]
AT_LEAST = {  # explained share: the figure of weights/README.md less what another 24 would change
    ("diffusion", "anp"): 0.98,
    ("pme", "anp"): 0.98,
    ("stefan", "anp"): 0.85,
    ("advection", "anp"): 0.55,
    ("burgers", "anp"): 0.98,
    ("diffusion", "softc"): 0.98,
    ("pme", "softc"): 0.98,
    ("stefan", "softc"): 0.35,
    ("advection", "softc"): 0.55,
    ("burgers", "softc"): 0.88,
}


@pytest.mark.parametrize(("problem", "model"), AT_LEAST)
def test_a_network_explains_the_fields_of_its_whole_range(problem, model):
    found = reading(pc.models.load(problem, model), EXPERIMENTS[problem], samples=10)
    assert found.share > AT_LEAST[problem, model]


def test_totals_of_the_melting_front_follow_the_truth():
    found = reading(pc.models.load("stefan"), EXPERIMENTS["stefan"], samples=10)
    assert 0.85 < found.slope < 1.15
    assert found.mse_after < 4e-4


@pytest.mark.parametrize("problem", EXPERIMENTS)
def test_an_emulator_that_is_told_the_parameter_uses_it(problem):
    functions = draw(find(problem), "validation", 24, (10, 10), 50).to(torch.float32)
    assert share_from_context(pc.models.load(problem, "emulator"), functions) > 0.9


@pytest.mark.parametrize(
    ("problem", "model", "share"),
    [("stefan", "anp", 0.405), ("stefan", "softc", -0.241), ("advection", "anp", 0.016)],
)
def test_cards_of_the_paper_s_recipe_say_what_their_network_does_not_explain(problem, model, share):
    network = pc.models.load(problem, model, "paper")
    assert network.card["explained_share"] == share
    assert reading(network, EXPERIMENTS[problem], samples=10).share == pytest.approx(share, abs=0.1)
