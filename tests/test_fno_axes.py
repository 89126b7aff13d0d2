"""A neural operator knows the axes and the inputs of its training."""

import json

import numpy as np
import pytest
import torch

from probconserv import ImplausibleWarning
from probconserv.data import Grids
from probconserv.errors import InputError
from probconserv.experiments.operators import CASES, load_ensemble
from probconserv.models import FNO, open_weights, save
from probconserv.models._trained import read, write
from probconserv.training import train

T, X = np.linspace(0, 1, 5), np.linspace(0, 2, 16)
SPEEDS = np.linspace(0.5, 1.5, 12)[:, None]
SIZES = {"width": 4, "layers": 2, "members": 2, "modes": [0, 3]}


def trained(folder, x=X, **sizes):
    u = np.sin(x - SPEEDS[:, None] * T[:, None])
    data = Grids(SPEEDS, u, {"t": T, "x": x})
    plan = {"model": "fno", "device": "cpu", "steps": 2, "batch": 4, "held_out": data[:2]}
    return train(data, folder, sizes=SIZES | sizes, **plan)


def test_the_card_of_a_training_that_held_out_one_function_is_json(tmp_path):
    data = Grids(SPEEDS, np.sin(X - SPEEDS[:, None] * T[:, None]), {"t": T, "x": X})
    train(
        data, tmp_path, model="fno", sizes=SIZES, device="cpu", steps=1, batch=4, held_out=data[:1]
    )
    said = (tmp_path / "card.json").read_text()
    assert "reading" not in json.loads(said, parse_constant=pytest.fail)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """Written and opened again: what it was trained on comes with it."""
    folder = tmp_path_factory.mktemp("fno")
    trained(folder)
    return open_weights(folder)


@pytest.mark.parametrize(
    "x",
    [
        X,
        np.linspace(0, 2, 41),  # finer
        torch.linspace(0, 2, 9),  # coarser, of float32
        (np.arange(16) + 0.5) / 8,  # the centres of cells from 0 to 2
        (np.arange(32) + 0.5) / 16,
    ],
)
def test_an_even_axis_over_the_range_of_training_may_have_any_number_of_points(network, x):
    assert network.predict([[1.0]], (T, x)).shape == (2, 1, 5, len(x))


@pytest.mark.parametrize("x", [X**2 / 2, np.delete(X, 7), np.sort(np.append(X, 0.3))])
def test_an_uneven_axis_is_refused(network, x):
    rule = (
        r"`coordinates\[1\]` must be evenly spaced, as is the axis x of training, 16 points from "
        rf"0 to 2; got {len(x)} points from 0 to 2, steps of .* Predict on an even axis"
    )
    with pytest.raises(InputError, match=rule):
        network.predict([[1.0]], (T, x))


@pytest.mark.parametrize("x", [X / 2, X[:-1], X[1:], X + 1, 100 * X])
def test_an_axis_of_another_range_is_refused(network, x):
    rule = (
        r"`coordinates\[1\]` must cover the range of the axis x of training, 16 points from 0 to "
        rf"2; got {len(x)} points from .* Predict on the whole axis"
    )
    with pytest.raises(InputError, match=rule):
        network.predict([[1.0]], (T, x))


def test_times_without_frequencies_may_be_any_within_those_of_training(network):
    whole = network.predict([[1.0]], (T, X)).mean
    some = network.predict([[1.0]], (T[[1, 4]], X)).mean
    torch.testing.assert_close(some, whole[:, :, [1, 4]])
    with pytest.warns(ImplausibleWarning, match=r"t from 0 to 1, and `coordinates\[0\]` goes from"):
        network.predict([[1.0]], (2 * T, X))


def test_inputs_beyond_those_of_training_are_said(network):
    for inside in (0.5, 1.0, 1.5):
        network.predict([[inside]], (T, X))  # without a word: warnings are errors here
    rule = r"input 0 from 0.5 to 1.5, and `inputs\[:, 0\]` goes from 1 to 2"
    with pytest.warns(ImplausibleWarning, match=rule):
        network.predict([[1.0], [2.0]], (T, X))


