"""An archive for a machine without network: what goes in, and what `make` does with it there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from parbench.__main__ import main
from parbench.deploy import apptainer, bundle, host_environment, uv
from parbench.errors import ParbenchError
from parbench.workflow import minutes
from require import require
from test_environment import Clone, tiny_wheel, uv_wheel
from workspace import ROOT, Workspace, small_study


def git(folder: Path, *words: str) -> str:
    names = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    command = ["git", "-C", str(folder), *names, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """Return a small repository, in a folder with blanks, that replaces this checkout."""
    folder = tmp_path / "a check out"
    (folder / "studies").mkdir(parents=True)
    (folder / "studies" / "one.yaml").write_text("title: One\n")
    (folder / "run.sh").write_text("true\n")
    (folder / "run.sh").chmod(0o755)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    monkeypatch.setattr(bundle, "ROOT", folder.resolve())
    return folder


def test_what_would_not_travel_is_refused(checkout):
    bundle.require_clean()
    (checkout / "mine.yaml").write_text("x")
    with pytest.raises(ParbenchError, match=r"has uncommitted changes: mine.yaml; commit them"):
        bundle.require_clean()


def test_the_archive_is_the_commit_and_what_it_needs(checkout, tmp_path, monkeypatch):
    data = checkout / "results" / "data" / "tiny"
    data.mkdir(parents=True)
    (data / "data.safetensors").write_bytes(b"data")

    def fetch(stack: str, place: Path, names: set[str] | None) -> None:
        (place / "wheels").mkdir()
        tiny_wheel(place / "wheels")

    monkeypatch.setattr(bundle, "fetch_wheels", fetch)
    bundle.write(tmp_path / "x.tar", bundle.Contents("current", [], ["results/data/tiny"]))
    (tmp_path / "there").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "x.tar", "-C", tmp_path / "there"], check=True)
    there = next((tmp_path / "there").iterdir())
    assert git(there, "rev-parse", "HEAD") == git(checkout, "rev-parse", "HEAD")
    assert str(checkout) not in (there / ".git/config").read_text()
    assert os.access(there / "run.sh", os.X_OK)
    assert (there / "results/data/tiny/data.safetensors").read_bytes() == b"data"
    assert (there / "bundle/wheels/tiny-1.0-py3-none-any.whl").is_file()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


# ---------------------------------------------------------------- on the other machine


@pytest.fixture
def offline(tmp_path) -> Clone:
    """Return a clone with a bundle and no other source of packages."""
    clone = Clone(tmp_path)
    folder = clone.root / "bundle"
    (folder / "wheels").mkdir(parents=True)
    tiny, uv = tiny_wheel(folder / "wheels"), uv_wheel(folder / "wheels")
    lines = [f"tiny==1.0 --hash=sha256:{hashlib.sha256(tiny.read_bytes()).hexdigest()}\n"]
    lines += [f"uv==9.9 --hash=sha256:{hashlib.sha256(uv.read_bytes()).hexdigest()}\n"]
    (folder / "tiny.txt").write_text("".join(lines))
    shutil.rmtree(clone.links)
    return clone


def test_packages_come_from_the_bundle_alone(offline):
    nowhere = {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    done = offline.run("ensure", "--stack", "tiny", "horovod", **nowhere)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(offline.root / "bundle" / "cache")
    assert "the machine that wrote bundle/ had no Horovod" in done.stderr


# ---------------------------------------------------------------- the whole way

STUDY = small_study(
    "One cell", "simple_cnn: {}", "eager: {strategy: eager, hardware: cpu1}"
)  # fmt: skip
GB_NEEDED = 18
MOST_VISITS = 20
# Fail if there is another network device: the test would mean nothing.
ALONE = ("unshare", "-n", "sh", "-c")
WITHOUT_NETWORK = "ip link set lo up && test $(grep -c : /proc/self/net/dev) = 1 && "


@pytest.fixture
def scratch(tmp_path):
    """Yield a folder for gigabytes, deleted afterwards: pytest keeps its folders for three runs."""
    yield tmp_path / "scratch"
    shutil.rmtree(tmp_path / "scratch", ignore_errors=True)


@pytest.mark.whole
def test_a_machine_without_network_makes_the_report(scratch):
    """Two minutes, 18 GB of disk: bundled here, unpacked elsewhere, run with the bundle's cache."""
    require("apptainer")
    if problem := apptainer.probe().problem:
        pytest.skip(problem)
    require_unshare()
    scratch.mkdir()
    if shutil.disk_usage(scratch).free < GB_NEEDED * 1e9:
        pytest.skip(f"{scratch}: less than {GB_NEEDED} GB are free")

    work = Workspace(scratch / "here", "apptainer")
    work.edit("config.yaml", "unpack: true", "unpack: false")  # 6 GB less
    commit = committed(work, STUDY)
    there = carried(work, scratch)
    make(there, [*ALONE, WITHOUT_NETWORK + "make report"], alone(scratch))
    for name in ("final.html", "final.pdf"):
        assert (there / "reports" / name).stat().st_size > 10_000
    (metrics,) = (there / "results" / "cells").glob("*/metrics.json")
    environment = json.loads(metrics.read_text())["environment"]
    assert (there / "bundle/cache/images" / f"{environment['image']}.sif").is_file()
    assert (environment["git_commit"], environment["git_dirty"]) == (commit, False)
    assert not (scratch / "another").exists()


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> Path:
    """Make a Python that has just what a bare bundle asks for, and pip; return its folder."""
    folder = tmp_path_factory.mktemp("bare")
    lock = (ROOT / "containers/locks/current/host.txt").read_text()
    pins = re.findall(r"^([\w.-]+==[^\s;\\]+)", lock, re.MULTILINE)
    (folder / "pins.txt").write_text("\n".join(pins))
    program, python = Path(sys.prefix, "bin", "uv"), str(folder / "bin" / "python")
    words = ["venv", "--quiet", "--seed", "--allow-existing", "--python", sys.executable]
    uv.run(program, [*words, str(folder)])
    words = ["pip", "install", "--python", python, "--constraints", str(folder / "pins.txt")]
    uv.run(program, [*words, *host_environment.BARE])
    return folder


