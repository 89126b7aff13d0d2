"""Bad input gets a clear error and nothing else: it names the argument and the rule."""

import numpy as np
import pytest
import torch
from oracle import field_of, normal
from seeds import generator

import probconserv as pc

SHAPE = (4, 7)
X = torch.linspace(0, 1, 7, dtype=torch.float64)
MEAN = torch.ones(SHAPE, dtype=torch.float64)


def raises(message, error=pc.errors.InputError):
    return pytest.raises(error, match=message)


def test_one_family():
    for error in (pc.errors.InputError, pc.errors.InfeasibleError, pc.errors.DegenerateError):
        assert issubclass(error, pc.ProbConservError)
        assert issubclass(error, ValueError)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite(bad):
    broken = MEAN.clone()
    broken[2, 3] = bad
    with raises("`mean` must be finite; 1 of its 28 values"):
        pc.Diagonal(broken, 1.0)
    with raises("`variance` must be finite"):
        pc.Diagonal(MEAN, broken - broken)  # NaN; infinite variances have a meaning
    with raises("`mean` must be finite.*`where`"):
        pc.Diagonal([bad], 1.0)
    with raises("`t` must be finite.*Correct those entries, or leave them out"):
        pc.budget([0.0, 1.0, 2.0], [0.0, bad], inflow=1.0)
    with raises("`value` must be finite"):
        pc.integral(X, broken[:, 3])
    with raises("`factor` must be finite"):
        pc.LowRank(MEAN, broken[None], 1.0)
    with raises("`matrix` must be finite"):
        pc.linear(broken, 0.0)
    with raises("`values` must be finite"):
        pc.initial(broken[2])
    with raises("`u` must be finite"):
        pc.Diagonal(MEAN, 1.0).marginal_log_prob(broken)


def test_large_finite_values_whose_sum_overflows_are_fine():
    assert pc.Diagonal(MEAN * 1e308, 1.0).shape == SHAPE


def test_negative_variance_and_noise():
    with raises("`variance` must be >= 0; its smallest value is -0.5. Standard deviations must be"):
        pc.Diagonal(MEAN, -0.5)
    with raises("`std` must be >= 0; its smallest value is -0.5.$"):
        pc.Diagonal(MEAN, std=-0.5)
    with raises(r"`std` of shape \(4,\) does not fit the mean of shape \(4, 7\)"):
        pc.Diagonal(MEAN, std=[1.0, 2.0, 3.0, 4.0])
    with raises("`variance` must be >= 0"):
        pc.LowRank(MEAN, MEAN[None], -0.5)
    with raises("`value` must be a number that float64 holds"):
        pc.integral(X, 10**400)
    with raises("`variance` must be >= 0; .* Step 1's variance"):
        pc.smoothness(X, -MEAN, 0.5)
    with raises("`noise` must be >= 0; its smallest value is -0.1. It is a standard deviation"):
        pc.integral(X, 0.0, noise=-0.1)
    with raises("`covariance` must be >= 0; .* diagonal is a variance"):
        pc.Dense(MEAN, -torch.eye(7, dtype=torch.float64).expand(4, 7, 7))


@pytest.mark.parametrize("x", [[0.0, 1.0, 1.0], [0.0, 2.0, 1.0]])
def test_coordinates_that_do_not_increase(x):
    with raises("`coords` must increase strictly; entry 1 is . and entry 2 is 1"):
        pc.integral(x, 0.0)
    with raises(r"`coords\[1\]` must increase strictly"):
        pc.integral(([0.0, 1.0], x), 0.0)
    with raises("`x` must increase strictly"):
        pc.smoothness(x, [1.0, 1.0, 1.0], 0.5)
    with raises("`t` must increase strictly"):
        pc.laws.balance(x, 0.0)


def test_coordinates_of_the_wrong_shape():
    with raises(r"`coords` must be one axis of at least 2 points, got shape \(1,\)"):
        pc.integral([1.0], 0.0)
    with raises(r"`coords` must be one axis .* got shape \(4, 7\)"):
        pc.integral(MEAN, 0.0)
    with raises("`x` must be one axis of at least 3 points"):
        pc.smoothness([0.0, 1.0], [1.0, 1.0], 0.5)
    with raises("`coords` must name one to three axes, got 4"):
        pc.integral((X, X, X, X), 0.0)


