"""Downloading, verifying and converting datasets: servers, archives and folders that lie."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from parbench.data import dataset, download, source
from parbench.data.kinds import cifar10_binary, digits
from parbench.errors import ParbenchError

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "scripts" / "dataset.py"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path / "the cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # pooch waits before it tries again
    return tmp_path / "the cache"


def command(name: str, spec: dict, folder: Path) -> list[str]:
    return [
        *(str(PROGRAM), "--name", name, "--spec", json.dumps(spec)),
        *("--out", str(folder / "data.safetensors"), "--digest", str(folder / "digest.json")),
    ]


def prepared(spec: dict, folder: Path, name: str = "mine") -> tuple[dict, dict]:
    """What the program writes: (the tensors by name, digest.json)."""
    dataset.prepare(name, spec, folder / "data.safetensors", folder / "digest.json")
    return load_file(folder / "data.safetensors"), json.loads((folder / "digest.json").read_text())


# ---- downloads


class Server:
    """A server on this machine: answers each path as told, and notes what it was asked."""

    def __init__(self):
        self.answers: dict[str, Callable] = {}
        self.requests: list[str] = []
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.requests.append(self.path)
                with contextlib.suppress(ConnectionError):
                    server.answers[self.path](self)

            def log_message(self, *arguments):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def url(self, path: str, answer: Callable) -> str:
        self.answers[path] = answer
        return f"http://127.0.0.1:{self.http.server_port}{path}"


@pytest.fixture
def server():
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def reply(status: int, body: bytes = b"", length: int | None = -1, **headers) -> Callable:
    def answer(handler):
        handler.send_response(status)
        if length is not None:
            handler.send_header("Content-Length", str(len(body) if length == -1 else length))
        for key, value in headers.items():
            handler.send_header(key, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


BODY = bytes(range(256)) * 2000
PINNED = (len(BODY), hashlib.sha256(BODY).hexdigest())


def test_a_file_is_downloaded_once_and_again_when_it_is_damaged(server, own_cache):
    url = server.url("/a", reply(200, BODY))
    path = download.fetch([url], *PINNED)
    assert download.fetch([url], *PINNED) == path
    assert (path.read_bytes(), path.parent, server.requests) == (
        BODY,
        own_cache / "downloads",
        ["/a"],
    )
    path.write_bytes(b"x" * len(BODY))
    assert download.fetch([url], *PINNED).read_bytes() == BODY
    assert server.requests == ["/a", "/a"]


LIES = {
    "/less": (reply(200, BODY[:10], 10), "announces 10 bytes, 512,000 are expected"),
    "/more": (reply(200, BODY, len(BODY) + 1), "announces 512,001 bytes, 512,000 are expected"),
    "/endless": (reply(200, BODY * 2, None), "sends more than the 512,000 bytes that are expected"),
    "/cut": (reply(200, BODY[:9], len(BODY)), "IncompleteRead(9 bytes read"),
    "/other": (reply(200, b"x" * len(BODY)), "does not match the known hash"),
    "/gone": (reply(404), "404 Client Error"),
    "/silent": (lambda handler: handler.connection.close(), "Remote end closed connection"),
    "/ssh": (lambda handler: handler.wfile.write(b"SSH-2.0-x\r\n\r\n"), "SSH-2.0-x"),
    "/file": (reply(302, Location="file:///etc/passwd"), "file:///etc/passwd"),
}


def test_mirrors_are_tried_in_turn_and_each_is_named_with_its_reason(server, own_cache, tmp_path):
    (tmp_path / "a short file").write_bytes(b"x")
    reasons = {server.url(path, answer): reason for path, (answer, reason) in LIES.items()}
    reasons |= {
        "http://127.0.0.1:9/x": "Connection refused",
        "http://127.0.0.1:port/x": "Failed to parse",
        (tmp_path / "absent").as_uri(): "no such file",
        (tmp_path / "a short file").as_uri(): "it has 1 bytes, 512,000 are expected",
    }
    with pytest.raises(ParbenchError, match="no mirror gave the file") as caught:
        download.fetch([*reasons], *PINNED)
    lines = str(caught.value).splitlines()
    for url, reason in reasons.items():
        assert any(line.startswith(f"  {url}: ") and reason in line for line in lines), (url, lines)
    assert "`file:///folder/file`" in lines[-1]
    assert not [*(own_cache / "downloads").iterdir()]
    good = server.url("/good", reply(200, BODY))
    assert download.fetch([*reasons, good], *PINNED).read_bytes() == BODY


def test_a_file_address_is_read_where_it_lies(tmp_path):
    path = tmp_path / "a file with blanks"
    path.write_bytes(BODY)
    assert download.fetch([path.as_uri()], *PINNED) == path


def test_a_disk_that_fills_up_is_named_and_keeps_nothing_half(server, own_cache, tmp_path):
    # The kernel's limit on file sizes stands in for a full disk: the same error from write().
    code = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (99999, 99999));"
        f"sys.argv = sys.argv[1:]; sys.path.insert(0, {str(PROGRAM.parent)!r});"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    spec = {"kind": "cifar10-binary", "urls": [server.url("/a", reply(200, BODY))]}
    spec |= {"size": PINNED[0], "sha256": PINNED[1]}
    words = [sys.executable, "-c", code, *command("x", spec, tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "downloads: File too large; free some space, or set PARBENCH_CACHE" in done.stderr
    assert "Traceback" not in done.stderr
    assert not [*(own_cache / "downloads").iterdir()]


# ---- CIFAR-10


FOLDER = cifar10_binary.FOLDER
BINS = [*cifar10_binary.TRAIN, cifar10_binary.TEST]


@pytest.fixture
def ten(monkeypatch):
    """Ten records in each file, where CIFAR-10 has 10,000."""
    monkeypatch.setattr(cifar10_binary, "RECORDS", 10)


def records(count: int = 10, first: int = 0) -> bytes:
    pixels = np.random.default_rng(7).integers(0, 256, 3072, dtype=np.uint8).tobytes()
    return b"".join(bytes([(first + at) % 10]) + pixels for at in range(count))


CONTENTS = {name: records(first=at) for at, name in enumerate(BINS)} | {"readme.html": b"<html>"}


def member(name: str, content: bytes = b"", **fields) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content


def members(**changes: bytes | tuple | None) -> list:
    """The archive's members, with files replaced by other bytes, other members or nothing."""
    found = [member(FOLDER, type=tarfile.DIRTYPE)]
    for name, content in CONTENTS.items():
        content = changes.get(name.partition(".")[0], content)
        if content is not None:
            is_bytes = isinstance(content, bytes)
            found.append(member(f"{FOLDER}/{name}", content) if is_bytes else content)
    return found


