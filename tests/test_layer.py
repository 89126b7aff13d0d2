"""The layer: what goes in comes out after the laws, which are buffers that no dtype touches."""

import copy
import io
import pickle

import pytest
import torch
from seeds import generator, made
from torch import nn

import probconserv as pc

B, T, M = 4, 3, 7
X = torch.linspace(0, 1, M, dtype=torch.float64) ** 2
W = torch.tensor([0.5, *[1.0] * (M - 2), 0.5], dtype=torch.float64)
LABELS = [0, 0, 1, 1, 2, 2, 2]
LAWS = {
    "integral": lambda: pc.integral(X, 0.4),
    "where": lambda: pc.weighted_sum(W, 2.0, where=[True] * 5 + [False] * 2),
    "regions": lambda: pc.regions(LABELS, [0.5, 1.0, 2.0]),
    "sparse": lambda: pc.linear(torch.eye(M)[:2].to_sparse(), [0.3, 0.6], noise=0.1),
    "ends": lambda: pc.boundary(left=0.1, right=torch.tensor([0.2, 0.3, 0.4])),
    "smooth": lambda: pc.smoothness(X, torch.ones(M), 0.5),
    "several": lambda: pc.linear({"u": torch.ones(1, M), "flux": torch.ones(1, 2)}, 2.0),
}


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def drawn(dtype=torch.float64, seed=0):
    return normal(B, T, M, seed=seed, dtype=dtype), normal(B, T, M, seed=9, dtype=dtype).exp()


def fields_for(law):
    """What a law reads."""
    fields = {"u": normal(B, T, M), "flux": normal(B, T, 2)}
    return fields if law == "several" else fields["u"]


def same(one, other):
    return all(torch.equal(one[k], x) and one[k].dtype == x.dtype for k, x in other.items())


def energy(u):
    return u.square().sum(-1)


def by_hand(mean, variance, w, b):
    """One row: mu - D w (w mu - b) / (w D w), and what is left of D."""
    gain = variance * w / (variance * w * w).sum(-1, keepdim=True)
    off = (mean * w).sum(-1, keepdim=True) - b[..., None]
    return mean - gain * off, variance - gain * variance * w


def test_a_mean_and_a_pair_come_back_as_one_row_of_the_formula_gives_them():
    (mean, variance), b = drawn(), normal(B, T, seed=1)
    layer = pc.ConstraintLayer(pc.weighted_sum(W, 2.0))
    wanted = by_hand(mean, variance, W, b)
    torch.testing.assert_close(layer((mean, variance), b), wanted)
    std = normal(M, seed=2).abs() + 0.1
    mine = pc.ConstraintLayer(pc.weighted_sum(W, 2.0), std=std)
    moved, _ = by_hand(mean, std.square().expand(B, T, M), W, b)
    torch.testing.assert_close(mine(mean, b), moved)
    torch.testing.assert_close(mine(mean), mine(mean, torch.full((B, T), 2.0)))


def test_a_mean_without_any_std_is_moved_along_the_weights():
    mean = drawn()[0]
    off = (mean @ W - 2.0)[..., None]
    moved = mean - off * W / W.square().sum()
    torch.testing.assert_close(pc.ConstraintLayer(pc.weighted_sum(W, 2.0))(mean), moved)


@pytest.mark.parametrize("returns", ["point", "moments", "posterior"])
def test_returns_says_what_comes_back(returns):
    mean, variance = drawn()
    layer = pc.ConstraintLayer(pc.integral(X, 0.4), std=0.3, returns=returns)
    pair = pc.ConstraintLayer(pc.integral(X, 0.4), returns=returns)
    post = pc.condition((mean, 0.09), pc.integral(X, 0.4))
    found = layer(mean), pair((mean, variance))
    if returns == "posterior":
        torch.testing.assert_close(found[0].variance, post.variance)
        assert all(isinstance(each, pc.Posterior) for each in found)
    elif returns == "moments":
        torch.testing.assert_close(found[0], (post.mean, post.variance))
    else:
        torch.testing.assert_close(found[0], post.mean)
        assert found[1].shape == mean.shape


