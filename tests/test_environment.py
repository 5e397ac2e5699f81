"""The environment: built once, resumed, checked; Horovod's build; lock files; the Makefile."""

from __future__ import annotations

import ensurepip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
import zipfile
from pathlib import Path

import pytest

import environment
from errors import ParbenchError

ROOT = Path(__file__).resolve().parent.parent
BUNDLED_PIP = next((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"), None)


class Clone:
    """A clone in a folder with blanks, whose stacks are made of one tiny wheel on this disk."""

    def __init__(self, base: Path):
        self.root = base / "a clone with blanks"
        self.cache = base / "a cache"
        self.links = base / "links"  # pip reads PIP_FIND_LINKS as a list separated by blanks
        self.script = self.root / "scripts" / "environment.py"
        for name in (
            "environment.py",
            "cache.py",
            "errors.py",
            "files.py",
            "printable.py",
            "unbundle.py",
        ):
            (self.root / "scripts").mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "scripts" / name, self.root / "scripts" / name)
        (self.root / "containers").mkdir()
        shutil.copy(ROOT / "containers" / "build_horovod.py", self.root / "containers")
        self.links.mkdir()
        self.stack("tiny")

    def stack(self, name: str, *, digest: str | None = None, horovod: str | None = None) -> None:
        folder = self.root / "containers" / "locks" / name
        folder.mkdir(parents=True, exist_ok=True)
        digest = digest or hashlib.sha256(tiny_wheel(self.links).read_bytes()).hexdigest()
        (folder / "host.txt").write_text(f"tiny==1.0 \\\n    --hash=sha256:{digest}\n")
        if horovod is not None:
            (folder / "horovod.txt").write_text(horovod)

    def start(self, *words: str, **variables: str) -> subprocess.Popen:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PARBENCH_"))}
        variables = {
            "PARBENCH_CACHE": str(self.cache),
            "PIP_FIND_LINKS": str(self.links),
            "PIP_NO_INDEX": "1",
            "PIP_CONFIG_FILE": os.devnull,
            **variables,
        }
        return subprocess.Popen(
            [sys.executable, str(self.script), *words],
            cwd=self.root,
            env={**kept, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess:
        process = self.start(*words, **variables)
        out, err = process.communicate(timeout=120)
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(words, process.returncode, out, err)


def tiny_wheel(folder: Path) -> Path:
    """A pure wheel with a module and a console script."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    if not path.exists():
        info = "tiny-1.0.dist-info"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("tiny.py", "def main():\n    print('tiny runs')\n")
            archive.writestr(
                f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
            )
            archive.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\ntiny = tiny:main\n")
            archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def clone(tmp_path) -> Clone:
    return Clone(tmp_path)


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> tuple[Clone, Path, list[str]]:
    """A clone whose environment two programs have set up at once; what both said."""
    clone = Clone(tmp_path_factory.mktemp("ready"))
    both = [clone.start("ensure", "--stack", "tiny") for _ in range(2)]
    answers = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    folders = {out.strip() for out, _ in answers}
    assert len(folders) == 1
    return clone, Path(folders.pop()), [err for _, err in answers]


# ---------------------------------------------------------------- ensure


def test_two_at_once_build_once(ready):
    _, folder, said = ready
    assert sorted("installing" in text for text in said) == [False, True]
    assert any("another process makes the same environment" in text for text in said)
    assert (folder / ".complete").is_file()


def test_what_is_there_costs_nothing_and_says_nothing(ready):
    clone, folder, _ = ready
    before = (folder / ".complete").stat().st_mtime_ns
    again = clone.run("ensure", "--stack", "tiny")
    assert (again.stdout.strip(), again.stderr, again.returncode) == (str(folder), "", 0)
    assert (folder / ".complete").stat().st_mtime_ns == before


def test_times_are_kept(ready):
    _, folder, _ = ready
    times = json.loads((folder / "setup.json").read_text())
    assert times["packages_seconds"] > 0
    assert times["horovod_seconds"] >= 0


def test_a_stack_without_horovod_says_so(ready):
    _, folder, _ = ready
    state = json.loads((folder / "horovod.json").read_text())
    assert state == {"available": False, "reason": "the stack tiny has no Horovod"}


def test_exec_runs_in_the_environment_and_nothing_foreign_leaks_in(ready):
    clone, folder, _ = ready
    code = "import os, sys, tiny; print(sys.prefix, os.environ.get('PYTHONPATH'), sys.argv[1])"
    done = clone.run(
        "exec", "--stack", "tiny", "--", "python", "-c", code, "a word", PYTHONPATH="/elsewhere"
    )
    assert done.stdout.strip() == f"{folder} None a word"


def test_exec_runs_a_console_script_although_paths_have_blanks(ready):
    clone, folder, _ = ready
    assert " " in str(folder)
    done = clone.run("exec", "--stack", "tiny", "--", "tiny")
    assert (done.stdout, done.returncode) == ("tiny runs\n", 0)


def test_exec_returns_the_status_and_names_a_program_that_is_missing(ready):
    clone, _, _ = ready
    tiny = ("exec", "--stack", "tiny", "--")
    assert clone.run(*tiny, "python", "-c", "raise SystemExit(7)").returncode == 7
    done = clone.run(*tiny, "no-such-program")
    assert done.returncode == 2
    assert "no-such-program: no such program" in done.stderr


def test_a_set_up_killed_after_the_packages_goes_on_behind_them(ready):
    clone, folder, _ = ready
    (folder / ".complete").unlink()
    (folder / "horovod.json").unlink()
    again = clone.run("ensure", "--stack", "tiny")
    assert again.returncode == 0
    assert "installing" not in again.stderr
    assert (folder / ".complete").is_file()


def test_a_set_up_killed_among_the_packages_starts_again(clone):
    folder = Path(clone.run("ensure", "--stack", "tiny").stdout.strip())
    for marker in (".complete", ".packages"):
        (folder / marker).unlink()
    next(folder.rglob("tiny.py")).unlink()  # half a package, which pip takes for installed
    again = clone.run("ensure", "--stack", "tiny")
    assert "an earlier set-up was interrupted" in again.stderr
    assert clone.run("exec", "--stack", "tiny", "--", "tiny").stdout == "tiny runs\n"


def test_an_environment_whose_python_is_gone_is_made_again(tmp_path):
    folder = tmp_path / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / ".complete").touch()
    (folder / "bin" / "python").symlink_to(tmp_path / "removed")
    assert not environment._is_complete(folder)


def test_a_file_that_is_not_the_locked_one_is_refused_in_one_sentence(clone):
    clone.stack("broken", digest="0" * 64)
    done = clone.run("ensure", "--stack", "broken")
    assert done.returncode == 2
    message = done.stderr.splitlines()[-1]
    assert message.startswith("error: tiny==1.0")
    assert "SHA-256 differs" in message
    assert not list(clone.cache.glob("envs/*/.complete"))


def test_a_registry_that_cannot_be_reached_is_named_as_such(clone):
    done = clone.run(
        "ensure",
        *("--stack", "tiny"),
        PIP_NO_INDEX="0",
        PIP_FIND_LINKS="",
        PIP_INDEX_URL="http://127.0.0.1:9/simple",
        PIP_RETRIES="0",
    )
    assert done.returncode == 2
    assert "the package registry cannot be reached" in done.stderr.splitlines()[-1]
    assert "PIP_INDEX_URL" in done.stderr


def test_too_small_a_disk_is_said_before_anything_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "GIB_NEEDED", 10**9)
    with pytest.raises(ParbenchError, match=r"GiB are free.*PARBENCH_CACHE"):
        environment._require_disk(tmp_path / "envs" / "x")


def test_an_unknown_stack_is_an_error(clone):
    done = clone.run("ensure", "--stack", "nonsense")
    assert done.returncode == 2
    assert "nonsense" in done.stderr


OFFLINE = "Failed: NewConnectionError\nERROR: No matching distribution found for x"


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("ERROR: Could not install: [Errno 28] No space left on device", "GiB are free"),
        (OFFLINE, "cannot be reached"),
        ("ERROR: No matching distribution found for x==9", "does not offer x==9"),
        ("ERROR: something new", "something new"),
    ],
)
def test_what_pip_says_becomes_one_sentence(tmp_path, log, words):
    (tmp_path / "log").write_text(log)
    message = environment.pip_failure(tmp_path / "log", tmp_path / "env")
    assert words in message
    assert "\n" not in message


def test_an_older_python_is_told_what_is_needed():
    code = (
        "import sys, runpy; sys.hexversion = 0x030A0000;"
        f"runpy.run_path({str(ROOT / 'scripts' / 'environment.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "needs Python 3.11 or newer" in done.stderr
    assert "Traceback" not in done.stderr


# ---------------------------------------------------------------- names of environments


@pytest.fixture
def named(clone, monkeypatch):
    """The name of the tiny stack's environment, as the clone's files stand."""
    monkeypatch.setattr(environment, "ROOT", clone.root)
    monkeypatch.setattr(environment, "RECIPE", clone.root / "containers" / "build_horovod.py")
    return lambda: environment.environment_folder("tiny").name


def test_another_lock_is_another_environment(clone, named):
    before = named()
    clone.stack("tiny", digest="1" * 64)
    assert named() != before


def test_the_build_recipe_counts_by_what_it_does(named):
    before = named()
    text = environment.RECIPE.read_text()
    environment.RECIPE.write_text('"""Another docstring."""\n# and a comment\n' + text)
    assert named() != before  # the old docstring is now an expression of its own
    environment.RECIPE.write_text(text + "\n# a comment\n")
    assert named() == before
    environment.RECIPE.write_text(text + "\nWHATEVER = 1\n")
    assert named() != before


def test_horovod_for_gpus_is_another_environment(named, monkeypatch):
    before = named()
    monkeypatch.setenv("PARBENCH_HOROVOD_GPU", "nccl")
    assert named() != before
    monkeypatch.setenv("PARBENCH_HOROVOD_GPU", "rocm")
    with pytest.raises(ParbenchError, match="rocm"):
        named()


# ---------------------------------------------------------------- a Python without pip


def test_pip_is_fetched_by_hash_where_python_has_none(tmp_path, monkeypatch):
    if BUNDLED_PIP is None:
        pytest.skip("this Python bundles no pip to serve as the registry's")
    version = BUNDLED_PIP.name.split("-")[1]
    page = tmp_path / "index of mine" / "pip"
    page.mkdir(parents=True)
    shutil.copy(BUNDLED_PIP, page)
    (page / "index.html").write_text(f'<a href="{BUNDLED_PIP.name}#sha256=x">pip</a>')
    lock = tmp_path / "host.txt"
    digest = hashlib.sha256(BUNDLED_PIP.read_bytes()).hexdigest()
    lock.write_text(f"pip=={version} \\\n    --hash=sha256:{digest}\n")
    monkeypatch.setattr(environment.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    address = (tmp_path / "index of mine").as_uri()
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {address}\n")
    environment._create(tmp_path / "env", lock)
    command = [tmp_path / "env" / "bin" / "python", "-m", "pip", "--version"]
    assert subprocess.run(command, capture_output=True, text=True).stdout.startswith("pip ")

    lock.write_text(f"pip=={version} \\\n    --hash=sha256:{'0' * 64}\n")
    with pytest.raises(ParbenchError, match="not the one that is locked"):
        environment._create(tmp_path / "other", lock)

    (page / "index.html").write_text("nothing here")
    with pytest.raises(ParbenchError, match="sudo apt install python3"):
        environment._create(tmp_path / "third", lock)


# ---------------------------------------------------------------- Horovod


def test_without_a_compiler_the_reason_is_kept_and_everything_else_goes_on(clone):
    clone.stack("compiled", horovod="horovod==0.28.1 \\\n    --hash=sha256:0\n")
    ensure = ("ensure", "--stack", "compiled")
    first = clone.run(*ensure, CXX="/nowhere/c++")
    assert first.returncode == 0
    folder = Path(first.stdout.strip())
    state = json.loads((folder / "horovod.json").read_text())
    assert not state["available"]
    assert "no C++ compiler was found" in state["reason"]
    assert "sudo apt install" in state["reason"]
    assert Path(state["log"]).is_file()
    assert "Horovod is not available" in first.stderr
    assert (folder / ".complete").is_file()
    # The same compiler is not tried again; another one is, and so is the same when asked to.
    assert clone.run(*ensure, CXX="/nowhere/c++").stderr == ""
    assert "trying again" in clone.run(*ensure, CXX="/nowhere/else").stderr
    assert "trying again" in clone.run(*ensure, "--retry-horovod", CXX="/nowhere/else").stderr


def test_the_compilers_own_reason_is_what_is_reported(tmp_path, monkeypatch):
    """The real Horovod with a compiler that fails."""
    builder = environment._builder()
    compiler = tmp_path / "broken c++"
    compiler.write_text("#!/bin/sh\necho 'broken: error: the licence has expired' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "c++").symlink_to(compiler)
    monkeypatch.setenv("CXX", "c++")
    work = tmp_path / "work folder"
    work.mkdir()
    said: list[str] = []
    with pytest.raises(builder.BuildError, match="the licence has expired") as caught:
        builder.build(
            sys.executable, tmp_path / "out", work=work, log=tmp_path / "log", say=said.append
        )
    if isinstance(caught.value, builder.FetchError):
        pytest.skip(f"the package registry: {caught.value}")
    assert any("compiling" in line for line in said)
    assert not (tmp_path / "out").exists()


BY_COMPILER = "[ 3%] Building\n/w/x.cc:7:1: fatal error: a.h: No such file\nmake: *** Error 1"
BY_LINKER = "[9%] Linking\n/usr/bin/ld: cannot find -lx\ncollect2: error: ld returned 1 exit status"
BY_CMAKE = "CMake Error at x.txt:3 (project):\n\n  No CMAKE_CXX_COMPILER could be found."


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (BY_COMPILER, "x.cc:7:1: fatal error: a.h: No such file"),
        (BY_LINKER, "/usr/bin/ld: cannot find -lx"),
        (BY_CMAKE, "CMake Error at x.txt:3 (project): No CMAKE_CXX_COMPILER could be found."),
        ("all well until\nkilled", "killed"),
        ("", "the compiler said nothing"),
    ],
)
def test_first_error(log, reason):
    assert environment._builder().first_error(log, Path("/w")) == reason


def test_a_source_that_is_not_the_known_one_is_not_patched(tmp_path):
    builder = environment._builder()
    (tmp_path / "CMakeLists.txt").write_text("set(CMAKE_CXX_STANDARD 23)")
    with pytest.raises(builder.BuildError, match="does not hold the line to patch"):
        builder.patch(tmp_path, 17, gloo_only=True)


@pytest.mark.parametrize(
    ("header", "standard"),
    [
        ("#if !defined(_MSC_VER) && __cplusplus < 201703L", 17),
        ("#if (_MSVC_LANG < 202002L) || (__cplusplus < 202002L)", 20),
        ("nothing about it", 17),
    ],
)
def test_the_cxx_standard_is_what_torchs_headers_ask_for(tmp_path, monkeypatch, header, standard):
    builder = environment._builder()
    file = tmp_path / "include/torch/csrc/api/include/torch/all.h"
    file.parent.mkdir(parents=True)
    file.write_text(header)
    monkeypatch.setattr(builder, "_ask", lambda python, code: str(tmp_path))
    assert builder.torch_cxx_standard(sys.executable) == standard


# ---------------------------------------------------------------- a killed Snakemake


@pytest.fixture
def locked(tmp_path):
    (tmp_path / ".snakemake" / "locks").mkdir(parents=True)
    (tmp_path / ".snakemake" / "locks" / "0.output.lock").write_text("results/x\n")
    return tmp_path


def test_the_lock_of_a_killed_snakemake_is_released_aloud(locked, capsys):
    environment.release_stale_lock(locked)
    assert not (locked / ".snakemake" / "locks").exists()
    assert "an earlier run was killed" in capsys.readouterr().err


def test_a_live_snakemake_is_waited_for(locked, capsys):
    code = "import time, pathlib; print(flush=True); time.sleep(1); pathlib.Path('end').touch()"
    command = [sys.executable, "-c", code, "snakemake"]
    with subprocess.Popen(command, cwd=locked, stdout=subprocess.PIPE) as live:
        live.stdout.readline()
        threading.Thread(target=live.wait).start()  # a child that nobody waits for never ends
        environment.release_stale_lock(locked)
        assert (locked / "end").exists()
    assert f"process {live.pid}" in capsys.readouterr().err


def test_a_lock_from_another_machine_stays(locked):
    (locked / ".snakemake" / "parbench.host").write_text("another-machine")
    with pytest.raises(ParbenchError, match="another-machine"):
        environment.release_stale_lock(locked)
    assert (locked / ".snakemake" / "locks").exists()


# ---------------------------------------------------------------- lock files


def entries(file: str) -> dict[str, str]:
    text = (ROOT / "containers" / "locks" / "current" / file).read_text()
    found = re.split(r"\n(?=[A-Za-z0-9])", "\n" + text)[1:]
    names = [re.match(r"([A-Za-z0-9._-]+)==", entry) for entry in found]
    assert all(names), "an entry that is no exact version"
    assert len({name[1] for name in names}) == len(names), "a package has two versions"
    return {name[1]: entry for name, entry in zip(names, found, strict=True)}


@pytest.mark.parametrize("file", ["host.txt", "horovod.txt"])
def test_locks_are_exact_and_name_no_registry_and_no_machine(file):
    for name, entry in entries(file).items():
        assert "--hash=sha256:" in entry, name
    text = (ROOT / "containers" / "locks" / "current" / file).read_text()
    assert not re.search(r"://|index-url|find-links|/root|/home", text)


def test_the_lock_holds_everything_that_the_project_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.match(r"[A-Za-z0-9._-]+", line)[0].lower() for line in asked}
    assert names <= set(entries("host.txt"))


def test_the_pins_that_belong_together():
    host, horovod = entries("host.txt"), entries("horovod.txt")
    for pin in ("torch==2.15.0", "torchvision==0.29.2", "torchgpipe==0.0.7"):
        assert host[pin.split("==")[0]].startswith(pin + " ")
    assert horovod["horovod"].startswith(f"horovod=={environment._builder().VERSION} ")
    assert int(re.match(r"setuptools==(\d+)", horovod["setuptools"])[1]) < 70
    assert int(re.match(r"cmake==(\d+)", horovod["cmake"])[1]) < 4


# ---------------------------------------------------------------- make


def make(folder: Path, *words: str) -> subprocess.CompletedProcess:
    if shutil.which("make") is None:
        pytest.skip("no make")
    # Inside `make test` the outer make's variables would steer this one.
    outer = ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES", "PYTHON", "TESTS", "STACK")
    env = {key: value for key, value in os.environ.items() if key not in outer}
    command = ["make", "--no-print-directory", f"PYTHON={sys.executable}", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.fixture
def made(tmp_path) -> Path:
    folder = tmp_path / "work folder"
    folder.mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    return folder


def test_make_lists_its_targets(made):
    done = make(made)
    assert done.returncode == 0
    for target in ("report", "test", "lint", "format", "bench", "doctor", "clean", "help"):
        assert re.search(rf"^  {target}\t", done.stdout, re.M)


def test_make_clean_deletes_results_and_reports_alone(made):
    for name in ("results/cells/x", "reports"):
        (made / name).mkdir(parents=True)
    for name in ("reports/final.html", "reports/final.pdf", "reports/template.html"):
        (made / name).touch()
    assert make(made, "clean").returncode == 0
    assert not (made / "results").exists()
    assert [path.name for path in (made / "reports").iterdir()] == ["template.html"]


def test_make_without_a_python_says_what_is_needed(made):
    done = make(made, "report", "PYTHON=")
    assert done.returncode == 2
    assert "no Python 3.11 or newer was found" in done.stderr
