"""The parts of docs/performance.md that come from benchmarks/results/: one function a subject, newest file first.

Each says how its figures stand against what was asked for: reached, or not reached.
"""

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"


def newest(subject: str, device: str) -> dict[str, Any]:
    """The latest results file of a subject; `device` is cpu, or gpu for any other."""
    files = sorted(RESULTS.glob(f"*-{subject}.json"))
    mine = [path for path in files if path.name.endswith(f"-cpu-{subject}.json") == (device == "cpu")]
    if not mine:
        raise FileNotFoundError(f"no results of {subject!r} on a {device}; run benchmarks/bench_{subject}.py --out")
    found: dict[str, Any] = json.loads(mine[-1].read_text())
    return found


def markdown(header: Sequence[str], lines: Sequence[Sequence[object]], words: int = 1) -> str:
    """A Markdown table; the first `words` columns to the left, the others to the right."""
    rule = ["---" if place < words else "---:" for place in range(len(header))]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in (header, rule, *lines)) + "\n"


def verdict(good: bool, figure: str, asked: str) -> str:
    return f"{asked}: {'reached' if good else 'not reached'}, {figure}."


def how(result: dict[str, Any], *more: str) -> str:
    """One line: machine, versions, load where it is known, and what else matters."""
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    load = "" if result["load"] is None else f"load {result['load']}, "
    return f"{'; '.join([result['device'], versions, *more])}; {load}{result['date']}."


def circumstances(result: dict[str, Any]) -> str:
    """What ran beside a measurement, and where its figures come from if not from its script."""
    said = [f"Beside it ran {result['beside']}."] if "beside" in result else []
    said += [f"{result['source'][0].upper()}{result['source'][1:]}."] if "source" in result else []
    return "".join(f"{line}\n" for line in said)


def demo() -> str:
    result = newest("demo", "cpu")
    lines = [
        [row["variant"], f"{row['cpu_s']:.2f}", f"{row['cpu_over_farout']:.2f}", f"{row['wall_over_farout']:.2f}"]
        for row in result["medians"]
    ]
    by = {row["variant"]: row for row in result["medians"]}
    own, alone, plain = (by[name]["cpu_s"] for name in ("farout", "the steps alone", "the steps alone, nn.Conv2d"))
    others = {name: row for name, row in by.items() if name.startswith("DataLoader")}
    slowest = min(row["cpu_over_farout"] for row in others.values())
    beyond = " and ".join(f"{row['cpu_s'] - plain:.1f} s" for row in others.values())
    text = verdict(slowest >= result["target"], f"{slowest:.2f}", f"At least {result['target']:g} times as fast")
    share = [round(100 * result["convolution_share"][way]) for way in ("backward", "forward")]
    return (
        markdown(["loop", "CPU seconds", "times farout's", "in wall time"], lines)
        + f"\n{text} Of the steps with nn.Conv2d {share[0]} % is torch's convolution backward and {share[1]} % its "
        f"forward; ours train as matrix products, {plain / alone:.2f} times as fast. Beyond the steps farout takes "
        f"{own - alone:.1f} s with its logs, checkpoints and calibration, and the two DataLoader loops {beyond}.\n"
        + how(result, f"{result['rounds']} interleaved rounds, {result['threads']} thread")
        + "\n"
    )


def imports() -> str:
    result = newest("import", "cpu")
    lines = [
        [f"`{row['what']}`", f"{row['cpu_s']:.3f}", "yes" if row["loads_torch"] else "no"] for row in result["rows"]
    ]
    beyond, soon, asked = result["farout_beyond_torch_s"], result["help_s"], result["target"]
    took = {row["what"]: row["cpu_s"] for row in result["rows"]}
    itself = took["import farout"] - took["python"]
    names = took["farout.train, farout.Detector"] - took["import torch"]
    text = [
        verdict(
            beyond < asked["farout_beyond_torch_s"],
            f"{beyond:.3f} s, the difference of two whole processes, and {itself:.3f} s where torch is not loaded",
            f"`import farout` under {asked['farout_beyond_torch_s']} s beyond `import torch`",
        ),
        verdict(soon < asked["help_s"], f"{soon:.2f} s", f"`farout --help` under {asked['help_s']:g} s"),
    ]
    text.append(
        f"That is lazy: the first use of `farout.train` and `farout.Detector` takes {names:.2f} s beyond torch."
    )
    table, taken = markdown(["process", "CPU seconds", "loads torch"], lines), f"median of {result['rounds']} processes"
    return f"{table}\n{' '.join(text)}\n{how(result, taken)}\n"