def test_members_come_back_obeying_each():
    members = normal(5, T, M)
    layer = pc.ConstraintLayer(pc.integral(X, 0.4), members=True, batch_dims=1)
    moved = layer(members, torch.tensor([0.1, 0.2, 0.3]))
    assert moved.shape == members.shape
    for member in moved:
        torch.testing.assert_close(
            pc.integral(X, 0.0).apply(member), torch.tensor([0.1, 0.2, 0.3]).double()
        )
    wanted = pc.condition(pc.Ensemble(members, batch_dims=1), pc.integral(X, 0.4)).members()
    torch.testing.assert_close(layer(members), wanted)


def test_a_dict_of_fields_comes_back_as_one():
    fields = {"u": normal(B, T, M), "flux": normal(B, T, 2, seed=1)}
    layer = pc.ConstraintLayer(LAWS["several"](), std={"u": 1.0, "flux": 2.0})
    found = layer(fields)
    off = fields["u"].sum(-1) + fields["flux"].sum(-1) - 2.0
    share = off[..., None] / (M * 1.0 + 2 * 4.0)
    torch.testing.assert_close(found["u"], fields["u"] - share)
    torch.testing.assert_close(found["flux"], fields["flux"] - 4.0 * share)
    pairs = {name: (u, torch.ones_like(u)) for name, u in fields.items()}
    pairs = pc.ConstraintLayer(LAWS["several"]())(pairs)
    alone = pc.ConstraintLayer(LAWS["several"]())(fields)
    torch.testing.assert_close({n: mean for n, (mean, _) in pairs.items()}, alone)


def test_fields_states_and_distributions_come_back_as_posteriors():
    mean, variance = drawn()
    layer = pc.ConstraintLayer(pc.integral(X, 0.4, of="u"))
    for given in (pc.LowRank(mean, normal(2, B, T, M), variance), pc.State(u=(mean, variance))):
        assert isinstance(layer(given), pc.Posterior)
    normals = torch.distributions.Normal(mean, variance.sqrt())
    torch.testing.assert_close(layer(normals).mean, layer((mean, variance))[0])
    state = pc.ConstraintLayer(pc.integral(X, 0.4, of="u"), returns="point")
    assert state(pc.State(u=(mean, variance)))["u"].shape == mean.shape


@pytest.mark.parametrize("learn", [False, True])
def test_a_std_for_each_field_has_whatever_name_the_field_has(learn):
    names = "half", "a.b", "a_b"
    law = pc.weighted_sum({name: [1.0, 1.0] for name in names}, 1.0)
    given = {name: 0.1 * (i + 1) for i, name in enumerate(names)}
    layer = pc.ConstraintLayer(law, std=given, learn_std=learn)
    assert list(layer.state_dict())[:3] == [
        f"{'log_std' if learn else 'std'}.{name}" for name in ("half_1", "a_b", "a_b_1")
    ]
    found = layer({name: torch.zeros(2) for name in names})
    shares = [found[name][0].item() for name in names]  # as the variances, 1 : 4 : 9
    assert shares == pytest.approx([1 / 28, 4 / 28, 9 / 28])


def test_a_learned_std_gets_its_gradient_and_moves_what_it_says():
    mean = drawn()[0]
    law = pc.weighted_sum(W, 2.0, noise=0.5)
    layer = pc.ConstraintLayer(law, std=[0.1 * (i + 1) for i in range(M)], learn_std=True).double()
    assert [name for name, _ in layer.named_parameters()] == ["log_std"]
    assert torch.autograd.gradcheck(
        lambda log: torch.func.functional_call(layer, {"log_std": log}, (mean,)),
        layer.log_std.detach().requires_grad_(),
    )
    with torch.no_grad():
        layer.log_std.zero_()
    torch.testing.assert_close(layer(mean), pc.condition((mean, 1.0), law).mean)
    layer.reset_parameters()
    torch.testing.assert_close(layer.log_std.exp()[-1].item(), 0.7)


