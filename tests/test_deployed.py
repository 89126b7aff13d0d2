"""Step 2 outside of eager Python: exported with a batch of any size, traced, sharded, pickled."""

import pickle

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


def test_laws_that_are_not_linear_refuse_to_be_exported_in_words():
    class Step(torch.nn.Module):
        def forward(self, mean):
            law = pc.nonlinear(lambda u: u.square().sum(-1), 4.0)
            return pc.condition(pc.Diagonal(mean, 1.0), law).point

    with pytest.raises(pc.errors.InputError, match=r"not inside `torch.func` .* nor exported"):
        torch.export.export(Step(), (X[None],), strict=False)
