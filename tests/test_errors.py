"""Bad input gets a clear error and nothing else: every message, matched by its text."""

import numpy as np
import pytest
import torch
from oracle import field_of, grid, normal

import probconserv as pc

SHAPE = (4, 7)
X = torch.linspace(0, 1, 7, dtype=torch.float64)
MEAN = torch.ones(SHAPE, dtype=torch.float64)


def raises(message, error=pc.InputError):
    return pytest.raises(error, match=message)


def test_one_family():
    for error in (pc.InputError, pc.InfeasibleError, pc.DegenerateError):
        assert issubclass(error, pc.ProbConservError)
        assert issubclass(error, ValueError)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite(bad):
    broken = MEAN.clone()
    broken[2, 3] = bad
    with raises("`mean` must be finite; 1 of its 28 values"):
        pc.Diagonal(broken, 1.0)
    with raises("`variance` must be finite"):
        pc.Diagonal(MEAN, broken.abs())
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
    with raises("`variance` must be >= 0"):
        pc.LowRank(MEAN, MEAN[None], -0.5)
    with raises("`variance` must be >= 0; .* Step 1's variance"):
        pc.smoothness(X, -MEAN, 0.5)
    with raises("`noise` must be >= 0; its smallest value is -0.1. It is a standard deviation"):
        pc.integral(X, 0.0, noise=-0.1)
    with raises("`covariance` must be >= 0; .* diagonal is a variance"):
        pc.Dense(MEAN, -torch.eye(7, dtype=torch.float64).expand(4, 7, 7))
    with raises("`volumes` must be >= 0"):
        pc.cells([1.0, -1.0], 0.0)


@pytest.mark.parametrize("x", [[0.0, 1.0, 1.0], [0.0, 2.0, 1.0]])
def test_coordinates_that_do_not_increase(x):
    with raises("`coords` must increase strictly; entry 1 is . and entry 2 is 1"):
        pc.integral(x, 0.0)
    with raises(r"`coords\[1\]` must increase strictly"):
        pc.integral(([0.0, 1.0], x), 0.0)
    with raises("`x` must increase strictly"):
        pc.smoothness(x, [1.0, 1.0, 1.0], 0.5)
    with raises("`t` must increase strictly"):
        pc.balance(x, 0.0)


def test_coordinates_of_the_wrong_shape():
    with raises(r"`coords` must be one axis of at least 2 points, got shape \(1,\)"):
        pc.integral([1.0], 0.0)
    with raises(r"`coords` must be one axis .* got shape \(4, 7\)"):
        pc.integral(MEAN, 0.0)
    with raises("`x` must be one axis of at least 3 points"):
        pc.smoothness([0.0, 1.0], [1.0, 1.0], 0.5)
    with raises("`coords` must name one to three axes, got 4"):
        pc.integral((X, X, X, X), 0.0)


def test_shapes_that_do_not_broadcast_are_both_named():
    with raises(
        r"`variance` of shape \(4, 6\) does not fit the mean of shape \(4, 7\): axis -1 has 6"
    ):
        pc.Diagonal(MEAN, MEAN[:, :6])
    with raises(r"`variance` of shape \(2, 4, 7\) does not fit .* axis -3 .* no counterpart"):
        pc.Diagonal(MEAN, MEAN.expand(2, 4, 7))
    with raises(r"`factor` must have shape \(rank, \*mean.shape\).*got \(4, 7, 3\)"):
        pc.LowRank(MEAN, torch.ones(4, 7, 3, dtype=torch.float64))
    with raises(r"`covariance` must have shape \(4, 7, 7\).*got \(7, 7\)"):
        pc.Dense(MEAN, torch.eye(7, dtype=torch.float64))
    with raises(r"`u` of shape \(4, 5\) does not fit the field"):
        pc.Diagonal(MEAN, 1.0).log_prob(MEAN[:, :5])
    with raises(r"`samples` must have at least two samples on axis 0.*got shape \(1, 4, 7\)"):
        pc.LowRank.from_samples(MEAN[None])
    with raises(r"`variance` of shape \(4, 6\) must have 7 points"):
        pc.smoothness(X, MEAN[:, :6], 0.5)


