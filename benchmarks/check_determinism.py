"""Whether `train.deterministic=true` gives the same bits twice, method by method.

    PYTHONPATH=src python benchmarks/check_determinism.py --out benchmarks/results     # on the GPU, if there is one
    PYTHONPATH=src python benchmarks/check_determinism.py --quick                      # three methods

Every method of the table trains twice from one seed through `farout.train`, two epochs of the demo's digits, a tiny
network, a process each (as cuBLAS reads its setting once); all tensors of the last checkpoint, and every number of the
log but the speed, are compared bit for bit. "engines" are those asked for; a method that cannot run so says why. The
exit status is 1 where bits differ.
"""

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from recording import ROOT, Row, about, parser, table, write

SMALL = {name: {"pool": 300, "keep": 120} for name in ("atom", "ntom", "poem")} | {"vos": {"start_epoch": 0}}
NETS = {
    "small-conv": {"name": "small-conv", "in_channels": 1, "width": 8},
    "wrn": {"name": "wrn", "depth": 10, "width": 1, "dropout": 0.3, "in_channels": 1},
}


def config(method: str, engine: str, device: str, net: str) -> Row:
    """The demo's recipe with another method."""
    from farout.config import Config

    tree = Config.load("demo/oe").to_dict()
    tree |= {"method": {"name": method, **SMALL.get(method, {})}, "net": NETS[net], "start": None}
    tree["train"] |= {"epochs": 2, "device": device, "deterministic": True, "engine": engine, "log_every": 5}
    return tree


def child(method: str, engine: str, device: str, net: str, folder: str) -> None:
    """Train once; the run's folder is the answer."""
    import warnings

    from farout.config import Config
    from farout.run import train

    warnings.simplefilter("ignore")
    train(Config.from_dict(config(method, engine, device, net)), run=folder)


def trained(method: str, engine: str, device: str, net: str, folder: Path) -> str:
    """The last line of what went wrong, or nothing."""
    path = f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, __file__, "--child", method, engine, device, net, str(folder)]
    ended = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    said = ended.stderr.strip().splitlines() or [f"exit status {ended.returncode}"]
    return said[-1][:400] if ended.returncode else ""


def same(a: object, b: object) -> bool:
    """Bit for bit: NaN equals itself, 0.0 and -0.0 differ."""
    import torch

    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        alike = a.shape == b.shape and a.dtype == b.dtype
        raw = [t.contiguous().reshape(-1).view(torch.uint8) if t.numel() else t for t in (a, b)]
        return alike and torch.equal(*raw)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def compared(first: Path, second: Path) -> Row:
    """What of two runs differs."""
    from farout.training import load_state
    from farout.training.log import read_rows

    newest = [sorted((folder / "checkpoints").glob("step-*.pt"))[-1] for folder in (first, second)]
    states = [load_state(path) for path in newest]
    weights = states[0]["objective"], states[1]["objective"]
    differ = [name for name in weights[0] if not same(weights[0][name], weights[1].get(name))]
    differ += [part for part in ("optimizer", "selection", "progress") if not same(states[0][part], states[1][part])]
    logs = [
        [{key: value for key, value in row.items() if key != "images_per_second"} for row in read_rows(f / "log.jsonl")]
        for f in (first, second)
    ]
    differ += [] if same(*logs) else ["log"]
    return {
        "verdict": "not equal" if differ else "equal",
        "tensors": len(weights[0]),
        "steps": states[0]["progress"]["step"],
        "differ": differ[:20],
    }


def judged(method: str, engine: str, device: str, net: str) -> Row:
    row: Row = {"method": method, "engine": engine, "net": net}
    with tempfile.TemporaryDirectory() as spare:
        folders = Path(spare) / "a", Path(spare) / "b"
        for folder in folders:
            wrong = trained(method, engine, device, net, folder)
            if wrong:
                return row | {"verdict": "error", "error": wrong}
        try:
            return row | compared(*folders)
        except Exception as error:  # one method's trouble is no reason to leave out the others
            return row | {"verdict": "error", "error": f"{type(error).__name__}: {error}"}


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
        return 0
    options = parser(__doc__)
    options.add_argument("--methods", nargs="*", help="all by default")
    options.add_argument("--engines", nargs="*", default=["eager"], help="train.engine, e.g. eager graphed")
    options.add_argument("--net", choices=NETS, default="small-conv")
    options.add_argument("--jobs", type=int, default=1, help="methods at a time")
    options.add_argument("--device", help="cuda if there is one")
    asked = options.parse_args()
    import torch

    from farout.methods import METHODS

    device = asked.device or ("cuda" if torch.cuda.is_available() else "cpu")
    methods = asked.methods or (["ce", "oe", "dal"] if asked.quick else list(METHODS))
    rows = []
    with ThreadPoolExecutor(asked.jobs) as pool:
        cases = [(method, engine, device, asked.net) for engine in asked.engines for method in methods]
        for row in pool.map(lambda case: judged(*case), cases):
            rows.append(row)
            print(json.dumps(row), flush=True)
    result = about(device, ["triton"]) | {"net": NETS[asked.net], "quick": asked.quick, "rows": rows}
    write(result, "determinism", asked.out, device)
    shown = [
        [row["method"], row["engine"], row["verdict"], ", ".join(row.get("differ", []))[:60] or row.get("error", "")]
        for row in rows
    ]
    print(table(["method", "engine", "verdict", "what"], shown))
    return int(any(row["verdict"] == "not equal" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
