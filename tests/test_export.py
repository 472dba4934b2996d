"""Exported files say what the detector says, for every score; what cannot be exported or trusted is refused.

Every pair of a method and a score is in test_export_matrix.py, on a net of two layers; here are the ways and the edges.
"""

import io
import json
import pickle
import zipfile

import pytest
import torch

from farout.components import make
from farout.data.arrays import ArraySet
from farout.detector import Detector
from farout.errors import CheckpointError, ConfigError
from farout.export import FORMATS, ExportError, OnnxFile, TorchFile, check_parity, export, open_exported, refuse_code
from farout.export_resize import AnySize
from farout.nets.make import make_net
from farout.nets.net import Net
from farout.preprocess import Preprocess
from farout.scores import MSP, SCORES

ARGUMENTS = {"knn": {"k": 5}}
CLASSES = 3


def images(count: int, seed: int = 0, side: int = 8) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 1, side, side), dtype=torch.uint8, generator=rng)


def detector(name: str, outputs: int = CLASSES, **arguments) -> Detector:
    torch.manual_seed(0)
    spec = {"name": "small-conv", "num_classes": outputs, "in_channels": 1, "width": 4, "mean": [0.5], "std": [0.5]}
    net = make_net(spec)
    net(images(64, 5))  # batch statistics that are not 0 and 1
    score = make("score", SCORES, {"name": name, **ARGUMENTS.get(name, {}), **arguments})
    train = ArraySet("train", images(90), torch.arange(90) % CLASSES)
    return Detector(net.eval(), score, classes=("a", "b", "c"), size=8).fit(train, images(50, 1), tpr=0.8)


def compare(made: Detector, path) -> None:
    """The file against the detector on inputs and batch sizes that the export did not see."""
    opened = open_exported(path)
    for count in (1, 7):
        x = images(count, 9 + count)
        wanted, got = made.judge(x), opened.judge(x)
        assert torch.equal(got.label, wanted.label)
        torch.testing.assert_close(got.score.double(), wanted.score.double(), rtol=1e-4, atol=1e-4)
        assert torch.equal(got.is_ood, wanted.is_ood)
        torch.testing.assert_close(got.p_value.double(), wanted.p_value, rtol=0, atol=0.021)  # a rank apart at most
        torch.testing.assert_close(got.probabilities, wanted.probabilities, rtol=1e-4, atol=1e-5)
    assert opened.card["classes"] == ["a", "b", "c"]


@pytest.mark.parametrize(("outputs", "name"), [(3, "msp"), (4, "outlier-class"), (12, "csi"), (3, "vim")])
def test_torch(outputs, name, tmp_path):
    made = detector(name, outputs)
    compare(made, export(made, tmp_path / "d.pt2", "torch"))


