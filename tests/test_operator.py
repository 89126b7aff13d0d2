"""Training on functions on a grid: the FNO, the ANP, the emulator and guests."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from runs import Killed, killed_after, weights
from seeds import generator, made

from probconserv import Diagonal, condition, integral
from probconserv.data import Grids, Shuffled
from probconserv.errors import InputError
from probconserv.models import FNO, open_weights, save
from probconserv.models._trained import write
from probconserv.problems import Stefan
from probconserv.training import KINDS, RECIPES, Kind, train
from probconserv.training._fields import FieldTask
from probconserv.training._points import points_of
from probconserv.training._source import source_of

# a network that has learned nothing yet is surer than it should be
pytestmark = pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")
SIZES = {"width": 4, "layers": 2, "members": 2, "modes": [0, 3]}
T, X = Stefan.grid(times=6, points=11)
DATA = Grids.of_problem(Stefan, T, X, n=20)
CPU = torch.device("cpu")


def run(out, data=DATA, **options):
    options = {"model": "fno", "sizes": SIZES, "steps": 10, "batch": 4, "times": 2, **options}
    return train(data, out, device="cpu", **options)


def task(data=DATA, share=slice(None), sizes=None, **changes):
    kind, plan = KINDS["fno"], {"batch": 4, "times": 2, **changes}
    recipe = dataclasses.replace(RECIPES["modern"], **{**kind.recipes["modern"], **plan})
    source = source_of(data, None, recipe, 0)
    network = made(kind.build, source, recipe, SIZES | (sizes or {}))
    return FieldTask(network, source, recipe, 0, share, CPU), network


def test_weights_are_not_saved_into_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"`path`: there is no folder .*wieghts"):
        save(made(FNO, inputs=1, modes=(0, 3), width=4), tmp_path / "wieghts" / "own.safetensors")
    assert not any(tmp_path.iterdir())


def test_an_operator_learns_from_arrays_and_its_card_says_how(tmp_path):
    data = Grids(DATA.inputs.numpy(), DATA.targets.numpy(), {"t": T.numpy(), "x": X.numpy()})
    lines = []
    network = run(tmp_path, data, steps=100, report=lines.append)
    scores = [line["validation_crps"] for line in lines if "validation_crps" in line]
    assert scores[-1] < 0.7 * scores[0]
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["data"]["grid"] == [6, 11]
    assert (card["model"], card["sizes"]["modes"], card["settings"]["loss"]) == (
        "fno",
        [0, 3],
        "crps",
    )
    again = open_weights(tmp_path)
    assert isinstance(again, FNO)
    field, same = (n.predict([[0.6]], (T, X)) for n in (network, again))
    assert torch.equal(field.mean, same.mean)


@pytest.mark.parametrize("change", [{}, {"through": "crps"}], ids=["before", "after"])
def test_a_killed_operator_resumes_to_the_same_weights(change, tmp_path):
    whole = run(tmp_path / "whole", **change)
    with pytest.raises(Killed):
        run(tmp_path / "torn", report=killed_after(7), **change)
    assert torch.equal(weights(run(tmp_path / "torn", **change)), weights(whole))
    with pytest.raises(InputError, match=r"`digest` is .* Use another folder"):
        run(tmp_path / "torn", DATA[1:], **change)


@pytest.mark.parametrize("name", ["ll", "crps"])
@pytest.mark.parametrize("way", ["loss", "through"])
def test_the_loss_is_the_sum_over_members_of_scores_of_single_fields(name, way):
    """One function, member and time at a time, by the public verbs."""
    found, network = task(times=None, **{way: name})
    batch = found.batches(torch.tensor(3))
    components = network.predict(batch.inputs, (T, X))
    values = []
    for k in range(2):
        for i in range(4):
            for j in range(6):
                field = Diagonal(components.mean[k, i, j], components.variance[k, i, j])
                if way == "through":
                    field = condition(field, integral(X, batch.totals[i, j]))
                normal = torch.distributions.Normal(field.mean, field.variance.sqrt())
                u = batch.targets[i, j]
                if name == "ll":
                    values.append(-normal.log_prob(u))
                else:  # E|a - u| - E|a - b| / 2, by its integral
                    at = torch.linspace(-12, 12, 40_001, dtype=torch.float64)[:, None]
                    y = field.mean + at * normal.stddev
                    gap = (normal.cdf(y) - (y >= u).double()) ** 2
                    far = (u - u.clamp(y[0], y[-1])).abs()  # where the gap is 1
                    values.append(torch.trapezoid(gap, y, dim=0) + far)
    expected = 2 * torch.stack(values).mean()
    if name == "crps":
        train_part = found.batches.functions.targets
        expected = expected / train_part.std(correction=0)
    torch.testing.assert_close(
        found.loss(torch.tensor(3)).detach().double(), expected, rtol=2e-3, atol=1e-3
    )


def test_a_member_trains_as_if_it_were_alone():
    both, network = task()
    both.loss(torch.tensor(1)).backward()
    alone, one = task(sizes={"members": 1})
    own = {n: t if "_" in n else t.chunk(2)[1] for n, t in network.state_dict().items()}
    one.load_state_dict(own)
    alone.loss(torch.tensor(1)).backward()
    for (name, p), (_, q) in zip(network.named_parameters(), one.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad.chunk(2)[1], q.grad, msg=name, rtol=1e-4, atol=1e-6)


def test_times_are_new_for_each_function_and_step_and_belong_to_the_targets():
    found, network = task(times=2)
    index = found._index(4, torch.tensor(0))
    assert index.shape == (4, 2)
    assert (index.diff(dim=1) > 0).all()
    assert not torch.equal(index, found._index(4, torch.tensor(1)))
    inputs, axes = DATA.inputs[:4].float(), [T[index].float(), X.float()]
    mean, _ = network(inputs, axes)
    for i in range(4):
        alone, _ = network(inputs[i : i + 1], (T[index[i]].float(), X.float()))
        torch.testing.assert_close(alone[:, 0], mean[:, i])


def test_a_step_is_one_graph_without_a_look_at_any_value():
    for changes in ({}, {"through": "ll"}):
        found, _ = task(sizes={"heads": 2}, **changes)
        traced = torch.compile(found.loss, backend="eager", fullgraph=True)
        for step in (torch.tensor(0), torch.tensor(5)):
            torch.testing.assert_close(traced(step), found.loss(step))


def test_a_team_has_the_loss_of_one():
    step = torch.tensor(5)
    shares = [task(share=slice(rank, None, 2))[0].loss(step) for rank in (0, 1)]
    torch.testing.assert_close(sum(shares) / 2, task()[0].loss(step))


def test_heads_are_pushed_apart():
    with_push, network = task(sizes={"heads": 2}, apart=3.0)
    without, _ = task(sizes={"heads": 2}, apart=0.0)
    step = torch.tensor(0)
    more = with_push.loss(step) - without.loss(step)
    torch.testing.assert_close(more, 3.0 * 2 * network.apart(), rtol=1e-4, atol=1e-5)


def test_an_operator_without_variances_is_judged_by_its_error(tmp_path):
    card = run(tmp_path, steps=2, sizes=SIZES | {"variance": False}).card
    assert "validation_ll" not in card
    assert card["validation_crps"] > 0


def test_functions_of_an_initial_state_and_two_fields_are_learned(tmp_path):
    u = DATA.targets
    data = Grids(u[:, None, :1], torch.stack([u, -u], 1), {"t": T, "x": X})
    network = run(tmp_path, data, steps=3)
    assert network.predict(u[:, None, :1], (T, X)).shape == (2, 20, 2, 6, 11)


def test_a_stream_is_any_function_of_the_step(tmp_path):
    stream = Shuffled(DATA, 4, seed=7)
    network = run(tmp_path / "stream", stream, held_out=DATA[:3], steps=4)
    fixed = run(tmp_path / "fixed", DATA, held_out=DATA[:3], seed=7, steps=4)
    assert network.card["data"]["held_out"] == 3
    assert weights(network).shape == weights(fixed).shape
    with pytest.raises(InputError, match="`held_out` must be given with a stream"):
        run(tmp_path / "none", stream)


def test_other_totals_or_held_out_functions_do_not_continue_a_checkpoint(tmp_path):
    held_out = DATA[:4]
    plan = {"held_out": held_out, "through": "crps"}
    run(tmp_path, DATA[4:], **plan)
    twice = Grids(DATA.inputs, DATA.targets, DATA.coordinates, 2 * DATA.totals, DATA.name)
    with pytest.raises(InputError, match=r"`digest` is .* Use another folder"):
        run(tmp_path, twice[4:], **plan)
    with pytest.raises(InputError, match=r"`held_out_digest` is .* Use another folder"):
        run(tmp_path, DATA[4:], through="crps", held_out=DATA[2:6])


def test_what_a_user_draws_of_an_equation_was_not_learned_from_it():
    source = source_of("stefan", None, RECIPES["modern"], 0).on_grids(RECIPES["modern"], 0)
    learned = torch.cat([part.inputs for part in source.require_grids()])
    assert not torch.isin(DATA.inputs, learned).any()


def test_an_equation_becomes_a_grid(tmp_path):
    card = run(tmp_path, "stefan", steps=2, functions=8, validation=4, points=9).card
    assert (card["data"]["count"], card["data"]["grid"]) == (8, [20, 9])


def test_weights_in_half_precision_take_less_room_and_are_nearly_the_same(tmp_path):
    network = run(tmp_path / "whole", steps=5, sizes=SIZES | {"width": 16})
    for half in (False, True):
        save(network, tmp_path / f"{half}.safetensors", half)
    sizes = [(tmp_path / f"{half}.safetensors").stat().st_size for half in (True, False)]
    assert sizes[0] < 0.7 * sizes[1]
    again = open_weights(tmp_path / "True.safetensors")
    assert torch.equal(again.target_spread, network.target_spread)
    found, expected = (n.predict([[0.6]], (T, X)).mean for n in (again, network))
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01)
    with torch.no_grad():
        network.spectral[0].weight[0, 0, 0, 0, 0] = 1e6
    with pytest.raises(InputError, match=r"`spectral.0.weight` must be finite"):
        save(network, tmp_path / "large.safetensors", half=True)


@pytest.mark.parametrize("context", [5, (2, 3)])
def test_points_of_a_grid_are_where_they_say(context):
    functions = points_of(DATA, context, 7, (1, 2))
    count = 5 if context == 5 else 6
    assert functions.context.u.shape == (20, count)
    truth = Stefan(DATA.inputs[:, 0])[:, None]
    for points in (functions.context, functions.target):
        at = [T[(T - p).abs().argmin()] for p in points.t.flatten()]
        t = torch.stack(at).reshape(points.t.shape)
        x = X[(points.x[..., None] - X).abs().argmin(-1)]
        torch.testing.assert_close(points.u.double(), truth.solution(t, x), rtol=1e-6, atol=1e-6)
    assert torch.equal(functions.numbers, DATA.inputs.float())


@pytest.mark.parametrize("model", ["anp", "emulator"])
def test_networks_of_points_learn_from_a_grid_and_resume(model, tmp_path):
    plan = {"model": model, "context": (2, 3), "target": 9, "times": None}
    plan["sizes"] = {"hidden": 8} | ({"latent": 6, "heads": 2} if model == "anp" else {})
    whole = run(tmp_path / "whole", **plan)
    with pytest.raises(Killed):
        run(tmp_path / "torn", report=killed_after(7), **plan)
    assert torch.equal(weights(run(tmp_path / "torn", **plan)), weights(whole))
    assert np.isfinite(whole.card["validation_ll"])


def test_what_a_model_cannot_learn_is_refused(tmp_path):
    functions = Grids(DATA.targets[:, None], DATA.targets, {"t": T, "x": X})
    plain = {"sizes": None, "times": None}
    line = Grids(DATA.inputs, DATA.targets[:, 0], {"x": X})
    turned = Grids(DATA.inputs, DATA.targets.mT, {"x": X, "t": T})
    for options, rule in (
        ({"model": "softc", **plain}, "softc needs an equation"),
        ({"model": "emulator", "data": functions, **plain}, "emulator needs `inputs` .* numbers"),
        ({"model": "anp", "data": line, **plain}, "one field on two axes"),
        ({"model": "anp", "data": turned, **plain}, "`coordinates` must have time first"),
        ({"model": "anp", "through": "ll", **plain}, "`through` of an anp needs an equation"),
        ({"model": "anp", "loss": "crps", **plain}, "`loss` is for models on grids"),
        ({"data": functions, "through": "ll"}, "`through` needs the `totals`"),
        ({"loss": "mse"}, "`loss` must be one of ll, crps"),
        ({"recipe": "paper"}, "`recipe` must be modern for the model fno"),
        ({"batch": 19}, "`batch` must be at most the 18 functions"),
        ({"times": 0}, "`times` must be a positive whole number"),
        ({"dropout": 0.1}, "`dropout` must be 0 for this model"),
        ({"sizes": {"variance": False}, "loss": "ll"}, "`variance` must be True"),
        ({"sizes": {"modes": [0, 6]}}, r"`coordinates\[1\]` must have at least 12 points"),
        ({"sizes": {"modes": 3}}, "`modes` must be a number for each of one to four axes"),
        ({"sizes": {"hidden": 3}}, "`sizes` must be one of modes, width"),
        ({"noise": -1.0}, "`noise` must be 0 or more, got -1.0"),
        ({"held_out": DATA[:0]}, "`held_out` must hold a function or more"),
        ({"data": lambda step: 3, "held_out": DATA}, "`data` must give Grids for a step, got 3"),
        ({"held_out": line}, "`held_out` must be on the grid of `data`"),
        ({"data": DATA[:1]}, "`data` must hold two functions or more"),
        ({"data": 3}, "`data` must be the class .* got 3"),
    ):
        with pytest.raises(InputError, match=rule):
            run(tmp_path, **options)


class Straight(torch.nn.Module):
    """A guest: a line in x for each function and time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 4)

    def forward(self, inputs, coordinates):
        t, x = coordinates
        given = torch.stack(torch.broadcast_tensors(inputs, t), -1)  # (n, T, 2)
        a, b, c, d = self.layer(given)[..., None].unbind(-2)  # (n, T, 1)
        mean, raw = a + b * x, c + d * x
        return mean[None, :, None], torch.nn.functional.softplus(raw)[None, :, None] + 1e-3


