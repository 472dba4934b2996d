"""Tuning: the searches against brute force, the study against kill -9, and the test sets against curiosity."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

optuna = pytest.importorskip("optuna")

from farout import build, tune  # noqa: E402
from farout.config import Config, parse_override  # noqa: E402
from farout.data import named  # noqa: E402
from farout.data.arrays import ArraySet  # noqa: E402
from farout.data.synthetic import SYNTHETIC  # noqa: E402
from farout.errors import ConfigError, MissingExtraError, TrainingError  # noqa: E402
from farout.methods import OE  # noqa: E402
from farout.spaces import Choices, Range, load_space, parse_space, plain_space, space_names  # noqa: E402
from farout.spaces.plans import coordinate, grid, identity  # noqa: E402
from farout.spaces.samplers import CoordinateSampler, GridSampler  # noqa: E402
from farout.training import Interrupted  # noqa: E402
from farout.training.lock import RunLock  # noqa: E402
from farout.tuning.study import open_study, reclaim  # noqa: E402
from farout.tuning.terms import Terms, at, start_point  # noqa: E402
from farout.tuning.trial import measure, stops  # noqa: E402
from farout.validation import validate  # noqa: E402

TINY = ["net.width=4", "data.batch_size=100", "data.outlier_batch_size=50", "train.epochs=1", "train.device=cpu"]
SMALL = parse_space({"method.alpha": [0.5, 2.0], "optim.lr": [0.01, 0.1, 0.3]})

optuna.logging.set_verbosity(optuna.logging.WARNING)


# The search spaces


def test_the_papers_space_is_the_papers():
    space = load_space("paper")
    assert {key: dimension.values for key, dimension in space.items()} == {
        "method.gamma_max": (0.1, 0.5, 1, 5, 10, 50),
        "method.beta": (1e-3, 5e-3, 1e-2, 5e-2, 1e-1, 5e-1, 1, 5),
        "method.rho": (1e-2, 1e-1, 1, 10, 100),
        "method.ps": (1e-3, 1e-2, 1e-1, 1, 10, 100),
        "method.alpha": (0.1, 0.5, 1.0, 1.5, 2.0),
    }


@pytest.mark.parametrize("name", space_names())
def test_every_space_fits_a_recipe(name):
    config = Config.load({"dal-deep": "cifar10-short/dal-deep", "oe": "cifar10/oe"}.get(name, "cifar10/dal-reference"))
    for key, dimension in load_space(name).items():
        for value in dimension.values if isinstance(dimension, Choices) else (dimension.low, dimension.high):
            changed = at(config, {key: value})
            build.method(changed)
            section, _, argument = key.partition(".")
            assert getattr(changed, section)[argument] == value


def test_spaces_from_files_and_back(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "optim.lr: {low: 1e-3, high: 0.1, log: true}\nmethod.num_search: {low: 1, high: 20}\nmethod.rho: [1e-2, 1]\n"
    )
    space = load_space(path)
    assert space == {
        "optim.lr": Range(1e-3, 0.1, True),
        "method.num_search": Range(1, 20),
        "method.rho": Choices((1e-2, 1)),
    }
    assert space["method.num_search"].whole
    assert not space["optim.lr"].whole
    assert parse_space(json.loads(json.dumps(plain_space(space)))) == space


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("method.rho: 5", "must be a list of candidates"),
        ("method.rho: []", "must be a list of candidates"),
        ("method.rho: [1, 1]", "twice"),
        ("method.rho: {low: 2, high: 1}", "low < high"),
        ("method.rho: {low: 0, high: 1, log: true}", "low > 0"),
        ("[1, 2]", "must map keys"),
        ("a: [", "not valid YAML"),
    ],
)
def test_wrong_spaces_are_named(tmp_path, text, message):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_space(tmp_path / "mine.yaml")
    with pytest.raises(ConfigError, match="did you mean 'paper'"):
        load_space("papre")


# The paper's coordinate search

CANDIDATES = {"a": (0, 1, 2, 3), "b": (0, 1, 2), "c": (0, 1, 2, 3, 4)}


def run_plan(values, seed=0, rounds=50):
    """Follow the plan with the objective `values`; the points tried, in order."""
    start, done, tried = {"a": 0, "b": 0, "c": 0}, {}, []
    while (point := coordinate(CANDIDATES, start, done, seed=seed, rounds=rounds)) is not None:
        assert identity(point) not in done, "a point is tried twice"
        done[identity(point)] = values(point)
        tried.append(point)
    return tried


def by_hand(values, picks):
    """The paper's three steps, written out: pick one, try its candidates with the others at their best, repeat."""
    best = {"a": 0, "b": 0, "c": 0}
    for key in picks:
        for value in CANDIDATES[key]:
            if values({**best, key: value}) < values(best):
                best = {**best, key: value}
    return best


