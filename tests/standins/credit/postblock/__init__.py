"""Post-blocks by the name of their type, made and applied as a configuration says."""

import importlib

from torch import nn


def build_postblocks(conf, phase="per_step"):
    types = {}
    for name, entry in conf["custom_objects"].items():
        module = importlib.import_module(entry["module_path"])
        types[name] = getattr(module, entry.get("module_name", name))
    blocks = conf["postblocks"][phase]
    return nn.ModuleDict({name: types[b["type"]](**b["args"]) for name, b in blocks.items()})


def apply_postblocks(postblocks, batch_dict):
    for block in postblocks.values():
        batch_dict = block(batch_dict)
    return batch_dict
