"""The Fourier neural operator, against fast Fourier transforms and by what must hold of it."""

import pytest
import torch
from seeds import generator, made

from probconserv import Diagonal
from probconserv.errors import InputError
from probconserv.models import FNO
from probconserv.models.fno import _Transforms

T, X = torch.linspace(0, 1, 5), torch.linspace(0, 2, 20)


@pytest.mark.parametrize(
    ("modes", "shape"), [((5,), (20,)), ((3, 4), (9, 12)), ((2, 3, 4), (7, 8, 9))]
)
def test_the_lowest_frequencies_are_those_of_a_fast_fourier_transform(modes, shape):
    h = torch.randn(2, 3, 4, *shape, dtype=torch.float64, generator=generator())
    transforms, axes = _Transforms(modes), tuple(range(3, 3 + len(shape)))
    matrices = transforms.matrices(shape, h)
    there = torch.fft.rfftn(h, dim=axes)
    kept = torch.zeros(there.shape[3:])
    sides = [torch.arange(1 - m, m) % n for m, n in zip(modes[:-1], shape, strict=False)]
    kept[torch.meshgrid(*sides, torch.arange(modes[-1]), indexing="ij")] = 1
    expected = torch.fft.irfftn(there * kept, s=shape, dim=axes)
    got = transforms.back(transforms.there(h, matrices), matrices)
    torch.testing.assert_close(got, expected, atol=1e-13, rtol=0)


def test_members_side_by_side_are_each_by_itself():
    network = made(FNO, inputs=2, modes=(0, 4), width=6, layers=2, members=3, heads=2)
    inputs = torch.randn(4, 2, generator=generator())
    whole, stds = network(inputs, (T, X))
    for k in range(3):
        one = made(FNO, inputs=2, modes=(0, 4), width=6, layers=2, heads=2, seed=1)
        state = {
            name: t if "middle" in name or "spread" in name else t.chunk(3)[k]
            for name, t in network.state_dict().items()
        }
        one.load_state_dict(state)
        mean, std = one(inputs, (T, X))
        torch.testing.assert_close(mean, whole[2 * k : 2 * k + 2])
        torch.testing.assert_close(std, stds[2 * k : 2 * k + 2])


@pytest.mark.parametrize("modes", [(0, 4), (2, 4)])
def test_members_may_have_inputs_of_their_own(modes):
    network = made(FNO, inputs=2, modes=modes, width=6, layers=2, members=3)
    inputs = torch.randn(3, 4, 2, 5, 20, generator=generator())
    each = network.predict(inputs, (T, X))
    for k in range(3):
        torch.testing.assert_close(each.mean[k], network.predict(inputs[k], (T, X)).mean[k])
    with pytest.raises(InputError, match="`inputs` must be"):
        network.predict(inputs[:2], (T, X))


def test_a_time_that_is_only_a_coordinate_can_be_asked_by_itself():
    network = made(FNO, inputs=1, modes=(0, 4), width=6)
    inputs = torch.randn(3, 1, generator=generator())
    all_times, _ = network(inputs, (T, X))
    one_time, _ = network(inputs, (T[2:3], X))
    torch.testing.assert_close(one_time, all_times[:, :, :, 2:3])


def test_time_goes_before_three_axes_of_space():
    network = made(FNO, inputs=1, modes=(0, 2, 3, 2), width=3, layers=2)
    axes = [torch.linspace(0, 1, n) for n in (2, 5, 6, 4)]
    mean = network.predict([[0.1], [0.3]], axes).mean
    assert mean.shape == (1, 2, 2, 5, 6, 4)
    one = network.predict([[0.3]], (axes[0][1:], *axes[1:])).mean
    torch.testing.assert_close(one[0, 0, 0], mean[0, 1, 1])


def test_a_periodic_operator_shifts_with_its_input():
    network = made(FNO, inputs=1, modes=(3, 4), width=6, periodic=(True, True))
    u = torch.randn(2, 1, 10, 14, generator=generator())
    axes = torch.arange(10.0), torch.arange(14.0)
    mean, _ = network(u, axes)
    moved, _ = network(u.roll((3, 5), (-2, -1)), axes)
    torch.testing.assert_close(moved, mean.roll((3, 5), (-2, -1)))


def test_a_prediction_has_its_members_on_axis_0():
    network = made(FNO, inputs=1, modes=(0, 4), width=6, members=3)
    components = network.predict([[0.1], [0.2]], (T, X))
    assert isinstance(components, Diagonal)
    means, stds = network(torch.tensor([[0.1], [0.2]]), (T, X))
    torch.testing.assert_close(components.mean.float(), means[:, :, 0])
    torch.testing.assert_close(components.std.float(), stds[:, :, 0])


@pytest.mark.parametrize("own", [False, True])
def test_many_functions_are_predicted_a_few_at_a_time(own, monkeypatch):
    network = made(FNO, inputs=1, modes=(0, 4), width=6, layers=2, members=3)
    inputs = torch.randn((3, 7, 1, 5, 20) if own else (7, 1), generator=generator())
    whole, sizes = network.predict(inputs, (T, X)), []
    monkeypatch.setattr("probconserv.models.fno.AT_ONCE", 2 * 3 * 12 * 100)  # two functions
    network.register_forward_hook(lambda *args: sizes.append(args[2][0].shape[1]))
    parts = network.predict(inputs, (T, X))
    assert sizes == [2, 2, 2, 1]
    torch.testing.assert_close(parts.mean, whole.mean)
    torch.testing.assert_close(parts.variance, whole.variance)