def test_on_a_separable_objective_it_finds_what_brute_force_finds():
    rng = random.Random(1)
    table = {key: [rng.random() for _ in values] for key, values in CANDIDATES.items()}

    def objective(point):
        return sum(table[key][value] for key, value in point.items())

    best = min(itertools.product(*CANDIDATES.values()), key=lambda v: objective(dict(zip(CANDIDATES, v, strict=True))))
    tried = run_plan(objective)
    assert min(tried, key=objective) == dict(zip(CANDIDATES, best, strict=True))
    assert len(tried) <= 1 + 2 * sum(len(values) - 1 for values in CANDIDATES.values())  # of 60 points


@pytest.mark.parametrize("seed", range(5))
def test_on_any_objective_it_takes_the_papers_path(seed):
    from farout import seeds

    rng = random.Random(seed)
    points = itertools.product(*CANDIDATES.values())
    table = {identity(dict(zip(CANDIDATES, values, strict=True))): rng.random() for values in points}
    picks = [list(CANDIDATES)[seeds.mix(seed, number) % 3] for number in range(6)]
    assert len(set(picks)) > 1
    tried = run_plan(lambda point: table[identity(point)], seed, rounds=6)
    assert min(tried, key=lambda point: table[identity(point)]) == by_hand(lambda p: table[identity(p)], picks)
    assert run_plan(lambda point: table[identity(point)], seed, rounds=6) == tried


def test_what_is_pending_is_not_proposed_and_ties_keep_the_old_point():
    start = {"a": 0, "b": 0, "c": 0}
    first = coordinate(CANDIDATES, start, {})
    second = coordinate(CANDIDATES, start, {}, pending={identity(first)})
    assert first == start
    assert second != first
    assert len(run_plan(lambda point: 0.0)) == 1 + 3 + 2 + 4  # with nothing better, only the lines through the start


def test_the_grid_goes_through_every_point_once():
    done = {}
    while (point := grid(CANDIDATES, done, seed=3)) is not None:
        done[identity(point)] = 0.0
    assert len(done) == 60


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_samplers_serve_optunas_own_loop(direction):
    space = {key: Choices(values) for key, values in CANDIDATES.items()}
    sign = 1 if direction == "minimize" else -1

    def objective(trial):
        point = {key: trial.suggest_categorical(key, values) for key, values in CANDIDATES.items()}
        if point == {"a": 3, "b": 0, "c": 0}:
            raise optuna.TrialPruned
        return sign * ((point["a"] - 2) ** 2 + (point["b"] - 1) ** 2 + (point["c"] - 3) ** 2)

    study = optuna.create_study(sampler=CoordinateSampler(space, {"a": 0, "b": 0, "c": 0}), direction=direction)
    study.optimize(objective, n_trials=100)
    assert study.best_params == {"a": 2, "b": 1, "c": 3}
    assert len(study.trials) < 30  # it ends by itself
    study = optuna.create_study(sampler=GridSampler(space), direction=direction)
    study.optimize(objective, n_trials=100)
    assert len(study.trials) == 60
    assert study.best_params == {"a": 2, "b": 1, "c": 3}


