"""Fields and laws in a DataLoader: one batch is each sample by itself."""

import copy
import pickle

import cloudpickle
import pytest
import torch
from seeds import generator
from sweeping import wait
from torch.utils.data import DataLoader, Dataset

import probconserv as pc
from probconserv.data import collate

N, T, M = 4, 3, 7
X = torch.linspace(0, 1, M, dtype=torch.float64)
BOTH = {"u": torch.ones(1, M), "flux": torch.ones(1, 2)}


def normal(*shape, rng):
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def dense(rng):
    root = normal(M, M, rng=rng)
    field = pc.Dense(normal(T, M, rng=rng), root @ root.mT + torch.eye(M))
    if float(field.mean[0, 0]) > 0:
        field.sample(1, rng)  # which keeps a factor, in some samples
    return field


FIELDS = {
    "Diagonal": lambda rng: pc.Diagonal(normal(T, M, rng=rng), normal(T, M, rng=rng).exp()),
    "LowRank": lambda rng: pc.LowRank(normal(T, M, rng=rng), normal(2, T, M, rng=rng), 0.5),
    "Ensemble": lambda rng: pc.Ensemble(normal(5, T, M, rng=rng), batch_dims=1),
    "whole Ensemble": lambda rng: pc.Ensemble(normal(5, T, M, rng=rng)),
    "Dense": dense,
    "Mixture": lambda rng: pc.Mixture(pc.Diagonal(normal(2, T, M, rng=rng), 1.0), [0.3, 0.7], 1),
    "State": lambda rng: pc.State(
        u=(normal(T, M, rng=rng), 1.0), flux=pc.LowRank(normal(T, 2, rng=rng), torch.ones(1, T, 2))
    ),
    "Ensembles": lambda rng: pc.Ensemble(
        {"u": normal(5, T, M, rng=rng), "flux": normal(5, T, 2, rng=rng)}
    ),
}


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")  # of components far away
@pytest.mark.parametrize("kind", FIELDS)
def test_a_batch_given_laws_is_each_sample_given_its_law(kind, rng):
    fields = [FIELDS[kind](rng) for _ in range(N)]
    several = isinstance(fields[0], pc.State)
    laws = [
        pc.linear(BOTH, 0.1 * normal(T, 1, rng=rng))
        if several
        else pc.integral(X, 0.1 * normal(T, rng=rng))
        for _ in range(N)
    ]
    post = pc.condition(collate(fields), collate(laws))
    for i, (field, law) in enumerate(zip(fields, laws, strict=True)):
        one = pc.condition(field, law)
        pairs = [(post[n], one[n]) for n in one.names] if several else [(post, one)]
        for found, wanted in pairs:
            torch.testing.assert_close(found.mean[i], wanted.mean)
            torch.testing.assert_close(found.variance[i], wanted.variance)


class Samples(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, i):
        field = pc.Diagonal(torch.full((T, M), float(i)), 1.0)
        return {"prior": field, "law": pc.integral(X, [float(i)] * T), "rest": (i, "a")}


def test_a_loader_with_workers_gives_batches():
    options = {"collate_fn": collate, "num_workers": 1, "generator": generator()}
    (batch,) = DataLoader(Samples(), batch_size=N, **options)
    assert batch["rest"][0].tolist() == [0, 1, 2, 3]
    assert batch["law"].value.shape == (N, T)
    moved = pc.condition(batch["prior"], batch["law"])
    torch.testing.assert_close(moved.mean, batch["prior"].mean)


def test_laws_that_are_the_same_stay_one():
    sparse = [pc.linear(torch.eye(M)[:2].to_sparse(), 0.3, noise=0.1) for _ in range(N)]
    assert collate(sparse).value.shape == ()
    assert isinstance(collate([pc.bounds(0.0)] * N), pc.laws.Inequality)


def energy(u):
    return u.square().sum()


def test_a_function_of_one_solution_becomes_one_of_a_batch(rng):
    fields = [pc.Diagonal(1 + 0.1 * normal(M, rng=rng), 0.1) for _ in range(N)]
    law = collate([pc.nonlinear(energy, 6.0)] * N)
    point = pc.condition(collate(fields), law).point
    torch.testing.assert_close(point.square().sum(-1), torch.full((N,), 6.0).double())


def test_points_that_nobody_measured_in_one_sample_stay_so():
    known, unknown = pc.Diagonal([1.0, 2.0], 1.0), pc.Diagonal([1.0, 2.0], [1.0, torch.inf])
    for batch in ([known, unknown], [unknown, known]):
        assert collate(batch).infinite


WRONG = {
    "one number each": (
        lambda: [pc.integral(X, 1.0), pc.integral(X, 2.0)],
        "`value` of `integral` is not the same in all samples",
    ),
    "weights": (
        lambda: [pc.integral(X, 1.0), pc.integral(X**2, 1.0)],
        "`batch`: weights of maps of `integral` differs. Only linear laws may differ",
    ),
    "times": (
        lambda: [pc.integral(X, 1.0, times=[0]), pc.integral(X, 1.0, times=[0, 1])],
        "`batch`: times of `integral` differs",
    ),
    "kinds": (
        lambda: [pc.Diagonal([1.0], 1.0), pc.LowRank([1.0], [[1.0]])],
        "`batch`: Diagonal and LowRank do not go into one",
    ),
    "shapes": (
        lambda: [pc.Diagonal([1.0], 1.0), pc.Diagonal([1.0, 2.0], 1.0)],
        "`batch`: mean of the field differs in shape",
    ),
    "posteriors": (
        lambda: [pc.condition(([1.0], 1.0), pc.weighted_sum([1.0], 1.0))] * 2,
        "`batch`: what laws left is not collated",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_samples_that_do_not_fit_are_refused_in_words(what):
    batch, words = WRONG[what]
    with pytest.raises(pc.errors.InputError, match=words):
        collate(batch())


def test_pickle_says_why_it_cannot_keep_a_lambda_and_others_keep_it():
    law = pc.nonlinear(lambda u: u.sum(), 1.0)
    with pytest.raises(pc.errors.InputError, match="`function` of `nonlinear` is <lambda>, made"):
        pickle.dumps(pc.ConstraintLayer(law))
    for again in (pickle.loads(cloudpickle.dumps(law)), copy.deepcopy(law)):
        assert float(again.apply(torch.ones(3))) == 3.0
    kept = pickle.loads(pickle.dumps(pc.ConstraintLayer(pc.nonlinear(energy, 6.0), std=1.0)))
    found = kept(torch.rand(M, generator=generator()).double())
    assert float(energy(found)) == pytest.approx(6.0)


@pytest.mark.parametrize("kind", ["Diagonal", "LowRank", "Ensemble", "whole Ensemble", "number"])
def test_fields_that_nobody_looked_at_yet_are_collated_as_others(kind, monkeypatch):
    made = FIELDS | {
        "number": lambda rng: pc.Diagonal(normal(N, rng=rng), normal(1, rng=rng).exp()[0])
    }
    batches = []
    for there in (False, True):
        wait(monkeypatch, there)
        fields = [made[kind](generator(i)) for i in range(N)]
        assert fields[0].mean.shape == fields[0].shape  # one has been read, the others not
        batches.append(collate(fields))
    want, found = batches
    assert torch.equal(found.mean, want.mean)
    assert torch.equal(found.variance, want.variance)


def test_laws_that_were_used_on_another_device_are_collated_as_others():
    laws = [pc.integral(X, [float(i)]) for i in range(N)]
    for law in laws:
        law.to("meta")
    assert collate(laws).value.shape == (N, 1)
