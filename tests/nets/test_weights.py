"""nets/weights.py: every file loads as a whole, or is refused with a reason and without effect."""

import os
import pickle
from collections import OrderedDict

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from farout.errors import CheckpointError, ConfigError
from farout.nets import Net, Normalise, SmallConvNet, WideResNet, load_weights, split

IMAGES = torch.randn(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def model(seed, num_classes=4, width=4):
    torch.manual_seed(seed)
    return SmallConvNet(num_classes=num_classes, width=width).eval()


def logits(net):
    out = net(IMAGES)
    return out if isinstance(out, torch.Tensor) else out.logits


def save(state, path):
    (save_file if path.suffix == ".safetensors" else torch.save)(state, path)
    return path


def snapshot(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


def unchanged(net, before):
    return all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.ckpt", "w.safetensors"])
def test_round_trip_of_a_plain_model(tmp_path, name):
    source, target = model(0), model(1)
    load_weights(target, save(source.state_dict(), tmp_path / name))
    assert torch.equal(logits(target), logits(source))
    assert all(torch.equal(v, target.state_dict()[k]) for k, v in source.state_dict().items())


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_a_plain_file_loads_into_a_split_model(tmp_path, name):
    source, target = model(0), split(model(1), normalise=Normalise((0.5,), (0.25,)))
    load_weights(target, save(source.state_dict(), tmp_path / name))
    assert torch.equal(logits(target), source((IMAGES - 0.5) / 0.25))
    assert target.normalise.mean.item() == 0.5


def test_a_split_file_loads_into_a_split_model_with_its_normaliser(tmp_path):
    source, target = (split(model(s), normalise=Normalise((m,), (1.0,))) for s, m in ((0, 0.2), (1, 0.7)))
    load_weights(target, save(source.state_dict(), tmp_path / "w.pt"))
    assert torch.equal(logits(target), logits(source))
    assert target.normalise.mean.item() == pytest.approx(0.2)


def test_a_nested_head_and_a_bare_one_keep_their_names(tmp_path):
    def nested(seed):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Sequential(nn.Dropout(), nn.Linear(64, 3))).eval()

    load_weights(net := split(nested(1)), save(nested(0).state_dict(), tmp_path / "a.pt"))
    assert torch.equal(logits(net), logits(nested(0)))
    source = nn.Linear(5, 2)
    load_weights(bare := split(nn.Linear(5, 2)), save(source.state_dict(), tmp_path / "b.pt"))
    assert torch.equal(bare.head.weight, source.weight)


def test_a_net_made_by_hand_takes_fc_for_its_head(tmp_path):
    body, head = nn.Sequential(OrderedDict(flat=nn.Flatten(), first=nn.Linear(64, 5))), nn.Linear(5, 3)
    state = {"first.weight": torch.ones(5, 64), "first.bias": torch.ones(5)}
    state |= {"fc.weight": torch.ones(3, 5), "fc.bias": torch.zeros(3)}
    load_weights(Net(body, head), save(state, tmp_path / "w.pt"))
    assert (head.weight == 1).all()
    assert (body.first.weight == 1).all()


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "model."])
@pytest.mark.parametrize("wrap", [lambda net: net, split], ids=["plain", "split"])
def test_prefixes_of_wrappers_fall_away(tmp_path, prefix, wrap):
    source, target = model(0), wrap(model(1))
    load_weights(target, save({prefix + k: v for k, v in source.state_dict().items()}, tmp_path / "w.pt"))
    assert torch.equal(logits(target), logits(source))


