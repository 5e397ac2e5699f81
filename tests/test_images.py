"""Images: what decides their names, what they hold, and what happens when a build goes wrong.

Those that need Apptainer build real images. A recipe of three lines on top of the base image
stands for the large ones where only the machinery is looked at.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

import apptainer
import cache
import config
import images
import machine
import sbom
from errors import ParbenchError
from require import require
from workspace import Workspace, small_study

SETTINGS = {"arguments": {}, "given": {}, "public_key": None, "unpack": False}
STACKS = ("current", "paper")
TINY = """Bootstrap: localimage
From: {{ parent }}

%arguments
    parent=base
    key=none

%post
    echo parbench > /tiny

%test
    test "$(cat /tiny)" = parbench

%labels
    parbench.recipe.digest {{ key }}
"""


# ---- names ----


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """The recipes, to be edited."""
    folder = tmp_path / "containers"
    shutil.copytree(config.ROOT / "containers", folder)
    monkeypatch.setattr(images, "RECIPES", folder)
    images._image.cache_clear()
    yield folder
    images._image.cache_clear()


def keys(stack="current", **arguments):
    images._image.cache_clear()
    settings = {**SETTINGS, "arguments": arguments}
    return {name: images.image(name, stack, settings).key for name in images.names()}


def changed(before, after):
    return {name for name in before if before[name] != after[name]}


def append(path, text):
    path.write_text(path.read_text() + text)


def test_a_changed_recipe_renames_it_and_what_stands_on_it(recipes):
    before = keys()
    append(recipes / "horovod.def", "\n%runscript\n    exec true\n")
    assert changed(before, keys()) == {"horovod"}
    append(recipes / "torch.def", "\n%runscript\n    exec true\n")
    assert changed(before, keys()) == {"torch", "horovod"}
    append(recipes / "post.sh", "\n:\n")
    assert changed(before, keys()) == set(before)


def test_comments_and_blank_lines_rename_nothing(recipes):
    before = keys()
    for path in [*recipes.glob("*.def"), recipes / "post.sh", recipes / "build_horovod.py"]:
        append(path, "\n# a comment\n\n")
    assert keys() == before


def test_a_lock_file_renames_the_images_made_from_it(recipes):
    before = keys()
    append(recipes / "locks/current/report.txt", "# renewed\n")
    assert changed(before, keys()) == {"report"}


def test_arguments_count_and_a_mirror_does_not(recipes):
    before = keys()
    assert keys(mirror="http://localhost/debian") == before
    assert changed(before, keys(gpu="nccl")) == {"horovod"}
    docker = {"bootstrap": "docker", "from": "debian@sha256:" + "0" * 64}
    assert changed(before, keys(**docker)) == set(before)


def test_the_program_that_compiles_horovod_counts(recipes, monkeypatch):
    before = keys()
    monkeypatch.setattr(images.environment, "recipe_digest", lambda: "another")
    assert changed(before, keys()) == {"horovod"}


def test_stacks_share_what_holds_no_python_package():
    current, paper = keys("current"), keys("paper")
    assert {name for name in current if current[name] == paper[name]} == {"base"}
    assert images.image("base", "paper", SETTINGS).label.startswith("base-")
    assert images.image("torch", "paper", SETTINGS).label.startswith("torch-paper-")


@pytest.mark.parametrize("name", images.names())
def test_each_recipe_says_what_it_is_and_tests_itself(name):
    text = (images.RECIPES / f"{name}.def").read_text()
    for section in ("%post", "%test", "%labels", "%help"):
        assert f"\n{section}\n" in text
    assert f"org.opencontainers.image.title parbench-{name}" in text
    assert "parbench.recipe.digest {{ key }}" in text


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("lock", ["torch", "report"])
def test_an_image_has_the_versions_of_the_host(stack, lock):
    folder = images.RECIPES / "locks" / stack

    def pins(name):
        lines = (folder / f"{name}.txt").read_text().splitlines()
        return dict(line.split(" ")[0].split("==") for line in lines if "==" in line[:60])

    host = pins("host")
    wrong = {n: v for n, v in pins(lock).items() if host.get(n, v) != v}
    assert not wrong


def test_an_unknown_image_names_the_nearest():
    with pytest.raises(ParbenchError, match=r"no image 'horovd'.*did you mean 'horovod'"):
        images.image("horovd", "current", SETTINGS)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("images/torch.sif", "absolute path"),
        ("/nowhere/torch.sif", "is no file"),
        ("oras://registry.example/torch:latest", "names no content.*@sha256:"),
    ],
)
def test_what_cannot_stand_in_for_a_recipe(given, words):
    with pytest.raises(ParbenchError, match=rf"images\.given\.torch: .*{words}"):
        images.image("torch", "current", {**SETTINGS, "given": {"torch": given}})


def test_an_image_that_stands_in_is_known_by_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "mine.sif"
    file.write_bytes(b"one")
    settings = {**SETTINGS, "given": {"torch": str(file)}}

    def key():
        images._image.cache_clear()
        return images.image("torch", "current", settings).key

    assert key() == hashlib.sha256(b"one").hexdigest()
    file.write_bytes(b"another")
    assert key() == hashlib.sha256(b"another").hexdigest()
    digest = "0123456789abcdef" * 4
    settings["given"] = {"torch": f"oras://registry.example/torch@sha256:{digest}"}
    assert key() == digest


# ---- what a build is given ----


def test_a_build_gets_this_machines_mirrors_and_certificates(tmp_path, monkeypatch):
    index, authority = tmp_path / "index" / "simple", tmp_path / "ca.pem"
    index.mkdir(parents=True)
    authority.write_text("certificate")
    for key in list(os.environ):
        if key.startswith("PIP_"):
            monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "https://registry.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"file://{index}")
    monkeypatch.setenv("PIP_CERT", str(authority))
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    mounts = images._stage(
        images.image("torch", "current", SETTINGS), tmp_path / "build", "http://mirror.example"
    )
    build = tmp_path / "build"
    pip = (build / "pip.conf").read_text()
    assert "index-url = https://registry.example/simple" in pip
    assert "extra-index-url = file:///parbench-mirrors/0/simple" in pip
    assert "cert = /parbench-build/certificates.pem" in pip
    assert (build / "certificates.pem").read_text() == "certificate"
    assert f"type=bind,source={index.parent},destination=/parbench-mirrors/0,ro" in mounts
    told = subprocess.run(
        ["sh", "-c", f'. "{build}/machine.sh"; echo "$MIRROR $https_proxy $SOURCE_DATE_EPOCH"'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert told.split() == ["http://mirror.example", "http://proxy.example:3128", images.EPOCH]
    assert (build / "lock.txt").read_bytes() == (
        images.RECIPES / "locks/current/torch.txt"
    ).read_bytes()


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("+ pip\nERROR: No matching distribution found for x==1\nFATAL:   While", "No matching"),
        ("E: Unable to locate package y\nFATAL:   exit status 100", "Unable to locate package y"),
        ("x.cc:1:2: note\nerror: x.cc:1:2: no\nFATAL: z", "x.cc:1:2: no"),
        ("write: No space left on device\nFATAL: z", "No space left on device"),
        ("FATAL:   While performing build: conveyor failed", "While performing build"),
        ("", "it said nothing"),
    ],
)
def test_a_failed_build_says_why_in_one_line(log, reason):
    assert reason in images._reason(log)


def test_too_small_a_disk_is_said_before_anything_is_built(monkeypatch, tmp_path):
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(images, "GIB_WITHOUT", 10**9)
    found = apptainer.Apptainer("/bin/false")
    with pytest.raises(ParbenchError, match=r"GiB are free.*needs.*PARBENCH_CACHE"):
        images._file(images.image("base", "current", SETTINGS), SETTINGS, found)
    assert not [path for path in (tmp_path / "images").iterdir() if path.suffix != ".lock"]


def test_the_bill_of_materials_is_cyclonedx(tmp_path):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    facts = {
        "label": "torch-current-0123",
        "key": "0123456789abcdef",
        "packages": {"torch": "2.15.0", "numpy": "2.4.6"},
        "debian": [["libc6", "2.36-9+deb12u10", "amd64"]],
    }
    sbom.write(tmp_path / "a.json", facts, 1704067200)
    sbom.write(tmp_path / "b.json", facts, 1704067200)
    text = (tmp_path / "a.json").read_text()
    assert text == (tmp_path / "b.json").read_text()
    purls = {part["purl"] for part in json.loads(text)["components"]}
    assert "pkg:pypi/torch@2.15.0" in purls
    assert any(purl.startswith("pkg:deb/debian/libc6@2.36-9") for purl in purls)
    assert JsonStrictValidator(SchemaVersion.V1_5).validate_str(text) is None


# ---- real builds ----


def ready(name, stack="current", unpack=False):
    """The image, built unless the cache has it."""
    require("apptainer")
    images._image.cache_clear()
    return images.ensure(images.image(name, stack, SETTINGS), {**SETTINGS, "unpack": unpack})


@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("name", ["torch", "horovod", "report"])
def test_both_stacks_build_and_pass_their_tests(name, stack):
    """Building runs the recipe's %test: two steps of training, a sum over two ranks, a page."""
    facts = ready(name, stack)
    log = images.folder() / f"{facts['label']}.log"
    if log.exists():  # a build of this cache, not one that was copied here
        assert "INFO:    Running testscript" in log.read_text(errors="replace")
    pins = {"current": "2.15.0", "paper": "2.1.2"}
    if name != "report":
        assert facts["packages"]["torch"] == pins[stack]
        assert facts["packages"]["torchgpipe"] == "0.0.7"
    if name == "horovod":
        assert facts["packages"]["horovod"] == "0.28.1"
    bill = json.loads((images.folder() / f"{facts['label']}.cdx.json").read_text())
    kinds = {part["purl"].split(":")[1].split("/")[0] for part in bill["components"]}
    assert kinds == {"pypi", "deb"}
    assert facts["python"].startswith("3.11.")