def test_a_standard_deviation_stands_in_place_of_a_variance():
    with raises("`variance` or `std`: give exactly one of the two, got both"):
        pc.Diagonal(MEAN, 1.0, std=1.0)
    with raises("`variance` or `std`: give exactly one of the two, got neither"):
        pc.Diagonal(MEAN)
    for wrong, rule in ((-1.0, "must be >= 0"), (float("nan"), "must be finite")):
        with raises(f"`std` {rule}"):
            pc.Diagonal(MEAN, std=wrong)
    with raises("`std` of 1e-25 has a square that torch.float32 does not hold"):
        pc.Diagonal(MEAN.float(), std=1e-25)


def test_factor_and_variance_that_are_swapped_are_named():
    """It was: standard deviations must be squared first."""
    with raises("`factor` must have shape .*got \\(4, 7\\). It and `variance` are swapped"):
        pc.LowRank(MEAN, MEAN.abs(), -MEAN[None])


def test_shapes_that_do_not_broadcast_are_both_named():
    with raises(
        r"`variance` of shape \(4, 6\) does not fit the mean of shape \(4, 7\): axis -1 has 6"
    ):
        pc.Diagonal(MEAN, MEAN[:, :6])
    with raises(r"`variance` of shape \(2, 4, 7\) does not fit .* axis -3 .* no counterpart"):
        pc.Diagonal(MEAN, MEAN.expand(2, 4, 7))
    with raises(r"`factor` must have shape \(rank, \*mean.shape\).*got \(4, 7, 3\)"):
        pc.LowRank(MEAN, torch.ones(4, 7, 3, dtype=torch.float64))
    for wrong in ((6, 6), (3, 7, 7), (2, 4, 7, 7), (7,)):
        with raises(r"`covariance` must have shape \(4, 7, 7\), or \(7, 7\) if all.*got \("):
            pc.Dense(MEAN, torch.ones(wrong, dtype=torch.float64))
    with raises(r"`u` of shape \(4, 5\) does not fit the field"):
        pc.Diagonal(MEAN, 1.0).log_prob(MEAN[:, :5])
    with raises(r"`members` must have at least two members on axis 0.*got shape \(1, 4, 7\)"):
        pc.Ensemble(MEAN[None], batch_dims=1)
    with raises(r"`variance` of shape \(4, 6\) must have 7 points"):
        pc.smoothness(X, MEAN[:, :6], 0.5)


def test_a_law_of_another_grid():
    field, line = pc.Diagonal(MEAN, 1.0), pc.Diagonal(MEAN[0], 1.0)
    wide = torch.ones(3, 7, dtype=torch.float64)
    for prior, law, message in (
        (field, pc.integral(X[:5], 0.0), r"`integral`.* end in \(5,\), .* \(4, 7\)"),
        (field, pc.integral(X, 0.0, rule="cell"), "one more than the cells"),
        (field, pc.smoothness(X[:5], MEAN[:, :5], 0.5), r"`smoothness`.* end in \(5,\)"),
        (field, pc.linear(MEAN[:, :6], 0.0), r"`linear`.* end in \(6,\), .* \(4, 7\)"),
        (field, pc.linear(MEAN[:3, None], 0.0, batch_dims=1), r"`linear`.* \(3,\) before"),
        (field, pc.integral((X, X, X), 0.0), r"`integral`.* end in \(7, 7, 7\)"),
        (field, pc.weighted_sum(wide, 0.0, space_dims=1), r"`weighted_sum`.* \(3,\) before"),
        (line, pc.initial(MEAN[0]), r"`initial`.* last 2 axes.* \(7,\)"),
        (line, pc.integral(X, 0.0, times=[0]), "`times` of `integral` needs an axis of time"),
        (pc.Diagonal(MEAN[:, :1], 1.0), pc.boundary(1.0, 2.0, noise=0.1), "`boundary`.*2 points"),
    ):
        with raises(message):
            pc.condition(prior, law)