def test_the_start_is_the_candidate_nearest_to_the_recipe():
    config = Config.load("demo/dal")  # ps 0.2 by the recipe; rho 10, beta 0.01 by the method's defaults; lr 0.02
    space = parse_space(
        {**plain_space(load_space("paper")), "optim.lr": [1e-3, 1e-2, 1e-1], "method.rule": ["paper", "proximal"]}
    )
    assert start_point(config, space) == {
        "method.gamma_max": 10,
        "method.beta": 0.01,
        "method.rho": 10,
        "method.ps": 0.1,
        "method.alpha": 0.5,
        "optim.lr": 0.01,
        "method.rule": "paper",
    }


# The study


def run(folder, **options):
    options = {"space": SMALL, "trials": 3, "folder": folder, **options}
    return tune.tune(options.pop("recipe", "demo/oe"), [*TINY, *options.pop("overrides", [])], **options)


def test_a_study_its_rows_and_its_winner(tmp_path):
    told = []
    done = run(tmp_path / "study", tell=told.append)
    rows = [json.loads(line) for line in (tmp_path / "study/trials.jsonl").read_text().splitlines()]
    assert rows == done.rows
    assert [row["state"] for row in rows] == ["complete"] * 3
    assert done.best["fpr95_id"] == min(row["fpr95_id"] for row in rows)
    assert len(told) == 3
    assert told[0].startswith("trial 0: FPR95 ")
    assert len({(row["method.alpha"], row["optim.lr"]) for row in rows}) == 3
    chosen = Config.load(tmp_path / "study/best.yaml")
    assert chosen == replace(Config.load("demo/oe", [*TINY, *done.overrides]), name=chosen.name)
    assert chosen.data.outlier_held_out == 0
    assert not list((tmp_path / "study").glob("trials/*/checkpoints"))
    again = run(tmp_path / "study")  # nothing is left to do
    assert again.rows == done.rows


def test_tuning_reads_no_test_set(tmp_path, monkeypatch):
    opened = []

    def refuse(*arguments, **named_arguments):
        raise AssertionError("a test set was opened")

    def watch(name, *, split="train", **others):
        opened.append((name, split))
        assert split == "train", f"the split {split!r} of {name} was opened"
        return real(name, split=split, **others)

    real = named.open_named
    monkeypatch.setattr(build, "test_sets", refuse)
    monkeypatch.setattr(build, "open_named", watch)
    run(tmp_path, trials=2)
    assert {name for name, _ in opened} == {"demo/digits", "demo/outliers"}
    with pytest.raises(AssertionError, match="test set was opened"):  # and the trap works
        run(tmp_path, trials=2, test=True)


def test_validation_data_are_not_trained_on():
    config = Config.load("demo/oe", ["data.outlier_held_out=0.25"])
    data = config.data
    trained, held_out = build.outlier_set(data, ()), build.held_out_outliers(data, ())
    assert len(trained) + len(held_out) == 2080
    assert len(held_out) == 520
    assert not set(trained.indices.tolist()) & set(held_out.indices.tolist())
    fewer = build.outlier_set(replace(data, outlier_count=100), ())
    assert len(fewer) == 100
    whole = build.outlier_set(replace(data, outlier_held_out=0.0), ())
    assert len(whole) == 2080
    with pytest.raises(ConfigError, match="outlier_held_out"):
        build.held_out_outliers(replace(data, outlier_held_out=0.0), ())
    with pytest.raises(ConfigError, match="must lie in"):
        build.outlier_set(replace(data, outlier_held_out=1.0), ())


