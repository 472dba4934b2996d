"""Tables of docs/results.md and the README, from results/fast-*/, results/local-*/ and results/tuning/."""

import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scipy.special import stdtrit

from farout.report.table import markdown, ordered
from farout.training.log import read_rows

RESULTS = Path(__file__).resolve().parent.parent / "results"
SETS = ("cifar10", "cifar100")


def _range(row: dict, metric: str) -> str:
    return f"{100 * row[metric]:.2f} [{100 * row[f'{metric}_low']:.1f}, {100 * row[f'{metric}_high']:.1f}]"


def averages(folder: str) -> str:
    """One line a method and score: both FPR95 and AUROC averaged over the OOD sets, with intervals."""
    rows = [row for row in read_rows(RESULTS / folder / "intervals.jsonl") if row["set"] == "average"]
    lines = []
    for row in rows:
        ranges = [_range(row, metric) for metric in ("fpr95_id", "fpr95_ood", "auroc")]
        lines.append([row["method"], row["score"], *ranges, f"{100 * row['accuracy']:.2f}"])
    return markdown(["method", "score", "FPR95", "FPR95 (OOD+)", "AUROC", "ID accuracy"], lines)


def by_set(folder: str) -> str:
    """FPR95 of every set, means over seeds."""
    rows = read_rows(RESULTS / folder / "intervals.jsonl")
    sets = ordered(row["set"] for row in rows)
    lines = []
    for key in dict.fromkeys((row["method"], row["score"]) for row in rows):
        mine = {row["set"]: row for row in rows if (row["method"], row["score"]) == key}
        lines.append([*key, *(f"{100 * mine[each]['fpr95_id']:.2f}" for each in sets)])
    return markdown(["method", "score", *sets], lines)


def verdicts(folder: str) -> str:
    """What differs from CE and OE on average over the sets, seed by seed and image by image."""
    lines = []
    for path in sorted((RESULTS / folder).glob("differences*.jsonl")):
        rows = [row for row in read_rows(path) if row["set"] == "average" and "dal" not in row["second"]]
        lines += [f"- {row['verdict']}" for row in rows]
    return "\n".join(dict.fromkeys(lines)) + "\n"


def tuning(name: str) -> str:
    """Validation FPR95 of every point that was tried."""
    study, lines = json.loads((RESULTS / "tuning" / "short.json").read_text()), []
    for row in (row for row in study["trials"] if row["id"] == name):
        point = ", ".join(f"{key} {value}" for key, value in row.items() if key not in ("id", "method", "fpr95_id"))
        lines.append([row["method"], point, f"{100 * row['fpr95_id']:.2f}"])
    return markdown(["method", "score", "FPR95"], lines).replace("| method | score |", "| method | point |")


PAIRS = (("dal", "oe"), ("oe-wide", "oe"), ("dal-wide", "oe"), ("dal-wide", "oe-wide"), ("dal-wide", "dal"))


def pairs(folder: str) -> str:
    """FPR95 and AUROC of one method against another, both with the same score: difference, interval, p."""
    found = {}
    for path in sorted((RESULTS / folder).glob("differences*.jsonl")):
        rows = [row for row in read_rows(path) if row["set"] == "average"]
        found.update({(row["first"], row["second"], row["metric"]): row for row in rows})
    lines = []
    for score in ("msp", "energy"):
        for one, other in PAIRS:
            names = [name if score == "msp" else f"{name} ({score})" for name in (one, other)]
            cells = [_change(found.get((*names, metric))) for metric in ("fpr95_id", "auroc")]
            lines.append([f"{one} − {other}", score, *cells])
    return markdown(["difference", "score", "FPR95", "AUROC"], lines)


def _change(row: dict | None) -> str:
    if row is None:
        return ""
    told = "**" if row["low"] > 0 or row["high"] < 0 else ""
    p = "p<0.001" if row["p"] < 0.001 else f"p={row['p']:.2g}"
    return f"{told}{100 * row['value']:+.1f} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]{told}, {p}"


def fast_tuning(folder: str) -> str:
    """Validation FPR95 and accuracy of every point, and FPR95 on the held-out auxiliary classes alone."""
    lines = []
    for row in read_rows(RESULTS / folder / "tuning.jsonl"):
        point = {key.rpartition(".")[2]: value for key, value in row.items() if "." in key}
        outliers = next(value for name, value in row["by_set"].items() if not name.startswith("synthetic"))
        shown = ", ".join(f"{key} {value}" for key, value in point.items())
        lines.append([row["study"], shown, *(f"{100 * x:.1f}" for x in (row["fpr95_id"], outliers, row["accuracy"]))])
    return _plain(["method", "point", "FPR95", "auxiliary classes", "ID accuracy"], lines)


CHANGES = {
    "oe a2": "none",
    "mix": "a blend of two outliers",
    "sharp": "sharpness",
    "colour": "colours",
    "all": "blend, sharpness, colours, two halves",
    "shuffle": "a fifth: shuffled patches of ID images",
    "swap": "an ID image's Fourier amplitudes",
    "dal tuned": "none; DAL as tuned for the short schedule",
}


