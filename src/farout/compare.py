"""Methods side by side under one protocol: every seed trained once, tested once, and judged in pairs.

With each seed one network is pre-trained; every method that fine-tunes starts from that very checkpoint, so that
methods differ in nothing else and are compared seed by seed, image by image.
"""

import json
import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from farout.config import Config, EvalConfig
from farout.entries import Entry, check_overrides, score_of, training
from farout.errors import ConfigError, FaroutError, TrainingError
from farout.jobs import TESTING_CODE, Tell, Training, code, digest, fingerprint, train_all
from farout.leakage import leakage
from farout.plugins import sources
from farout.protocols import OODSet, Protocol, load_protocol, ready
from farout.report.histogram import read_scores
from farout.report.layouts import FPR, notes
from farout.report.layouts import markdown as wide_markdown
from farout.report.table import COLUMNS, ordered
from farout.run import Run, evaluate, load_run
from farout.statistics import (
    METRICS,
    RESAMPLES,
    Difference,
    delong,
    difference,
    holm,
    interval,
    replicates,
    seeds_interval,
    verdict,
)
from farout.training import read_rows
from farout.training.checkpoint import write_atomically
from farout.training.lock import patient
from farout.types import Row

CACHE, FOLDER = Path("runs/cache"), Path("runs/compare")


@dataclass(frozen=True)
class How:
    """How the work is done; nothing in it changes a number but `resamples`, `overrides` and which seeds there are."""

    seeds: int = 5
    jobs: int = 1
    overrides: tuple[str, ...] = ()
    cache: Path = CACHE
    resamples: int = RESAMPLES
    leakage: str = "warn"  # or refuse, none: images that training and test sets share
    tell: Tell = lambda line: None
    first_seed: int = 0


HOW = How()


@dataclass(frozen=True)
class Tested:
    """One entry with one seed: its rows, its scores {set: (N,)}, its replicates {(set, metric): (R,)}."""

    entry: Entry
    seed: int
    rows: list[Row]
    scores: dict[str, Any]
    draws: dict[tuple[str, str], Any]
    run: Path
    test: Path
    config: Config


@dataclass(frozen=True)
class Comparison:
    """What came out: result rows, paired differences as rows, sentences, and a line for each run that failed."""

    rows: list[Row]
    differences: list[Row]
    verdicts: list[str]
    notes: list[str]
    tested: list[Tested]
    intervals: list[Row]  # of every set and the average, over seeds and images
    folder: Path
    problems: Sequence[str] = ()


def compare(
    methods: Sequence[str | Entry],
    protocol: str | Path | Protocol = "demo",
    how: How = HOW,
    *,
    ours: str | None = None,
    root: str | None = None,
    skip_missing: bool = False,
    recipes: str | None = None,
    folder: Path | None = None,
) -> Comparison:
    """Train and test every method with every seed, and judge `ours` (the last one) against each of the others.

    `recipes` is another family of recipes than the protocol's.
    A run that fails is left out and named in `problems`; pairs are judged by the seeds that both have.

    >>> compare(["ce", "oe", "dal"], "demo", How(seeds=5)).verdicts                    # doctest: +SKIP
    """
    entries = list(dict.fromkeys(entry if isinstance(entry, Entry) else Entry.parse(entry) for entry in methods))
    chosen = ready(protocol if isinstance(protocol, Protocol) else load_protocol(protocol), root, skip_missing)
    chosen = replace(chosen, recipes=recipes or chosen.recipes)
    mine = _ours(entries, ours)
    how = at_root(how, root)
    shared = leaks(entries, chosen, how)
    tested, problems = results(entries, chosen, how)
    rows = [row for one in tested for row in one.rows]
    pairs = [_pair(tested, mine, other, chosen.positive) for other in entries if other != mine]
    differences = _with_holm([row for pair in pairs for row in pair])
    told = [row["verdict"] for row in differences if row["set"] == "average"]
    remarks = [*notes(rows, chosen.positive), *_more_notes(chosen, entries), *shared]
    there = [entry for entry in entries if any(one.entry == entry for one in tested)]
    bounds = [row for entry in there for row in _intervals([one for one in tested if one.entry == entry])]
    done = Comparison(rows, differences, told, remarks, tested, bounds, folder or FOLDER / chosen.name, problems)
    with patient(done.folder, how.tell):
        _write(done, chosen.positive)
        lay_out(tested, done.folder)
    return done


