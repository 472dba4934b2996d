"""Comparisons: paired starts, nothing trained twice, statistics that follow from the rows, jobs that stop cleanly."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import farout.cli.bench
import farout.compare as compare_module
from farout import jobs, metrics
from farout.compare import How, compare
from farout.config import Config
from farout.entries import Entry, _derived, changed, check_overrides, recipe_of, score_of, training
from farout.errors import ConfigError, DataError, TrainingError
from farout.jobs import Training, fingerprint, train_all
from farout.methods import METHODS
from farout.protocols import load_protocol
from farout.training import Interrupted
from farout.training.lock import RunLock

TINY = ("net.width=4", "data.batch_size=100", "data.outlier_batch_size=50", "train.epochs=1", "train.device=cpu")
DEMO = load_protocol("demo")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("compare")


def how(place, **more):
    return How(**{"seeds": 2, "overrides": TINY, "cache": place / "cache", "resamples": 60, **more})


@pytest.fixture(scope="module")
def done(place):
    return compare(["ce", "ce:energy", "oe"], "demo", how(place), folder=place / "out")


def test_every_method_and_seed_is_there_with_its_own_score(done):
    found = {(row["method"], row["score"], row["seed"]) for row in done.rows}
    assert found == {(m, s, seed) for m, s in (("ce", "msp"), ("ce", "energy"), ("oe", "msp")) for seed in (0, 1)}
    assert {row["protocol"] for row in done.rows} == {"demo"}
    assert len(done.rows) == 6 * 4


def test_seeds_can_begin_later(done, place):
    rows = compare(["ce"], DEMO, how(place, seeds=1, first_seed=1), folder=place / "later").rows
    assert {row["seed"] for row in rows} == {1}
    assert rows == [row for row in done.rows if row["method"] == "ce" and row["score"] == "msp" and row["seed"] == 1]


def test_fine_tuning_starts_from_the_same_seeds_checkpoint(done, place):
    runs = {(one.entry.method, one.seed): one.run for one in done.tested}
    for seed in (0, 1):
        assert Config.load(runs["oe", seed] / "config.yaml").train.init == str(runs["ce", seed])
    assert len(list((place / "cache").glob("demo-*"))) == 4  # ce is trained once for both of its scores


def test_networks_that_are_trained_already_are_started_from(done, place, tmp_path):
    """The same start gives the same run, under a key of its own: the hash of the weights, not of their path."""
    for seed in (0, 1):
        [run] = (one.run for one in done.tested if (one.entry.label, one.seed) == ("ce", seed) and not one.entry.score)
        shutil.copytree(run / "detector", tmp_path / f"s{seed}" / "detector")
        shutil.copy(run / "detector" / "model.safetensors", tmp_path / f"s{seed}.safetensors")
    given = (*TINY, f"train.init={tmp_path}/s{{seed}}")
    ones = [training(Entry.parse("oe"), DEMO, seed, given) for seed in (0, 1)]
    assert [one.start for one in ones] == [None, None]
    assert ones[0].key != ones[1].key
    shutil.copytree(tmp_path / "s0", tmp_path / "moved")
    moved = training(Entry.parse("oe"), DEMO, 0, (*TINY, f"train.init={tmp_path}/moved"))
    assert moved.key == ones[0].key
    bare = (*TINY, f"train.init={tmp_path}/s{{seed}}.safetensors")
    assert [training(Entry.parse("oe"), DEMO, seed, bare).key for seed in (0, 1)] == [one.key for one in ones]
    assert training(Entry.parse("ce"), DEMO, 0, given).config.train.init is None
    again = compare(["oe"], "demo", how(place, overrides=bare, cache=tmp_path / "cache"), folder=tmp_path / "out")
    assert len(list((tmp_path / "cache").glob("demo-*"))) == 2  # no ce
    before = {(row["seed"], row["ood"]): row["auroc"] for row in done.rows if row["method"] == "oe"}
    assert {(row["seed"], row["ood"]): row["auroc"] for row in again.rows} == before


def test_a_start_that_is_not_there_is_named(tmp_path):
    missing = training(Entry.parse("oe"), DEMO, 1, (f"train.init={tmp_path}/none-{{seed}}",))
    with pytest.raises(ConfigError, match="none-1: there is no file"):
        _ = missing.key
    with pytest.raises(ConfigError, match="none of ce takes the override 'train.init=x'"):
        check_overrides(["ce"], "demo", ["train.init=x"])


def test_intervals_surround_the_numbers(done):
    for row in done.rows:
        for metric in ("fpr95_id", "fpr95_ood", "auroc"):
            assert 0 <= row[f"{metric}_low"] <= row[f"{metric}_high"] <= 1
        assert row["auroc_low"] < row["auroc"] < row["auroc_high"]
    for row in done.intervals:
        assert row["auroc_low"] <= row["auroc"] <= row["auroc_high"]
    assert len(done.intervals) == 3 * 5


def test_differences_are_those_of_the_rows(done):
    [average] = [
        row for row in done.differences if (row["set"], row["metric"], row["second"]) == ("average", "fpr95_id", "ce")
    ]
    means = [
        np.mean([row["fpr95_id"] for row in done.rows if (row["method"], row["score"]) == (method, "msp")])
        for method in ("oe", "ce")
    ]
    assert average["value"] == pytest.approx(means[0] - means[1])
    assert average["low"] <= average["value"] <= average["high"]
    assert average["p_holm"] >= average["p"]
    assert average["verdict"] in done.verdicts
    assert len(done.verdicts) == 4  # two opponents, two metrics
    assert len(done.differences) == 2 * 2 * 5


def test_scores_on_disk_give_the_rows_again(done):
    one = done.tested[0]
    row = one.rows[0]
    found = metrics.summary(id_scores=one.scores["demo/digits"], ood_scores=one.scores[row["ood"]])
    assert {key: row[key] for key in found} == pytest.approx(found)


def test_the_second_time_nothing_is_trained_or_tested(done, place, monkeypatch):
    def refuse(*arguments, **more):
        raise AssertionError("trained or tested again")

    monkeypatch.setattr("farout.jobs.train", refuse)
    monkeypatch.setattr("farout.compare.evaluate", refuse)
    again = compare(["ce", "ce:energy", "oe"], "demo", how(place), folder=place / "again")
    assert again.rows == done.rows
    assert again.differences == done.differences
    with pytest.raises(AssertionError, match="again"):  # another seed is another run
        compare(["ce"], "demo", how(place, seeds=3), folder=place / "again")


def test_what_is_left_is_an_ordinary_tree_of_runs(done, place):
    folder = place / "out" / "oe" / "s1"
    from farout.run import load_run

    run = load_run(folder)
    assert run.config.method["name"] == "oe"
    assert list(run.config.data.test) == ["near", "far"]
    assert (place / "out" / "ce-energy" / "s0" / "scores.npz").is_file()
    assert (
        "not told apart" in (place / "out" / "table.md").read_text()
        or "against" in (place / "out" / "table.md").read_text()
    )


def test_what_failed_is_named_and_the_rest_is_compared(done, place, tmp_path, monkeypatch, cli):
    """ce has two seeds, oe has only the second: the pair is judged by that one, and the command fails."""
    inner = compare_module.evaluate
    monkeypatch.setattr(How, "__init__", _with_few_resamples(How.__init__))

    def evaluate(run):
        if run.config.method["name"] == "oe" and run.config.train.seed == 0:
            raise RuntimeError("CUDA out of memory")
        return inner(run)

    monkeypatch.setattr(compare_module, "evaluate", evaluate)
    shutil.copytree(place / "cache", tmp_path / "cache", ignore=shutil.ignore_patterns("tests", ".lock"))
    places = ["--seeds", 2, "--cache", tmp_path / "cache", "--run", tmp_path / "out"]
    code, out, err = cli("compare", "ce,oe", *TINY, *places)
    assert code == 1
    assert "error: testing demo/oe, seed 0 failed: CUDA out of memory" in err
    assert "Rows" in out
    rows = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()]
    assert {(row["method"], row["seed"]) for row in rows} == {("ce", 0), ("ce", 1), ("oe", 1)}
    [pair] = [
        json.loads(line)
        for line in (tmp_path / "out" / "differences.jsonl").read_text().splitlines()
        if '"average"' in line and '"auroc"' in line
    ]
    mine = {m: [r["auroc"] for r in rows if (r["method"], r["seed"]) == (m, 1)] for m in ("ce", "oe")}
    assert pair["value"] == pytest.approx(np.mean(mine["oe"]) - np.mean(mine["ce"]))
    assert "Missing: testing demo/oe, seed 0" in (tmp_path / "out" / "table.md").read_text()

    def refuse(run):
        raise RuntimeError("nothing works")

    monkeypatch.setattr(compare_module, "evaluate", refuse)
    for tests in (tmp_path / "cache").glob("*/tests"):
        shutil.rmtree(tests)
    with pytest.raises(TrainingError, match=r"nothing could be trained and tested: .*nothing works \(and 1 more\)"):
        compare(["ce"], "demo", how(tmp_path), folder=tmp_path / "none")


def test_ours_and_empty_lists(place):
    with pytest.raises(ConfigError, match="nothing to compare"):
        compare([], "demo", how(place))
    with pytest.raises(ConfigError, match="--ours 'dal' is none of the methods: ce, oe"):
        compare(["ce", "oe"], "demo", how(place), ours="dal")
    with pytest.raises(ConfigError, match="cannot read the method ':msp'"):
        compare([":msp"], "demo", how(place))


# ---- recipes and keys


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_demo_recipe(method):
    one = training(Entry(method, method), DEMO, 3, TINY)
    assert one.config.method["name"] == method
    assert one.config.train.seed == 3
    assert (one.config.data.outliers is not None) == METHODS[method].needs_outliers
    if METHODS[method].needs_outliers and method not in ("atom", "ntom", "poem"):
        assert one.start.config.method["name"] == "ce"
    if one.start:
        assert one.start.config.train.seed == 3
        assert one.start.config.net == one.config.net


def test_methods_without_a_recipe_of_their_own_are_derived():
    assert _derived("demo", "logitnorm").start is None
    assert _derived("demo", "logitnorm").train.epochs == Config.load("demo/ce").train.epochs
    assert _derived("demo", "mixoe").start == "demo/ce"
    assert _derived("demo", "mixoe").optim == Config.load("demo/oe").optim
    assert _derived("demo", "poem").start is None


def test_two_stages_are_trained_one_after_the_other():
    last = training(Entry("CSI", "csi"), load_protocol("paper-cifar10"), 0)
    assert (last.config.name, last.start.config.name) == ("cifar10/csi-2", "cifar10/csi-1")


def test_recipes_by_family_alias_name_and_path(tmp_path):
    assert recipe_of("cifar10", "dal").name == "cifar10/dal-reference"
    assert recipe_of("cifar10", "dal").start == "cifar10/ce"
    assert recipe_of("cifar10", "cifar100/oe").name == "cifar100/oe"
    (tmp_path / "mine.yaml").write_text("extends: demo/oe\nmethod: {alpha: 1.0}\n")
    assert recipe_of("demo", str(tmp_path / "mine.yaml")).method == {"name": "oe", "alpha": 1.0}
    with pytest.raises(ConfigError, match="there is no recipe cifar10/warp; cifar10 has .*, dal-paper, "):
        recipe_of("cifar10", "warp")


def test_a_score_keeps_the_arguments_of_the_recipe():
    config = changed(recipe_of("demo", "ce"), ["eval.scores=[msp, {name: knn, k: 7}]"])
    assert score_of(config) == "msp"
    assert score_of(config, "knn") == {"name": "knn", "k": 7}
    assert score_of(config, "energy") == "energy"


def test_overrides_reach_the_methods_that_take_them():
    dal = training(Entry("dal", "dal"), DEMO, 0, ["method.rho=5", "net.width=4"])
    assert dal.config.method["rho"] == 5
    assert "rho" not in dal.start.config.method
    assert dal.start.config.net["width"] == 4
    assert "rho" not in training(Entry("oe", "oe"), DEMO, 0, ["method.rho=5"]).config.method
    with pytest.raises(ConfigError, match="none of ce, oe takes the override 'method.rho=5'"):
        check_overrides(["ce", "oe"], "demo", ["method.rho=5"])
    assert training(Entry("x", "oe", None, ("train.epochs=7",)), DEMO, 0).start.config.train.epochs != 7


def test_the_key_is_what_decides_the_outcome_and_nothing_else(monkeypatch):
    def key(*overrides, seed=0, method="oe", protocol=DEMO):
        return training(Entry(method, method), protocol, seed, overrides).key

    assert key() == key("data.root=/elsewhere") == key(protocol=replace(DEMO, test={"far": DEMO.test["far"]}))
    others = [key(seed=1), key("train.epochs=3"), key("net.width=3"), key(method="dal"), key("data.outlier_count=9")]
    assert len({key(), *others}) == 6
    before = training(Entry("oe", "oe"), DEMO, 0)
    longer_start = replace(before, start=Training(changed(before.start.config, ["train.epochs=99"])))
    assert longer_start.key != before.key
    known = key()
    monkeypatch.setattr(jobs, "code", lambda names: "other code")
    assert key() != known


def test_a_fingerprint_sees_images_labels_and_counts(tmp_path):
    images, labels = np.zeros((9, 8, 8, 1), np.uint8), np.arange(9) % 3

    def of(name, images, labels):
        np.savez(tmp_path / f"{name}.npz", images=images, labels=labels)
        return fingerprint(name, str(tmp_path), "test", 8)

    first = of("a", images, labels)
    assert of("b", images, labels) == first  # neither name nor place
    other = images.copy()
    other[4, 0, 0] = 1
    assert len({first, of("c", other, labels), of("d", images, labels[::-1]), of("e", images[:8], labels[:8])}) == 4


# ---- jobs


def test_processes_train_what_this_process_would(done, place, tmp_path):
    """Two trainings at a time in processes of their own leave the same weights."""
    ones = [training(Entry("ce", "ce"), DEMO, seed, TINY) for seed in (0, 1)]
    told = []
    train_all(ones, tmp_path, jobs=2, tell=told.append)
    assert told == ["1/2 demo/ce, seed 0", "2/2 demo/ce, seed 1"]
    for one in ones:
        mine, theirs = (one.folder(root) / "detector" / "model.safetensors" for root in (tmp_path, place / "cache"))
        assert mine.read_bytes() == theirs.read_bytes()


def stub(monkeypatch, script):
    """Processes that run `script` with the run's folder as argument instead of training."""

    def begin(one, root, count):
        folder = one.folder(root)
        (folder / "detector").mkdir(parents=True)
        with (folder / "output.txt").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-c", script, str(folder)], stdout=output, stderr=output, start_new_session=True
            )

    monkeypatch.setattr(jobs, "_begin", begin)