def metrics() -> str:
    result = newest("metrics", "cpu")
    lines = [
        [
            row["kind"],
            row["variant"],
            f"{row['cpu_s']:.2f}",
            f"{row['cpu_times_sklearn']:.1f}",
            f"{row['peak_gb']:.2f}",
        ]
        for row in result["rows"]
    ]
    ours, asked = [row for row in result["rows"] if row["variant"] == "farout"], result["target"]
    slowest, most = min(row["cpu_times_sklearn"] for row in ours), max(row["peak_gb"] for row in ours)
    text = [
        verdict(slowest >= asked["times_sklearn"], f"{slowest:.1f}", f"{asked['times_sklearn']:g} times as fast"),
        verdict(most < asked["peak_gb"], f"{most:.2f} GB", f"Under {asked['peak_gb']:g} GB"),
    ]
    rounds = f"{result['scores_a_side']:,} scores a side, {result['rounds']} interleaved rounds"
    table = markdown(["scores", "library", "CPU seconds", "times scikit-learn's speed", "peak GB"], lines, 2)
    return f"{table}\n{' '.join(text)}\n{how(result, rounds)}\n"


def knn(device: str) -> str:
    result = newest("knn", device)
    lines = [
        [
            f"{row['bank']:,} x {row['features']}, k = {row['k']}, {row['queries']:,} queries",
            row["variant"],
            f"{1e3 * row['seconds']:,.1f}",
            f"{row['farout_over_it']:.2f}",
        ]
        for row in result["knn"]
    ]
    faiss = [row["farout_over_it"] for row in result["knn"] if row["variant"].startswith("faiss")]
    plain = [row["farout_over_it"] for row in result["knn"] if row["variant"].startswith("torch")]
    if device == "cpu":
        asked = result["target"]["farout_over_faiss"]
        text = verdict(max(faiss) <= asked, f"{max(faiss):.2f} at most", f"No slower than FAISS by more than {asked}")
        held = result["mahalanobis"][-1]
        text += (
            f" Mahalanobis of {held['rows']:,} rows at once raises the process's memory by {held['rise_mb']:.0f} MB, "
            f"where a matrix of B x B would take {held['square_mb']:,.0f} MB."
        )
    else:
        figure = f"it takes {min(plain):.2f} to {max(plain):.2f} times as long"
        text = verdict(max(plain) < 1, figure, "Faster than torch.cdist and topk")
        ours, others = (
            [row["memory_mb"] for row in result["knn"] if row["variant"].startswith(who)] for who in ("farout", "torch")
        )
        text += (
            f" What it needs beside bank and queries is {min(ours):.0f} to {max(ours):,.0f} MB, where those need "
            f"{min(others):.0f} to {max(others):,.0f} MB. Measured was {result['code']}."
        )
        text = f"{text}\n{circumstances(result)}".rstrip("\n")
    table = markdown(["bank, queries at once", "search", "ms", "farout's time over it"], lines, 2)
    rounds = f"{result['rounds']} interleaved rounds"
    return f"{table}\n{text}\n{how(result, result['clock'], rounds)}\n"


def growth(device: str) -> str:
    result = newest("growth", device)
    lines = []
    for name, curve in result["curves"].items():
        (least, short), (most, long) = curve["points"][0], curve["points"][-1]
        law = curve["fit"]
        sizes, times = f"{least:,} to {most:,}", f"{1e3 * short:.2f} to {1e3 * long:.2f}"
        lines.append([name, law["law"], sizes, times, f"{law['r2']:.4f}", f"{100 * law['worst_residual']:.0f} %"])
    table = markdown(["curve", "law", "sizes", "ms", "R²", "worst residual"], lines, 2)
    failed = "".join(f"Not measured: {name} ({why}).\n" for name, why in result.get("failed", {}).items())
    taken = f"medians of {result['rounds']} interleaved rounds"
    return f"{table}\n{failed}{circumstances(result)}{how(result, result['clock'], taken)}\n"


