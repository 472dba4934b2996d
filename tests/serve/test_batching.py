"""Who shares a batch changes nothing but speed."""

import asyncio
import random

import pytest
import torch

from farout.detector import Detector, Judgement
from farout.scores import SCORES
from farout.serve.batching import Batcher, answers_of


def echo(x):
    """A detector whose score is the image's first pixel."""
    score = x[:, 0, 0, 0].double()
    return Judgement(score.long(), score, score < 5, score / 100, torch.eye(2)[score.long() % 2])


def image(value):
    return torch.full((1, 2, 2), value, dtype=torch.uint8)


@pytest.mark.parametrize("name", ["msp", "energy", "max-logit", "odin"])
def test_the_same_image_alone_and_in_company_gets_the_same_answer(detector, samples, name):
    if name not in SCORES:
        pytest.skip(f"there is no score called {name}")
    judge = Detector(detector.net, SCORES[name](), classes=detector.classes, size=detector.size).eval()
    judge.threshold.fill_(0)
    alone = [answers_of(judge.judge, [one])[0] for one in samples]
    rng = random.Random(0)
    for size in (2, 5, 12):
        order = rng.sample(range(12), size)
        for number, answer in zip(order, answers_of(judge.judge, [samples[n] for n in order]), strict=True):
            # To the rounding of float32: a product of another shape may be summed in another order.
            assert answer.score == pytest.approx(alone[number].score, rel=1e-5, abs=1e-6)
            assert answer.label == alone[number].label
            assert answer.probabilities == pytest.approx(alone[number].probabilities, abs=1e-6)


def test_batches_fill_up_and_answers_find_their_asker():
    sizes = []

    async def go():
        async with Batcher(echo, max_batch=4, max_wait=60, on_batch=lambda size, _: sizes.append(size)) as batcher:
            return await asyncio.gather(*(batcher.ask(image(value)) for value in range(8)))

    answers = asyncio.run(go())
    assert [answer.score for answer in answers] == list(range(8))
    assert [answer.is_ood for answer in answers] == [True] * 5 + [False] * 3
    assert sizes == [4, 4]  # neither waited out its minute


def test_one_image_does_not_wait_for_company_that_never_comes():
    async def go():
        async with Batcher(echo, max_batch=4, max_wait=0) as batcher:
            return await batcher.ask(image(7))

    assert asyncio.run(go()).score == 7


def test_images_that_were_given_up_are_not_judged():
    seen = []

    def judge(x):
        seen.extend(x[:, 0, 0, 0].tolist())
        return echo(x)

    async def go():
        async with Batcher(judge, max_batch=3, max_wait=60) as batcher:
            tasks = [asyncio.create_task(batcher.ask(image(value))) for value in (3, 4, 5)]
            await asyncio.sleep(0)  # all three are queued
            tasks[1].cancel()
            return await asyncio.gather(*tasks, return_exceptions=True)

    first, gone, last = asyncio.run(go())
    assert (first.score, last.score) == (3, 5)
    assert isinstance(gone, asyncio.CancelledError)
    assert seen == [3, 5]


def test_an_error_reaches_those_of_its_batch_and_the_next_batch_works():
    def judge(x):
        if (x == 9).any():
            raise ArithmeticError("nine")
        return echo(x)

    async def go():
        async with Batcher(judge, max_batch=2, max_wait=0) as batcher:
            pairs = [[1, 9], [2, 3]]
            return [
                await asyncio.gather(*(batcher.ask(image(v)) for v in pair), return_exceptions=True) for pair in pairs
            ]

    failed, fine = asyncio.run(go())
    assert [type(outcome) for outcome in failed] == [ArithmeticError] * 2
    assert [outcome.score for outcome in fine] == [2, 3]


def test_leaving_answers_what_is_queued_and_then_takes_no_more():
    async def go():
        batcher = Batcher(echo, max_batch=2, max_wait=0)
        async with batcher:
            tasks = [asyncio.create_task(batcher.ask(image(value))) for value in range(9)]
            await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="does not run"):
            await batcher.ask(image(0))
        return [(await task).score for task in tasks]

    assert asyncio.run(go()) == list(range(9))


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="max_batch=0"):
        Batcher(echo, max_batch=0)
