"""The air gap: what an archive of `make bundle` holds, and a machine that has only that."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections import namedtuple
from pathlib import Path

import pytest

import apptainer
import bundle
import cache
import cells
import config as configuration
import dataset
import environment
import images
import machine
import unbundle
from errors import ParbenchError
from require import require
from test_environment import Clone, tiny_wheel
from workspace import ROOT, Workspace, small_study

Usage = namedtuple("Usage", "total used free")


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A small repository, committed."""
    root = tmp_path / "a checkout"
    (root / "studies").mkdir(parents=True)
    (root / "studies" / "one.yaml").write_text("title: One\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "gone.txt").write_text("here\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "first")
    return root


# ---------------------------------------------------------------- the checkout


def test_a_clean_checkout_is_taken(checkout):
    bundle.require_clean(checkout, dirty=False, studies=["one"])


@pytest.mark.parametrize("name", ["run.sh", "studies/two words.yaml"])
def test_a_dirty_checkout_is_refused(checkout, name):
    (checkout / name).write_text("other\n")
    with pytest.raises(ParbenchError, match=name) as error:
        bundle.require_clean(checkout, dirty=False)
    assert "--dirty" in str(error.value)
    bundle.require_clean(checkout, dirty=True)


def test_files_of_configfile_make_no_checkout_dirty(checkout):
    (checkout / "mine.yaml").write_text("studies: [one]\n")
    bundle.require_clean(checkout, dirty=False, travelling=["mine.yaml"])


def test_a_study_that_git_does_not_track_is_an_error(checkout, capsys):
    (checkout / "studies" / "two.yaml").write_text("title: Two\n")
    bundle.require_clean(checkout, dirty=True, studies=["one"])
    assert "left behind, since git does not track them: studies/two.yaml" in capsys.readouterr().err
    with pytest.raises(ParbenchError, match="studies/two.yaml would not travel"):
        bundle.require_clean(checkout, dirty=True, studies=["two"])


def test_a_folder_that_is_no_checkout(tmp_path):
    with pytest.raises(ParbenchError, match="git"):
        bundle.require_clean(tmp_path, dirty=True)


def test_the_copy_is_the_commit_and_does_not_say_where_it_lay(checkout, tmp_path):
    copy = tmp_path / "copy"
    (checkout / "run.sh").write_text("changed\n")
    bundle.copy_checkout(checkout, copy, dirty=False)
    assert git(copy, "rev-parse", "HEAD") == git(checkout, "rev-parse", "HEAD")
    assert git(copy, "status", "--porcelain") == ""
    assert (copy / "run.sh").read_text() == "#!/bin/sh\n"
    files = [path for path in copy.rglob("*") if path.is_file()]
    assert not [path for path in files if str(checkout).encode() in path.read_bytes()]


def test_dirty_takes_tracked_files_as_they_are(checkout, tmp_path):
    copy = tmp_path / "copy"
    (checkout / "run.sh").write_text("changed\n")
    (checkout / "gone.txt").unlink()
    (checkout / "added.txt").write_text("new\n")
    git(checkout, "add", "added.txt")
    (checkout / "untracked.txt").write_text("not mine\n")
    bundle.copy_checkout(checkout, copy, dirty=True)
    assert (copy / "run.sh").read_text() == "changed\n"
    assert (copy / "added.txt").read_text() == "new\n"
    assert not (copy / "gone.txt").exists()
    assert not (copy / "untracked.txt").exists()
    assert bundle.version(checkout).endswith("-dirty")


# ---------------------------------------------------------------- the archive


def test_the_archive_is_what_tar_and_sha256sum_read(checkout, tmp_path):
    copy, out = tmp_path / "copy", tmp_path / "x.tar"
    bundle.copy_checkout(checkout, copy, dirty=False)
    archive = bundle.Archive(out, "top", 1)
    bundle._add_checkout(archive, copy)
    bundle.write_sums(archive.sums, tmp_path / "sums")
    archive.add(tmp_path / "sums", "SHA256SUMS")
    archive.close()
    with tarfile.open(out) as tar:
        assert {member.name.split("/")[0] for member in tar} == {"top"}
        assert {(member.uid, member.gid, member.uname) for member in tar} == {(0, 0, "")}
    subprocess.run(["tar", "xf", out], cwd=tmp_path, check=True)
    subprocess.run(
        ["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=tmp_path / "top", check=True
    )
    assert os.access(tmp_path / "top" / "run.sh", os.X_OK)
    assert not os.access(tmp_path / "top" / "gone.txt", os.X_OK)
    assert git(tmp_path / "top", "status", "--porcelain") == "?? SHA256SUMS"


def test_too_little_disk_is_said_before_anything_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(9e9, 8e9, 1e9))
    with pytest.raises(ParbenchError, match=r"1\.0 GB are free, the archive needs 6\.5") as error:
        bundle.require_disk(tmp_path, 6.5e9, "the archive")
    assert "--out" in str(error.value)


