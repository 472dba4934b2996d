"""What several tests share: one tiny finished run of the demo's recipe, trained once, and the command line."""

import io
import sys

import pytest
import torch

from farout.cli import main
from farout.config import Config
from farout.run import Run, train

TINY = [
    "net.width=8",
    "data.batch_size=100",
    "data.outlier_batch_size=50",
    "train.epochs=4",
    "train.log_every=2",
    "train.device=cpu",
]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """A test draws the same numbers whichever ran before it in its process."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny_config() -> Config:
    return Config.load("demo/dal", TINY)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory, tiny_config) -> Run:
    """A finished run; do not write into its folder."""
    return train(tiny_config, run=tmp_path_factory.mktemp("tiny") / "run")


@pytest.fixture
def cli(monkeypatch, capsys):
    """Run the command line in this process: (exit code, standard output, standard error)."""

    def call(*arguments: object, stdin: str | io.TextIOBase = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["farout", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin) if isinstance(stdin, str) else stdin)
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call