def exploration(folder: str) -> str:
    """What was tried on the outliers, before `wide` was made: validation first, the test beside it."""
    lines = []
    for row in read_rows(RESULTS / folder / "exploration.jsonl"):
        judged = {name: value for name, value in row["validation_fpr95"].items() if name != "matched"}
        test = [fpr95 for fpr95, _ in row["test_fpr95_auroc"].values()]
        numbers = [sum(judged.values()) / len(judged), judged["raw"], sum(test) / len(test), 100 * row["accuracy"]]
        lines.append([CHANGES[row["outliers"]], *(f"{x:.1f}" for x in numbers)])
    return _plain(
        ["half of the outliers get", "validation FPR95", "auxiliary classes", "test FPR95", "accuracy"], lines
    )


def post_hoc(folder: str) -> str:
    """FPR95 / AUROC of every score on every network of seed 0, averaged over the sets."""
    rows = read_rows(RESULTS / folder / "scores.jsonl")
    methods, lines = ordered(row["method"] for row in rows), []
    for score in ordered(row["score"] for row in rows):
        cells = []
        for method in methods:
            mine = [row for row in rows if (row["method"], row["score"]) == (method, score)]
            mean = [100 * sum(row[metric] for row in mine) / len(mine) for metric in ("fpr95_id", "auroc")]
            cells.append(f"{mean[0]:.1f} / {mean[1]:.1f}")
        lines.append([score, *cells])
    return _plain(["score", *methods], lines)


def search() -> str:
    """What gamma, the search and the certificate did in the last quarter of training, means over seeds."""
    lines = []
    for name in SETS:
        rows = read_rows(RESULTS / f"fast-{name}" / "search.jsonl")
        for method in ordered(row["method"] for row in rows):
            mine = [row for row in rows if row["method"] == method]
            keys = ("gamma", "radius", "gain", "efficiency")
            lines.append([name, method, *(f"{sum(row[key] for row in mine) / len(mine):.3f}" for key in keys)])
    return _plain(["ID set", "method", "gamma", "radius", "gain in loss", "efficiency"], lines)


def discrepancy(folder: str) -> str:
    """W1 from the auxiliary outliers to each test set, and what each method changed in FPR95 there against OE."""
    lines = []
    for row in read_rows(RESULTS / folder / "discrepancy.jsonl"):
        gains = row["gains_over_oe"] or {}
        cells = [f"{100 * gains[m]['fpr95_id'][0]:+.1f}" if gains else "" for m in ("dal", "oe-wide", "dal-wide")]
        far = f"{row['ce']['w1']:.1f} ({row['ce']['least']:.1f})"
        before = f"{100 * row['oe']['fpr95_id']:.1f}" if gains else ""
        name = row["set"] if row["ood"] else f"{row['set']} (ID test)"
        lines.append([name, f"{row['w1']:.1f} ({row['least']:.1f})", far, before, *cells])
    return _plain(["set", "W1 after OE", "W1 after CE", "OE", "dal", "oe-wide", "dal-wide"], lines)


def _probe_rows(name: str, **wanted: object) -> list[dict]:
    rows = read_rows(RESULTS / f"probe-{name}" / "rows.jsonl")
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def _gap(rows: list[dict], base: list[dict], score: str) -> str:
    """FPR95 over the networks, and the 95 % t-interval of its paired difference from `base`."""
    before = {row["network"]: row[score]["fpr95"] for row in base}
    gaps = [100 * (row[score]["fpr95"] - before[row["network"]]) for row in rows]
    mean = statistics.fmean(gaps)
    half = float(stdtrit(len(gaps) - 1, 0.975)) * statistics.stdev(gaps) / len(gaps) ** 0.5
    level = 100 * statistics.fmean(row[score]["fpr95"] for row in rows)
    return f"{level:.1f}, {mean:+.1f} [{mean - half:.1f}, {mean + half:.1f}]"


def _probe_lines(found: dict[str, list[dict]], base: list[dict]) -> str:
    lines = [[name, *(_gap(rows, base, score) for score in ("msp", "energy"))] for name, rows in found.items()]
    level = [f"{100 * statistics.fmean(row[score]['fpr95'] for row in base):.1f}" for score in ("msp", "energy")]
    return _plain(["head", "FPR95, MSP", "FPR95, energy"], [["OE", *level], *lines])


def probe_search(name: str) -> str:
    """Linear probes: radius, steps and step size of the search, against OE with the same weight."""
    base = _probe_rows(name, study="tuning", method="oe", alpha=1.0, l2=0.001)
    found = {}
    for rho in (0.1, 1.0, 3.0, 10.0, 30.0):
        found[f"proximal, rho {rho:g}"] = _probe_rows(name, study="tuning", method="dal", alpha=1.0, rho=rho)
    for steps in (1, 5, 10, 20, 50):
        found[f"reference, {steps} steps of 0.1"] = _probe_rows(name, study="num_search", num_search=steps)
    for ps in (0.05, 0.5, 1.0, 5.0, 10.0):
        found[f"reference, 10 steps of {ps:g}"] = _probe_rows(name, study="ps", ps=ps)
    for rule, cost in ((r, c) for r in ("reference", "proximal") for c in ("l1", "l2")):
        found[f"{rule}, cost {cost}"] = _probe_rows(name, study="cost", rule=rule, cost=cost)
    return _probe_lines(found, base)