def test_a_disk_that_takes_no_large_files_is_named(tmp_path):
    error = bundle._sifted(OSError(errno.EFBIG, "File too large"), tmp_path / "x.tar")
    assert "FAT32" in str(error)


def test_an_interrupted_archive_leaves_nothing(checkout, tmp_path, monkeypatch):
    work, out = tmp_path / "work", tmp_path / "out" / "x.tar"
    work.mkdir()
    out.parent.mkdir()

    def fetch(lock_file, wheels, lock):
        wheels.mkdir()
        tiny_wheel(wheels)
        return bundle._requirements(wheels)

    def interrupt(archive, contents):
        assert [path.name for path in out.parent.iterdir()] == [".x.tar.part"]
        raise KeyboardInterrupt

    monkeypatch.setattr(bundle, "ROOT", checkout)
    monkeypatch.setattr(bundle, "_git", lambda *words, folder=checkout: git(folder, *words))
    monkeypatch.setattr(bundle, "fetch_wheels", fetch)
    monkeypatch.setattr(bundle, "WHEELS_GB", 0)
    monkeypatch.setattr(bundle, "_add_contents", interrupt)
    with pytest.raises(KeyboardInterrupt):
        bundle.write(out, bundle.Contents("current"), {}, "current", work, 0, dirty=False)
    assert list(out.parent.iterdir()) == []


def test_what_the_studies_need(monkeypatch):
    monkeypatch.setattr(machine, "horovod", lambda: None)
    config = configuration.checked(configuration.load())
    # A machine without GPUs writes the archive for one that has them.
    config = {**config, "studies": ["gorantla2024"], "available": {"cpu": 2}}
    for deployment, wanted in (("apptainer", ["horovod", "report", "torch"]), ("host", [])):
        settled = {**config, "deployment": deployment}
        found = bundle.needed(settled, cells.plan(settled))
        assert [image.name for image in found.images] == wanted
        assert list(found.datasets) == ["cifar10"]


def test_files_of_configfile_keep_their_place(tmp_path):
    inside = ROOT / "profiles" / "mine.yaml"
    assert list(bundle._travelling([str(inside)])) == ["profiles/mine.yaml"]
    assert list(bundle._travelling([str(tmp_path / "mine.yaml")])) == ["mine.yaml"]
    with pytest.raises(ParbenchError, match="config.yaml is taken"):
        bundle._travelling([str(tmp_path / "config.yaml")])


# ---------------------------------------------------------------- on the other machine

LABEL = "torch-current-0123456789ab"


@pytest.fixture
def brought(tmp_path, monkeypatch) -> Path:
    """The folder bundle/ of a checkout, as an archive leaves it, with tiny content."""
    root = tmp_path / "there"
    monkeypatch.setattr(unbundle, "ROOT", root)
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path / "a cache"))
    return fill(root)


def fill(root: Path, **changes) -> Path:
    folder = root / "bundle"
    (folder / "images").mkdir(parents=True)
    (folder / "images" / f"{LABEL}.sif").write_bytes(b"an image")
    facts = {"sha256": hashlib.sha256(b"an image").hexdigest(), "stamp": [1, 2], "label": LABEL}
    (folder / "images" / f"{LABEL}.json").write_text(json.dumps(facts))
    (folder / "images" / f"{LABEL}.cdx.json").write_text("{}")
    built = folder / "horovod" / "horovod-1-torch2-none-abc"
    built.mkdir(parents=True)
    (built / "horovod.whl").write_bytes(b"compiled")
    (built / "built.json").write_text("{}")
    (folder / "wheels").mkdir()
    wheel = tiny_wheel(folder / "wheels")
    value = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (folder / "requirements.txt").write_text(f"tiny==1.0 --hash=sha256:{value}\n")
    held = {
        "layout": unbundle.LAYOUT,
        "python": {"version": "3.11", "identity": environment.python_identity()},
        "environment": {"stack": "tiny", "lock": "not yet"},
        "images": [LABEL],
        "given": [],
        "datasets": {},
        "weights": {},
    }
    (folder / "bundle.json").write_text(json.dumps({**held, **changes}))
    seal(root)
    return folder


