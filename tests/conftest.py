"""What several tests share: one tiny finished run of the demo's recipe, trained once."""

import pytest

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


@pytest.fixture(scope="session")
def tiny_config() -> Config:
    return Config.load("demo/dal", TINY)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory, tiny_config) -> Run:
    """A finished run; do not write into its folder."""
    return train(tiny_config, run=tmp_path_factory.mktemp("tiny") / "run")