@pytest.mark.parametrize("name", ["mahalanobis", "knn"])
def test_onnx(name, tmp_path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    made = detector(name)
    path = export(made, tmp_path / "d.onnx", "onnx", data=images(5, 4))
    compare(made, path)
    assert [file.name for file in tmp_path.iterdir()] == ["d.onnx"]
    import onnx

    model = onnx.load(path)
    assert [entry.version for entry in model.opset_import if entry.domain == ""] == [18]
    assert b"site-packages" not in path.read_bytes()


def test_ties_sort_in_onnx_as_they_do_here(tmp_path):
    """ASH-B gives tied zeros weight, so the choice among equals must be the same."""
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    made = detector("ash", variant="b", percentile=40.0)
    with torch.no_grad():
        made.net.head.weight.copy_(torch.arange(3 * 16.0).view(3, 16) / 50)
    made.calibrate(images(50, 1))
    black = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    compare(made, export(made, tmp_path / "d.onnx", data=black))
    got = OnnxFile(tmp_path / "d.onnx").judge(black)
    torch.testing.assert_close(got.score, made.judge(black).score, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("to", FORMATS)
def test_resizing_can_be_baked_in(to, tmp_path):
    if to == "onnx":
        pytest.importorskip("onnxscript")
    made = detector("msp")
    path = export(made, tmp_path / f"d{FORMATS[to].suffix}", to, input_size=(20, 31))
    x = torch.randint(256, (3, 1, 20, 31), dtype=torch.uint8)
    opened = open_exported(path)
    torch.testing.assert_close(opened.judge(x).score, made.judge(x).score)
    with pytest.raises(CheckpointError, match=r"takes samples of \(1, 20, 31\), got \(1, 8, 8\)"):
        opened.judge(images(1))


@pytest.mark.parametrize("to", FORMATS)
def test_height_and_width_can_be_left_free(to, tmp_path):
    """Sizes that the export did not see; the graph's own resize is within one grey level of the detector's."""
    if to == "onnx":
        pytest.importorskip("onnxscript")
    made = detector("msp")
    opened = open_exported(export(made, tmp_path / f"d{FORMATS[to].suffix}", to, input_size="any"))
    assert opened.card["input"]["shape"] == [1, None, None]
    level = AnySize(made.prepare)
    for sides in ((8, 8), (33, 20), (5, 6), (2, 300)):
        x = torch.randint(256, (4, 1, *sides), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
        torch.testing.assert_close(opened.judge(x).score, made.judge(level(x)).score, rtol=1e-4, atol=1e-5)
    compare(made, tmp_path / f"d{FORMATS[to].suffix}")
    with pytest.raises(CheckpointError, match=r"takes samples of \(1, 2..16384, 2..16384\), got \(1, 1, 9\)"):
        opened.judge(torch.zeros(1, 1, 1, 9, dtype=torch.uint8))


@pytest.mark.parametrize(("resize", "crop"), [(8, 8), (20, 16), (256, 224)])
def test_the_resize_of_any_size_is_that_of_the_detector_to_one_grey_level(resize, crop):
    wanted = Preprocess(resize, crop, 3)
    rng = torch.Generator().manual_seed(0)
    for sides in ((crop, crop), (resize, resize), (resize, resize + 9), (20, 31), (31, 20), (2, 7), (150, 90)):
        x = torch.randint(256, (2, 1, *sides), dtype=torch.uint8, generator=rng)
        apart = (AnySize(wanted)(x).int() - wanted(x).int()).abs()
        assert apart.shape == (2, 3, crop, crop)
        assert apart.max() <= 1
        assert (apart > 0).float().mean() < 0.1  # ties
    same = torch.randint(256, (2, 3, crop, crop), dtype=torch.uint8, generator=rng)
    assert torch.equal(AnySize(wanted)(same), same)


def test_a_detector_that_resizes_nothing_takes_no_input_size(tmp_path):
    made = Detector(Net(torch.nn.Identity(), torch.nn.Linear(5, 3)), MSP()).fit(None, torch.randn(40, 5))
    with pytest.raises(ExportError, match="resizes nothing, so its export takes no input size"):
        export(made, tmp_path / "d.pt2", "torch", input_size="any", data=torch.randn(4, 5))
    with pytest.raises(ExportError, match=r"is \(height, width\) or 'any', got 'all'"):
        export(made, tmp_path / "d.pt2", "torch", input_size="all")


def test_embeddings_need_an_example(tmp_path):
    made = Detector(Net(torch.nn.Identity(), torch.nn.Linear(5, 3)), MSP()).fit(None, torch.randn(40, 5))
    with pytest.raises(ExportError, match="does not say how large its inputs are; pass data="):
        export(made, tmp_path / "d.pt2", "torch")
    path = export(made, tmp_path / "d.pt2", "torch", data=torch.randn(4, 5))
    x = torch.randn(6, 5)
    torch.testing.assert_close(TorchFile(path).judge(x).score, made.judge(x).score)


def test_a_detector_without_calibration_scores_has_nan_p_values(tmp_path):
    made = detector("msp")
    made.calibration = torch.empty(0, dtype=torch.float64)
    path = export(made, tmp_path / "d.pt2", "torch")
    assert TorchFile(path).judge(images(2)).p_value.isnan().all()


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("odin", {}, "ODIN cannot be exported: it nudges the input along a gradient"),
        ("mahalanobis", {"epsilon": 0.01}, "epsilon > 0 needs a gradient"),
    ],
)
def test_what_cannot_be_exported_says_why(name, arguments, why, tmp_path):
    with pytest.raises(ExportError, match=why):
        export(detector(name, **arguments), tmp_path / "d.pt2", "torch")
    assert not list(tmp_path.iterdir())


def test_odin_without_its_nudge_is_exported(tmp_path):
    made = detector("odin", epsilon=0.0)
    compare(made, export(made, tmp_path / "d.pt2", "torch"))


class Off:
    """An exported file that is wrong in one respect."""

    def __init__(self, made: Detector, **wrong) -> None:
        self.made, self.wrong, self.card = made, wrong, made.card()

    def judge(self, x):
        judged = self.made.judge(x)
        return judged._replace(**{key: change(getattr(judged, key)) for key, change in self.wrong.items()})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"score": lambda s: s + 3e-4}, "score is off by up to 0.0003"),
        ({"score": lambda s: s * float("nan")}, "score is off"),
        ({"label": lambda y: (y + 1) % 3}, "labels differ"),
        ({"is_ood": lambda o: ~o}, "verdicts differ"),
    ],
)
def test_what_differs_is_seen(wrong, message):
    made = detector("msp")
    inputs = [images(20, 3)]
    check_parity(made.judge, Off(made), inputs)
    check_parity(made.judge, Off(made, score=lambda s: s + 3e-5), inputs)
    with pytest.raises(ExportError, match=message):
        check_parity(made.judge, Off(made, **wrong), inputs)