def test_a_constraint_of_another_grid():
    field = pc.Diagonal(MEAN, 1.0)
    with raises(r"`integral` was built for \(5,\) points .* the field has \(7,\)"):
        pc.condition(field, pc.integral(X[:5], 0.0))
    with raises("one more than the cells"):
        pc.condition(field, pc.integral(X, 0.0, rule="cell"))
    with raises("`smoothness` was built for 5 points, but the last axis .* has 7"):
        pc.condition(field, pc.smoothness(X[:5], MEAN[:, :5], 0.5))
    with raises(r"`matrix` of `linear` reads axes of sizes \(6,\)"):
        pc.condition(field, pc.linear(MEAN[:, :6], 0.0))
    with raises("`integral` reads the last 3 axes"):
        pc.condition(field, pc.integral((X, X, X), 0.0))
    with raises("`initial` needs a field with a time axis"):
        pc.condition(pc.Diagonal(MEAN[0], 1.0), pc.initial(MEAN[0]))
    with raises("`times` of `integral` needs a time axis"):
        pc.condition(pc.Diagonal(MEAN[0], 1.0), pc.integral(X, 0.0, times=[0]))
    with raises("`weights` of shape"):
        pc.condition(field, pc.cells(torch.ones(3, 7, dtype=torch.float64), 0.0, space_dims=1))


def test_a_value_with_the_wrong_number_of_times():
    field = pc.Diagonal(MEAN, 1.0)
    with raises(r"`value` of `integral` has 5 times \(axis -1 of shape \(5,\)\), but .* has 4"):
        pc.condition(field, pc.integral(X, torch.ones(5, dtype=torch.float64)))
    with raises("`noise` of `integral` has 5 times"):
        pc.condition(field, pc.integral(X, 0.0, noise=torch.ones(5, dtype=torch.float64)))
    with raises("`value` of `integral` has 4 times .* but the constraint has 2"):
        pc.condition(field, pc.integral(X, torch.ones(4, dtype=torch.float64), times=[0, 1]))
    with raises("`value` of `linear` has 3 times"):
        pc.condition(field, pc.linear(MEAN, torch.ones(3, 4, dtype=torch.float64)))
    with raises(r"`value` of shape \(5,\) does not fit the rows of `linear`"):
        pc.condition(field, pc.linear(MEAN, torch.ones(5, dtype=torch.float64)))
    with raises("`value` of shape .* expand the rows of `integral` first"):
        pc.condition(field, pc.integral(X, torch.ones(2, 4, dtype=torch.float64)))
    with raises("`inflow` has 3 times, but `t` has 7"):
        pc.balance(X, 0.0, inflow=[1.0, 1.0, 1.0])


def test_times_that_do_not_fit():
    field = pc.Diagonal(MEAN, 1.0)
    with raises("`times` of `integral` does not fit 4 times"):
        pc.condition(field, pc.integral(X, 0.0, times=[7]))
    with raises("a mask that name each time at most once"):
        pc.condition(field, pc.integral(X, 0.0, times=[1, 1]))


def test_integers_and_things_that_are_no_numbers():
    with raises("`mean` must hold floating-point numbers, got torch.int64"):
        pc.Diagonal(torch.ones(SHAPE, dtype=torch.int64), 1.0)
    with raises("`mean` must hold floating-point numbers"):
        pc.Diagonal(np.ones(SHAPE, dtype=int), 1.0)
    with raises("`value` must hold floating-point numbers, got torch.bool"):
        pc.integral(X, torch.ones(4, dtype=torch.bool))
    with raises("`mean` must be a tensor, an array or numbers, got str"):
        pc.Diagonal("mean", 1.0)
    with raises("`mean` must be a tensor, an array or numbers, got NoneType"):
        pc.Diagonal(None, 1.0)


