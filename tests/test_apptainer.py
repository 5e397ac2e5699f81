"""Whether and how Apptainer runs an image here, and the command that enters one."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import apptainer
from errors import ParbenchError
from require import require

# What Apptainer 1.4.5 wrote, in this order, on a machine each.
RIGHTS = """\
WARNING: passwd file doesn't exist in container, not updating
\x1b[91mERROR  : Requesting capability set 0x000001ffffffffff while permitted capability set is \
0x000001fffeffffff
\x1b[0m"""
NAMESPACES = """\
INFO:    gocryptfs not found, will not be able to use gocryptfs
\x1b[91mERROR  : Failed to create user namespace: maximum number of user namespaces exceeded, \
check /proc/sys/user/max_user_namespaces
INFO   : A system administrator may need to enable user namespaces, install
INFO   :   apptainer-suid, or compile with ./mconfig --with-suid
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
    """Put an `apptainer` first on PATH, which notes its words and does what ``body`` says.

    ``body`` is the rest of a shell script that has been asked anything but its version.
    """

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


def calls(tmp_path: Path) -> list[str]:
    """What the stub was asked to do but its version."""
    path = tmp_path / "calls"
    return path.read_text().splitlines() if path.exists() else []


def saying(tmp_path: Path, **answers: str) -> str:
    """The body of a stub that fails with a text, by a word of the command line or ``rest``."""
    cases = ""
    for word, text in answers.items():
        (tmp_path / f"{word}.txt").write_text(text)
        pattern = "*" if word == "rest" else f'*"{word}"*'
        cases += f'{pattern}) cat "{tmp_path}/{word}.txt" >&2; exit 255;;\n'
    return f'case "$*" in\n{cases}esac\nexit 0'


# ---------------------------------------------------------------- the probe


def test_none_at_all(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = apptainer.probe()
    assert found.program is None
    assert found.trouble.startswith("Apptainer is not installed; sudo make system")
    assert found.trouble.endswith(found.mend)


def test_one_that_is_too_old(stub):
    program = stub(version="1.1.9")
    found = apptainer.probe()
    assert found.program is None
    assert found.trouble.startswith(f"{program} is no Apptainer 1.2 or newer; sudo make system")


@pytest.mark.parametrize("script", ["echo none of your business", "exit 1", "echo 1.4.5; exit 1"])
def test_one_that_is_named_and_prints_no_version(stub, monkeypatch, tmp_path, script):
    stub()  # one that would do is not taken in place of one that was named
    named = tmp_path / "mine"
    named.write_text(f"#!/bin/sh\n{script}\n")
    named.chmod(0o755)
    monkeypatch.setenv("PARBENCH_APPTAINER", str(named))
    trouble = apptainer.probe().trouble
    assert trouble.startswith(f"PARBENCH_APPTAINER is {str(named)!r}, which is no Apptainer 1.2 or")


def test_the_first_way_that_works_is_taken(stub, tmp_path):
    program = stub()
    assert apptainer.probe() == apptainer.Apptainer(str(program), "1.4.5")
    build, run = calls(tmp_path)
    assert build.startswith("build ")
    assert run.startswith("exec --contain ")


def test_a_user_namespace_is_the_way_of_a_root_without_all_rights(stub, tmp_path):
    stub('case "$*" in *--userns*) exit 0;; esac\n' + saying(tmp_path, rest=RIGHTS))
    found = apptainer.probe()
    assert (found.flags, found.unpacked, found.trouble) == (("--userns",), False, None)


def test_a_folder_is_the_way_where_no_file_can_be_mounted(stub, tmp_path):
    stub(saying(tmp_path, **{"probe.sif": FUSE}))
    found = apptainer.probe()
    assert (found.flags, found.unpacked, found.trouble) == ((), True, None)


@pytest.mark.parametrize(
    ("answers", "said", "mend"),
    [
        ({"rest": RIGHTS}, "Requesting capability set", "run as an ordinary user, or allow user"),
        ({"rest": NAMESPACES}, "maximum number of user namespaces", "sysctl -w user.max_user_name"),
        ({"rest": FUSE}, "failed to open /dev/fuse", "sudo chmod 666 /dev/fuse"),
        ({"--userns": NAMESPACES, "rest": RIGHTS}, "; Failed to create user", "run as an ordinary"),
        ({"rest": "Illegal instruction"}, "Illegal instruction", "sudo make system installs it"),
        ({"rest": ""}, "no message", "sudo make system installs it"),
    ],
)
def test_when_every_way_fails_the_trouble_names_reason_and_mend(
    stub, tmp_path, answers, said, mend
):
    program = stub(saying(tmp_path, **answers))
    found = apptainer.probe()
    assert found.program == str(program)
    assert found.trouble.startswith("Apptainer 1.4.5 runs no image here: ")
    assert said in found.trouble
    assert mend in found.mend
    assert found.trouble.endswith(found.mend)
    assert "\x1b" not in found.trouble
    assert "\n" not in found.trouble
    assert len(calls(tmp_path)) == 1 + 2 * 2  # a build; file and folder, each in two ways
    with pytest.raises(ParbenchError, match="deployment: apptainer, but Apptainer 1.4.5 runs no"):
        apptainer.require(found, "config.yaml: deployment: apptainer")


def test_one_that_never_answers_is_given_up(stub, monkeypatch):
    monkeypatch.setattr(apptainer, "SECONDS", 0.2)
    stub("exec sleep 60")
    assert "no answer in 0.2 s" in apptainer.probe().trouble


def test_the_answer_is_kept_and_asked_again_for_another_version(stub, tmp_path):
    stub()
    apptainer.probe()
    asked = len(calls(tmp_path))
    apptainer.probe.cache_clear()  # another process
    assert apptainer.probe().version == "1.4.5"
    assert len(calls(tmp_path)) == asked

    stub(version="1.5.0")
    apptainer.probe.cache_clear()
    assert apptainer.probe().version == "1.5.0"
    assert len(calls(tmp_path)) == 2 * asked


def test_a_trouble_is_not_kept_since_somebody_may_mend_it(stub, tmp_path):
    stub(saying(tmp_path, rest=NAMESPACES))
    assert apptainer.probe().trouble
    stub()
    apptainer.probe.cache_clear()
    assert apptainer.probe().trouble is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"question": 1, "answer": 2}'])
def test_a_damaged_answer_is_asked_for_again(stub, tmp_path, content):
    stub()
    first = apptainer.probe()
    kept = tmp_path / "cache" / "apptainer" / "probe.json"
    question = json.loads(kept.read_text())["question"]
    kept.write_text(content)
    apptainer.probe.cache_clear()
    assert apptainer.probe() == first
    kept.write_text(json.dumps({"question": question, "answer": {"flags": [], "what": 1}}))
    apptainer.probe.cache_clear()
    assert apptainer.probe() == first
    assert len(calls(tmp_path)) == 3 * 2


def test_a_cache_that_cannot_be_written_is_no_trouble(stub, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path / "file" / "cache"))
    stub()
    assert apptainer.probe().trouble is None


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RIGHTS, "Requesting capability set 0x000001ffffffffff while permitted capability set is "
         "0x000001fffeffffff"),
        (NAMESPACES, "Failed to create user namespace: maximum number of user namespaces exceeded, "
         "check /proc/sys/user/max_user_namespaces"),
        ("ERROR: one\nFATAL:   two\nINFO: three\n", "two"),
        ("INFO: only\nthe end\n\n", "the end"),
        ("", "no message"),
    ],
)  # fmt: skip
def test_last_error(text, said):
    assert apptainer.last_error(text) == said


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