def test_an_export_that_differs_is_refused_and_deleted(tmp_path, monkeypatch):
    made = detector("msp")
    monkeypatch.setattr(TorchFile, "judge", lambda self, x: Off(made, label=lambda y: (y + 1) % 3).judge(x))
    with pytest.raises(ExportError, match="labels differ"):
        export(made, tmp_path / "d.pt2", "torch")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return export(detector("msp"), tmp_path_factory.mktemp("pt2") / "d.pt2", "torch")


def tampered(archive, target, change):
    """A copy of the archive in which `change` maps {entry: bytes} to the same, changed."""
    with zipfile.ZipFile(archive) as old, zipfile.ZipFile(target, "w") as new:
        for name, content in change({name: old.read(name) for name in old.namelist()}).items():
            new.writestr(name, content)
    return target


def entry(files, end):
    return next(name for name in files if name.endswith(end))


class Boom:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def with_pickle(files):
    buffer = io.BytesIO()
    torch.save(Boom(), buffer, pickle_module=pickle)
    return {**files, entry(files, "sample_inputs/model.pt"): buffer.getvalue()}


def with_pickled_weight(files):
    name = entry(files, "weights_config.json")
    config = json.loads(files[name])
    next(iter(config["config"].values()))["use_pickle"] = True
    return {**files, name: json.dumps(config).encode()}


def with_opaque(files):
    name = entry(files, "constants_config.json")
    config = {"config": {"x": {"path_name": "opaque_obj_0", "use_pickle": False}}}
    return {**files, name: json.dumps(config).encode()}


def with_library(files):
    return {**files, "d/data/aotinductor/model/a.so": b"code"}


def in_graph(old: bytes, new: bytes):
    def change(files):
        name = entry(files, "models/model.json")
        assert old in files[name]
        return {**files, name: files[name].replace(old, new, 1)}

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_pickle, "pickled sample inputs"),
        (with_pickled_weight, "is pickled"),
        (with_opaque, "is pickled"),
        (with_library, "aotinductor"),
        (in_graph(b"torch.ops.aten.conv2d.default", b"torch.os.system"), "graph calls 'torch.os.system'"),
        (in_graph(b"Symbol('s", b"__import__('s"), "has a shape"),
        (in_graph(b'"guards_code": []', b'"guards_code": ["1"]'), "guards are Python code"),
        (lambda files: {name: b for name, b in files.items() if not name.endswith("farout.json")}, "not written by"),
        (lambda files: {**files, entry(files, "farout.json"): b"{}"}, "holds no card"),
    ],
)
def test_a_tampered_archive_is_refused_before_torch_sees_it(archive, tmp_path, change, message, monkeypatch):
    monkeypatch.setattr(torch.export, "load", lambda *a, **k: pytest.fail("torch.export.load was reached"))
    with pytest.raises(CheckpointError, match=message):
        TorchFile(tampered(archive, tmp_path / "t.pt2", change))


def test_an_untouched_copy_is_accepted(archive, tmp_path):
    copy = tampered(archive, tmp_path / "t.pt2", lambda files: files)
    assert json.loads(refuse_code(copy))["format"] == 2


def test_damaged_and_foreign_files_are_named(tmp_path):
    for name in ("d.pt2", "d.onnx"):
        (tmp_path / name).write_bytes(b"nothing")
        if name == "d.onnx":
            pytest.importorskip("onnxruntime")
        with pytest.raises(CheckpointError, match=name):
            open_exported(tmp_path / name)
    with pytest.raises(CheckpointError, match=r"must end in .onnx or .pt2"):
        open_exported(tmp_path / "d.bin")
    with pytest.raises(ConfigError, match="unknown export format 'tflite'; known: onnx, torch"):
        export(detector("msp"), tmp_path / "d", "tflite")
    assert set(FORMATS) == {"onnx", "torch"}


def test_without_the_packages_it_says_which_extra(monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install 'farout\[onnx\]'"):
        OnnxFile(tmp_path / "d.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"exporting to ONNX needs onnxscript.*farout\[onnx\]"):
        export(detector("msp"), tmp_path / "d.onnx")
