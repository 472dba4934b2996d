"""Rows against metrics computed by hand from the same scores, and tables from rows."""

import pytest
import torch
from torch import nn

from farout import metrics
from farout.data.arrays import ArraySet
from farout.evaluation import evaluate_net
from farout.nets.net import Net
from farout.report.table import long_table, markdown, seed_means, spread
from farout.scores import MSP, Energy
from farout.scores.embed import device_of, embed, score_embedded


def toy() -> tuple[Net, ArraySet, dict[str, dict[str, ArraySet]]]:
    torch.manual_seed(0)
    net = Net(nn.Identity(), nn.Linear(4, 3))
    inliers = ArraySet("in", torch.randn(700, 4), torch.randint(3, (700,)), ("a", "b", "c"))
    far = {"far": {"one": ArraySet("one", torch.randn(600, 4) * 2), "two": ArraySet("two", torch.randn(30, 4))}}
    return net, inliers, far


def test_rows_are_the_metrics_of_the_scores():
    net, inliers, outliers = toy()
    rows, kept = evaluate_net(net, {"msp": MSP(), "energy": Energy()}, inliers, outliers)
    assert [(row["score"], row["ood"]) for row in rows] == [
        ("msp", "one"), ("energy", "one"), ("msp", "two"), ("energy", "two"),
    ]  # fmt: skip
    logits = net(inliers.images).logits
    wanted = logits.logsumexp(1).detach()
    torch.testing.assert_close(kept["energy"]["in"], wanted)
    for row in rows:
        scores = kept[row["score"]]
        assert row["auroc"] == metrics.auroc(id_scores=scores["in"], ood_scores=scores[row["ood"]])
        assert row["accuracy"] == pytest.approx((logits.argmax(1) == inliers.labels).float().mean().item())
        assert row["group"] == "far"
        assert row["id_count"] == 700


def test_a_draw_of_the_ood_set_is_seeded():
    net, inliers, outliers = toy()
    counts = [evaluate_net(net, {"msp": MSP()}, inliers, outliers, ood_count=100, seed=s) for s in (0, 0, 1)]
    assert [row["ood_count"] for row in counts[0][0]] == [100, 30]
    assert torch.equal(counts[0][1]["msp"]["one"], counts[1][1]["msp"]["one"])
    assert not torch.equal(counts[0][1]["msp"]["one"], counts[2][1]["msp"]["one"])


def test_embedding_in_batches_is_embedding_at_once_in_evaluation_mode():
    torch.manual_seed(0)
    net = Net(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout()), nn.Linear(6, 3))
    samples = ArraySet("x", torch.randn(23, 4))
    net.train()
    cut = embed(net, samples, batch_size=5)
    assert net.training
    net.eval()
    torch.testing.assert_close(cut.outputs.logits, net(samples.images).logits.detach())
    torch.testing.assert_close(score_embedded(net, MSP(), cut, batch_size=4), MSP()(net(samples.images)).detach())
    assert device_of(net).type == "cpu"


def row(name: str, seed: int, fpr: float) -> dict[str, object]:
    fixed = {"method": "oe", "score": "msp", "fpr95_ood": 0.5, "auroc": 0.9, "accuracy": 1.0}
    return {**fixed, "ood": name, "seed": seed, "fpr95_id": fpr}


ROWS = [row("demo/a", 0, 0.1), row("demo/a", 1, 0.3), row("b", 0, 0.3), row("b", 1, 0.1)]


def test_the_average_over_sets_is_taken_within_each_seed():
    """Seeds that trade places between sets: every set varies, their average does not."""
    header, lines = long_table(ROWS)
    assert header == ["set", "method", "score", "FPR95", "FPR95 (OOD+)", "AUROC", "ID accuracy"]
    assert lines[0] == ["a", "oe", "msp", "20.00 ± 14.14", "50.00 ± 0.00", "90.00 ± 0.00", "100.00 ± 0.00"]
    assert lines[2][:4] == ["average", "oe", "msp", "20.00 ± 0.00"]
    assert seed_means(ROWS, "fpr95_id") == pytest.approx([0.2, 0.2])


def test_markdown_and_spread():
    assert spread([0.12345]) == "12.35"
    text = markdown(["set", "FPR95"], [["a", "1.00"]])
    assert text == "| set | FPR95 |\n| --- | ---: |\n| a | 1.00 |\n"
