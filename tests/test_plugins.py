"""Plugins: one file of the user's own in every command, in every process, and in the hash of what is trained."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import farout
import farout.cli
from farout import jobs, plugins
from farout.compare import How, compare
from farout.components import choose
from farout.config import Config
from farout.data.augment import AUGMENTS
from farout.entries import Entry, recipe_of, training
from farout.errors import ConfigError
from farout.methods import METHODS
from farout.nets import NETS, split
from farout.nets.make import make_net
from farout.plugins import EXPECTED, LOADED, VARIABLE, load_plugin, load_plugins
from farout.protocols import load_protocol
from farout.scores import SCORES
from farout.tune import tune

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = (ROOT / "examples" / "own_method.py").read_text()
TINY = ("net.width=4", "data.batch_size=100", "data.outlier_batch_size=50", "train.epochs=1", "train.device=cpu")
DEMO = load_protocol("demo")


@pytest.fixture(autouse=True)
def untouched(monkeypatch):
    """Tables, variable and what is loaded are afterwards what they were."""
    monkeypatch.setenv(VARIABLE, "")
    tables = (METHODS, SCORES, NETS, AUGMENTS, LOADED)
    before = [dict(table) for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(EXAMPLE)
    return file


def forget():
    """As in another process that was told of no plugin."""
    for table in (METHODS, SCORES):
        for name in ("margin", "gap"):
            table.pop(name, None)
    LOADED.clear()


def how(place, **more):
    return How(**{"seeds": 1, "overrides": TINY, "cache": place / "cache", "resamples": 20, **more})


# In every command


def test_train_list_and_test_by_the_option(cli, mine, tmp_path):
    code, out, err = cli("--plugin", mine, "list", "methods", "--json")
    assert code == 0, err
    [row] = [row for row in json.loads(out) if row["name"] == "margin"]
    assert (row["arguments"], row["score"]) == (["weight=0.1", "margin=1.0"], "max-logit")
    forget()
    train = ["train", "demo/oe", "method.name=margin", "method.weight=2", *TINY, "--run", tmp_path / "run"]
    code, _, err = cli("--plugin", mine, *train)
    assert code == 0, err
    assert Config.load(tmp_path / "run" / "config.yaml").method == {"name": "margin", "weight": 2}
    assert '"margin"' in (tmp_path / "run" / "log.jsonl").read_text()
    code, out, err = cli("--plugin", mine, "eval", tmp_path / "run", "--scores", "gap,msp")
    assert code == 0, err
    assert "gap" in out


def test_the_variable_names_several(cli, mine, tmp_path, monkeypatch):
    other = tmp_path / "other.py"
    other.write_text("from farout.scores import MSP\nclass Mine(MSP):\n    '''s'''\nSCORES = {'mine': Mine}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "mine.py:other.py")
    assert "margin" in cli("list", "methods")[1]
    assert {"gap", "mine"} <= set(SCORES)
    assert list(LOADED) == [str(mine), str(other)]


def test_compare_finds_it_in_child_processes_and_trains_again_what_changed_alone(mine, tmp_path):
    farout.load_plugin(mine)
    done = compare(["oe", "margin", "margin:gap"], DEMO, how(tmp_path, jobs=2), folder=tmp_path / "out")
    assert not done.problems
    assert {(row["method"], row["score"]) for row in done.rows} == {
        ("oe", "msp"),
        ("margin", "max-logit"),
        ("margin", "gap"),
    }
    runs = {one.entry.label: one.run for one in done.tested}
    assert (runs["margin"] / "output.txt").is_file()  # a process of its own
    assert Config.load(runs["margin"] / "config.yaml").train.init == Config.load(runs["oe"] / "config.yaml").train.init

    told = []
    again = {"how": how(tmp_path, tell=told.append), "folder": tmp_path / "out"}
    compare(["oe", "margin"], DEMO, **again)
    assert told == []
    mine.write_text(EXAMPLE.replace("weight: float = 0.1", "weight: float = 0.2"))
    farout.load_plugin(mine)
    compare(["oe", "margin"], DEMO, **again)
    assert told == ["1/1 demo/margin, seed 0", "testing demo/margin, seed 0, max-logit"]


def test_a_changed_score_is_tested_again_and_not_trained(mine, tmp_path):
    load_plugin(mine)
    told = []
    options = {"how": how(tmp_path, tell=told.append), "folder": tmp_path / "out"}
    before = compare(["ce", "ce:gap"], DEMO, **options).rows[-1]
    told.clear()
    mine.write_text(EXAMPLE.replace("return first - second", "return -first"))
    load_plugin(mine)
    after = compare(["ce", "ce:gap"], DEMO, **options).rows[-1]
    assert told == ["testing demo/ce, seed 0, gap"]
    assert before["auroc"] != after["auroc"]


def test_workers_of_a_study_load_it(mine, tmp_path):
    pytest.importorskip("optuna")
    load_plugin(mine)
    overrides = ["method.name=margin", *TINY]
    space = tmp_path / "space.yaml"
    space.write_text("method.weight: [0.1, 1.0]\n")
    done = tune("demo/oe", overrides, space=space, trials=2, sampler="grid", folder=tmp_path / "study", jobs=2)
    assert sorted(row["method.weight"] for row in done.rows if row["state"] == "complete") == [0.1, 1.0]


@pytest.mark.parametrize("family", ["cifar10-fast", "imagenet"])
def test_a_plugins_method_needs_no_recipe(mine, family):
    load_plugin(mine)
    base, derived = Config.load(f"{family}/oe"), recipe_of(family, "margin")
    assert (derived.method, derived.name) == ({"name": "margin"}, f"{family}/margin")
    assert (derived.optim, derived.train, derived.start) == (base.optim, base.train, base.start)
    with pytest.raises(ConfigError, match=r"no recipe cifar10-short/vos;.*give a YAML file$"):
        recipe_of("cifar10-short", "vos")
    with pytest.raises(ConfigError, match="no recipe /margin"):
        recipe_of("", "margin")


def test_the_command_that_goes_on_is_found_behind_the_option(monkeypatch):
    for arguments, more in ((["compare", "oe"], []), (["train", "demo/oe", "--run", "demo"], ["--resume"])):
        monkeypatch.setattr(sys, "argv", ["farout", "--plugin", "mine.py", *arguments])
        expected = " ".join(["farout --plugin mine.py", *arguments, *more])
        assert farout.cli._resume_command() == expected


# The hash


def keys(*entries):
    return [training(Entry.parse(entry), DEMO, 0, TINY).key for entry in entries]


def test_only_what_uses_a_plugin_depends_on_it(mine, monkeypatch):
    plain = keys("oe", "ce")
    load_plugin(mine)
    assert keys("oe", "ce") == plain
    [before] = keys("margin")
    mine.write_text(EXAMPLE + "# another\n")
    load_plugin(mine)
    assert keys("margin") != [before]
    assert keys("oe", "ce") == plain
    nested = [{"name": "react", "base": {"name": "gap"}}]
    assert plugins.sources(nested) == [LOADED[str(mine)].source]
    assert plugins.sources([{"name": "react"}]) == []


def test_a_child_refuses_a_file_that_changed_on_the_way(mine, monkeypatch):
    load_plugin(mine)
    config = recipe_of("demo", "margin").to_dict()
    assert plugins.expectation(recipe_of("demo", "oe").to_dict()) == {EXPECTED: ""}
    for name, value in plugins.expectation(config).items():
        monkeypatch.setenv(name, value)
    load_plugins()
    mine.write_text(EXAMPLE + "# another\n")
    with pytest.raises(ConfigError, match=r"a plugin \(.*mine.py\) was changed after this work had begun"):
        load_plugins()


def test_jobs_tell_their_children_what_to_expect(mine, tmp_path, monkeypatch):
    load_plugin(mine)
    seen = []
    monkeypatch.setattr(jobs.subprocess, "Popen", lambda command, env, **more: seen.append(env))
    jobs._begin(training(Entry.parse("margin"), DEMO, 0, TINY), tmp_path, 2)
    assert seen[0][EXPECTED] == LOADED[str(mine)].source
    assert seen[0][VARIABLE] == str(mine)


# Loading


def test_twice_is_nothing_and_a_changed_file_replaces_itself(mine, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    os.utime(mine, (0, 0))
    farout.load_plugin(mine)
    first = METHODS["margin"]
    load_plugin(str(mine))
    load_plugins([str(mine)])
    assert METHODS["margin"] is first
    mine.write_text(EXAMPLE.replace('{"margin": Margin}', '{"fringe": Margin}'))
    os.utime(mine, (0, 0))  # of the same second and size: a .pyc would pass for it
    load_plugin(mine)
    assert "margin" not in METHODS
    assert METHODS["fringe"] is not first
    mine.write_text("METHODS = {'fringe': 1}")
    with pytest.raises(ConfigError):
        load_plugin(mine)
    assert "fringe" in METHODS
    assert "gap" in SCORES


@pytest.mark.parametrize("place", ["mine_module.py", "mine_module/__init__.py"])
def test_a_module_by_its_name(tmp_path, monkeypatch, place):
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    file.write_text("from .rest import METHODS\n" if "/" in place else EXAMPLE)
    (file.parent / "rest.py").write_text(EXAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        load_plugin("mine_module")
        load_plugin("mine_module")
    finally:
        for name in ("mine_module", "mine_module.rest"):
            sys.modules.pop(name, None)
    assert METHODS["margin"].__module__.startswith("mine_module")
    source = LOADED["mine_module"].source
    (file.parent / ("rest.py" if "/" in place else file.name)).write_text(EXAMPLE + "# another\n")
    assert plugins._source("mine_module") != source


def test_nets_and_augments(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from farout.data.augment import CropFlip\nfrom farout.nets import MLP\n"
        "def thin(num_classes: int, width: int = 3):\n    return MLP(2, num_classes, (width,))\n"
        "NETS = {'thin': thin}\nAUGMENTS = {'crop': CropFlip}\n"
    )
    load_plugin(file)
    assert AUGMENTS["crop"] is AUGMENTS["crop-flip"]
    assert make_net({"name": "thin", "num_classes": 4, "width": 5})(torch.rand(1, 2)).features.shape == (1, 5)
    with pytest.raises(ConfigError, match="net 'thin' has no argument 'depth'; it takes width"):
        make_net({"name": "thin", "num_classes": 2, "depth": 3})


GOOD = "from farout.methods import METHODS as TAKEN, Method\nclass Mine(Method):\n    pass\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("METHODS = {'oe': Mine}", r"METHODS has 'oe' already; choose another name"),
        (
            "METHODS = {'mine': Mine(), }",
            r"METHODS\['mine'\] must be a subclass of farout.methods.Method, got Mine\(\)",
        ),
        ("SCORES = {'mine': Mine}", r"SCORES\['mine'\] must be a subclass of farout.scores.Score, got <class"),
        ("NETS = {'mine': 3}", r"NETS\['mine'\] must be a class or a function that makes one, got 3"),
        ("METHODS = [Mine]", r"METHODS must be a mapping of names to classes, got \[<class"),
        ("METHODS = {'a,b': Mine}", r"a name in METHODS is of letters, digits, - and _, got 'a,b'"),
        ("METHODS = {3: Mine}", r"a name in METHODS is of letters, digits, - and _, got 3"),
        ("METHODS = {'mine': Mine}; SCORES = {'x': 1}", r"SCORES\['x'\] must be a subclass"),
        ("METHODS = {}", r"has none of the tables METHODS, SCORES, NETS, AUGMENTS; write e.g. METHODS = {'margin'"),
        ("METHODS = TAKEN", r"has none of the tables"),
        ("1 / 0", r"mine.py stopped with ZeroDivisionError in line 4: division by zero"),
        ("import sys; sys.exit('no')", r"mine.py stopped with SystemExit in line 4: no"),
        ("import nothing_of_this_name", r"stopped with ModuleNotFoundError in line 4: No module named 'nothing_of"),
        ("def broken(:", r"mine.py stopped with SyntaxError: .*line 4"),
    ],
)
def test_what_will_not_do_is_named_and_leaves_the_tables_alone(tmp_path, text, message):
    before = [dict(table) for table in (METHODS, SCORES, NETS, AUGMENTS)]
    (tmp_path / "mine.py").write_text(f"{GOOD}{text}\n")
    with pytest.raises(ConfigError, match=message) as error:
        load_plugin(tmp_path / "mine.py")
    assert str(tmp_path / "mine.py") in str(error.value)
    assert [dict(table) for table in (METHODS, SCORES, NETS, AUGMENTS)] == before
    assert not LOADED


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing.py", "error: there is no plugin /.*/missing.py that can be read: No such file"),
        ("folder.py", "error: there is no plugin /.*/folder.py that can be read: Is a directory"),
        ("no_such_module", "error: there is no module 'no_such_module' to import as a plugin; a file's name ends in"),
        ("no.such.module", "error: there is no module 'no.such.module'"),
        ("./mine", "error: there is no module './mine'"),
    ],
)
def test_a_plugin_that_is_not_there_is_one_line(cli, tmp_path, monkeypatch, name, message):
    (tmp_path / "folder.py").mkdir()
    monkeypatch.chdir(tmp_path)
    code, _, err = cli("--plugin", name, "list", "methods")
    assert code == 1
    assert re.fullmatch(message + ".*\n", err), err


# What others' files may not do


def test_a_detector_with_a_plugins_score_needs_the_plugin(mine, tmp_path):
    load_plugin(mine)
    net = make_net({"name": "mlp", "in_features": 4, "num_classes": 3})
    x = torch.rand(50, 4)
    detector = farout.Detector(net, SCORES["gap"]()).fit(train=None, held_out=x)
    detector.save(tmp_path / "detector")
    forget()
    with pytest.raises(ConfigError, match=r"unknown score 'gap'; .*or is it a plugin's\? name its file: --plugin, FAR"):
        farout.Detector.load(tmp_path / "detector")
    load_plugin(mine)
    assert torch.equal(farout.Detector.load(tmp_path / "detector")(x).score, detector(x).score)


def test_the_hint_is_where_a_plugin_could_help_alone():
    hint = r"or is it a plugin's\?"
    for kind, table in (("method", METHODS), ("score", SCORES), ("net", NETS), ("augment", AUGMENTS)):
        with pytest.raises(ConfigError, match=hint):
            choose(kind, table, "zzz")
    with pytest.raises(ConfigError, match=rf"did you mean 'dal'\? {hint}"):
        choose("method", METHODS, "dall")
    with pytest.raises(ConfigError, match=rf"there is no recipe demo/margin; .*{hint}"):
        recipe_of("demo", "margin")
    with pytest.raises(ConfigError, match="known: a$"):
        choose("schedule", {"a": 1}, "zzz")


def test_a_recipe_cannot_name_one(mine, tmp_path, cli):
    mine.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n{EXAMPLE}")
    recipe = tmp_path / "recipe.yaml"
    for text in (f"plugin: {mine}", f"plugins: [{mine}]", f"method: {mine}", "method: mine.Margin"):
        recipe.write_text(f"extends: demo/oe\n{text}\n")
        assert cli("train", recipe, *TINY, "--run", tmp_path / "run")[0] == 1, text
    assert not (tmp_path / "ran").exists()
    assert cli("--plugin", mine, "list", "scores")[0] == 0
    assert (tmp_path / "ran").exists()


# The example


def test_the_example_is_contributings_method(mine):
    block = re.search(r"```python\n(   class Margin.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)[1]
    assert "\n".join(line[3:] for line in block.splitlines()).strip() in EXAMPLE


def test_the_examples_score_by_hand(mine):
    load_plugin(mine)
    net = split(nn.Sequential(nn.Flatten(), nn.Linear(2, 3)))
    logits = torch.tensor([[1.0, 4.0, 2.5], [0.0, -1.0, 0.0]])
    out = net(torch.rand(2, 2))._replace(logits=logits)
    assert SCORES["gap"]()(out).tolist() == [1.5, 0.0]
