"""The documentation says what the code and the results files say."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_generated_parts_are_up_to_date(page):
    text = (ROOT / page).read_text()
    assert generator().filled(text) == text, "run `python docs/generate.py`"


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_between_files_lead_somewhere(page):
    path = ROOT / page
    for link in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if not link.startswith("http"):
            assert (path.parent / link).exists(), f"{page}: {link}"


def test_the_example_in_contributing_is_a_working_method():
    """The code block of "Add a method" runs as it stands."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    from farout.methods import Method, forward_pair
    from farout.nets.net import Net
    from farout.types import Batch, Terms

    block = re.search(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)[1]
    names = {"Method": Method, "forward_pair": forward_pair, "Net": Net, "Batch": Batch, "Terms": Terms, "F": F}
    exec("\n".join(line[3:] for line in block.splitlines()), names)
    net = Net(nn.Identity(), nn.Linear(2, 3))
    terms = names["Margin"]().loss(net, Batch(torch.rand(4, 2), torch.tensor([0, 1, 2, 0]), torch.rand(5, 2)))
    assert set(terms) == {"ce", "margin"}
