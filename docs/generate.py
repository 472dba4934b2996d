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
from pathlib import Path

from farout.catalogue import catalogue
from farout.report.table import long_table, markdown
from farout.training.log import read_rows

ROOT = Path(__file__).resolve().parent.parent


def demo_table() -> str:
    """The demo's averages, from results/demo/results.jsonl."""
    header, lines = long_table(read_rows(ROOT / "results" / "demo" / "results.jsonl"))
    return markdown(header, lines)


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


PARTS: dict[str, Callable[[], str]] = {"demo": demo_table, "methods": methods_table, "scores": scores_table}
PARTS |= {"search-speed": search_speed, "step-speed": step_speed}
PARTS |= {"methods-reference": methods_reference, "scores-reference": scores_reference}


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
