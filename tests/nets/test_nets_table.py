"""nets/__init__.py: every entry builds by num_classes= and opens at `fc`."""

import ast
import sys
from pathlib import Path

import pytest
import torch

import farout.nets
from farout.nets import NETS, split

ARGUMENTS = {
    "wrn": {"depth": 10, "width": 1},
    "resnet18": {"stem": "cifar"},
    "resnet50": {"stem": "cifar"},
    "mlp": {"in_features": 192},
    "small-conv": {"in_channels": 3},
}


@pytest.mark.parametrize("name", NETS)
def test_every_net_opens_at_fc(name):
    model = NETS[name](num_classes=6, **ARGUMENTS.get(name, {}))
    head = model.fc
    net = split(model, example=torch.rand(2, 3, 8, 8))
    assert net.head is head
    out = net(torch.rand(2, 3, 8, 8))
    assert out.features.shape == (2, head.in_features)
    assert out.logits.shape == (2, 6)
    assert out.features.min() >= 0


@pytest.mark.parametrize("path", sorted(Path(farout.nets.__file__).parent.glob("*.py")), ids=lambda path: path.stem)
def test_importing_the_nets_costs_torch_only(path):
    roots = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add(node.module.split(".")[0])
    assert roots - sys.stdlib_module_names <= {"torch", "farout"}
