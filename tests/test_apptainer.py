"""Apptainer: the probe for how this machine runs an image; the command that enters one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from parbench.deploy import apptainer
from parbench.errors import ParbenchError
from parbench.launch import cell_commands
from parbench.launch.devices import LockedDevices
from require import require
from training import altered, cell

RIGHTS = """\
INFO:    Using cached SIF image
\x1b[91mFATAL:   Requesting capability set 0x000001ffffffffff while permitted capability set is 0x0
\x1b[0m"""


@pytest.fixture(autouse=True)
def _probed_anew():
    """Clear the probe's cache: each test probes for itself."""
    apptainer.probe.cache_clear()
    yield
    apptainer.probe.cache_clear()


@pytest.fixture
def stub(monkeypatch, tmp_path) -> Callable[..., Path]:
    """Return a function that puts an `apptainer` that runs ``body`` first on PATH."""

    def make(body: str = "exit 0", version: str = "1.4.5") -> Path:
        (tmp_path / "said.txt").write_text(RIGHTS)
        program = tmp_path / "bin" / "apptainer"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && {{ echo "apptainer version {version}"; exit; }}\n'
            + body.replace("fail", f"cat '{tmp_path}/said.txt' >&2; exit 255")
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        apptainer.probe.cache_clear()
        return program

    return make


def test_none_is_said_with_what_installs_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "debian"})
    assert apptainer.probe().problem.startswith("Apptainer is not installed; sudo make system")


@pytest.mark.parametrize(
    ("body", "flags"), [("exit 0", ("--userns",)), ('case "$*" in *--userns*) fail;; esac', ())]
)
def test_the_first_way_that_works_is_taken(stub, body, flags):
    program = stub(body)
    assert apptainer.probe() == apptainer.Apptainer(str(program), "1.4.5", flags)


def test_when_every_way_fails_the_trouble_is_apptainers_own_reason(stub, monkeypatch):
    stub("fail")
    found = apptainer.probe()
    assert found.problem == (
        "Apptainer 1.4.5 cannot run images here: Requesting capability set 0x000001ffffffffff "
        "while permitted capability set is 0x0. docs/images.md: Trouble"
    )
    with pytest.raises(ParbenchError, match="deployment: apptainer, but Apptainer 1.4.5 cannot"):
        apptainer.require("config.yaml: deployment: apptainer")
    monkeypatch.setattr(apptainer, "SECONDS", 0.2)
    stub("exec sleep infinity")
    assert "timed out" in apptainer.probe().problem


# ---------------------------------------------------------------- the command


def test_paths_of_any_name_are_seen_inside_and_nothing_else_is(monkeypatch, tmp_path):
    require("apptainer")
    assert apptainer.probe().problem is None
    for name in ("dev", "etc", "proc", "sys", "tmp", "var/tmp"):
        (tmp_path / "image" / name).mkdir(parents=True)
    odd, hidden = tmp_path / "a b,c \"d\" 'e' ü", tmp_path / "hidden"
    for folder in (odd, hidden):
        folder.mkdir()
        (folder / "file").write_text("seen")
    monkeypatch.setenv("APPTAINER_BIND", str(hidden))
    monkeypatch.setenv("APPTAINERENV_SECRET", "told, too")
    # The image is empty: the shell comes from this machine's folders.
    programs = [Path(path) for path in ("/bin", "/usr", "/lib", "/lib64") if Path(path).exists()]
    script = f'cat file; echo made >made; test -e "{hidden}" || echo "; $X; $SECRET; $PWD"'
    monkeypatch.setenv("SECRET", "told")
    command, environment = apptainer.enter(
        tmp_path / "image",
        ["/bin/sh", "-c", script],
        binds=[odd, *programs],
        variables={"X": "a,b c", "PATH": "/usr/bin:/bin"},
        folder=odd,
    )
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == f"seen; a,b c; ; {odd}\n", done.stderr
    assert (odd / "made").stat().st_uid == os.getuid()


def test_an_ordinary_user_runs_images(tmp_path):
    require("apptainer")
    python = shutil.which("python3", path="/usr/bin") or pytest.skip("no system Python")
    other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    place = Path("/var/tmp") / f"parbench-user-{os.getpid()}"  # pytest's folders are root's alone
    shutil.copytree(Path(apptainer.__file__).parents[2], place / "scripts")
    try:
        program = (
            "import sys; sys.path.insert(0, 'scripts'); from parbench.deploy import apptainer; "
            "print(apptainer.probe().problem)"
        )
        words = [*(other if os.geteuid() == 0 else []), python, "-B", "-c"]
        variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/var/tmp"}
        done = subprocess.run(
            [*words, program], cwd=place, env=variables, capture_output=True, text=True
        )
    finally:
        shutil.rmtree(place)
    assert done.stdout == "None\n", done.stdout + done.stderr


def test_gpu_ranks_in_an_image_reach_the_sites_network(stub, tmp_path, monkeypatch):
    """InfiniBand's devices where there are some, and what the site says to NCCL."""
    stub()
    monkeypatch.setattr(cell_commands, "INFINIBAND", tmp_path)
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5_0")
    value = altered(cell("ddp"), hardware={"device": "cuda", "nodes": 2})
    paths = [tmp_path / "cells" / name for name in ("cell.json", "metrics.json", "log.txt")]
    task = cell_commands.Task(value, paths[0], tmp_path / "data", *paths[1:])
    for device, reached in (("cuda", True), ("cpu", False)):
        side = altered(value, hardware={"device": device})
        made = cell_commands.programs(
            replace(task, cell=side),
            0,
            None,
            LockedDevices(("GPU-1",), ("0",)),
            tmp_path / "image.sif",
            tmp_path / "state",
            {},
        )
        assert len(made) == 2
        for program in made.values():
            assert (apptainer.mount(tmp_path) in program.arguments) == reached
            assert ("--nv" in program.arguments) == reached
            assert program.environment.get("APPTAINERENV_NCCL_IB_HCA") == (
                "mlx5_0" * reached or None
            )
