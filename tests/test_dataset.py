"""Downloading, verifying and converting datasets: mirrors, archives and folders."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import operator
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import threading
import warnings
import zlib
from functools import partial, reduce
from pathlib import Path

import numpy as np
import pydantic
import pytest
from PIL import Image
from safetensors.numpy import load_file

from parbench import cache, files
from parbench.data import dataset, download, source
from parbench.data.kinds import cifar10_binary, digits
from parbench.errors import ParbenchError
from workspace import ROOT


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path / "the cache"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "the cache"


def prepared(spec: dict, folder: Path, name: str = "mine") -> tuple[dict, dict]:
    """Prepare an entry; return (the tensors by name, digest.json)."""
    dataset.prepare(name, spec, folder / "data.safetensors", folder / "digest.json")
    return load_file(folder / "data.safetensors"), json.loads((folder / "digest.json").read_text())


# ---- downloads


@pytest.fixture
def site(tmp_path) -> tuple[Path, str]:
    """Yield a folder and the URL at which a server on this machine serves it."""
    folder = tmp_path / "site"
    folder.mkdir()
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


BODY = bytes(range(256)) * 2000
PINNED = (len(BODY), hashlib.sha256(BODY).hexdigest())


def test_a_file_is_downloaded_once_and_again_when_it_is_damaged(site, own_cache):
    folder, url = site
    (folder / "a").write_bytes(BODY)
    path = download.fetch([f"{url}/a"], *PINNED)
    assert (path.read_bytes(), path.parent) == (BODY, own_cache / "downloads")
    (folder / "a").rename(folder / "b")
    assert download.fetch([f"{url}/a"], *PINNED) == path
    path.write_bytes(b"x" * len(BODY))
    assert download.fetch([f"{url}/a", f"{url}/b"], *PINNED).read_bytes() == BODY


def test_mirrors_are_tried_in_turn_and_each_is_named_with_its_reason(site, own_cache, tmp_path):
    folder, url = site
    (folder / "other").write_bytes(b"x" * len(BODY))
    (tmp_path / "a short file").write_bytes(b"x")
    reasons = {
        f"{url}/other": "does not match the known hash",
        f"{url}/gone": "404 Client Error",
        "http://127.0.0.1:9/x": "Connection refused",
        (tmp_path / "absent").as_uri(): "no such file",
        (tmp_path / "a short file").as_uri(): "it has 1 bytes, 512,000 are expected",
    }
    with pytest.raises(ParbenchError, match="no mirror gave the file") as caught:
        download.fetch([*reasons], *PINNED)
    lines = str(caught.value).splitlines()
    for address, reason in reasons.items():
        assert any(line.startswith(f"  {address}: ") and reason in line for line in lines), lines
    assert "`file:///folder/file`" in lines[-1]
    assert not [*(own_cache / "downloads").iterdir()]
    good = tmp_path / "a file with blanks"
    good.write_bytes(BODY)
    assert download.fetch([*reasons, good.as_uri()], *PINNED) == good


# ---- CIFAR-10


FOLDER = cifar10_binary.FOLDER
BINS = [*cifar10_binary.TRAIN, cifar10_binary.TEST]


def records(first: int = 0) -> bytes:
    """Return ten records, where CIFAR-10 has 10,000 in each file."""
    pixels = np.random.default_rng(7).integers(0, 256, 3072, dtype=np.uint8).tobytes()
    return b"".join(bytes([(first + at) % 10]) + pixels for at in range(10))


CONTENTS = {name: records(at) for at, name in enumerate(BINS)}


def pack(contents: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for name, content in {"readme.html": b"<html>", **contents}.items():
            info = tarfile.TarInfo(f"{FOLDER}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def local(archive: bytes, path: Path) -> dict:
    path.write_bytes(archive)
    sha256 = hashlib.sha256(archive).hexdigest()
    return {"kind": "cifar10-binary", "path": str(path), "size": len(archive), "sha256": sha256}


def test_an_archive_here_and_one_from_a_mirror(tmp_path):
    spec = local(pack(CONTENTS), tmp_path / "a.tar.gz")
    images, described = prepared(spec, tmp_path / "out")
    assert images["train_images"].shape == (50, 3, 32, 32)
    assert images["train_labels"].tolist()[8:12] == [8, 9, 1, 2]  # files in numeric order
    assert images["test_labels"].tolist() == [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]
    assert images["train_images"][0].tobytes() == records()[1:3073]  # red, green, blue planes
    assert described["classes"][:2] == ["airplane", "automobile"]
    assert (described["source"], described["source_sha256"]) == (spec["path"], spec["sha256"])
    path = Path(spec.pop("path"))
    spec["urls"] = [(tmp_path / "absent").as_uri(), path.as_uri()]
    _, other = prepared(spec, tmp_path / "again")
    # The recorded source does not depend on which mirror answered.
    assert (other["source"], other["sha256"]) == (spec["urls"][0], described["sha256"])


def test_another_archive_is_refused(tmp_path):
    good = pack(CONTENTS)
    fewer = {name: content for name, content in CONTENTS.items() if "3" not in name}
    for archive, wrong, reason in (
        (good, {"size": 5}, "bytes, 5 are expected; give the official"),
        (good, {"sha256": "0" * 64}, "is expected; give the official"),
        (good, {"path": str(tmp_path / "b")}, "no such file; give the official"),
        (good, {"path": str(tmp_path)}, "it is a folder, a file is expected; give the official"),
        (good, {"path": "/dev/null"}, "it is not a regular file; give the official"),
        (b"<html>Log in", {"size": 5}, "(it looks like a web page, such as one that asks to log"),
        (b"no archive at all", {}, "not CIFAR-10's binary archive"),
        (pack({**CONTENTS, BINS[2]: b""}), {}, "data_batch_3.bin has no records of ten classes"),
        (good[:-2000], {}, "not CIFAR-10's binary archive"),
        (pack(fewer), {}, "data_batch_3.bin is missing"),
        (pack({**CONTENTS, BINS[2]: records()[:-1]}), {}, "not CIFAR-10's binary archive"),
    ):
        spec = local(archive, tmp_path / "a.tar.gz") | wrong
        with pytest.raises(ParbenchError) as caught:
            prepared(spec, tmp_path / "out")
        assert str(caught.value).startswith(f"{spec['path']}: ")
        assert reason in str(caught.value)
        assert not (tmp_path / "out").exists()


# ---- what is drawn, and what scikit-learn brings


SYNTHETIC = {
    "kind": "synthetic",
    **{"classes": 5, "image_size": 9, "train_samples": 23, "test_samples": 7, "seed": 3},
}
# For any release of NumPy or scikit-learn: every measurement on them refers to these bytes.
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
    (tmp_path / "entries.json").write_text('{"digits": {"kind": "digits"}}')
    data, digest = tmp_path / "out, with blanks/data.safetensors", tmp_path / "digest.json"
    words = [sys.executable, str(ROOT / "scripts/bin/parbench"), "dataset", "--name=digits"]
    words += [f"--entries={tmp_path / 'entries.json'}", f"--out={data}", f"--digest={digest}"]
    subprocess.run(words, check=True)
    assert hashlib.sha256(data.read_bytes()).hexdigest() == DIGITS_FILE
    images, described = load_file(data), json.loads(digest.read_text())
    assert described == {
        "schema_version": 1,
        "dataset": "digits",
        "kind": "digits",
        "made_from": source.made_from({"kind": "digits"}),
        "sha256": DIGITS_FILE,
        "source": "scikit-learn load_digits",
        "source_sha256": digits.SHA256,
        "train": 1437,
        "test": 360,
        "classes": list("0123456789"),
        "image_shape": [3, 32, 32],
        "mean": pytest.approx((images["train_images"] / 255).mean((0, 2, 3))),
        "std": pytest.approx((images["train_images"] / 255).std((0, 2, 3))),
    }
    shares = np.bincount(images["test_labels"])
    sizes = shares + np.bincount(images["train_labels"])
    assert (abs(shares - sizes * 360 / 1797) < 1).all()


# ---- folders of images


MARKUP = "<b onclick=\"x\">a & 'o'"  # a class may have any name that a folder can have


def paint(path: Path, color: tuple = (255, 0, 0), size: tuple = (6, 4), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, color)
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
    assert described["classes"] == [MARKUP, "b"]  # unescaped: that is the report's job
    assert described["image_shape"] == [3, 4, 6]
    assert described["source"] == str(folder)
    assert images["train_labels"].tolist() == [0, 1, 1]
    assert images["train_images"][:, :, 3, 3].tolist() == [[255, 0, 0], [0, 0, 255], [0, 255, 0]]
    assert images["train_images"][0, :, 0, 1].tolist() == [9, 8, 7]
    for name, mode in [("x.jpg", "L"), ("x.jpeg", "CMYK"), ("x.bmp", "1"), ("y.webp", "RGBA")]:
        paint(folder / "train" / "b" / name, (255, 255, 255), mode=mode)
    images, _ = prepared(of(folder), tmp_path / "out")
    assert (images["train_images"][3:, :, 3, 5] > 247).all()  # lossy compression


def test_images_of_all_sizes_become_squares_of_one_size(folder, tmp_path):
    wide = Image.new("RGB", (60, 20), (255, 0, 0))
    wide.paste((0, 0, 255), (20, 0, 40, 20))  # the middle
    wide.save(folder / "train/b/3.png")
    images, described = prepared(of(folder) | {"image_size": 8}, tmp_path / "out")
    assert described["image_shape"] == [3, 8, 8]
    inner = images["train_images"][3][:, :, 1:-1]
    assert (inner == np.array([0, 0, 255])[:, None, None]).all()


def test_a_folder_without_parts_is_split_by_names(tmp_path):
    for name in ("a", "b"):
        for number in range(10):
            paint(tmp_path / "all" / name / f"{number}.png", (number, 0, 0))
    spec = of(tmp_path / "all") | {"test_share": 0.3}
    images, _ = prepared(spec, tmp_path / "out")
    parts = [images[f"{part}_images"][:, 0, 3, 3].tolist() for part in ("train", "test")]
    assert list(map(len, parts)) == [14, 6]
    assert sorted(reduce(operator.iadd, parts, [])) == sorted([*range(10), *range(10)])
    (tmp_path / "all/a/9.png").unlink()  # moves no other image to another part
    fewer, _ = prepared(spec, tmp_path / "fewer")
    assert set(fewer["test_images"][:3, 0, 3, 3].tolist()) >= set(parts[1][:3]) - {9}
    shutil.rmtree(tmp_path / "all/b")
    with pytest.raises(ParbenchError, match=r"only the class 'a'; at least 2"):
        prepared(spec, tmp_path / "none")


def test_files_that_are_no_images_are_passed_over_and_named(folder, tmp_path):
    """As by torchvision's ImageFolder; but of hidden files it tries to read ._10.png."""
    for name in ("train/README.txt", "train/b/Thumbs.db", "test/b/._10.png", "test/b/sums"):
        put(folder, name, b"x")
    paint(folder / "train/b/more/4.png")
    images, described = prepared(of(folder), tmp_path / "out")
    assert images["train_labels"].tolist() == [0, 1, 1, 1]
    passed_over, deeper = described["notes"]
    assert passed_over.endswith(
        "test/b/._10.png, test/b/sums, train/.DS_Store, train/README.txt, train/b/Thumbs.db (5 in "
        "all)"
    )
    assert deeper == "images in folders within their class's folder: 1"