def test_mixed_dtypes_and_devices():
    with raises("`variance` is torch.float32 but `mean` is torch.float64. Convert one"):
        pc.Diagonal(MEAN, MEAN.float())
    with raises("`value` is torch.float32 but `coords` is torch.float64"):
        pc.integral(X, torch.ones(4))
    with raises("`variance` is on meta but `mean` is on cpu. Move one"):
        pc.Diagonal(MEAN, MEAN.to("meta"))
    with raises("`integral` is torch.float32 .* coarser than the torch.float64 field"):
        pc.condition(pc.Diagonal(MEAN, 1.0), pc.integral(X.float(), torch.ones(4)))
    with raises("value of integral` is on meta but the field is on cpu"):
        pc.condition(pc.Diagonal(MEAN, 1.0), pc.integral(X, 0.0).to("meta"))
    with raises("`right` is torch.float64 but `left` is torch.float32"):
        pc.boundary(torch.ones(4), MEAN[:, 0])
    with raises(r"`coords\[1\]` is torch.float32 but"):
        pc.integral((X, X.float()), 0.0)


def test_a_float64_constraint_serves_a_float32_field():
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
    with raises("`boundary` needs `left`, `right` or both"):
        pc.boundary()
    with raises("`volumes` of shape .* cannot have 2 space axes"):
        pc.cells([1.0, 1.0], 0.0, space_dims=2)
    with raises("`values` of shape .* needs 2 space axes"):
        pc.initial([1.0, 2.0], space_dims=2)
    with raises("`mask` must be boolean, True where left out; got torch.float64"):
        pc.integral(X, 0.0, mask=X)
    with raises("`mask` of shape .* does not fit the last axes"):
        pc.integral(X, 0.0, mask=np.zeros(3, dtype=bool))
    with raises("`matrix` must have rows first"):
        pc.linear(X, 0.0)
    with raises(r"`space` \(4, 6\) does not fit the columns"):
        pc.linear(torch.ones(2, 28, dtype=torch.float64), 0.0, space=(4, 6))
    with raises("a sparse `matrix` must have two axes"):
        pc.linear(torch.ones(2, 4, 7, dtype=torch.float64).to_sparse(), 0.0)


def test_things_that_are_no_field_or_no_constraint():
    field, law = pc.Diagonal(MEAN, 1.0), pc.integral(X, 0.0)
    with raises("need at least one constraint"):
        pc.condition(field)
    with raises("constraints are made by integral, .* got float"):
        pc.condition(field, 1.0)
    with raises("`prediction` of type dict is not a field"):
        pc.condition({}, law)
    with raises("`project` takes exact constraints, but `integral` has noise"):
        pc.project(field, pc.integral(X, 0.0, noise=0.1))
    with raises("`project` takes a field before `condition`, not a Conditioned"):
        pc.project(pc.condition(field, law), law)


def test_a_covariance_that_is_none():
    with raises("`covariance` must be symmetric"):
        pc.Dense(MEAN[:1], torch.arange(49.0).double().reshape(1, 7, 7))
    bad = torch.tensor([[[1.0, 2.0], [2.0, 1.0]]], dtype=torch.float64)
    with raises("`covariance` is not positive semidefinite: its smallest eigenvalue is -1"):
        pc.Dense(MEAN[:1, :2], bad).sample(1)


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


def test_a_constraint_that_couples_independent_times(rng):
    for kind in ("low rank few 1", "dense 1"):
        field = field_of(kind, SHAPE, rng)
        with raises("`linear` couples the last 2 axes, .* Build the field with event_dims=2"):
            pc.condition(field, pc.linear(normal(2, *SHAPE, rng=rng), 0.0))
        with raises("`integral` couples the last 2 axes"):
            pc.condition(field, pc.integral((grid(4, rng), X), 0.0))


