"""Fetching against a server on this machine that breaks off, lies, redirects and sends hostile archives."""

import hashlib
import io
import json
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from farout.data import fetch as fetching
from farout.data.catalogue import SETS
from farout.data.fetch import ATTEMPTS, ORIGINS, Origin, Remote, download, fetch, origin, unpack
from farout.errors import ConfigError, DataError

BODY = bytes(range(256)) * 4000
MD5 = "md5:" + hashlib.md5(BODY, usedforsecurity=False).hexdigest()
SHA256 = hashlib.sha256(BODY).hexdigest()
LIMIT = 2_000_000


class Site:
    """What the server has, how it answers the coming requests, and what it was asked.

    `tricks` are used up one a request: ("break", n) sends n bytes and hangs up, ("status", code), ("redirect", url),
    ("no range",), ("corrupt",), ("shifted",) answers another range than asked, ("no length",). `always` is the trick
    when they are used up.
    """

    def __init__(self):
        self.files, self.tricks, self.asked = {"/file.bin": BODY}, [], []
        self.etag, self.date, self.always = '"one"', "", ()


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        site = self.server.site
        site.asked.append({key: self.headers.get(key) for key in ("Range", "If-Range")})
        trick, *rest = site.tricks.pop(0) if site.tricks else site.always or ("",)
        if trick == "redirect":
            return self.answer(302, b"", Location=rest[0])
        if trick == "status":
            return self.answer(rest[0], b"no")
        body, status, headers = site.files[self.path], 200, {}
        if site.etag:
            headers["ETag"] = site.etag
        if site.date:
            headers["Last-Modified"] = site.date
        if trick == "corrupt":
            body = b"?" + body[1:]
        wanted, known = self.headers.get("Range"), self.headers.get("If-Range")
        if wanted and trick != "no range" and known in (None, site.etag, site.date):
            start = int(wanted.removeprefix("bytes=").rstrip("-")) + (trick == "shifted")
            if start >= len(body):
                return self.answer(416, b"", **{"Content-Range": f"bytes */{len(body)}"})
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
            body, status = body[start:], 206
        return self.answer(
            status, body, cut=rest[0] if trick == "break" else None, length=trick != "no length", **headers
        )

    def answer(self, status, body, cut=None, length=True, **headers):
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut])


@pytest.fixture
def site():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.site = Site()
    server.site.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.site
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def get(site, tmp_path):
    """Download the server's file without waiting between attempts."""

    def call(digest=MD5, limit=LIMIT, name="/file.bin", **options):
        return download(site.url + name, tmp_path / "file.bin", digest, limit, pause=lambda seconds: None, **options)

    return call


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_plain_download_with_progress(get, site, tmp_path):
    told = []
    assert get(tell=lambda what, done, total: told.append((what, done, total))) == SHA256
    assert (tmp_path / "file.bin").read_bytes() == BODY
    assert left(tmp_path) == ["file.bin"]
    assert told[-1] == ("file.bin", len(BODY), len(BODY))
    assert get() == SHA256  # it is there: nothing is asked again
    assert len(site.asked) == 1


def test_broken_off_it_goes_on_where_it_stopped(get, site, tmp_path):
    site.tricks = [("break", 300_000), ("break", 200_000)]
    assert get() == SHA256
    assert [asked["Range"] for asked in site.asked] == [None, "bytes=300000-", "bytes=500000-"]
    assert site.asked[1]["If-Range"] == '"one"'


def test_it_goes_on_in_another_process_too(get, site, tmp_path):
    site.always = ("break", 0)
    site.tricks = [("break", 300_000)]
    with pytest.raises(DataError, match="broke off after 300,000 of 1,024,000.*the same command goes on"):
        get()
    assert left(tmp_path) == ["file.bin.part", "file.bin.part.json"]
    site.always, site.asked = (), []
    assert get() == SHA256
    assert [asked["Range"] for asked in site.asked] == ["bytes=300000-"]
    assert left(tmp_path) == ["file.bin"]


def test_a_long_download_may_break_many_times(get, site):
    site.tricks = [("break", 90_000)] * 10
    assert get() == SHA256
    assert len(site.asked) == 11


def test_a_server_without_ranges_starts_anew(get, site, tmp_path):
    site.tricks = [("break", 300_000), ("no range",)]
    assert get() == SHA256
    assert (tmp_path / "file.bin").read_bytes() == BODY