@pytest.mark.parametrize("wrap", [lambda net: net, split], ids=["plain", "split"])
def test_a_prefix_that_is_the_models_own_stays(tmp_path, wrap):
    class Wrapper(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.model = model(seed)

        def forward(self, x):
            return self.model(x)

    source, target = Wrapper(0), wrap(Wrapper(1))
    load_weights(target, save(source.state_dict(), tmp_path / "w.pt"))
    assert torch.equal(logits(target), logits(source))


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict"])
def test_nested_training_checkpoints_are_unwrapped(tmp_path, key):
    source, target = model(0), model(1)
    path = save({"epoch": 9, "optimizer": {"lr": 0.1}, key: source.state_dict()}, tmp_path / "w.ckpt")
    load_weights(target, path)
    assert torch.equal(logits(target), logits(source))


def test_old_files_without_batch_counts_load(tmp_path):
    source, target = (WideResNet(depth=10, width=1).eval() for _ in range(2))
    state = {k: v for k, v in source.state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save(state, tmp_path / "cifar10_wrn_epoch_99.pt", _use_new_zipfile_serialization=False)
    load_weights(target, tmp_path / "cifar10_wrn_epoch_99.pt")
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(target(x), source(x))


def test_half_precision_files_load_into_a_float_model(tmp_path):
    source, target = model(0), model(1)
    load_weights(target, save({k: v.half() for k, v in source.state_dict().items()}, tmp_path / "w.pt"))
    assert target.fc.weight.dtype == torch.float32
    assert torch.allclose(target.fc.weight, source.fc.weight, atol=1e-3)


@pytest.mark.parametrize("wrap", [lambda net: net, split], ids=["plain", "split"])
def test_a_head_of_other_classes_is_refused_unless_skipped(tmp_path, wrap):
    source, target = model(0, num_classes=9), wrap(model(1))
    path = save(source.state_dict(), tmp_path / "w.pt")
    before = snapshot(target)
    with pytest.raises(
        CheckpointError, match=r"tells 9 classes apart, the model's 4.*num_classes=9.*head=False"
    ) as error:
        load_weights(target, path)
    assert "weight (9, 16) in the file, (4, 16) in the model" in str(error.value)
    assert unchanged(target, before)
    load_weights(target, path, head=False)
    after = target.state_dict()
    prefix = "body." if isinstance(target, Net) else ""
    head = "head." if isinstance(target, Net) else "fc."
    assert torch.equal(after[f"{prefix}conv2.weight"], source.conv2.weight)
    assert torch.equal(after[f"{head}weight"], before[f"{head}weight"])


def test_a_file_without_a_head_says_so(tmp_path):
    source, target = model(0), model(1)
    path = save({k: v for k, v in source.state_dict().items() if "fc" not in k}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"2 missing: fc.weight, fc.bias; the file has no such head; head=False"):
        load_weights(target, path)
    load_weights(target, path, head=False)
    assert torch.equal(target.conv1.weight, source.conv1.weight)


def test_skipping_a_head_that_cannot_be_found_is_an_error(tmp_path):
    net = nn.Sequential(nn.Linear(2, 2), nn.Softmax(1))
    path = save(net.state_dict(), tmp_path / "w.pt")
    load_weights(net, path)
    with pytest.raises(ConfigError, match="Softmax"):
        load_weights(net, path, head=False)


def test_misfits_are_listed_five_at_a_time_with_both_shapes(tmp_path):
    state = model(0, width=8).state_dict() | {f"extra{i}": torch.zeros(1) for i in range(7)}
    del state["bn2.weight"]
    target = model(1)
    before = snapshot(target)
    with pytest.raises(CheckpointError) as error:
        load_weights(target, save(state, tmp_path / "w.pt"))
    text = str(error.value)
    assert str(tmp_path / "w.pt") in text
    assert "does not fit this SmallConvNet: 1 missing: bn2.weight; 7 unexpected: extra0," in text
    assert "extra4 and 2 more" in text
    assert "extra5" not in text
    assert "conv1.weight (8, 1, 3, 3) in the file, (4, 1, 3, 3) in the model" in text
    assert "classes apart" not in text  # both heads tell four
    assert unchanged(target, before)


class Payload:
    """A pickle of this, loaded without care, makes a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    "write",
    [
        torch.save,
        lambda value, path: torch.save(value, path, _use_new_zipfile_serialization=False),
        lambda value, path: path.write_bytes(pickle.dumps(value, protocol=2)),
        lambda value, path: path.write_bytes(pickle.dumps(value)),
    ],
    ids=["zip", "legacy", "protocol-2", "newest-protocol"],
)
def test_code_in_a_pickle_is_refused_and_not_run(tmp_path, write):
    trap, path = tmp_path / "trap", tmp_path / "w.pt"
    write({"state_dict": {"fc.weight": Payload(trap)}}, path)
    with pytest.raises(CheckpointError, match=r"w\.pt cannot be read as weights: it") as error:
        load_weights(model(0), path)
    assert not trap.exists()
    assert "weights_only" not in str(error.value)  # no advice to load it unsafely
    pickle.loads(pickle.dumps(Payload(trap)))
    assert trap.exists()  # the payload was live


def test_the_object_that_is_refused_is_named(tmp_path):
    torch.save({"args": Payload("here")}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"it holds \w+\.mkdir, and nothing but tensors is ever loaded"):
        load_weights(model(0), tmp_path / "w.pt")


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("keep", [0, 1, 100, 0.5, 0.99])
def test_a_truncated_file_is_named(tmp_path, name, keep):
    path = save(model(0).state_dict(), tmp_path / name)
    whole = path.read_bytes()
    path.write_bytes(whole[: keep if isinstance(keep, int) else int(keep * len(whole))])
    target = model(1)
    before = snapshot(target)
    with pytest.raises(CheckpointError, match=rf"{name} cannot be read as weights"):
        load_weights(target, path)
    assert unchanged(target, before)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds no state dict but a list"),
        (torch.zeros(2), "holds no state dict but a Tensor"),
        ({}, "holds no state dict but an empty dict"),
        ({"fc.weight": torch.zeros(1), "epoch": 3}, "its entry 'epoch' is a int, not a tensor"),
        ({7: torch.zeros(1)}, "its entry 7 is a Tensor"),
    ],
)
def test_other_content_is_described(tmp_path, content, message):
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=message):
        load_weights(model(0), tmp_path / "w.pt")


def test_text_folders_and_nothing_are_no_weights(tmp_path):
    (tmp_path / "w.pt").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(CheckpointError, match="cannot be read as weights"):
        load_weights(model(0), tmp_path / "w.pt")
    for path in (tmp_path, tmp_path / "none.pt", str(tmp_path / "none.safetensors")):
        with pytest.raises(CheckpointError, match="is not a file"):
            load_weights(model(0), path)