@pytest.mark.parametrize("law", ["integral", "regions", "ends"])
def test_gradients_go_through_mean_variance_and_total(law):
    mean, variance = normal(2, T, M), normal(2, T, M, seed=5).exp()
    layer = pc.ConstraintLayer(LAWS[law]())
    total = layer.laws[0].apply(mean) + 0.1
    given = [t.detach().requires_grad_() for t in (mean, variance, total)]
    assert torch.autograd.gradcheck(lambda m, v, b: layer((m, v), b), given)


def test_laws_that_are_not_linear_and_limits_hold_with_their_gradients():
    mean = 1 + 0.1 * normal(B, M)
    layer = pc.ConstraintLayer(pc.nonlinear(energy, 6.0, batch_dims=1), pc.bounds(0.8), std=0.3)
    assert set(layer.state_dict()) >= {"energy.value", "energy.noise", "bounds.low"}
    found = layer(mean)
    torch.testing.assert_close(energy(found), torch.full((B,), 6.0).double())
    assert float(found.min()) >= 0.8
    torch.testing.assert_close(energy(layer(mean, 5.5)), torch.full((B,), 5.5).double())
    free = pc.ConstraintLayer(pc.nonlinear(energy, 2.6, batch_dims=1), std=0.3)
    assert torch.autograd.gradcheck(free, mean[:2, :3].clone().requires_grad_(), atol=1e-4)


