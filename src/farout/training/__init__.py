"""Running a method: the loop, one descent step, optimisers, checkpoints and logs."""

from farout.training.checkpoint import Checkpoints, load_state
from farout.training.descent import Descent, Objective
from farout.training.engines import ENGINES
from farout.training.interrupt import Interrupted
from farout.training.log import RunLog, read_rows
from farout.training.loop import Plan, epochs, fit
from farout.training.optim import OPTIMIZERS, SCHEDULES

__all__ = [
    "ENGINES",
    "OPTIMIZERS",
    "SCHEDULES",
    "Checkpoints",
    "Descent",
    "Interrupted",
    "Objective",
    "Plan",
    "RunLog",
    "epochs",
    "fit",
    "load_state",
    "read_rows",
]
