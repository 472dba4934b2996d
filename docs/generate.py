"""Write the parts of the documentation that are made from code and results files.

    python docs/generate.py            # rewrite them
    python docs/generate.py --check    # fail if one is out of date

A part stands between `<!-- NAME -->` and `<!-- /NAME -->`; nothing outside is touched.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from farout.catalogue import catalogue
from farout.report.table import COLUMNS, long_table, markdown, ordered, seed_means, spread
from farout.training.log import read_rows

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))

import evidence_tables  # noqa: E402
import speed_tables  # noqa: E402


def demo_table() -> str:
    """The demo's averages over its sets, from results/demo/results.jsonl."""
    header, lines = long_table(read_rows(ROOT / "results" / "demo" / "results.jsonl"))
    return markdown(header[1:], [line[1:] for line in lines if line[0] == "average"])


def _cells(rows: list[dict[str, object]], columns: dict[str, str]) -> str:
    def cell(value: object) -> str:
        return ("yes" if value else "") if isinstance(value, bool) else str(value)

    return markdown(list(columns.values()), [[cell(row[key]) for key in columns] for row in rows])


def methods_table() -> str:
    columns = {"name": "method", "outliers": "auxiliary outliers", "outlier_class": "extra class", "score": "score"}
    return _cells(catalogue("methods"), {**columns, "paper": "paper"})


def scores_table() -> str:
    return _cells(catalogue("scores"), {"name": "score", "fitted": "fitted on ID data", "paper": "paper"})


def _entry(name: str, kind: type, facts: str, given: list[str]) -> str:
    """One method or score, in the same shape as all others."""
    text = inspect.cleandoc(kind.__doc__ or "")
    takes = f"Arguments: `{', '.join(given)}`\n\n" if given else ""
    return f"### `{name}`\n\n*{kind.paper}*\n\n{facts}\n\n```text\n{text}\n```\n\n{takes}"


def methods_reference() -> str:
    """Every method: paper, needs, docstring, arguments."""
    from farout.methods import METHODS

    entries = []
    for row in catalogue("methods"):
        needs = ["auxiliary outliers" if row["outliers"] else "ID data only"]
        needs += ["a head with an outlier class"] if row["outlier_class"] else []
        facts = f"Needs {', '.join(needs)}. Scored by `{row['score']}`."
        entries.append(_entry(row["name"], METHODS[row["name"]], facts, row["arguments"]))
    return "\n" + "".join(entries)


def scores_reference() -> str:
    """Every score: paper, needs, docstring, arguments."""
    from farout.scores import SCORES

    entries = []
    for row in catalogue("scores"):
        facts = "Fitted on ID training data." if row["fitted"] else "Nothing to fit."
        facts += " Sees the input itself." if row["uses_input"] else ""
        entries.append(_entry(row["name"], SCORES[row["name"]], facts, row["arguments"]))
    return "\n" + "".join(entries)


def _newest(subject: str) -> dict[str, object]:
    """The latest results file of a benchmark on the GPU."""
    found: dict[str, object] = json.loads(
        sorted((ROOT / "benchmarks" / "results").glob(f"*h200-{subject}.json"))[-1].read_text()
    )
    return found


def search_speed() -> str:
    """The search's implementations, from benchmarks/results/*-search.json."""
    result, lines = _newest("search"), []
    for row in result["times"]:
        if "ms" in row:
            shape = f"{row['M']}, {row['D']}, {row['K']}"
            floor = max(row["bytes_floor_ms"], row["flop_floor_ms"])
            lines.append(
                [shape, row["variant"], f"{row['ms']:.4f}", f"{row['times_oracle']:.1f}", f"{row['ms'] / floor:.0f}"]
            )
    return markdown(["set", "method", "ms", "times the oracle's speed", "times the floor"], lines).replace(
        "| set | method |", "| M, D, K | search |"
    )


def step_speed() -> str:
    """A whole training step, from benchmarks/results/*-step.json."""
    lines = [
        [shape, row["variant"], f"{row['ms']:.2f}", f"{row['images_per_second']:,.0f}"]
        for shape, rows in _newest("step")["shapes"].items()
        for row in rows
    ]
    return markdown(["set", "method", "ms", "images/s"], lines).replace("| set | method |", "| shape | step |")


def text_table(features: str) -> str:
    """The text example's rows, results/text/clinc150-*.jsonl, and how sure the differences by MSP are."""
    rows, lines = read_rows(ROOT / "results" / "text" / f"clinc150-{features}.jsonl"), []
    for method, score in dict.fromkeys((row["method"], row["score"]) for row in rows):
        mine = [row for row in rows if (row["method"], row["score"]) == (method, score)]
        cells = [spread(seed_means(mine, metric)) if metric in mine[0] else "" for metric in COLUMNS]
        lines.append([method, score, *cells])
    return markdown(["method", "score", *COLUMNS.values()], lines) + "\n" + _text_words(rows, features)


