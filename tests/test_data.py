import numpy as np
import pytest
import torch
from scipy.stats import kstest

from probconserv.data import Functions, Shuffled, Stream, draw
from probconserv.data import _functions as _random
from probconserv.problems import PROBLEMS, Advection, ClosedForm, Stefan, SuperSlow

FAMILIES = [cls for cls in PROBLEMS.values() if issubclass(cls, ClosedForm)]
every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda cls: cls.name)
LAYOUTS = [100, (10, 10), (3, 7)]


def numbers(functions: Functions) -> list[torch.Tensor]:
    problem = functions.problem
    return [getattr(problem, problem.parameter), *functions.context, *functions.target]


def same(a: Functions, b: Functions) -> bool:
    return all(torch.equal(x, y) for x, y in zip(numbers(a), numbers(b), strict=True))


@every_family
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_values_are_the_solution_at_the_points(family, layout):
    functions = draw(family, "train", n=5, context=layout, target=12)
    n = int(np.prod(layout))
    assert len(functions) == 5
    for points, count in ((functions.context, n), (functions.target, 12)):
        assert points.u.shape == points.t.shape == points.x.shape == (5, count)
        for i in range(5):
            u = functions.problem[i].solution(points.t[i], points.x[i])
            torch.testing.assert_close(points.u[i], u, rtol=0, atol=0)


@every_family
def test_parameters_times_and_places_fill_their_ranges(family):
    functions = draw(family, "train", n=2000)
    parameter = numbers(functions)[0]
    for values, (low, high) in (
        (parameter, family.train_range),
        (functions.context.t[:, :5], family.time_range),
        (functions.target.x[:, :5], family.domain),
    ):
        scaled = (values.flatten() - low) / (high - low)
        assert scaled.min() >= 0
        assert scaled.max() < 1
        assert kstest(scaled.numpy(), "uniform").pvalue > 1e-4


def test_scattered_points_are_independent():
    functions = draw(Stefan, "train", n=4000, context=4, target=3)
    columns = torch.stack(
        [
            functions.problem.u_star,
            *(
                column
                for points in (functions.context, functions.target)
                for column in (*points.t.T, *points.x.T)
            ),
        ]
    )
    correlation = torch.corrcoef(columns) - torch.eye(len(columns), dtype=torch.float64)
    assert correlation.abs().max() < 5 / np.sqrt(4000)


def test_a_product_has_one_time_in_each_part_and_sorted_places():
    functions = draw(Stefan, "train", n=50, context=(10, 8), target=(6, 8))
    t = functions.context.t.reshape(50, 10, 8)
    x = functions.context.x.reshape(50, 10, 8)
    assert (t == t[:, :, :1]).all()
    assert (x == x[:, :1, :]).all()
    assert ((t[:, :, 0] / 0.1 * 10).floor() == torch.arange(10)).all()
    assert (x[:, 0].diff() > 0).all()
    t = functions.target.t.reshape(50, 6, 8)[:, :, 0]
    assert (t.diff() > 0).all()
    assert kstest(t.flatten().numpy() / 0.1, "uniform").pvalue > 1e-4


def test_sets_are_fixed_and_share_no_number():
    sets = {split: draw(Stefan, split, n=300) for split in ("train", "validation", "test")}
    sets["another"] = draw(Stefan, "train", n=300, seed=1)
    sets["stream"] = Stream(Stefan, n=300, dtype=torch.float64)(0)
    sets["later"] = Stream(Stefan, n=300, dtype=torch.float64)(1)
    everything = torch.cat(
        [torch.cat([n.flatten() for n in numbers(s)[:3]]) for s in sets.values()]
    )
    assert len(everything.unique()) == len(everything)
    assert same(sets["train"], draw(Stefan, "train", n=300))
    assert same(sets["train"][:20], draw(Stefan, "train", n=20))


def test_a_set_is_the_same_everywhere():
    """Its numbers from whole-number arithmetic alone, with no tensor in sight."""
    wrap, gamma = 2**64, 0x9E3779B97F4A7C15

    def mix(z):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % wrap
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % wrap
        return z ^ (z >> 31)

    key = 0
    for word in (3, 0):  # test, seed 0
        key = mix((key + gamma) % wrap) ^ word
    expected = [(mix((mix(key) + (i + 1) * gamma) % wrap) >> 11) / 2**53 for i in range(14)]
    functions = draw(Advection, "test", n=2, context=2, target=1)
    for i in range(2):
        beta, t0, t1, x0, x1, t2, x2 = expected[7 * i : 7 * i + 7]
        assert functions.problem.beta[i] == 1 + 4 * beta
        assert functions.context.t[i].tolist() == [t0, t1]
        assert functions.context.x[i].tolist() == [x0, x1]
        assert [functions.target.t[i].item(), functions.target.x[i].item()] == [t2, x2]


def test_an_instance_keeps_its_parameters():
    functions = draw(Stefan(0.6, k_min=0.2), "test", n=3)
    assert (functions.problem.u_star == 0.6).all()
    assert (functions.problem.k_min == 0.2).all()
    several = torch.tensor([0.56, 0.6, 0.65])
    assert torch.equal(draw(Stefan(several), "test", n=3).problem.u_star, several.double())
    with pytest.raises(ValueError, match=r"`u_star` of shape \(3,\) does not fit a set"):
        draw(Stefan(several), "test", n=4)


def test_functions_can_be_picked_moved_and_converted():
    functions = draw(Stefan, "validation", n=6)
    picked = functions[torch.tensor([4, 1])]
    assert len(picked) == 2
    assert torch.equal(picked.target.u[1], functions.target.u[1])
    assert picked.problem.u_star[0] == functions.problem.u_star[4]
    assert len(functions[2]) == 1
    single = functions.to(torch.float32)
    assert {a.dtype for a in numbers(single)} == {torch.float32}


