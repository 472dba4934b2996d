"""Draw the pictures of docs/worst-case.md: a worst case in two dimensions, and what γ does under each rule.

python docs/worst_case_pictures.py
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from farout.losses import ce_to_uniform
from farout.methods import METHODS
from farout.nets.net import Net
from farout.report.histogram import COLOURS, pyplot
from farout.types import Batch
from farout.worst_case import RULES, DualVariable, closed_form_search
from farout.worst_case.vertex import vertex

IMAGES = Path(__file__).resolve().parent / "images"
RHO = 0.8


def toy() -> Batch:
    """Three ID clusters in the plane of features, and auxiliary outliers on one side of them only."""
    torch.manual_seed(0)
    centres = torch.tensor([[4.0, 0.5], [0.5, 4.0], [4.0, 4.0]])
    y = torch.arange(3).repeat(60)
    return Batch(centres[y] + 0.45 * torch.randn(180, 2), y, torch.tensor([1.6, 1.2]) + 0.35 * torch.randn(90, 2))


def trained(batch: Batch, method: nn.Module | None) -> Net:
    """A linear classifier of the plane, with cross-entropy alone or with a method of farout's."""
    torch.manual_seed(1)
    net = Net(nn.Identity(), nn.Linear(2, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(400):
        terms = method.loss(net, batch) if method else {"ce": F.cross_entropy(net(batch.x).logits, batch.y)}
        optimizer.zero_grad()
        sum(terms.values()).backward()
        optimizer.step()
    return net


def draw_toy(plt) -> None:
    batch = toy()
    nets = {
        "cross-entropy": trained(batch, None),
        "outlier exposure": trained(batch, METHODS["oe"](alpha=1.0)),
        "DAL, exact vertex": trained(batch, METHODS["dal-vertex"](alpha=1.0, rho=RHO)),
    }
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.7), sharex=True, sharey=True)
    grid = torch.stack(
        torch.meshgrid(torch.linspace(-0.5, 5.5, 160), torch.linspace(-0.5, 5.5, 160), indexing="xy"), -1
    )
    for axis, (name, net) in zip(axes, nets.items(), strict=True):
        risk = ce_to_uniform(net.head(grid.view(-1, 2))).detach().view(160, 160)
        shades = axis.contourf(
            grid[..., 0], grid[..., 1], risk, levels=[1.0986 + 0.5 * n for n in range(11)], cmap="Greys", extend="max"
        )
        axis.scatter(*batch.x.T, s=8, color=COLOURS[0], label="ID")
        axis.scatter(*batch.x_out.T, s=8, color=COLOURS[1], label="auxiliary outliers")
        p, value = vertex(batch.x_out, net.head.weight.detach(), net.head.bias.detach(), RHO)
        axis.quiver(
            *batch.x_out[::3].T,
            *p[::3].T,
            angles="xy",
            scale_units="xy",
            scale=1,
            width=0.004,
            color=COLOURS[4],
            label="their worst case",
        )
        plain = ce_to_uniform(net.head(batch.x_out)).mean().item()
        axis.set_title(f"{name}\nrisk {plain:.2f}, worst case {value.mean().item():.2f}", fontsize=9)
        axis.set_aspect("equal")
        axis.set_xlim(-0.5, 5.5)
        axis.set_ylim(-0.5, 5.5)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="lower center", ncol=3, frameon=False, bbox_to_anchor=(0.45, 0.06))
    figure.colorbar(shades, ax=axes, shrink=0.8, label="outlier risk (nats)")
    figure.savefig(IMAGES / "worst-case-toy.png", dpi=130, bbox_inches="tight")
    plt.close(figure)


def trace(rule: str, rho: float, ps: float, batches: int = 300) -> dict[str, list[float]]:
    """γ, radius and gain over batches of outliers in front of one fixed random head, K = 10, D = 128."""
    torch.manual_seed(0)
    head, dual, seen = nn.Linear(128, 10), DualVariable(rho, 0.01, 0.01, 10.0), {"gamma": [], "radius": [], "gain": []}
    nn.init.normal_(head.weight, std=0.3)
    for _ in range(batches):
        z = torch.rand(256, 128)
        worst = closed_form_search(head, z, RULES[rule].draw(z), dual.gamma, steps=10, step_size=ps, rule=RULES[rule])
        dual.update(worst.cost)
        seen["gamma"].append(dual.gamma.item())
        seen["radius"].append(dual.radius.item())
        seen["gain"].append((ce_to_uniform(head(z + worst.p)) - ce_to_uniform(head(z))).mean().item())
    return seen


def draw_traces(plt) -> None:
    runs = {
        "reference (released), ρ = 10": ("reference", 10.0, 1.0),
        "paper (Algorithm 1), ρ = 10": ("paper", 10.0, 1.0),
        "proximal, ρ = 10": ("proximal", 10.0, 1.0),
    }
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.0))
    titles = ("γ", "radius, in the rule's own units", "gain in outlier risk (nats)")
    for number, (name, (rule, rho, ps)) in enumerate(runs.items()):
        seen = trace(rule, rho, ps)
        for axis, key in zip(axes, ("gamma", "radius", "gain"), strict=True):
            axis.plot(seen[key], color=COLOURS[number], lw=1.3, label=name)
    axes[1].axhline(10, color="black", lw=0.8, ls=":", label="ρ")
    axes[1].set_yscale("log")
    axes[2].set_yscale("symlog")
    for axis, title in zip(axes, titles, strict=True):
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("batch", fontsize=8)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(IMAGES / "gamma-traces.png", dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    pictures = pyplot("drawing the documentation's pictures")
    draw_toy(pictures)
    draw_traces(pictures)
