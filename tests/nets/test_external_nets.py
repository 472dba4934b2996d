"""nets/external.py with stand-ins for the libraries: present, absent, broken."""

import sys
import types

import pytest
from torch import nn

from farout.errors import ConfigError, MissingExtraError
from farout.nets import external


def build(name, num_classes, **arguments):
    """Builds a linear layer and remembers what it was asked for."""
    if "colour" in arguments:
        raise TypeError("unexpected keyword argument 'colour'")
    net = nn.Linear(4, num_classes)
    net.asked = (name, arguments)
    return net


@pytest.fixture
def libraries(monkeypatch):
    """torchvision and timm as far as `external` uses them."""
    vision, models, timm = (
        types.ModuleType("torchvision"),
        types.ModuleType("torchvision.models"),
        types.ModuleType("timm"),
    )
    vision.models = models
    models.list_models = lambda module=None: ["resnet50", "vgg16"] if module is models else ["everything"]
    timm.list_models = lambda: ["resnet50", "vit_tiny"]
    models.get_model = timm.create_model = build
    for name, module in (("torchvision", vision), ("torchvision.models", models), ("timm", timm)):
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("torchvision/vgg16", ("vgg16", {"weights": None})),
        ("timm/vit_tiny", ("vit_tiny", {"pretrained": False})),
        ("timm/resnet50.a1_in1k", ("resnet50.a1_in1k", {"pretrained": False})),
    ],
)
def test_builds_untrained_by_default(name, asked):
    net = external(name, num_classes=7)
    assert net.out_features == 7
    assert net.asked == asked


@pytest.mark.usefixtures("libraries")
def test_arguments_go_through():
    assert external("timm/vit_tiny", 7, pretrained=True, drop=1).asked[1] == {"pretrained": True, "drop": 1}


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchvision/resnet5", "unknown net 'torchvision/resnet5', did you mean 'torchvision/resnet50'?"),
        ("timm/zzz", "unknown net 'timm/zzz'$"),
        ("keras/resnet50", "unknown net 'keras/resnet50': an external net is"),
        ("torchvision", "unknown net 'torchvision'"),
        ("timm/", "unknown net 'timm/'"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(ConfigError, match=message):
        external(name, num_classes=2)


@pytest.mark.usefixtures("libraries")
def test_wrong_arguments_are_shown():
    with pytest.raises(ConfigError, match=r"'timm/resnet50' cannot be built with \{'colour': 1\}: unexpected keyword"):
        external("timm/resnet50", num_classes=2, colour=1)


@pytest.mark.parametrize("library", ["torchvision", "timm"])
@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "raise RuntimeError('operator torchvision::nms does not exist')",
            "RuntimeError: operator torchvision::nms",
        ),
        ("raise ModuleNotFoundError('No module named x')", "ModuleNotFoundError: No module named x"),
    ],
    ids=["broken", "absent"],
)
def test_a_library_that_cannot_be_imported(monkeypatch, tmp_path, library, line, reason):
    (tmp_path / library).mkdir()
    (tmp_path / library / "__init__.py").write_text(line)
    for name in [name for name in sys.modules if name.split(".")[0] == library]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingExtraError, match=f"net '{library}/resnet50' needs {library}.*{reason}.*install the"):
        external(f"{library}/resnet50", num_classes=2)
