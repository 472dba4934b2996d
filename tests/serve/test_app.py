"""Requests and answers: right ones agree with the detector, wrong ones are refused by name, limits hold."""

import asyncio
import base64
import copy
import io
import itertools
import random
import struct
import threading
import zlib
from types import SimpleNamespace

import httpx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from farout.serve import Limits, create_app


def form(*pictures):
    return {"files": [("images", ("name.png", picture, "image/png")) for picture in pictures]}


def as_json(*pictures):
    return {"json": {"images": [base64.b64encode(picture).decode() for picture in pictures]}}


def ask(serving, requests, **options):
    """The answers to requests, sent one after the other."""

    async def go():
        async with serving(**options) as (client, _):
            return [await client.post("/v1/score", **request) for request in requests]

    return asyncio.run(go())


def check(result, detector, image):
    """One result against the detector's own word for the same pixels."""
    judged = detector.judge(image[None])
    assert result["score"] == pytest.approx(judged.score.item(), abs=1e-6)
    assert result["label"] == detector.classes[judged.label.item()]
    assert result["verdict"] == ("OOD" if judged.is_ood.item() else "ID")
    assert result["p_value"] == pytest.approx(judged.p_value.item(), abs=1e-9)
    got = {entry["label"]: entry["probability"] for entry in result["probabilities"]}
    assert [got[name] for name in detector.classes] == pytest.approx(judged.probabilities[0].tolist(), abs=1e-6)


@pytest.mark.parametrize("encode", [form, as_json])
def test_answers_agree_with_the_detector_in_order(serving, detector, samples, pictures, encode):
    (answer,) = ask(serving, [encode(*pictures)])
    assert answer.status_code == 200, answer.text
    assert answer.json()["threshold"] == detector.threshold.item()
    results = answer.json()["results"]
    assert len({result["score"] for result in results}) > 6
    for result, image in zip(results, samples, strict=True):
        check(result, detector, image)


def test_other_sizes_and_modes_are_prepared_as_by_score(serving, detector, tmp_path):
    """A large colour photograph goes through the same path as `farout score`."""
    from sklearn.datasets import load_sample_image

    from farout.scoring import judge

    picture = Image.fromarray(load_sample_image("flower.jpg"))
    for mode in ("RGB", "L", "P", "CMYK"):
        file = tmp_path / f"{mode}.tiff"
        picture.convert(mode).save(file)
        (answer,) = ask(serving, [form(file.read_bytes())])
        (row,) = judge(detector, [file])
        assert answer.json()["results"][0]["score"] == pytest.approx(row["score"], abs=1e-6)


def test_top_lists_the_most_likely_classes_first(serving, pictures):
    async def go():
        async with serving() as (client, _):
            whole = (await client.post("/v1/score", **form(pictures[0]))).json()["results"][0]
            cut = (await client.post("/v1/score?top=2", **form(pictures[0]))).json()["results"][0]
            wrong = await client.post("/v1/score?top=0", **form(pictures[0]))
            return whole, cut, wrong

    whole, cut, wrong = asyncio.run(go())
    values = [entry["probability"] for entry in whole["probabilities"]]
    assert values == sorted(values, reverse=True)
    assert sum(values) == pytest.approx(1)
    assert whole["probabilities"][0]["label"] == whole["label"]
    assert cut["probabilities"] == whole["probabilities"][:2]
    assert wrong.status_code == 422
    assert wrong.json()["error"]["where"] == "query.top"


def test_without_calibration_scores_the_p_value_is_null(serving, detector, pictures):
    bare = copy.deepcopy(detector)
    bare.calibration = torch.empty(0, dtype=torch.float64)

    async def go():
        async with serving(bare) as (client, _):
            answer = await client.post("/v1/score", **form(*pictures[:2]))
            return answer, await client.get("/v1/detector"), await client.get("/v1/drift"), await client.get("/metrics")

    answer, info, drift, metrics = asyncio.run(go())
    assert [result["p_value"] for result in answer.json()["results"]] == [None, None]
    assert info.json()["calibration"] is None
    assert drift.json()["p_value"] is None
    assert "farout_drift_p_value NaN" in metrics.text