def at_root(how: How, root: str | None) -> How:
    """The same with the data's root as an override."""
    return how if root is None else replace(how, overrides=(*how.overrides, f"data.root={json.dumps(root)}"))


def _ours(entries: Sequence[Entry], ours: str | None) -> Entry:
    if not entries:
        raise ConfigError("there is nothing to compare; name methods, e.g. ce,oe,dal")
    if ours is None:
        return entries[-1]
    for entry in entries:
        if ours in (entry.label, f"{entry.label}:{entry.score}"):
            return entry
    raise ConfigError(f"--ours {ours!r} is none of the methods: {', '.join(entry.label for entry in entries)}")


def _more_notes(protocol: Protocol, entries: Sequence[Entry]) -> list[str]:
    told = [protocol.note] if protocol.note else []
    if len(entries) > 2:
        told.append(f"{len(entries) - 1} comparisons: p_holm in differences.jsonl is corrected for their number.")
    return told


def leaks(entries: Sequence[Entry], protocol: Protocol, how: How) -> list[str]:
    """A line for each finding among the sets of this comparison."""
    trainings = (training(entry, protocol, 0, how.overrides) for entry in entries)
    return leakage((_asked(one, protocol) for one in trainings), how.cache, how.leakage, how.tell)


def results(entries: Sequence[Entry], protocol: Protocol, how: How) -> tuple[list[Tested], list[str]]:
    """Every entry with every seed, entry by entry, and a line for each run that failed; what is there is read."""
    check_overrides([entry.method for entry in entries], protocol.recipes, how.overrides)
    seeds = range(how.first_seed, how.first_seed + how.seeds)
    wanted = [(e, seed, training(e, protocol, seed, how.overrides)) for e in entries for seed in seeds]
    problems = train_all([one for _, _, one in wanted], how.cache, how.jobs, how.tell)
    begun = []
    with ThreadPoolExecutor(how.jobs) as pool:  # replicates of one test are drawn while the next one runs
        for entry, seed, one in wanted:
            if one.finished(how.cache):
                try:
                    folder, config = _test(entry, seed, one, protocol, how)
                except (FaroutError, RuntimeError, OSError) as error:  # RuntimeError: what torch raises
                    problems.append(f"testing {one.config.name}, seed {seed} failed: {error}")
                    how.tell(problems[-1])
                    continue
                begun.append((entry, seed, one, folder, config, pool.submit(_bootstrap, folder, how.resamples)))
    if not begun:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise TrainingError(f"nothing could be trained and tested: {problems[0]}{more}")
    tested = []
    for entry, seed, one, folder, config, drawn in begun:
        drawn.result()
        tested.append(_read(folder, entry, seed, one, protocol, how.cache, config))
    return tested, problems


def _asked(one: Training, protocol: Protocol, score: Any = None) -> Config:
    """A run's config with the protocol's tests; leaks are looked for once, not test by test."""
    data = replace(one.config.data, test=protocol.apply(one.config).data.test)
    asked = EvalConfig([] if score is None else [score], ood_count=protocol.ood_count, leakage="none")
    return replace(one.config, data=data, eval=asked)


def _test(entry: Entry, seed: int, one: Training, protocol: Protocol, how: How) -> tuple[Path, Config]:
    """Where results and scores of one run lie, made now if they are not there, and what was asked."""
    config = _asked(one, protocol, score_of(one.config, entry.score))
    folder = one.folder(how.cache) / "tests" / _test_key(one, protocol, config, how.resamples)[:12]
    if not (folder / "scores.npz").is_file():  # written last
        with patient(folder, how.tell):
            if not (folder / "scores.npz").is_file():  # another process may have made it meanwhile
                how.tell(f"testing {one.config.name}, seed {seed}, {config.eval.scores[0]}")
                evaluate(Run(folder, config, load_run(one.folder(how.cache)).detector))
    return folder, config