def test_a_value_with_the_wrong_number_of_rows():
    field, five = pc.Diagonal(MEAN, 1.0), torch.ones(5, dtype=torch.float64)
    for law, message in (
        (pc.integral(X, five), r"`value` of shape \(5,\) .*`integral`.* should have 4"),
        (pc.integral(X, 0.0, noise=five), r"`noise` of shape \(5,\) .*`integral`"),
        (pc.integral(X, five[:4], times=[0, 1]), r"`value` of shape \(4,\) .* should have 2"),
        (pc.linear(MEAN, MEAN[:3, :4]), r"`value` of shape \(3, 4\) .*`linear`"),
        (pc.linear(MEAN, five), r"`value` of shape \(5,\) .*`linear`"),
        (pc.integral(X, MEAN[:2, :4]), "`value` of shape .*expand the rows of `integral` first"),
        (pc.initial(MEAN[:2]), "`value` of shape .*expand the rows of `initial` first"),
    ):
        with raises(message):
            pc.condition(field, law)
    with raises("`value` of shape .* `integral`"):
        pc.integral(X, MEAN[:, 0]).residual(MEAN[:3])
    with raises(r"`v` must end in the rows, \(4,\), but has shape \(3,\)"):
        pc.integral(X, 0.0).adjoint(MEAN[:3, 0], SHAPE)
    with raises(r"`inflow` .* `t` of shapes .*\(3,\).* and \(7,\) do not broadcast"):
        pc.laws.balance(X, 0.0, inflow=[1.0, 1.0, 1.0])


def test_times_that_do_not_fit():
    field = pc.Diagonal(MEAN, 1.0)
    for times in ([7], [-5], [True, False, True]):
        with raises("`times` of `integral` does not fit 4 times"):
            pc.condition(field, pc.integral(X, 0.0, times=times))
    with raises("`times` of `integral` must name each time at most once"):
        pc.condition(field, pc.integral(X, 0.0, times=[1, -3]))
    for times in ([0.0, 1.0], [True, 1], 3):
        with raises("`times` must be indices, a slice or booleans"):
            pc.integral(X, 0.0, times=times)


def test_things_that_are_no_numbers():
    with raises("`value` must hold real numbers, got torch.bool"):
        pc.integral(X, torch.ones(4, dtype=torch.bool))
    with raises("`mean` must hold real numbers, got torch.complex128"):
        pc.Diagonal(MEAN + 1j, 1.0)
    with raises("`mean` must be a tensor, an array or numbers, got str"):
        pc.Diagonal("mean", 1.0)
    with raises("`mean` must be a tensor, an array or numbers, got NoneType"):
        pc.Diagonal(None, 1.0)


@pytest.mark.parametrize("kind", [torch.int64, torch.float32, np.int32, np.float32])
def test_numbers_are_widened_where_no_digit_is_lost(kind):
    """The widest dtype among the arrays of a field wins; whole numbers count as float64."""
    ones = MEAN.to(kind) if isinstance(kind, torch.dtype) else MEAN.numpy().astype(kind)
    for field in (pc.Diagonal(ones, MEAN), pc.Diagonal(MEAN, ones), pc.LowRank(MEAN, ones[None])):
        assert field.mean.dtype == field.variance.dtype == torch.float64
        assert torch.equal(field.variance, MEAN)
    alone, law = pc.Diagonal(ones, 1), pc.integral(X, np.int64(1))
    single = kind in (torch.float32, np.float32)
    assert alone.mean.dtype == (torch.float32 if single else torch.float64)
    assert law.residual(pc.condition(alone, law)).abs().max() < 1e-6


def test_what_would_lose_digits_or_is_elsewhere_is_refused():
    with raises("`u` is torch.float64 but `mean` is torch.float32"):
        pc.Diagonal(MEAN.float(), 1.0).log_prob(MEAN)
    with raises("`variance` is on meta but `mean` is on cpu. Move one"):
        pc.Diagonal(MEAN, MEAN.to("meta"))


def test_a_float64_law_serves_a_float32_field():
    law = pc.integral(X, torch.ones(4, dtype=torch.float64))
    assert law.residual(pc.condition(pc.Diagonal(MEAN.float(), 1.0), law)).abs().max() < 1e-6


def test_choices_name_the_nearest():
    with raises("`rule` must be one of left, right, .* Did you mean 'trapezoid'?"):
        pc.integral(X, 0.0, rule="trapezoidal")
    with raises("got 'gauss'.$"):
        pc.integral(X, 0.0, rule="gauss")