def _text_words(rows: list[dict[str, object]], features: str) -> str:
    chosen = []
    for method in ordered(row["method"] for row in rows if "l2" in row):
        row = next(row for row in rows if row["method"] == method)
        options = ", ".join(f"{key} {row[key]:g}" for key in ("l2", "alpha", "ps") if key in row)
        chosen.append(f"{method}: {options} (validation AUROC {100 * row['validation_auroc']:.2f})")
    apart = [
        [
            f"{row['first']} less {row['second']}",
            COLUMNS[row["metric"]],
            f"{100 * row['value']:+.2f}",
            f"{100 * row['low']:+.2f} to {100 * row['high']:+.2f}",
            f"{row['p']:.3f}" if row["p"] >= 0.001 else "< 0.001",
        ]
        for row in read_rows(ROOT / "results" / "text" / f"clinc150-{features}-differences.jsonl")
    ]
    table = markdown(["method", "measure", "Difference", "95 % interval", "p"], apart)
    return f"Chosen on validation data: {'; '.join(chosen)}.\n\n{table}"


def export_parity() -> str:
    """What exports differ by, score by score, from the newest benchmarks/results/*-cpu-export-parity.json."""
    path = sorted((ROOT / "benchmarks" / "results").glob("*-cpu-export-parity.json"))[-1]
    result = json.loads(path.read_text())
    rows, lines = result["pairs"], []
    for score in dict.fromkeys(row["score"] for row in rows):
        mine = [row for row in rows if row["score"] == score]
        done = {to: [row["score_apart_relative"] for row in mine if row.get("to") == to] for to in ("onnx", "torch")}
        largest = [f"{max(found):.1e}" if found else "" for found in done.values()]
        why = dict.fromkeys(row["not_fitted"] for row in mine if "not_fitted" in row)
        why |= dict.fromkeys(_no_names(row["refused"], row["method"]) for row in mine if "refused" in row)
        lines.append([score, str(len(done["onnx"])), *largest, "; ".join(why)])
    table = markdown(["score", "methods", "ONNX", "torch.export", "otherwise"], lines)
    wrong = sum(row["labels_differ"] + row["verdicts_differ"] for row in rows if "to" in row)
    made = sum("to" in row for row in rows)
    words = f"{made} exports, {result['inputs']} images each; labels or verdicts that differ: {wrong}"
    return f"{table}\n{words} (torch {result['versions']['torch']}, opset {result['opset']}).\n"


def _no_names(reason: str, method: str) -> str:
    return reason.replace(f"that of {method} has", "others have")


def probe_speed() -> str:
    """The linear probe beside scikit-learn, from the newest benchmarks/results/*-cpu-probe.json."""
    path = sorted((ROOT / "benchmarks" / "results").glob("*-cpu-probe.json"))[-1]
    result = json.loads(path.read_text())
    lines = [
        [row["variant"], f"{row['cpu_s']:.1f}", f"{row['cpu_ratio']:.2f}", f"{100 * row['accuracy']:.2f}"]
        for row in result["medians"]
    ]
    loads = [row["load"] for row in result["runs"]]
    rounds = len({row["round"] for row in result["runs"]})
    words = f"{result['rows']:,} rows; {rounds} interleaved round{'s' if rounds > 1 else ''}; {result['device']}"
    table = markdown(["method", "CPU seconds", "times LogisticRegression", "accuracy"], lines)
    return f"{table}\n{words}; load {min(loads):.0f} to {max(loads):.0f}.\n"


PARTS: dict[str, Callable[[], str]] = {"demo": demo_table, "methods": methods_table, "scores": scores_table}
PARTS |= {"search-speed": search_speed, "step-speed": step_speed}
PARTS |= {"methods-reference": methods_reference, "scores-reference": scores_reference}
PARTS |= {"text-minilm": partial(text_table, "minilm"), "text-tfidf": partial(text_table, "tfidf")}
PARTS |= {"export-parity": export_parity}
PARTS |= {"probe-speed": probe_speed} | speed_tables.PARTS | evidence_tables.PARTS


def filled(text: str) -> str:
    """The text with every known part written anew."""
    for name, make in PARTS.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if pattern.search(text):
            body = make()
            text = pattern.sub(lambda found, body=body: f"{found[1]}{body}{found[2]}", text)
    return text


def main() -> int:
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = path.read_text()
        if filled(text) != text:
            stale.append(path.relative_to(ROOT))
            if "--check" not in sys.argv:
                path.write_text(filled(text))
    print("\n".join(f"{'stale' if '--check' in sys.argv else 'written'}: {path}" for path in stale) or "up to date")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
