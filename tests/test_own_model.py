"""Fine-tuning a user's own model: any Dataset, any class, the model kept whole."""

import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from farout.data.named import open_named
from farout.detector import Detector
from farout.errors import ConfigError, DataError
from farout.nets.split import split
from farout.own_model import as_samples, train_model


class Mine(nn.Module):
    """A user's own class, with batch norm and a name for its head that nobody guesses."""

    def __init__(self, classes: int = 6) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
        self.narrow = nn.Sequential(nn.Linear(512, 16), nn.ReLU())
        self.answer = nn.Linear(16, classes)

    def forward(self, x):
        return self.answer(self.narrow(self.stem(x)))


@pytest.fixture(scope="module")
def digits():
    """Normalised float images, as a transform leaves them."""
    x, y = open_named("demo/digits").read(torch.arange(500))
    return (x.float() / 255 - 0.3) / 0.4, y


@pytest.fixture(scope="module")
def outliers():
    x, _ = open_named("demo/outliers").read(torch.arange(0, 2000, 10))
    return (x.float() / 255 - 0.3) / 0.4


def start(**changes):
    torch.manual_seed(0)
    return Mine(**changes)


OPTIONS = {"epochs": 2, "batch_size": 50, "outlier_batch_size": 50, "lr": 0.05, "device": "cpu"}


def test_the_model_itself_is_trained_and_keeps_its_class(digits, outliers):
    x, y = digits
    model = start()
    forward, names = model.forward, list(model.state_dict())
    trained = train_model(model, TensorDataset(x, y), outliers, method="dal", **{**OPTIONS, "epochs": 6})
    assert trained.model is model
    assert type(model) is Mine
    assert model.forward == forward
    assert list(model.state_dict()) == names
    with torch.no_grad():
        logits = model.eval()(x)
    assert (logits.argmax(1) == y).float().mean() > 0.8
    verdict = trained.detector(x)
    assert torch.equal(verdict.label, logits.argmax(1))  # one set of weights, seen from two sides
    far = trained.detector(outliers).is_ood.float().mean()
    assert far > verdict.is_ood.float().mean() + 0.3
    assert trained.log[0]["step"] == 0
    assert trained.log[-1]["ce"] < trained.log[0]["ce"]


def test_it_is_saved_and_loaded_with_the_users_class(digits, outliers, tmp_path):
    trained = train_model(start(), digits, outliers, method="oe", **{**OPTIONS, "epochs": 1})
    folder = trained.detector.save(tmp_path / "d")
    loaded = Detector.load(folder, net=split(Mine()))
    assert torch.equal(loaded(digits[0][:9]).score, trained.detector(digits[0][:9]).score)
    with pytest.raises(DataError, match="was trained on"):
        loaded.calibrate(TensorDataset(*digits))


def test_every_kind_of_data_trains_alike(digits, outliers):
    x, y = digits

    class Listed(Dataset):
        def __len__(self):
            return len(x)

        def __getitem__(self, row):
            return x[row], int(y[row])

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(zip(x, y, strict=True))

    # Any set to calibrate on: what matters here are the weights.
    options = {**OPTIONS, "epochs": 1, "method": "oe", "held_out": outliers, "batch_size": 100}
    ends = []
    for data in (digits, TensorDataset(x, y), Listed(), DataLoader(Listed(), 7), DataLoader(Stream(), 64)):
        ends.append(train_model(start(), data, DataLoader(TensorDataset(outliers), 10), **options).model.answer.weight)
    assert all(torch.equal(ends[0], end) for end in ends)


def test_pil_images_with_a_normaliser(digits):
    images, labels = open_named("demo/digits").read(torch.arange(200))

    class Pictures(Dataset):
        classes = ("0", "1", "2", "3", "4", "5")

        def __len__(self):
            return len(images)

        def __getitem__(self, row):
            return Image.fromarray(images[row, 0].numpy()), int(labels[row])

    with pytest.raises(DataError, match=r"gives uint8 images and the model takes floats; pass normalise"):
        train_model(start(), Pictures(), method="ce", **OPTIONS)
    trained = train_model(start(), Pictures(), method="ce", normalise=([0.3], [0.4]), size=8, **OPTIONS)
    raw = trained.detector(images[:5])
    assert torch.allclose(raw.score, trained.detector(images[:5].float() / 255).score, atol=1e-5)
    assert trained.detector(torch.randint(256, (2, 3, 30, 40), dtype=torch.uint8)).label.shape == (2,)


def test_a_run_folder_continues_to_the_same_weights(digits, outliers, tmp_path):
    whole = train_model(start(), digits, outliers, **OPTIONS).model
    train_model(start(), digits, outliers, run=tmp_path, **OPTIONS)
    for file in sorted((tmp_path / "checkpoints").iterdir())[1:]:
        file.unlink()  # as if it had stopped after the first epoch
    again = train_model(start(), digits, outliers, run=tmp_path, **OPTIONS).model
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), again.parameters(), strict=True))


def test_a_failure_leaves_the_model_as_it_was(digits, outliers):
    model = start()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(DataError, match="has the label 5, and the model tells 3 classes apart"):
        train_model(start(classes=3), digits, outliers, **OPTIONS)
    with pytest.raises(ConfigError, match="trains with auxiliary outliers; pass outliers="):
        train_model(model, digits, method="dal", **OPTIONS)
    with pytest.raises(ConfigError, match="unknown method 'dall'; did you mean 'dal'"):
        train_model(model, digits, outliers, method="dall", **OPTIONS)
    with pytest.raises(ConfigError, match="'csi' needs a head with 4 outputs a class"):
        train_model(model, digits, outliers, method="csi", **OPTIONS)
    with pytest.raises(ConfigError, match="held_out must be a set, or a share"):
        train_model(model, digits, outliers, **OPTIONS, held_out=1.5)
    with pytest.raises(ConfigError, match="has no module 'nose'"):
        train_model(model, digits, outliers, **OPTIONS, head="nose")
    assert type(model.answer) is nn.Linear
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_what_is_no_data_is_named():
    with pytest.raises(DataError, match="ID data: cannot read samples from a dict; give a torch Dataset"):
        as_samples({}, "ID data")
    with pytest.raises(DataError, match=r"3 images have labels of shape \(2,\)"):
        as_samples((torch.rand(3, 1, 2, 2), torch.zeros(2)), "x")
    with pytest.raises(DataError, match="an item is a str"):
        as_samples(TensorDataset(torch.zeros(1)), "x").__class__(["word"], "x").read(torch.tensor([0]))


def test_outliers_may_be_widened():
    x, y = open_named("demo/digits").read(torch.arange(200))
    pool, _ = open_named("demo/outliers").read(torch.arange(0, 2000, 20))
    options = {**OPTIONS, "epochs": 1, "normalise": ([0.3], [0.4]), "method": "oe"}
    states = [
        train_model(start(), (x, y), pool, outlier_augment=spec, **options).model.state_dict()["answer.weight"]
        for spec in (None, "wide", {"name": "wide", "share": 0.0, "padding": 0, "flip": 0.0})
    ]
    assert not torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])


def test_widening_needs_raw_pixels(digits, outliers):
    with pytest.raises(ConfigError, match=r"raw pixels; pass normalise=\(mean, std\)"):
        train_model(start(), digits, outliers, outlier_augment="wide", **OPTIONS)
    with pytest.raises(ConfigError, match="did you mean 'wide'"):
        train_model(start(), digits, outliers, outlier_augment="widee", normalise=([0.3], [0.4]), **OPTIONS)
