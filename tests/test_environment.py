"""The environment: built once, made again, checked; Horovod's build; lock files; the Makefile."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.prefix) / "bin" / "uv"
PROGRAMS = (
    "errors.py", "files.py", "printable.py", "cache.py", "__init__.py", "deploy/__init__.py",
    "deploy/environment.py", "deploy/uv.py",
)  # fmt: skip


class Clone:
    """A clone in a folder with blanks, whose stacks are a tiny wheel, and uv, on this disk."""

    def __init__(self, base: Path):
        self.root, self.cache = base / "a clone with blanks", base / "a cache"
        self.links = base / "links of mine"
        (self.root / "scripts/parbench/deploy").mkdir(parents=True)
        shutil.copy(ROOT / "scripts/environment.py", self.root / "scripts")
        for name in PROGRAMS:
            shutil.copy(ROOT / "scripts/parbench" / name, self.root / "scripts/parbench" / name)
        (self.root / "containers").mkdir()
        shutil.copy(ROOT / "containers/build_horovod.py", self.root / "containers")
        self.links.mkdir()
        self.stack("tiny")

    def stack(self, name: str, *, digest: str | None = None, horovod: str | None = None) -> None:
        folder = self.root / "containers" / "locks" / name
        folder.mkdir(parents=True, exist_ok=True)
        tiny, uv = tiny_wheel(self.links), uv_wheel(self.links)
        digest = digest or hashlib.sha256(tiny.read_bytes()).hexdigest()
        lock = f"tiny==1.0 \\\n    --hash=sha256:{digest}\n"
        lock += f"uv==9.9 \\\n    --hash=sha256:{hashlib.sha256(uv.read_bytes()).hexdigest()}\n"
        (folder / "host.txt").write_text(lock)
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
            [sys.executable, "-S", str(self.root / "scripts/environment.py"), *words],
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


def wheel(path: Path, **files: str | bytes) -> Path:
    """A wheel, with names of files below its package's information as keys in capitals."""
    name, version = path.name.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
        **files,
    }
    if not path.exists():
        with zipfile.ZipFile(path, "w") as archive:
            for inside, content in files.items():
                archive.writestr(inside, content)
    return path


def tiny_wheel(folder: Path) -> Path:
    """A pure wheel with a module and a console script."""
    entry = {"tiny-1.0.dist-info/entry_points.txt": "[console_scripts]\ntiny = tiny:main\n"}
    module = {"tiny.py": "def main():\n    print('tiny runs')\n"}
    return wheel(folder / "tiny-1.0-py3-none-any.whl", **entry, **module)


def uv_wheel(folder: Path) -> Path:
    """The environment's uv, as the package registry offers it."""
    name = f"uv-9.9-py3-none-manylinux_2_17_{platform.machine()}.whl"
    return wheel(folder / name, **{"uv-9.9.data/scripts/uv": UV.read_bytes()})


@pytest.fixture
def clone(tmp_path) -> Clone:
    return Clone(tmp_path)


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> tuple[Clone, Path]:
    """A clone whose environment two programs have set up at once."""
    clone = Clone(tmp_path_factory.mktemp("ready"))
    both = [clone.start("ensure", "--stack", "tiny") for _ in range(2)]
    answers = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    said = [err for _, err in answers]
    assert sorted("installing" in text for text in said) == [False, True]
    assert any("another process makes" in text for text in said)
    folders = {out.strip() for out, _ in answers}
    assert len(folders) == 1
    return clone, Path(folders.pop())


# ---------------------------------------------------------------- ensure and exec


def test_what_is_there_costs_nothing_and_says_nothing(ready):
    clone, folder = ready
    again = clone.run("ensure", "--stack", "tiny")
    assert (again.stdout.strip(), again.stderr, again.returncode) == (str(folder), "", 0)