def test_a_protocol_brings_the_data(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "id: demo/digits\noutliers: demo/outliers\nheld_out: 0.3\ntest: {far: [noise]}\n"
    )
    overrides = ["train.epochs=1", "data.size=8", "net={name: small-conv, width: 4, in_channels: 1}"]
    done = tune.tune(
        "cifar10/oe",
        [*overrides, "data.mean=[0.5]", "data.std=[0.5]", "optim.lr=0.01"],
        space={"method.alpha": Choices((0.5,))},
        trials=1,
        sampler="grid",
        protocol=tmp_path / "mine.yaml",
        folder=tmp_path / "study",
    )
    chosen = Config.load(done.folder / "best.yaml").data
    assert (chosen.id, chosen.outliers, chosen.held_out, chosen.size) == ("demo/digits", "demo/outliers", 0.3, 8)


def test_whole_classes_can_be_held_out():
    labels = torch.arange(200) % 20
    pool = ArraySet("kinds", torch.zeros(200, 1, 8, 8, dtype=torch.uint8), labels)
    data = Config.load("demo/oe", ["data.outlier_held_out=0.25", "data.outlier_held_out_by=classes"]).data
    drawn = build._by_class(pool, data)
    assert len(labels[drawn].unique()) == 5
    assert not set(labels[drawn].tolist()) & set(labels[~drawn].tolist())
    with pytest.raises(ConfigError, match="no labels to hold out by classes"):
        build.outlier_set(data, ())
    with pytest.raises(ConfigError, match="must be images or classes, got 'days'"):
        build.outlier_set(replace(data, outlier_held_out_by="days"), ())


def test_the_objective_is_fpr95_of_the_held_out_data(tiny_run):
    from farout.metrics import fpr_at_tpr

    config = replace(tiny_run.config, data=replace(tiny_run.config.data, outlier_held_out=0.1))
    row = validate(config, tiny_run.detector.net)
    splits = build.id_splits(config.data)
    expected = fpr_at_tpr(
        id_scores=tiny_run.detector.scores(splits.held_out),
        ood_scores=tiny_run.detector.scores(build.held_out_outliers(config.data, splits.train.classes)),
    )
    assert row["fpr95_id"] == pytest.approx(expected)
    assert (row["id_count"], row["ood_count"]) == (len(splits.held_out), 208)
    assert row["score"] == "msp"


def test_the_winner_is_tested_once(tmp_path, monkeypatch):
    done = run(tmp_path, trials=2, test=True)
    assert {row["ood"] for row in done.test_rows} == {
        "demo/unseen-digits",
        "demo/flower",
        "demo/noise",
        "demo/gratings",
    }
    assert done.winner.config.data.outlier_held_out == 0
    assert done.winner.folder == tmp_path / "winner"
    monkeypatch.setattr(tune, "evaluate", lambda run: pytest.fail("tested twice"))
    assert run(tmp_path, trials=2, test=True).test_rows == done.test_rows
    recipe = tmp_path / "winner/config.yaml"
    recipe.write_text(recipe.read_text().replace("seed: 0", "seed: 1"))
    with pytest.raises(ConfigError, match="holds the test of another winner"):
        run(tmp_path, trials=2, test=True)


def count_trainings(monkeypatch, act=lambda count: None):
    from farout.tuning import trial as trials

    calls = []
    real = trials.epochs

    def epochs(*arguments):
        calls.append(1)
        act(len(calls))
        return real(*arguments)

    monkeypatch.setattr(trials, "epochs", epochs)
    return calls


@pytest.mark.parametrize("sampler", ["grid", "random", "tpe"])
def test_other_samplers_and_no_point_is_trained_twice(tmp_path, monkeypatch, sampler):
    calls = count_trainings(monkeypatch)
    space = parse_space({"optim.lr": [0.01, 0.1]})
    done = run(tmp_path, space=space, trials=4, sampler=sampler)
    assert {row["optim.lr"] for row in done.rows} <= {0.01, 0.1}
    assert len(done.rows) == (2 if sampler == "grid" else 4)
    assert len(calls) == len({row["optim.lr"] for row in done.rows})
    copies = [row for row in done.rows if "same_as" in row]
    assert len(copies) == len(done.rows) - len(calls)
    for row in copies:
        assert row["fpr95_id"] == done.rows[row["same_as"]]["fpr95_id"]