@pytest.mark.whole
def test_a_bare_machine_measures_for_minutes_and_goes_on(bare, tmp_path):
    """Five minutes: a machine with torch and without network is cut off after one, and again."""
    require_unshare()
    work = Workspace(tmp_path / "here")
    variants = """
short: {strategy: eager, hardware: cpu1}
long: {strategy: eager, hardware: cpu1, settings: {epochs: 5000}}
"""
    commit = committed(work, small_study("One is cut off", "resnet18: {}", variants))
    there = carried(work, tmp_path, "--bare")
    path = os.pathsep.join([str(bare / "bin"), "/usr/bin", "/bin"])
    variables = alone(tmp_path) | {"PATH": path}
    make(there, [*ALONE, WITHOUT_NETWORK + "make env"], variables)
    kept: list[tuple[int, int]] = []
    for _ in range(MOST_VISITS):  # a busy machine may not begin to train within a minute
        command = [*ALONE, WITHOUT_NETWORK + "make measure MINUTES=1"]
        done = subprocess.run(
            command, cwd=there, env=variables, capture_output=True, text=True, check=False
        )
        said = done.stdout + done.stderr
        assert done.returncode != 0, said
        assert "parbench: 1 minutes are over; running cells write a checkpoint and end" in said
        assert re.search(
            r"(of the \d cells that were left are done|no cell had begun yet); the same", said
        )
        stopped = re.search(r"a checkpoint at epoch (\d+) step (\d+) is kept", said)
        kept += [(int(stopped[1]), int(stopped[2]))] if stopped else []
        if len(kept) > 1 and (results := list(there.glob("results/cells/*/metrics.json"))):
            break
    assert kept[0] < kept[1], said
    (result,) = results
    make(there, [*ALONE, WITHOUT_NETWORK + "make evidence ARGS='--partial one'"], variables)
    (file,) = (there / "reports" / "evidence").glob("one-*.json")
    shutil.copy(file, work.folder / "reports" / "evidence")
    brought = json.loads(file.read_text())
    assert list(brought["cells"]) == [result.parent.name]
    assert [entry["git_commit"] for entry in brought["environments"]] == [commit]
    assert len(brought["missing"]) == 1