def test_arguments_out_of_range():
    field = pc.Diagonal(MEAN, 1.0)
    with raises("`rho` must lie between 0 and 1, got 1.5"):
        pc.smoothness(X, MEAN, 1.5)
    with raises("`level` must lie between 0 and 1"):
        field.interval(90)
    with raises("`n` must be a positive whole number, got 0"):
        field.sample(0)
    with raises("`event_dims` must be a whole number from 1 to 2"):
        pc.LowRank(MEAN, MEAN[None], 1.0, event_dims=3)
    with raises("`left`, `right`: `boundary` needs one"):
        pc.boundary()


def test_truth_values_are_no_numbers():
    """True was taken as 1, so that shrinkage=True left nothing of an ensemble's covariance."""
    field = pc.Diagonal(MEAN, 1.0)
    with raises("`event_dims` must be a whole number .* got True"):
        pc.LowRank(MEAN, MEAN[None], 1.0, event_dims=True)
    with raises("`n` must be a positive whole number, got True"):
        field.sample(True)
    with raises("`space_dims`: `values` .* cannot have True"):
        pc.initial(MEAN[0], space_dims=True)
    with raises("`space_dims` must leave an axis of time .* got True"):
        pc.evaluate(field, MEAN, space_dims=True)
    with raises("`shrinkage` must lie between 0 and 1, got True"):
        pc.Ensemble(MEAN[:, None], batch_dims=1, shrinkage=True)
    with raises("`space_dims`: `weights` of shape .* cannot have 2"):
        pc.weighted_sum([1.0, 1.0], 0.0, space_dims=2)
    with raises("`space_dims`: `values` of shape .* cannot have 2"):
        pc.initial([1.0, 2.0], space_dims=2)
    for where in (X, np.ones(7), ["a"] * 7):
        with raises("`where` must be (boolean|a tensor, an array)"):
            pc.integral(X, 0.0, where=where)
    with raises("`where` of shape .* does not fit the last axes"):
        pc.weighted_sum(X, 0.0, where=np.zeros(3, dtype=bool))
    with raises("`p` must lie between 0 and 1"):
        field.quantile(1.0)
    with raises("`shrinkage` must lie between 0 and 1"):
        pc.Ensemble(torch.stack([MEAN, 2 * MEAN]), batch_dims=1, shrinkage=2)
    with raises("`correlation` must lie between 0 and 1"):
        pc.LowRank.correlated(MEAN, 1.0, correlation=-0.5)
    with raises("`period` goes with rule='periodic'"):
        pc.integral(X, 0.0, period=3.0)
    for period in (0.5, "a"):
        with raises("`period` must be longer than the points reach, 1"):
            pc.integral(X, 0.0, rule="periodic", period=period)
    with raises("`period` is needed where the points are not evenly spaced"):
        pc.integral([0.0, 1.0, 3.0], 0.0, rule="periodic")
    with raises("`matrix` must have rows first"):
        pc.linear(X, 0.0)
    with raises(r"`space` \(4, 6\) does not fit the columns"):
        pc.linear(torch.ones(2, 28, dtype=torch.float64), 0.0, space=(4, 6))
    with raises("a sparse `matrix` must hold .* two axes"):
        pc.linear(torch.ones(2, 4, 7, dtype=torch.float64).to_sparse(), 0.0)


def test_regions_that_are_none():
    for labels in ([0.5, 1.0], [], [[True, False]]):
        with raises("`labels` must be whole numbers"):
            pc.regions(labels, 0.0)
    with raises("`labels` go up to 5, but `value` has 2 regions .* number the regions anew"):
        pc.regions([0, 5], [1.0, 2.0])
    with raises("`labels`"):
        pc.regions([-1, -1], 1.0)
    with raises(r"`volumes` of shape \(3,\) does not fit `labels`"):
        pc.regions([0, 1], [1.0, 2.0], volumes=[1.0, 2.0, 3.0])