def test_ranges_are_for_random_and_tpe(tmp_path):
    space = parse_space({"optim.lr": {"low": 0.01, "high": 0.1, "log": True}, "train.epochs": {"low": 1, "high": 2}})
    done = run(tmp_path, space=space, trials=2, sampler="random")
    for row in done.rows:
        assert 0.01 <= row["optim.lr"] <= 0.1
        assert row["epochs"] == row["train.epochs"]
    with pytest.raises(ConfigError, match="optim.lr is a range"):
        run(tmp_path, space=space)


def test_halving_stops_what_does_not_promise(tmp_path, monkeypatch):
    from farout.tuning import trial as trials

    assert stops(50, 3) == [5, 15, 45, 50]
    assert stops(1, 3) == [1]
    worth = iter([0.5, 0.4, 0.3, 0.9, 0.1, 0.1, 0.1])
    monkeypatch.setattr(
        trials, "validate", lambda config, net: {"fpr95_id": next(worth), "auroc": 0.5, "accuracy": 0.5}
    )
    space = parse_space({"optim.lr": [0.02, 0.03, 0.04]})
    done = run(tmp_path, space=space, sampler="grid", pruner="halving", overrides=["train.epochs=4"])
    assert [row["state"] for row in done.rows] == ["complete", "pruned", "complete"]
    assert [row["epochs"] for row in done.rows] == [4, 1, 4]
    assert done.best["fpr95_id"] == 0.1


def test_a_training_in_pieces_is_the_training_in_one(tmp_path):
    """The looks of halving change nothing: same schedule, same batches."""
    config = Config.load("demo/oe", [*TINY, "train.epochs=4", "data.outlier_held_out=0.1"])
    steps = build.job(config).pairs.steps
    whole, _ = measure(config, tmp_path / "whole")
    seen = []

    def look(value, epochs):
        newest = sorted((tmp_path / "pieces/checkpoints").iterdir())[-1]
        seen.append((epochs, newest.name))
        return False

    pieces, stopped = measure(config, tmp_path / "pieces", [1, 3], look)
    assert seen == [(1, f"step-{steps:08d}.pt"), (3, f"step-{3 * steps:08d}.pt")]
    assert not stopped
    assert pieces == whole
    assert measure(config, tmp_path / "cut", [1, 3], lambda value, epochs: True)[1]


def test_what_diverges_is_the_worst_and_the_study_goes_on(tmp_path, monkeypatch):
    def act(count):
        if count == 1:
            raise TrainingError("the loss is nan")

    count_trainings(monkeypatch, act)
    done = run(tmp_path, trials=2)
    assert done.rows[0]["fpr95_id"] == 1.0
    assert done.rows[0]["why"] == "the loss is nan"
    assert done.best["trial"] == 1


@pytest.mark.parametrize("error", [Interrupted("stop"), OSError("disk full")])
def test_whatever_stops_it_the_same_call_goes_on(tmp_path, monkeypatch, error):
    def act(count):
        if count == 2:
            raise error

    calls = count_trainings(monkeypatch, act)
    with pytest.raises(type(error)):
        run(tmp_path, trials=3)
    done = run(tmp_path, trials=3)
    assert len(calls) == 4  # the second one twice
    assert [row["state"] for row in done.rows] == ["complete"] * 3
    assert [row["trial"] for row in done.rows] == [0, 2, 3]  # number 1 was lost
    assert len({(row["method.alpha"], row["optim.lr"]) for row in done.rows}) == 3


WORKER = """
import os, signal, sys
from pathlib import Path
from farout.methods import OE
from farout.tuning.work import worker
folder, number, calls = Path(sys.argv[1]), int(sys.argv[2]), []
def update(self, net, batch, descend):
    calls.append(1)
    if len(calls) == 1:  # a pipe opens for one when the other opens it too: both are in their first step
        open(folder / "meet", "rb" if number else "wb").close()
    if number == 0 and len(calls) == 15:
        os.kill(os.getpid(), signal.SIGKILL)
    return descend(self.loss)
OE.update = update
worker(str(folder), number)
(folder / "steps").write_text(str(len(calls)))
"""


