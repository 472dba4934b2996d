"""The main jobs from Python: train, resume, evaluate."""

import json
from collections import OrderedDict

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import farout
from farout import build
from farout.config import Config, recipe_names
from farout.errors import CheckpointError, ConfigError, DataError
from farout.nets import split
from farout.training import Checkpoints


def test_public_names():
    assert callable(farout.train)
    assert callable(farout.evaluate)
    assert farout.Detector.__name__ == "Detector"
    assert set(farout.__all__) <= set(dir(farout))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = farout.nothing


def test_a_run_folder_holds_everything(tiny_run):
    names = {path.name for path in tiny_run.folder.iterdir()}
    assert {"config.yaml", "log.jsonl", "checkpoints", "detector"} <= names
    assert farout.load_run(tiny_run.folder).config == tiny_run.config


def test_a_second_run_in_the_folder_is_refused_and_resume_returns_it(tiny_run, tiny_config):
    with pytest.raises(ConfigError, match="already holds a run; continue it with --resume"):
        farout.train(tiny_config, run=tiny_run.folder)
    again = farout.train(tiny_config, run=tiny_run.folder, resume=True)
    assert torch.equal(again.detector.threshold, tiny_run.detector.threshold)
    other = Config.from_dict({**tiny_config.to_dict(), "method": {"name": "oe"}})
    with pytest.raises(ConfigError, match="was started from a different recipe"):
        farout.train(other, run=tiny_run.folder, resume=True)


def test_evaluate_writes_rows_scores_and_table(tiny_run, tmp_path):
    run = farout.Run(tmp_path, tiny_run.config, tiny_run.detector)
    rows = farout.evaluate(run, scores=["msp", "energy"])
    assert {row["ood"] for row in rows} == {"demo/unseen-digits", "demo/flower", "demo/noise", "demo/gratings"}
    assert {row["group"] for row in rows} == {"near", "far"}
    assert [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()] == rows
    with np.load(tmp_path / "scores.npz") as arrays:
        assert arrays["msp|demo/flower"].shape == (700,)
    assert "unseen-digits | dal | msp" in (tmp_path / "table.md").read_text()


def test_evaluate_twice_gives_the_same_rows(tiny_run, tmp_path):
    run = farout.Run(tmp_path, tiny_run.config, tiny_run.detector)
    assert farout.evaluate(run) == farout.evaluate(run)


def test_evaluate_a_detector_folder_with_a_recipe(tiny_run, tmp_path):
    folder = tiny_run.detector.save(tmp_path / "d")
    with pytest.raises(ConfigError, match="say what to test it on with --recipe"):
        farout.evaluate(folder)
    rows = farout.evaluate(folder, ["data.test=[demo/noise]", "train.device=cpu"], recipe="demo/dal", scores=["msp"])
    assert [row["ood"] for row in rows] == ["demo/noise"]


def test_what_is_missing_is_named(tmp_path, tiny_run):
    with pytest.raises(CheckpointError, match="is not a run: it has no config.yaml"):
        farout.evaluate(tmp_path)
    (tmp_path / "config.yaml").write_text(tiny_run.config.to_yaml())
    with pytest.raises(CheckpointError, match="is not finished"):
        farout.evaluate(tmp_path)
    tree = tiny_run.config.to_dict()
    untested = Config.from_dict({**tree, "data": {**tree["data"], "test": {}}})
    with pytest.raises(ConfigError, match="names no OOD test sets"):
        farout.evaluate(farout.Run(tmp_path, untested, tiny_run.detector))


@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ("data.id=''", ConfigError, "names no ID set"),
        ("data.held_out=0.0", ConfigError, "data.held_out must lie between 0 and 1"),
        ("data.outliers=null", ConfigError, "trains with auxiliary outliers; set data.outliers"),
        ("data.id=demo/flower", DataError, "has no labels"),
        ("train.precision=int8", ConfigError, "train.precision must be float32 or bf16"),
        ("train.device=teapot", ConfigError, "unknown device 'teapot'"),
        ("train.init=nowhere.pt", CheckpointError, "nowhere.pt is not a file"),
        ("method.name=dall", ConfigError, "unknown method 'dall'; did you mean 'dal'"),
        ("optim.lrr=1", ConfigError, "optimizer 'sgd' has no argument 'lrr'"),
        ("schedule.name=cosin", ConfigError, "unknown schedule 'cosin'"),
        ("data.loader.name=resdent", ConfigError, "unknown loader 'resdent'"),
        ("data.augment.padd=1", ConfigError, "augment 'crop-flip' has no argument 'padd'"),
        ("data.batch_size=10000", DataError, "fewer than one batch of 10000"),
        ("net.width=wide", ConfigError, "net 'small-conv' argument 'width' must be int"),
    ],
)
def test_mistakes_in_a_recipe_are_named(override, error, message):
    with pytest.raises(error, match=message):
        build.job(Config.load("demo/dal", [override]))