def test_bounds_can_be_left_out_on_the_way_back():
    mean = torch.tensor([-0.2, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
    inside = pc.bounds(0.0, gradient="straight_through")
    found = pc.ConstraintLayer(pc.weighted_sum([1.0, 1.0, 1.0], 1.0), inside, std=1.0)(mean)
    assert found.tolist() == pytest.approx([0.0, 0.3, 0.7])
    (found * torch.tensor([1.0, 0.0, 0.0])).sum().backward()
    assert mean.grad.tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_a_function_that_is_a_module_trains_with_the_layer():
    learned = made(nn.Linear, M, 1, bias=False).double()
    layer = pc.ConstraintLayer(pc.nonlinear(learned, 1.0, batch_dims=1, label="learned"), std=1.0)
    assert [name for name, _ in layer.named_parameters()] == ["learned.function.weight"]
    layer(normal(B, M)).square().sum().backward()
    assert bool((learned.weight.grad != 0).any())


MOVES = {
    "half": nn.Module.half,
    "bfloat16": nn.Module.bfloat16,
    "to float32": lambda layer: layer.to(torch.float32),
    "to device and dtype": lambda layer: layer.to("cpu", torch.float16),
    "to_empty": lambda layer: layer.to_empty(device="cpu"),
    "deepcopy": copy.deepcopy,
    "pickle": lambda layer: pickle.loads(pickle.dumps(layer)),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("law", LAWS)
def test_no_move_changes_a_digit_of_a_law(law, move):
    layer = pc.ConstraintLayer(LAWS[law](), std=0.3)
    moved = MOVES[move](copy.deepcopy(layer))
    assert same(moved.state_dict(), layer.state_dict())
    u = fields_for(law)
    torch.testing.assert_close(moved.laws[0].apply(u), LAWS[law]().apply(u), rtol=0, atol=0)


@pytest.mark.parametrize("law", LAWS)
def test_a_loaded_state_is_the_law_that_was_saved(law):
    layer = pc.ConstraintLayer(LAWS[law](), std=1.0)
    state = {k: x + 0.125 if x.is_floating_point() else x for k, x in layer.state_dict().items()}
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    layer.load_state_dict(torch.load(file))
    assert same(layer.state_dict(), state)
    u, mine = fields_for(law), layer.laws[0]
    assert bool((mine.apply(u) != LAWS[law]().apply(u)).any()) == (law != "ends")  # has no weights
    assert not mine.exact
    given = {k: (x, 1.125**2) for k, x in u.items()} if law == "several" else (u, 1.125**2)
    post = pc.condition(pc.State(**given) if law == "several" else given, mine)
    wanted = {k: f.mean for k, f in post.fields.items()} if law == "several" else post.mean
    torch.testing.assert_close(layer(u), wanted)


def test_a_state_that_was_kept_in_float32_is_widened_when_assigned():
    layer = pc.ConstraintLayer(pc.integral(X, 0.4), std=0.3)
    state = {k: x.float() for k, x in layer.state_dict().items()}
    layer.load_state_dict(state, assign=True)
    assert {x.dtype for x in layer.buffers()} == {torch.float64}


def test_the_layer_keeps_its_own_copy_of_a_law():
    law = pc.integral(X, 0.4)
    layer = pc.ConstraintLayer(law)
    layer.load_state_dict(pc.ConstraintLayer(pc.integral(X, 1.0)).state_dict())
    assert float(law.value) == 0.4


def test_a_layer_made_on_meta_or_emptied_keeps_its_laws():
    with torch.device("meta"):
        law = pc.integral([0.0, 0.5, 1.0], 0.4)
        net = nn.Sequential(nn.Linear(3, 3), pc.ConstraintLayer(law, std=0.3, learn_std=True))
    net = net.to_empty(device="cpu")
    assert net[1].integral.weights.tolist() == [0.25, 0.5, 0.25]
    net[1].reset_parameters()
    torch.testing.assert_close(net[1].log_std.exp().item(), 0.3)


def test_what_was_on_meta_itself_is_nan_until_a_state_is_loaded():
    layer = pc.ConstraintLayer(pc.regions(LABELS, [0.5, 1.0, 2.0]))
    empty = copy.deepcopy(layer).to("meta")
    assert "regions" in repr(empty)
    empty = empty.to_empty(device="cpu")
    with pytest.raises(pc.ProbConservError):
        empty(drawn())
    empty.load_state_dict(layer.state_dict())
    torch.testing.assert_close(empty(drawn()), layer(drawn()))


@pytest.mark.filterwarnings("ignore::probconserv.ImplausibleWarning")  # of a std of 1e-5
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_comes_back_as_float32_with_its_totals(dtype):
    """Coordinates that `.half()` had rounded gave residuals of 1e-4."""
    mean, variance = drawn(dtype)
    pair = pc.ConstraintLayer(pc.integral(X, 0.4)).half()
    for layer, given in ((pair, (mean, variance)), (pair, mean)):
        found = layer(given)[0] if isinstance(given, tuple) else layer(given)
        assert found.dtype == torch.float32
        assert layer.laws[0].residual(found).abs().max() < 3e-7
    tiny = pc.ConstraintLayer(pc.integral(X, 0.4), std=1e-5).to(dtype)  # 1e-10 is 0 in float16
    torch.testing.assert_close(tiny(mean), pc.ConstraintLayer(pc.integral(X, 0.4))(mean))


def test_several_laws_take_a_value_each_and_none_keeps_one():
    mean, variance = drawn()
    layer = pc.ConstraintLayer(pc.integral(X, 0.4), pc.integral(X, 0.5, noise=0.1), LAWS["ends"]())
    assert [n for n, _ in layer.named_children()] == ["integral", "integral_1", "boundary"]
    b = normal(B, T, seed=3)
    with_b = pc.integral(X, 0.4), pc.integral(X, b, noise=0.1), LAWS["ends"]()
    post = pc.condition((mean, variance), *with_b)
    torch.testing.assert_close(layer((mean, variance), None, b), (post.mean, post.variance))
    first = float(layer.laws[0].apply(layer((mean, variance), 0.7)[0])[0, 0])
    assert first == pytest.approx(0.7)


def test_labels_make_names_whatever_they_are():
    labels = "dry air [kg]", "forward", "1.5", "dry air [kg]"
    laws = [pc.weighted_sum(W, float(i), noise=1.0, label=n) for i, n in enumerate(labels)]
    layer = pc.ConstraintLayer(*laws)
    names = ["dry_air__kg_", "forward_1", "1_5", "dry_air__kg__1"]
    assert [name for name, _ in layer.named_children()] == names
    assert [law.label for law in layer.laws] == list(labels)
    both = pc.weighted_sum({"a b": [1.0, 1.0], "a_b": [2.0, 2.0]}, 1.0)
    u = {"a b": torch.ones(2), "a_b": torch.ones(2)}
    assert float(pc.ConstraintLayer(both).laws[0].apply(u)) == 6.0


def test_without_checks_nothing_looks_at_a_value():
    class Unseen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func is not torch.ops.aten._local_scalar_dense.default, "a look at a value"
            return func(*args, **(kwargs or {}))

    mean, variance = drawn()
    laws = pc.integral(X, 0.4), LAWS["regions"]()
    for some in (laws[:1], laws[1:]):
        blind = pc.ConstraintLayer(*some, checks=False)
        with Unseen():
            found = blind((mean.requires_grad_(), variance)), blind(mean)
            found[0][0].square().sum().backward()
        torch.testing.assert_close(found[0], pc.ConstraintLayer(*some)((mean, variance)))
    assert blind((torch.full((1, M), torch.nan), 1.0))[0].isnan().all()
    with pytest.raises(pc.errors.InputError, match="`mean` must be finite"):
        pc.ConstraintLayer(*some)((torch.full((1, M), torch.nan), 1.0))


def test_autocast_leaves_the_sums_alone():
    mean, members = drawn(torch.float32)[0], normal(5, T, M, dtype=torch.float32)
    layer = pc.ConstraintLayer(pc.linear(normal(2, M), [0.1, 0.2]), std=0.3)
    each = pc.ConstraintLayer(pc.integral(X, 0.4), members=True)
    wanted = layer(mean), each(members)
    with torch.autocast("cpu", torch.bfloat16):
        assert (mean @ mean.mT).dtype == torch.bfloat16
        found = layer(mean), each(members)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


LAW = pc.integral(X, 0.4)
NOISY = pc.integral(X, 0.4, noise=0.1)
MEAN = torch.zeros(T, M)
WRONG = {
    "no law": (lambda: pc.ConstraintLayer(), "`laws`: at least one is needed"),
    "no std to learn": (lambda: pc.ConstraintLayer(LAW, learn_std=True), "`learn_std` needs a"),
    "a std of 0": (lambda: pc.ConstraintLayer(LAW, std=0.0, learn_std=True), "`std` must be above"),
    "a std below 0": (lambda: pc.ConstraintLayer(LAW, std=-1.0), "`std` must be >= 0"),
    "a tiny std": (lambda: pc.ConstraintLayer(LAW, std=1e-30), "`std` of 1e-30 has a square"),
    "returns": (lambda: pc.ConstraintLayer(LAW, returns="mean"), "`returns`"),
    "members": (
        lambda: pc.ConstraintLayer(LAW, members=True, returns="point"),
        "`returns`: with `members=True`",
    ),
    "no bool": (lambda: pc.ConstraintLayer(LAW, members=5), "`members` must be True or False"),
    "checks": (lambda: pc.ConstraintLayer(pc.bounds(0.0), checks=False), "`checks=False` is for"),
    "a gradient": (
        lambda: pc.ConstraintLayer(pc.integral(X, torch.ones(1, requires_grad=True))),
        "`laws`: `integral` is made of a tensor that asks for a gradient",
    ),
    "two variances": (
        lambda: pc.ConstraintLayer(LAW, std=0.1)((MEAN, 1.0)),
        "`std`: the prediction has a variance of its own",
    ),
    "two variances of a field": (
        lambda: pc.ConstraintLayer(LAW, std=0.1)(pc.Diagonal(MEAN, 1.0)),
        "`std`: the prediction has a variance of its own",
    ),
    "a std of a name": (
        lambda: pc.ConstraintLayer(LAW, std={"u": 0.1})(MEAN),
        "`std` names the field 'u', but the prediction is Tensor",
    ),
    "a std of another name": (
        lambda: pc.ConstraintLayer(LAW, std={"u": 0.1, "w": 0.1})({"u": MEAN}),
        "`std` names the field 'w', but the prediction is a dict of u",
    ),
    "no variance": (
        lambda: pc.ConstraintLayer(LAW, returns="moments")(MEAN),
        "`std`: the layer returns 'moments', but",
    ),
    "noise alone": (lambda: pc.ConstraintLayer(NOISY)(MEAN), "`std`: `integral` has noise"),
    "mixed": (
        lambda: pc.ConstraintLayer(LAW, std={"u": 0.1})({"u": MEAN, "v": MEAN}),
        "`prediction`: some fields come with a variance",
    ),
    "a variance as total": (
        lambda: pc.ConstraintLayer(LAW)(MEAN, 0.1, 0.2),
        r"`totals`: there are 2 for 1 laws.*layer\(\(mean, variance\), total\)",
    ),
    "a total that does not fit": (
        lambda: pc.ConstraintLayer(LAW)(MEAN, torch.ones(T + 1)),
        "`value` of shape .* does not fit the rows of `integral`",
    ),
    "a total that is NaN": (
        lambda: pc.ConstraintLayer(LAW)(MEAN, float("nan")),
        "`totals` must be",
    ),
    "a total of bounds": (
        lambda: pc.ConstraintLayer(pc.bounds(0.0), std=1.0)(MEAN, 0.1),
        "`totals`: `bounds` takes none",
    ),
    "words": (lambda: pc.ConstraintLayer(LAW)("mean"), "`prediction` must be a tensor, .* got str"),
    "nothing": (lambda: pc.ConstraintLayer(LAW)({}), "`prediction` must be a tensor"),
    "members of a state": (
        lambda: pc.ConstraintLayer(LAW, members=True)({"u": MEAN}),
        "`prediction`: with `members=True` it is a tensor",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_refused_in_words(what):
    call, words = WRONG[what]
    with pytest.raises(pc.errors.InputError, match=words):
        call()


def test_a_law_that_was_used_on_another_device_makes_the_same_layer():
    law = pc.weighted_sum([1.0, 2.0, 3.0], [5.0])
    names = list(pc.ConstraintLayer(law).state_dict())
    law.to("meta")
    assert list(pc.ConstraintLayer(law).state_dict()) == names
    assert "_there" not in vars(pickle.loads(pickle.dumps(law)))


def test_a_buffer_that_is_changed_in_place_changes_the_law_and_a_law_changes_no_layer():
    law = pc.weighted_sum([1.0, 2.0, 3.0], 5.0)
    layer = pc.ConstraintLayer(law, std=1.0)
    u = torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float64)
    layer(u)
    layer.laws[0].value = torch.tensor(50.0, dtype=torch.float64)
    assert float(law.residual(layer(u)).abs().max()) < 1e-12
    (noise,) = [t for name, t in layer.named_buffers() if name.endswith("noise_variance")]
    noise.fill_(0.04)
    want = pc.condition((u, 1.0), pc.weighted_sum([1.0, 2.0, 3.0], 5.0, noise=0.2)).mean
    torch.testing.assert_close(layer(u), want)


def test_whole_numbers_are_taken_as_float64():
    layer = pc.ConstraintLayer(pc.weighted_sum([1.0, 1.0], 4.0), std=0.5)
    assert layer(torch.tensor([[1, 1]])).tolist() == [[2.0, 2.0]]
