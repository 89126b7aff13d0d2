"""Step 2 outside of eager Python: exported with a batch of any size, traced, sharded, pickled."""

import pickle
import subprocess
import sys

import pytest
import torch
from seeds import generator

import probconserv as pc

X = torch.linspace(0, 1, 7, dtype=torch.float64) ** 2
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 2])
LAWS = {
    "integral": lambda: pc.integral(X, 2.0),
    "integral with noise": lambda: pc.integral(X, 2.0, noise=0.1),
    "regions": lambda: pc.regions(LABELS, [1.0, 2.0, 3.0]),
}


class Step2(torch.nn.Module):
    """Mean and variance after a law, which is made inside."""

    def __init__(self, law):
        super().__init__()
        self.law = LAWS[law]

    def forward(self, mean, variance):
        post = pc.condition(pc.Diagonal(mean, variance), self.law())
        return post.mean, post.variance


def given(batch):
    u = torch.randn(2, batch, 3, 7, generator=generator(batch), dtype=torch.float64)
    return u[0], u[1].square() + 0.1


@pytest.mark.parametrize("law", LAWS)
def test_an_exported_program_takes_batches_of_any_size(law):
    step, batch = Step2(law), torch.export.Dim("batch", min=2)
    sizes = {"mean": {0: batch}, "variance": {0: batch}}
    program = torch.export.export(step, given(4), dynamic_shapes=sizes, strict=True).module()
    for size in (2, 9):
        torch.testing.assert_close(program(*given(size)), step(*given(size)))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("law", LAWS)
def test_a_traced_program_does_not_keep_the_numbers_that_it_was_traced_with(law):
    step = Step2(law)
    traced = torch.jit.trace(step, given(4))
    other = tuple(t + 1 for t in given(4))
    torch.testing.assert_close(traced(*other), step(*other))


@pytest.mark.parametrize("law", LAWS)
def test_laws_and_posteriors_are_pickled(law):
    """Which processes that load data do with them."""
    prior = pc.Diagonal(*given(4))
    post = pc.condition(prior, pickle.loads(pickle.dumps(LAWS[law]())))
    again = pickle.loads(pickle.dumps(post))
    torch.testing.assert_close(again.mean, pc.condition(prior, LAWS[law]()).mean)
    torch.testing.assert_close(again.variance, post.variance)


SHARDED = """
import os
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
import probconserv as pc

dist.init_process_group("gloo", init_method="file://" + os.environ["MEET"], rank=0, world_size=1)
mesh, x = init_device_mesh("cpu", (1,)), torch.linspace(1, 2, 12, dtype=torch.float64)
u = torch.stack([x, x.sin(), x**2])
split = lambda t: distribute_tensor(t, mesh, [Shard(t.ndim - 1)])
total = u.sum(-1) + 0.5
everywhere = distribute_tensor(total, mesh, [Replicate()])
whole = pc.condition(pc.Diagonal(u, u), pc.weighted_sum(torch.ones_like(x), total))
law = pc.weighted_sum(split(torch.ones_like(x)), everywhere)
post = pc.condition(pc.Diagonal(split(u), split(u)), law)
print(float((post.mean.full_tensor() - whole.mean).abs().max()) < 1e-14)
"""


def test_a_field_in_shards_is_conditioned_as_the_whole(tmp_path):
    environment = {"MEET": str(tmp_path / "meet"), "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", SHARDED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout == "True\n", done.stderr


def test_laws_that_are_not_linear_refuse_to_be_exported_in_words():
    class Step(torch.nn.Module):
        def forward(self, mean):
            law = pc.nonlinear(lambda u: u.square().sum(-1), 4.0)
            return pc.condition(pc.Diagonal(mean, 1.0), law).point

    with pytest.raises(pc.errors.InputError, match=r"not inside `torch.func` .* nor exported"):
        torch.export.export(Step(), (X[None],), strict=False)
