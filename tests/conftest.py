import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("default", deadline=None, max_examples=60, derandomize=True)
hypothesis.settings.load_profile("default")
torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(20)
