"""Every reader of files that may come from somewhere: a small valid tree, which of its files to spoil, how to read it.

A reader must give something or raise FaroutError or ValueError; nothing else, and nothing may be written or run.
"""

import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from scipy.io import savemat

from farout import seeds
from farout.config import Config
from farout.data.arrays import read_arrays
from farout.data.cifar import read_cifar10
from farout.data.image_files import decode
from farout.data.image_lists import read_list
from farout.data.source import ImageSet
from farout.data.svhn import read_svhn
from farout.data.tiny_images import read_tiny_images
from farout.data.wordnet import read_wordnet_folders
from farout.detector import Detector
from farout.nets import MLP, load_weights
from farout.nets.make import make_net
from farout.run import _check_format
from farout.scores import KNN, MSP
from farout.training import Checkpoints, RunLog, load_state, read_rows
from farout.training.checkpoint import HEADER, MAGIC


class Target(NamedTuple):
    """`make` writes a valid tree into a folder, `files` are spoilt one at a time, `read` reads the tree."""

    make: Callable[[Path], None]
    files: tuple[str, ...]
    read: Callable[[Path], object]


def everything(images: ImageSet) -> object:
    return images.read(torch.arange(len(images)))


def pixels(*shape: int) -> np.ndarray:
    return torch.randint(256, shape, dtype=torch.uint8, generator=seeds.generator(1)).numpy()


RECIPE = """\
data: {id: cifar10, outliers: tiny-images, test: {near: [cifar100], far: [{name: textures, drop: [3]}]}, mean: [0.5]}
net: {name: wrn, depth: 40, dropout: 0.3}
method: {name: dal, rho: 1e-1}
optim: {lr: 0.1}
train: {epochs: 5, seed: 0x1f, init: null, checkpoint_every: 100}
eval: {scores: [msp, {name: knn, k: 50}], tpr: 0.95}
name: fuzz
"""


def make_recipe(folder: Path) -> None:
    (folder / "recipe.yaml").write_text("extends: base.yaml\n" + RECIPE.replace("cifar10", "svhn"))
    (folder / "base.yaml").write_text(RECIPE)


def read_recipe(folder: Path) -> object:
    recipe = folder / "recipe.yaml"
    recipe.write_bytes(recipe.read_bytes().replace(b"base.yaml", str(folder / "base.yaml").encode()))
    config = Config.load(recipe, ["train.seed=1", "method.rho=2"])
    return config.to_yaml(), config == Config.from_dict(config.to_dict())


def make_rows(folder: Path) -> None:
    rows = [{"step": step, "epoch": 0, "loss": 1 / (step + 1), "name": "é\u2028"} for step in range(4)]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_log(folder: Path) -> object:
    rows = read_rows(folder / "log.jsonl", broken_tail=True)
    RunLog(folder / "log.jsonl").keep_before(2)
    return rows


def make_mat(folder: Path) -> None:
    fields = {"X": pixels(32, 32, 3, 2), "y": np.array([[10], [3]], np.uint8)}
    savemat(folder / "plain.mat", fields)
    savemat(folder / "packed.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": fields["y"]}, do_compression=True)


def read_mat(folder: Path) -> object:
    return [everything(read_svhn(folder / name)) for name in ("plain.mat", "packed.mat")]


def make_cifar(folder: Path) -> None:
    names = {b"label_names": [b"c%d" % number for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(names, protocol=2))
    for split, protocol in (("test_batch", 2), *((f"data_batch_{n}", p) for n, p in enumerate((0, 2, 3, 4, 5), 1))):
        batch = {b"data": pixels(2, 3072), b"labels": [1, 2], b"filenames": [b"a.png", b"b.png"]}
        (folder / split).write_bytes(pickle.dumps(batch, protocol=protocol))


def make_cifar_binary(folder: Path) -> None:
    records = pixels(2, 3073)
    records[:, 0] = (1, 9)
    (folder / "test_batch.bin").write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(f"c{number}" for number in range(10)) + "\n\n")


def make_npy(folder: Path) -> None:
    np.save(folder / "images.npy", pixels(3, 4, 4, 3))
    np.save(folder / "features.npy", pixels(3, 4).astype(np.float16), allow_pickle=False)


def read_npy(folder: Path) -> object:
    return [everything(read_arrays(folder / name)) for name in ("images.npy", "features.npy")]


def make_npz(folder: Path) -> None:
    parts = {"images": pixels(2, 4, 4, 1), "labels": np.array([0, 1]), "classes": np.array(["a", "b"])}
    np.savez(folder / "plain.npz", **parts)
    np.savez_compressed(folder / "packed.npz", **parts)


def read_npz(folder: Path) -> object:
    return [everything(read_arrays(folder / name)) for name in ("plain.npz", "packed.npz")]


PICTURES = ("a.png", "a.jpg", "a.bmp", "a.tiff", "lzw.tiff", "a.webp", "a.ppm", "grey.png", "palette.png")


def make_pictures(folder: Path) -> None:
    picture = Image.fromarray(pixels(9, 7, 3))
    for name in PICTURES[:4] + PICTURES[5:7]:
        picture.save(folder / name)
    picture.save(folder / "lzw.tiff", compression="tiff_lzw")
    picture.convert("LA").save(folder / "grey.png")
    picture.convert("P").save(folder / "palette.png")


def read_pictures(folder: Path) -> object:
    return [decode(folder / name, 8, 4) for name in PICTURES]