def pack(items: list) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for info, content in items:
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def local(archive: bytes, path: Path) -> dict:
    path.write_bytes(archive)
    sha256 = hashlib.sha256(archive).hexdigest()
    return {"kind": "cifar10-binary", "path": str(path), "size": len(archive), "sha256": sha256}


def test_a_good_archive_and_its_unpacked_folder(ten, tmp_path):
    spec = local(pack(members()), tmp_path / "a.tar.gz")
    images, described = prepared(spec, tmp_path / "out")
    assert images["train_images"].shape == (50, 3, 32, 32)
    assert images["train_labels"].tolist()[8:12] == [8, 9, 1, 2]  # in the order of their numbers
    assert images["test_labels"].tolist() == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]
    assert images["train_images"][0].tobytes() == records()[1:3073]  # red, green, blue planes
    assert (
        described["classes"]
        == "airplane automobile bird cat deer dog frog horse ship truck".split()
    )
    assert (described["source"], described["source_sha256"]) == (spec["path"], spec["sha256"])

    (tmp_path / FOLDER).mkdir()
    for name, content in CONTENTS.items():
        (tmp_path / FOLDER / name).write_bytes(content)
    unpacked = {**spec, "path": str(tmp_path / FOLDER)}
    _, other = prepared(unpacked, tmp_path / "again")
    assert other["sha256"] == described["sha256"]
    assert other["source_sha256"] != described["source_sha256"]
    (tmp_path / FOLDER / "data_batch_5.bin").write_bytes(records() + b"x")
    with pytest.raises(ParbenchError, match=r"data_batch_5\.bin: it has 30,731 bytes; 10 records"):
        prepared(unpacked, tmp_path / "again")
    (tmp_path / FOLDER / "data_batch_5.bin").unlink()
    with pytest.raises(ParbenchError, match=r"no file data_batch_5\.bin; `path` must be"):
        prepared(unpacked, tmp_path / "again")