def test_things_that_are_no_field_or_no_law():
    field, law = pc.Diagonal(MEAN, 1.0), pc.integral(X, 0.5)
    for verb in (pc.condition, pc.project):
        with raises("`laws`: at least one is needed"):
            verb(field)
        with raises("`laws` must be a law .* got float"):
            verb(field, 1.0)
        with raises(r"`laws`: give them one by one, as in `condition\(prior, \*laws\)`"):
            verb(field, [law])
        with raises("`prediction` of type dict is not a field"):
            verb({}, law)
    with raises("`u`: `prediction` of type ndarray is not a field"):
        pc.State(v=field, u=MEAN.numpy())
    with raises("`project` takes exact ones, but `integral` has noise"):
        pc.project(field, pc.integral(X, 0.0, noise=0.1))
    with raises("`project` takes a field before `condition`, not a Posterior"):
        pc.project(pc.condition(field, law), law)


def test_a_covariance_that_is_none():
    with raises("`covariance` must be symmetric"):
        pc.Dense(MEAN[:1], torch.arange(49.0).double().reshape(1, 7, 7))
    bad = pc.Dense(MEAN[:1, :2], [[[1.0, 2.0], [2.0, 1.0]]])
    for use in (
        lambda: bad.sample(1, generator=generator()),
        lambda: pc.condition(bad, pc.weighted_sum([1.0, 1.0], 1.0)),
    ):
        with raises("`covariance` is not positive semidefinite: .* smallest eigenvalue is -1"):
            use()


@pytest.mark.parametrize("index", [9, -5, "a", (0, 0), [0, 1], True, None, 0.0])
def test_an_index_that_is_none_or_of_axes_that_are_not_independent(index):
    for field in (pc.LowRank(MEAN, MEAN[None], 1.0), pc.Diagonal(MEAN, 1.0)):
        for one in (field, pc.condition(field, pc.integral(X, 0.5))):
            if one.event_dims or index != (0, 0):
                with raises("`index`"):
                    one[index]


def test_files_and_normals_that_do_not_fit(tmp_path):
    field = pc.Diagonal(MEAN, 1.0)
    (tmp_path / "other").write_text("no field")
    for path in (tmp_path / "none", tmp_path / "other", tmp_path, 3):
        with raises("`path`"):
            pc.fields.Field.load(path)
    field.save(tmp_path / "field")
    with raises("`path`: .* holds a Diagonal"):
        pc.State.load(tmp_path / "field")
    with raises(r"`normals` must have shape \(n, 28\), got \(4, 7\)"):
        field.sample_with(MEAN)
    with raises("`generator` must be a torch.Generator"):
        field.sample(3, 5)


def test_mixtures_of_the_wrong_things(rng):
    components = field_of("diagonal", (5, *SHAPE), rng)
    with raises("`components` must be a field with the component axis first"):
        pc.Mixture(MEAN)
    with raises("`components` must be a field .* got Mixture"):
        pc.Mixture(pc.Mixture(components))
    with raises("`event_dims` must be a whole number from 1 to 1"):
        pc.Mixture(pc.Diagonal(MEAN, 1.0))
    with raises("`weights` must have 5 components on axis 0"):
        pc.Mixture(components, weights=[1.0, 1.0])
    with raises("`weights` must be >= 0; .* Weights are not logarithms"):
        pc.Mixture(components, weights=-torch.ones(5, dtype=torch.float64))
    with raises("`weights` must not all be zero"):
        pc.Mixture(components, weights=torch.zeros(5, dtype=torch.float64))
    joint = pc.LowRank(components.mean, components.mean[None], 1.0, event_dims=2)
    with raises("`event_dims` of the mixture is 1 but its components are joint over 2"):
        pc.Mixture(joint, event_dims=1)
    with raises("weights per time .* need components whose times are independent"):
        coupling = pc.linear(normal(2, *SHAPE, rng=rng), 0.0, noise=0.1)
        pc.condition(pc.Mixture(components, event_dims=1), coupling)