@pytest.mark.whole
def test_a_bare_bundle_that_is_too_large_names_its_largest_parts(tmp_path):
    work = Workspace(tmp_path / "here")
    committed(work, STUDY)
    words = ["bundle", "--bare", "--most-mib", "1", "--out", str(tmp_path)]
    done = work.parbench(*words, check=False)
    assert done.returncode == 2
    assert re.search(r"has \d+ MiB, but --most-mib is 1; its largest parts are pulp-", done.stderr)
    assert list(tmp_path.glob("parbench-*")) == []


def test_a_command_ends_after_its_minutes_and_its_cells_are_counted(tmp_path, monkeypatch, capfd):
    asked = "trap 'echo asked; exit 3' INT; while :; do sleep 0.1; done"
    monkeypatch.chdir(tmp_path)
    assert minutes.run(["sh", "-c", asked], 0.01) == 1
    said = capfd.readouterr()
    assert said.out == "asked\n"
    assert "no cell had begun yet; the same command goes on from here" in said.err
    assert minutes.run(["sh", "-c", "exit $KEY"], 60, {"KEY": "3"}) == 3


def test_a_report_whose_minutes_are_over_is_made_of_what_is_done(monkeypatch):
    asked = []
    monkeypatch.setattr(minutes, "run", lambda *given: asked.append(given))
    monkeypatch.chdir(ROOT)
    for name in ("report", "run"):
        main([name, "--minutes", "9"])
    (report, limit, variables), (run, *more) = asked
    assert (report[-1], limit, variables) == ("report", 9, {"PARBENCH_REPORT_WHEN_STOPPED": "1"})
    assert (run[-1], more) == ("run", [9])


def require_unshare() -> None:
    for command in (["unshare", "-n", "true"], ["ip", "-V"]):
        with contextlib.suppress(OSError):
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                continue
        pytest.skip(f"{' '.join(command)} does not work here")


def committed(work: Workspace, study: str) -> str:
    """Make a repository of the copy, whose only study is ``study``; return the commit."""
    for name in ("Makefile", ".gitignore"):
        shutil.copy(ROOT / name, work.folder / name)
    (work.folder / "studies" / "one.yaml").write_text(study)
    work.edit("config.yaml", "studies: [quickstart]", "studies: [one]")
    git(work.folder, "init", "--quiet")
    git(work.folder, "add", ".")
    git(work.folder, "commit", "--quiet", "--message", "first")
    return git(work.folder, "rev-parse", "HEAD")


def carried(work: Workspace, scratch: Path, *words: str) -> Path:
    """Bundle the copy, unpack it elsewhere and return its folder there."""
    make(work.folder, ["make", "bundle", f"ARGS={shlex.join([*words, '--out', str(scratch)])}"],
         plain())  # fmt: skip
    (archive,) = scratch.glob("parbench-*.tar*")
    if not words:
        shutil.rmtree(work.folder)
    far = scratch / "far away"
    far.mkdir()
    subprocess.run(["tar", "xf", archive], cwd=far, check=True)
    archive.unlink()
    return next(far.iterdir())


def plain() -> dict[str, str]:
    """Return the variables of a user: without the environment of these tests on PATH."""
    own = str(Path(sys.prefix) / "bin")
    path = os.pathsep.join(p for p in os.environ["PATH"].split(os.pathsep) if p != own)
    return {**os.environ, "PATH": path}


def alone(scratch: Path) -> dict[str, str]:
    """Return the variables of a machine without network."""
    kept = {key: value for key, value in plain().items() if not key.startswith("PIP_")}
    return kept | {"PARBENCH_CACHE": str(scratch / "another"), "PIP_CONFIG_FILE": os.devnull}


def make(folder: Path, command: list[str], variables: dict[str, str]) -> None:
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
