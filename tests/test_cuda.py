"""The same numbers on a GPU. Run where one is: `pytest tests/test_cuda.py`."""

import pytest
import torch
from oracle import KINDS, LAWS, exact_residual, field_of, laws_of

import probconserv as pc

SHAPE = (4, 7)
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("kind", KINDS)
def test_cuda_equals_cpu(kind, law, rng):
    field, laws = field_of(kind, SHAPE, rng), laws_of(law, SHAPE, rng)
    here = pc.condition(field, *laws)
    moved = [one.to("cuda") for one in laws]
    there = pc.condition(field.to("cuda"), *moved)
    torch.testing.assert_close(there.mean.cpu(), here.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(there.variance.cpu(), here.variance, rtol=1e-9, atol=1e-9)
    assert there.to("cpu").mean.device.type == "cpu"
    draws = there.sample(5, torch.Generator("cuda").manual_seed(1))
    for one in moved:
        assert exact_residual(one, there.mean) < 1e-12
        assert exact_residual(one, draws) < 1e-12


def test_constraints_of_bare_numbers_follow_the_field(rng):
    field = field_of("diagonal", SHAPE, rng).to("cuda")
    post = pc.condition(field, pc.boundary(left=1.0, right=0.0), pc.periodic(noise=0.1))
    assert (post.mean[:, 0] == 1).all()


def test_mixtures_on_cuda(rng):
    components = field_of("diagonal", (5, *SHAPE), rng)
    law = laws_of("integral", SHAPE, rng)[0]
    here = pc.condition(pc.Mixture(components), law)
    there = pc.condition(pc.Mixture(components.to("cuda")), law.to("cuda"))
    torch.testing.assert_close(there.weights.cpu(), here.weights)
    torch.testing.assert_close(there.mean.cpu(), here.mean)
    draws = there.sample(6, torch.Generator("cuda").manual_seed(1))
    assert law.to("cuda").residual(draws).abs().max() < 1e-12


def test_the_fast_path_compiles_on_cuda(rng):
    law = laws_of("integral", SHAPE, rng)[0].to("cuda")

    def step2(mean, variance):
        post = pc.condition(pc.Diagonal(mean, variance), law)
        return post.mean, post.variance

    field = field_of("diagonal", (3, *SHAPE), rng).to("cuda")
    got = torch.compile(step2, fullgraph=True)(field.mean, field.variance)
    for a, b in zip(got, step2(field.mean, field.variance), strict=True):
        torch.testing.assert_close(a, b)