def test_a_server_without_ranges_that_always_breaks_is_given_up(get, site):
    site.etag, site.tricks = "", [("break", 400_000 + step % 3) for step in range(50)]
    with pytest.raises(DataError, match="broke off"):
        get(digest="")  # without version and checksum it must start anew each time
    assert len(site.asked) < 3 * ATTEMPTS
    assert all(asked["Range"] is None for asked in site.asked)


def test_a_file_that_changed_in_between_starts_anew(get, site, tmp_path):
    site.tricks = [("break", 300_000)]
    site.always = ("status", 503)
    with pytest.raises(DataError, match="503"):
        get(digest="")
    site.always, site.etag, site.files["/file.bin"] = (), '"two"', BODY[::-1]
    get(digest="")
    assert (tmp_path / "file.bin").read_bytes() == BODY[::-1]


def test_the_date_serves_where_the_etag_is_weak(get, site):
    site.etag, site.date = 'W/"weak"', "Mon, 01 Jan 2024 00:00:00 GMT"
    site.tricks = [("break", 300_000)]
    assert get(digest="") == SHA256
    assert site.asked[1] == {"Range": "bytes=300000-", "If-Range": site.date}


def test_without_a_version_the_checksum_decides(get, site, tmp_path):
    site.etag = ""
    (tmp_path / "file.bin.part").write_bytes(BODY[:1000])
    assert get() == SHA256
    assert site.asked == [{"Range": "bytes=1000-", "If-Range": None}]
    (tmp_path / "file.bin").unlink()
    (tmp_path / "file.bin.part").write_bytes(b"of another file")
    assert get() == SHA256
    assert site.asked[-1]["Range"] is None  # the pieces did not fit: once more from the start


def test_a_part_that_is_whole_or_too_long(get, site, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(BODY)
    assert get() == SHA256
    (tmp_path / "file.bin").unlink()
    (tmp_path / "file.bin.part").write_bytes(BODY + b"more")
    assert get() == SHA256


def test_a_range_that_was_not_asked_for_is_not_believed(get, site, tmp_path):
    site.tricks = [("break", 1000), ("shifted",)]
    assert get(digest="") == SHA256
    assert [asked["Range"] for asked in site.asked] == [None, "bytes=1000-", None]


@pytest.mark.parametrize("digest", [MD5, f"sha256:{SHA256}"])
def test_a_corrupted_file_is_refused_and_not_kept(get, site, tmp_path, digest):
    site.always = ("corrupt",)
    with pytest.raises(DataError, match="checksum is .*, expected " + digest):
        get(digest=digest)
    assert left(tmp_path) == []
    assert len(site.asked) == 1


def test_redirects_are_followed_with_their_range(get, site):
    site.tricks = [("redirect", site.url + "/file.bin"), ("break", 1000), ("redirect", site.url + "/file.bin")]
    assert get(name="/moved") == SHA256
    assert site.asked[-1]["Range"] == "bytes=1000-"


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/file.bin"])
def test_unsafe_redirects_are_not_followed(get, site, tmp_path, target):
    site.tricks = [("redirect", target)]
    with pytest.raises(DataError, match="not safe to follow|not allowed"):
        get(name="/moved")
    assert left(tmp_path) == []


def test_a_redirect_from_https_to_http_is_not_followed():
    from urllib.request import Request

    with pytest.raises(DataError, match="not safe"):
        fetching._Redirects().redirect_request(Request("https://a/b"), None, 302, "", {}, "http://a/b")


def test_endless_redirects_end(get, site):
    site.always = ("redirect", site.url + "/file.bin")
    with pytest.raises(DataError, match="302"):
        get()


def test_too_large_by_its_own_word_or_in_fact(get, site, tmp_path):
    with pytest.raises(DataError, match="has 1,024,000 bytes, more than the 1,000"):
        get(limit=1000)
    site.tricks = [("no length",)]
    with pytest.raises(DataError, match="sends more than the 1,000 bytes"):
        get(limit=1000)
    assert left(tmp_path) == []


def test_no_room_on_the_disk(get, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10}))
    with pytest.raises(DataError, match="make room"):
        get()


def test_no_length_is_no_obstacle(get, site):
    site.tricks = [("no length",)]
    assert get() == SHA256


def test_missing_and_forbidden_files_are_not_tried_again_but_tired_servers_are(get, site):
    site.tricks = [("status", 404)]
    with pytest.raises(DataError, match="404"):
        get()
    assert len(site.asked) == 1
    site.tricks = [("status", 503), ("status", 429)]
    assert get() == SHA256