FINISH = "import pathlib, sys; (pathlib.Path(sys.argv[1]) / 'detector' / 'detector.json').write_text('{}')"


def test_what_is_started_from_comes_first(tmp_path, monkeypatch):
    stub(monkeypatch, FINISH)
    told = []
    train_all([training(Entry("oe", "oe"), DEMO, seed) for seed in (0, 1)], tmp_path, jobs=4, tell=told.append)
    assert [line.split(" ", 1)[1] for line in told] == [f"demo/{m}, seed {s}" for m in ("ce", "oe") for s in (0, 1)]
    assert told[0].startswith("1/4")


def begun(told):
    return sorted(line.split(" ", 1)[1] for line in told if line[0].isdigit())


def test_a_failure_is_told_with_the_last_line_of_its_output_and_the_others_go_on(tmp_path, monkeypatch):
    """Seed 0 cannot be pre-trained: its fine-tuning is not begun, the other seeds' are."""
    stub(monkeypatch, f"import sys\nif '-ce-s0-' in sys.argv[1]: sys.exit('error: no such data')\n{FINISH}")
    told = []
    wanted = [training(Entry("oe", "oe"), DEMO, seed) for seed in (0, 1, 2)]
    problems = train_all(wanted, tmp_path, jobs=2, tell=told.append)
    assert begun(told) == ["demo/ce, seed 0", *(f"demo/{m}, seed {s}" for m in ("ce", "oe") for s in (1, 2))]
    assert len(problems) == 2
    assert "demo-ce-s0-" in problems[0]
    assert "error: no such data" in problems[0]
    assert problems[1] == "demo/oe, seed 0 was not begun: what it starts from failed"
    assert [one.finished(tmp_path) for one in wanted] == [False, True, True]


