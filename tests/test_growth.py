"""Memory grows with the number of points, not faster: what the README calls linear."""

import weakref

import pytest
import torch
from seeds import generator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import probconserv as pc

M = 12
X = torch.linspace(0, 1, M, dtype=torch.float64)
FIELDS = {
    "Diagonal": lambda u: pc.Diagonal(u[0], 1.0),
    "members of each time": lambda u: pc.Ensemble(u, batch_dims=1),
    "members of all times": pc.Ensemble,
    "directions of all times": lambda u: pc.LowRank(u[0], u[1:], 1.0, event_dims=2),
    "Mixture": lambda u: pc.Mixture(pc.Diagonal(u, 1e4)),  # all of them fit b
}
VERBS = {
    "mean": lambda field, law: pc.condition(field, law).mean,
    "variance": lambda field, law: pc.condition(field, law).variance,
    "interval": lambda field, law: pc.condition(field, law).interval(0.9),
    "sample": lambda field, law: pc.condition(field, law).sample(3, generator()),
    "members": lambda field, law: pc.condition(field, law).members(),
    "diagnose": pc.diagnose,
    "inflate": pc.inflate,
    "project": pc.project,
}


class LiveBytes(TorchDispatchMode):
    """The most bytes of tensors, made inside, that are alive at once."""

    def __init__(self):
        super().__init__()
        self.peak, self.sizes = 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        tensors = (t for t in tree_leaves(found) if isinstance(t, torch.Tensor))
        for storage in (t.untyped_storage() for t in tensors):
            if storage._cdata not in self.sizes:
                self.sizes[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.sizes.pop, storage._cdata, None)
        self.peak = max(self.peak, sum(self.sizes.values()))
        return found


def most_bytes(field, verb, times):
    rng = torch.Generator().manual_seed(0)
    samples = torch.randn(5, times, M, generator=rng, dtype=torch.float64)
    prior, law = FIELDS[field](samples), pc.integral(X, torch.zeros(times))
    VERBS[verb](prior, law)  # what is made once, such as a table of Student's t, is not of a size
    with LiveBytes() as live:
        VERBS[verb](prior, law)
    return live.peak


ENSEMBLES = [field for field in FIELDS if field.startswith("members")]
PAIRS = [(field, verb) for verb in VERBS for field in (ENSEMBLES if verb == "members" else FIELDS)]


@pytest.mark.parametrize(("field", "verb"), PAIRS)
def test_memory_is_linear_in_the_number_of_times(field, verb):
    assert most_bytes(field, verb, 192) <= 6 * most_bytes(field, verb, 48)