def test_no_joint_density_where_a_law_is_exact(rng):
    exact = pc.condition(field_of("diagonal", SHAPE, rng), pc.integral(X, 0.0))
    with raises("`integral` holds exactly .* Use `marginal_log_prob`", pc.errors.DegenerateError):
        exact.log_prob(MEAN)
    assert exact.marginal_log_prob(MEAN).isfinite().all()
    with raises("no joint density here.* use `marginal_log_prob`", pc.errors.DegenerateError):
        field_of("low rank bare 1", SHAPE, rng).log_prob(MEAN)
    with raises("singular, .* Use `marginal_log_prob`", pc.errors.DegenerateError):
        pc.Dense(MEAN, torch.ones(4, 7, 7, dtype=torch.float64)).log_prob(MEAN)
    with raises("some points have zero variance", pc.errors.DegenerateError):
        pc.condition(pc.Diagonal(MEAN, 1.0), pc.boundary(left=0.0)).marginal_log_prob(MEAN)


def test_more_bad_input_gets_no_raw_error():
    field, law = pc.Diagonal(MEAN, 1.0), pc.integral(X, 0.5)
    with raises("`variance` of shape .* expand the mean first"):
        pc.Diagonal(MEAN, MEAN[None])
    with raises(r"`left` and `right` of shapes \(4,\) and \(3,\) do not broadcast"):
        pc.boundary(MEAN[:, 0], MEAN[:3, 0])
    with raises("`rho` must lie between 0 and 1, got None"):
        pc.smoothness(X, MEAN, None)
    with raises("`level` must lie between 0 and 1"):
        field.interval("a")
    for matrix, lead in ((MEAN[:0], 0), (MEAN, 1), (MEAN[None], -1)):
        with raises("`matrix` must have rows first"):
            pc.linear(matrix, 0.0, batch_dims=lead)
    with raises(r"`initial` and `inflow` and `outflow` .*of shapes .* do not broadcast"):
        pc.laws.balance(X, [1.0, 2.0], inflow=MEAN[:3])
    for one in (field, pc.condition(field, law), field_of("dense 1", SHAPE, torch.Generator())):
        with raises(r"`v` of shape \(3, 7\) does not fit the field"):
            one.covariance_times(MEAN[:3])
    for of in (3, None):
        for build in (pc.weighted_sum, pc.integral, pc.regions):
            with raises("`of` must be a name"):
                build([0, 1], 0.0, of=of)


def test_what_may_look_wrong_and_is_right():
    field = pc.Diagonal(MEAN, 1.0)
    law = pc.integral(X, [4.0, 3.0, 2.0, 1.0], times=slice(None, None, -1))
    backwards = pc.condition(field, law)
    torch.testing.assert_close(torch.trapezoid(backwards.mean, X)[0], torch.tensor(1.0).double())
    assert field.sample(np.int64(2), generator=generator()).shape == (2, *SHAPE)


def test_arguments_in_the_wrong_order_are_told_apart():
    with raises("`weights` is one number, .* first `weights` .* `space_dims=0`"):
        pc.weighted_sum(2.0, X)
    with pytest.raises(TypeError, match="positional"):
        pc.LowRank.correlated(MEAN, 0.25, 1.0)  # both may be between 0 and 1
    with raises("`factor` must have shape .* It and `variance` are swapped"):
        pc.LowRank(MEAN, torch.ones_like(MEAN), MEAN[None])
    with raises("`laws` must be a law such as .* got Diagonal"):
        pc.condition(pc.integral(X, 1.0), pc.Diagonal(MEAN, 1.0))
    every = pc.weighted_sum(2.0, 3.0, space_dims=0)
    assert bool((pc.condition(pc.Diagonal(MEAN, 1.0), every).mean == 1.5).all())


def test_a_state_says_which_field_has_what_it_has_not():
    state = pc.State(u=pc.Diagonal(MEAN, 1.0), members=pc.Ensemble([[0.0, 1.0], [1.0, 3.0]]))
    post = pc.condition(state, pc.weighted_sum([1.0, 1.0], 2.0, of="members"))
    bounded = pc.condition(
        pc.State(u=(MEAN, 1.0)), pc.bounds(low=0.0), draws=4, generator=generator()
    )
    for given, name, field in (
        (state, "mean", "u"),
        (state, "factor", "members"),
        (post, "undetermined", "u"),
        (bounded, "draws", "u"),
    ):
        with pytest.raises(AttributeError, match=rf"no '{name}': .* state\['{field}'\]\.{name}"):
            getattr(given, name)
    with pytest.raises(AttributeError, match=r"a Posterior of several fields has no 'menas'\.$"):
        post.menas  # noqa: B018