def test_exec_runs_in_the_environment_and_nothing_foreign_leaks_in(ready):
    clone, folder = ready
    assert " " in str(folder)
    tiny = ("exec", "--stack", "tiny", "--")
    code = "import os, sys, tiny; print(sys.prefix, os.environ.get('PYTHONPATH'), sys.argv[1])"
    done = clone.run(*tiny, "python", "-c", code, "a word", PYTHONPATH="/elsewhere")
    assert done.stdout.strip() == f"{folder} None a word"
    assert clone.run(*tiny, "tiny").stdout == "tiny runs\n"
    assert clone.run(*tiny, "python", "-c", "raise SystemExit(7)").returncode == 7
    done = clone.run(*tiny, "no-such-program")
    assert done.returncode == 2
    assert "no-such-program: no such program" in done.stderr


def test_a_killed_set_up_leaves_nothing_that_counts_and_is_made_again(clone):
    process = clone.start("ensure", "--stack", "tiny")
    deadline = time.monotonic() + 60
    while not list(clone.cache.glob("envs/.tiny-*")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not list(clone.cache.glob("envs/tiny-*/bin"))
    assert clone.run("exec", "--stack", "tiny", "--", "tiny").stdout == "tiny runs\n"
    assert not list(clone.cache.glob("envs/.tiny-*"))


def test_an_environment_whose_python_is_gone_is_made_again(clone):
    folder = Path(clone.run("ensure", "--stack", "tiny").stdout.strip())
    (folder / "bin" / "python").unlink()
    (folder / "bin" / "python").symlink_to(folder / "removed")
    assert clone.run("exec", "--stack", "tiny", "--", "tiny").stdout == "tiny runs\n"


def test_another_lock_is_another_environment(ready):
    clone, folder = ready
    clone.stack("other", digest="1" * 64)
    code = "import sys; sys.path.insert(0, 'scripts')\n"
    code += "from parbench.deploy import environment as e\n"
    code += "print(e.environment_folder('tiny').name[5:], e.environment_folder('other').name[6:])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=clone.root, capture_output=True, text=True
    )
    tiny, other = done.stdout.split()
    assert tiny == folder.name[5:]
    assert tiny != other


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"digest": "0" * 64}, r"tiny.*its SHA-256 differs"),
        ({"PIP_FIND_LINKS": "", "PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"},
         "the package registry cannot be reached; check the network, or name a mirror in PIP_"),
        ({"PARBENCH_CACHE": "/proc/none"}, "/proc/none.*point PARBENCH_CACHE at a folder of yours"),
        ({"stack": "nonsense"}, "nonsense"),
    ],
    ids=["another file", "no network", "no cache", "no stack"],
)  # fmt: skip
def test_what_fails_is_one_sentence(clone, variables, words):
    variables = dict(variables)
    stack = variables.pop("stack", "broken")
    if stack == "broken":
        clone.stack("broken", digest=variables.pop("digest", None))
    done = clone.run("ensure", "--stack", stack, **variables, PATH="/usr/bin:/bin")
    assert done.returncode == 2
    message = done.stderr.splitlines()[-1]
    assert message.startswith("error: ")
    assert re.search(words, message), message
    assert not list(clone.cache.glob("envs/*/bin"))


def test_a_full_disk_is_said(clone):
    """A disk of a few MiB stands for one of a few GiB."""
    if os.getuid() or not shutil.which("unshare"):
        pytest.skip("needs root, to mount a small disk")
    clone.cache.mkdir()
    words = f"mount -t tmpfs -o size=1m none '{clone.cache}' && exec '{sys.executable}' -S"
    words += " scripts/environment.py ensure --stack tiny"
    variables = {**os.environ, "PARBENCH_CACHE": str(clone.cache)}
    command = ["unshare", "--mount", "sh", "-c", words]
    done = subprocess.run(command, cwd=clone.root, env=variables, capture_output=True, text=True)
    if "mount" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 2
    message = done.stderr.splitlines()[-1]
    assert re.search(r"GiB are free, .* needs .*PARBENCH_CACHE at a larger disk", message), message


