"""The numbers that the paper prints, as facts with their source, and what is wrong in them.

Wang, Fang, Zhang, Liu, Li, Han: Learning to Augment Distributions for Out-of-Distribution Detection, NeurIPS 2023.
One CSV a table as printed; corrections.csv beside them, from docs/paper-errata.md.
"""

import csv
from functools import cache
from importlib import resources
from typing import NamedTuple


class Printed(NamedTuple):
    """One cell in percent: `right` is the corrected value, None where none is known; `why` is empty where it stands."""

    value: float
    right: float | None
    why: str

    @property
    def best(self) -> float:
        """The corrected value where there is one, else the printed one."""
        return self.value if self.right is None else self.right

    def text(self) -> str:
        """`2.68`, `2.68 [2.67]` where it is corrected, `96.87 [?]` where it is wrong and the right one not known."""
        if not self.why:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} [{'?' if self.right is None else f'{self.right:.2f}'}]"


Column = tuple[str, str]  # set (or average), metric as printed
Table = dict[tuple[str, str], dict[Column, Printed]]  # (ID set, row) -> cells


def _lines(name: str) -> list[dict[str, str]]:
    text = (resources.files("farout") / "paper" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()[1:]))


@cache
def corrections() -> dict[tuple[str, str, str, str], tuple[float | None, str]]:
    """(table, ID set, row, column) -> the right value and why."""
    return {
        (line["table"], line["id"], line["row"], line["column"]): (
            float(line["right"]) if line["right"] else None,
            line["why"],
        )
        for line in _lines("corrections")
    }


@cache
def printed(name: str) -> Table:
    """A table of the paper by its short name: table1, hard, accuracy, scores, trials, hyper, epochs, ..."""
    table: Table = {}
    for line in _lines(name):
        place = line.pop("id"), line.pop("row")
        cells = {}
        for column, value in line.items():
            right, why = corrections().get((name, *place, column), (None, ""))
            where, _, metric = column.partition(" ")
            if value:
                cells[where, metric] = Printed(float(value), right, why)
        table[place] = cells
    return table
