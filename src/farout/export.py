"""A whole detector as one file for other runtimes: preprocessing, network, score, threshold and calibration inside.

images (B, C, H, W) uint8 -> label (B,), score (B,), is_ood (B,), p_value (B,), probabilities (B, K); any B; H and W
fixed, or any too.

Every export is loaded again and compared with the detector on noise and on photographs; one that differs is deleted.
An `.onnx` file is data. A `.pt2` file is a program, and torch would also unpickle parts of it: `TorchFile` opens only
archives without pickles, whose graph calls nothing but aten operators, as those written here are. That is a fence
against the obvious, not a sandbox.
"""

import copy
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from farout.components import choose
from farout.data.as_set import as_set
from farout.detector import Detector, Judgement, channels_of
from farout.errors import CheckpointError, FaroutError, MissingExtraError
from farout.export_resize import AnySize
from farout.methods import METHODS
from farout.preprocess import Preprocess
from farout.scores import SCORES

OPSET = 18
"""The ONNX operator set; onnxruntime 1.14 and later know it."""
TOLERANCE = 1e-4
LARGEST_BATCH = 65536
LARGEST_SIDE = 16384
NAME = "farout.json"


class ExportError(FaroutError):
    """A detector cannot be exported, or what came out does not agree with it."""


class Shape(NamedTuple):
    """What the exported graph takes, batch aside: the sides of a sample (None = any), and whether uint8 or float32."""

    sides: tuple[int | None, ...]
    dtype: torch.dtype

    def takes(self, sides: Sequence[int]) -> bool:
        """A side that is free has 2 to 16384 pixels."""
        return len(sides) == len(self.sides) and all(
            2 <= side <= LARGEST_SIDE if want is None else side == want
            for want, side in zip(self.sides, sides, strict=True)
        )


class ExportedDetector(Protocol):
    """An exported file, open: judges as the detector does."""

    card: dict[str, Any]

    def judge(self, x: Tensor) -> Judgement: ...


def export(
    detector: Detector,
    out: str | Path,
    to: str = "onnx",
    *,
    input_size: tuple[int, int] | Literal["any"] | None = None,
    data: Any = None,
) -> Path:
    """Write `detector` to the file `out` as "onnx" or "torch" (.pt2), checked; returns the path.

    `input_size` is what the graph will take: the detector's own crop by default; with (H, W) the resize from there is
    baked in, for a camera with one format; "any" leaves both free (see `export_resize`). `data` (any set or tensor)
    joins the inputs of the check and is needed where the detector does not say how large its inputs are.
    """
    kind = choose("export format", FORMATS, to)
    if detector.score.why_not_exported:
        name = type(detector.score).__name__
        raise ExportError(f"{name} cannot be exported: {detector.score.why_not_exported}")
    detector.require_fit()
    out = Path(out)
    shape, inputs = _inputs(detector, input_size, data)
    traced = _Traced(detector, any_size=None in shape.sides).eval()
    card = {**detector.card(), "input": {"shape": list(shape.sides), "dtype": str(shape.dtype).removeprefix("torch.")}}
    part = out.with_name(f".{out.stem}.part{kind.suffix}")
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        kind.write(_program(traced, inputs[0][:2], shape), inputs[0][:2], card, part)
        check_parity(traced, kind(part), inputs)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
    return out


def why_not_exported(method: str, score: str) -> str:
    """Why a network trained by `method` with `score`, as they are by default, gives no export; empty where it does.

    A score that only methods with a head of their own are evaluated with (an outlier class, four outputs a class)
    needs such a head. Every pair of the two tables has its answer here.
    """
    way, kind = choose("method", METHODS, method), choose("score", SCORES, score)
    if kind.why_not_exported:
        return kind.why_not_exported
    heads = {(one.outputs_per_class, one.outlier_class) for one in METHODS.values() if one.score == score}
    if heads and (1, False) not in heads and (way.outputs_per_class, way.outlier_class) not in heads:
        own = ", ".join(name for name, one in METHODS.items() if one.score == score)
        return f"it needs such a head as {own} has, and that of {method} has other outputs"
    return ""


class _Traced(nn.Module):
    """What is exported: a copy on the CPU, without the fingerprints of training data."""

    def __init__(self, detector: Detector, any_size: bool = False) -> None:
        super().__init__()
        plain = copy.deepcopy(detector).cpu().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
        self.detector = plain.requires_grad_(False)
        del self.detector.remembered
        if any_size:
            assert isinstance(self.detector.prepare, Preprocess)
            self.detector.prepare = AnySize(self.detector.prepare)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.detector.judgement(*self.detector.logits_and_score(images)))


