"""Downloading, verifying and converting datasets: servers, archives and folders that lie."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

import dataset
import download
import files
from errors import ParbenchError

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "scripts" / "dataset.py"
JPEG = ROOT.parent / "shared" / "cifar10" / "cifar10-jpeg.tar.gz"
FOLDER = "cifar-10-batches-bin"
NAMES = "airplane automobile bird cat deer dog frog horse ship truck".split()
BINS = [*(f"data_batch_{at}.bin" for at in range(1, 6)), "test_batch.bin"]
SMALL = 10  # records in each file of a small archive; the real one has 10,000


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path / "the cache"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "the cache"


def start(name: str, spec: dict, folder: Path, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        command(name, spec, folder), capture_output=True, text=True, timeout=120, **options
    )


def command(name: str, spec: dict, folder: Path) -> list[str]:
    return [
        *(sys.executable, str(PROGRAM), "--name", name, "--spec", json.dumps(spec)),
        *("--out", str(folder / "data.safetensors"), "--digest", str(folder / "digest.json")),
    ]


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"} if folder.exists() else set()


# ---- archives made here ----


def records(count: int, first: int = 0) -> bytes:
    pixels = np.random.default_rng(7).integers(0, 256, 3072, dtype=np.uint8).tobytes()
    return b"".join(bytes([(first + at) % 10]) + pixels for at in range(count))


def contents(count: int = SMALL) -> dict[str, bytes]:
    texts = {"batches.meta.txt": "\n".join([*NAMES, ""]).encode(), "readme.html": b"<html>"}
    return {**{name: records(count, at) for at, name in enumerate(BINS)}, **texts}


def member(name: str, content: bytes = b"", **fields) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def members(parts: dict[str, bytes]) -> list:
    folder = member(FOLDER, type=tarfile.DIRTYPE)
    return [folder, *(member(f"{FOLDER}/{name}", content) for name, content in parts.items())]


def pack(items: list) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w") as archive,
    ):
        for info, content in items:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def spec_of(archive: bytes, *urls: str) -> dict:
    sha256 = hashlib.sha256(archive).hexdigest()
    return {"kind": "cifar10-binary", "urls": [*urls], "size": len(archive), "sha256": sha256}


def local_spec(archive: bytes, path: Path) -> dict:
    path.write_bytes(archive)
    return {**spec_of(archive), "urls": ["https://nowhere.invalid/x"], "path": str(path)}


# ---- servers ----


class Server:
    """A server on this machine: answers each path as told, and notes what it was asked."""

    def __init__(self):
        self.answers: dict[str, Callable] = {}
        self.requests: list[tuple[str, str | None]] = []
        self.closing = threading.Event()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.requests.append((self.path, self.headers.get("Range")))
                with contextlib.suppress(ConnectionError):
                    server.answers[self.path](self)

            def log_message(self, *arguments):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,))
        self.thread.start()

    def url(self, path: str, answer: Callable) -> str:
        self.answers[path] = answer
        return f"http://127.0.0.1:{self.http.server_port}{path}"

    def close(self):
        self.closing.set()
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()


@pytest.fixture
def server():
    made = Server()
    yield made
    made.close()


def reply(handler, status: int, body: bytes = b"", length: int | None = -1, **headers) -> None:
    handler.send_response(status)
    if length is not None:
        handler.send_header("Content-Length", str(len(body) if length == -1 else length))
    for key, value in headers.items():
        handler.send_header(key.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def whole(body: bytes) -> Callable:
    """A server that knows nothing of Range."""
    return lambda handler: reply(handler, 200, body)


def ranged(body: bytes, at_most: int | None = None) -> Callable:
    """A server that continues; ``at_most`` bytes an answer, then the line is cut."""

    def answer(handler):
        given = handler.headers.get("Range")
        begin = int(given.removeprefix("bytes=").rstrip("-")) if given else 0
        rest = body[begin:]
        headers = {"Content_Range": f"bytes {begin}-{len(body) - 1}/{len(body)}"} if given else {}
        reply(handler, 206 if given else 200, rest[:at_most], len(rest), **headers)

    return answer


def part_of(cache: Path, archive: bytes) -> Path:
    return cache / "downloads" / f"{hashlib.sha256(archive).hexdigest()}.part"


def fetched(spec: dict) -> bytes:
    return download.fetch(spec["urls"], spec["size"], spec["sha256"]).read_bytes()


BODY = bytes(range(256)) * 2000  # half a megabyte: more than a socket holds


def test_download_and_cache(server, capsys):
    spec = spec_of(BODY, server.url("/a", whole(BODY)))
    assert fetched(spec) == BODY
    assert fetched(spec) == BODY
    assert server.requests == [("/a", None)]
    assert "100 %" in capsys.readouterr().err


def test_a_damaged_cache_is_downloaded_again(server, own_cache, capsys):
    spec = spec_of(BODY, server.url("/a", whole(BODY)))
    fetched(spec)
    (own_cache / "downloads" / spec["sha256"]).write_bytes(b"x" * len(BODY))
    assert fetched(spec) == BODY
    assert "downloading again" in capsys.readouterr().err
    assert len(server.requests) == 2


def test_an_interrupted_download_is_continued(server, own_cache):
    spec = spec_of(BODY, server.url("/a", ranged(BODY)))
    part = part_of(own_cache, BODY)
    part.parent.mkdir(parents=True)
    part.write_bytes(BODY[:1000])
    assert fetched(spec) == BODY
    assert server.requests == [("/a", "bytes=1000-")]
    assert not part.exists()


def test_a_cut_line_is_continued_at_the_same_mirror(server):
    spec = spec_of(BODY, server.url("/a", ranged(BODY, at_most=200_000)))
    assert fetched(spec) == BODY
    assert server.requests == [("/a", None), ("/a", "bytes=200000-"), ("/a", "bytes=400000-")]


def test_a_line_cut_again_and_again_goes_to_the_next_mirror(server, own_cache):
    short = server.url("/short", ranged(BODY, at_most=100))
    spec = spec_of(BODY, short, server.url("/good", ranged(BODY)))
    assert fetched(spec) == BODY
    assert server.requests[-2:] == [("/short", "bytes=300-"), ("/good", "bytes=400-")]
    with pytest.raises(ParbenchError, match="/short: cut off 4 times"):
        fetched(spec_of(BODY[:-1], server.url("/short", ranged(BODY[:-1], at_most=100))))
    assert part_of(own_cache, BODY[:-1]).read_bytes() == BODY[:400]


def test_a_server_that_ignores_range_starts_again(server, own_cache):
    spec = spec_of(BODY, server.url("/a", whole(BODY)))
    part = part_of(own_cache, BODY)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"something else")
    assert fetched(spec) == BODY
    assert server.requests == [("/a", "bytes=14-")]


def test_a_wrong_beginning_does_not_damn_the_mirror(server, own_cache, capsys):
    spec = spec_of(BODY, server.url("/a", ranged(BODY)))
    part = part_of(own_cache, BODY)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"something else")
    assert fetched(spec) == BODY
    assert server.requests == [("/a", "bytes=14-"), ("/a", None)]
    assert "starting again" in capsys.readouterr().err


@pytest.mark.parametrize("beginning", [BODY + b"more", b"x" * len(BODY)])
def test_a_part_as_long_or_longer_but_wrong(server, own_cache, beginning):
    part = part_of(own_cache, BODY)
    part.parent.mkdir(parents=True)
    part.write_bytes(beginning)
    assert fetched(spec_of(BODY, server.url("/a", ranged(BODY)))) == BODY
    assert server.requests == [("/a", None)]


def test_a_stalled_mirror_times_out(server, monkeypatch, own_cache):
    monkeypatch.setattr(download, "TIMEOUT", 0.4)

    def stall(handler):
        reply(handler, 200, BODY[:5000], len(BODY))
        handler.wfile.flush()
        server.closing.wait(20)

    spec = spec_of(BODY, server.url("/stalls", stall), server.url("/good", ranged(BODY)))
    began = time.monotonic()
    assert fetched(spec) == BODY
    assert time.monotonic() - began < 10
    assert server.requests == [("/stalls", None), ("/good", "bytes=5000-")]


def test_a_trickle_is_a_stall(server, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.5)

    def trickle(handler):
        reply(handler, 200, b"", len(BODY))
        while not server.closing.wait(0.1):
            handler.wfile.write(b"x")

    with pytest.raises(ParbenchError, match="/slow: stalled: nothing for 0.5 seconds"):
        fetched(spec_of(BODY, server.url("/slow", trickle)))


def test_a_mirror_that_never_answers(server, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.4)
    with pytest.raises(ParbenchError, match="/silent: stalled"):
        fetched(spec_of(BODY, server.url("/silent", lambda handler: server.closing.wait(20))))


LIES = {
    "announces less": (lambda h: reply(h, 200, BODY[:10], 10), "announces 10 bytes"),
    "announces more": (lambda h: reply(h, 200, BODY, len(BODY) + 1), "announces 512001 bytes"),
    "sends more": (lambda h: reply(h, 200, BODY * 2, None), "sends more than the 512,000 bytes"),
    "sends less": (lambda h: reply(h, 200, b"", len(BODY)), "cut off after 0 of 512,000 bytes"),
    "other bytes": (lambda h: reply(h, 200, b"x" * len(BODY)), "serves something else.*SHA-256"),
    "not there": (lambda h: reply(h, 404), "HTTP Error 404"),
    "no answer": (lambda h: h.connection.close(), "connection lost"),
    "no HTTP": (lambda h: h.wfile.write(b"SSH-2.0-x\r\n\r\n"), "connection lost"),
    "no content": (lambda h: reply(h, 204), "answers with status 204"),
    "to file": (lambda h: reply(h, 302, Location="file:///etc/passwd"), "file:///etc/passwd.*not"),
    "to ftp": (lambda h: reply(h, 302, Location="ftp://127.0.0.1/x"), "unknown url type: ftp"),
    "to data": (lambda h: reply(h, 302, Location="data:,x"), "data:,x.*not allowed"),
    "in a ring": (lambda h: reply(h, 302, Location=h.path), "HTTP Error 302"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_mirror_is_named_and_the_next_is_tried(server, own_cache, lie):
    answer, reason = LIES[lie]
    bad = server.url("/bad", answer)
    with pytest.raises(ParbenchError, match=f"(?s)no mirror gave.*/bad: .*{reason}"):
        fetched(spec_of(BODY, bad))
    assert not [path for path in (own_cache / "downloads").iterdir() if path.stat().st_size]
    assert fetched(spec_of(BODY, bad, server.url("/good", whole(BODY)))) == BODY


@pytest.mark.parametrize(
    "field", ["bytes 0-511999/512000", "bytes 1000-511999/9", "nonsense", "bytes 999-1/512000"]
)
def test_a_mirror_that_sends_another_range(server, own_cache, field):
    part = part_of(own_cache, BODY)
    part.parent.mkdir(parents=True)
    part.write_bytes(BODY[:1000])
    url = server.url("/a", lambda h: reply(h, 206, BODY[1000:], Content_Range=field))
    with pytest.raises(ParbenchError, match="answers with the range"):
        fetched(spec_of(BODY, url))


def test_a_redirect_to_http_is_followed(server):
    target = server.url("/target", whole(BODY))
    assert (
        fetched(spec_of(BODY, server.url("/a", lambda h: reply(h, 302, Location=target)))) == BODY
    )


def test_a_mirrors_words_do_nothing_to_a_terminal(server, capsys):
    def answer(handler):
        handler.send_response(404, "\x1b[2J\x1b]0;owned\x07gone")
        handler.end_headers()

    with pytest.raises(ParbenchError, match="gone"):
        fetched(spec_of(BODY, server.url("/404", answer)))
    said = capsys.readouterr().err
    assert "404" in said
    assert "\x1b" not in said


def test_range_not_satisfiable_starts_again_next_time(server, own_cache):
    part = part_of(own_cache, BODY)
    part.parent.mkdir(parents=True)
    part.write_bytes(BODY[:1000])
    spec = spec_of(
        BODY, server.url("/416", lambda h: reply(h, 416)), server.url("/good", ranged(BODY))
    )
    assert fetched(spec) == BODY
    assert server.requests[-1] == ("/good", None)


def test_every_mirror_is_listed_with_its_reason(tmp_path):
    (tmp_path / "short").write_bytes(b"x")
    urls = {
        "http://127.0.0.1:9/x": "not reachable",
        (tmp_path / "absent file").as_uri(): "no such file",
        (tmp_path / "short").as_uri(): "it has 1 bytes, 512,000 are expected",
        "http://127.0.0.1:port/x": "not an address",
        "http://a..b/x": "not an address",
        "http://[x/": "not an address",
        "ftp://127.0.0.1/x": "not reachable (unknown url type: ftp)",
    }
    with pytest.raises(ParbenchError) as caught:
        fetched(spec_of(BODY, *urls))
    for url, reason in urls.items():
        assert f"  {url}: {reason}" in str(caught.value)
    assert "`path: /folder/archive.tar.gz`" in str(caught.value)
    assert "file:///" in str(caught.value)


def test_a_file_mirror_is_used_in_place(tmp_path, own_cache):
    source = tmp_path / "a file with blanks.tar.gz"
    source.write_bytes(BODY)
    url = source.as_uri()
    assert "%20" in url
    assert download.fetch([url], len(BODY), hashlib.sha256(BODY).hexdigest()) == source
    assert not any((own_cache / "downloads").glob("*[!k]"))


def test_no_space_is_said_before_a_byte_is_downloaded(server, monkeypatch, own_cache):
    usage = download.shutil.disk_usage(own_cache.parent)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(ParbenchError, match=r"512,000 bytes are needed and 1,000 .*PARBENCH_CACHE"):
        fetched(spec_of(BODY, server.url("/a", whole(BODY))))
    assert not part_of(own_cache, BODY).exists()


def test_a_disk_that_fills_up_keeps_nothing_half(server, own_cache, tmp_path):
    # The kernel's limit on file sizes stands in for a full disk: the same error from write().
    spec = spec_of(BODY, server.url("/a", whole(BODY)))
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000));"
        f"sys.path.insert(0, {str(PROGRAM.parent)!r}); import dataset;"
        "from errors import run_main; sys.argv[0] = 'dataset.py'; run_main(dataset.main)"
    )
    arguments = command("cifar10", spec, tmp_path / "out")[2:]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2, done.stderr
    assert ".part: File too large; free some space" in done.stderr
    assert "Traceback" not in done.stderr
    assert not part_of(own_cache, BODY).exists()
    assert leftovers(tmp_path / "out") == set()


# ---- the archive ----


def read_small(spec: dict) -> dataset.Images:
    return dataset.read_cifar10(spec, records=SMALL)


def test_a_good_archive(tmp_path):
    images = read_small(local_spec(pack(members(contents())), tmp_path / "a.tar.gz"))
    assert images.train_images.shape == (50, 3, 32, 32)
    assert images.test_images.shape == (10, 3, 32, 32)
    assert images.train_labels.tolist()[8:12] == [8, 9, 1, 2]  # files in the order of their numbers
    assert images.test_labels.tolist() == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]
    pixels = np.frombuffer(records(1)[1:], np.uint8)
    assert np.array_equal(images.train_images[0].ravel(), pixels)  # red, green, blue planes
    assert images.classes == NAMES
    assert images.source == str(tmp_path / "a.tar.gz")


def test_the_source_does_not_depend_on_the_mirror_that_answered(server):
    archive = pack(members(contents()))
    absent = server.url("/absent", lambda h: reply(h, 404))
    images = read_small(spec_of(archive, absent, server.url("/good", whole(archive))))
    assert images.source == absent
    assert images.source_sha256 == hashlib.sha256(archive).hexdigest()


def test_an_archive_is_verified_before_it_is_opened(tmp_path, monkeypatch):
    spec = local_spec(pack(members(contents())), tmp_path / "a.tar.gz")
    monkeypatch.setattr(dataset.tarfile, "open", lambda *a, **k: pytest.fail("opened"))
    for wrong in ({"size": 5}, {"sha256": "0" * 64}):
        with pytest.raises(ParbenchError, match=r"a\.tar\.gz: it has .* expected"):
            read_small({**spec, **wrong})
    with pytest.raises(ParbenchError, match=r"b: no such file.*leave `path` out"):
        read_small({**spec, "path": str(tmp_path / "b")})


def changed(name: str, content: bytes) -> list:
    return members({**contents(), name: content})


def without(name: str) -> list:
    return [item for item in members(contents()) if item[0].name != f"{FOLDER}/{name}"]


def linked(kind: bytes, target: str) -> list:
    return [
        *without("test_batch.bin"),
        member(f"{FOLDER}/test_batch.bin", type=kind, linkname=target),
    ]


RECORDS = records(SMALL)
HOSTILE = {
    "dots": ([member("../evil.bin", b"x"), *members(contents())], "outside the destination"),
    "inner dots": (
        [member(f"{FOLDER}/../../evil", b"x"), *members(contents())],
        "outside the destination",
    ),
    "absolute": ([member("/etc/evil", b"x"), *members(contents())], "no member '/etc/evil'"),
    "another file": ([*members(contents()), member("setup.py", b"x")], "no member 'setup.py'"),
    "in a folder": (
        [*members(contents()), member(f"{FOLDER}/x/test_batch.bin", RECORDS)],
        "no member",
    ),
    "symlink out": (linked(tarfile.SYMTYPE, "/etc/passwd"), "refused: .*absolute path"),
    "symlink inside": (linked(tarfile.SYMTYPE, "data_batch_1.bin"), "not a plain file"),
    "hard link": (linked(tarfile.LNKTYPE, f"{FOLDER}/data_batch_1.bin"), "not a plain file"),
    "device": (linked(tarfile.CHRTYPE, ""), "refused: .*special file"),
    "fifo": (linked(tarfile.FIFOTYPE, ""), "refused: .*special file"),
    "a folder instead": (linked(tarfile.DIRTYPE, ""), "not a plain file"),
    "sparse": (
        [
            *without("test_batch.bin"),
            member(
                f"{FOLDER}/test_batch.bin",
                RECORDS,
                pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": str(len(RECORDS))},
            ),
        ],
        "not a plain file",
    ),
    "twice": (
        [*members(contents()), member(f"{FOLDER}/test_batch.bin", RECORDS)],
        "stands in it twice",
    ),
    "missing": (without("data_batch_3.bin"), "data_batch_3.bin is missing"),
    "half a record": (changed("data_batch_2.bin", RECORDS[:-1]), "data_batch_2.bin' has 30,729"),
    "one record more": (changed("test_batch.bin", records(SMALL + 1)), "33,803 bytes, not 30,730"),
    "label 11": (
        changed("data_batch_4.bin", RECORDS[: 3073 * 4] + b"\x0b" + RECORDS[3073 * 4 + 1 :]),
        r"data_batch_4\.bin: record 4 has the label 11",
    ),
    "long text": (changed("readme.html", b"x" * 5000), "readme.html' has 5,000 bytes"),
    "other classes": (
        changed("batches.meta.txt", "\n".join(reversed(NAMES)).encode()),
        r"batches\.meta\.txt: it names the classes \['truck'",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused(tmp_path, monkeypatch, name):
    items, reason = HOSTILE[name]
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ParbenchError, match=reason) as caught:
        read_small(local_spec(pack(items), tmp_path / "a.tar.gz"))
    assert "a.tar.gz" in str(caught.value)
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "a.tar.gz"])
    assert not list(work.iterdir())


def test_an_absolute_member_never_reaches_the_disk(tmp_path):
    target = tmp_path / "target" / "evil"
    items = [member(str(target), b"x"), *members(contents())]
    with pytest.raises(ParbenchError, match="no member|refused"):
        read_small(local_spec(pack(items), tmp_path / "a.tar.gz"))
    assert not target.parent.exists()


def test_a_bomb_is_not_unpacked(tmp_path):
    # A header that promises the right size cannot be used; one that is honest about a gigabyte,
    # and a gigabyte of empty blocks behind the archive's first member, are stopped early.
    header = tarfile.TarInfo(f"{FOLDER}/test_batch.bin")
    header.size = 1 << 30
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", compresslevel=1, mtime=0) as stream:
        stream.write(header.tobuf())
        for _ in range(64):
            stream.write(bytes(1 << 20))
    with pytest.raises(ParbenchError, match="1,073,741,824 bytes, not 30,730"):
        read_small(local_spec(bomb.getvalue(), tmp_path / "a.tar.gz"))

    extended = tarfile.TarInfo("x")
    extended.type, extended.size = tarfile.XHDTYPE, 1 << 30  # read into memory by tarfile itself
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb", compresslevel=1, mtime=0) as stream:
        stream.write(extended.tobuf())
        for _ in range(64):
            stream.write(bytes(1 << 20))
    with pytest.raises(ParbenchError, match="unpacks to more than it should hold"):
        read_small(local_spec(bomb.getvalue(), tmp_path / "b.tar.gz"))


@pytest.mark.parametrize(
    "archive",
    [
        b"no archive at all",
        pack(members(contents()))[:-2000],
        gzip.compress(b"no tar" * 500),
        gzip.compress(b""),
        b"",
    ],
    ids=["not gzip", "truncated", "not tar", "empty tar", "empty"],
)
def test_a_broken_archive(tmp_path, archive):
    with pytest.raises(ParbenchError, match=r"a\.tar\.gz: (not a readable tar\.gz|.*missing)"):
        read_small(local_spec(archive, tmp_path / "a.tar.gz"))


# ---- an unpacked folder ----


@pytest.fixture
def unpacked(tmp_path) -> Path:
    folder = tmp_path / FOLDER
    folder.mkdir()
    for name, content in contents().items():
        (folder / name).write_bytes(content)
    return folder


def folder_spec(folder: Path) -> dict:
    return {"kind": "cifar10-binary", "path": str(folder), "size": 1, "sha256": "0" * 64}


def test_an_unpacked_folder(unpacked, tmp_path):
    spec = folder_spec(unpacked)
    images = read_small(spec)
    packed = read_small(local_spec(pack(members(contents())), tmp_path / "a.tar.gz"))
    assert np.array_equal(images.train_images, packed.train_images)
    assert images.source_sha256 == dataset.identify_cifar10(spec)
    (unpacked / "batches.meta.txt").unlink()
    assert read_small(spec).source_sha256 == images.source_sha256
    (unpacked / "test_batch.bin").write_bytes(records(SMALL, 3))
    assert read_small(spec).source_sha256 != images.source_sha256


def test_an_unpacked_folder_out_of_shape(unpacked):
    (unpacked / "data_batch_5.bin").write_bytes(RECORDS + b"x")
    with pytest.raises(ParbenchError, match=r"data_batch_5\.bin: it has 30,731 bytes; 10 records"):
        read_small(folder_spec(unpacked))
    (unpacked / "data_batch_5.bin").write_bytes(b"\xff" + RECORDS[1:])
    with pytest.raises(ParbenchError, match=r"data_batch_5\.bin: record 0 has the label 255"):
        read_small(folder_spec(unpacked))
    (unpacked / "data_batch_5.bin").unlink()
    with pytest.raises(ParbenchError, match=r"no file data_batch_5\.bin; `path` must be"):
        read_small(folder_spec(unpacked))


def test_a_small_archive_is_not_cifar10(tmp_path):
    # What the tests above relax is fixed in the program itself.
    done = start(
        "cifar10", local_spec(pack(members(contents())), tmp_path / "a.tar.gz"), tmp_path / "out"
    )
    assert done.returncode == 2
    assert "has 30,730 bytes, not 30,730,000" in done.stderr
    assert leftovers(tmp_path / "out") == set()


# ---- the whole way, at full size ----


@pytest.fixture(scope="session")
def full_archive() -> bytes:
    return pack(members(contents(10_000)))


def test_two_processes_download_once(server, full_archive, tmp_path):
    def slow(handler):
        time.sleep(1)
        reply(handler, 200, full_archive)

    spec = spec_of(full_archive, server.url("/a", slow))
    started = [
        subprocess.Popen(
            command("cifar10", spec, tmp_path / name), stderr=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    ]
    errors = [process.communicate(timeout=120)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], errors
    assert len(server.requests) == 1
    assert sum("waiting: another process downloads" in error for error in errors) == 1
    first, second = ((tmp_path / name / "digest.json").read_bytes() for name in ("one", "two"))
    assert first == second
    digest = json.loads(first)
    assert (digest["train"], digest["test"]) == (50_000, 10_000)
    assert digest["classes"] == NAMES
    assert digest["source"] == spec["urls"][0]
    assert digest["sha256"] == files.sha256_file(tmp_path / "two" / "data.safetensors")
    stored = load_file(tmp_path / "one" / "data.safetensors")
    assert np.bincount(stored["train_labels"]).tolist() == [5000] * 10

    again = start("cifar10", spec, tmp_path / "one")
    assert "cifar10: already there" in again.stderr
    assert len(server.requests) == 1


SLOW = """
import sys, time
sys.path.insert(0, {scripts!r})
import dataset
from errors import run_main

