"""The smallest run of each method that exercises all of it, on the demo's digits."""

from pathlib import Path
from typing import Any

from farout import build
from farout.config import Config
from farout.training import Checkpoints, RunLog, fit

# What a method needs to show all of itself within two epochs of six steps.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "dal": {"warmup": 1, "rho": 0.001},
    "dal-input": {"num_search": 2},
    "mixoe": {"mode": "cut"},
    "atom": {"pool": 300, "keep": 120, "attack_steps": 2},
    "ntom": {"pool": 300, "keep": 120},
    "poem": {"pool": 300, "keep": 120},
    "doe": {"warmup": 1},
    "vos": {"start_epoch": 1, "queue": 8, "samples": 50},
}


def config(method: str, *overrides: str) -> Config:
    tree = Config.load("demo/oe").to_dict()
    tree["method"] = {"name": method, **ARGUMENTS.get(method, {})}
    tree["net"] |= {"width": 4}
    tree["data"] |= {"batch_size": 100, "outlier_batch_size": 50}
    tree["train"] |= {"epochs": 2, "log_every": 1, "device": "cpu"}
    tree["optim"]["lr"] = 0.01
    tree["eval"]["scores"] = []
    return Config.from_dict(tree) if not overrides else Config.from_dict(_changed(tree, overrides))


def _changed(tree: dict[str, Any], overrides: tuple[str, ...]) -> dict[str, Any]:
    from farout.config import merge, parse_override

    for override in overrides:
        tree = merge(tree, parse_override(override))
    return tree


def start(method: str, folder: Path, *overrides: str):
    return build.job(config(method, *overrides)), Checkpoints(folder / "checkpoints"), RunLog(folder / "log.jsonl")


def run(method: str, folder: Path, *overrides: str):
    job, checkpoints, log = start(method, folder, *overrides)
    fit(job.descent, job.pairs, job.schedule, job.plan, checkpoints, log)
    return job