def test_nobody_answers(tmp_path):
    waits = []
    with pytest.raises(DataError, match="cannot be reached"):
        download("http://127.0.0.1:1/file.bin", tmp_path / "f", "", LIMIT, pause=waits.append)
    assert waits == [2.0, 4.0, 8.0, 16.0, 30.0][: ATTEMPTS - 1]


def test_only_the_web_is_fetched(tmp_path):
    with pytest.raises(DataError, match="http and https only"):
        download("file:///etc/passwd", tmp_path / "f", "", LIMIT)


def tarred(members, mode="w:gz"):
    """An archive of (TarInfo or name, bytes)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as tar:
        for info, content in members:
            info = tarfile.TarInfo(info) if isinstance(info, str) else info
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zipped(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members:
            packed.writestr(name, content)
    return out.getvalue()


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def remote(site, body, archive, makes="set/images", into="", unpacked=10_000):
    site.files["/pack.tar.gz"] = body
    digest = "sha256:" + hashlib.sha256(body).hexdigest()
    return Remote(site.url + "/pack.tar.gz", digest, makes, LIMIT, archive, into, unpacked)


def test_fetch_unpacks_and_leaves_nothing_else(site, tmp_path):
    body = tarred([("set/images/a.txt", b"a"), ("set/images/b/c.txt", b"c"), ("set/readme", b"r")])
    found = fetch(Origin("toy", (remote(site, body, "tar", "set"),), "free", "nobody"), tmp_path / "data")
    assert [one.path for one in found] == [tmp_path / "data" / "set"]
    assert found[0].sha256 == hashlib.sha256(body).hexdigest()
    assert (tmp_path / "data/set/images/b/c.txt").read_bytes() == b"c"
    assert left(tmp_path / "data") == ["set"]
    again = fetch(Origin("toy", (remote(site, body, "tar", "set"),), "free", "nobody"), tmp_path / "data")
    assert again[0].sha256 == ""
    assert len(site.asked) == 1


def test_fetch_keeps_the_archive_when_asked_and_unpacks_zip(site, tmp_path):
    body = zipped([("val/", b""), ("val/a.txt", b"a")])
    toy = Origin("toy", (remote(site, body, "zip", "places/val", "places"),), "free", "nobody")
    fetch(toy, tmp_path, keep=True)
    assert (tmp_path / "places/val/a.txt").read_bytes() == b"a"
    assert left(tmp_path) == ["pack.tar.gz", "places"]
    assert left(tmp_path / "places") == ["val"]


HOSTILE_TARS = {
    "parent": [("../escaped", b"x")],
    "deep parent": [("set/images/../../../escaped", b"x")],
    "absolute": [("ROOT/escaped", b"x")],
    "backslash": [("set\\..\\..\\escaped", b"x")],
    "drive": [("C:/escaped", b"x")],
    "symlink": [(special("set/link", tarfile.SYMTYPE, "/etc"), b""), ("set/link/escaped", b"x")],
    "inner symlink": [(special("set/link", tarfile.SYMTYPE, "images"), b"")],
    "hard link": [(special("set/link", tarfile.LNKTYPE, "../../escaped"), b"")],
    "device": [(special("set/null", tarfile.CHRTYPE), b"")],
    "pipe": [(special("set/pipe", tarfile.FIFOTYPE), b"")],
    "bomb": [("set/images/zeros", bytes(20_000))],
}


@pytest.mark.parametrize("members", HOSTILE_TARS.values(), ids=HOSTILE_TARS)
def test_hostile_tars_leave_nothing(site, tmp_path, members):
    root = tmp_path / "deep" / "data"
    members = [(name.replace("ROOT", str(tmp_path)) if isinstance(name, str) else name, x) for name, x in members]
    body = tarred([("set/images/good", b"g"), *members])
    with pytest.raises(DataError, match="refused"):
        fetch(Origin("toy", (remote(site, body, "tar"),), "", ""), root)
    assert left(root) == ["pack.tar.gz"]
    assert left(tmp_path) == ["deep"]


def test_hostile_zips_leave_nothing(site, tmp_path):
    link = zipfile.ZipInfo("set/link")
    link.external_attr = 0o120777 << 16
    for members in (
        [("../escaped", "x")],
        [(f"{tmp_path}/escaped", "x")],
        [(link, "/etc")],
        [("set/zeros", bytes(20_000))],
    ):
        body = zipped([("set/images/good", "g"), *members])
        with pytest.raises(DataError, match="refused"):
            fetch(Origin("toy", (remote(site, body, "zip"),), "", ""), tmp_path / "data")
        assert left(tmp_path / "data") == ["pack.tar.gz"]
        assert left(tmp_path) == ["data"]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_damaged_archives_and_archives_of_something_else(site, tmp_path, kind):
    body = (
        tarred([("set/images/a", bytes(range(256)) * 20)]) if kind == "tar" else zipped([("set/images/a", "a" * 999)])
    )
    for wrong in (body[: len(body) // 2], b"no archive at all"):
        path = tmp_path / "pack"
        path.write_bytes(wrong)
        with pytest.raises(DataError, match="damaged"):
            unpack(path, tmp_path / "set", remote(site, wrong, kind, "set"))
    path.write_bytes(body)
    with pytest.raises(DataError, match="does not hold other; it has set"):
        unpack(path, tmp_path / "other", remote(site, body, kind, "other"))
    assert left(tmp_path) == ["pack"]


def test_too_many_members(site, tmp_path, monkeypatch):
    monkeypatch.setattr(fetching, "MAX_MEMBERS", 2)
    path = tmp_path / "pack"
    path.write_bytes(tarred([(f"set/{number}", b"") for number in range(3)]))
    with pytest.raises(DataError, match="one too many"):
        unpack(path, tmp_path / "set", remote(site, b"", "tar", "set"))


def test_the_table_is_sound():
    for name, known in ORIGINS.items():
        assert name == known.name
        assert known.licence
        assert known.citation
        for one in known.remotes:
            kind, _, value = one.digest.partition(":")
            assert (kind, len(value)) in {("md5", 32), ("sha256", 64)} or (name == "300k" and not one.digest)
            assert one.url.endswith((".tar.gz", ".tar", ".zip", ".mat", ".npy"))
            assert bool(one.archive) == (one.file != one.makes)
            assert not one.archive or one.unpacked > 0


@pytest.mark.parametrize("name", sorted(set(ORIGINS) & set(SETS)))
def test_what_is_fetched_is_what_the_readers_look_for(name):
    """Each path a fetch makes is one of the set's layouts, for some split, or lies below or above one."""
    patterns = [p for split in (SETS[name].splits or {"all": "all"}) for p in SETS[name].patterns(split)]
    for one in ORIGINS[name].remotes:
        made = one.makes
        assert any(p == made or p.startswith(made + "/") or made.startswith(p + "/") for p in patterns), (
            made,
            patterns,
        )


