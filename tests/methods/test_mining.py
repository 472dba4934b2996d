"""methods/mining.py: pools, scores and ranks; several ranks give what one gives."""

import pytest
import torch

from farout import distributed
from farout.data.arrays import ArraySet
from farout.data.loaders import Resident, Streamed
from farout.methods.mining import draw_pool, score_pool, take_ranks

SPEC = {"name": "small-conv", "num_classes": 3, "in_channels": 1, "width": 4, "mean": [0.5], "std": [0.5]}


@pytest.fixture
def outliers():
    torch.manual_seed(1)
    return ArraySet("aux", torch.randint(256, (37, 1, 8, 8), dtype=torch.uint8))


def first_logit(out):
    return out.logits[:, 0]


@pytest.mark.parametrize("size", [2, 20])
def test_a_pool_has_distinct_members_and_follows_the_global_seed(outliers, size):
    source = Resident(outliers)
    torch.manual_seed(4)
    pool = draw_pool(source, size)
    torch.manual_seed(4)
    again = draw_pool(source, size)
    torch.manual_seed(5)
    other = draw_pool(source, size)
    assert len(pool.unique()) == len(pool) == size
    assert torch.equal(pool, again)
    assert not torch.equal(pool, other)


def test_a_small_set_is_taken_whole(outliers):
    assert sorted(draw_pool(Resident(outliers), 1000).tolist()) == list(range(37))


@pytest.mark.parametrize("loader", [Resident, lambda samples: Streamed(samples, workers=0)])
def test_scores_equal_a_loop_over_single_images_in_eval_mode(net, outliers, loader):
    net.train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    indices = torch.tensor([30, 2, 2, 17, 5])
    scores = score_pool(net, loader(outliers), indices, first_logit, batch_size=2)
    assert net.training
    assert not scores.requires_grad
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    net.eval()
    expected = [net(outliers.read(index[None])[0]).logits[0, 0] for index in indices]
    assert torch.allclose(scores, torch.stack(expected), atol=1e-6)


def test_two_ranks_score_halves_that_join_to_the_whole(net, outliers, monkeypatch):
    source, indices = Resident(outliers), torch.arange(37)[:7]
    whole = score_pool(net, source, indices, first_logit)
    halves = []
    monkeypatch.setattr(distributed, "world_size", lambda: 2)
    monkeypatch.setattr(distributed, "gather", lambda value: halves.append(value) or torch.cat(halves))
    for rank in range(2):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        joined = score_pool(net, source, indices, first_logit)
    assert [len(half) for half in halves] == [4, 4]  # equal shapes, though seven do not halve
    assert torch.allclose(joined, whole, atol=1e-6)
    assert len(joined) == 7


def test_ranks_are_ascending_and_ties_keep_their_order():
    indices = torch.tensor([10, 11, 12, 13, 14])
    scores = torch.tensor([3.0, 1.0, 2.0, 1.0, 0.0])
    assert take_ranks(indices, scores, 0, 5).tolist() == [14, 11, 13, 12, 10]
    assert take_ranks(indices, scores, 1, 2).tolist() == [11, 13]
    assert take_ranks(indices, scores, 3, 9).tolist() == [12, 10]  # cut at the end of the pool
    assert take_ranks(indices, scores, 0, 1).dtype == torch.int64


def test_the_selection_is_rank_0s(monkeypatch):
    monkeypatch.setattr(distributed, "same", lambda value: value + 1)
    assert take_ranks(torch.tensor([5, 6]), torch.tensor([1.0, 0.0]), 0, 2).tolist() == [7, 6]