def test_two_processes_share_a_study_and_a_killed_ones_trial_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    from farout.tuning import work

    def start(folder, address, number, jobs):
        paths = {**os.environ, "PYTHONPATH": str(Path(tune.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
        with (folder / f"worker-{number}.txt").open("wb") as output:
            command = [sys.executable, "-c", WORKER, str(folder), str(number)]
            return subprocess.Popen(command, stderr=output, env={**paths, work.STORAGE: address})

    monkeypatch.setattr(work, "_start", start)
    os.mkfifo(tmp_path / "meet")
    options = {"space": parse_space({"optim.lr": [0.02, 0.1]}), "trials": 2, "overrides": ["train.epochs=3"]}
    storage = f"journal:{tmp_path}/journal.log"
    with pytest.raises(TrainingError, match="worker 0 of the study failed.*the same call goes on"):
        run(tmp_path, jobs=2, storage=storage, **options)
    calls = []
    monkeypatch.setattr(OE, "update", lambda self, net, batch, descend: calls.append(1) or descend(self.loss))
    done = run(tmp_path, storage=storage, **options)
    assert [row["state"] for row in done.rows] == ["complete", "complete"]
    assert {row["optim.lr"] for row in done.rows} == {0.02, 0.1}
    assert not (tmp_path / "study.db").exists()
    steps = build.job(Config.load("demo/oe", [*TINY, "train.epochs=3"])).pairs.steps
    assert steps < 14, "the kill was to come after a checkpoint"
    survived = int((tmp_path / "steps").read_text())  # the living worker may have taken the dead one's trial up
    assert survived + len(calls) == 2 * 3 * steps - 14 // steps * steps


def terms_of(**changes):
    config = Config.load("demo/oe", [*TINY, "data.outlier_held_out=0.1"])
    return Terms(**{"config": config.to_dict(), "space": plain_space(SMALL), "study": "s", **changes})


def test_only_trials_of_the_dead_are_reclaimed(tmp_path):
    study = open_study(terms_of(), f"sqlite:///{tmp_path}/study.db")
    for name, host in (("living", None), ("dead", None), ("far", "elsewhere")):
        trial = study.ask({"optim.lr": optuna.distributions.CategoricalDistribution([0.01, 0.1, 0.3])})
        trial.set_user_attr("folder", name)
        trial.set_user_attr("host", host or os.uname().nodename)
    with RunLock(tmp_path / "trials" / "living"):
        assert reclaim(study, tmp_path) == [1]
    states = [trial.state.name for trial in study.trials]
    assert states == ["RUNNING", "FAIL", "RUNNING", "WAITING"]
    assert study.ask().number == 3


def test_the_real_worker_fails_aloud(tmp_path):
    """The command that `_start` builds: a wrong recipe ends it, and its last line says why."""
    from farout.tuning.work import _start

    (tmp_path / "study.json").write_text(json.dumps(asdict(terms_of(sampler="nothing"))))
    process = _start(tmp_path, f"sqlite:///{tmp_path}/study.db", 0, jobs=2)
    assert process.wait() == 1
    assert (tmp_path / "worker-0.txt").read_text().strip().splitlines()[-1] == "KeyError: 'nothing'"


def test_a_study_is_about_one_thing(tmp_path):
    run(tmp_path, trials=1)
    with pytest.raises(ConfigError, match="begun with another config"):
        run(tmp_path, trials=1, overrides=["train.seed=3"])
    with pytest.raises(ConfigError, match="begun with another sampler"):
        run(tmp_path, trials=1, sampler="grid")
    with pytest.raises(ConfigError, match="begun with another config"):
        run(tmp_path, trials=1, overrides=["data.validation=[outliers, noise]"])


def test_a_study_goes_on_that_was_begun_before_the_recipe_had_all_its_keys(tmp_path):
    terms, address = terms_of(), f"sqlite:///{tmp_path}/study.db"
    old = terms.fixed
    del old["config"]["data"]["validation"]
    open_study(terms, address).set_user_attr("terms", old)
    open_study(terms, address)
    other = Config.load("demo/oe", [*TINY, "data.outlier_held_out=0.1", "data.validation=[noise]"])
    with pytest.raises(ConfigError, match="begun with another config"):
        open_study(terms_of(config=other.to_dict()), address)


def test_a_study_validated_on_outliers_and_synthetic_sets(tmp_path, cli):
    (tmp_path / "space.yaml").write_text("method.alpha: [0.5]")
    options = ["--space", tmp_path / "space.yaml", "--trials", 1, "--run", tmp_path / "study"]
    code, _, err = cli("tune", "demo/oe", *TINY, "data.validation=[outliers,synthetic]", *options)
    assert code == 0, err
    (row,) = (json.loads(line) for line in (tmp_path / "study/trials.jsonl").read_text().splitlines())
    assert list(row["by_set"]) == ["demo/outliers", *(f"synthetic {name}" for name in SYNTHETIC)]
    assert row["fpr95_id"] == pytest.approx(sum(row["by_set"].values()) / 7)
    assert json.loads((tmp_path / "study/study.json").read_text())["config"]["data"]["outlier_held_out"] == 0.1


def test_synthetic_sets_alone_hold_no_outliers_out_and_need_none(tmp_path):
    space = parse_space({"optim.lr": [0.02]})
    done = run(tmp_path, recipe="demo/ce", overrides=["data.validation=[jigsaw, mean]"], space=space, trials=1)
    assert list(done.best["by_set"]) == ["synthetic jigsaw", "synthetic mean"]
    about = json.loads((tmp_path / "study.json").read_text())["config"]["data"]
    assert (about["outliers"], about["outlier_held_out"]) == (None, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"space": "paper"}, "method 'oe' has no argument 'gamma_max'"),
        ({"sampler": "annealing"}, "unknown sampler 'annealing'"),
        ({"pruner": "axe"}, "unknown pruner 'axe'"),
        ({"pruner": "halving", "space": parse_space({"train.epochs": [1, 2]})}, "leave train.epochs out"),
        ({"trials": 0}, "at least 1"),
        ({"recipe": "demo/ce"}, "set data.outliers"),
        ({"overrides": ["data.validation=[jigsow]"]}, "unknown validation set 'jigsow'; did you mean 'jigsaw'?"),
        ({"space": parse_space({"trian.epochs": [1, 2]})}, "recipe has no key 'trian'"),
        ({"storage": "nonsense://x"}, "cannot open the study in nonsense://x"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(tmp_path, monkeypatch, options, message):
    calls = count_trainings(monkeypatch)
    with pytest.raises(ConfigError, match=message):
        run(tmp_path / "study", **options)
    assert calls == []


def test_without_optuna_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'farout\[tune\]'"):
        tune.tune("demo/oe")


def test_the_command(cli, tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("optim.lr: [0.02, 0.1]\n")
    base = ["tune", "demo/oe", *TINY, "--space", tmp_path / "mine.yaml", "--run", tmp_path / "study"]
    code, out, err = cli(*base, "--trials", 2)
    assert code == 0, err
    best = next(line for line in out.splitlines() if line.startswith("Best")).split()[1:]
    assert all(parse_override(override) for override in best)
    assert "farout train" in out
    assert "trial 1: FPR95" in err
    code, out, _ = cli(*base, "--trials", 2, "--test")
    assert code == 0
    assert "unseen-digits" in out
    count_trainings(monkeypatch, lambda count: os.kill(os.getpid(), signal.SIGINT))
    code, _, err = cli(*base[:-1], tmp_path / "other")
    assert code == 130
    assert "The same command goes on" in err
    assert "Example" in cli("tune", "--help")[1]
