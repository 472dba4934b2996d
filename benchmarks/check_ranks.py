"""Whether two ranks end equal, and where one process ends, on one device.

    PYTHONPATH=src python benchmarks/check_ranks.py --out benchmarks/results       # on the GPU, if there is one

NCCL refuses two ranks on one GPU; gloo takes CUDA tensors, and DDP and SyncBatchNorm with them, so that one GPU is
enough to see the code path of several. "ranks" is the largest difference between the two ranks' states after two epochs
of the demo's digits (0: bit for bit), "one" that between them and one process with the same global batch: rounding,
where batch statistics are the global batch's (SyncBatchNorm, on CUDA only) and nothing in a step is random. "synced"
counts the SyncBatchNorm layers. The exit status is 1 where ranks differ.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from recording import ROOT, Row, about, parser, table, write


def child(method: str, device: str, rank: str, count: str, folder: str) -> None:
    """One rank: train, and leave the state in a file of its own."""
    import torch
    import torch.distributed as dist

    from farout import build
    from farout.config import Config
    from farout.training import Checkpoints, RunLog, fit

    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = "0"  # all on one GPU
    if count != "1":
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=int(rank), world_size=int(count))
    tree = Config.load("demo/oe").to_dict()
    tree |= {"method": {"name": method}, "start": None}
    tree["train"] |= {"epochs": 2, "device": device, "log_every": 1}
    job = build.job(Config.from_dict(tree))
    log, checkpoints = RunLog(Path(folder) / "log.jsonl"), Checkpoints(Path(folder) / "checkpoints")
    fit(job.descent, job.pairs, job.schedule, job.plan, checkpoints, log)
    synced = sum(isinstance(part, torch.nn.SyncBatchNorm) for part in job.net.modules())
    state = {name: value.cpu() for name, value in job.descent.objective.state_dict().items()}
    torch.save({"state": state, "synced": synced}, Path(folder) / f"rank-{rank}.pt")
    if count != "1":
        dist.destroy_process_group()


def trained(method: str, device: str, count: int, folder: Path) -> list[Row]:
    """What each of `count` ranks ended with."""
    import torch

    path = f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    folder.mkdir()
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, "--child", method, device, str(rank), str(count), str(folder)],
            env=os.environ | {"PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    said = [rank.communicate()[1] for rank in ranks]
    for rank, words in zip(ranks, said, strict=True):
        if rank.returncode:
            raise RuntimeError((words.strip().splitlines() or [f"exit status {rank.returncode}"])[-1][:400])
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(count)]


def farthest(left: Row, right: Row) -> float:
    """The largest difference between two states."""
    pairs = ((value.double(), right["state"][name].double()) for name, value in left["state"].items())
    return max((float((a - b).abs().max()) for a, b in pairs if a.numel()), default=0.0)


def judged(method: str, device: str) -> Row:
    row: Row = {"method": method}
    with tempfile.TemporaryDirectory() as spare:
        try:
            one = trained(method, device, 1, Path(spare) / "one")
            two = trained(method, device, 2, Path(spare) / "two")
        except RuntimeError as error:
            return row | {"verdict": "error", "error": str(error)}
    apart = farthest(*two)
    return row | {
        "verdict": "equal" if apart == 0 else "not equal",
        "ranks": apart,
        "one": farthest(one[0], two[0]),
        "synced": two[0]["synced"],
    }


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
        return 0
    options = parser(__doc__)
    options.add_argument("--methods", nargs="*", default=["ce", "oe", "dal"])
    options.add_argument("--device", help="cuda if there is one")
    asked = options.parse_args()
    import torch

    device = asked.device or ("cuda" if torch.cuda.is_available() else "cpu")
    rows = []
    for method in asked.methods[:1] if asked.quick else asked.methods:
        rows.append(judged(method, device))
        print(json.dumps(rows[-1]), flush=True)
    write(about(device) | {"backend": "gloo", "quick": asked.quick, "rows": rows}, "ranks", asked.out, device)
    keys = ("method", "verdict", "ranks", "one", "synced")
    print(table(keys, [[row.get(key, row.get("error", "")) for key in keys] for row in rows]))
    return int(any(row["verdict"] != "equal" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