def _inputs(detector: Detector, size: tuple[int, int] | Literal["any"] | None, data: Any) -> tuple[Shape, list[Tensor]]:
    """The shape of the input, and batches to check on: noise, photographs, and what the user gave."""
    if isinstance(size, str) and size != "any":
        raise ExportError(f"the input size of an export is (height, width) or 'any', got {size!r}")
    given = []
    if data is not None:
        samples = as_set(data)
        given = [samples.read(torch.arange(min(len(samples), 64)))[0]]
    if detector.size is not None:
        crop = detector.size if isinstance(detector.size, int) else detector.size[1]
        sides = (None, None) if size == "any" else size or (crop, crop)
        shape = Shape((channels_of(detector.net) or 3, *sides), torch.uint8)
    elif size is not None:
        raise ExportError("the detector resizes nothing, so its export takes no input size; leave it out (--input)")
    elif given:
        shape = Shape(tuple(given[0].shape[1:]), given[0].dtype)
    else:
        raise ExportError("the detector does not say how large its inputs are; pass data= (--data) with some of them")
    given = [batch for batch in given if shape.takes(batch.shape[1:])]
    return shape, [*_made_up(shape, crop if detector.size is not None else 0), *given]


def _made_up(shape: Shape, crop: int) -> Iterator[Tensor]:
    """Noise, then photographs; where any size is taken: one that is shrunk, one that is enlarged, the crop itself."""
    if None not in shape.sides:
        yield _noise(shape)
        yield from _photographs(shape)
        return
    for height, width in ((2 * crop + 3, 3 * crop + 1), (crop // 2 + 2, crop // 2 + 1), (crop, crop)):
        sized = shape._replace(sides=(shape.sides[0], height, width))
        yield _noise(sized)
        yield from _photographs(sized)


def _noise(shape: Shape) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if shape.dtype == torch.uint8:
        return torch.randint(256, (16, *shape.sides), dtype=torch.uint8, generator=generator)  # type: ignore[arg-type]
    return torch.randn((16, *shape.sides), generator=generator).to(shape.dtype)  # type: ignore[arg-type]


def _photographs(shape: Shape) -> Iterator[Tensor]:
    """The two photographs that come with scikit-learn, whole and in cut-outs, at the wanted size."""
    if shape.dtype != torch.uint8 or len(shape.sides) != 3:
        return
    from PIL import Image
    from sklearn.datasets import load_sample_images

    channels, height, width = (int(side or 0) for side in shape.sides)
    for picture in map(Image.fromarray, load_sample_images().images):
        picture = picture.convert("RGB" if channels == 3 else "L")
        boxes = [(0, 0, 640, 427), *((left, 100, left + 160, 260) for left in (0, 160, 320, 480))]
        parts = [picture.resize((width, height), Image.Resampling.BILINEAR, box) for box in boxes]
        pixels = torch.stack([torch.frombuffer(bytearray(part.tobytes()), dtype=torch.uint8) for part in parts])
        yield pixels.view(len(parts), height, width, channels).permute(0, 3, 1, 2).contiguous()


def _program(traced: nn.Module, example: Tensor, shape: Shape) -> torch.export.ExportedProgram:
    free = {0: torch.export.Dim("batch", min=1, max=LARGEST_BATCH)}
    names = {2: "height", 3: "width"}
    free |= {
        number: torch.export.Dim(names[number], min=2, max=LARGEST_SIDE)
        for number, side in enumerate(shape.sides, 1)
        if side is None
    }
    try:
        with torch.no_grad():
            program = torch.export.export(traced, (example,), dynamic_shapes=(free,))
    except Exception as error:  # torch.export raises many kinds, according to what it met
        raise ExportError(f"torch.export cannot trace this detector: {error}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names the paths of this machine
    return program


def check_parity(traced: Callable[[Tensor], Any], exported: ExportedDetector, inputs: list[Tensor]) -> None:
    """Raise unless the file says what the detector says.

    Scores and p-values within 1e-4 (relative above 1), labels equal unless two classes tie, verdicts equal unless
    the score lies as close to the threshold.
    """
    for x in inputs:
        with torch.no_grad():
            wanted = Judgement(*traced(x))
        got = exported.judge(x)
        score = wanted.score.double()
        room = TOLERANCE * score.abs().clamp(min=1)
        apart = (got.score.double() - score).abs()
        if not bool((apart <= room).all()):
            raise ExportError(f"the exported score is off by up to {float(apart.max()):.3g}; refused")
        top = wanted.probabilities.topk(min(2, wanted.probabilities.shape[1]), dim=1).values
        clear = top[:, 0] - top[:, -1] > TOLERANCE if top.shape[1] == 2 else torch.ones(len(x), dtype=torch.bool)
        if not torch.equal(got.label[clear], wanted.label[clear]):
            raise ExportError("the exported labels differ from the detector's; refused")
        threshold = torch.as_tensor(exported.card["threshold"], dtype=torch.float64)
        away = (score - threshold).abs() > room
        if not torch.equal(got.is_ood[away], wanted.is_ood[away]):
            raise ExportError("the exported verdicts differ from the detector's; refused")


class OnnxFile:
    """A detector in an `.onnx` file, run by onnxruntime on the CPU."""

    suffix: ClassVar[str] = ".onnx"

    def __init__(self, path: str | Path) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise MissingExtraError("onnxruntime", "onnx", "running an .onnx file") from None
        try:
            self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a class of its own for each kind of damage
            raise CheckpointError(f"{path} cannot be opened as ONNX: {error}") from None
        self.card = _card(self.session.get_modelmeta().custom_metadata_map.get(NAME), path)

    def judge(self, x: Tensor) -> Judgement:
        out = self.session.run(None, {"images": _fitting(x, self.card).cpu().numpy()})
        return Judgement(*map(torch.as_tensor, out))

    @staticmethod
    def write(program: torch.export.ExportedProgram, example: Tensor, card: Mapping[str, Any], path: Path) -> None:
        try:
            import onnx  # noqa: F401
            import onnxscript  # noqa: F401
        except ImportError as error:
            raise MissingExtraError(error.name or "onnx", "onnx", "exporting to ONNX") from None
        try:
            made = torch.onnx.export(
                program,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                input_names=["images"],
                output_names=list(Judgement._fields),
                custom_translation_table={torch.ops.aten.sort.stable: _stable_sort},
                verbose=False,
            )
        except Exception as error:
            last = str(error).strip().splitlines()
            reason = next((line for line in reversed(last) if "No ONNX function" in line), last[0] if last else "")
            raise ExportError(f"this detector cannot be written as ONNX: {reason}") from error
        assert made is not None
        for node in made.model.graph:
            node.metadata_props.clear()  # the exporter's notes: where in this machine's files a node came from
        made.model.metadata_props[NAME] = json.dumps(card)
        made.save(str(path))


def _stable_sort(x: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """aten.sort.stable for ONNX, whose TopK puts the lower index first among equals, as a stable sort does."""
    from onnxscript import opset18 as op

    length = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]))  # type: ignore[type-var]
    return op.TopK(x, length, axis=dim, largest=int(descending), sorted=1)


class TorchFile:
    """A detector in a `.pt2` file of torch.export, run by torch on the CPU."""

    suffix: ClassVar[str] = ".pt2"

    def __init__(self, path: str | Path) -> None:
        self.card = _card(refuse_code(Path(path)), path)
        try:
            self.run = torch.export.load(str(path)).module()
        except Exception as error:  # whatever damaged bytes lead to
            raise CheckpointError(f"{path} cannot be opened by torch {torch.__version__}: {error}") from None

    @torch.no_grad()
    def judge(self, x: Tensor) -> Judgement:
        return Judgement(*self.run(_fitting(x, self.card)))

    @staticmethod
    def write(program: torch.export.ExportedProgram, example: Tensor, card: Mapping[str, Any], path: Path) -> None:
        program.example_inputs = None  # they would be pickled
        torch.export.save(program, str(path), extra_files={NAME: json.dumps(card)})


class _File(Protocol):
    suffix: ClassVar[str]

    def __call__(self, path: str | Path) -> ExportedDetector: ...

    def write(
        self, program: torch.export.ExportedProgram, example: Tensor, card: Mapping[str, Any], path: Path
    ) -> None: ...


FORMATS: Mapping[str, _File] = {"onnx": OnnxFile, "torch": TorchFile}  # type: ignore[dict-item]


def open_exported(path: str | Path) -> ExportedDetector:
    """The exported detector in a file, by its ending."""
    for kind in FORMATS.values():
        if Path(path).suffix == kind.suffix:
            return kind(path)
    raise CheckpointError(f"{path} is no exported detector; its name must end in .onnx or .pt2")


def _card(text: str | bytes | None, path: str | Path) -> dict[str, Any]:
    try:
        card = json.loads(text or "")
        if {"input", "threshold", "classes", "size"} <= set(card):
            return dict(card)
    except (ValueError, TypeError):
        pass
    raise CheckpointError(f"{path} was not written by `farout export`: it holds no card of a detector")


def _fitting(x: Tensor, card: Mapping[str, Any]) -> Tensor:
    """`x` in the shape and type that the graph takes."""
    shape = Shape(tuple(card["input"]["shape"]), getattr(torch, card["input"]["dtype"]))
    dtype = shape.dtype
    if not shape.takes(x.shape[1:]):
        want = str(shape.sides).replace("None", f"2..{LARGEST_SIDE}")
        raise CheckpointError(f"the exported detector takes samples of {want}, got {tuple(x.shape[1:])}; see --input")
    if dtype == torch.uint8 and x.is_floating_point():
        return (x * 255).round().clamp(0, 255).to(torch.uint8)
    return x.to(dtype).contiguous()


# What an archive written by TorchFile.write consists of. Pickles, compiled code and the like have other names.
_ENTRIES = re.compile(
    r"(data/weights/weight_\d+|data/weights/model_weights_config\.json|data/constants/model_constants_config\.json"
    r"|data/constants/tensor_\d+|models/model\.json|data/sample_inputs/model\.pt|extra/farout\.json|archive_format"
    r"|archive_version|byteorder|\.data/version|\.data/serialization_id|\.format_version|\.storage_alignment|version)"
)
_TARGET = re.compile(r"torch\.ops\.aten\.\w+(\.\w+)?|_operator\.(getitem|add|sub|mul|floordiv|neg|pow|mod)")
_WORDS = {"Symbol", "Integer", "Add", "Mul", "FloorDiv", "Max", "Min", "positive", "integer", "True", "False"}
_SYMBOL = re.compile(r"[su]\d+")


def refuse_code(path: Path) -> bytes:
    """The card in a `.pt2` archive, once nothing in it is a pickle and its graph calls only aten operators.

    torch.export.load alone would unpickle weights and sample inputs where the archive says so, evaluate shape
    expressions as Python, and call any function below `torch` that the graph names.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {name.partition("/")[2]: name for name in archive.namelist()}
            odd = [name for name in entries if not _ENTRIES.fullmatch(name)]
            if odd or len(entries) != len(archive.namelist()):
                raise CheckpointError(f"{path} is refused: it holds {odd[:3]}, which farout does not write")
            if archive.getinfo(entries["data/sample_inputs/model.pt"]).file_size:
                raise CheckpointError(f"{path} is refused: it holds pickled sample inputs")
            for name in ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json"):
                _refuse_pickles(json.loads(archive.read(entries[name])), path)
            _refuse_calls(json.loads(archive.read(entries["models/model.json"])), path)
            return archive.read(entries[f"extra/{NAME}"])
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} was not written by `farout export`: {error}") from None


def _refuse_pickles(config: Any, path: Path) -> None:
    for name, entry in config["config"].items():
        if entry["use_pickle"] is not False or not re.fullmatch(r"(weight|tensor)_\d+", entry["path_name"]):
            raise CheckpointError(f"{path} is refused: {name} is pickled")


def _refuse_calls(model: Any, path: Path) -> None:
    if model.get("guards_code"):
        raise CheckpointError(f"{path} is refused: its guards are Python code")
    for key, value in _leaves(model):
        if key == "target" and not _TARGET.fullmatch(value):
            raise CheckpointError(f"{path} is refused: its graph calls {value[:80]!r}, which is no aten operator")
        if key == "name" and not re.fullmatch(r"[\w.]*", value):
            raise CheckpointError(f"{path} is refused: its graph has a value called {value[:80]!r}")
        if key == "expr_str" and not _harmless(value):
            raise CheckpointError(f"{path} is refused: its graph has a shape {value[:80]!r}")


def _harmless(expression: str) -> bool:
    words = re.findall(r"[A-Za-z_]\w*", expression)
    return not re.search(r"[^\w\s'(),=+*/-]", expression) and all(w in _WORDS or _SYMBOL.fullmatch(w) for w in words)


def _leaves(tree: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string in a JSON tree, with the key it stands under."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from _leaves(value, name)
    elif isinstance(tree, list):
        for value in tree:
            yield from _leaves(value, key)
    elif isinstance(tree, str):
        yield key, tree