def finish(config, run, resume):
    """Instead of training: leave what a finished run has."""
    (run / "detector").mkdir(parents=True, exist_ok=True)
    (run / "detector" / "detector.json").write_text("{}")


def test_a_failure_in_this_process_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    def train(config, run, resume):
        if config.train.seed == 0:
            raise RuntimeError("CUDA out of memory")
        finish(config, run, resume)

    monkeypatch.setattr(jobs, "train", train)
    wanted = [training(Entry("oe", "oe"), DEMO, seed) for seed in (0, 1)]
    problems = train_all(wanted, tmp_path)
    assert [one.finished(tmp_path) for one in wanted] == [False, True]
    assert "CUDA out of memory" in problems[0]
    assert "was not begun" in problems[1]


def test_killed_in_the_middle_and_started_again_trains_only_what_is_left(tmp_path, monkeypatch):
    wanted, trained = [training(Entry("oe", "oe"), DEMO, seed) for seed in (0, 1)], []

    def train(config, run, resume):
        trained.append((config.method["name"], config.train.seed))
        if len(trained) == 3:
            raise KeyboardInterrupt
        finish(config, run, resume)

    monkeypatch.setattr(jobs, "train", train)
    with pytest.raises(KeyboardInterrupt):
        train_all(wanted, tmp_path)
    assert train_all(wanted, tmp_path) == []
    assert trained == [("ce", 0), ("ce", 1), ("oe", 0), ("oe", 0), ("oe", 1)]