def test_the_source_does_not_depend_on_the_mirror_that_answered(ten, server, tmp_path):
    spec = local(pack(members()), tmp_path / "a.tar.gz")
    absent = server.url("/absent", reply(404))
    del spec["path"]
    spec["urls"] = [absent, (tmp_path / "a.tar.gz").as_uri()]
    assert prepared(spec, tmp_path / "out")[1]["source"] == absent


def test_an_archive_is_verified_before_it_is_opened(tmp_path, monkeypatch):
    spec = local(pack(members()), tmp_path / "a.tar.gz")
    monkeypatch.setattr(tarfile, "open", lambda *a, **k: pytest.fail("opened"))
    for wrong in ({"size": 5}, {"sha256": "0" * 64}):
        with pytest.raises(ParbenchError, match=r"a\.tar\.gz: it has .* expected"):
            prepared({**spec, **wrong}, tmp_path / "out")
    with pytest.raises(ParbenchError, match=r"b: no such file.*leave `path` out"):
        prepared({**spec, "path": str(tmp_path / "b")}, tmp_path / "out")


def linked(kind: bytes, target: str) -> bytes:
    return pack(members(test_batch=member(f"{FOLDER}/test_batch.bin", type=kind, linkname=target)))


def bomb(name: str, **fields) -> bytes:
    """A header that is honest about a gigabyte, and zeros behind it."""
    info, _ = member(name, **fields)
    info.size = 1 << 30
    return gzip.compress(info.tobuf() + bytes(1 << 26), 1)


BROKEN_ARCHIVES = {
    "symlink out": (linked(tarfile.SYMTYPE, "/etc/passwd"), "test_batch.bin is not a plain file"),
    "hard link": (linked(tarfile.LNKTYPE, f"{FOLDER}/data_batch_1.bin"), "is not a plain file"),
    "device": (linked(tarfile.CHRTYPE, ""), "test_batch.bin is not a plain file"),
    "missing": (pack(members(data_batch_3=None)), "data_batch_3.bin is missing"),
    "half a record": (
        pack(members(data_batch_2=records()[:-1])),
        "data_batch_2.bin: it has 30,729",
    ),
    "label 11": (
        pack(members(data_batch_4=records()[: 3073 * 4] + b"\x0b" + records()[3073 * 4 + 1 :])),
        "data_batch_4.bin: record 4 has the label 11; CIFAR-10 has 0 to 9",
    ),
    "bomb": (bomb(f"{FOLDER}/test_batch.bin"), "test_batch.bin: it has 1,073,741,824 bytes"),
    "another bomb": (bomb("x", type=tarfile.XHDTYPE), "unpacks to more than it should hold"),
    "not gzip": (b"no archive at all", "not a readable tar.gz archive"),
    "cut": (pack(members())[:-2000], "not a readable tar.gz archive"),
    "not tar": (gzip.compress(b"no tar" * 500), "not a readable tar.gz archive"),
}


@pytest.mark.parametrize("name", BROKEN_ARCHIVES)
def test_a_broken_or_hostile_archive_is_refused(ten, tmp_path, name):
    archive, reason = BROKEN_ARCHIVES[name]
    with pytest.raises(ParbenchError) as caught:
        prepared(local(archive, tmp_path / "a.tar.gz"), tmp_path / "out")
    assert reason in str(caught.value)
    assert str(tmp_path / "a.tar.gz") in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_nothing_of_an_archive_reaches_the_disk(ten, tmp_path):
    """Members that do not belong to CIFAR-10 are passed over."""
    evil = [member(name, b"x") for name in (f"{tmp_path}/evil", "../evil", f"{FOLDER}/../../evil")]
    prepared(local(pack([*evil, *members()]), tmp_path / "a.tar.gz"), tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar.gz", "out"}


# ---- what is drawn, and what scikit-learn brings


SYNTHETIC = {
    "kind": "synthetic",
    **{"classes": 5, "image_size": 9, "train_samples": 23, "test_samples": 7, "seed": 3},
}
# Whatever the release of NumPy or scikit-learn: every measurement on them refers to these bytes.
DRAWN = "381349e71836b85b83719b456b3a438e2e7880cf41fc0dc86b80c9140abb6a3b"
DIGITS_FILE = "16695193738ab034e0714b84ec318cafd41e39265c5fd9b1b8839d8d9a08ace8"


def test_synthetic_images_are_the_same_everywhere(tmp_path):
    images, described = prepared(SYNTHETIC, tmp_path)
    assert images["train_labels"].tolist() == [at % 5 for at in range(23)]
    drawn = images["train_images"].tobytes() + images["test_images"].tobytes()
    assert hashlib.sha256(drawn).hexdigest() == DRAWN
    assert described["source"] == "drawn at random, seed 3"
    other, its = prepared(SYNTHETIC | {"seed": 4}, tmp_path)
    assert its["source_sha256"] != described["source_sha256"]
    assert (images["train_images"] != other["train_images"]).mean() > 0.9


def test_digits_are_the_same_everywhere(tmp_path):
    for folder, seed in (("one", "1"), ("two, with blanks", "2")):
        words = command("digits", {"kind": "digits"}, tmp_path / folder)
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, *words], env=environment, check=True)
        digest = json.loads((tmp_path / folder / "digest.json").read_text())
        assert hashlib.sha256(
            (tmp_path / folder / "data.safetensors").read_bytes()
        ).hexdigest() == (DIGITS_FILE)
        assert digest == {
            "schema_version": 1,
            "dataset": "digits",
            "kind": "digits",
            "sha256": DIGITS_FILE,
            "source": "scikit-learn load_digits",
            "source_sha256": digits.SHA256,
            "train": 1437,
            "test": 360,
            "classes": list("0123456789"),
            "image_shape": [3, 32, 32],
            "mean": digest["mean"],
            "std": digest["std"],
        }
    images = load_file(tmp_path / "one/data.safetensors")
    np.testing.assert_allclose(digest["mean"], (images["train_images"] / 255).mean((0, 2, 3)))
    np.testing.assert_allclose(digest["std"], (images["train_images"] / 255).std((0, 2, 3)))
    shares = np.bincount(images["test_labels"])
    sizes = shares + np.bincount(images["train_labels"])
    assert (abs(shares - sizes * 360 / 1797) < 1).all()