def _test_key(one: Training, protocol: Protocol, config: Config, resamples: int) -> str:
    data = config.data
    sets = [OODSet(data.id), *protocol.sets()]
    prints = [fingerprint(ood.path or ood.name, data.root, "test", data.size) for ood in sets]
    asked = [data.test, config.eval.scores, config.eval.ood_count, resamples]
    return digest(one.key, asked, prints, code(TESTING_CODE), *sources(config.eval.scores))


def _bootstrap(folder: Path, resamples: int) -> None:
    """Replicates of every metric; sets share the ID images of each resample, methods and seeds all images."""
    if (folder / "bootstrap.npz").is_file():
        return
    [scores] = read_scores(folder).values()
    (_, inliers), *oods = scores.items()
    arrays = {}
    for number, (name, outliers) in enumerate(oods):
        made = replicates(id_scores=inliers, ood_scores=outliers, resamples=resamples, ood_stream=number)
        arrays.update({f"{metric}|{name}": values for metric, values in made.items()})
    write_atomically(folder / "bootstrap.npz", lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def _read(
    folder: Path, entry: Entry, seed: int, one: Training, protocol: Protocol, cache: Path, config: Config
) -> Tested:
    [scores] = read_scores(folder).values()
    with np.load(folder / "bootstrap.npz", allow_pickle=False) as arrays:
        draws = {}
        for key in arrays.files:
            metric, _, name = key.partition("|")
            draws[name, metric] = arrays[key]
    about = {
        "protocol": protocol.name,
        "left_out": list(protocol.left_out),
        "trained": one.config.method["name"],
        "net": one.config.net["name"],
        "run": one.key[:12],
    }
    rows = [
        {**row, "method": entry.label, **about, **_bounds(row, draws)} for row in read_rows(folder / "results.jsonl")
    ]
    return Tested(entry, seed, rows, scores, draws, one.folder(cache), folder, config)


def _bounds(row: Row, draws: dict[tuple[str, str], Any]) -> Row:
    """The bootstrap's 95 % interval of every FPR95 and AUROC: how far other test images would move it."""
    found = {}
    for metric in METRICS:
        bounds = interval(row[metric], draws[row["ood"], metric])
        found.update({f"{metric}_low": bounds.low, f"{metric}_high": bounds.high})
    return found


def _intervals(ones: Sequence[Tested]) -> list[Row]:
    """The 95 % interval of every metric's mean over seeds, for each set and the average."""
    sets = ordered(row["ood"] for row in ones[0].rows)
    rows = []
    for name, within in [*((name, [name]) for name in sets), ("average", sets)]:
        row: Row = {"method": ones[0].entry.label, "score": ones[0].rows[0]["score"], "set": name, "seeds": len(ones)}
        for metric in METRICS:
            draws = np.stack([_average_draws(one, metric, within) for one in ones])
            value, low, high = seeds_interval([_average(one, metric, within) for one in ones], draws)
            row |= {metric: value, f"{metric}_low": max(0.0, low), f"{metric}_high": min(1.0, high)}
        rows.append({**row, "accuracy": _accuracy(ones)})
    return rows


def _accuracy(ones: Sequence[Tested]) -> float:
    return float(np.mean([one.rows[0]["accuracy"] for one in ones]))


def interval_table(bounds: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """Set by set, in percent: `12.3 [10.1, 14.5]`."""
    lines = []
    for name in ordered(row["set"] for row in bounds):
        for row in (row for row in bounds if row["set"] == name):
            cells = [f"{100 * row[m]:.2f} [{100 * row[f'{m}_low']:.1f}, {100 * row[f'{m}_high']:.1f}]" for m in METRICS]
            lines.append([name.rpartition("/")[2], row["method"], row["score"], *cells, f"{100 * row['accuracy']:.2f}"])
    return ["set", "method", "score", *(COLUMNS[metric] for metric in METRICS), COLUMNS["accuracy"]], lines


def _pair(tested: Sequence[Tested], first: Entry, second: Entry, positive: str) -> list[Row]:
    """First minus second for every set and their average, in FPR95 of the protocol's side and AUROC."""
    both = {one.seed for one in tested if one.entry == first} & {two.seed for two in tested if two.entry == second}
    if not both:
        return []
    ones = [one for one in tested if one.entry == first and one.seed in both]
    twos = [two for two in tested if two.entry == second and two.seed in both]
    sets = ordered(row["ood"] for row in ones[0].rows)
    rows = []
    for metric in (FPR[positive], "auroc"):
        for name, within in [*((name, [name]) for name in sets), ("average", sets)]:
            found = _difference(ones, twos, metric, within)
            names = _name(first), _name(second)
            rows.append(
                {
                    "first": names[0],
                    "second": names[1],
                    "set": name,
                    "metric": metric,
                    **found._asdict(),
                    "verdict": verdict(*names, metric, found),
                }
            )
    return rows


def _name(entry: Entry) -> str:
    return entry.label if entry.score is None else f"{entry.label} ({entry.score})"


def _difference(ones: Sequence[Tested], twos: Sequence[Tested], metric: str, sets: Sequence[str]) -> Difference:
    p_images = None
    if metric == "auroc" and len(sets) == 1:  # DeLong's formula is exact where the bootstrap is a draw
        p_images = delong(*([_scored(one, sets[0]) for one in side] for side in (ones, twos))).p
    values = [[_average(one, metric, sets) for one in side] for side in (ones, twos)]
    draws = [np.stack([_average_draws(one, metric, sets) for one in side]) for side in (ones, twos)]
    return difference(values[0], values[1], draws[0], draws[1], p_images)


def _scored(one: Tested, name: str) -> tuple[Any, Any]:
    return one.scores[one.rows[0]["id"]], one.scores[name]


def _average(one: Tested, metric: str, sets: Sequence[str]) -> float:
    return float(np.mean([row[metric] for row in one.rows if row["ood"] in sets]))


def _average_draws(one: Tested, metric: str, sets: Sequence[str]) -> Any:
    return np.mean([one.draws[name, metric] for name in sets], axis=0)


def _with_holm(differences: list[Row]) -> list[Row]:
    """p corrected for the number of opponents, set by set and metric by metric."""
    for place in {(row["set"], row["metric"]) for row in differences}:
        family = [row for row in differences if (row["set"], row["metric"]) == place]
        for row, p in zip(family, holm([row["p"] for row in family]), strict=True):
            row["p_holm"] = p
    return differences


def _write(done: Comparison, positive: str) -> None:
    texts = {
        "results.jsonl": "".join(json.dumps(row) + "\n" for row in done.rows),
        "intervals.jsonl": "".join(json.dumps(row) + "\n" for row in done.intervals),
        "differences.jsonl": "".join(json.dumps(row) + "\n" for row in done.differences),
        "table.md": wide_markdown(done.rows, positive)
        + "".join(f"\n- {line}" for line in [*done.verdicts, *(f"Missing: {line}" for line in done.problems)])
        + "\n",
    }
    for name, text in texts.items():
        write_atomically(done.folder / name, lambda file, text=text: _put(file, text))  # type: ignore[misc]


def lay_out(tested: Sequence[Tested], folder: Path) -> None:
    """Ordinary run folders METHOD/sSEED below `folder`, for `farout report`, `eval` and `table`; links to the cache."""
    for one in tested:
        name = f"{one.entry.label}-{one.entry.score}" if one.entry.score else one.entry.label
        place = folder / re.sub(r"[^\w.=+-]+", "-", name) / f"s{one.seed}"
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(place / "config.yaml", lambda file, one=one: _put(file, one.config.to_yaml()))  # type: ignore[misc]
        for file in ("results.jsonl", "scores.npz"):
            shutil.copyfile(one.test / file, place / file)
        for part in ("detector", "checkpoints", "log.jsonl"):
            (place / part).unlink(missing_ok=True)
            (place / part).symlink_to((one.run / part).resolve())


def _put(file: Any, text: str) -> None:
    file.write(text.encode())
