"""A training's folder as weights to ship: python weights/ship.py RUN DESTINATION [--float32].

Weights are stored in half precision; with --float32 in full, where a metric would move.
"""

import json
import sys
from pathlib import Path

from measure import reading

from probconserv.experiments.paper import EXPERIMENTS
from probconserv.models import open_weights, save
from probconserv.support.complete_files import complete

run, destination = (Path(argument) for argument in sys.argv[1:3])
network = open_weights(run)
card = network.card
card["explained_share"] = round(reading(network, EXPERIMENTS[card["problem"]]).share, 3)
name = f"{card['problem']}-{card['model']}-{card['recipe']}"
save(network, destination / f"{name}.safetensors", half="--float32" not in sys.argv)
with complete(destination / f"{name}.json") as part:
    part.write_text(json.dumps(card, indent=1) + "\n")