def seal(root: Path) -> None:
    files = [path for path in (root / "bundle").rglob("*") if path.is_file()]
    sums = {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
    bundle.write_sums(sums, root / "SHA256SUMS")


def test_no_bundle_no_change(tmp_path, monkeypatch):
    monkeypatch.setattr(unbundle, "ROOT", tmp_path)
    unbundle.adopt()
    assert unbundle.images() is None
    assert unbundle.packages("tiny", tmp_path / "none", ["any"]) is None
    assert unbundle.dataset("digits", {}) is None


def test_images_and_horovod_are_put_where_they_are_looked_for(brought, capsys):
    unbundle.adopt()
    assert "checking bundle/ by SHA-256 (once)" in capsys.readouterr().err
    image = images.Image("torch", "current", "0123456789ab")
    assert images._ready(image)["label"] == LABEL  # without reading it again
    assert image.path.read_bytes() == b"an image"
    assert image.path.samefile(brought / "images" / f"{LABEL}.sif")  # no second copy on this disk
    assert image.beside(".cdx.json").is_file()
    horovod = cache.folder() / "wheels" / "horovod-1-torch2-none-abc"
    assert sorted(path.name for path in horovod.iterdir()) == ["built.json", "horovod.whl"]
    unbundle.adopt()
    assert capsys.readouterr().err == ""


def test_another_disk_gets_copies(brought, monkeypatch):
    def link(*_):
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "link", link)
    unbundle.adopt()
    image = images.Image("torch", "current", "0123456789ab")
    assert images._ready(image) is not None
    assert not image.path.samefile(brought / "images" / f"{LABEL}.sif")


def test_another_disk_that_is_full(brought, monkeypatch):
    def link(*_):
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(9, 8, 1))
    with pytest.raises(ParbenchError, match="are free, .* point PARBENCH_CACHE at a larger disk"):
        unbundle.adopt()
    assert not list(cache.folder().rglob("*.part"))


def test_a_deleted_image_is_taken_again(brought):
    unbundle.adopt()
    image = images.Image("torch", "current", "0123456789ab")
    image.path.unlink()
    unbundle.adopt()
    assert images._ready(image) is not None


@pytest.mark.parametrize("name", [f"images/{LABEL}.sif", "wheels/tiny-1.0-py3-none-any.whl"])
def test_a_damaged_file_is_named_and_nothing_is_taken(brought, name):
    path = brought / name
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(ParbenchError, match=f"{name} is damaged"):
            unbundle.adopt()
    assert not (cache.folder() / "images").exists()


@pytest.mark.parametrize("name", [f"bundle/images/{LABEL}.sif", "SHA256SUMS", "bundle/bundle.json"])
def test_a_missing_file_is_named(brought, name):
    (brought.parent / name).unlink()
    with pytest.raises(ParbenchError, match=f"{name} is missing"):
        unbundle.adopt()


@pytest.mark.parametrize("content", ["{", "[]", '{"layout": 2}', '{"layout": 3}'])
def test_a_damaged_or_foreign_description_is_named(brought, content):
    (brought / "bundle.json").write_text(content)
    words = "another version" if "3" in content else "is damaged"
    with pytest.raises(ParbenchError, match=f"bundle.json.*{words}"):
        unbundle.adopt()


def test_an_edited_checkout_is_not_damage(brought):
    root = brought.parent
    (root / "config.yaml").write_text("studies: [mine]\n")
    with open(root / "SHA256SUMS", "a") as file:
        file.write(f"{'0' * 64}  config.yaml\n")
    unbundle.adopt()


def test_a_host_with_a_bundle_builds_no_images(brought, monkeypatch):
    settings = configuration.load()["images"]
    assert "bundle/ holds no images of this stack" in images.obstacle("current", settings)
    torch = images.image("torch", "current", settings)
    shutil.rmtree(brought)
    fill(brought.parent, images=[torch.label])
    for ending in (".sif", ".json", ".cdx.json"):
        (brought / "images" / (LABEL + ending)).rename(brought / "images" / (torch.label + ending))
    seal(brought.parent)
    unbundle.adopt()
    monkeypatch.setenv("PATH", "")  # no debootstrap
    assert images.obstacle("current", settings) is None


