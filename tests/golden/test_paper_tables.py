"""docs/paper-errata.md against the paper's printed numbers: every wrong average is listed, with the right value."""

import csv
import re
from decimal import Decimal
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "paper-errata.md"
ROUNDING = Decimal("0.005")  # what printing two decimals may do
METRICS = ("FPR95", "AUROC")


def printed(name):
    """Rows of a printed table, numbers as exact decimals."""
    lines = (HERE / name).read_text().splitlines()
    assert lines[0].startswith("# Printed in Wang")
    words = ("id", "method", "trial")
    return [{k: v if k in words else Decimal(v) for k, v in row.items()} for row in csv.DictReader(lines[1:])]


TABLE_1, TRIALS, IMAGENET = (printed(f"paper_{name}.csv") for name in ("table1", "trials", "imagenet"))
SINGLE = [*TABLE_1, *IMAGENET, *(row for row in TRIALS if row["trial"].startswith("#"))]


def cells(row, metric):
    """The test sets' own numbers, without the average."""
    return [v for k, v in row.items() if k.endswith(metric) and not k.startswith("average")]


def mean(values):
    return sum(values) / len(values)


def std(values):
    """Divided by n."""
    return mean([(v - mean(values)) ** 2 for v in values]).sqrt()


def place(row, column):
    return ", ".join([*(row[k] for k in ("id", "method", "trial") if k in row), column])


def wrong_averages():
    """Place -> printed, recomputed."""
    found = {}
    for row in SINGLE:
        for metric in METRICS:
            shown, real = row[f"average {metric}"], mean(cells(row, metric))
            if abs(shown - real) > ROUNDING:
                found[place(row, f"average {metric}")] = (shown,), (real,)
    return found


def of_trials(identity, method, column):
    """The five numbers of a column, averages recomputed from their cells."""
    rows = [row for row in SINGLE if (row["id"], row["method"]) == (identity, method) and "trial" in row]
    assert len(rows) == 5
    average, metric = column.startswith("average"), column.split()[-1]
    return [mean(cells(row, metric)) if average else row[column] for row in rows]


def wrong_summaries():
    """Place -> (printed mean, printed std), (recomputed mean, recomputed std)."""
    found = {}
    means, stds = ([row for row in TRIALS if row["trial"] == name] for name in ("mean", "std"))
    for shown_mean, shown_std in zip(means, stds, strict=True):
        for column in (k for k, v in shown_mean.items() if isinstance(v, Decimal)):
            values = of_trials(shown_mean["id"], shown_mean["method"], column)
            shown, real = (shown_mean[column], shown_std[column]), (mean(values), std(values))
            if any(abs(a - b) > ROUNDING for a, b in zip(shown, real, strict=True)):
                found[place(shown_mean | {"trial": "mean ± std"}, column)] = shown, real
    return found


def listed():
    """Place -> printed, should be: the lines of the page that are row means or summaries, found by arithmetic."""
    found = {}
    for line in PAGE.read_text().splitlines():
        columns = [c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]]
        pattern = r"(CIFAR-10|CIFAR-100|ImageNet), [\w +-]+, ((#\d|mean ± std), )?\w+ (FPR95|AUROC)"
        if len(columns) == 4 and re.fullmatch(pattern, columns[0]) and columns[3].startswith("A"):
            assert columns[0] not in found
            found[columns[0]] = tuple(tuple(map(Decimal, c.split(" ± "))) for c in columns[1:3])
    return found


def test_the_page_lists_every_wrong_average_and_no_other():
    wrong = wrong_averages() | wrong_summaries()
    assert set(listed()) == set(wrong)
    for where, (shown, should_be) in listed().items():
        assert shown == wrong[where][0], where
        assert all(abs(a - b) <= ROUNDING for a, b in zip(should_be, wrong[where][1], strict=True)), where


def test_there_are_as_many_as_were_counted_by_hand():
    assert [len(wrong_averages()), len(wrong_summaries())] == [18, 23]


def test_every_pair_is_possible():
    """0.95 (100 − f) <= AUROC <= 100 − 0.05 f in per cent."""
    for row in SINGLE:
        for name in (k.removesuffix(" FPR95") for k in row if k.endswith("FPR95")):
            f, auroc = row[f"{name} FPR95"], row[f"{name} AUROC"]
            assert Decimal("0.95") * (100 - f) <= auroc <= 100 - f / 20, place(row, name)


def test_dal_on_cifar100_is_trial_1_but_for_one_cell():
    (row,) = (r for r in TABLE_1 if (r["id"], r["method"]) == ("CIFAR-100", "DAL"))
    (trial,) = (r for r in TRIALS if (r["id"], r["method"], r["trial"]) == ("CIFAR-100", "DAL", "#1"))
    differ = {k: (str(row[k]), str(trial[k])) for k in row if k in trial and row[k] != trial[k]}
    assert differ == {"Places365 AUROC": ("90.81", "88.81"), "average AUROC": ("93.92", "93.52")}


def test_the_gains_over_five_trials():
    gains = [
        mean(of_trials(identity, "OE", "average FPR95")) - mean(of_trials(identity, "DAL", "average FPR95"))
        for identity in ("CIFAR-10", "CIFAR-100")
    ]
    assert [round(g, 2) for g in gains] == [Decimal("1.39"), Decimal("11.30")]
    assert "DAL gains 1.39 (CIFAR-10) and 11.30 (CIFAR-100)" in PAGE.read_text()
    for row in TABLE_1:
        if row["method"] == "OE":
            assert row["average FPR95"] > max(of_trials(row["id"], "OE", "average FPR95"))


def test_only_dal_and_doe_come_in_steps_of_a_twentieth():
    coarse = {r["method"] for r in TABLE_1 if all(v * 20 % 1 == 0 for v in cells(r, "FPR95"))}
    assert coarse == {"DAL", "DOE"}
    assert all(v * 20 % 1 == 0 for r in TRIALS if r["trial"].startswith("#") for v in cells(r, "FPR95"))
