"""The certificate of a saved detector, as rows and as a curve."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from farout.certify import certificate_curve, certify
from farout.data.named import open_named
from farout.detector import Detector
from farout.errors import ConfigError
from farout.losses import ce_to_uniform
from farout.nets.net import Net
from farout.scores import MSP
from farout.scores.embed import embed

RADII = [0.0, 0.1, 1.0, 10.0]


def test_rows_bound_the_risk_and_grow(tiny_run):
    samples = open_named("demo/outliers")
    rows = certify(tiny_run.detector, samples, RADII)
    logits = embed(tiny_run.detector.net, samples).outputs.logits
    risk = ce_to_uniform(logits.double()).mean().item()
    assert rows[0]["risk"] == pytest.approx(risk, rel=1e-5)
    assert rows[0]["lower"] == pytest.approx(risk, rel=1e-4)
    assert risk >= math.log(6)
    assert {row["domain"] for row in rows} == {"nonnegative"}
    for row in rows:
        assert row["lower"] <= row["upper"] + 1e-9
        assert row["upper"] <= row["reals"] + 1e-9
        assert row["reals"] == pytest.approx(risk + row["rho"] * row["lipschitz"], rel=1e-5)
    assert rows[3]["upper"] > rows[1]["upper"]


def test_a_curve_is_drawn(tiny_run, tmp_path):
    rows = certify(tiny_run.detector, open_named("demo/flower"), RADII, cost="l2", domain="reals")
    assert all(row["lower"] == row["upper"] for row in rows)
    path = certificate_curve(rows, tmp_path / "deep" / "curve.png")
    assert np.asarray(Image.open(path).convert("L")).std() > 10


def test_a_head_that_is_not_linear_has_no_certificate(tiny_run):
    net = Net(nn.Identity(), nn.Sequential(nn.Linear(64, 3)))
    with pytest.raises(ConfigError, match="needs a linear head, this detector's is a Sequential"):
        certify(Detector(net, MSP()), open_named("demo/flower"), [1.0])


def test_a_search_never_beats_the_certificate(tiny_run):
    """Random moves of the training set's outliers that spend a mean budget of ρ stay below the upper end."""
    net, samples = tiny_run.detector.net, open_named("demo/outliers")
    z = embed(net, samples).outputs.features.double()
    head = nn.Linear(z.shape[1], 6, dtype=torch.float64)
    head.load_state_dict({name: value.double() for name, value in net.head.state_dict().items()})
    torch.manual_seed(0)
    for rho in (0.5, 5.0):
        (row,) = certify(tiny_run.detector, samples, [rho])
        p = torch.randn_like(z)
        moved = (z + p * rho / p.abs().sum(1, keepdim=True)).clamp_min(0)
        assert ce_to_uniform(head(moved)).mean().item() <= row["upper"]