def test_other_digits_are_refused(monkeypatch, tmp_path):
    import sklearn.datasets

    bunch = sklearn.datasets.load_digits()
    bunch.images[0, 0, 0] += 1
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: bunch)
    with pytest.raises(ParbenchError, match=r"load_digits: its SHA-256 is .* another release"):
        prepared({"kind": "digits"}, tmp_path)


# ---- folders of images


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
    images, described = prepared(of(folder), tmp_path / "out")
    assert described["classes"] == [MARKUP, "b"]  # as it is: escaping is the report's work
    assert described["image_shape"] == [3, 4, 6]
    assert described["source"] == str(folder)
    assert images["train_labels"].tolist() == [0, 1, 1]
    assert images["train_images"][:, :, 3, 3].tolist() == [[255, 0, 0], [0, 0, 255], [0, 255, 0]]
    assert images["train_images"][0, :, 0, 1].tolist() == [9, 8, 7]
    for name, mode in [("x.jpg", "L"), ("x.jpeg", "CMYK"), ("x.bmp", "1"), ("y.webp", "RGBA")]:
        paint(folder / "train" / "b" / name, (255, 255, 255), mode=mode)
    images, _ = prepared(of(folder), tmp_path / "out")
    assert (images["train_images"][3:, :, 3, 5] > 247).all()  # recompression


def test_a_changed_folder_is_known_by_its_digest(folder, tmp_path):
    """Its cells are trained again for other bytes, not for other times."""
    kept, digest = tmp_path / "kept.json", tmp_path / "out/digest.json"
    first = dataset.local_digest(of(folder), kept, digest)
    assert first == prepared(of(folder), tmp_path / "out")[1]["source_sha256"]
    image = folder / "test/b/2.png"
    os.utime(image)
    assert dataset.local_digest(of(folder), kept, digest) == first
    paint(image, (1, 2, 3))
    assert dataset.local_digest(of(folder), kept, digest) not in (None, first)
    (folder / "train/stray.txt").write_text("")
    assert "stray.txt: not a folder" in dataset.local_digest(of(folder), kept, digest)
    folder.rename(tmp_path / "elsewhere")
    assert dataset.local_digest(of(folder), kept, digest) == first  # as good as it was


def put(*parts: str, content: bytes | None = b"x") -> Callable:
    def change(root):
        path = root.joinpath(*parts)
        path.mkdir() if content is None else path.write_bytes(content)

    return change


def gone(*parts: str) -> Callable:
    return lambda root: root.joinpath(*parts).rename(root.parent / "gone")


def disguised(root):
    # A good image of a format that is not on the list: no other decoder may be tried.
    Image.new("RGB", (6, 4)).save(root / "test" / "b" / "x.png", format="GIF")