def header_of(width, height):
    """A PNG that claims a size and has hardly a pixel behind it."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0"))


def strip(width):
    file = io.BytesIO()
    Image.new("L", (width, 1)).save(file, "PNG")
    return file.getvalue()


JSON = {"content-type": "application/json"}
BAD = {
    "text": (form(b"hello"), 422, "not_an_image", "images[0]"),
    "empty file": (form(b""), 422, "empty_image", "images[0]"),
    "bomb": (form(header_of(6000, 5000)), 422, "too_many_pixels", "images[0]"),
    "huge bomb": (form(header_of(200_000, 200_000)), 422, "too_many_pixels", "images[0]"),
    "strip": (form(strip(1_000_000)), 422, "too_many_pixels", "images[0]"),
    "header only": (form(header_of(8, 8)), 422, "damaged_image", "images[0]"),
    "other field": ({"files": {"image": b"x"}}, 422, "unknown_field", "image"),
    "text field": ({"files": {"images": (None, "x")}}, 422, "unknown_field", "images"),
    "no images": (as_json(), 422, "no_images", "images"),
    "too many": (as_json(*[b"x"] * 33), 422, "too_many_images", "images"),
    "too many files": (form(*[b"x"] * 33), 422, "too_many_images", "images"),
    "bad base64": ({"json": {"images": ["*"]}}, 422, "bad_base64", "images[0]"),
    "not ascii": ({"json": {"images": ["é"]}}, 422, "bad_base64", "images[0]"),
    "number": ({"json": {"images": ["", 3]}}, 422, "bad_request", "images[1]"),
    "not a list": ({"json": {"images": "x"}}, 422, "bad_request", "images"),
    "other key": ({"json": {"images": ["x"], "imgs": 1}}, 422, "bad_request", "imgs"),
    "a list": ({"json": []}, 422, "bad_request", "body"),
    "not JSON": ({"content": b"{", "headers": JSON}, 400, "bad_json", "body"),
    "no body": ({"content": b"", "headers": JSON}, 400, "bad_json", "body"),
    "deep": ({"content": b"[" * 100_000, "headers": JSON}, 400, "bad_json", "body"),
    "no boundary": ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400, "bad_form", "body"),
    "other type": ({"content": b"x", "headers": {"content-type": "text/plain"}}, 415, "unknown_content_type", None),
    "no type": ({"content": b"x"}, 415, "unknown_content_type", None),
}


@pytest.fixture(scope="module")
def refusals(request):
    """The answer to every bad request, all asked of one application that must work afterwards."""
    serving, pictures = request.getfixturevalue("detector"), request.getfixturevalue("pictures")
    app = create_app(serving)

    async def go():
        async with app.router.lifespan_context(app), client_of(app) as client:
            answers = {name: await client.post("/v1/score", **bad[0]) for name, bad in BAD.items()}
            answers["good"] = await client.post("/v1/score", **form(pictures[0]))
            return answers

    return asyncio.run(go())


def client_of(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_by_name(refusals, name):
    _, status, code, where = BAD[name]
    answer = refusals[name]
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code
    assert "object at 0x" not in error["message"]
    if where is not None:
        assert error["where"] == where
        assert where in error["message"] or where == "body"
    assert refusals["good"].status_code == 200


def test_a_bad_image_among_good_ones_is_the_one_that_is_named(serving, pictures):
    (answer,) = ask(serving, [form(pictures[0], pictures[1], b"no image")])
    assert answer.status_code == 422
    assert answer.json()["error"]["where"] == "images[2]"


def test_unknown_paths_and_methods_have_the_same_form(serving):
    async def go():
        async with serving() as (client, service):
            answers = [await client.get("/v1/score"), await client.get("/nowhere/<b>")]
            return answers, dict(service.requests.counts)

    (method, path), counts = asyncio.run(go())
    assert (method.status_code, path.status_code) == (405, 404)
    assert "GET /v1/score" in method.json()["error"]["message"]
    assert counts == {("/v1/score", "405"): 1, ("other", "404"): 1}


PART = b'--b\r\nContent-Disposition: form-data; name="images"; filename="x"\r\n\r\n'


def test_a_long_body_is_refused_while_it_arrives(serving):
    sent = itertools.count()

    async def endless(start):
        yield start
        while True:
            next(sent)
            yield b"x" * 1000

    async def go():
        async with serving(limits=Limits(body_bytes=10_000)) as (client, _):
            length = {**JSON, "content-length": "10001"}
            declared = await client.post("/v1/score", content=endless(b""), headers=length)
            assert next(sent) == 0  # its length told enough
            streamed = [
                await client.post("/v1/score", content=endless(start), headers={"content-type": kind})
                for kind, start in (("application/json", b'{"'), ("multipart/form-data; boundary=b", PART))
            ]
            return [declared, *streamed]

    for answer in asyncio.run(go()):
        assert answer.status_code == 413
        assert "10,000 bytes" in answer.json()["error"]["message"]
    assert next(sent) <= 2 * 12


def test_a_body_that_never_ends_is_given_up(serving):
    async def stalled():
        yield b"{"
        await asyncio.Event().wait()

    async def go():
        async with serving(limits=Limits(seconds=0.05)) as (client, service):
            answer = await client.post("/v1/score", content=stalled(), headers=JSON)
            return answer, service.gate.inside

    answer, inside = asyncio.run(go())
    assert answer.status_code == 408
    assert answer.json()["error"]["code"] == "slow_body"
    assert inside == 0


class Blocked:
    """A detector that waits until it is let go."""

    def __init__(self, detector):
        self.detector, self.free = detector, threading.Event()

    def __call__(self, x):
        assert self.free.wait(10), "nobody let it go"
        return self.detector.judge(x)


async def until(condition):
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never happened")


def test_requests_beyond_the_room_are_told_to_come_back(serving, detector, pictures):
    async def go():
        async with serving(limits=Limits(concurrency=2, seconds=60)) as (client, service):
            service.batcher.judge = blocked = Blocked(detector)
            first = [asyncio.create_task(client.post("/v1/score", **form(pictures[n]))) for n in range(2)]
            await until(lambda: service.gate.inside == 2)
            refused, health = await client.post("/v1/score", **form(pictures[0])), await client.get("/healthz")
            blocked.free.set()
            done = await asyncio.gather(*first)
            return refused, health, done, await client.post("/v1/score", **form(pictures[0]))

    refused, health, done, after = asyncio.run(go())
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["code"] == "busy"
    assert [answer.status_code for answer in (health, *done, after)] == [200] * 4


def test_a_slow_detector_is_given_up_and_its_images_dropped(serving, detector, pictures):
    async def go():
        async with serving(limits=Limits(seconds=0.5), max_batch=1) as (client, service):
            service.batcher.judge = blocked = Blocked(detector)
            late = await asyncio.gather(*(client.post("/v1/score", **form(pictures[0])) for _ in range(3)))
            blocked.free.set()
            after = await client.post("/v1/score", **form(pictures[0]))
            return late, after, service.batch_sizes.counts[0]

    late, after, batches = asyncio.run(go())
    assert [answer.status_code for answer in late] == [504] * 3
    assert late[0].json()["error"]["code"] == "timeout"
    assert after.status_code == 200
    assert batches == 2  # the one at work, and the one after: nobody waits for the other two


def test_a_failing_detector_is_a_500_without_its_insides(serving, pictures, caplog):
    def broken(x):
        raise RuntimeError("secret")

    async def go():
        async with serving() as (client, service):
            sound, service.batcher.judge = service.batcher.judge, broken
            failed = await client.post("/v1/score", **form(*pictures[:3]))
            service.batcher.judge = lambda x: sound(x)._replace(score=torch.full((len(x),), torch.nan))
            not_finite = await client.post("/v1/score", **form(pictures[0]))
            service.batcher.judge = sound
            return failed, not_finite, await client.post("/v1/score", **form(pictures[0]))

    failed, not_finite, after = asyncio.run(go())
    assert (failed.status_code, not_finite.status_code, after.status_code) == (500, 500, 200)
    assert failed.json()["error"]["code"] == "detector_failed"
    assert "secret" not in failed.text
    assert "secret" in caplog.text


def test_good_and_bad_at_once_give_no_wrong_answer(serving, detector, samples, pictures):
    """Sixty-odd requests in flight in random order; each gets its own answer or its own refusal."""
    rng = random.Random(0)
    plans = [("good", rng.sample(range(12), rng.randint(1, 4))) for _ in range(60)]
    plans += [("bad", name) for name in BAD if name != "deep"]
    rng.shuffle(plans)

    async def go():
        async with serving(max_batch=5, limits=Limits(concurrency=200, seconds=60)) as (client, service):

            async def one(plan):
                kind, what = plan
                encode = form if len(what) % 2 else as_json
                request = encode(*(pictures[n] for n in what)) if kind == "good" else BAD[what][0]
                return plan, await client.post("/v1/score", **request)

            return await asyncio.gather(*map(one, plans)), service

    answers, service = asyncio.run(go())
    for (kind, what), answer in answers:
        if kind == "bad":
            assert (answer.status_code, answer.json()["error"]["code"]) == BAD[what][1:3], what
            continue
        assert answer.status_code == 200, answer.text
        for result, number in zip(answer.json()["results"], what, strict=True):
            check(result, detector, samples[number])
    images = sum(len(what) for kind, what in plans if kind == "good")
    assert sum(service.verdicts.counts.values()) == images
    assert service.drift.report().seen == images
    assert service.batch_sizes.total == images
    assert sum(service.batch_sizes.counts) < images  # some did share a batch


def test_leaving_finishes_what_is_queued(listening, detector, pictures):
    """The server is told to stop while a request waits for the detector: it is answered, then the server goes."""
    app = create_app(detector, limits=Limits(seconds=60))
    service = app.state.service
    service.batcher.judge = blocked = Blocked(detector)
    url, server, thread = listening(app)

    async def go():
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            waiting = asyncio.create_task(client.post("/v1/score", **form(*pictures[:3])))
            await until(lambda: service.gate.inside == 1)
            server.should_exit = True
            blocked.free.set()
            return await waiting

    answer = asyncio.run(go())
    thread.join(30)
    assert answer.status_code == 200
    assert len(answer.json()["results"]) == 3
    assert not thread.is_alive()
    assert not service.batcher.running


def test_ready_only_while_the_detector_runs(detector):
    app = create_app(detector)

    async def go():
        async with client_of(app) as client:
            before = await client.get("/readyz")
            async with app.router.lifespan_context(app):
                during = await client.get("/readyz")
            return before, during, await client.get("/readyz"), await client.get("/healthz")

    codes = [answer.status_code for answer in asyncio.run(go())]
    assert codes == [503, 200, 503, 200]


def test_metrics_are_read_by_prometheus_own_parser(serving, pictures):
    parser = pytest.importorskip("prometheus_client.parser", reason="an independent reader of the format")

    async def go():
        async with serving() as (client, _):
            await client.post("/v1/score", **form(*pictures))
            for _ in range(2):
                await client.post("/v1/score", **form(*pictures))
            await client.post("/v1/score", **form(b"x"))
            return await client.get("/metrics"), await client.get("/v1/drift")

    answer, drift = asyncio.run(go())
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    read = {
        (sample.name, *sample.labels.values()): sample.value
        for family in parser.text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert read["farout_requests_total", "/v1/score", "200"] == 3
    assert read["farout_requests_total", "/v1/score", "422"] == 1
    assert read["farout_request_seconds_count",] == 4
    assert read["farout_batch_size_sum",] == 36
    assert read["farout_verdicts_total", "ID"] + read["farout_verdicts_total", "OOD"] == 36
    assert read["farout_drift_p_value",] == drift.json()["p_value"]
    assert read["farout_ood_share",] == pytest.approx(drift.json()["ood_share"])
    assert read["farout_requests_in_flight",] == 0


def test_detector_info_holds_the_calibration_histogram(serving, detector):
    async def go():
        async with serving() as (client, _):
            return (await client.get("/v1/detector")).json()

    info = asyncio.run(go())
    assert info["classes"] == list(detector.classes)
    bins = info["calibration"]
    assert sum(bins["counts"]) == bins["count"] == len(detector.calibration)
    assert (bins["edges"][0], bins["edges"][-1]) == (detector.calibration[0].item(), detector.calibration[-1].item())


def test_exported_files_are_served_too(serving, detector, samples, pictures, monkeypatch):
    card = {**detector.card(), "input": {"shape": [1, 8, 8], "dtype": "uint8"}}
    exported = SimpleNamespace(card=card, judge=detector.judge)
    for place in ("farout.scoring", "farout.serve.service"):
        monkeypatch.setattr(f"{place}.open_exported", lambda path: exported)
    (answer,) = ask(serving, [form(*pictures)], judge="detector.onnx")
    for result, image in zip(answer.json()["results"], samples, strict=True):
        check(result, detector, image)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_fuzzed_bodies_never_break_it(detector, pictures, data):
    """Damaged pictures, random bytes and forms with odd headers: an answer or a refusal, never a 500."""
    picture = bytearray(pictures[0])
    for place in data.draw(st.lists(st.integers(0, len(picture) - 1), max_size=4)):
        picture[place] = data.draw(st.integers(0, 255))
    cut = bytes(picture[: data.draw(st.integers(0, len(picture)))])
    charset = data.draw(st.sampled_from(["utf-8", "punycode", "unicode_escape", "undefined", "idna", "nothing"]))
    name = data.draw(st.sampled_from([b"images", rb"\ud800", b"\xff", b"a--", b""]))
    part = b'--b\r\nContent-Disposition: form-data; name="' + name + b'"; filename="x"\r\n\r\n' + cut + b"\r\n--b--\r\n"
    kind = {"content-type": f"multipart/form-data; boundary=b; charset={charset}"}
    noise = data.draw(st.binary(max_size=200))
    requests = [
        form(cut),
        as_json(cut),
        {"content": part, "headers": kind},
        {"content": noise, "headers": data.draw(st.sampled_from([JSON, kind, {}]))},
    ]
    app = create_app(detector, max_wait=0)

    async def go():
        async with app.router.lifespan_context(app), client_of(app) as client:
            return [await client.post("/v1/score", **request) for request in requests]

    for answer in asyncio.run(go()):
        assert answer.status_code in (200, 400, 415, 422), answer.text
        assert "results" in answer.json() or answer.json()["error"]["message"]