def runs() -> str:
    result = newest("runs", "gpu")
    asked, done = result["target"], [row for row in result["runs"] if row["fraction"] == 1]
    lines = [
        [
            row["recipe"],
            f"{row['epochs_measured']} of {row['epochs_whole']}",
            f"{row['seconds']:.0f}",
            f"{row['seconds_whole']:.0f}",
            f"{row['images_per_second']:,.0f}",
            *("" if row[key] is None else f"{row[key]:.1f}" for key in ("cold_first_step_s", "warm_first_step_s")),
            f"{row['checkpoints_s']:.1f}",
            f"{row['evaluation_s']:.1f}",
        ]
        for row in result["runs"]
    ]
    text = [
        verdict(
            row["seconds"] <= asked["seconds"], f"{row['seconds']:.0f} s", f"{row['recipe']} in {asked['seconds']} s"
        )
        for row in done
    ]
    for row in result["runs"]:
        if row["fraction"] < 1:
            text.append(f'"{row["recipe"]}" is reckoned from {row["epochs_measured"]} epochs: {row["note"]}.')
    for state in ("cold", "warm"):
        slowest, within = max(row[f"{state}_first_step_s"] for row in done), asked[f"{state}_first_step_s"]
        text.append(verdict(slowest <= within, f"{slowest:.1f} s", f"The first step within {within} s, {state}"))
    parts = max(done, key=lambda row: row["warm_first_step_s"])
    text.append(
        f"Of the longer warm start {parts['imported_s']:.1f} s are imports and {parts['building_s']:.1f} s the "
        "building of the run: sets were read, and torch imported its compiler for the optimiser (it no longer does)."
    )
    header = ["run", "epochs", "s", "s in all", "images/s", "cold", "warm", "checkpoints", "evaluation"]
    options = " ".join(dict.fromkeys(option for row in result["runs"] for option in row["overrides"]))
    return (
        f"{markdown(header, lines)}\n{' '.join(text)}\nThe data were {result['data']}.\n{how(result, f'`{options}`')}\n"
    )


def loader() -> str:
    """The streamed loader; how it stands to what the cores decode is left out where that is not known."""
    result = newest("loader", "gpu")
    needed, one = result["needed_images_per_second"], result["decode_one_core_images_per_second"]
    columns = {"efficiency": "of what the cores decode"} if one else {}
    columns |= {"share_of_needed": "of what the step takes"}
    lines = [
        [row["workers"], f"{row['images_per_second']:,.0f}", *(f"{row[key]:.3f}" for key in columns)]
        for row in result["rows"]
    ]
    best = max(row["images_per_second"] for row in result["rows"])
    text = verdict(best >= needed, f"{best:,.0f}", f"The {needed:,.0f} images/s of the ResNet-50 step")
    text += f" What limits it: {result['limit']}." if result["limit"] else ""
    cores = f"{result['usable_cores']} cores" + (f", of which one alone decodes {one:.0f} images/s" if one else "")
    table = markdown(["workers", "images/s", *columns.values()], lines)
    return f"{table}\n{text}\n{circumstances(result)}{how(result, cores)}\n"


def determinism() -> str:
    result = newest("determinism", "gpu")
    groups: dict[str, list[str]] = {}
    for row in result["rows"]:
        groups.setdefault(row["verdict"], []).append(f"{row['method']} ({row['engine']})")
    lines = [[name, len(methods), ", ".join(methods)] for name, methods in groups.items()]
    errors = "".join(f"{row['method']}: {row['error']}\n" for row in result["rows"] if row["verdict"] == "error")
    return f"{markdown(['verdict', 'how many', 'methods'], lines, 3)}\n{errors}{how(result)}\n"


