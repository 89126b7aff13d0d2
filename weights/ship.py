"""A training's folder as weights to ship: python weights/ship.py RUN DESTINATION [--float32].

Weights are stored in half precision; with --float32 in full, where a metric would move.
"""

import json
import sys
from pathlib import Path

from probconserv._files import complete
from probconserv.models._checkpoints import read, write

run, destination = (Path(argument) for argument in sys.argv[1:3])
tensors, card = read(run / "weights.safetensors")
if "--float32" not in sys.argv:
    tensors = {name: tensor.half() for name, tensor in tensors.items()}
name = f"{card['problem']}-{card['model']}-{card['recipe']}"
write(destination / f"{name}.safetensors", tensors, card)
with complete(destination / f"{name}.json") as part:
    part.write_text(json.dumps(card, indent=1) + "\n")