writing = dataset.write_safetensors

def slowly(*arguments):
    writing(*arguments)
    print("written", flush=True)
    time.sleep(60)

dataset.write_safetensors = slowly
run_main(dataset.main)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_during_conversion(tmp_path, how):
    code = SLOW.format(scripts=str(PROGRAM.parent))
    arguments = command("digits", {"kind": "digits"}, tmp_path / "out")[2:]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"written\n"
        process.send_signal(how)
        assert (
            process.wait(timeout=20)
            == {
                signal.SIGKILL: -9,
                signal.SIGTERM: 143,
                signal.SIGINT: 130,
            }[how]
        )
    left = leftovers(tmp_path / "out")
    assert not left & {"data.safetensors", "digest.json"}
    assert bool(left) == (how == signal.SIGKILL)  # nobody can tidy up after that ...
    assert start("digits", {"kind": "digits"}, tmp_path / "out").returncode == 0
    assert leftovers(tmp_path / "out") == {"data.safetensors", "digest.json"}  # ... but the next


# ---- synthetic ----

SYNTHETIC = {
    "kind": "synthetic",
    **{"classes": 5, "image_size": 9, "train_samples": 23, "test_samples": 7, "seed": 3},
}


DRAWN = "381349e71836b85b83719b456b3a438e2e7880cf41fc0dc86b80c9140abb6a3b"


