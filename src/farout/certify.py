"""The certificate of a detector: how high the outlier risk can be within a distance ρ of a set."""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from farout.data.source import ImageSet
from farout.detector import Detector
from farout.errors import ConfigError
from farout.report.histogram import COLOURS, pyplot
from farout.scores.embed import embed
from farout.types import Row
from farout.worst_case.certificate import Cost, Domain, head_constants, worst_risk


def linear_head(detector: Detector) -> nn.Linear:
    """The detector's head, which the closed forms need to be linear."""
    head = detector.net.head
    if not isinstance(head, nn.Linear):
        raise ConfigError(f"a certificate needs a linear head, this detector's is a {type(head).__name__}")
    return head


def certify(
    detector: Detector, samples: ImageSet, rho: Sequence[float], cost: Cost = "l1", domain: Domain | None = None
) -> list[Row]:
    """Bounds on the worst-case outlier risk over the W1 ball of each radius around a set, in embedding space.

    One row a radius: `lower` and `upper` on the features' domain (by default non-negative if all of them are), and
    `reals`, the exact value where features may be anything. Risks are mean ℓ_OE in nats, at least log K; radii are in
    sum-norm units of the features. Lower is better.
    """
    head, features = linear_head(detector), embed(detector.net, samples).outputs.features
    domain = domain or ("nonnegative" if bool((features >= 0).all()) else "reals")
    inside = worst_risk(features, head.weight, head.bias, list(rho), cost, domain)
    everywhere = worst_risk(features, head.weight, head.bias, list(rho), cost, "reals")
    constants = head_constants(head.weight.detach())
    fixed = {
        "set": samples.name,
        "count": len(samples),
        "cost": cost,
        "domain": domain,
        "risk": worst_risk(features, head.weight, head.bias, 0.0, cost, "reals").lower.item(),
        "lipschitz": (constants.l if cost == "l1" else constants.l2).item(),
        "l_plus": constants.l_plus.item(),
        "l_minus": constants.l_minus.item(),
    }
    bounds = zip(rho, inside.lower.tolist(), inside.upper.tolist(), everywhere.upper.tolist(), strict=True)
    return [{**fixed, "rho": r, "lower": low, "upper": high, "reals": exact} for r, low, high, exact in bounds]


def certificate_curve(rows: Sequence[Row], path: Path) -> Path:
    """Worst-case risk against ρ: a band between the bounds, and the exact line where features may be anything."""
    plt = pyplot("drawing the certificate")
    rows = sorted(rows, key=lambda row: row["rho"])
    rho = [row["rho"] for row in rows]
    figure, axis = plt.subplots(figsize=(5.2, 3.4))
    lower, upper = [row["lower"] for row in rows], [row["upper"] for row in rows]
    label = f"features {rows[0]['domain']}"
    axis.fill_between(rho, lower, upper, color=COLOURS[0], alpha=0.3)
    axis.plot(rho, upper, color=COLOURS[0], marker="o", ms=3, label=f"{label}, upper")
    axis.plot(rho, lower, color=COLOURS[0], marker="o", ms=3, ls="--", label=f"{label}, lower")
    axis.plot(rho, [row["reals"] for row in rows], color=COLOURS[1], lw=1.3, label="features anything, exact")
    axis.axhline(rows[0]["risk"], color="black", lw=0.8, ls=":", label="risk on the set itself")
    axis.set_xlabel(f"ρ, radius of the ball ({rows[0]['cost']})")
    axis.set_ylabel("worst-case outlier risk (nats)")
    axis.set_title(f"{rows[0]['set']}, {rows[0]['count']} samples", fontsize=10)
    axis.legend(frameon=False, fontsize=8)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path