# ---------------------------------------------------------------- data


@pytest.fixture
def with_data(brought, digits) -> tuple[Path, dict]:
    """A bundle with a dataset that was made from a folder that is not here."""
    spec = {"kind": "image-folder", "path": "/nowhere/images"}
    target = brought / "data" / "mine"
    shutil.copytree(digits, target)
    found = json.loads((target / "digest.json").read_text())
    found.update(dataset="mine", kind="image-folder", source_sha256="f" * 64)
    (target / "digest.json").write_text(json.dumps(found))
    held = json.loads((brought / "bundle.json").read_text())
    (brought / "bundle.json").write_text(json.dumps({**held, "datasets": {"mine": spec}}))
    return target, spec


def test_data_comes_from_the_bundle(with_data, tmp_path, capsys):
    source, spec = with_data
    out, digest = tmp_path / "data" / "data.safetensors", tmp_path / "data" / "digest.json"
    dataset.prepare("mine", spec, out, digest)
    assert f"mine: taking it from {source}" in capsys.readouterr().err
    assert out.read_bytes() == (source / "data.safetensors").read_bytes()
    assert json.loads(digest.read_text())["source_sha256"] == "f" * 64


def test_data_of_another_entry_is_not_taken(with_data, tmp_path):
    out, digest = tmp_path / "data" / "data.safetensors", tmp_path / "data" / "digest.json"
    other = {"kind": "image-folder", "path": "/another/folder"}
    with pytest.raises(ParbenchError, match="/another/folder"):
        dataset.prepare("mine", other, out, digest)


def test_damaged_data_is_named(with_data, tmp_path):
    source, spec = with_data
    with open(source / "data.safetensors", "ab") as file:
        file.write(b"x")
    with pytest.raises(ParbenchError, match="data.safetensors is missing or damaged"):
        dataset.prepare("mine", spec, tmp_path / "data.safetensors", tmp_path / "digest.json")


def test_a_folder_that_stayed_behind_is_known_by_its_digest(with_data, tmp_path, monkeypatch):
    """Before and after the data is made: another answer would train every cell again."""
    monkeypatch.setattr(cells, "RESULTS", tmp_path / "results")
    spec = with_data[1]
    plan = cells.Plan(datasets={"mine": spec}, images={})
    cells._source_digest.cache_clear()
    assert cells.source_digest("mine", plan) == "f" * 64
    made = tmp_path / "results" / "data" / "mine"
    dataset.prepare("mine", spec, made / "data.safetensors", made / "digest.json")
    cells._source_digest.cache_clear()
    assert cells.source_digest("mine", plan) == "f" * 64
    cells._source_digest.cache_clear()


# ---------------------------------------------------------------- packages


@pytest.fixture
def offline(tmp_path) -> Clone:
    """A clone with a bundle, and no other source of packages."""
    clone = Clone(tmp_path)
    lock = clone.root / "containers" / "locks" / "tiny" / "host.txt"
    held = {"stack": "tiny", "lock": hashlib.sha256(lock.read_bytes()).hexdigest()}
    fill(clone.root, environment=held)
    shutil.rmtree(clone.links)
    return clone


def test_packages_come_from_the_bundle_alone(offline):
    nowhere = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    done = offline.run("ensure", "--stack", "tiny", **nowhere)
    assert done.returncode == 0, done.stderr
    assert "installing 1 packages from bundle/wheels and nowhere else" in done.stderr
    assert (Path(done.stdout.strip()) / ".complete").is_file()
    assert (offline.cache / "images" / f"{LABEL}.sif").is_file()


def test_no_horovod_in_the_bundle_is_said_and_not_compiled(offline):
    (offline.root / "containers" / "locks" / "tiny" / "horovod.txt").write_text("x\n")
    done = offline.run("ensure", "--stack", "tiny")
    assert done.returncode == 0, done.stderr
    assert "Horovod is not available: the machine that wrote bundle/ had none" in done.stderr
    assert offline.run("ensure", "--stack", "tiny").stderr == ""


def test_another_python_is_told_which(offline):
    path = offline.root / "bundle" / "bundle.json"
    held = json.loads(path.read_text())
    held["python"] = {"version": "3.99", "identity": ["cpython-399-x86_64-linux-gnu", "linux"]}
    path.write_text(json.dumps(held))
    done = offline.run("ensure", "--stack", "tiny")
    assert done.returncode == 2
    assert "packages for Python 3.99" in done.stderr
    assert "make report PYTHON=python3.99" in done.stderr
    assert "checking bundle/" not in done.stderr  # gigabytes are not read for that