def test_scales_make_the_units_of_the_data_of_no_account(rng):
    network, other = (made(FNO, inputs=1, modes=(0, 4), width=6, seed=seed) for seed in range(2))
    other.load_state_dict(network.state_dict())
    inputs, targets = (torch.randn(s, generator=rng) for s in ((8, 1), (8, 1, 5, 20)))
    network.set_scales(inputs, targets, (T, X))
    other.set_scales(40 * inputs + 3, 7 * targets - 2, (T + 9, 5 * X))
    mean, std = network(inputs, (T, X))
    far, wide = other(40 * inputs + 3, (T + 9, 5 * X))
    torch.testing.assert_close(far, 7 * mean - 2, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(wide, 7 * std, atol=1e-4, rtol=1e-4)


def test_heads_at_right_angles_are_not_alike():
    network = made(FNO, inputs=1, modes=(4,), width=2, heads=2)
    with torch.no_grad():
        network.hidden.weight.zero_()
        network.hidden.weight[:, 0, 0] = 1.0
        network.hidden.weight[:, 4, 1] = 3.0
        assert network.apart() == 0
        network.hidden.weight[:, 4, 0] = 3.0
        torch.testing.assert_close(network.apart(), torch.tensor(0.5))


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ({"modes": ()}, "`modes` must be a number for each of one to four axes"),
        ({"modes": (0,)}, "`modes`"),
        ({"modes": (2, 2, 2, 2)}, "`modes` must be .* at most three of them more than 0"),
        ({"modes": (2, 2), "periodic": (True,)}, "`periodic` must have an entry for each"),
        ({"modes": 4}, r"`modes` must be a number for each .* got 4"),
        ({"modes": (0, 4.5)}, "`modes` must be a whole number"),
        ({"modes": (2, 2), "periodic": True}, "`periodic` must have an entry for each"),
        ({"modes": (4,), "padding": -0.1}, "`padding` must lie between 0 and 10"),
        ({"modes": (4,), "width": 0}, "width"),
    ],
)
def test_sizes_that_make_no_network_are_refused(arguments, rule):
    with pytest.raises(InputError, match=rule):
        FNO(**{"inputs": 1, **arguments})


def test_inputs_and_coordinates_of_another_network_are_refused():
    network = made(FNO, inputs=1, modes=(0, 4), width=6)
    with pytest.raises(InputError, match="`inputs` must be"):
        network.predict([[0.1, 0.2]], (T, X))
    with pytest.raises(InputError, match="`coordinates` must be 2 axes"):
        network.predict([[0.1]], (X,))
    with pytest.raises(InputError, match="`coordinates` must be 2 axes of numbers, got NoneType"):
        network.predict([[0.1]], None)
    with pytest.raises(InputError, match="`inputs` must be finite"):  # in float32
        network.predict([[1e39]], (T, X))
    with pytest.raises(InputError, match="at least 8 points"):
        network.predict([[0.1]], (T, X[:7]))
    with pytest.raises(InputError, match=r"`coordinates\[1\]` must increase strictly"):
        network.predict([[0.1]], (T, X.flip(0)))


def test_a_network_is_that_of_fast_fourier_transforms(rng):
    network = made(FNO, inputs=1, modes=(0, 3), width=4, layers=2, heads=2, padding=0.2).double()
    t, x = torch.linspace(0, 1, 3).double(), torch.rand(9, generator=rng).double().cumsum(0)
    inputs = torch.randn(2, 1, 3, 9, generator=rng).double()

    def mixed(layer, h, network=0):  # (n, C, T, M)
        return torch.einsum("oc,nctm->notm", layer.weight[network], h) + layer.bias[
            network
        ].reshape(-1, 1, 1)

    axes = [a.expand(2, 1, 3, 9) for a in (t[:, None], x)]
    h = mixed(network.lift, torch.cat([inputs, *axes, inputs * axes[0]], dim=1))
    h = torch.nn.functional.pad(h, (0, 2))
    for i, (spectral, local) in enumerate(zip(network.spectral, network.local, strict=True)):
        weight = torch.view_as_complex(spectral.weight[0].detach().contiguous())  # (k, in, out)
        low = torch.einsum("nctk,kco->notk", torch.fft.rfft(h)[..., :3], weight)
        h = torch.fft.irfft(low, n=11) + mixed(local, h)
        h = torch.nn.functional.gelu(h) if i == 0 else h
    hidden = torch.nn.functional.gelu(mixed(network.hidden, h[..., :9])).unflatten(1, (2, 8))
    for head, (mean, std) in enumerate(zip(*network(inputs, (t, x)), strict=True)):
        expected = mixed(network.last, hidden[:, head], head)
        torch.testing.assert_close(mean[:, 0], expected[:, 0])
        raised = torch.nn.functional.softplus(expected[:, 1] - 4) + network.min_std
        torch.testing.assert_close(std[:, 0], raised)