def test_no_joint_density_where_a_constraint_is_exact(rng):
    exact = pc.condition(field_of("diagonal", SHAPE, rng), pc.integral(X, 0.0))
    with raises("`integral` holds exactly .* Use `marginal_log_prob`", pc.DegenerateError):
        exact.log_prob(MEAN)
    assert exact.marginal_log_prob(MEAN).isfinite().all()
    with raises("no joint density here.* use `marginal_log_prob`", pc.DegenerateError):
        field_of("low rank bare 1", SHAPE, rng).log_prob(MEAN)
    with raises("singular, .* Use `marginal_log_prob`", pc.DegenerateError):
        pc.Dense(MEAN, torch.ones(4, 7, 7, dtype=torch.float64)).log_prob(MEAN)
    with raises("some points have zero variance", pc.DegenerateError):
        pc.condition(pc.Diagonal(MEAN, 1.0), pc.boundary(left=0.0)).marginal_log_prob(MEAN)


def test_more_bad_input_gets_no_raw_error():
    field, law = pc.Diagonal(MEAN, 1.0), pc.integral(X, 0.0)
    with raises("`variance` of shape .* expand the mean first"):
        pc.Diagonal(MEAN, MEAN[None])
    with raises("expand the rows of `integral` first"):
        pc.condition(field, pc.integral(X, torch.ones(1, 4, dtype=torch.float64)))
    with raises("expand the rows of `initial` first"):
        pc.condition(field, pc.initial(MEAN[:2]))
    with raises("`value` of shape .* does not fit the rows of `integral`"):
        pc.condition(pc.Diagonal(MEAN[0], 1.0), pc.integral(X, MEAN[:, 0]))
    with raises("`value` of `integral` has 4 times"):
        pc.integral(X, MEAN[:, 0]).residual(MEAN[:3])
    with raises(r"`v` must end in the rows, \(4,\), but has shape \(3,\)"):
        law.adjoint(MEAN[:3, 0], SHAPE)
    with raises("`boundary` with `left` and `right` needs two points"):
        pc.condition(pc.Diagonal(MEAN[:, :1], 1.0), pc.boundary(1.0, 2.0))
    with raises(r"`left` and `right` of shapes \(4,\) and \(3,\) do not broadcast"):
        pc.boundary(MEAN[:, 0], MEAN[:3, 0])
    with raises("`times` of `integral` does not fit 4 times"):
        pc.condition(field, pc.integral(X, 0.0, times=[0.0, 1.0]))
    with raises("`mask` must be boolean"):
        pc.integral(X, 0.0, mask=["a"] * 7)
    with raises("constraints are made by integral"):
        pc.project(field, 1.0)
    with raises("`rho` must lie between 0 and 1, got None"):
        pc.smoothness(X, MEAN, None)
    with raises("`level` must lie between 0 and 1"):
        field.interval("a")
    with raises("`matrix` must have rows first"):
        pc.linear(MEAN[:0], 0.0)
    with raises(r"`initial`, `inflow` and `outflow` of shapes .* do not broadcast"):
        pc.balance(X, [1.0, 2.0], inflow=MEAN[:3])
    backwards = pc.condition(
        field, pc.integral(X, [4.0, 3.0, 2.0, 1.0], times=slice(None, None, -1))
    )
    torch.testing.assert_close(torch.trapezoid(backwards.mean, X)[0], torch.tensor(1.0).double())
    assert pc.Diagonal(MEAN, 1.0).sample(np.int64(2)).shape == (2, *SHAPE)


def test_a_covariance_that_is_indefinite_is_found_by_condition():
    bad = torch.tensor([[[1.0, 2.0], [2.0, 1.0]]], dtype=torch.float64)
    post = pc.condition(pc.Dense(MEAN[:1, :2], bad), pc.cells([1.0, 1.0], 1.0))
    with raises("`covariance` is not positive semidefinite: a constraint leaves the variance -0.5"):
        _ = post.variance
