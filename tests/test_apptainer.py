"""Apptainer: how this machine runs an image, found by a probe; the command that enters one."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from parbench.deploy import apptainer
from parbench.errors import ParbenchError
from require import require

RIGHTS = """\
INFO:    Using cached SIF image
FATAL:   Requesting capability set 0x000001ffffffffff while permitted capability set is \
0x000001fffeffffff
"""
NAMESPACES = """\
ERROR  : Failed to create user namespace: maximum number of user namespaces exceeded, check \
/proc/sys/user/max_user_namespaces
"""
FUSE = """\
\x1b[91mFATAL:   container creation failed: image driver mount failure: image driver squashfuse_ll \
instance exited with error: squashfuse_ll exited: fuse: failed to open /dev/fuse: Permission denied
\x1b[0m"""


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch, tmp_path):
    """Each test asks for itself, and finds no Apptainer but its own."""
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PARBENCH_APPTAINER_PREFIX", str(tmp_path / "no prefix"))
    monkeypatch.delenv("PARBENCH_APPTAINER", raising=False)
    apptainer.probe.cache_clear()
    yield
    apptainer.probe.cache_clear()


@pytest.fixture
def stub(monkeypatch, tmp_path) -> Callable[..., Path]:
    """Put an `apptainer` first on PATH, which notes its words and does what ``body`` says."""

    def make(body: str = "exit 0", version: str = "1.4.5") -> Path:
        program = tmp_path / "bin" / "apptainer"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            "#!/bin/sh\n"
            f'[ "$1" = --version ] && {{ echo "apptainer version {version}"; exit; }}\n'
            f'echo "$*" >>"{tmp_path}/calls"\n'
            # `build FILE FOLDER` leaves a file, as it does where there is a mksquashfs
            f'[ "$1" = build ] && {{ : >"$2"; exit; }}\n{body}\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        return program

    return make


def saying(tmp_path: Path, **answers: str) -> str:
    """The body of a stub that fails with a text, by a word of the command line or ``rest``."""
    cases = ""
    for word, text in answers.items():
        (tmp_path / f"{word}.txt").write_text(text)
        pattern = "*" if word == "rest" else f'*"{word}"*'
        cases += f'{pattern}) cat "{tmp_path}/{word}.txt" >&2; exit 255;;\n'
    return f'case "$*" in\n{cases}esac\nexit 0'


def test_none_or_none_that_will_do(stub, monkeypatch, tmp_path):
    program = stub(version="1.1.9")
    found = apptainer.probe()
    assert found.program is None
    assert found.trouble.startswith(f"{program} is no Apptainer 1.2 or newer; sudo make system")
    stub()  # one that would do is not taken in place of one that was named
    monkeypatch.setenv("PARBENCH_APPTAINER", "/bin/false")
    apptainer.probe.cache_clear()
    assert apptainer.probe().trouble.startswith(
        "PARBENCH_APPTAINER is '/bin/false', which is no Ap"
    )
    monkeypatch.delenv("PARBENCH_APPTAINER")
    monkeypatch.setenv("PATH", str(tmp_path))
    apptainer.probe.cache_clear()
    assert apptainer.probe().trouble.startswith("Apptainer is not installed; sudo make system")


@pytest.mark.parametrize(
    ("body", "flags", "unpacked"),
    [
        ({}, (), False),
        ({"exec --contain": RIGHTS}, ("--userns",), False),  # a root without all rights
        ({"probe.sif": FUSE}, (), True),  # no file can be mounted: a folder
    ],
)
def test_the_first_way_that_works_is_taken_and_kept(stub, tmp_path, body, flags, unpacked):
    program = stub(saying(tmp_path, **body))
    expected = apptainer.Apptainer(str(program), "1.4.5", flags, unpacked)
    assert apptainer.probe() == expected
    asked = (tmp_path / "calls").read_text()
    apptainer.probe.cache_clear()  # another process
    assert apptainer.probe() == expected
    assert (tmp_path / "calls").read_text() == asked
    kept = tmp_path / "cache/apptainer/probe.json"
    question = json.loads(kept.read_text())["question"]
    for content in ("", "[]", json.dumps({"question": question, "answer": {"flags": [], "x": 1}})):
        kept.write_text(content)  # damaged
        apptainer.probe.cache_clear()
        assert apptainer.probe() == expected
    stub(saying(tmp_path, **body), version="1.5.0")
    apptainer.probe.cache_clear()
    assert apptainer.probe().version == "1.5.0"


@pytest.mark.parametrize(
    ("answers", "said", "mend"),
    [
        ({"rest": RIGHTS}, "Requesting capability set", "run as an ordinary user, or allow user"),
        ({"rest": NAMESPACES}, "maximum number of user namespaces", "sysctl -w user.max_user_name"),
        ({"rest": FUSE}, "failed to open /dev/fuse", "sudo chmod 666 /dev/fuse"),
        ({"rest": "Illegal instruction"}, "Illegal instruction", "sudo make system installs it"),
        ({"rest": ""}, "no message", "sudo make system installs it"),
    ],
)
def test_when_every_way_fails_the_trouble_names_reason_and_mend(
    stub, tmp_path, answers, said, mend
):
    stub(saying(tmp_path, **answers))
    found = apptainer.probe()
    assert found.trouble.startswith("Apptainer 1.4.5 runs no image here: ")
    assert said in found.trouble
    assert mend in found.mend
    assert found.trouble.endswith(found.mend)
    assert not {"\x1b", "\n"} & set(found.trouble)
    with pytest.raises(ParbenchError, match="deployment: apptainer, but Apptainer 1.4.5 runs no"):
        apptainer.require(found, "config.yaml: deployment: apptainer")
    stub()  # it is asked again, since somebody may mend it
    apptainer.probe.cache_clear()
    assert apptainer.probe().trouble is None


def test_one_that_never_answers_is_given_up(stub, monkeypatch):
    monkeypatch.setattr(apptainer, "SECONDS", 0.2)
    stub("exec sleep 60")
    assert "no answer within 0.2 s" in apptainer.probe().trouble


def test_nothing_of_the_users_variables_bends_apptainer(monkeypatch):
    bent = ("APPTAINER_BIND", "APPTAINER_NV", "APPTAINERENV_LD_PRELOAD", "SINGULARITY_BINDPATH",
            "SINGULARITYENV_PATH")  # fmt: skip
    kept = ("APPTAINER_TMPDIR", "APPTAINER_CACHEDIR", "APPTAINER_DOCKER_PASSWORD", "PATH", "HOME")
    for name in (*bent, *kept):
        monkeypatch.setenv(name, "/x")
    found = apptainer.clean_environment()
    assert not set(bent) & set(found)
    assert set(kept) <= set(found)


# ---------------------------------------------------------------- the command

USERNS = apptainer.Apptainer("/a b/apptainer", "1.4.5", ("--userns",))


def mounts(command: list[str]) -> list[dict[str, str]]:
    """The fields of each --mount, read as Apptainer reads them: as a line of CSV."""
    values = [command[at + 1] for at, word in enumerate(command) if word == "--mount"]
    return [dict(field.split("=", 1) for field in row) for row in csv.reader(values)]


@pytest.mark.parametrize("gpu", [False, True])
def test_the_command_that_enters_an_image(gpu):
    command, outside = apptainer.enter(
        USERNS,
        Path("/images/torch.sif"),
        ["python", "train.py", "--cell", "a cell.json"],
        binds=[Path("/work"), Path("/data"), Path("/work")],
        variables={"OMP_NUM_THREADS": "1", "A": "x y"},
        gpu=gpu,
        temporary=Path("/tmp/state"),
        folder=Path("/work"),
    )
    assert command[:4] == ["/a b/apptainer", "--quiet", "exec", "--userns"]
    assert command[-5:] == ["/images/torch.sif", "python", "train.py", "--cell", "a cell.json"]
    for flag in ("--contain", "--cleanenv", "--no-home"):
        assert flag in command
    assert command[command.index("--no-mount") + 1] == "bind-paths,hostfs,cwd"
    assert command[command.index("--workdir") + 1] == "/tmp/state"
    assert command[command.index("--pwd") + 1] == "/work"
    assert ("--nv" in command) == gpu  # only cells on GPUs see them
    assert outside == {"APPTAINERENV_OMP_NUM_THREADS": "1", "APPTAINERENV_A": "x y"}
    assert [row["source"] for row in mounts(command)] == [
        "/work", "/data", *map(str, apptainer.NAMES)
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["/a,b", '/a "b"', "/a'b", "/a=b,source=/etc", "/ä", "/$HOME `x`"])
def test_a_folder_of_any_name_is_mounted_as_itself(path):
    command, _ = apptainer.enter(USERNS, Path("/i"), ["true"], binds=[Path(path)], variables={})
    assert mounts(command)[0] == {"type": "bind", "source": path, "destination": path}


def test_paths_of_any_name_are_seen_inside_and_nothing_else_is(monkeypatch, tmp_path):
    require("apptainer")
    monkeypatch.delenv("PARBENCH_APPTAINER_PREFIX")
    found = apptainer.probe()
    assert found.trouble is None, found.trouble
    apptainer._tiny(tmp_path / "tiny")
    odd, hidden = tmp_path / "a b,c \"d\" 'e' ü", tmp_path / "hidden"
    for folder in (odd, hidden):
        folder.mkdir()
        (folder / "file").write_text("seen")
    monkeypatch.setenv("APPTAINER_BIND", str(hidden))
    monkeypatch.setenv("APPTAINERENV_SECRET", "told")
    # The image holds nothing but `true`: a shell comes with this machine's own folders.
    programs = [Path(path) for path in ("/bin", "/usr", "/lib", "/lib64") if Path(path).exists()]
    script = f'cat file; echo made >made; test -e "{hidden}" || echo "; $X; $SECRET; $PWD"'
    command, variables = apptainer.enter(
        found,
        tmp_path / "tiny",
        ["/bin/sh", "-c", script],
        binds=[odd, *programs],
        variables={"X": "a,b c", "PATH": "/usr/bin:/bin"},
        folder=odd,
    )
    outside = {**apptainer.clean_environment(), "SECRET": "told", **variables}
    done = subprocess.run(command, env=outside, capture_output=True, text=True, check=False)
    assert done.stdout == f"seen; a,b c; ; {odd}\n", done.stderr
    assert (odd / "made").stat().st_uid == os.getuid()
