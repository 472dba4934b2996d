"""Every method x score pair of the tables: exported and compared, or refused with a reason.

A method changes weights and how many outputs the head has; a graph sees only the latter. So a pair stands for all whose
heads have as many outputs, and is exported here on a net of two layers: as .pt2 all of them, as ONNX one of each score.
That a head with more outputs adds no operator but the cut to the classes is checked, not assumed. The same for trained
networks of all pairs: benchmarks/export_parity.py, whose results are read back here.
"""

import functools
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from farout.components import make
from farout.data.arrays import ArraySet
from farout.detector import Detector
from farout.export import (
    FORMATS,
    ExportedDetector,
    ExportError,
    OnnxFile,
    TorchFile,
    export,
    why_not_exported,
)
from farout.methods import METHODS
from farout.nets.net import Net, Normalise
from farout.scores import SCORES

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results"
CLASSES = ("a", "b", "c")
ARGUMENTS = {"knn": {"k": 5}}
HEADS = {name: len(CLASSES) * way.outputs_per_class + way.outlier_class for name, way in METHODS.items()}
EXPORTED = sorted(
    {(name, HEADS[method]) for method in METHODS for name in SCORES if not why_not_exported(method, name)}
)
KINDS = {name: min(head for other, head in EXPORTED if other == name) for name, _ in EXPORTED}
REFUSED = sorted({name for name in SCORES if all(why_not_exported(method, name) for method in METHODS)})


def images(count: int, seed: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=rng)


def detector(name: str, outputs: int) -> Detector:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU())
    net = Net(body, nn.Linear(12, outputs), Normalise([0.5], [0.5])).eval()
    score = make("score", SCORES, {"name": name, **ARGUMENTS.get(name, {})})
    train = ArraySet("train", images(90, 0), torch.arange(90) % len(CLASSES))
    return Detector(net, score, classes=CLASSES, size=8).fit(train, images(50, 1), tpr=0.8)


def agree(made: Detector, opened: ExportedDetector) -> None:
    x = images(40, 2)
    wanted, got = made.judge(x), opened.judge(x)
    room = 1e-4 * wanted.score.abs().clamp(min=1)
    assert ((got.score.double() - wanted.score.double()).abs() <= room).all()
    assert torch.equal(got.label, wanted.label)
    away = (wanted.score - made.threshold).abs() > room
    assert away.sum() > 30
    assert torch.equal(got.is_ood[away], wanted.is_ood[away])
    assert 0 < wanted.is_ood.sum() < len(x)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A pair's detector and its opened .pt2 file, made once."""
    folder = tmp_path_factory.mktemp("pt2")

    @functools.cache
    def make_one(name: str, outputs: int) -> tuple[Detector, TorchFile]:
        made = detector(name, outputs)
        return made, TorchFile(export(made, folder / f"{name}-{outputs}.pt2", "torch"))

    return make_one


def operators(opened: TorchFile) -> list[str]:
    """What the graph calls, in order, but for the cut to the classes, which is an alias where it cuts nothing off."""
    called = [str(node.target) for node in opened.run.graph.nodes if node.op == "call_function"]
    return [name for name in called if not name.startswith(("aten.slice", "aten.alias"))]


@pytest.mark.parametrize(("name", "outputs"), EXPORTED)
def test_torch(name, outputs, exported):
    made, opened = exported(name, outputs)
    agree(made, opened)
    assert operators(opened) == operators(exported(name, KINDS[name])[1]), "another kind of graph: make it ONNX, too"


@pytest.mark.parametrize("name", KINDS)
def test_onnx(name, tmp_path):
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    made = detector(name, KINDS[name])
    agree(made, OnnxFile(export(made, tmp_path / "d.onnx", "onnx")))


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_method_can_export_is_refused_for_the_reason_given(name, tmp_path):
    with pytest.raises(ExportError) as refused:
        export(detector(name, len(CLASSES)), tmp_path / "d.pt2", "torch")
    assert str(refused.value).endswith(why_not_exported("ce", name))


def test_every_pair_has_its_answer():
    """ODIN needs a gradient; two scores need the head of their own methods; all else is exported."""
    refused = {(m, s): why for m in METHODS for s in SCORES if (why := why_not_exported(m, s))}
    assert REFUSED == ["odin"]
    assert "no backward pass" in refused["dal", "odin"]
    assert (
        refused["dal", "outlier-class"] == "it needs such a head as ntom, atom has, and that of dal has other outputs"
    )
    own = {"csi": ["csi"], "outlier-class": ["ntom", "atom"]}
    for score, methods in own.items():
        assert [method for method in METHODS if (method, score) not in refused] == methods
    assert {score for _, score in refused} == {"odin", *own}


def test_trained_networks_of_every_pair_were_exported_and_agree():
    """The committed results cover the tables as they are now."""
    newest = sorted(RESULTS.glob("*-cpu-export-parity.json"))[-1]
    rows = json.loads(newest.read_text())["pairs"]
    seen = {(row["method"], row["score"], row.get("to")) for row in rows if "not_fitted" not in row}
    wanted = {
        (method, score, to)
        for method in METHODS
        for score in SCORES
        for to in ([None] if why_not_exported(method, score) else FORMATS)
    }
    missing = {(row["method"], row["score"]) for row in rows if "not_fitted" in row}
    assert {entry for entry in wanted if entry[:2] not in missing} == seen
    for row in rows:
        if "to" in row:
            assert row["score_apart_relative"] <= 1e-4
            assert row["labels_differ"] == row["verdicts_differ"] == 0