def test_an_older_python_is_told_what_is_needed():
    code = (
        "import sys, runpy; sys.hexversion = 0x030A0000;"
        f"runpy.run_path({str(ROOT / 'scripts' / 'environment.py')!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "needs Python 3.11 or newer" in done.stderr
    assert "Traceback" not in done.stderr


def test_pips_own_settings_are_handed_to_uv(monkeypatch, tmp_path):
    from parbench.deploy import uv

    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://me:secret@mirror.example/simple\ncert = /ca.pem\n"
        f"extra-index-url = file:///nowhere/simple https://other.example\nfind-links = {tmp_path}\n"
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_CERT", "/mine.pem")
    found = uv.variables(uv.pip_settings())
    assert found["UV_DEFAULT_INDEX"] == "https://me:secret@mirror.example/simple"
    assert found["UV_INDEX"] == "https://other.example"  # pip passes over what is not there
    assert found["UV_FIND_LINKS"] == str(tmp_path)
    assert found["SSL_CERT_FILE"] == "/mine.pem"


# ---------------------------------------------------------------- Horovod


def horovod_of(folder: Path) -> dict:
    return json.loads((folder / "horovod.json").read_text())


def test_horovod_that_cannot_be_built_is_a_reason_and_everything_else_goes_on(clone):
    clone.stack("compiled", horovod="horovod==0.28.1 \\\n    --hash=sha256:0\n")
    ensure = ("ensure", "--stack", "compiled")
    first = clone.run(*ensure, CXX="/nowhere/c++")
    assert first.returncode == 0
    folder = Path(first.stdout.strip())
    state = horovod_of(folder)
    assert not state["available"]
    assert "no C++ compiler was found" in state["reason"]
    assert "sudo apt install" in state["reason"]
    assert "Horovod is not available" in first.stderr
    # The same compiler is not tried again; another one is, and so is the same when asked to.
    assert clone.run(*ensure, CXX="/nowhere/c++").stderr == ""
    assert "compiling" in clone.run(*ensure, CXX="/bin/true").stderr
    assert "compiling" in clone.run(*ensure, "--retry-horovod", CXX="/bin/true").stderr
    assert clone.run("ensure", "--stack", "tiny").returncode == 0
    bad = clone.run(*ensure, PARBENCH_HOROVOD_GPU="rocm")
    assert "rocm" in bad.stderr.splitlines()[-1]


def test_exec_waits_for_horovod_only_where_it_is_asked_for(clone):
    clone.stack("compiled", horovod="horovod==0.28.1 \\\n    --hash=sha256:0\n")
    words = ("--stack", "compiled", "--", "python", "-c", "import sys; print(sys.prefix)")
    folder = Path(clone.run("exec", *words, CXX="/nowhere/c++").stdout.strip())
    assert not (folder / "horovod.json").exists()
    clone.run("exec", "--horovod", *words, CXX="/nowhere/c++")
    assert not horovod_of(folder)["available"]


@pytest.fixture
def builder(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "containers")
    import build_horovod

    return build_horovod


BY_COMPILER = "[ 3%] Building\nx.cc:7:1: fatal error: a.h: No such file\nmake: *** Error 1"
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
def test_the_compilers_own_reason_is_what_is_reported(builder, log, reason):
    assert builder.first_error(log) == reason


def test_a_source_that_is_not_the_known_one_is_not_patched(builder, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text("set(CMAKE_CXX_STANDARD 23)")
    with pytest.raises(builder.Failure, match="does not hold the line to patch"):
        builder.patch(tmp_path, 17, "none")


# ---------------------------------------------------------------- a killed Snakemake


@pytest.fixture
def locked(tmp_path) -> Path:
    """A work folder whose Snakemake was killed."""
    (tmp_path / ".snakemake/locks").mkdir(parents=True)
    (tmp_path / ".snakemake/locks/0.output.lock").write_text("x\n")
    (tmp_path / "Snakefile").write_text("rule x:\n    output: 'x'\n    shell: 'touch x'\n")
    return tmp_path


def unlock(folder: Path) -> subprocess.CompletedProcess:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r})\n"
    code += "from pathlib import Path\nfrom parbench.errors import run_main\n"
    code += "from parbench.deploy import environment as e\n"
    code += "run_main(lambda: e.release_stale_lock(Path.cwd(), Path(sys.prefix)))"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_lock_of_a_killed_snakemake_is_released_aloud(locked):
    assert "an earlier run was killed" in unlock(locked).stderr
    assert not list((locked / ".snakemake/locks").glob("*"))