BROKEN_FOLDERS = {
    "no folder": (gone(), "my images: no such folder; `path` must hold train/ and test/"),
    "no test": (gone("test"), "test: no such folder; images lie in test/<class>/"),
    "class missing": (gone("test", "b"), "test/b: no such folder, but "),
    "empty class": (put("train", "c", content=None), "train/c: the class has no image"),
    "a file among classes": (put("train", "x.png"), "train/x.png: not a folder"),
    "a text": (put("train", "b", "notes.txt"), "notes.txt: not an image file; only .bmp"),
    "a fifo": (lambda root: os.mkfifo(root / "train/b/3.png"), "3.png: not an image file"),
    "not an image": (put("test", "b", "x.png", content=b"<html>"), "x.png: not a readable image"),
    "a GIF in disguise": (disguised, "x.png: not a readable image"),
    "another size": (
        lambda root: paint(root / "test/b/3.png", size=(8, 4)),
        "3.png: 8x4 pixels, but ",
    ),
    "a link out": (
        lambda root: (root / "train/b/3.png").symlink_to("/etc/passwd"),
        "3.png: a link to /etc/passwd, which is outside",
    ),
    "16 bits": (
        lambda root: Image.new("I;16", (6, 4)).save(root / "train/b/3.png"),
        "its pixels are I;16; only 8 bits a channel are read",
    ),
    "a bomb": (
        lambda root: Image.new("1", (5000, 5000)).save(root / "train/b/3.png"),
        "5000x5000 pixels are too many",
    ),
    "an escape": (put("train", "\x1b[2Jc", content=None), "'\\x1b[2Jc' holds a character that"),
    "not UTF-8": (
        lambda root: os.mkdir(os.fsencode(root / "train") + b"/\xff"),
        "'\\udcff' holds a character that cannot be shown; rename it",
    ),
}


@pytest.mark.parametrize("name", BROKEN_FOLDERS)
def test_a_broken_folder_names_the_file(folder, tmp_path, name):
    change, reason = BROKEN_FOLDERS[name]
    change(folder)
    with pytest.raises(ParbenchError) as caught:
        prepared(of(folder), tmp_path / "out")
    assert reason in str(caught.value)
    assert str(folder) in str(caught.value)


def test_what_cannot_be_trained_on_is_refused(tmp_path):
    labels, images = np.array([0, 1]), np.zeros((2, 3, 4, 4), np.uint8)
    for train, test, words in (
        (labels, labels, "here: a channel has the same value"),
        (labels * 0, labels, "here: no training image of the class 'b'"),
        (labels, labels * 0, "here: no test image of the class 'b'"),
    ):
        made = source.Images(images, train, images, test, ["a", "b"], "here", "0" * 64)
        with pytest.raises(ParbenchError, match=words):
            dataset.convert("x", "digits", made, tmp_path / "data", tmp_path / "digest")


# ---- the entry of config.yaml


GOOD = {"kind": "cifar10-binary", "size": 1, "sha256": "a" * 64}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "digit"}, "datasets.x.kind: 'digit' is not one of cifar10-binary, digits"),
        ({"kind": "digits", "path": "y"}, "datasets.x.path: Extra inputs are not permitted"),
        ({"kind": "image-folder"}, "datasets.x.path: Field required"),
        (dict(SYNTHETIC, image_size=4), "datasets.x.image_size: Input should be greater"),
        (dict(SYNTHETIC, seed=1.0), "datasets.x.seed: Input should be a valid integer"),
        (GOOD, "datasets.x: the key 'urls' (mirrors of the archive) is missing; add it, or path"),
        ({**GOOD, "urls": ["ftp://x/y"]}, "datasets.x.urls.0: "),
        ({**GOOD, "urls": ["http://me:pw@h/x"]}, "datasets.x.urls.0: "),
        ({**GOOD, "path": "y", "sha256": "A" * 64}, "datasets.x.sha256: "),
        (dict(SYNTHETIC, test_samples=4), "test_samples 4 are fewer than the 5 classes; ask for 5"),
    ],
)
def test_a_wrong_entry_names_its_key(tmp_path, spec, message):
    with pytest.raises(ParbenchError) as caught:
        prepared(spec, tmp_path, "x")
    assert message in str(caught.value)


def test_a_kind_describes_each_of_its_keys():
    for kind in source.kinds():
        fields = source.load(kind).model_fields
        assert all(field.description for key, field in fields.items() if key != "kind")