def make_list(folder: Path) -> None:
    (folder / "sub").mkdir(exist_ok=True)
    for name in ("one.png", "sub/two words.png"):
        Image.fromarray(pixels(5, 5, 3)).save(folder / name)
    (folder / "list.txt").write_text("one.png 0\nsub/two words.png 1\none.png -1\n")


def make_tiny(folder: Path) -> None:
    (folder / "tiny_images.bin").write_bytes(pixels(3, 3072).tobytes())
    (folder / "80mn_cifar_idxs.txt").write_text("2\n0003\n")


def make_wordnet(folder: Path) -> None:
    (folder / "val" / "images").mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels(5, 5, 3)).save(folder / "val" / "images" / "val_0.JPEG")
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn0001\t0\t0\t4\t4\n")
    (folder / "wnids.txt").write_text("n0001\nn0002\n")
    (folder / "words.txt").write_text("n0001\tgoldfish, Carassius\nn0002\tshark\n")


def small_net() -> object:
    torch.manual_seed(0)
    return make_net({"name": "mlp", "in_features": 4, "hidden": [5], "num_classes": 3})


def make_detectors(folder: Path) -> None:
    x = torch.rand(20, 4, generator=seeds.generator(2))
    for name, score in (("msp", MSP()), ("knn", KNN(k=3))):
        Detector(small_net(), score, classes=["a", "b", "c"]).fit(x, x[:10] + 1).save(folder / name)


def read_detectors(folder: Path) -> object:
    found = []
    for name in ("msp", "knn"):
        detector = Detector.load(folder / name)
        if detector.net.num_features:
            found.append(detector(torch.zeros(2, 4)))
    return found


def make_checkpoint(folder: Path) -> None:
    net = MLP(4, 3, hidden=[5])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    state = {"objective": net.state_dict(), "optimizer": optimizer.state_dict(), "progress": {"step": 3}}
    Checkpoints(folder).save({**state, "selection": torch.arange(3)}, 3)


def sign(path: Path) -> None:
    """Give a spoilt checkpoint the right checksum, as an attacker would: what is behind it must hold by itself."""
    payload = path.read_bytes()[HEADER:]
    path.write_bytes(MAGIC + hashlib.sha256(payload).digest() + payload)


def read_signed(folder: Path) -> object:
    sign(folder / "step-00000003.pt")
    return load_state(folder / "step-00000003.pt")


def make_weights(folder: Path) -> None:
    net = MLP(4, 3, hidden=[5])
    torch.save({"state_dict": {f"module.{name}": value for name, value in net.state_dict().items()}}, folder / "w.pth")
    torch.save(net.state_dict(), folder / "old.pth", _use_new_zipfile_serialization=False)
    save_file(net.state_dict(), folder / "w.safetensors")


def read_weights(folder: Path) -> object:
    for name in ("w.pth", "old.pth", "w.safetensors"):
        load_weights(MLP(4, 3, hidden=[5]), folder / name)
    return True


def make_run(folder: Path) -> None:
    (folder / "run.json").write_text(json.dumps({"format": 1, "farout": "0.1.0", "torch": "2.13.0"}))


TARGETS = {
    "recipe": Target(make_recipe, ("recipe.yaml", "base.yaml"), read_recipe),
    "rows": Target(make_rows, ("log.jsonl",), read_log),
    "mat": Target(make_mat, ("plain.mat", "packed.mat"), read_mat),
    "cifar-pickle": Target(
        make_cifar,
        ("batches.meta", "test_batch", *(f"data_batch_{number}" for number in range(1, 6))),
        lambda folder: [everything(read_cifar10(folder, split)) for split in ("train", "test")],
    ),
    "cifar-binary": Target(
        make_cifar_binary,
        ("test_batch.bin", "batches.meta.txt"),
        lambda folder: everything(read_cifar10(folder, "test")),
    ),
    "npy": Target(make_npy, ("images.npy", "features.npy"), read_npy),
    "npz": Target(make_npz, ("plain.npz", "packed.npz"), read_npz),
    "image": Target(make_pictures, PICTURES, read_pictures),
    "image-list": Target(
        make_list, ("list.txt",), lambda folder: everything(read_list(folder / "list.txt", folder, size=4))
    ),
    "tiny-images": Target(
        make_tiny,
        ("80mn_cifar_idxs.txt", "tiny_images.bin"),
        lambda folder: everything(read_tiny_images(folder / "tiny_images.bin")),
    ),
    "wordnet": Target(
        make_wordnet,
        ("val/val_annotations.txt", "wnids.txt", "words.txt"),
        lambda folder: everything(read_wordnet_folders(folder / "val", "tiny", 4)),
    ),
    "detector": Target(
        make_detectors,
        ("msp/detector.json", "knn/detector.json", "msp/model.safetensors", "knn/model.safetensors"),
        read_detectors,
    ),
    "checkpoint": Target(make_checkpoint, ("step-00000003.pt",), lambda folder: Checkpoints(folder).latest()),
    "signed-checkpoint": Target(make_checkpoint, ("step-00000003.pt",), read_signed),
    "weights": Target(make_weights, ("w.pth", "old.pth", "w.safetensors"), read_weights),
    "run-folder": Target(make_run, ("run.json",), _check_format),
}


def content(target: Target, folder: Path) -> dict[str, bytes]:
    """The valid files of a target, written into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    target.make(folder)
    return {name: (folder / name).read_bytes() for name in target.files}
