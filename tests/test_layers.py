"""Calls go down: a module imports from its own layer or a lower one, never from a higher."""

import ast
import sys
from pathlib import Path

import pytest

import farout

ROOT = Path(farout.__file__).parent

LAYERS = {
    0: "errors types seeds components config distributed losses contrastive metrics spaces",
    1: "worst_case nets data preprocess calibration card",
    2: "methods scores plugins",
    3: "training untrusted detector examples",
    4: "evaluation statistics protocols paper report hub export export_resize verdict_files scoring certify discrepancy"
    " estimators serve",
    5: "build validation run own_model jobs entries leakage compare plans reproduce tuning tune see demo catalogue "
    "cli __init__ __main__",
}
LEVEL = {name: level for level, names in LAYERS.items() for name in names.split()}


def home(module: str) -> str:
    """farout.data.sets -> data; the package itself -> __init__."""
    return [*module.split("."), "__init__"][1]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "farout":
            if node.module == "farout":
                found |= {f"farout.{alias.name}" for alias in node.names if alias.name in LEVEL}
            else:
                found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("farout")}
    return found


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down(path):
    own = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert own in LEVEL, f"{own} has no layer: give it one here"
    for module in imports(path):
        assert LEVEL[home(module)] <= LEVEL[own], f"{own} (layer {LEVEL[own]}) imports {module}"


def test_maths_import_only_torch():
    """Functions of tensors stay usable anywhere."""
    for name in ("losses", "metrics"):
        tree = ast.parse((ROOT / f"{name}.py").read_text())
        roots = {
            (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
        }
        assert roots <= {"torch", *sys.stdlib_module_names}, name


def test_no_pickle_is_loaded():
    """torch.load only with weights_only=True; numpy never with allow_pickle=True; pickle only where it is fenced."""
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name, keywords = ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}
            if name == "torch.load":
                assert keywords.get("weights_only") == "True", path
            if name in ("np.load", "numpy.load"):
                assert keywords.get("allow_pickle") == "False", path
            assert name not in ("pickle.load", "pickle.loads", "eval", "exec", "joblib.load"), path