def test_a_guest_is_trained_by_the_same_loop(tmp_path):
    kind = Kind("straight", lambda source, recipe, sizes: Straight())
    lines = []
    network = run(tmp_path, model=kind, sizes=None, steps=60, report=lines.append)
    scores = [line["validation_crps"] for line in lines if "validation_crps" in line]
    assert scores[-1] < scores[0]
    assert network.card["model"] == "straight"
    assert torch.equal(weights(run(tmp_path, model=kind, sizes=None, steps=60)), weights(network))


def test_a_guest_of_another_shape_is_refused(tmp_path):
    class Bare(Straight):
        def forward(self, inputs, coordinates):
            mean, std = super().forward(inputs, coordinates)
            return mean[0, :, 0], std[0, :, 0]  # (n, T, M): would be compared with every function

    kind = Kind("bare", lambda source, recipe, sizes: Bare())
    with pytest.raises(InputError, match=r"`model` must give mean and std .*members, \*\(4, 1, 6"):
        run(tmp_path, model=kind, sizes=None)


def test_a_network_without_a_card_is_saved_with_what_it_is_built_from(tmp_path):
    network = made(FNO, inputs=1, modes=(0, 3), width=4, members=2, min_std=1e-3)
    save(network, tmp_path / "own.safetensors")
    again = open_weights(tmp_path / "own.safetensors")
    field, same = (n.predict([[0.6]], (T, X)) for n in (network, again))
    assert torch.equal(field.variance, same.variance)
    with pytest.raises(InputError, match="`network` must be an AttentiveNeuralProcess, an Emul"):
        save(made(torch.nn.Linear, 1, 1), tmp_path / "guest.safetensors")