@every_family
def test_a_stream_depends_on_seed_and_step_alone(family):
    stream = Stream(family, n=4, context=(2, 3), target=5, seed=3)
    batches = [stream(step) for step in range(4)]
    assert same(batches[2], Stream(family, n=4, context=(2, 3), target=5, seed=3)(2))
    assert not same(batches[2], batches[3])
    assert not same(batches[2], Stream(family, n=4, context=(2, 3), target=5, seed=4)(2))
    assert {a.dtype for a in numbers(batches[0])} == {torch.float32}
    step = torch.tensor(2)
    assert same(stream(step), batches[2])
    assert step == 2


def test_a_share_of_the_targets_lies_near_the_front():
    """Evenly in the logarithm of their distance, as many on either side."""
    plain, stream = (Stream(Stefan, 400, 3, 10, dtype=torch.float64, near=s)(2) for s in (0.0, 0.3))
    t, x, u = stream.target
    assert torch.equal(t, plain.target.t)
    assert torch.equal(x[:, 3:], plain.target.x[:, 3:])
    assert torch.equal(u, stream.problem[:, None].solution(t, x))
    away = (x - stream.problem[:, None].front(t))[:, :3]
    close = away[away.abs() < 0.1]
    assert len(close) > 0.75 * away.numel()
    assert close.abs().min() >= 1e-5
    assert kstest(-close.abs().log10().numpy(), "uniform", (1, 4)).pvalue > 1e-4
    assert (close > 0).double().mean() == pytest.approx(0.5, abs=0.06)


@every_family
def test_targets_near_a_front_stay_inside(family):
    x = Stream(family, 50, 3, 10, dtype=torch.float64, near=1.0)(0).target.x
    assert ((x >= family.domain[0]) & (x <= family.domain[1])).all()
    if family.name == "diffusion":  # has none
        assert torch.equal(x, Stream(family, 50, 3, 10, dtype=torch.float64)(0).target.x)


def test_an_epoch_has_every_function_once_and_the_next_another_order():
    functions = draw(Stefan, "train", n=12)
    shuffled = Shuffled(functions, n=4, seed=5)
    epochs = [[shuffled(3 * e + i).problem.u_star for i in range(3)] for e in range(2)]
    orders = [torch.cat(batches) for batches in epochs]
    for order in orders:
        assert torch.equal(order.sort().values, functions.problem.u_star.sort().values)
    assert not torch.equal(*orders)
    assert same(shuffled(4), Shuffled(functions, n=4, seed=5)(torch.tensor(4)))


@every_family
def test_a_stream_compiles_whole_and_gives_the_same_numbers(family):
    stream = Stream(family, n=4, context=(2, 3), target=5)
    make = torch.compile(lambda s: tuple(numbers(stream(s))), fullgraph=True, backend="eager")
    for step in (0, 7):
        for made, expected in zip(make(torch.tensor(step)), numbers(stream(step)), strict=True):
            torch.testing.assert_close(made, expected)


def test_random_words_are_those_of_splitmix64():
    """The published test sequence of seed 1234567."""
    words = _random.words(torch.tensor(1234567), (5,))
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [int(word) % 2**64 for word in words] == expected


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"`split` must be one of .*Did you mean 'train'"):
        draw(Stefan, "trian")
    with pytest.raises(ValueError, match="`n` must be a positive whole number"):
        draw(Stefan, "train", n=0)
    for layout in (0, (3, 0), (1, 2, 3), 2.5, "many"):
        with pytest.raises(ValueError, match=r"`context` must be a positive number of scattered"):
            draw(Stefan, "train", context=layout)
        with pytest.raises(ValueError, match=r"`target` must be a positive number of scattered"):
            Stream(Stefan, target=layout)
    with pytest.raises(ValueError, match=r"`seed` must be a whole number, got 0.5"):
        Stream(Stefan, seed=0.5)
    for seed in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match="`seed` must fit into 64 bits"):
            draw(Stefan, "train", n=2, seed=seed)
    for step in (1.5, torch.tensor(1.5), torch.arange(3)):
        with pytest.raises(ValueError, match=r"`step` must be (a|one) whole number"):
            Stream(Stefan, n=2)(step)
    with pytest.raises(ValueError, match=r"`dtype` must be a floating.*, such as .* torch.int32"):
        Stream(Stefan, dtype=torch.int32)
    with pytest.raises(ValueError, match=r"`dtype` must be a floating-point type, .* got float32"):
        Stream(Stefan, dtype="float32")
    for near in (-0.1, 1.1, float("nan"), "half"):
        with pytest.raises(ValueError, match="`near` must lie between 0 and 1, got"):
            Stream(Stefan, near=near)
    with pytest.raises(ValueError, match="`near` is for scattered targets: `target` must be a num"):
        Stream(Stefan, target=(2, 3), near=0.5)
    with pytest.raises(ValueError, match="`device` must be a device such as cpu or cuda; got 'gp"):
        Stream(Stefan, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="`device` is cuda, but torch finds no GPU here"):
            Stream(Stefan, device="cuda")
    with pytest.raises(
        ValueError, match="`n` must be a whole number from 1 to the 3 functions there are, got 4"
    ):
        Shuffled(draw(Stefan, "train", n=3), n=4)
    for problem in ("stefan", SuperSlow, SuperSlow(1.0)):
        with pytest.raises(ValueError, match=r"with a closed form.*`probconserv.problems.find`"):
            draw(problem, "train")