def test_synthetic_images_are_the_same_everywhere():
    images = dataset.read_synthetic(SYNTHETIC)
    assert images.train_images.shape == (23, 3, 9, 9)
    assert images.test_images.shape == (7, 3, 9, 9)
    assert images.train_labels.tolist() == [at % 5 for at in range(23)]
    assert images.test_labels.tolist() == [0, 1, 2, 3, 4, 0, 1]
    # Whatever the release of NumPy: every measurement on them refers to these bytes.
    drawn = images.train_images.tobytes() + images.test_images.tobytes()
    assert hashlib.sha256(drawn).hexdigest() == DRAWN
    assert images.source_sha256 == dataset.identify_synthetic(dict(reversed(SYNTHETIC.items())))


def test_synthetic_images_follow_their_entry():
    ours = dataset.read_synthetic(SYNTHETIC)
    other = dataset.read_synthetic(SYNTHETIC | {"seed": 4})
    assert ours.source_sha256 != other.source_sha256
    assert (ours.train_images != other.train_images).mean() > 0.9
    assert (ours.train_images[:7] != ours.test_images).mean() > 0.9
    assert abs(ours.train_images.mean() - 127.5) < 5


def test_synthetic_sizes_that_cannot_be(monkeypatch):
    with pytest.raises(ParbenchError, match="test_samples 7 are fewer than the 8 classes; ask"):
        dataset.read_synthetic(SYNTHETIC | {"classes": 8})
    monkeypatch.setattr(os, "sysconf", lambda name: 64)
    with pytest.raises(ParbenchError, match="30 images of 9x9 are 7,290 bytes decoded, more than"):
        dataset.read_synthetic(SYNTHETIC)


