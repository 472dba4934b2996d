"""The dual variable's step and its clip."""

import pytest
import torch

from farout.worst_case import DualVariable


def test_one_step_by_hand():
    dual = DualVariable(rho=2.0, beta=0.1, gamma0=0.5, gamma_max=10.0)
    dual.update(torch.tensor([3.0, 5.0]))  # mean 4: γ = 0.5 − 0.1 (2 − 4)
    assert dual.gamma.item() == pytest.approx(0.7)
    assert dual.radius.item() == 4.0


@pytest.mark.parametrize(("cost", "wanted"), [(0.0, 0.0), (1e6, 3.0)])
def test_clipped_between_zero_and_its_cap(cost, wanted):
    dual = DualVariable(rho=10.0, beta=1.0, gamma0=1.0, gamma_max=3.0)
    dual.update(torch.tensor([cost]))
    assert dual.gamma.item() == wanted


def test_gamma_is_state_and_the_radius_is_not():
    assert list(DualVariable().state_dict()) == ["gamma"]