def probe_tuned(name: str) -> str:
    """Linear probes: of 30 heads each the one that validation likes best, network by network and score by score."""
    cells = []
    for score in ("msp", "energy"):
        best = []
        for method in ("oe", "dal"):
            rows = _probe_rows(name, study="tuning", method=method)
            networks = ordered(row["network"] for row in rows)
            mine = [[row for row in rows if row["network"] == network] for network in networks]
            best.append([min(each, key=lambda row: row[score]["validation"]) for each in mine])
        level = 100 * statistics.fmean(row[score]["fpr95"] for row in best[0])
        cells.append([score, f"{level:.1f}", _gap(best[1], best[0], score)])
    return _plain(["score", "OE, tuned", "DAL, tuned"], cells)


def probe_size(name: str) -> str:
    """Linear probes: FPR95 with MSP by the number of auxiliary outliers, OE's and DAL's difference from it."""
    lines = []
    for count in (100, 300, 1000, 3000, 5000):
        base = _probe_rows(name, study="size", method="oe", count=count)
        level = 100 * statistics.fmean(row["msp"]["fpr95"] for row in base)
        rules = [_probe_rows(name, study="size", rule=rule, count=count) for rule in ("proximal", "reference")]
        lines.append([f"{count:,}", f"{level:.1f}", *(_gap(rows, base, "msp") for rows in rules)])
    return _plain(["outliers", "OE", "DAL, proximal, rho 3", "DAL, reference, 10 steps of 0.1"], lines)


def fingerprints() -> str:
    """AUROC of spectra alone: the auxiliary set and each test set against ID images."""
    found = {}
    for name in SETS:
        file = json.loads((RESULTS / f"local-{name}" / "fingerprint.json").read_text())
        found[name] = {row["set"]: f"{row['auroc']:.3f}" for row in file["rows"]}
    sets = ordered(each for rows in found.values() for each in rows)
    return _plain(["AUROC", *found], [[each, *(rows.get(each, "") for rows in found.values())] for each in sets])


def _plain(header: list[str], lines: list[list[str]]) -> str:
    rows = [header, ["---"] * len(header), *lines]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def one_seed(folder: str, *methods: str) -> str:
    """Averages over the sets of some lines of seed 0; their own score and energy."""
    rows = [row for row in read_rows(RESULTS / folder / "one-seed-intervals.jsonl") if row["set"] == "average"]
    lines = []
    for method in methods:
        for row in (row for row in rows if row["method"] == method):
            numbers = (f"{100 * row[key]:.2f}" for key in ("fpr95_id", "fpr95_ood", "auroc", "accuracy"))
            lines.append([method, row["score"], *numbers])
    return markdown(["method", "score", "FPR95", "FPR95 (OOD+)", "AUROC", "ID accuracy"], lines)


def released() -> str:
    """DAL with the released settings against OE and our DAL, three seeds, CIFAR-100."""
    rows = [row for row in read_rows(RESULTS / "more-cifar100" / "differences.jsonl") if row["set"] == "average"]
    wanted = [row for row in rows if row["first"].startswith("dal-reference") and row["metric"] != "fpr95_ood"]
    return "".join(f"- {row['verdict']}\n" for row in wanted)


METHODS = ("ce", "oe", "energy-oe", "poem", "doe", "dal-reference", "dal", "oe-wide", "dal-wide")
PARTS: dict[str, Callable[[], str]] = {
    f"more-methods-{name}": partial(one_seed, f"more-{name}", *METHODS) for name in SETS
}
PARTS |= {
    f"more-epochs-{name}": partial(one_seed, f"more-{name}", "oe", "oe-10", "oe-50", "dal", "dal-50") for name in SETS
}
PARTS["more-size"] = partial(one_seed, "more-cifar100", "oe-1k", "dal-1k", "oe", "dal")
PARTS["more-radius"] = partial(one_seed, "more-cifar100", "oe", "dal-rho0.3", "dal", "dal-rho30")
PARTS["more-released"] = released
PARTS |= {"search-stats": search, "fingerprints": fingerprints}
for each in SETS:
    for title, make in (("averages", averages), ("by-set", by_set), ("verdicts", verdicts)):
        PARTS[f"{title}-{each}"] = partial(make, f"local-{each}")
    PARTS[f"tuning-{each}"] = partial(tuning, each)
    for title, make in (("search", probe_search), ("tuned", probe_tuned), ("size", probe_size)):
        PARTS[f"probe-{title}-{each}"] = partial(make, each)
    made = {"averages": averages, "by-set": by_set, "pairs": pairs, "tuning": fast_tuning}
    made |= {"exploration": exploration, "scores": post_hoc, "discrepancy": discrepancy}
    for title, make in made.items():
        PARTS[f"fast-{title}-{each}"] = partial(make, f"fast-{each}")