def fused() -> str:
    """Norms and convolutions of a WRN-40-2 step, kernel by kernel."""
    result = newest("fused", "gpu")
    lines = []
    for row in result["norms"]:
        side = f"{row['norm']}, {' x '.join(map(str, row['shape']))}"
        for way in ("forward", "backward"):
            times = row[f"{way}_us"], row[f"plain_{way}_us"], row[f"floor_{way}_us"]
            lines.append([f"norm {side}, {way}", *(f"{time:.1f}" for time in times)])
    for row in result["convolutions"]:
        ours = "" if row["ours"] == row["cudnn"] else f"{row['ours']:.1f}"
        floor = f"{row['floor']:.1f}" if "floor" in row else ""
        lines.append([row["what"], ours, f"{row['cudnn']:.1f}", floor])
    rate = f"{result['copy_bytes_per_second'] / 1e12:.1f} TB/s"
    words = (
        f"Microseconds a call, bf16, 384 images; the floor is the bytes at {rate}, a copy's rate in a CUDA graph. "
        f"Larger copies ran at {copy_rates()[0] / 1e12:.1f} TB/s and the cache holds a part, so a call may be quicker. "
        f"Where the first number is missing, cuDNN's is used. Norms are of an earlier run. {result['device']}, torch "
        f"{result['torch']}."
    )
    return f"{markdown(['what', 'fused', 'torch', 'floor'], lines)}\n{words}\n"


def blocks() -> str:
    """A block of WRN-40-2, forward and backward, by who convolves."""
    result = newest("fused", "gpu")
    lines = [[row["what"], *(f"{row[key]:.0f}" for key in ("ours", "apart", "cudnn"))] for row in result["blocks"]]
    header = ["forward and backward", "sums in the convolution", "sums apart", "cuDNN's convolutions"]
    words = "Microseconds a block, bf16, dropout 0.3; norms, and weight gradients up to 64 channels, are ours in all."
    return f"{markdown(header, lines)}\n{words}\n"


def copy_rates() -> tuple[float, float]:
    """Bytes a second, read and written, of a copy: of 2 GB, and of 400 MB in a CUDA graph."""
    return (
        newest("search", "gpu")["ceilings"]["copy_bytes_per_s"],
        newest("fused", "gpu")["copy_bytes_per_second"],
    )


WRN = "WRN-40-2 32x32, 128 + 256"
ACTIVATIONS = 5e9
"""Bytes of a WRN-40-2 step on 384 images, about: benchmarks/bench_step.py."""


def asked_of_the_step() -> str:
    """DAL's step on the fast path against what was asked for, by rows of one run."""
    rows = {row["variant"]: row for row in newest("step", "gpu")["shapes"][WRN]}
    dal, oe = rows["dal, graphed, triton, fused kernels"], rows["oe, graphed, fused kernels"]
    reference = rows["reference-shaped: dal, autograd, float32, eager"]
    exact = rows["reference-shaped, without TF32"]
    rate, over_oe, times = dal["images_per_second"], dal["ms"] / oe["ms"], reference["ms"] / dal["ms"]
    slow = rate * dal["ms"] / dal["p90"]
    whole = next(row for row in newest("runs", "gpu")["runs"] if "dal" in row["recipe"])["images_per_second"]
    floors = [(1e3 * ACTIVATIONS / copied, copied) for copied in copy_rates()]
    shares = " and ".join(
        f"{dal['ms'] / ms:.1f} times the {ms:.1f} ms at {copied / 1e12:.1f} TB/s" for ms, copied in floors
    )
    text = [
        verdict(rate >= 75_000, f"{rate:,.0f}, and {slow:,.0f} at the ninth decile of the steps", "75,000 images/s")
        + f" That is the step alone; a whole run has {whole:,.0f} (below).",
        verdict(over_oe <= 1.02, f"{over_oe:.3f}", "DAL at most 1.02 times OE"),
        verdict(times >= 8, f"{times:.1f} times", "8 times the reference-shaped step as torch runs it")
        + f" There cuDNN may use TF32; in float32 proper that step takes {exact['ms']:.1f} ms instead of "
        f"{reference['ms']:.1f}, and DAL's is {exact['ms'] / dal['ms']:.1f} times as fast. (It took 39.6 where the 8 "
        "was set.)",
        f"Bytes set the floor, about {ACTIVATIONS / 1e9:.0f} GB of activations. The step stands at {shares}, the two "
        "rates at which copies were measured.",
    ]
    return "".join(f"- {line}\n" for line in text)