def test_sets_that_cannot_be_fetched_say_how_to_get_them():
    with pytest.raises(DataError, match="cannot fetch 'lsun'.*To get it: the ODIN release"):
        origin("lsun-c")
    with pytest.raises(ConfigError, match="did you mean 'cifar10'"):
        origin("cifar1o")
    assert origin("DTD").name == "textures"


def test_the_command(cli, site, tmp_path, monkeypatch):
    body = tarred([("dtd/images/a.txt", b"a")])
    toy = Origin("textures", (remote(site, body, "tar", "dtd"),), "free for all", "Nobody, Nowhere, 1999", "A note.")
    monkeypatch.setattr(fetching, "ORIGINS", {"textures": toy})
    code, out, err = cli("data", "fetch", "textures", "--root", tmp_path)
    assert code == 0, err
    for line in (
        "free for all",
        "Nobody, Nowhere, 1999",
        "A note.",
        hashlib.sha256(body).hexdigest(),
        "farout data check",
    ):
        assert line in out
    assert (tmp_path / "dtd/images/a.txt").is_file()
    code, out, _ = cli("data", "fetch", "textures", "--root", tmp_path)
    assert code == 0
    assert "already there" in out
    code, out, _ = cli("data", "fetch")
    assert code == 0
    assert "textures" in out
    code, _, err = cli("data", "fetch", "isun", "--root", tmp_path)
    assert code == 1
    assert "To get it" in err
    assert err.count("\n") == 1


def test_the_overlap_command(cli, tmp_path):
    code, out, err = cli("data", "overlap", "demo/digits", "demo/digits", "--split-b", "test", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["count_b"] == 216
    assert found["exact_b"] == 0
    code, out, _ = cli("data", "overlap", "demo/flower", "demo/flower", "--threshold", 0, "--size", 8)
    assert code == 0
    assert "700 of 700" in out
    assert "perceptual" in out
    code, _, err = cli("data", "overlap", "demo/flower", "demo/flower", "--threshold", 63)
    assert code == 1
    assert "give 0 .. 62" in err
    for command in ("fetch", "overlap"):
        assert "Example" in cli("data", command, "--help")[1]