class Build:
    """A copy of the project whose recipe `tiny` is built into a cache of its own."""

    def __init__(self, folder: Path, base: dict):
        self.work = Workspace(folder / "a work folder", "apptainer")
        self.cache = folder / "a cache"
        self.folder = self.cache / "images"
        self.folder.mkdir(parents=True)
        for path in images.folder().glob(f"{base['label']}.*"):
            if path.suffix in (".sif", ".json"):
                shutil.copy2(path, self.folder)
        self.recipe = self.work.folder / "containers" / "tiny.def"
        self.recipe.write_text(TINY)

    def variables(self, **more):
        return {"PARBENCH_CACHE": str(self.cache), **more}

    def build(self, check=True, **variables):
        return self.work.run(
            "scripts/images.py", "build", "tiny", check=check, **self.variables(**variables)
        )

    def start(self):
        return subprocess.Popen(
            [sys.executable, "scripts/images.py", "build", "tiny"],
            cwd=self.work.folder,
            env={**os.environ, **self.variables()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def left(self):
        """What lies in the cache beside the base image, its locks and logs."""
        return sorted(
            path.name
            for path in self.folder.iterdir()
            if not path.name.startswith("base-") and path.suffix not in (".lock", ".log")
        )


@pytest.fixture
def tiny(tmp_path):
    return Build(tmp_path, ready("base"))


def test_built_once_and_then_never_again(tiny):
    first = tiny.build()
    assert "building" in first.stderr
    assert first.stdout.strip().endswith(".unpacked")
    second = tiny.build()
    assert second.stderr == ""
    assert second.stdout == first.stdout
    tiny.recipe.write_text(TINY + "\n# a comment\n")
    assert tiny.build().stderr == ""
    tiny.recipe.write_text(TINY.replace("echo parbench", "echo  parbench"))
    assert "building" in tiny.build().stderr
    listed = tiny.work.run("scripts/images.py", "list", **tiny.variables()).stdout
    assert "sha256" in next(line for line in listed.splitlines() if line.startswith("tiny-"))
    assert "missing" in next(line for line in listed.splitlines() if line.startswith("torch-"))


def test_two_at_once_build_once(tiny):
    tiny.recipe.write_text(TINY.replace("echo parbench >", "sleep 2; echo parbench >"))
    both = [tiny.start(), tiny.start()]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("building" in text for text in said) == 1
    assert any("another process makes the image tiny-" in text for text in said)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("apt-get instal nothing", "E: Invalid operation|Invalid operation instal"),
        (
            "/opt/parbench/bin/python -m pip install --disable-pip-version-check --retries 0 "
            "--index-url http://127.0.0.1:9/simple torch",
            "No matching distribution found for torch|Could not find a version",
        ),
        ("echo 'error: the disk sings' >&2; exit 1", "the disk sings"),
    ],
)
def test_a_broken_recipe_leaves_nothing_half_and_the_next_run_goes_on(tiny, line, words):
    import re

    tiny.recipe.write_text(TINY.replace("echo parbench > /tiny", line))
    done = tiny.build(check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = done.stderr[done.stderr.index("error: the image tiny-") :]
    assert re.search(words, last), last
    for word in ("recipe:", "tiny.def", "log:", "deployment: host"):
        assert word in last
    assert tiny.left() == []
    tiny.recipe.write_text(TINY)
    tiny.build()
    assert any(name.endswith(".sif") for name in tiny.left())


def test_a_failed_test_of_a_recipe_is_no_image(tiny):
    tiny.recipe.write_text(TINY.replace("= parbench", "= something"))
    done = tiny.build(check=False)
    assert done.returncode == 2
    assert "cannot be built" in done.stderr
    assert tiny.left() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_build_leaves_nothing_half_and_the_next_run_goes_on(tiny, number):
    tiny.recipe.write_text(TINY.replace("echo parbench >", "sleep 30; echo parbench >"))
    process = tiny.start()
    deadline = time.monotonic() + 60
    log = None
    while time.monotonic() < deadline:
        logs = list(tiny.folder.glob("tiny-*.log"))
        if logs and "sleep 30" in logs[0].read_text(errors="replace"):
            log = logs[0]
            break
        time.sleep(0.1)
    assert log, "the recipe's %post never began"
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode != 0
    deadline = time.monotonic() + 20
    while builders(tiny) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert builders(tiny) == []
    assert not list(tiny.folder.glob("tiny-*.sif"))
    tiny.recipe.write_text(TINY.replace("echo parbench >", "sleep 0; echo parbench >"))
    tiny.build()
    assert not list(tiny.folder.glob("*.part"))


def test_a_build_killed_while_it_wrote_the_image_is_made_anew(tiny):
    tiny.build()
    (file,) = tiny.folder.glob("tiny-*.sif")
    file.with_suffix(".sif.part").write_bytes(file.read_bytes()[:1000])
    file.unlink()
    assert "building" in tiny.build().stderr
    assert file.exists()
    assert not list(tiny.folder.glob("*.part"))


def builders(build):
    """Processes that still build into this cache."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(str(build.folder).encode() in word for word in words) and b"build" in words:
            found.append((path.parent.name, words))
    return found


def test_a_damaged_image_is_noticed_and_made_anew(tiny):
    tiny.build()
    (file,) = tiny.folder.glob("tiny-*.sif")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    shown = tiny.work.run("scripts/images.py", "verify", check=False, **tiny.variables())
    assert shown.returncode == 1
    assert f"DAMAGED; delete {file}" in shown.stdout
    done = tiny.build()
    assert f"{file} is damaged" in done.stderr
    assert "building" in done.stderr
    assert tiny.build().stderr == ""
    file.write_bytes(file.read_bytes()[:1000])  # a copy that was cut off
    assert "is damaged" in tiny.build().stderr


def test_an_image_that_was_copied_is_taken_as_it_is(tiny):
    tiny.build()
    (file,) = tiny.folder.glob("tiny-*.sif")
    os.utime(file, (1, 1))
    assert tiny.build().stderr == ""


def test_a_full_disk_is_said(tiny, tmp_path):
    place = tmp_path / "small disk"
    place.mkdir()
    size = sum(path.stat().st_size for path in tiny.folder.iterdir()) + 30 * 2**20
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        shutil.copytree(tiny.folder, place / "images")
        tiny.cache, tiny.folder = place, place / "images"
        program = (
            "import sys; sys.path.insert(0, 'scripts'); import images, errors; "
            "images.GIB_WITHOUT = images.GIB_WITH_TORCH = 0; "
            "sys.argv = ['images.py', 'build', 'tiny']; errors.run_main(images.main)"
        )
        done = tiny.work.run("-c", program, check=False, **tiny.variables())
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert "o space left on device" in done.stderr or "the disk is full" in done.stderr
        assert tiny.left() == []
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


# ---- signatures ----


def new_key(folder, name):
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    subprocess.run(
        ["openssl", "genrsa", "-out", str(private), "2048"], check=True, capture_output=True
    )
    subprocess.run(
        ["openssl", "rsa", "-in", str(private), "-pubout", "-out", str(public)],
        check=True,
        capture_output=True,
    )
    return private, public


def test_a_signature_is_asked_for(tiny, tmp_path):
    private, public = new_key(tmp_path, "mine")
    _, other = new_key(tmp_path, "other")
    tiny.work.edit("config.yaml", "public_key: null", f"public_key: '{public}'")
    done = tiny.build(check=False)
    assert done.returncode == 2
    assert "PARBENCH_SIGNING_KEY" in done.stderr
    assert tiny.left() == []
    done = tiny.build(PARBENCH_SIGNING_KEY=str(private))
    assert "building" in done.stderr
    assert tiny.build().stderr == ""  # whoever runs it needs no private key
    tiny.work.edit("config.yaml", str(public), str(other))
    done = tiny.build(check=False)
    assert done.returncode == 2
    assert f"carries no valid signature of {other}" in done.stderr
    assert "images.public_key" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unsigned_image_that_stands_in_is_refused(tiny, tmp_path):
    tiny.build()
    (file,) = tiny.folder.glob("tiny-*.sif")
    mine = tmp_path / "mine.sif"
    shutil.copy(file, mine)
    tiny.work.edit("config.yaml", "given: {}", f"given: {{tiny: {mine}}}")
    done = tiny.build()
    assert "building" not in done.stderr
    private, public = new_key(tmp_path, "mine")
    tiny.work.edit("config.yaml", "public_key: null", f"public_key: '{public}'")
    done = tiny.build(check=False)
    assert done.returncode == 2
    assert f"{mine} carries no valid signature" in done.stderr
    sign = [apptainer.probe().program, "sign", "--key", str(private), str(mine)]
    subprocess.run(sign, check=True, capture_output=True)
    tiny.build()


# ---- an image of a registry ----


class Registry(BaseHTTPRequestHandler):
    """As much of a registry as a pull by digest asks for."""

    content: ClassVar[dict[str, tuple[str, bytes]]] = {}

    def do_GET(self):
        kind, body = self.content.get(self.path.rpartition("/")[2], ("", b""))
        if self.path != "/v2/" and not body:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if kind:
            self.send_header("Docker-Content-Digest", f"sha256:{hashlib.sha256(body).hexdigest()}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *words):
        pass


@pytest.fixture
def registry():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Registry.content = {}
    yield server
    server.shutdown()


def put(kind, body):
    digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
    Registry.content[digest] = (kind, body)
    return {"mediaType": kind, "digest": digest, "size": len(body)}


def test_an_image_of_a_registry_is_taken_by_its_digest(tiny, registry):
    tiny.build()
    (file,) = tiny.folder.glob("tiny-*.sif")
    manifest = {
        "schemaVersion": 2,
        "config": put("application/vnd.sylabs.sif.config.v1+json", b"{}"),
        "layers": [
            {
                **put("application/vnd.sylabs.sif.layer.v1.sif", file.read_bytes()),
                "annotations": {"org.opencontainers.image.title": "tiny.sif"},
            }
        ],
    }
    kind = "application/vnd.oci.image.manifest.v1+json"
    digest = put(kind, json.dumps(manifest).encode())["digest"]
    address = f"oras://127.0.0.1:{registry.server_port}/tiny@{digest}"
    tiny.work.edit("config.yaml", "given: {}", f"given: {{tiny: '{address}'}}")
    done = tiny.build()
    assert f"fetching {address}" in done.stderr
    assert "building" not in done.stderr
    pulled = tiny.folder / f"tiny-current-{digest[7:19]}.sif"
    assert pulled.exists()
    assert tiny.build().stderr == ""

    layer = manifest["layers"][0]["digest"]
    Registry.content[layer] = (Registry.content[layer][0], b"x" * len(file.read_bytes()))
    for path in tiny.folder.glob(f"*{digest[7:19]}*"):
        if path.is_dir():
            images._remove(path)
        else:
            path.unlink()
    done = tiny.build(check=False)
    assert done.returncode == 2
    assert "cannot be fetched" in done.stderr
    assert "images.given.tiny" in done.stderr
    assert not list(tiny.folder.glob(f"*{digest[7:19]}*.sif"))


# ---- isolation ----


def inside(program, folder, **variables):
    """What a Python program prints inside the image `report`, started by this process."""
    require("apptainer")
    wanted = images.image("report", "current", SETTINGS)
    images.ensure(wanted, {**SETTINGS, "unpack": True})
    done = subprocess.run(
        [
            *(sys.executable, str(config.ROOT / "scripts/images.py"), "run", "report", "--"),
            *("python", "-c", program),
        ],
        cwd=config.ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_of_the_host_is_seen_inside(tmp_path):
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "spy.py").write_text("")
    (planted / "sitecustomize.py").write_text("import builtins; builtins.spied = True")
    home = tmp_path / "home"
    user = home / ".local/lib/python3.11/site-packages"
    user.mkdir(parents=True)
    (user / "usercustomize.py").write_text("import builtins; builtins.spied = True")
    (user / "spy.py").write_text("")
    seen = inside(
        "import builtins, importlib.util, json, os, sys\n"
        "print(json.dumps({'spy': importlib.util.find_spec('spy') is not None,"
        " 'spied': hasattr(builtins, 'spied'), 'path': sys.path, 'prefix': sys.prefix,"
        " 'environment': sorted(os.environ), 'home': os.path.exists(os.environ['SECRET_PLACE'])"
        " if 'SECRET_PLACE' in os.environ else None, 'tmp': os.listdir('/tmp'),"
        f" 'planted': os.path.exists({str(planted)!r}), 'root': os.access('/etc', os.W_OK)}}))",
        tmp_path,
        PYTHONPATH=str(planted),
        HOME=str(home),
        SECRET_PLACE=str(planted),
        APPTAINER_BIND=str(planted),
        APPTAINERENV_SECRET_PLACE="x",
    )
    assert not seen["spy"]
    assert not seen["spied"]
    assert not seen["planted"]
    assert seen["prefix"] == "/opt/parbench"
    assert not any("site-packages" in p and not p.startswith("/opt/parbench") for p in seen["path"])
    assert "SECRET_PLACE" not in seen["environment"]
    assert "PYTHONPATH" not in seen["environment"]
    assert seen["tmp"] == []


def test_files_belong_to_who_started_it(tmp_path):
    file = config.ROOT / "results" / "owner.part"
    file.parent.mkdir(exist_ok=True)
    try:
        inside(f"open({str(file)!r}, 'w').write('x'); print('1')", tmp_path)
        status = file.stat()
        assert (status.st_uid, status.st_gid) == (os.getuid(), os.getgid())
        assert stat.S_IMODE(status.st_mode) & 0o600 == 0o600
    finally:
        file.unlink(missing_ok=True)


def test_gpu_flags_are_for_cells_on_a_gpu(tmp_path):
    found = apptainer.Apptainer("/usr/bin/apptainer", "1.4.5", ("--userns",))
    for gpu in (False, True):
        command, _ = apptainer.enter(
            found, tmp_path / "x.sif", ["true"], binds=[], variables={}, gpu=gpu
        )
        assert ("--nv" in command) == gpu


# ---- users ----


@pytest.mark.parametrize("fuse", [True, False], ids=["with /dev/fuse", "without /dev/fuse"])
def test_an_ordinary_user_runs_images(tmp_path, fuse):
    require("apptainer")
    if os.geteuid() != 0:
        pytest.skip("becoming another user takes root")
    place = Path("/var/tmp") / f"parbench-user-{os.getpid()}"  # pytest's folders are root's alone
    shutil.copytree(
        config.ROOT / "scripts", place / "scripts", ignore=shutil.ignore_patterns("__pycache__")
    )
    (place / "home").mkdir()
    for path in [place, *place.rglob("*")]:
        os.chown(path, 65534, 65534)
    become = "exec setpriv --reuid=65534 --regid=65534 --clear-groups "
    program = (
        "import sys; sys.path.insert(0, 'scripts'); import apptainer; found = apptainer.probe(); "
        "print(found.trouble, found.unpacked)"
    )
    python = shutil.which("python3", path="/usr/bin")
    if python is None:
        pytest.skip("no system Python that another user may run")
    if not Path("/dev/fuse").exists():
        pytest.skip("this machine has no /dev/fuse")
    # Its own, in a mount namespace: the machine's stays as it is.
    device = place / "fuse"
    subprocess.run(
        ["mknod", "-m", "666" if fuse else "600", str(device), "c", "10", "229"], check=True
    )
    hide = f"mount --bind {device} /dev/fuse && "
    try:
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", f'{hide}{become}{python} -B -c "{program}"'],
            cwd=place,
            env={
                "PATH": "/usr/local/bin:/usr/bin:/bin",
                "HOME": str(place / "home"),
                "PARBENCH_CACHE": str(place / "home/cache"),
                "TMPDIR": str(place / "home"),
            },
            capture_output=True,
            text=True,
        )
    finally:
        shutil.rmtree(place)
    assert done.stdout.split() == ["None", str(not fuse)], done.stdout + done.stderr


# ---- reproducibility ----


def listing(folder):
    """Every file of an unpacked image: its kind, mode, and the digest of what it holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        what = ""
        if stat.S_ISLNK(status.st_mode):
            what = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            what = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = (stat.filemode(status.st_mode), what)
    return found


# What differs between two builds, each with its reason in docs/images.md.
DIFFERS = {
    ".singularity.d/Singularity",
    ".singularity.d/bootstrap_history/Apptainer1",
    ".singularity.d/labels.json",
}


def test_the_report_image_built_twice_is_the_same(tmp_path, monkeypatch):
    first = Path(ready("report", unpack=True)["path"])
    before = listing(first)
    another = tmp_path / "another cache"
    (another / "images").mkdir(parents=True)
    for path in images.folder().glob(f"{ready('base')['label']}.*"):
        if path.suffix in (".sif", ".json"):
            shutil.copy2(path, another / "images")
    monkeypatch.setenv("PARBENCH_CACHE", str(another))
    second = Path(ready("report", unpack=True)["path"])
    assert cache.folder() in second.parents
    after = listing(second)
    assert before.keys() == after.keys()
    different = {name for name in before if before[name] != after.get(name)}
    assert different <= DIFFERS, sorted(different)[:50]


# ---- cells in images ----

STUDY = small_study(
    "Four cells",
    "resnet18: {}",
    """
eager: {strategy: eager, hardware: cpu1}
gpipe-2: {strategy: gpipe, options: {balance: [2]}, hardware: cpu1, baseline: eager}
ddp: {strategy: ddp, hardware: cpu2, baseline: eager}
horovod: {strategy: horovod, hardware: cpu2, baseline: eager}
""",
)
AFTER = {"table": 1, "report": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A work folder in which the small study has been run in images, without any network."""
    for name in ("torch", "horovod", "report"):
        ready(name)
    work = Workspace(tmp_path_factory.mktemp("images") / "a work, folder", "auto")
    (work.folder / "studies/four.yaml").write_text(STUDY)
    work.edit("config.yaml", "studies: [quickstart]", "studies: [four]")
    asked = {"image": 3, "dataset": 1, "train": 4, "certificate": 2}
    assert work.jobs() == {**asked, **AFTER}
    # Loopback alone, as a cell needs it; the program brings it up by itself.
    up = (
        "import fcntl, os, socket, struct, sys\n"
        "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "fcntl.ioctl(s, 0x8914, struct.pack('16sh14x', b'lo', 1 | 64))\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'snakemake', *sys.argv[1:]])"
    )
    alone = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
    done = subprocess.run(
        [*alone, sys.executable, "-c", up, "--quiet", "all"],
        cwd=work.folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return work, done.stdout + done.stderr


def metrics_of(work):
    files = sorted((work.folder / "results/cells").glob("*/metrics.json"))
    return {path.parent.name: json.loads(path.read_text()) for path in files}


def test_cells_run_in_images_without_network_and_say_in_which(finished):
    work, said = finished
    assert "cells run in Apptainer images, stack current" in said
    found = metrics_of(work)
    assert len(found) == 4
    html = (work.folder / "reports/final.html").read_text()
    for name, metrics in found.items():
        environment = metrics["environment"]
        image = "horovod" if ".horovod." in name else "torch"
        assert environment["image"] == images.image(image, "current", SETTINGS).label
        facts = json.loads((images.folder() / f"{environment['image']}.json").read_text())
        assert environment["image_digest"] == facts["sha256"]
        assert environment["deployment"] == "apptainer"
        assert environment["python"] == facts["python"]
        assert environment["lock_mismatch"] == []
        assert environment["machine"]["os"] == machine.operating_system()
        assert metrics["cell"]["deployment"] == "apptainer"
        assert environment["image"] in html
        assert environment["image_digest"] in html


def test_files_of_a_run_belong_to_who_started_it(finished):
    work, _ = finished
    foreign = [
        path
        for part in ("results", "reports")
        for path in (work.folder / part).rglob("*")
        if path.lstat().st_uid != os.getuid()
    ]
    assert foreign == []


def test_nothing_changed_nothing_runs(finished):
    work, _ = finished
    assert work.jobs() == {}
    assert work.jobs("--sdm", "apptainer") == {}


def edited(path, change):
    """Within: the file is another; after: it is as it was."""
    import contextlib

    @contextlib.contextmanager
    def within():
        content, status = path.read_bytes(), path.stat()
        path.write_text(change(path.read_text()))
        try:
            yield
        finally:
            path.write_bytes(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    return within()


def test_a_changed_recipe_runs_its_cells_again_and_no_other(finished):
    work, _ = finished
    recipes = work.folder / "containers"
    more = "\n%runscript\n    exec true\n"
    with edited(recipes / "horovod.def", lambda text: text + more):
        assert work.jobs() == {"image": 1, "train": 1, "certificate": 1, **AFTER}
        why = work.run("scripts/cells.py", "why", "horovod").stdout
        assert "image horovod changed" in why
    with edited(recipes / "torch.def", lambda text: text + more):
        assert work.jobs() == {"image": 2, "train": 4, "certificate": 2, **AFTER}
    with edited(recipes / "report.def", lambda text: text + more):
        assert work.jobs() == {"image": 1, **AFTER}
    with edited(recipes / "torch.def", lambda text: text + "# a comment\n"):
        assert work.jobs() == {}
    with edited(recipes / "locks/current/horovod.txt", lambda text: text + "# renewed\n"):
        assert work.jobs() == {"image": 1, "train": 1, "certificate": 1, **AFTER}


def test_host_and_image_are_different_cells(finished):
    work, _ = finished
    before = set(metrics_of(work))
    listed = work.run("scripts/cells.py", "list").stdout
    assert all(name in listed for name in before)
    with edited(
        work.folder / "config.yaml",
        lambda text: text.replace("deployment: auto", "deployment: host"),
    ):
        listed = work.run("scripts/cells.py", "list").stdout
        assert not any(name in listed for name in before)
        assert work.jobs() == {"train": 4, "certificate": 1, **AFTER}


def test_the_command_of_a_cell_enters_its_image(finished):
    work, _ = finished
    line = work.run("scripts/cells.py", "command", "eager").stdout.strip()
    label = images.image("torch", "current", SETTINGS).label
    assert f"{label}.sif" in line or f"{label}.unpacked" in line
    assert "--nv" not in line
    name, before = next(item for item in metrics_of(work).items() if ".eager." in item[0])
    done = subprocess.run(
        ["sh", "-c", line], cwd=work.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    after = metrics_of(work)[name]
    assert after["test_accuracy"] == before["test_accuracy"]


def test_a_killed_rank_in_an_image_is_told(finished):
    """The launcher follows processes inside as it does outside."""
    work, _ = finished
    loop = "        for epoch in range(self.place.epoch, epochs):\n"
    assert loop in (work.folder / "scripts/train.py").read_text()
    dies = "        if self.strategy.rank == 1:\n            os.kill(os.getpid(), 9)\n"
    with edited(work.folder / "scripts/train.py", lambda text: text.replace(loop, dies + loop)):
        name = next(name for name in metrics_of(work) if ".ddp." in name)
        home = f"results/cells/{name}"
        done = work.run(
            *("scripts/launch.py", "--cell", f"{home}/cell.json", "--data", "results/data/digits"),
            *("--out", f"{home}/again.json", "--log", f"{home}/again.txt"),
            check=False,
        )
    assert done.returncode == 1
    assert "rank 1 of 2 died: killed by signal 9 (SIGKILL)" in done.stderr