@pytest.mark.parametrize(
    ("lie", "rule"),
    [
        ({"sizes": {"depth": 3}}, "a card from which no network"),
        ({"min_std": None}, "no network can be built: `min_std` must lie"),
        ({"sizes": {"width": 5}}, "tensors that do not fit the network of its card"),
    ],
)
def test_cards_that_lie_are_refused(lie, rule, tmp_path):
    network = made(FNO, inputs=1, modes=(0, 3), width=4)
    sizes = network.sizes | lie.get("sizes", {})
    card = {"model": "fno", "settings": {}, "min_std": 1e-5} | lie | {"sizes": sizes}
    write(tmp_path / "lie.safetensors", network.state_dict(), card)
    with pytest.raises(InputError, match=rule):
        open_weights(tmp_path / "lie.safetensors")


def test_weights_that_are_no_numbers_are_not_opened(tmp_path):
    network = made(FNO, inputs=1, modes=(0, 3), width=4)
    network.last.bias.data.fill_(torch.nan)
    save(network, tmp_path / "nan.safetensors")
    with pytest.raises(InputError, match=r"last.bias` must be finite"):
        open_weights(tmp_path / "nan.safetensors")


@pytest.mark.parametrize("change", ["inputs", "targets", "coordinates"])
def test_differences_that_float32_does_not_hold_are_refused(change, tmp_path):
    far = {"inputs": DATA.inputs, "targets": DATA.targets, "coordinates": {"t": T, "x": X}}
    far[change] = {"t": T, "x": X + 1e8} if change == "coordinates" else far[change] + 1e8
    with pytest.raises(InputError, match=rf"`{change}.* has differences that float32 does not"):
        run(tmp_path, Grids(**far))
    with pytest.raises(InputError, match="`targets, field 0` has differences that float32"):
        run(tmp_path, Grids(DATA.inputs, 1e60 * DATA.targets, {"t": T, "x": X}))


def test_constant_inputs_and_targets_have_the_scale_1(tmp_path):
    noise = 1e-16 * torch.rand(DATA.targets.shape, generator=generator())
    level = torch.full_like(DATA.targets, 0.1) * (1 + noise)
    data = Grids(torch.full_like(DATA.inputs, 0.1), level, {"t": T, "x": X})
    network = run(tmp_path, data)
    assert network.target_spread == network.input_spread == 1
