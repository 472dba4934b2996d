"""Spoiling bytes: a list of edits, each plain data, so that a fuzzer can draw them and hypothesis can shrink them."""

import random
from typing import NamedTuple

TOKENS = (
    *(b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x80"),
    *(b"\xff" * 8, b"\x00" * 8, b"\x01", b"\x80", b"\n", b"\x00", b" ", b'"', b"'", b"\\", b"\xed\xa0\x80"),
    *(b"9" * 30, b"-1", b"1e999", b"NaN", b"-Infinity", b"null", b"true", b"[]", b"{}", b"99999999", b"4294967295"),
    *(b"[" * 3000, b"{" * 2000, b"(" * 200, b"- " * 2000, b"&a [*a, *a]", b"<<: *a", b"!!python/object:os.system "),
    *(b"!!binary =", b"!!timestamp 2001-99-99", b"2001-13-45", b"? [a]\n: b", b": ", b"extends: ", b"- - -", b"0b2"),
    *(b"../../../etc/passwd", b"/etc/hostname", b"\x00.png", b"a" * 5000, b"\xe2\x80\xa8", b"%", b"#", b"|O", b"<i8"),
    *(
        b"cos\nsystem\n(S'true'\ntR.",
        b"cbuiltins\nbytearray\n(I99999999999\ntR",
        b"r\xff\xff\xff\x7f",
        b"\x8e" + b"\xff" * 8,
    ),
    *(b"'shape': (99999999999,)", b"'descr': 'O'", b'"shape":[4294967296]', b'"dtype":"F64"', b'"k": 99999999999'),
    *(b'"hidden": [99999999]', b'"name": "wrn", "depth": 99999994', b'"num_classes": 10000000000'),
)


class Edit(NamedTuple):
    """What to do, where (a share of the length), with which bytes, how long."""

    kind: int
    place: float
    token: bytes
    length: int


KINDS = 7


def spoil(data: bytes, edits: list[Edit]) -> bytes:
    """`data` after all edits, in order."""
    for kind, place, token, length in edits:
        at = int(place * len(data))
        head, tail = data[:at], data[at:]
        if kind == 0 and data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ (1 << length % 8)]) + data[at + 1 :]
        elif kind == 1:
            data = head + token + tail
        elif kind == 2:
            data = head + token + tail[len(token) :]
        elif kind == 3:
            data = head + tail[length:]
        elif kind == 4:
            data = head
        elif kind == 5:
            data = head + tail[:length] + tail
        elif kind == 6:
            data = head + bytes(reversed(tail[:length])) + tail[length:]
    return data


def draw(rng: random.Random) -> list[Edit]:
    """A few random edits, mostly small ones."""
    count = rng.choice((1, 1, 1, 2, 3, 6))
    return [_draw(rng) for _ in range(count)]


def _draw(rng: random.Random) -> Edit:
    token = rng.choice(TOKENS) if rng.random() < 0.6 else rng.randbytes(rng.randint(1, 6))
    return Edit(rng.randrange(KINDS), rng.random(), token, rng.choice((1, 2, 4, 8, rng.randint(1, 64))))
