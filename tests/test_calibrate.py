"""Standard deviations of ensembles, scaled by what held-out errors ask for."""

import pytest
import torch

from probconserv import Diagonal, Mixture
from probconserv.errors import InputError
from probconserv.models import Calibration, Widths
from probconserv.models._calibrate import _needed


def held_out(n=4000, members=4, times=2.0, dtype=torch.float64):
    """Members that disagree more and more, and a truth that errs `times` as much as stated."""
    draw = torch.Generator().manual_seed(0)
    spread = torch.logspace(-2, 1, n, dtype=dtype)
    mean = spread * torch.randn(members, n, generator=draw, dtype=dtype)
    std = (1 + mean.var(0, correction=0)).sqrt()
    truth = mean.mean(0) + times * std * torch.randn(n, generator=draw, dtype=dtype)
    return Diagonal(mean, torch.ones_like(mean)), truth


def covered(components, truth):
    field = Mixture(components, event_dims=1)
    return float(((truth - field.mean).abs() < 1.645 * field.std).double().mean())


@pytest.mark.parametrize("members", [2, 5])
@pytest.mark.parametrize("times", [0.5, 2.0])
def test_intervals_of_90_percent_hold_about_as_much(members, times):
    components, truth = held_out(members=members, times=times)
    calibrated = Calibration.fit((components, truth))(components)
    assert covered(components, truth) != pytest.approx(0.9, abs=0.05)
    assert covered(calibrated, truth) == pytest.approx(0.9, abs=0.03)
    torch.testing.assert_close(calibrated.mean.mean(0), components.mean.mean(0))


def test_members_that_agree_or_disagree_alike_everywhere_are_calibrated():
    truth = 3 * torch.randn(1600, generator=torch.Generator().manual_seed(0)).double()
    for apart in (0.0, 1.0):
        mean = apart * torch.tensor([[-1.0], [1.0]]).double().expand(2, 1600)
        components = Diagonal(mean, torch.ones_like(mean))
        calibrated = Calibration.fit((components, truth))(components)
        assert covered(calibrated, truth) == pytest.approx(0.9, abs=0.04)


def test_few_points_make_few_factors_and_fewer_are_refused():
    assert len(Calibration.fit(held_out(n=35)).factor) == 3
    assert len(Calibration.fit(held_out(n=10)).factor) == 1
    with pytest.raises(InputError, match="`held_out` must have 10 points or more, got 9"):
        Calibration.fit(held_out(n=9))
    with pytest.raises(InputError, match="`held_out` must have 10 points or more, got 0"):
        Calibration.fit()


def test_bins_may_have_more_points_than_torch_takes_quantiles_of():
    errors = torch.zeros(2**24 + 1)
    errors[:3] = 1.645
    assert float(_needed([(torch.ones(2), errors)])[1]) == 0


def test_a_calibration_keeps_the_dtype_of_what_it_scales():
    found = Calibration.fit(held_out())
    components, _ = held_out(n=20, dtype=torch.float32)
    assert found(components).mean.dtype == found(components).variance.dtype == torch.float32


def test_truths_that_do_not_fit_are_refused():
    components, truth = held_out(n=100)
    with pytest.raises(InputError, match=r"`truth` must have the shape .* \(100,\); got \(1,\)"):
        Calibration.fit((components, truth[:1]))
    with pytest.raises(InputError, match="`truth` must be finite"):
        Calibration.fit((components, truth * torch.nan))
    with pytest.raises(InputError, match="state a variance at each point"):
        Calibration.fit((Diagonal(components.mean, 0.0), truth))
    with pytest.raises(InputError, match="at least two members"):
        Calibration.fit((Diagonal(components.mean[:1], 1.0), truth))


def test_what_is_no_pair_or_has_no_members_is_refused():
    """Functions of a mixture, on its axis 0, were once taken for members."""
    components, truth = held_out(n=100)
    mixture = Mixture(Diagonal(components.mean[:, None], 1.0))
    found = Calibration.fit((components, truth))
    with pytest.raises(InputError, match=r"`components` must be a Diagonal .* got Mixture"):
        found(mixture)
    with pytest.raises(InputError, match=r"`held_out` must be tuples \(components, truth\)"):
        Calibration.fit(components, truth)
    with pytest.raises(InputError, match=r"`held_out` must be tuples \(field, truth, components\)"):
        Widths.fit((mixture, truth))


@pytest.mark.parametrize(("ratio", "factor"), [([2.0, 1.0], [1.0, 1.0]), ([1.0, 2.0], [1.0])])
def test_tables_that_make_no_function_are_refused(ratio, factor):
    with pytest.raises(InputError, match="`ratio` must be positive and not decrease"):
        Calibration(ratio, factor)


def came_out(n=40, points=300, right=0.0, times=1.0):
    """Functions of small and large std, errors of `times` std, a share of them exactly right."""
    draw = torch.Generator().manual_seed(1)
    std = torch.logspace(-4, 0, points, dtype=torch.float64).expand(n, points)
    apart = torch.logspace(-1, 1, n, dtype=torch.float64)[:, None]
    members = Diagonal(apart * torch.tensor([-1.0, 1.0]).reshape(2, 1, 1) + 0 * std, 1.0)
    error = times * std * torch.randn(n, points, generator=draw, dtype=torch.float64)
    exact = torch.rand(n, points, generator=draw) < right
    return Diagonal(torch.zeros_like(std), std**2), torch.where(exact, 0.0, error), members


def share_within(field, truth):
    return ((truth - field.mean).abs() <= 1.645 * field.std).double()


@pytest.mark.parametrize("times", [0.4, 3.0])
def test_widths_make_90_percent_of_each_std_and_of_each_function(times):
    field, truth, members = came_out(times=times * torch.logspace(0, 0.5, 300).double())
    truth = truth * torch.linspace(0.8, 1.6, 40)[:, None]  # members apart err more
    found = Widths.fit((field, truth, members))(field, members)
    assert torch.equal(found.mean, field.mean)
    for part in share_within(found, truth).split(10), share_within(found, truth).split(75, dim=1):
        assert [float(p.mean()) for p in part] == pytest.approx([0.9] * len(part), abs=0.03)


def test_points_exactly_right_do_not_make_the_others_narrow():
    field, truth, members = came_out(right=0.8)
    found = Widths.fit((field, truth, members))(field, members)
    wrong = truth != 0
    assert float(share_within(found, truth)[wrong].mean()) == pytest.approx(0.9, abs=0.02)


def test_widths_leave_a_point_that_is_certain_certain():
    field, truth, members = came_out()
    field.variance[:, 0], truth[:, 0] = 0.0, 0.0
    found = Widths.fit((field, truth, members))(field, members)
    assert (found.variance[:, 0] == 0).all()
    assert found.variance.isfinite().all()


def test_few_functions_share_one_factor_and_no_error_is_refused():
    field, truth, members = came_out(n=3)
    assert len(Widths.fit((field, truth, members)).apart) == 1
    with pytest.raises(InputError, match="10 points or more that are not exactly right, got 0"):
        Widths.fit((field, field.mean, members))
    with pytest.raises(InputError, match=r"`components` must be members of the field's shape"):
        Widths.fit((field, truth, Diagonal(members.mean[:, 0], 1.0)))
    with pytest.raises(InputError, match="`apart` must be positive and not decrease"):
        Widths([1.0], [1.0], [-1.0], [1.0])
