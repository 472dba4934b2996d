"""DAL in the Trainer of Hugging Face: a subclass with its loss. Needs `pip install transformers accelerate`."""

import copy
import tempfile

import torch
from torch import nn
from torch.utils.data import TensorDataset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import farout
from farout.data.named import open_named
from farout.methods import DAL
from farout.scores import MSP
from farout.types import Batch

SHAPE = {"image_size": 8, "patch_size": 2, "num_channels": 1, "hidden_size": 32, "intermediate_size": 64}


class Logits(nn.ModuleList):
    """A model with its tensor of logits alone, which is what `farout.split` opens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[0](pixel_values=x).logits


class OutlierTrainer(Trainer):
    """Every batch of ID images gets as many outliers, drawn anew."""

    def __init__(self, *arguments, outliers: torch.Tensor, **options) -> None:
        super().__init__(*arguments, **options)
        self.outliers, self.method = outliers, DAL(ps=0.1).to(self.args.device)
        shared = {id(tensor): tensor for tensor in (*self.model.parameters(), *self.model.buffers())}
        self.net = farout.split(copy.deepcopy(Logits([self.model]), shared))  # a twin with the same weights

    def compute_loss(self, model, inputs, return_outputs=False, **_) -> torch.Tensor:
        x = inputs["pixel_values"]
        x_out = self.outliers[torch.randint(len(self.outliers), (len(x),))].to(x.device)
        return sum(self.method.loss(self.net, Batch(x, inputs["labels"], x_out)).values())


def images(name: str, count: int, split: str = "train") -> tuple[torch.Tensor, torch.Tensor]:
    x, y = open_named(name, split=split).read(torch.arange(count))
    return x.float() / 255, y


def main(epochs: int = 12) -> farout.Detector:
    model = ViTForImageClassification(ViTConfig(num_hidden_layers=2, num_attention_heads=2, num_labels=6, **SHAPE))
    rows = [{"pixel_values": x, "labels": y} for x, y in zip(*images("demo/digits", 600), strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        plan = {"num_train_epochs": epochs, "per_device_train_batch_size": 20, "learning_rate": 2e-3, "use_cpu": True}
        settings = TrainingArguments(folder, save_strategy="no", report_to=[], disable_tqdm=True, **plan)
        trainer = OutlierTrainer(model, settings, train_dataset=rows, outliers=images("demo/outliers", 2000)[0])
        trainer.train()
    return farout.Detector(trainer.net, MSP()).calibrate(TensorDataset(*images("demo/digits", 150, "test")))


if __name__ == "__main__":
    print(f"{main()(images('demo/flower', 300, 'test')[0]).is_ood.float().mean():.0%} of a flower's parts are far out")