def test_the_command_that_enters_an_image():
    command, outside = apptainer.enter(
        USERNS,
        Path("/images/torch.sif"),
        ["python", "train.py", "--cell", "a cell.json"],
        binds=[Path("/work"), Path("/data"), Path("/work")],
        variables={"OMP_NUM_THREADS": "1", "A": "x y"},
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
    assert "--nv" not in command
    assert outside == {"APPTAINERENV_OMP_NUM_THREADS": "1", "APPTAINERENV_A": "x y"}
    assert [row["source"] for row in mounts(command)] == [
        "/work", "/data", *map(str, apptainer.NAMES)
    ]  # fmt: skip


def test_only_cells_on_gpus_see_them():
    command, _ = apptainer.enter(USERNS, Path("/i"), ["true"], binds=[], variables={}, gpu=True)
    assert "--nv" in command
    assert command.index("--nv") < command.index("/i")


@pytest.mark.parametrize(
    "path", ["/a,b", '/a "b"', "/a b", "/a'b", "/a=b,source=/etc", "/ä", "/$HOME `x`", "/a:b"]
)
def test_a_folder_of_any_name_is_mounted_as_itself(path):
    command, _ = apptainer.enter(USERNS, Path("/i"), ["true"], binds=[Path(path)], variables={})
    assert mounts(command)[0] == {"type": "bind", "source": path, "destination": path}


def test_a_command_to_paste():
    text = apptainer.shown(["a b", "$c"], {"APPTAINERENV_X": "1 2"})
    assert text == "APPTAINERENV_X='1 2' 'a b' '$c'"


# ---------------------------------------------------------------- a real one


@pytest.fixture
def real(monkeypatch, tmp_path) -> tuple[apptainer.Apptainer, Path]:
    """This machine's Apptainer, and the smallest image as it runs one."""
    require("apptainer")
    monkeypatch.delenv("PARBENCH_APPTAINER_PREFIX")
    found = apptainer.probe()
    assert found.trouble is None, found.trouble
    folder = tmp_path / "tiny"
    apptainer._tiny(folder)
    return found, folder


def test_the_probe_of_a_real_one_and_its_kept_answer(real, tmp_path):
    found, _ = real
    assert (tmp_path / "cache" / "apptainer" / "probe.json").is_file()
    apptainer.probe.cache_clear()
    assert apptainer.probe() == found


def test_paths_of_any_name_are_seen_inside_and_nothing_else_is(real, monkeypatch, tmp_path):
    found, image = real
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
        image,
        ["/bin/sh", "-c", script],
        binds=[odd, *programs],
        variables={"X": "a,b c", "PATH": "/usr/bin:/bin"},
        folder=odd,
    )
    outside = {**apptainer.clean_environment(), "SECRET": "told", **variables}
    done = subprocess.run(command, env=outside, capture_output=True, text=True, check=False)
    assert done.stdout == f"seen; a,b c; ; {odd}\n", done.stderr
    assert (odd / "made").read_text() == "made\n"
    assert (odd / "made").stat().st_uid == os.getuid()
