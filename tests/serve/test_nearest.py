"""The nearest examples in an answer: those of the folder, only where they are asked for and carried."""

import asyncio
import base64
import io

import numpy as np
import pytest
from PIL import Image

from farout import examples
from farout.data.named import open_named
from farout.errors import CheckpointError
from farout.serve.nearest import Gallery


@pytest.fixture(scope="module")
def folder(detector, tmp_path_factory):
    """A detector's folder with forty test digits in it."""
    where = detector.save(tmp_path_factory.mktemp("gallery") / "d")
    examples.save(examples.gather(detector, open_named("demo/digits", split="test"), 40), detector, where)
    return where


def ask(serving, judge, *requests):
    async def go():
        async with serving(judge) as (client, _):
            return [await client.request(*request, **more) for *request, more in requests]

    return asyncio.run(go())


def form(*pictures):
    return {"files": [("images", ("name.png", picture, "image/png")) for picture in pictures]}


def test_each_image_gets_its_own_nearest_examples(serving, detector, folder, pictures, samples):
    info, plain, near, wrong = ask(
        serving,
        folder,
        ("GET", "/v1/detector", {}),
        ("POST", "/v1/score", form(*pictures[:3])),
        ("POST", "/v1/score?nearest=4", form(*pictures[:3])),
        ("POST", "/v1/score?nearest=21", form(pictures[0])),
    )
    assert info.json()["examples"] == 40
    assert wrong.status_code == 422
    kept = examples.load(folder, detector)
    for bare, result, image in zip(plain.json()["results"], near.json()["results"], samples, strict=False):
        assert bare["nearest"] is None
        assert bare["score"] == pytest.approx(result["score"], abs=1e-6)
        distances, indices = kept.nearest(detector.net(image[None]).features.detach(), 4)
        assert [one["index"] for one in result["nearest"]] == indices[0].tolist()
        assert [one["distance"] for one in result["nearest"]] == pytest.approx(distances[0].tolist(), abs=2e-3)
        for one in result["nearest"]:
            assert one["label"] == detector.classes[kept.labels[one["index"]]]
            start, _, content = one["image"].partition(",")
            assert start == "data:image/png;base64"
            shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
            np.testing.assert_array_equal(shown, kept.images[one["index"], 0].numpy())


def test_a_detector_without_examples_says_so(serving, detector, pictures):
    info, answer = ask(
        serving, detector, ("GET", "/v1/detector", {}), ("POST", "/v1/score?nearest=4", form(pictures[0]))
    )
    assert info.json()["examples"] == 0
    assert answer.status_code == 200
    assert answer.json()["results"][0]["nearest"] is None


def test_examples_without_labels_have_none(detector, folder):
    kept = examples.load(folder, detector)
    gallery = Gallery(detector, kept._replace(labels=kept.labels.clone().fill_(-1)))
    assert set(gallery.labels) == {None}


def test_a_damaged_file_stops_the_server_at_its_start(detector, tmp_path):
    from farout.serve import create_app

    where = detector.save(tmp_path / "d")
    (where / examples.NAME).write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="damaged"):
        create_app(where)