@pytest.mark.parametrize("count", [1, 2])
def test_what_another_process_trains_is_left_to_it(tmp_path, monkeypatch, count):
    """Seed 0 is in other hands: seed 1 is trained meanwhile, and when it is done its result is used."""
    wanted = [training(Entry("ce", "ce"), DEMO, seed) for seed in (0, 1)]
    other, told, sleep = RunLock(wanted[0].folder(tmp_path)), [], jobs.time.sleep
    other.__enter__()

    def let_it_finish(seconds):
        sleep(seconds)
        if wanted[1].finished(tmp_path) and not wanted[0].finished(tmp_path):
            finish(None, wanted[0].folder(tmp_path), True)
            other.__exit__(None, None, None)

    monkeypatch.setattr(jobs, "train", finish)
    monkeypatch.setattr(jobs.time, "sleep", let_it_finish)
    stub(monkeypatch, FINISH)
    assert train_all(wanted, tmp_path, jobs=count, tell=told.append) == []
    assert begun(told) == ["demo/ce, seed 1"]


def test_a_process_that_was_overtaken_waits_for_the_other(tmp_path, monkeypatch):
    """Both saw a free folder; the slower one's process meets the lock and ends, and the result comes from the other."""
    wanted = [training(Entry("ce", "ce"), DEMO, seed) for seed in (0, 1)]
    folder, told, sleep = wanted[0].folder(tmp_path), [], jobs.time.sleep
    other = RunLock(folder)

    def take_the_lock_then_finish(seconds):
        sleep(seconds)
        if not (folder / ".lock").exists():
            other.__enter__()
        elif any("by another process" in line for line in told) and not wanted[0].finished(tmp_path):
            finish(None, folder, True)
            other.__exit__(None, None, None)

    monkeypatch.setattr(jobs.time, "sleep", take_the_lock_then_finish)
    lost = "import pathlib, sys, time\nwhile not (pathlib.Path(sys.argv[1]) / '.lock').exists(): pass\nsys.exit(1)"
    stub(monkeypatch, f"import sys\nif '-s0-' in sys.argv[1]:\n exec({lost!r})\n{FINISH}")
    assert train_all(wanted, tmp_path, jobs=2, tell=told.append) == []
    assert "demo/ce, seed 0 is being trained by another process; its result will be used" in told


