"""What networks explain over their training range: python weights/measure.py [NAME ...].

The tables of weights/README.md. `reading` is on the cards of networks trained since it exists.
"""

import sys

import torch

import probconserv as pc
from probconserv.data import draw
from probconserv.experiments.paper import EXPERIMENTS, reading
from probconserv.models._load import TRAINED
from probconserv.training import share_from_context

print("problem    model     recipe  share   slope   MSE      after the law  reading")
for name in sys.argv[1:] or EXPERIMENTS:
    functions = draw(EXPERIMENTS[name].problem, "validation", 200, (10, 10), 100)
    for model, recipes in TRAINED.items():
        for recipe in recipes:
            network = pc.models.load(name, model, recipe)
            found = reading(network, EXPERIMENTS[name])
            share = share_from_context(network, functions.to(torch.float32))
            print(
                f"{name:10} {model:9} {recipe:7} {found.share:5.3f} {found.slope:7.3f}  "
                f"{found.mse:7.2g}  {found.mse_after:7.2g}        {share:.3f}",
                flush=True,
            )
