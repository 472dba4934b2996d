"""DAL in a Lightning training loop: the loss is one line, the detector a few more. Needs `pip install lightning`."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import farout
from farout.data.named import open_named
from farout.methods import DAL
from farout.scores import MSP
from farout.types import Batch


class Digits(lightning.LightningModule):
    """A classifier of one's own; `net` is its view as features and head, which shares its weights."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 6)]
        self.net, self.method = farout.split(nn.Sequential(*layers)), DAL(ps=0.1)

    def training_step(self, batch: dict, number: int) -> torch.Tensor:
        (x, y), (x_out,) = batch["id"], batch["outliers"]
        terms = self.method.loss(self.net, Batch(x, y, x_out))
        self.log_dict({**terms, "gamma": self.method.dual.gamma})
        return sum(terms.values())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def images(name: str, count: int, split: str = "train") -> tuple[torch.Tensor, torch.Tensor]:
    x, y = open_named(name, split=split).read(torch.arange(count))
    return x.float() / 255, y


def main(epochs: int = 20) -> farout.Detector:
    lightning.seed_everything(0, verbose=False)
    inliers, outliers = TensorDataset(*images("demo/digits", 600)), TensorDataset(images("demo/outliers", 2000)[0])
    loaders = {"id": DataLoader(inliers, 50, shuffle=True), "outliers": DataLoader(outliers, 100, shuffle=True)}
    model = Digits()
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", devices=1, **quiet)
    trainer.fit(model, lightning.pytorch.utilities.CombinedLoader(loaders, "min_size"))
    held_out = TensorDataset(*images("demo/digits", 150, "test"))
    return farout.Detector(model.net, MSP()).remember(inliers).calibrate(held_out)


if __name__ == "__main__":
    detector = main()
    flower = detector(images("demo/flower", 300, "test")[0]).is_ood.float().mean()
    print(f"threshold {detector.threshold:.3f}; {flower:.0%} of cut-outs of a flower are far out")
