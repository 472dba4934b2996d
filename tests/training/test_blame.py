"""A loss that is no number: the step, the term and the batch are named, and a file replays it."""

import math

import pytest
import torch

from farout import build
from farout.config import Config
from farout.errors import CheckpointError, TrainingError
from farout.run import replay
from farout.training import Checkpoints, RunLog, fit, load_state
from farout.training.checkpoint import write_state

TINY = [
    "net.width=4",
    "data.batch_size=100",
    "data.outlier_batch_size=50",
    "data.augment=none",
    "train.epochs=2",
    "train.log_every=100",
    "train.device=cpu",
]


def start(folder, recipe, *overrides):
    config = Config.load(recipe, [*TINY, *overrides])
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(config.to_yaml())
    return build.job(config)


def run(job, folder):
    fit(job.descent, job.pairs, job.schedule, job.plan, Checkpoints(folder / "checkpoints"), RunLog(folder / "l.jsonl"))


def poison(job, step, spoil):
    """From the batch of step `step` on, and only there, `spoil` the terms; the same batch is met again in the walk."""
    batches = [batch.x.clone() for epoch in range(2) for batch in job.pairs.epoch(epoch)]
    method, inner = job.descent.objective.method, job.descent.objective.method.loss

    def loss(net, batch):
        terms = inner(net, batch)
        return spoil(terms, net) if torch.equal(batch.x, batches[step]) else terms

    method.loss = loss


def test_the_first_bad_step_is_found_though_nobody_looked_at_it(tmp_path):
    """Step 8 goes wrong; the next look is at the end of the epoch, step 11."""
    job = start(tmp_path, "demo/oe")
    poison(job, 8, lambda terms, net: {**terms, "oe": terms["oe"] * math.nan})
    with pytest.raises(TrainingError) as caught:
        run(job, tmp_path)
    message = str(caught.value)
    assert message.startswith("the loss term 'oe' is nan at step 8 (epoch 1, step 2), on ID samples ")
    assert "the checkpoint at step 6 is intact" in message
    (file,) = tmp_path.glob("replay-*")
    assert file.name == "replay-00000008-rank0.pt"
    assert str(file) in message
    state = load_state(file)
    for name in ("inliers", "outliers"):
        rows, part = state["rows"][name], {"inliers": "x", "outliers": "x_out"}[name]
        assert torch.equal(getattr(job.pairs, name).set.read(rows)[0], state["batch"][part]), name
    assert f"on ID samples {state['rows']['inliers'][0]}, " in message
    assert f"and outliers {state['rows']['outliers'][0]}, " in message
    kept = Checkpoints(tmp_path / "checkpoints").latest()
    assert kept["progress"] == {"step": 6}
    assert all(value.isfinite().all() for value in kept["objective"].values())


def test_a_bad_gradient_under_a_finite_loss_is_not_saved(tmp_path):
    """√0 is finite and its gradient is not."""
    job = start(tmp_path, "demo/ce")
    poison(job, 11, lambda terms, net: {**terms, "root": (0 * net.head.weight).sum().sqrt()})
    with pytest.raises(TrainingError, match="the gradient of 'net.head.weight' is not finite at step 11"):
        run(job, tmp_path)
    assert Checkpoints(tmp_path / "checkpoints").latest()["progress"] == {"step": 6}


@pytest.mark.parametrize("method", ["ce", "dal", "doe", "poem"])
def test_the_file_replays_the_step(tmp_path, method):
    """A learning rate out of all reason: no part of the program is bent for this."""
    folder = tmp_path / method
    job = start(folder, "demo/oe", f"method={method}", "optim.lr=1e30", "schedule=constant")
    with pytest.raises(TrainingError, match=r'farout.run.replay\("'):
        run(job, folder)
    (file,) = folder.glob("replay-*")
    again = replay(file)
    assert again.wrong.startswith(("the loss term", "the gradient"))
    assert not all(map(math.isfinite, again.terms.values())) or again.bad_gradients
    if again.wrong.startswith("the loss term"):
        term = again.wrong.split("'")[1]
        assert again.wrong == f"the loss term {term!r} is {again.terms[term]}"
    assert file.stat().st_size < 1_000_000


def test_going_wrong_at_the_first_step_goes_back_to_the_start(tmp_path):
    job = start(tmp_path, "demo/ce")
    poison(job, 0, lambda terms, net: {"ce": terms["ce"] + math.inf})
    with pytest.raises(TrainingError, match=r"'ce' is inf at step 0 .*the checkpoint at step 0 is intact"):
        run(job, tmp_path)


def test_what_the_walk_does_not_meet_again_is_said(tmp_path):
    job = start(tmp_path, "demo/ce")
    method, inner, calls = job.descent.objective.method, job.descent.objective.method.loss, []

    def loss(net, batch):
        calls.append(1)
        terms = inner(net, batch)
        return {"ce": terms["ce"] * math.nan} if len(calls) == 6 else terms

    method.loss = loss
    with pytest.raises(TrainingError, match=r"not finite before step 6, but going over .*is not deterministic"):
        run(job, tmp_path)


def test_a_file_that_replays_nothing_is_named(tmp_path):
    job = start(tmp_path, "demo/ce")
    path = tmp_path / "replay-00000001-rank0.pt"
    write_state(path, {"objective": job.descent.objective.state_dict()})
    with pytest.raises(CheckpointError, match=r"does not replay a step \(KeyError: 'batch'\)"):
        replay(path)
    write_state(path, {"objective": {"net.head.weight": torch.zeros(6, 3)}})
    with pytest.raises(CheckpointError, match="the state does not fit the recipe"):
        replay(path)