SHARED = """
import sys
from pathlib import Path
from farout.compare import How, compare
place, tiny = Path(sys.argv[1]), tuple(sys.argv[3:])
how = How(1, overrides=tiny, cache=place / "cache", resamples=40, tell=print)
compare(["ce"], "demo", how, folder=place / sys.argv[2])
"""


def test_two_processes_share_a_cache(tmp_path):
    """At the same time on one cache: the run is trained and tested by one of them, and both have its rows."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SHARED, tmp_path, name, *TINY], stdout=subprocess.PIPE, text=True, env=environment
        )
        for name in ("a", "b")
    ]
    told = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert (tmp_path / "a" / "results.jsonl").read_text() == (tmp_path / "b" / "results.jsonl").read_text()
    assert "".join(told).count("testing demo/ce") == 1
    [run] = (tmp_path / "cache").glob("demo-*")
    steps = [json.loads(line)["step"] for line in (run / "log.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))


def test_an_interrupt_asks_every_process_once_and_waits(tmp_path, monkeypatch):
    waits = (
        "import pathlib, signal, sys\n"
        "def stop(*_): (pathlib.Path(sys.argv[1]) / 'saved').touch(); sys.exit(130)\n"
        "signal.signal(signal.SIGINT, stop)\n"
        "(pathlib.Path(sys.argv[1]) / 'ready').touch()\n"
        "signal.pause()\n"
    )
    stub(monkeypatch, waits)
    ones = [training(Entry("ce", "ce"), DEMO, seed) for seed in (0, 1, 2)]

    sent = []

    def interrupt_when_both_are_ready(seconds):
        if not sent and len(list(tmp_path.glob("*/ready"))) == 2:
            sent.append(signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(jobs.time, "sleep", interrupt_when_both_are_ready)
    with pytest.raises(Interrupted, match="what was under way is saved"):
        train_all(ones, tmp_path, jobs=2)
    assert len(list(tmp_path.glob("*/saved"))) == 2


# ---- the command line


def test_compare_and_table_commands(cli, done, place, tmp_path, monkeypatch):
    monkeypatch.setattr(How, "__init__", _with_few_resamples(How.__init__))
    code, out, err = cli("compare", "ce,oe", *TINY, "--seeds", 2, "--cache", place / "cache", "--run", tmp_path / "out")
    assert code == 0, err
    assert "oe" in out
    assert "too few to judge the training noise" in out
    assert "95 % intervals" in out
    code, out, _ = cli("table", tmp_path / "out", "--layout", "csv")
    assert code == 0
    assert {line["method"] for line in csv.DictReader(io.StringIO(out))} == {"ce", "oe"}
    code, _, _ = cli("table", tmp_path / "out", "--layout", "openood", "--out", tmp_path / "openood")
    assert sorted(path.name for path in (tmp_path / "openood").iterdir()) == ["ce.csv", "oe.csv"]
    code, _, _ = cli("table", tmp_path / "out", "--layout", "latex", "--positive", "ood", "--out", tmp_path / "t.tex")
    assert "OOD as the positive side" in (tmp_path / "t.tex").read_text()
    code, _, err = cli("table", tmp_path / "nowhere")
    assert (code, "no such run" in err) == (1, True)


def _with_few_resamples(init):
    def begin(self, *arguments, **named):
        init(self, *arguments, **{**named, "resamples": 60})

    return begin


def test_errors_of_the_commands(cli, tmp_path):
    code, _, err = cli("compare", "ce", "--protocol", "paper-cifar10", "--root", tmp_path)
    assert code == 1
    assert "--skip-missing" in err
    code, _, err = cli("compare", "cee", "--cache", tmp_path)
    assert code == 1
    assert "there is no recipe demo/cee" in err
    code, out, _ = cli("list", "protocols", "--json")
    assert "paper-imagenet" in [row["name"] for row in json.loads(out)]
    for command in ("compare", "table", "reproduce"):
        assert "Example" in cli(command, "--help")[1]
    assert farout.cli.bench.app.registered_commands


def test_absent_sets_are_left_out_when_asked_and_the_table_says_so(place, tmp_path):
    text = "id: demo/digits\noutliers: demo/outliers\nrecipes: demo\nsize: 8\nheld_out: 0.25\n"
    (tmp_path / "mine.yaml").write_text(text + "test: {far: [demo/noise, nowhere/scenes]}\n")
    with pytest.raises(DataError, match="nowhere/scenes"):
        compare(["ce"], tmp_path / "mine.yaml", how(place, seeds=1), folder=tmp_path / "out")
    found = compare(["ce"], tmp_path / "mine.yaml", how(place, seeds=1), folder=tmp_path / "out", skip_missing=True)
    assert {row["ood"] for row in found.rows} == {"demo/noise"}
    assert "Left out because absent: nowhere/scenes" in (tmp_path / "out" / "table.md").read_text()
    shutil.rmtree(tmp_path / "out")
    assert Path(tmp_path / "mine.yaml").is_file()