def test_init_from_a_folder_without_weights_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no folder with checkpoints or a model.safetensors"):
        build.job(Config.load("demo/oe", [f"train.init={tmp_path}"]))


@pytest.mark.parametrize("what", ["", "detector", "detector/model.safetensors"])
def test_init_starts_from_those_weights(tiny_run, what):
    path = tiny_run.folder / what
    job = build.job(Config.load("demo/oe", [f"train.init={path}", "net.width=8", "train.device=cpu"]))
    state = Checkpoints(tiny_run.folder / "checkpoints").latest()
    for name, value in job.net.state_dict().items():
        assert torch.equal(value, state["objective"][f"net.{name}"])


@pytest.mark.parametrize("what", ["", "detector", "detector/model.safetensors"])
def test_init_of_another_size_is_refused(tiny_run, what):
    with pytest.raises(ConfigError, match="does not fit the recipe's network"):
        build.job(Config.load("demo/oe", [f"train.init={tiny_run.folder / what}", "net.width=4"]))


@pytest.mark.parametrize("what", ["detector", "detector/model.safetensors"])
def test_init_leaves_an_outlier_class_its_fresh_start(tiny_run, what):
    fresh, started = (
        build.job(Config.load("demo/oe", ["method={name: ntom}", "net.width=8", "train.device=cpu", *init])).net
        for init in ([], [f"train.init={tiny_run.folder / what}"])
    )
    assert torch.equal(started.head.weight[:-1], tiny_run.detector.net.head.weight)
    assert torch.equal(started.head.weight[-1], fresh.head.weight[-1])


def test_init_from_a_damaged_weights_file_is_named(tiny_run, tmp_path):
    content = (tiny_run.folder / "detector" / "model.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(content[:1000])
    with pytest.raises(CheckpointError, match="cut.safetensors is damaged"):
        build.job(Config.load("demo/oe", [f"train.init={tmp_path / 'cut.safetensors'}", "net.width=8"]))


def test_init_from_a_foreign_file_with_a_part_named_net(tmp_path):
    """Its names begin like ours and are divided otherwise: net.fc, not net.head."""

    def classifier():
        layers = OrderedDict(first=torch.nn.Linear(4, 5), fc=torch.nn.Linear(5, 3))
        return torch.nn.Sequential(OrderedDict(net=torch.nn.Sequential(layers)))

    source, made = classifier(), split(classifier())
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    build.load_init(made, tmp_path / "w.safetensors")
    assert torch.equal(made.head.weight, source.net.fc.weight)


def test_the_split_of_id_data_does_not_depend_on_the_seed():
    first, second = (build.id_splits(Config.load("demo/ce", [f"train.seed={s}"]).data) for s in (0, 1))
    assert torch.equal(first.held_out.indices, second.held_out.indices)
    assert not set(first.held_out.indices.tolist()) & set(first.train.indices.tolist())


def test_an_outlier_count_limits_the_pool():
    config = Config.load("demo/oe", ["data.outlier_count=100"])
    assert len(build.outlier_set(config.data, ())) == 100


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_builds(name):
    """Network, method, scores, optimiser and schedule of every recipe; the data need not be there."""
    config = Config.load(name)
    net = build.net(config, 10)
    method = build.method(config)
    method.prepare(net)
    assert build.scores(config)
    optimizer = build.make("optimizer", build.OPTIMIZERS, config.optim, parameters=net.parameters())
    schedule = build.make(
        "schedule", build.SCHEDULES, config.schedule, lr=optimizer.param_groups[0]["lr"], steps_per_epoch=3, epochs=5
    )
    assert schedule(0) > 0
    assert config.data.id
    assert method.needs_outliers == (config.data.outliers is not None)


def test_evaluation_warns_of_leakage_and_refuses_it_when_asked(tiny_run, tmp_path):
    """Here the OOD test set is the auxiliary set itself."""
    run = farout.Run(tmp_path, tiny_run.config, tiny_run.detector)
    with pytest.warns(UserWarning, match="demo/outliers"):
        farout.evaluate(run, ["data.test=[demo/outliers]"])
    with pytest.raises(DataError, match="overlap"):
        farout.evaluate(run, ["data.test=[demo/outliers]", "eval.leakage=refuse"])
    with pytest.raises(ConfigError, match="eval.leakage must be warn, refuse or none"):
        farout.evaluate(run, ["eval.leakage=maybe"])


def test_a_model_in_place_of_a_recipe_is_fine_tuned():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    x = torch.randn(60, 4)
    data = {"id_data": (x, (x[:, 0] > 0).long()), "outliers": torch.randn(40, 4) + 5, "device": "cpu"}
    done = farout.train(model, method="oe", epochs=1, batch_size=20, outlier_batch_size=20, **data)
    assert done.model is model
    assert done.detector(x).score.shape == (60,)
    with pytest.raises(TypeError, match="a recipe takes no epochs"):
        farout.train("demo/ce", epochs=3)
