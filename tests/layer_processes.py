"""DDP and FSDP2 with two processes, each with half of a batch: the same weights as one process.

Run by test_layer_deployed.py as `python layer_processes.py FILE`, FILE being where they meet.
"""

import sys

import torch
import torch.distributed as dist
from seeds import generator, made
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

import probconserv as pc

TOTALS = 0.1 * torch.arange(12.0).reshape(4, 3)


def network():
    laws = pc.integral(torch.linspace(0, 1, 7) ** 2, 0.4), pc.boundary(left=0.1, noise=0.2)
    layer = pc.ConstraintLayer(*laws, std=0.5, learn_std=True, returns="moments")
    return nn.Sequential(made(nn.Linear, 7, 7), Given(layer))


class Given(nn.Module):
    """The layer, with totals that come beside what the network sees."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.totals = layer, None

    def forward(self, mean):
        return self.layer(mean, self.totals)


def trained(net, inputs, totals):
    """The weights after three steps."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    inner = net.module if isinstance(net, DistributedDataParallel) else net
    inner[1].totals = totals
    for _ in range(3):
        mean, variance = net(inputs)
        loss = (mean.square() + variance).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in net.parameters()]


def work(rank, meet):
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=2)
    inputs = torch.rand(4, 3, 7, generator=generator(1))
    mine = slice(2 * rank, 2 * rank + 2)
    alone = trained(network(), inputs, TOTALS)
    sharded, mesh = network(), init_device_mesh("cpu", (2,))
    for part in (sharded[0], sharded[1].layer, sharded):
        fully_shard(part, mesh=mesh)
    for net in (DistributedDataParallel(network()), sharded):
        together = trained(net, inputs[mine], TOTALS[mine])
        torch.testing.assert_close(together, alone)
        state = net.state_dict()
        assert any(name.endswith("layer.integral.weights") for name in state)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    start_processes(work, (sys.argv[1],), nprocs=2, start_method="fork")
    print("the same")
