"""From a request's body to image tensors; whatever is wrong is refused with the place and the reason."""

import base64
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, cast

from PIL import Image, UnidentifiedImageError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from torch import Tensor

from farout.data.image_files import FORMATS, decode
from farout.errors import DataError
from farout.preprocess import Preprocess
from farout.scoring import Judge
from farout.serve.limits import Limits, Refused, counted


class ScoreRequest(BaseModel):
    """Encoded images (the bytes of a PNG, JPEG, ... file), each as base64."""

    model_config = ConfigDict(extra="forbid")
    images: list[str] = Field(json_schema_extra={"minItems": 1, "items": {"type": "string", "format": "byte"}})


FORM_SCHEMA = {
    "type": "object",
    "required": ["images"],
    "additionalProperties": False,
    "properties": {"images": {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}},
}


async def read_body(request: Request, limits: Limits) -> bytes | list[bytes]:
    """The JSON text, or the files of a form; refuses other types, and what is too long while it still arrives."""
    receive = counted(request.receive, request.headers.get("content-length"), limits.body_bytes)
    request = Request(request.scope, receive)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return b"".join([chunk async for chunk in request.stream()])
    if kind == "multipart/form-data":
        return await _read_form(request, limits)
    message = f"the content type {kind!a} is not known; send multipart/form-data or application/json"
    raise Refused(415, "unknown_content_type", message, "content-type")


async def _read_form(request: Request, limits: Limits) -> list[bytes]:
    files = []
    try:
        async with request.form(max_files=limits.images, max_fields=10, max_part_size=limits.body_bytes) as form:
            for name, value in form.multi_items():
                if name != "images" or not isinstance(value, UploadFile):
                    message = f"the form's field {name!a} is not a file called 'images'; send every image as one"
                    raise Refused(422, "unknown_field", message, place([name]))
                files.append(await value.read())
    except (HTTPException, ValueError) as error:  # ValueError: a charset whose decoder chokes on a field's name
        reason = error.detail if isinstance(error, HTTPException) else str(error)
        if reason.startswith("Too many files"):
            raise _too_many(f"more than {limits.images}", limits.images) from None
        raise Refused(400, "bad_form", f"the form cannot be read: {ascii(reason)[1:-1]}", "body") from None
    return files


def read_images(body: bytes | list[bytes], judge: Judge, limits: Limits) -> list[Tensor]:
    """uint8 (C, S, S) for every image of the body, as `farout score` would read it from a file."""
    files = body if isinstance(body, list) else _read_json(body, limits.images)
    if not files:
        raise Refused(422, "no_images", "the request has no images; send at least one", "images")
    return [read_image(content, f"images[{number}]", judge, limits.pixels) for number, content in enumerate(files)]


def _read_json(text: bytes, most: int) -> list[bytes]:
    try:
        images = ScoreRequest.model_validate_json(text).images
    except ValidationError as error:
        raise _unfit(error.errors(include_url=False, include_input=False)[0]) from None
    if len(images) > most:
        raise _too_many(str(len(images)), most)
    return [_unbase64(image, f"images[{number}]") for number, image in enumerate(images)]


def _unfit(error: Any) -> Refused:
    if error["type"] == "json_invalid":
        return Refused(400, "bad_json", f"the body is not JSON: {error['ctx']['error']}", "body")
    where = place(error["loc"]) or "body"
    return Refused(422, "bad_request", f'{where}: {error["msg"]}; send {{"images": ["base64 ...", ...]}}', where)


def place(steps: Sequence[str | int]) -> str:
    """('images', 2) -> images[2]."""
    named = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return ascii(named)[1:-1].removeprefix(".")


def _too_many(count: str, most: int) -> Refused:
    return Refused(422, "too_many_images", f"the request has {count} images, at most {most} are taken", "images")


def _unbase64(text: str, where: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise Refused(422, "bad_base64", f"{where} is not base64: {error}", where) from None


def read_image(content: bytes, where: str, judge: Judge, most_pixels: int) -> Tensor:
    """The encoded image as the detector takes it, (C, S, S); its header is looked at before a pixel is decoded."""
    if not content:
        raise Refused(422, "empty_image", f"{where} has no bytes", where)
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as picture:
            _refuse_bomb(picture.size, judge.resize, most_pixels, where)
        image = decode(cast(Path, BytesIO(content)), judge.resize, judge.crop)
    except Image.DecompressionBombError:
        raise _too_large(where, "far more", most_pixels) from None
    except UnidentifiedImageError:
        raise Refused(422, "not_an_image", f"{where} is not an image ({', '.join(FORMATS)})", where) from None
    except Refused:
        raise
    except Exception as error:  # damaged bytes raise many kinds; `decode` hides its own behind a DataError
        cause = (error.__cause__ or error) if isinstance(error, DataError) else error
        message = f"{where} is a damaged image: {type(cause).__name__}: {cause}"
        raise Refused(422, "damaged_image", message, where) from None
    coloured: Tensor = Preprocess(judge.crop, judge.crop, judge.channels)(image[None])
    return coloured[0]


def _refuse_bomb(size: tuple[int, int], resize: int, most: int, where: str) -> None:
    """A thin strip is small until its shorter side is resized, so that is counted too."""
    short, long = min(size), max(size)
    if short * long > most:
        raise _too_large(where, f"{size[0]} x {size[1]} =", most)
    if resize * int(resize * long / max(short, 1)) > most:
        raise _too_large(where, f"once its shorter side is resized from {short} to {resize}, more", most)


def _too_large(where: str, how: str, most: int) -> Refused:
    return Refused(422, "too_many_pixels", f"{where} has {how} pixels; at most {most:,} are decoded", where)