def deep_png(pixels: np.ndarray) -> bytes:
    """Return a PNG file of ``pixels``, big-endian uint16 [H, W, 3], which Pillow does not write."""
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">2I5B", pixels.shape[1], pixels.shape[0], 16, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content))
        + name
        + content
        + struct.pack(">I", zlib.crc32(name + content))
        for name, content in chunks
    )


def test_images_become_what_a_viewer_shows(folder, tmp_path):
    """Turned, on a white background, without a library's warnings."""
    upright = Image.new("RGB", (4, 6), (0, 0, 255))  # turned, it is 6x4
    upright.putpixel((0, 5), (9, 8, 7))
    for name in ("3.png", "4.tif"):
        exif = upright.getexif()
        exif[0x0112] = 6
        upright.save(folder / "train/b" / name, exif=exif)
    clear = Image.new("RGBA", (6, 4), (9, 8, 7, 0))
    clear.save(folder / "train/b/5.png")
    clear.convert("LA").save(folder / "train/b/6.png")
    palette = Image.new("P", (6, 4), 1)
    palette.putpalette([0, 0, 0, 9, 8, 7])
    palette.save(folder / "train/b/7.png", transparency=b"\xff\x00")
    put(folder, "train/b/8.png", deep_png(np.full((4, 6, 3), (0x1234, 0xFEDC, 255), ">u2")))
    clear.convert("RGB").save(
        folder / "train/b/9.webp",
        save_all=True,
        append_images=[Image.new("RGB", (6, 4))],
        lossless=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images, described = prepared(of(folder), tmp_path / "out")
    turned, also_turned, *white, deep, framed = images["train_images"][3:]
    assert (turned == also_turned).all()
    assert turned[:, 0, 0].tolist() == [9, 8, 7]
    assert [image.min() for image in white] == [255] * 3
    assert deep[:, 0, 0].tolist() == [0x12, 0xFE, 0]
    assert framed[:, 0, 0].tolist() == [9, 8, 7]
    assert described["notes"][1:] == [
        "2 of 13 images: turned as the orientation in its EXIF data says",
        "3 of 13 images: transparent parts are shown on white",
        "1 of 13 images: only the upper 8 of 16 bits per channel are read",
        "1 of 13 images: only the first of several frames is read",
    ]


def test_one_name_in_two_unicode_forms_is_one_class(folder, tmp_path):
    rename(folder, "train/b", to="Ka\u0308fer")
    rename(folder, "test/b", to="K\u00e4fer")
    images, described = prepared(of(folder), tmp_path / "out")
    assert described["classes"] == [MARKUP, "K\u00e4fer"]
    assert images["test_labels"].tolist() == [0, 1, 1]
    rename(folder, "train/Ka\u0308fer", to="K\u00e4fer")
    assert prepared(of(folder), tmp_path / "out")[1] == described


def test_links_are_followed(folder, tmp_path):
    """A change behind them is noticed, also if only the link changes."""
    linked, kept = tmp_path / "linked", tmp_path / "kept.json"
    (linked / "test").mkdir(parents=True)
    (linked / "train").symlink_to(folder / "train")
    (linked / "test/b").symlink_to("../../my images/test/b")
    (linked / "test" / MARKUP).mkdir()
    image = linked / "test" / MARKUP / "x.PNG"
    image.symlink_to(folder / "test" / MARKUP / "x.PNG")
    described = prepared(of(folder), tmp_path / "out")[1]
    its = {"source": str(linked), "made_from": source.made_from(of(linked))}
    assert prepared(of(linked), tmp_path / "links")[1] == described | its

    def digest() -> str:
        return dataset.local_digest(of(linked), kept, tmp_path / "absent")

    seen = [digest()]
    assert seen == [described["source_sha256"]]
    times = os.stat(image)
    paint(folder / "test" / MARKUP / "x.PNG", (254, 0, 0))
    os.utime(image, ns=(times.st_atime_ns, times.st_mtime_ns))  # as cp -p and rsync -t do
    seen.append(digest())
    other = tmp_path / "other.png"
    shutil.copy2(folder / "train/b/2.png", other)
    image.unlink()
    image.symlink_to(other)
    seen.append(digest())
    assert len(set(seen)) == 3


def test_a_path_may_begin_with_a_variable_or_the_home_folder(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for path in ("$DATA/my images", "${DATA}/my images/", "~/my images", "my images"):
        assert prepared(of(Path(path)), tmp_path / "out")[1]["train"] == 3
    monkeypatch.setenv("PARBENCH_CACHE", "~/the cache")
    assert cache.folder() == tmp_path / "the cache"
    for path, reason in (
        ("$NONE/images", r"\$NONE/images: the environment has no variable \$NONE; set it"),
        ("~nobody-here/images", "the home folder of ~nobody-here is unknown"),
    ):
        with pytest.raises(ParbenchError, match=reason):
            prepared(of(Path(path)), tmp_path / "out")
    with pytest.raises(
        ParbenchError, match=r"b'K\\xe4fer': this name is not UTF-8; rename the file"
    ):
        files.user_path(os.fsdecode(b"K\xe4fer"))


def test_a_changed_folder_is_known_by_its_digest(folder, tmp_path):
    """Its cells are trained again for changed bytes, not for changed times."""
    kept, digest = tmp_path / "kept.json", tmp_path / "out/digest.json"
    first = dataset.local_digest(of(folder), kept, digest)
    assert first == prepared(of(folder), tmp_path / "out")[1]["source_sha256"]
    image = folder / "test/b/2.png"
    os.utime(image)
    assert dataset.local_digest(of(folder), kept, digest) == first
    paint(image, (1, 2, 3))
    assert dataset.local_digest(of(folder), kept, digest) not in (None, first)
    (folder / "train/stray.png").write_text("")
    with pytest.raises(ParbenchError, match=r"stray\.png: not in the folder of a class"):
        dataset.local_digest(of(folder), kept, digest)
    folder.rename(tmp_path / "elsewhere")
    assert dataset.local_digest(of(folder), kept, digest) == first  # the kept digest holds


def put(root: Path, name: str, content: bytes) -> None:
    (root / name).write_bytes(content)


def rename(root: Path, *parts: str, to: str) -> None:
    for part in parts:
        (root / part).rename((root / part).with_name(to))


BROKEN_FOLDERS = {
    "no folder": (
        lambda root: root.rename(root.parent / "gone"),
        "my images: no such folder; images belong in train/<class>/ and test/<class>/",
    ),
    "an archive": (
        lambda root: (root.rename(root.parent / "gone"), root.write_bytes(b"PK")),
        "my images: not a folder; unpack an archive first",
    ),
    "another name of a part": (
        lambda root: rename(root, "test", to="val"),
        "test: no such folder; images belong in train/<class>/ and test/<class>/; ",
    ),
    "one class": (
        lambda root: rename(root, "train/b", "test/b", to=".b"),
        "my images: only the class '<b onclick=\"x\">a & \\'o\\''; at least 2 are needed",
    ),
    "no class": (
        lambda root: [shutil.rmtree(each) for each in root.glob("t*/*/")],
        "my images: no class; at least 2 are needed",
    ),
    "a class of one part": (
        lambda root: rename(root, "test/b", to="bs"),
        "my images: no images in test/b, train/bs; a class needs some in train/ and in test/",
    ),
    "an empty class": (
        lambda root: (root / "test/c").mkdir(),
        "my images: no images in train/c, test/c;",
    ),
    "a class of other files": (
        lambda root: [put(root, "test/c/x.gif", b"") for _ in [(root / "test/c").mkdir()]],
        "my images: no images in train/c, test/c;",
    ),
    "a class in Latin-1": (
        lambda root: os.rename(root / "test/b", os.fsencode(root) + b"/test/K\xe4fer"),
        "test: the name of the class b'K\\xe4fer' is not UTF-8; rename its folder",
    ),
    "an image of no class": (
        lambda root: put(root, "train/x.png", b""),
        "x.png: not in the folder of a class; images belong in train/<class>/",
    ),
    "a link to nothing": (
        lambda root: (root / "train/b/3.png").symlink_to("../../away.png"),
        "train/b/3.png: a link to ../../away.png, which does not exist; correct or delete the link",
    ),
    "a class linked to itself": (
        lambda root: (root / "train/c").symlink_to("c"),
        "train/c: a link to c, which does not exist",
    ),
    "links in a circle": (
        lambda root: (root / "train/b/all").symlink_to(".."),
        "all/b: a link to a folder that contains it; delete the link",
    ),
    "a pipe": (
        lambda root: os.mkfifo(root / "train/b/3.png"),
        "train/b/3.png: neither a file nor a folder; remove it",
    ),
    "a truncated image": (
        lambda root: put(root, "test/b/2.png", (root / "test/b/2.png").read_bytes()[:60]),
        "2.png: not a readable image",
    ),
    "a program in PostScript": (
        lambda root: put(
            root, "test/b/x.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 4\n"
        ),
        "x.png: not a readable image (empty, or none of BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP)",
    ),
    "a decompression bomb": (
        lambda root: Image.new("1", (10_000, 9_000)).save(root / "test/b/x.png"),
        "x.png: not a readable image (more than 89,478,485 pixels",
    ),
    "not an image": (
        lambda root: put(root, "test/b/x.png", b"<html>"),
        "x.png: not a readable image",
    ),
    "another size": (
        lambda root: paint(root / "test/b/3.png", size=(8, 4)),
        "3.png: 8x4 pixels, but ",
    ),
    "16 bits": (
        lambda root: Image.new("I;16", (6, 4)).save(root / "train/b/3.png"),
        "its pixels are I;16; only 8 bits per channel are read",
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


# ---- the entry of config.yaml


GOOD = {"kind": "cifar10-binary", "size": 1, "sha256": "a" * 64}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (dict(SYNTHETIC, seed=1.0), "Input should be a valid integer"),
        (dict(SYNTHETIC, test_samples=4), "test_samples must be at least 5, one per class"),
        (GOOD, r"the key 'urls' is missing; add it, or path. `urls`: mirrors of the"),
        ({**GOOD, "urls": ["ftp://x/y"]}, "urls.0"),
        ({**GOOD, "urls": ["http://me:pw@h/x"]}, "urls.0"),
    ],
)
def test_a_wrong_entry_is_refused_before_anything_is_read(spec, message):
    with pytest.raises(pydantic.ValidationError, match=message):
        source.load(spec["kind"])(**spec)