def test_synthetic_images_are_prepared_and_stay(tmp_path):
    out, digest = tmp_path / "data.safetensors", tmp_path / "digest.json"
    dataset.prepare("fake", SYNTHETIC, out, digest)
    described = json.loads(digest.read_text())
    assert (described["train"], described["test"]) == (23, 7)
    assert described["source"] == "drawn at random, seed 3"
    assert dataset.is_there("fake", SYNTHETIC, out, digest)
    assert not dataset.is_there("fake", SYNTHETIC | {"seed": 4}, out, digest)


# ---- digits ----


def test_digits_are_the_same_everywhere(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two, with blanks"
    for folder, hash_seed in ((one, "1"), (two, "2")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        assert start("digits", {"kind": "digits"}, folder, env=environment).returncode == 0
    for name in ("data.safetensors", "digest.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes()
    digest = json.loads((one / "digest.json").read_text())
    assert digest == {
        "schema_version": 1,
        "dataset": "digits",
        "kind": "digits",
        "sha256": DIGITS_FILE,
        "source": "scikit-learn load_digits",
        "source_sha256": dataset.DIGITS_SHA256,
        "train": 1437,
        "test": 360,
        "classes": list("0123456789"),
        "image_shape": [3, 32, 32],
        "mean": digest["mean"],
        "std": digest["std"],
    }


# Of the whole file: every measurement on digits refers to it, so that it may not change unseen.
DIGITS_FILE = "16695193738ab034e0714b84ec318cafd41e39265c5fd9b1b8839d8d9a08ace8"


def test_digits_split_and_pixels():
    from sklearn.datasets import load_digits

    images = dataset.read_digits({"kind": "digits"})
    whole = load_digits()
    sizes = np.bincount(whole.target)
    shares = np.bincount(images.test_labels)
    assert (abs(shares - sizes * 360 / 1797) < 1).all()
    assert (np.bincount(images.train_labels) + shares == sizes).all()
    assert images.train_images.dtype == np.uint8
    assert images.train_images.shape[1:] == (3, 32, 32)
    assert (images.train_images[:, :1] == images.train_images).all()  # the channels are equal
    assert (images.train_images.min(), images.train_images.max()) == (0, 255)
    # No image stands in both parts, apart from the few that scikit-learn has twice.
    train = {image.tobytes() for image in images.train_images}
    assert sum(image.tobytes() in train for image in images.test_images) <= 1797 - len(
        {image.tobytes() for image in whole.images}
    )


def test_other_digits_are_refused(monkeypatch):
    import sklearn.datasets

    bunch = sklearn.datasets.load_digits()
    bunch.images[0, 0, 0] += 1
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: bunch)
    with pytest.raises(ParbenchError, match=r"load_digits: its SHA-256 is .* another release"):
        dataset.read_digits({"kind": "digits"})


# ---- folders of images ----

MARKUP = "<b onclick=\"x\">a & 'o'"  # a class may have any name that a folder can have


def paint(path: Path, colour: tuple = (255, 0, 0), size: tuple = (6, 4), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, colour)
    image.putpixel((1, 0), (9, 8, 7))
    image.convert(mode).save(path)


@pytest.fixture
def folder(tmp_path) -> Path:
    root = tmp_path / "my images"
    for part in ("train", "test"):
        paint(root / part / "b" / "2.png", (0, 255, 0))
        paint(root / part / "b" / "10.png", (0, 0, 255))
        paint(root / part / MARKUP / "x.PNG", (255, 0, 0))
    (root / "train" / ".DS_Store").write_bytes(b"x")
    return root


def of(folder: Path) -> dict:
    return {"kind": "image-folder", "path": str(folder)}


def test_a_folder_of_images(folder, tmp_path):
    done = start("mine", of(folder), tmp_path / "out")
    assert done.returncode == 0, done.stderr
    digest = json.loads((tmp_path / "out" / "digest.json").read_text())
    assert digest["classes"] == [MARKUP, "b"]  # as it is: escaping is the report's work
    assert digest["image_shape"] == [3, 4, 6]
    assert digest["source"] == str(folder)
    stored = load_file(tmp_path / "out" / "data.safetensors")
    assert stored["train_labels"].tolist() == [0, 1, 1]
    assert stored["train_images"][:, :, 3, 3].tolist() == [[255, 0, 0], [0, 0, 255], [0, 255, 0]]
    assert stored["train_images"][0, :, 0, 1].tolist() == [9, 8, 7]

    again = start("mine", of(folder), tmp_path / "out")
    assert "already there" in again.stderr
    paint(folder / "test" / "b" / "2.png", (1, 2, 3))  # not the same folder any more
    changed = start("mine", of(folder), tmp_path / "out")
    assert "already there" not in changed.stderr
    now = json.loads((tmp_path / "out" / "digest.json").read_text())
    assert now["source_sha256"] != digest["source_sha256"]
    folder.rename(tmp_path / "moved")  # converted before, whole: still good
    assert "already there" in start("mine", of(folder), tmp_path / "out").stderr


def test_a_local_folder_is_read_again_only_when_something_in_it_moved(
    folder, tmp_path, monkeypatch
):
    kept, digest, spec = tmp_path / "kept.json", tmp_path / "digest.json", of(folder)
    first = dataset.local_digest(spec, kept, digest)
    dataset.prepare("x", spec, tmp_path / "data.safetensors", digest)
    assert first == files.read_json(digest)["source_sha256"]
    image = next(path for path in sorted(folder.rglob("*.png")))

    with monkeypatch.context() as patch:
        patch.setattr(dataset, "list_images", None)  # would fail
        assert dataset.local_digest(spec, kept, digest) == first
    os.utime(image)  # touched: read, and found equal
    assert dataset.local_digest(spec, kept, digest) == first
    Image.new("RGB", Image.open(image).size, "teal").save(image)
    changed = dataset.local_digest(spec, kept, digest)
    assert changed not in (None, first)
    image.unlink()
    assert dataset.local_digest(spec, kept, digest) not in (None, first, changed)


def test_a_local_folder_that_is_gone_or_broken(folder, tmp_path):
    kept, digest, spec = tmp_path / "kept.json", tmp_path / "digest.json", of(folder)
    dataset.prepare("x", spec, tmp_path / "data.safetensors", digest)
    before = dataset.local_digest(spec, kept, digest)
    (folder / "train" / "stray.txt").write_text("")
    assert "stray.txt: not a folder" in dataset.local_digest(spec, kept, digest)
    folder.rename(tmp_path / "elsewhere")
    assert dataset.local_digest(spec, kept, digest) == before  # as good as it was
    digest.unlink()
    assert dataset.local_digest(spec, kept, digest) is None
    kept.write_text("[]")  # damaged: read again
    (tmp_path / "elsewhere" / "train" / "stray.txt").unlink()
    (tmp_path / "elsewhere").rename(folder)
    assert dataset.local_digest(spec, kept, digest) == before


def test_a_local_archive_is_pinned_by_its_entry(tmp_path):
    spec = {"kind": "cifar10-binary", "path": str(tmp_path / "x.tar.gz"), "size": 1, "sha256": "a"}
    for there in (False, True):
        if there:
            (tmp_path / "x.tar.gz").write_text("")
        digest = tmp_path / "digest.json"
        digest.write_text('{"source_sha256": "a"}')
        assert dataset.local_digest(spec, tmp_path / "kept.json", digest) is None


def test_stamping_files_is_quick(tmp_path):
    for part in range(60):
        (tmp_path / str(part)).mkdir()
        for image in range(100):
            (tmp_path / str(part) / f"{image}.png").touch()
    begun = time.process_time()
    first = dataset.folder_stamp(tmp_path)
    # 6,000 files: a CIFAR-10 of files, ten times as many, then takes less than a second.
    assert time.process_time() - begun < 0.1
    (tmp_path / "3" / "7.png").write_text("x")
    assert dataset.folder_stamp(tmp_path) != first


def test_a_folder_elsewhere_gives_the_same(folder, tmp_path):
    first = dataset.read_image_folder(of(folder))
    folder.rename(tmp_path / "elsewhere")
    second = dataset.read_image_folder(of(tmp_path / "elsewhere"))
    assert first.source_sha256 == second.source_sha256
    assert first.source_sha256 == dataset.identify_image_folder(of(tmp_path / "elsewhere"))


@pytest.mark.parametrize(
    ("name", "mode"), [("x.jpg", "L"), ("x.jpeg", "CMYK"), ("x.bmp", "1"), ("x.webp", "RGBA")]
)
def test_images_become_rgb(folder, name, mode):
    paint(folder / "train" / "b" / name, (255, 255, 255), mode=mode)
    images = dataset.read_image_folder(of(folder))
    pixel = images.train_images[-1, :, 3, 5].astype(int)
    assert (pixel > 247).all()  # recompression


def bad_size(root):
    paint(root / "test" / "b" / "3.png", size=(8, 4))


def bad_link(root):
    secret = root.parent / "secret.png"
    paint(secret)
    (root / "train" / "b" / "3.png").symlink_to(secret)


def bad_class_link(root):
    paint(root.parent / "other" / "c" / "1.png")
    (root / "train" / "c").symlink_to(root.parent / "other" / "c")


def bad_mode(root):
    Image.new("I;16", (6, 4)).save(root / "train" / "b" / "3.png")


def bad_bomb(root):
    Image.new("1", (5000, 5000)).save(root / "train" / "b" / "10.png")


def disguised(root):
    # A good image of a format that is not on the list: no other decoder may be tried.
    Image.new("RGB", (6, 4)).save(root / "test" / "b" / "x.png", format="GIF")


def truncated(root):
    path = root / "train" / "b" / "2.png"
    Image.effect_noise((6, 4), 90).convert("RGB").save(path)
    path.write_bytes(path.read_bytes()[:60])


def put(*parts: str, content: bytes | None = b"x") -> Callable:
    def change(root):
        path = root.joinpath(*parts)
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if content is None else path.write_bytes(content)

    return change


def gone(*parts: str) -> Callable:
    return lambda root: root.joinpath(*parts).rename(root.parent / "gone")


def clear(folder: Path) -> None:
    for path in [*folder.rglob("*")][::-1]:
        path.rmdir() if path.is_dir() else path.unlink()


BROKEN = {
    "class missing in test": (gone("test", "b"), r"test/b: no such folder, but .*train/b exists"),
    "class missing in train": (gone("train", "b"), r"train/b: no such folder, but .*test/b exists"),
    "no test": (gone("test"), r"test: no such folder; images lie in test/<class>/"),
    "empty class": (put("train", "c", content=None), r"train/c: the class has no image"),
    "a file among the classes": (put("train", "x.png"), r"train/x\.png: not a folder"),
    "a text": (put("train", "b", "notes.txt"), r"notes\.txt: not an image file; only .*\.png"),
    "a folder among the images": (put("test", "b", "x.png", content=None), r"x\.png: not an image"),
    "not an image": (put("test", "b", "x.png", content=b"<html>"), r"x\.png: not a readable image"),
    "an empty image": (put("test", "b", "x.jpg", content=b""), r"x\.jpg: not a readable image"),
    "a GIF in disguise": (disguised, r"x\.png: not a readable image"),
    "truncated": (truncated, r"train/b/2\.png: not a readable image"),
    "another size": (bad_size, r"3\.png: 8x4 pixels, but .*x\.PNG has 6x4; resize"),
    "a link out": (bad_link, r"3\.png: a link to .*secret\.png, which is outside"),
    "a linked class": (bad_class_link, r"train/c: a link to .*other/c, which is outside"),
    "16 bits": (bad_mode, r"3\.png: not a readable image \(its pixels are I;16; only 8 bits"),
    "a bomb": (bad_bomb, r"10\.png: not a readable image \(5000x5000 pixels are too many"),
    "no class": (lambda root: [clear(root / part) for part in ("train", "test")], "0 classes; at"),
    "no image at all": (lambda root: [clear(path) for path in root.glob("*/*/")], "has no image"),
    "no test class": (
        lambda root: clear(root / "test"),
        r"test/\S+.*: no such folder, but .*train",
    ),
    "an escape": (put("train", "\x1b[2Jc", content=None), r"train: '\\x1b\[2Jc' holds a character"),
    "a line in a name": (put("test", "b", "x\n.png"), r"test/b: 'x\\n\.png' holds a character"),
    "no folder": (lambda root: root.rename(root.parent / "gone"), r"no such folder; `path` must"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_folder_names_the_file(folder, name):
    change, reason = BROKEN[name]
    change(folder)
    with pytest.raises(ParbenchError, match=reason) as caught:
        dataset.read_image_folder(of(folder))
    assert str(folder) in str(caught.value)


def test_a_link_within_the_folder_is_followed(folder):
    (folder / "train" / "b" / "3.png").symlink_to("2.png")
    assert len(dataset.read_image_folder(of(folder)).train_images) == 4


def test_a_fifo_does_not_hang(folder):
    os.mkfifo(folder / "train" / "b" / "3.png")
    with pytest.raises(ParbenchError, match=r"3\.png: not an image file"):
        dataset.read_image_folder(of(folder))


def test_a_home_folder_of_nobody():
    spec = {"kind": "image-folder", "path": "~nobody-at-all/images"}
    with pytest.raises(ParbenchError, match=r"~nobody-at-all/images: no such folder"):
        dataset.read_image_folder(spec)
    assert dataset.local_digest(spec, Path("kept"), Path("digest")) is None


def test_a_name_that_is_not_utf8(folder):
    os.mkdir(os.fsencode(folder / "train") + b"/\xff")
    with pytest.raises(ParbenchError, match="the name is not UTF-8"):
        dataset.read_image_folder(of(folder))


def test_one_class_is_not_enough(tmp_path):
    for part in ("train", "test"):
        paint(tmp_path / part / "only" / "x.png")
    with pytest.raises(ParbenchError, match="1 classes; at least 2"):
        dataset.read_image_folder(of(tmp_path))


def test_more_than_the_memory(folder, monkeypatch):
    monkeypatch.setattr(dataset.os, "sysconf", lambda name: 10)
    with pytest.raises(ParbenchError, match="6 images of 6x4 are 432 bytes decoded, more than"):
        dataset.read_image_folder(of(folder))


@pytest.mark.skipif(not JPEG.exists(), reason="the shared CIFAR-10 JPEG archive is not beside here")
def test_cifar10_as_jpeg(tmp_path):
    with tarfile.open(JPEG) as archive:
        wanted = [item for item in archive if item.isreg() and item.name.endswith("00.jpg")]
        archive.extractall(tmp_path / "jpeg", wanted, filter="data")
    images = dataset.read_image_folder(of(tmp_path / "jpeg"))
    assert images.classes == NAMES
    assert images.train_images.shape == (500, 3, 32, 32)
    assert images.test_images.shape == (100, 3, 32, 32)
    mean, std = dataset.channel_moments(images.train_images)
    np.testing.assert_allclose(mean, [0.491, 0.482, 0.447], atol=0.03)
    np.testing.assert_allclose(std, [0.247, 0.243, 0.262], atol=0.03)


# ---- conversion ----


def test_moments_are_those_of_numpy():
    images = np.random.default_rng(0).integers(0, 256, (2500, 3, 4, 5), dtype=np.uint8)
    mean, std = dataset.channel_moments(images)
    np.testing.assert_allclose(mean, (images / 255).mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, (images / 255).std(axis=(0, 2, 3)), rtol=1e-12)


def test_a_constant_channel_is_refused(tmp_path):
    labels = np.array([0, 1])
    images = np.zeros((2, 3, 4, 4), np.uint8)
    made = dataset.Images(images, labels, images, labels, ["a", "b"], "here", "0" * 64)
    with pytest.raises(ParbenchError, match="here: a channel has the same value"):
        dataset.convert("x", "digits", made, tmp_path / "data", tmp_path / "digest")
    made = dataset.Images(images, labels * 0, images, labels, ["a", "b"], "here", "0" * 64)
    with pytest.raises(ParbenchError, match="here: no training image of the class 'b'"):
        dataset.convert("x", "digits", made, tmp_path / "data", tmp_path / "digest")
    made = dataset.Images(images, labels, images, labels * 0, ["a", "b"], "here", "0" * 64)
    with pytest.raises(ParbenchError, match="here: no test image of the class 'b'"):
        dataset.convert("x", "digits", made, tmp_path / "data", tmp_path / "digest")


def test_no_space_for_the_output(tmp_path, monkeypatch):
    usage = download.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(ParbenchError, match=r"out: 5,600,296 bytes are needed and 1,000 are free"):
        dataset.prepare(
            "digits",
            {"kind": "digits"},
            tmp_path / "out/data.safetensors",
            tmp_path / "out/digest.json",
        )
    assert leftovers(tmp_path / "out") == set()


@pytest.mark.parametrize("damage", ["data.safetensors", "digest.json", "name", "kind", "list"])
def test_what_is_damaged_is_made_again(digits, tmp_path, damage):
    for name in ("data.safetensors", "digest.json"):
        (tmp_path / name).write_bytes((digits / name).read_bytes())
    out, digest = tmp_path / "data.safetensors", tmp_path / "digest.json"
    spec = {"kind": "digits"}
    assert dataset.is_there("digits", spec, out, digest)
    found = json.loads(digest.read_text())
    if damage == "data.safetensors":
        out.write_bytes(out.read_bytes()[:-1])
    elif damage == "digest.json":
        digest.write_text(digest.read_text()[:-10])
    elif damage == "list":
        digest.write_text("[]")
    else:
        digest.write_text(json.dumps({**found, {"name": "dataset"}.get(damage, damage): "other"}))
    assert not dataset.is_there("digits", spec, out, digest)
    dataset.prepare("digits", spec, out, digest)
    assert out.read_bytes() == (digits / "data.safetensors").read_bytes()
    assert digest.read_bytes() == (digits / "digest.json").read_bytes()


# ---- the entry of config.yaml ----

GOOD = {"size": 1, "sha256": "a" * 64}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "datasets.x: 'kind' is a required property"),
        ({"kind": "digit"}, "datasets.x.kind: 'digit' is not one of"),
        ({"kind": "digits", "path": "y"}, "datasets.x: kind digits has no key 'path'; it has kind"),
        ({"kind": "digits", "sizes": 1}, "'sizes'"),
        ({"kind": "image-folder"}, "datasets.x: 'path' is a required property"),
        ({"kind": "image-folder", "path": "y", "size": 1}, "kind image-folder has no key 'size'"),
        ({"kind": "synthetic", "classes": 3}, "datasets.x: 'image_size' is a required property"),
        (dict(SYNTHETIC, path="y"), "kind synthetic has no key 'path'; it has kind, classes"),
        (dict(SYNTHETIC, image_size=4), "datasets.x.image_size: 4 is less than the minimum"),
        (dict(SYNTHETIC, train_samples=10**9), "datasets.x.train_samples: 1000000000 is greater"),
        ({"kind": "cifar10-binary", **GOOD, "classes": 3}, "cifar10-binary has no key 'classes'"),
        ({"kind": "cifar10-binary", **GOOD}, "datasets.x: 'urls' is a required property"),
        ({"kind": "cifar10-binary", "path": "y"}, "is a required property"),
        ({"kind": "cifar10-binary", **GOOD, "urls": []}, "datasets.x.urls: "),
        (
            {"kind": "cifar10-binary", **GOOD, "urls": ["ftp://x/y"]},
            "datasets.x.urls.0: 'ftp://x/y'",
        ),
        ({"kind": "cifar10-binary", **GOOD, "urls": ["file://host/x"]}, "datasets.x.urls.0: "),
        ({"kind": "cifar10-binary", **GOOD, "urls": ["http://me:pw@h/x"]}, "datasets.x.urls.0: "),
        ({"kind": "cifar10-binary", **GOOD, "path": "y", "sha256": "A" * 64}, "datasets.x.sha256"),
        ([1], "is not of type 'object'"),
    ],
)
def test_a_wrong_entry_names_its_key(spec, message):
    with pytest.raises(ParbenchError) as caught:
        dataset.check_spec("x", spec)
    assert message in str(caught.value)


def test_right_entries_and_a_kind_for_each_reader():
    import yaml

    for spec in (
        {"kind": "digits"},
        SYNTHETIC,
        {"kind": "image-folder", "path": "~/images"},
        {"kind": "cifar10-binary", **GOOD, "urls": ["https://x/y", "file:///y"]},
        {"kind": "cifar10-binary", **GOOD, "path": "y"},
    ):
        dataset.check_spec("x", spec)
    schema = yaml.safe_load(dataset.SCHEMA.read_text())
    assert schema["properties"]["kind"]["enum"] == list(dataset.KINDS)
    assert schema["additionalProperties"] is False
    assert all(value["description"] for value in schema["properties"].values())


def test_a_wrong_command_line(tmp_path):
    arguments = command("x", {}, tmp_path)
    arguments[arguments.index("--spec") + 1] = "{kind: digits}"
    done = subprocess.run(arguments, capture_output=True, text=True)
    assert done.returncode == 2
    assert "error: --spec: not valid JSON" in done.stderr
    (tmp_path / "a file").write_text("")
    done = start("digits", {"kind": "digits"}, tmp_path / "a file")
    assert done.returncode == 2
    assert "a file" in done.stderr
    assert "Traceback" not in done.stderr
