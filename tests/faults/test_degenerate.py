"""Inputs at the edge: every method and score gives finite numbers or an error that says what to do."""

import math

import pytest
import torch

from farout import build
from farout.components import make
from farout.config import Config
from farout.data.arrays import ArraySet
from farout.data.augment import AUGMENTS
from farout.data.loaders import Resident
from farout.data.pairs import Pairs
from farout.detector import Detector
from farout.errors import ConfigError, DataError, FaroutError
from farout.methods import METHODS
from farout.nets.make import make_net
from farout.scores import SCORES
from farout.training import Descent, Objective
from farout.training.blame import culprit, numbers
from farout.training.walk import Plan, ahead, take
from farout.worst_case import RULES, SEARCHES

# What makes a method show all of itself at once.
ARGUMENTS = {
    "dal": {"warmup": 0, "rho": 0.001},
    "atom": {"pool": 40, "keep": 20, "attack_steps": 1},
    "ntom": {"pool": 40, "keep": 20},
    "poem": {"pool": 40, "keep": 20},
    "doe": {"warmup": 0},
    "vos": {"start_epoch": 0, "queue": 2, "samples": 20},
}


def steps(name: str, x, y, x_out, batch: int, classes: int = 3, spoil=lambda net: None) -> list[dict[str, float]]:
    """Two epochs of a method on given samples: the terms of every step; the weights are checked after each."""
    torch.manual_seed(0)
    kind = METHODS[name]
    outputs = classes * kind.outputs_per_class + kind.outlier_class
    net = make_net({"name": "small-conv", "num_classes": outputs, "width": 4, "mean": [0.5], "std": [0.5]})
    spoil(net)
    method = make("method", METHODS, {"name": name, **ARGUMENTS.get(name, {})})
    method.prepare(net)
    objective = Objective(net, method)
    descent = Descent(objective, torch.optim.SGD(objective.parameters(), lr=0.01))
    inliers = Resident(ArraySet("in", x, y))
    outliers = Resident(ArraySet("out", x_out)) if kind.needs_outliers else None
    pairs = Pairs(inliers, outliers, AUGMENTS["none"](), batch_size=batch, outlier_batch_size=batch)
    plan, rows = Plan(epochs=2), []
    for place in ahead(descent, pairs, plan, 0, None):
        rows.append(numbers(take(descent, place, 0.01, 0)))
        assert culprit(rows[-1], objective) is None, f"{name}: {culprit(rows[-1], objective)}"
    return rows


def noise(count: int) -> torch.Tensor:
    return torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(count))


def zero_body(net) -> None:
    for parameter in net.body.parameters():
        torch.nn.init.zeros_(parameter)


def zero_head(net) -> None:
    for parameter in net.head.parameters():
        torch.nn.init.zeros_(parameter)


Y = torch.arange(8) % 3
CASES = {
    "all-zero features": ((noise(8), Y, noise(8), 4), {"spoil": zero_body}),
    "a head of zeros, whose gradient by the features is 0": ((noise(8), Y, noise(8), 4), {"spoil": zero_head}),
    "images that are all the same": (
        (torch.zeros(8, 1, 8, 8, dtype=torch.uint8), Y, noise(1).repeat(8, 1, 1, 1), 4),
        {},
    ),
    "one class": ((noise(8), torch.zeros(8, dtype=torch.int64), noise(8), 4), {"classes": 1}),
    "one sample": ((noise(1), torch.zeros(1, dtype=torch.int64), noise(1), 1), {}),
    "fewer outliers than a batch": ((noise(8), Y, noise(2), 4), {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_stays_finite(name, case):
    arguments, options = CASES[case]
    rows = steps(name, *arguments, **options)
    assert rows
    assert all(math.isfinite(value) for row in rows for value in row.values())


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("search", ["autograd", "closed-form"])
def test_a_search_without_a_gradient_stays_where_it_is_or_moves_by_its_cost(search, rule):
    """0/0: a unit step along a gradient that is zero."""
    head = torch.nn.Linear(5, 3)
    torch.nn.init.zeros_(head.weight)
    z = torch.zeros(4, 5)
    chosen = SEARCHES[search]
    start = torch.zeros_like(z)
    worst = chosen(head, z, start, gamma=torch.tensor(0.0), steps=3, step_size=0.5, rule=RULES[rule])
    assert worst.p.isfinite().all()
    assert worst.cost.isfinite().all()


def tiny_net(outputs: int):
    torch.manual_seed(0)
    return make_net({"name": "small-conv", "num_classes": outputs, "width": 4, "mean": [0.5], "std": [0.5]})


@pytest.mark.parametrize("case", ["all-zero features", "one class", "one sample", "one sample a class"])
@pytest.mark.parametrize("name", sorted(SCORES))
def test_every_score_is_finite_or_says_why_not(name, case):
    net = tiny_net(8)
    if case == "all-zero features":
        zero_body(net)
    labels = {"one class": torch.zeros(40, dtype=torch.int64), "one sample": torch.zeros(1, dtype=torch.int64)}
    y = labels.get(case, torch.arange(8) if case == "one sample a class" else torch.arange(40) % 8)
    train = ArraySet("train", noise(len(y)), y)
    score = make("score", SCORES, {"name": name, **({"k": 1} if name == "knn" else {})})
    try:
        detector = Detector(net, score, size=8).fit(train if score.needs_fit else None, noise(30))
        verdict = detector(noise(6))
    except (FaroutError, ValueError) as error:
        assert len(str(error)) > 20  # noqa: PT017  # a refusal is as good as a number
        return
    assert verdict.score.isfinite().all()


def test_k_larger_than_the_bank():
    knn = make("score", SCORES, {"name": "knn", "k": 50})
    with pytest.raises(DataError, match="KNN with k=50 needs as many training samples, got 10; set a smaller k"):
        Detector(tiny_net(8), knn, size=8).fit(ArraySet("train", noise(10), torch.arange(10) % 8), noise(30))


def test_no_outliers():
    with pytest.raises(ConfigError, match="trains with auxiliary outliers; set data.outliers"):
        build.job(Config.load("demo/dal", ["data.outliers=null"]))
    few = Resident(ArraySet("in", noise(4), torch.zeros(4, dtype=torch.int64)))
    none = Resident.__new__(Resident)
    none.set = ArraySet("nothing", noise(4)[:0])
    with pytest.raises(DataError, match="the auxiliary set nothing is empty"):
        Pairs(few, none, AUGMENTS["none"](), batch_size=2)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("data.batch_size=0", "data.batch_size=0; take 1 or more"),
        ("data.outlier_batch_size=-3", "data.outlier_batch_size=-3; take 1 or more"),
        ("train.log_every=0", "train.log_every, checkpoint_every and validate_every take 1 or more"),
        ("train.checkpoint_every=-1", "train.log_every, checkpoint_every and validate_every take 1 or more"),
    ],
)
def test_counts_below_one(override, says):
    with pytest.raises(ConfigError, match=says):
        build.job(Config.load("demo/dal", [override, "train.device=cpu"]))
