"""Standard deviations of ensembles, scaled by what held-out errors ask for."""

import pytest
import torch

from probconserv import Diagonal, InputError, Mixture
from probconserv.models import Calibration


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


@pytest.mark.parametrize(("ratio", "factor"), [([2.0, 1.0], [1.0, 1.0]), ([1.0, 2.0], [1.0])])
def test_tables_that_make_no_function_are_refused(ratio, factor):
    with pytest.raises(InputError, match="`ratio` must be positive and not decrease"):
        Calibration(ratio, factor)
