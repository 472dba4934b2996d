"""What stands behind each line of the paper's tables: a method, a score, a change to its recipe.

Labels are the paper's own, so that the printed numbers of `farout.paper` find their line.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from farout.entries import Entry, recipe_of
from farout.paper import Table, printed
from farout.protocols import Protocol

CIFAR = ("paper-cifar10", "paper-cifar100")
BOTH = {"FPR95": "fpr95_id", "AUROC": "auroc"}
SHOWN = {"MSP": "msp", "Free Energy": "energy", "ASH": "ash", "Mahalanobis": "mahalanobis", "KNN": "knn"}

Entries = Callable[[Protocol, str], list[Entry]]


@dataclass(frozen=True)
class Plan:
    """How a table is made: its lines, given the protocol and the name of DAL's recipe, and how they are read."""

    what: str
    entries: Entries
    protocols: tuple[str, ...] = CIFAR
    metrics: Mapping[str, str] | None = None  # as printed -> as in our rows; FPR95 and AUROC by default
    group: str = "far"  # the sets that its averages are over
    seeds: int = 3
    by_seed: bool = False  # a line for each seed

    def reads(self) -> Mapping[str, str]:
        return BOTH if self.metrics is None else self.metrics


def paper_id(table: Table, protocol: Protocol) -> str:
    """The ID set of the paper whose numbers stand beside ours; a table may have but one."""
    known = list(dict.fromkeys(name for name, _ in table))
    return protocol.paper if protocol.paper in known else known[0]


def _post_hoc() -> list[Entry]:
    return [Entry(label, "ce", score) for label, score in SHOWN.items()]


def _table1(protocol: Protocol, dal: str) -> list[Entry]:
    return [
        *_post_hoc(),
        Entry("KNN+", "supcon", "knn"),
        Entry("CSI", "csi"),
        Entry("VOS", "vos"),
        Entry("OE", "oe"),
        Entry("Energy-OE", "energy-oe"),
        Entry("ATOM", "atom"),
        Entry("DOE", "doe"),
        Entry("POEM", "poem"),
        Entry("DAL", dal),
    ]


def _hard(protocol: Protocol, dal: str) -> list[Entry]:
    wanted = ("Free Energy", "ASH", "KNN+", "CSI", "OE", "DOE", "POEM", "DAL")
    return [entry for entry in _table1(protocol, dal) if entry.label in wanted]


def _accuracy(protocol: Protocol, dal: str) -> list[Entry]:
    trained = [entry for entry in _table1(protocol, dal)[len(SHOWN) :] if entry.label != "KNN+"]
    return [Entry("ERM", "ce"), *trained]


def _scores(protocol: Protocol, dal: str) -> list[Entry]:
    trainings = {"w/o train": "ce", "w/ OE": "oe", "w/ DAL": dal}
    return [Entry(f"{row}, {label}", way, s) for row, way in trainings.items() for label, s in SHOWN.items()]


def _pair(protocol: Protocol, dal: str) -> list[Entry]:
    return [Entry("OE", "oe"), Entry("DAL", dal)]


def _hyper(protocol: Protocol, dal: str) -> list[Entry]:
    """Every setting that the paper prints for this ID set; a label is its own list of changes."""
    labels = [row for (name, row) in printed("hyper") if name == paper_id(printed("hyper"), protocol)]
    return [Entry(label, dal, None, tuple(f"method.{part}" for part in label.split())) for label in labels]


def _epochs(protocol: Protocol, dal: str) -> list[Entry]:
    longer = f"train.epochs={recipe_of(protocol.recipes, dal).train.epochs}"
    return [Entry("OE", "oe", None, (longer,)), Entry("DAL", dal)]


def _norms(protocol: Protocol, dal: str) -> list[Entry]:
    return [Entry("l1", dal), Entry("l2", dal, None, ("method.cost=l2",))]


def _probe(protocol: Protocol, dal: str) -> list[Entry]:
    head = ("train.only_head=true",)
    kinds = {"linear probe": head, "fine tune": ()}
    ways = {"OE": "oe", "DAL": dal}
    return [Entry(f"{label}, {kind}", way, None, c) for label, way in ways.items() for kind, c in kinds.items()]


def _fnr(protocol: Protocol, dal: str) -> list[Entry]:
    return [Entry("MSP", "ce", "msp"), *_pair(protocol, dal)]


def _imagenet(protocol: Protocol, dal: str) -> list[Entry]:
    kept = [entry for entry in _table1(protocol, dal) if entry.label not in ("KNN+", "CSI")]
    return [*kept, Entry("DAL-ASH", dal, "ash"), Entry("DAL-Energy", dal, "energy")]


def _figures(protocol: Protocol, dal: str) -> list[Entry]:
    """FPR95 against ρ for two step sizes (Figure 3), and the networks before and after DAL (Figure 2)."""
    sweep = [(ps, rho) for ps in ("1", "10") for rho in ("1e-2", "1e-1", "1", "10", "100")]
    swept = [Entry(f"ps={ps} rho={rho}", dal, None, (f"method.ps={ps}", f"method.rho={rho}")) for ps, rho in sweep]
    return [Entry("ce", "ce"), Entry("DAL", dal), *swept]


PLANS: Mapping[str, Plan] = {
    "table1": Plan("Table 1: every method", _table1),
    "hard": Plan("Table 2: hard outliers", _hard, ("paper-hard-cifar10",), group="near"),
    "accuracy": Plan("Table 4: ID accuracy", _accuracy, metrics={"accuracy": "accuracy"}),
    "scores": Plan("Table 5: scores", _scores),
    "trials": Plan("Tables 6 and 7: five trials", _pair, seeds=5, by_seed=True),
    "hyper": Plan("Tables 8 to 11: hyper-parameters", _hyper, seeds=1),
    "epochs": Plan("Table 12: OE trained as long as DAL", _epochs),
    "norms": Plan("Table 13: the cost", _norms),
    "probe": Plan("Table 14: linear probing", _probe, ("paper-cifar100",), {"FPR95": "fpr95_id"}),
    "fnr": Plan(
        'Table 15: "FNR95", which is FPR95 with OOD positive',
        _fnr,
        (*CIFAR, "paper-hard-cifar10"),
        {"FPR95 (OOD+)": "fpr95_ood"},
    ),
    "imagenet": Plan("Table 16: ImageNet", _imagenet, ("paper-imagenet",)),
    "figures": Plan("Figures 2 and 3", _figures, seeds=1),
}
