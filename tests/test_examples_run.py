"""The examples run: those whose libraries are here; the text example is in test_estimator.py."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


def example(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def usable(library: str) -> None:
    """torchvision beside another torch fails as it is imported, and takes timm along."""
    try:
        __import__(library)
    except Exception as error:
        pytest.skip(f"{library} cannot be imported: {error}")


@pytest.mark.parametrize(("name", "library"), [("lightning_module", "lightning"), ("hf_trainer", "accelerate")])
@pytest.mark.filterwarnings("ignore")
def test_trainers_of_others_train_a_detector(name, library):
    usable(library)
    if library == "accelerate":
        usable("transformers")
    module = example(name)
    assert len(Path(module.__file__).read_text().splitlines()) < 60
    torch.manual_seed(0)
    detector = module.main()
    x, y = module.images("demo/digits", 100, "test")
    judged = detector(x)
    assert (judged.label == y).float().mean() > 0.7
    assert judged.is_ood.float().mean() == pytest.approx(0.05, abs=0.04)


@pytest.mark.parametrize("name", ["torchvision/mobilenet_v3_small", "timm/resnet10t"])
def test_models_of_torchvision_and_timm_keep_their_class(name, capsys):
    usable(name.partition("/")[0])
    assert example("own_model").main([name, "--device", "cpu"]) == 0
    assert "20 steps" in capsys.readouterr().out


def test_a_library_that_is_not_here_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert example("own_model").main(["timm/resnet10t"]) == 1
    assert "net 'timm/resnet10t' needs timm, which cannot be imported" in capsys.readouterr().out


def test_the_own_model_example_on_a_model_that_is_here(capsys, monkeypatch):
    """With a stand-in for the libraries, the script's own checks run in CI, too."""
    from torch import nn

    class Stand(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = nn.Sequential(nn.Conv2d(3, 8, 7, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(4))
            self.classifier = nn.Linear(8 * 13 * 13, 4)

        def forward(self, x):
            return self.classifier(self.features(x).flatten(1))

    module = example("own_model")
    monkeypatch.setattr(module, "external", lambda name, classes: Stand())
    assert module.main(["torchvision/stand-in", "--device", "cpu"]) == 0, capsys.readouterr().out
    assert "Stand, 20 steps" in capsys.readouterr().out