def test_functions_beyond_those_of_training_are_said(tmp_path):
    u = np.sin(X - SPEEDS[:, None] * T[:, None])
    data = Grids(u[:, None, :1], u, {"t": T, "x": X})
    plan = {"model": "fno", "device": "cpu", "sizes": SIZES, "steps": 1, "batch": 4}
    network = train(data, tmp_path, **plan)
    network.predict(u[:, None, :1], (T, X))
    each = np.stack([u[:, None, :1]] * 2)  # of its own for each member
    network.predict(each, (T, X))
    with pytest.warns(ImplausibleWarning, match=r"`inputs\[:, 0\]` goes from 0 to 3.998"):
        network.predict(4 * each, (T, X))


def test_an_input_that_was_always_the_same_may_be_given_in_float32(tmp_path):
    u = np.sin(X - SPEEDS[:, None] * T[:, None])
    data = Grids(np.full((12, 1), 0.1), u, {"t": T, "x": X})
    plan = {"model": "fno", "device": "cpu", "sizes": SIZES, "steps": 1, "batch": 4}
    network = train(data, tmp_path, **plan)
    network.predict(torch.tensor([[0.1]]), (T, X))
    with pytest.warns(ImplausibleWarning, match=r"input 0 from 0.1 to 0.1, .* is 0.2"):
        network.predict([[0.2]], (T, X))


def test_a_network_of_an_uneven_axis_asks_for_that_axis(tmp_path):
    x = X + 0.1 * np.sin(np.pi * X)
    network = trained(tmp_path, x)
    network.predict([[1.0]], (T, x.astype(np.float32)))
    for other in (X, np.interp(np.arange(31) / 2, np.arange(16), x)):
        with pytest.raises(InputError, match=r"must be the axis x of training.* not evenly spaced"):
            network.predict([[1.0]], (T, other))


def test_a_periodic_axis_has_the_period_of_training(tmp_path):
    x = np.arange(16) / 8
    network = trained(tmp_path, x, periodic=[False, True])
    for same in (x, np.arange(24) / 12, x - 1):
        network.predict([[1.0]], (T, same))
    for other in (np.linspace(0, 2, 17), x[:8], 2 * x):  # the first has the first point twice
        with pytest.raises(InputError, match=r"must cover one period of 2, as does the axis x"):
            network.predict([[1.0]], (T, other))


def test_a_stream_knows_the_inputs_of_its_first_batch_and_of_what_judges_it(tmp_path):
    u = np.sin(X - SPEEDS[:, None] * T[:, None])
    data = Grids(SPEEDS, u, {"t": T, "x": X})
    plan = {"model": "fno", "device": "cpu", "sizes": SIZES, "steps": 1, "batch": 4}
    network = train(lambda step: data[:4], tmp_path, held_out=data[6:], **plan)
    assert network.card["input_ranges"] == [[0.5, 1.5]]


def test_a_network_without_a_card_takes_any_axis():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = FNO(inputs=1, modes=(0, 3), width=4)
    assert network.predict([[9.0]], (T, X**2)).shape == (1, 1, 5, 16)


@pytest.mark.parametrize("name", CASES)
def test_the_networks_that_are_shipped_know_what_they_were_trained_on(name):
    case, network = CASES[name], load_ensemble(name)
    inside, outside = (case.functions(where, "test", 3)[1] for where in ("in", "far"))
    network.predict(inside.inputs, inside.axes)
    with pytest.warns(ImplausibleWarning, match=r"trained on input 0 from"):
        network.predict(outside.inputs, outside.axes)
    with pytest.raises(InputError, match=r"`coordinates\[1\]` must cover the range of the axis x"):
        network.predict(inside.inputs, (inside.axes[0], inside.axes[1][:60]))


def test_a_card_with_broken_axes_is_refused(network, tmp_path):
    save(network, tmp_path / "one.safetensors")
    tensors, card = read(tmp_path / "one.safetensors")
    for wrong in ({"axes": {"t": [5]}}, {"axes": 3}, {"input_ranges": [1]}):
        write(tmp_path / "two.safetensors", tensors, card | wrong)
        with pytest.raises(InputError, match="has a card from which no network can be built"):
            open_weights(tmp_path / "two.safetensors")
