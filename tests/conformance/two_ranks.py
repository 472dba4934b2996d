"""What each of two ranks does; a module of its own, because spawned processes import it by name."""

from pathlib import Path

import tiny
import torch
import torch.distributed as dist

from farout.methods import METHODS
from farout.training import fit


def work(rank: int, folder: str) -> None:
    """One rank: all methods, one after the other; what it ends with goes to a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for name in sorted(METHODS):
        job, checkpoints, log = tiny.start(name, Path(folder) / name, "train.epochs=2")
        chosen = []
        method = job.descent.objective.method
        inner = method.begin_epoch

        def begin(net, outliers, epoch, inner=inner, chosen=chosen):
            chosen.append(inner(net, outliers, epoch))
            return chosen[-1]

        method.begin_epoch = begin
        fit(job.descent, job.pairs, job.schedule, job.plan, checkpoints, log)
        state = {"state": job.descent.objective.state_dict(), "chosen": chosen}
        torch.save(state, Path(folder) / f"{name}-{rank}.pt")
    dist.destroy_process_group()