def test_another_lock_file_is_an_error(offline):
    with open(offline.root / "containers" / "locks" / "tiny" / "host.txt", "a") as file:
        file.write("# changed\n")
    done = offline.run("ensure", "--stack", "tiny")
    assert done.returncode == 2
    assert "bundle/ holds the packages of the stack tiny as it was" in done.stderr


def test_a_damaged_wheel_is_one_error(offline):
    with open(next((offline.root / "bundle" / "wheels").glob("*.whl")), "ab") as file:
        file.write(b"x")
    done = offline.run("ensure", "--stack", "tiny")
    assert done.returncode == 2
    assert done.stderr.count("error:") == 1
    assert "tiny-1.0-py3-none-any.whl is damaged" in done.stderr


# ---------------------------------------------------------------- the whole way

STUDY = small_study(
    "One cell",
    "swin: {options: {embed_dim: 12, depths: [1, 1], num_heads: [2, 2], window_size: 4}}",
    "eager: {strategy: eager, hardware: cpu1}",
)
GB_NEEDED = 18
# Nothing but a loop device, or the test means nothing.
WITHOUT_NETWORK = "ip link set lo up && test $(grep -c : /proc/self/net/dev) = 1 && "


@pytest.fixture
def scratch(tmp_path):
    """A folder for gigabytes, which does not stay for the next three runs."""
    yield tmp_path / "scratch"
    images._remove(tmp_path / "scratch")


@pytest.mark.whole
def test_a_machine_without_network_makes_the_report(scratch):
    """Two minutes, 18 GB of disk: bundled here, unpacked elsewhere, run with a cache of its own."""
    require("apptainer")
    if trouble := apptainer.probe().trouble:
        pytest.skip(trouble)
    for command in (["unshare", "-n", "true"], ["ip", "-V"]):
        with contextlib.suppress(OSError):
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                continue
        pytest.skip(f"{' '.join(command)} does not work here")
    scratch.mkdir()
    if shutil.disk_usage(scratch).free < GB_NEEDED * 1e9:
        pytest.skip(f"{scratch}: less than {GB_NEEDED} GB are free")

    work = Workspace(scratch / "here", "auto")
    for name in ("Makefile", ".gitignore"):
        shutil.copy(ROOT / name, work.folder / name)
    (work.folder / "studies" / "one.yaml").write_text(STUDY)
    work.edit("config.yaml", "studies: [quickstart]", "studies: [one]")
    work.edit("config.yaml", "unpack: true", "unpack: false")  # 6 GB less
    git(work.folder, "init", "--quiet")
    git(work.folder, "add", ".")
    git(work.folder, "commit", "--quiet", "--message", "first")
    # As a user types it: not from within the environment that runs the tests.
    own = str(Path(sys.prefix) / "bin")
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if p != own)
    plain = {**os.environ, "PATH": path}
    make(work.folder, ["make", "bundle", f"ARGS=--out '{scratch}'"], plain)
    archive = next(scratch.glob("parbench-*-current.tar"))
    assert not list(scratch.rglob("*.part"))
    shutil.rmtree(work.folder)

    far = scratch / "far away"
    far.mkdir()
    subprocess.run(["tar", "xf", archive], cwd=far, check=True)
    archive.unlink()
    there = next(far.iterdir())
    alone = {key: value for key, value in plain.items() if not key.startswith("PIP_")}
    alone |= {"PARBENCH_CACHE": str(far / "a cache"), "PIP_CONFIG_FILE": os.devnull}
    command = ["unshare", "-n", "sh", "-c", WITHOUT_NETWORK + "make report"]
    said = make(there, command, alone)
    assert "checking bundle/ by SHA-256 (once)" in said
    for name in ("final.html", "final.pdf"):
        assert (there / "reports" / name).stat().st_size > 10_000
    (metrics,) = (there / "results" / "cells").glob("*/metrics.json")
    before = metrics.stat().st_mtime_ns
    environment_ = json.loads(metrics.read_text())["environment"]
    held = json.loads((there / "bundle" / "bundle.json").read_text())
    assert environment_["image"] in held["images"]
    assert environment_["git_commit"] == held["commit"]
    assert environment_["git_dirty"] is False

    make(there, command, alone)
    assert metrics.stat().st_mtime_ns == before  # trained once


def make(folder: Path, command: list[str], variables: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
