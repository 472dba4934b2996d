"""Fine-tune models of torchvision and timm as they are, and get a detector: twenty steps on made-up images.

    python examples/own_model.py                          # one model of each library that can be imported
    python examples/own_model.py timm/vit_tiny_patch16_224 torchvision/efficientnet_b0

Weights are random and images are made up (stripes against noise), so nothing is learnt that is worth having. Shown, and
checked, is the way: the model keeps its class and its parameters' names, is the very object that was trained, and the
detector can be saved, loaded again and asked.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import farout
from farout.errors import FaroutError
from farout.nets.external import external

MODELS = ("torchvision/resnet18", "torchvision/mobilenet_v3_small", "timm/resnet10t", "timm/vit_tiny_patch16_224")
CLASSES, SIDE, STEPS, BATCH = 4, 224, 20, 16


def stripes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images (count, 3, 224, 224) whose label is the width of their stripes."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=rng)
    phase = torch.arange(SIDE).float() / (4.0 * 2 ** labels.float().unsqueeze(1))
    wave = torch.sin(phase + 6 * torch.rand(count, 1, generator=rng))
    return wave.view(count, 1, 1, SIDE).expand(count, 3, SIDE, SIDE).contiguous(), labels


def noise(count: int, seed: int) -> Tensor:
    return torch.randn(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def fine_tune(name: str, method: str, device: str) -> str:
    """Two epochs of ten steps on the model `name`; what was found, in a line."""
    torch.manual_seed(0)
    model = external(name, CLASSES)
    kind, names = type(model), list(model.state_dict())
    train = TensorDataset(*stripes(STEPS // 2 * BATCH, 0))
    trained = farout.train(
        model,
        id_data=train,
        outliers=noise(160, 1),
        held_out=stripes(64, 2),
        method=method,
        epochs=2,
        batch_size=BATCH,
        outlier_batch_size=BATCH,
        lr=0.01,
        device=device,
    )
    assert trained.model is model, "the model is another object"
    assert type(model) is kind, "the model changed its class"
    assert list(model.state_dict()) == names, "the model's parameters have other names"
    check_reloaded(trained.detector, name)
    x, y = (part.to(next(model.parameters()).device) for part in stripes(32, 3))
    with torch.no_grad():
        assert torch.equal(model.eval()(x).argmax(1), trained.detector(x).label), "the two do not share their weights"
    known, unknown = trained.detector(x), trained.detector(noise(32, 4).to(x.device))
    right = (known.label == y).float().mean()
    return (
        f"{name}: {kind.__name__}, {STEPS} steps, accuracy {right:.2f}, flagged: {known.is_ood.float().mean():.2f} of "
        f"the stripes, {unknown.is_ood.float().mean():.2f} of the noise"
    )


def check_reloaded(detector: nn.Module, name: str) -> None:
    """Saved, and loaded into a new model of the same kind, it says the same."""
    x, _ = stripes(8, 5)
    with tempfile.TemporaryDirectory() as folder:
        detector.save(Path(folder) / "d")
        again = farout.Detector.load(Path(folder) / "d", net=farout.split(external(name, CLASSES)))
    home = detector.threshold.device
    wanted, got = detector(x.to(home)), again.to(home)(x.to(home))
    torch.testing.assert_close(got.score, wanted.score, rtol=1e-4, atol=1e-4)
    assert torch.equal(got.label, wanted.label), "the loaded detector gives other labels"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--method", default="dal")
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args(arguments)
    failed = 0
    for name in asked.models:
        try:
            print(fine_tune(name, asked.method, asked.device), flush=True)
        except (FaroutError, AssertionError) as error:
            failed += 1
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