def test_a_live_snakemake_is_waited_for(locked):
    code = "import time, pathlib; print(flush=True); time.sleep(2); pathlib.Path('end').touch()"
    command = [sys.executable, "-c", code, "snakemake"]
    with subprocess.Popen(command, cwd=locked, stdout=subprocess.PIPE) as live:
        live.stdout.readline()
        # It is waited for, so that it is gone once it has ended.
        threading.Thread(target=live.wait).start()
        said = unlock(locked).stderr
    assert (locked / "end").exists()
    assert f"process {live.pid}" in said


def test_a_lock_from_another_machine_stays(locked):
    (locked / ".snakemake/parbench.host").write_text("another-machine")
    done = unlock(locked)
    assert done.returncode == 2
    assert "another-machine" in done.stderr
    assert list((locked / ".snakemake/locks").glob("*"))


# ---------------------------------------------------------------- lock files


def entries(stack: str, file: str) -> dict[str, str]:
    text = (ROOT / "containers/locks" / stack / file).read_text()
    found = re.split(r"\n(?=[A-Za-z0-9])", "\n" + text)[1:]
    names = [re.match(r"([A-Za-z0-9._-]+)==", entry) for entry in found]
    assert all(names), "an entry that is no exact version"
    assert len({name[1] for name in names}) == len(names), "a package has two versions"
    return {name[1]: entry for name, entry in zip(names, found, strict=True)}


@pytest.mark.parametrize("stack", ["current", "paper"])
def test_locks_are_exact_name_no_machine_and_agree(stack):
    host = entries(stack, "host.txt")
    for file in ("host.txt", "horovod.txt", "torch.txt", "report.txt"):
        found = entries(stack, file)
        assert all("--hash=sha256:" in entry for entry in found.values())
        text = (ROOT / "containers/locks" / stack / file).read_text()
        assert not re.search(r"://|index-url|find-links|/root|/home", text)
        if file in ("torch.txt", "report.txt"):  # an image has the versions of the host
            pins = {name: entry.split()[0] for name, entry in found.items()}
            assert pins == {name: host[name].split()[0] for name in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + project["optional-dependencies"]["dev"]
    assert {re.match(r"[A-Za-z0-9._-]+", line)[0].lower() for line in asked} <= set(host)
    assert "torch" in host
    assert "horovod==0.28.1 " in entries(stack, "horovod.txt")["horovod"]


# ---------------------------------------------------------------- make


def make(folder: Path, *words: str) -> subprocess.CompletedProcess:
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


@pytest.mark.parametrize("bundle", [False, True])
def test_make_clean_deletes_results_and_reports_alone(made, bundle):
    for name in ("results/cells/x", "results/data/y", "reports", *(["bundle"] if bundle else [])):
        (made / name).mkdir(parents=True)
    for name in ("reports/final.html", "reports/final.pdf", "reports/template.html"):
        (made / name).touch()
    assert make(made, "clean").returncode == 0
    assert [path.name for path in (made / "reports").iterdir()] == ["template.html"]
    # What came without a network cannot be fetched again.
    left = [path.name for path in (made / "results").glob("*")]
    assert left == (["data"] if bundle else [])


def test_make_without_a_python_says_what_is_needed(made):
    done = make(made, "report", "PYTHON=")
    assert done.returncode == 2
    assert "no Python 3.11 or newer was found" in done.stderr


# ---------------------------------------------------------------- the cache


def test_the_caches_folder(monkeypatch):
    from parbench import cache

    monkeypatch.setenv("PARBENCH_CACHE", "/a")
    assert cache.folder() == Path("/a")
    monkeypatch.delenv("PARBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache.folder() == Path("/b/parbench")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/c")
    assert cache.folder() == Path("/c/.cache/parbench")