GROUPS = {
    "our convolutions, forward and input gradient": ("_tap_conv", "_row_conv"),
    "our norms": ("_reduce_", "_apply", "_finish_", "_statistics"),
    "cuDNN's convolutions": ("sm90_xmma_", "sm80_xmma_fprop", "void cask_plugin"),
    "our weight gradients": ("_weight_gradient", "_add_parts"),
}
"""Kernels of a profile, by how their names begin."""


def profile() -> str:
    """Milliseconds of a DAL step by groups of kernels; five steps were profiled, augmentation among them."""
    path = sorted(RESULTS.glob("*-step-fused-profile.txt"))[-1]
    steps, units, spent = 5, {"ms": 1.0, "us": 1e-3}, dict.fromkeys(GROUPS, 0.0)
    for line in path.read_text().splitlines():
        name, _, numbers = re.sub(r"\s{2,}", "\t", line.strip()).partition("\t")
        group = next((group for group, begins in GROUPS.items() if name.startswith(begins)), None)
        if group:
            figure = numbers.split("\t")[5]
            spent[group] += float(figure[:-2]) * units[figure[-2:]] / steps
    whole = re.search(r"Self CUDA time total: ([\d.]+)ms", path.read_text())
    assert whole, f"{path.name}: no total"
    total = float(whole[1]) / steps
    spent["the rest: head, losses, search, optimiser, casts, augmentation and what is small"] = total - sum(
        spent.values()
    )
    lines = [[group, f"{ms:.2f}", f"{100 * ms / total:.0f} %"] for group, ms in spent.items()]
    return markdown(["kernels", "ms a step", "share"], lines)


FAST_EAGER = RESULTS.parent.parent / "results" / "fast-eager"
METRICS = {"fpr95_id": "FPR95", "auroc": "AUROC"}


def fast_eager() -> str:
    """Percent by both paths and their paired differences, from results/fast-eager/."""
    intervals, differences = (
        [json.loads(line) for line in (FAST_EAGER / f"{name}.jsonl").read_text().splitlines()]
        for name in ("intervals", "differences")
    )
    value = {(row["method"], row["set"]): row for row in intervals}
    lines = []
    for row in differences:
        eager, fast = (value[method, row["set"]][row["metric"]] for method in (row["second"], row["first"]))
        bounds = f"{100 * row['value']:+.1f} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
        lines.append(
            [row["set"], METRICS[row["metric"]], f"{100 * eager:.2f}", f"{100 * fast:.2f}", bounds, f"{row['p']:.2f}"]
        )
    apart = [row for row in differences if row["low"] > 0 or row["high"] < 0]
    named = "; ".join(f"{row['set']}, {METRICS[row['metric']]}" for row in apart)
    first, second = differences[0]["first"], differences[0]["second"]
    accuracy = [100 * value[method, "average"]["accuracy"] for method in (second, first)]
    words = (
        f"Percent, {differences[0]['seeds']} seeds, 95 % intervals of the paired difference. ID accuracy "
        f"{accuracy[0]:.2f} eager, {accuracy[1]:.2f} fast. Of {len(differences)} comparisons {len(apart)} "
        + (f"leaves out 0 ({named}), before any correction for their number" if apart else "leave out 0")
    )
    return f"{markdown(['set', 'metric', 'eager', 'fast', 'fast less eager', 'p'], lines, 2)}\n{words}.\n"


def sharing() -> str:
    result = newest("sharing", "gpu")
    lines = [[row["processes"], row["mps"], f"{row['images_per_second']:,.0f}"] for row in result["rows"]]
    return f"{markdown(['trainings at a time', 'MPS', 'images/s in sum'], lines)}\n{result['note']}\n"


PARTS: dict[str, Callable[[], str]] = {
    "fused-speed": fused,
    "blocks-speed": blocks,
    "step-asked": asked_of_the_step,
    "step-profile": profile,
    "fast-eager": fast_eager,
    "sharing": sharing,
    "demo-speed": demo,
    "import-speed": imports,
    "metrics-speed": metrics,
    "knn-speed": partial(knn, "cpu"),
    "growth": partial(growth, "cpu"),
    "knn-speed-gpu": partial(knn, "gpu"),
    "growth-gpu": partial(growth, "gpu"),
    "runs-speed": runs,
    "loader-speed": loader,
    "determinism": determinism,
}
