"""The environment: built once, rebuilt and checked; Horovod's build; lock files; the Makefile."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from workspace import HANG_SECONDS, ROOT, Workspace

UV = Path(sys.prefix) / "bin" / "uv"


class Clone:
    """A clone in a folder with blanks; its stacks are a tiny wheel and uv on this disk."""

    def __init__(self, base: Path):
        self.root, self.cache = base / "a clone with blanks", base / "a cache"
        self.links, self.index = base / "links", base / "index"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "scripts", self.root / "scripts", ignore=ignored)
        (self.root / "containers").mkdir()
        shutil.copy(ROOT / "containers/build_horovod.py", self.root / "containers")
        self.links.mkdir()
        self.index.mkdir()  # it stays empty
        self.stack("tiny")

    def stack(self, name: str, *, digest: str | None = None) -> None:
        folder = self.root / "containers" / "locks" / name
        folder.mkdir(parents=True, exist_ok=True)
        tiny, uv = tiny_wheel(self.links), uv_wheel(self.links)
        digest = digest or hashlib.sha256(tiny.read_bytes()).hexdigest()
        lock = f"tiny==1.0 \\\n    --hash=sha256:{digest}\n"
        lock += f"uv==9.9 \\\n    --hash=sha256:{hashlib.sha256(uv.read_bytes()).hexdigest()}\n"
        (folder / "host.txt").write_text(lock)
        (folder / "horovod.txt").write_text("horovod==0.28.1 \\\n    --hash=sha256:0\n")

    @property
    def folder(self) -> Path:
        """The folder of its environment, which need not exist."""
        code = "import sys; sys.path.insert(0, 'scripts')"
        code += "; from parbench.deploy import host_environment"
        code += "; print(host_environment.environment_folder('tiny'))"
        own = {**os.environ, "PARBENCH_CACHE": str(self.cache)}
        words = [sys.executable, "-S", "-c", code]
        return Path(subprocess.check_output(words, cwd=self.root, env=own, text=True).strip())

    def start(self, *words: str, **variables: str) -> subprocess.Popen:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PARBENCH_"))}
        variables = {
            "PARBENCH_CACHE": str(self.cache),
            "PIP_FIND_LINKS": str(self.links),
            "PIP_INDEX_URL": self.index.as_uri(),
            "PIP_CONFIG_FILE": os.devnull,
            "CXX": "/nowhere/c++",
            **variables,
        }
        return subprocess.Popen(
            [sys.executable, "-S", str(self.root / "scripts/bin/parbench"), "env", *words],
            cwd=self.root,
            env={**kept, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess:
        process = self.start(*words, **variables)
        out, err = process.communicate(timeout=HANG_SECONDS)
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(words, process.returncode, out, err)


def wheel(path: Path, **files: str | bytes) -> Path:
    """Write a wheel of ``files`` (path to content), unless it exists; return its path."""
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
                entry = zipfile.ZipInfo(inside)
                entry.external_attr = 0o100755 << 16
                archive.writestr(entry, content)
    return path


def tiny_wheel(folder: Path) -> Path:
    """Write a pure wheel with a module and a console script."""
    entry = {"tiny-1.0.dist-info/entry_points.txt": "[console_scripts]\ntiny = tiny:main\n"}
    module = {"tiny.py": "def main():\n    print('tiny runs')\n"}
    return wheel(folder / "tiny-1.0-py3-none-any.whl", **entry, **module)


def uv_wheel(folder: Path) -> Path:
    """Write a wheel of the environment's uv, as the package registry offers it."""
    name = f"uv-9.9-py3-none-manylinux_2_17_{platform.machine()}.whl"
    return wheel(folder / name, **{"uv-9.9.data/scripts/uv": UV.read_bytes()})


@pytest.fixture
def clone(tmp_path) -> Clone:
    return Clone(tmp_path)


@pytest.fixture(scope="module")
def ready(tmp_path_factory) -> tuple[Clone, Path]:
    """Return a clone whose environment two processes set up at once, and that folder."""
    clone = Clone(tmp_path_factory.mktemp("ready"))
    lock = clone.folder.with_name(f"{clone.folder.name}.lock")
    lock.parent.mkdir(parents=True)
    with open(lock, "w") as held:  # until both wait for it
        fcntl.flock(held, fcntl.LOCK_EX)
        both = [clone.start("ensure", "--stack", "tiny") for _ in range(2)]
        assert all("another process is making" in process.stderr.readline() for process in both)
    answers = [process.communicate(timeout=HANG_SECONDS) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert sorted("setting up" in err for _, err in answers) == [False, True]
    assert {out.strip() for out, _ in answers} == {str(clone.folder)}
    return clone, clone.folder


# ---------------------------------------------------------------- ensure and exec


def test_exec_runs_in_the_environment_and_nothing_foreign_leaks_in(ready):
    clone, folder = ready
    assert " " in str(folder)
    tiny = ("exec", "--stack", "tiny", "--")
    code = "import os, sys, tiny; print(sys.prefix, os.environ.get('PYTHONPATH'), sys.argv[1])"
    done = clone.run(*tiny, "python", "-c", code, "a word", PYTHONPATH="/elsewhere")
    assert (done.stdout.strip(), done.stderr) == (f"{folder} None a word", "")
    assert clone.run(*tiny, "tiny").stdout == "tiny runs\n"
    assert clone.run(*tiny, "python", "-c", "raise SystemExit(7)").returncode == 7
    done = clone.run(*tiny, "no-such-program")
    assert done.returncode == 2
    assert "no-such-program: no such program" in done.stderr


def test_what_is_half_or_lost_its_python_is_made_again(clone):
    folder = Path(clone.run("ensure", "--stack", "tiny").stdout.strip())
    (folder / "bin" / "python").unlink()
    (folder.with_name(f".{folder.name}") / "bin").mkdir(parents=True)  # left by a killed process
    assert clone.run("exec", "--stack", "tiny", "--", "tiny").stdout == "tiny runs\n"
    clone.stack("tiny", digest="1" * 64)  # another lock file is another environment
    assert clone.run("exec", "--stack", "tiny", "--", "tiny").returncode == 2


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"digest": "0" * 64}, "uv cannot install the packages; the reason is above"),
        ({"PIP_FIND_LINKS": "", "PIP_RETRIES": "0", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"},
         "pip cannot fetch uv.*set PIP_INDEX_URL"),
        ({"PIP_FIND_LINKS": "", "PIP_INDEX_URL": "htps://me:s3cr3t@127.0.0.1/simple"},
         "pip cannot fetch uv"),
        ({"digest": "0" * 64, "UV_DEFAULT_INDEX": "https://me:s3cr3t@[x/simple"},
         "uv cannot install the packages"),
        ({"PARBENCH_CACHE": "/proc/none"}, "/proc/none.*set PARBENCH_CACHE to a folder of"),
        ({"stack": "nonsense"}, "nonsense"),
    ],
    ids=["another file", "no network", "no scheme", "no address", "no cache", "no stack"],
)  # fmt: skip
def test_what_fails_ends_in_a_sentence_with_what_mends_it(clone, variables, words):
    variables = dict(variables)
    stack = variables.pop("stack", "broken")
    if stack == "broken":
        clone.stack("broken", digest=variables.pop("digest", None))
    done = clone.run("ensure", "--stack", stack, **variables)
    assert done.returncode == 2
    assert "s3cr3t" not in done.stderr
    message = done.stderr.splitlines()[-1]
    assert message.startswith("error: ")
    assert re.search(words, message), message
    assert not list(clone.cache.glob("envs/[!.]*/bin"))


def test_pips_own_settings_are_handed_to_uv(monkeypatch, tmp_path):
    from parbench.deploy import uv

    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://me:secret@mirror.example/simple\ncert = /ca.pem\n"
        f"extra-index-url = https://other.example\nfind-links = {tmp_path} /more\n"
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_CERT", "/mine.pem")
    found = uv.uv_variables(uv.pip_settings())
    assert found["UV_DEFAULT_INDEX"] == "https://me:secret@mirror.example/simple"
    assert found["UV_INDEX"] == "https://other.example"
    assert found["UV_FIND_LINKS"] == f"{tmp_path},/more"
    assert found["SSL_CERT_FILE"] == "/mine.pem"


def test_of_pips_and_uvs_settings_only_those_of_indexes_reach_them(monkeypatch, tmp_path):
    from parbench.deploy import uv

    (tmp_path / "pip.conf").write_text(
        "[global]\nrequire-virtualenv = true\nuser = true\nindex-url = https://mirror.example/\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    for name in ("PIP_TARGET", "PIP_REQUIRE_VIRTUALENV", "PIP_NO_BINARY", "UV_PYTHON"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("UV_LINK_MODE", "copy")
    found = uv.installer_environment()
    pip_variables = {name: value for name, value in found.items() if name.startswith("PIP_")}
    assert pip_variables.pop("PIP_INDEX_URL") == "https://mirror.example/"
    assert pip_variables.pop("PIP_CONFIG_FILE") == os.devnull
    assert not {"PIP_TARGET", "PIP_REQUIRE_VIRTUALENV", "PIP_NO_BINARY"} & set(pip_variables)
    assert "UV_PYTHON" not in found
    assert found["UV_LINK_MODE"] == "copy"


def test_snakemake_starts_with_its_own_packages_and_without_a_home(tmp_path):
    """Before it reads a Snakefile: by the file that Python runs in the environment as it starts."""
    (tmp_path / "own").mkdir()
    program = tmp_path / "snakemake"
    program.write_text(
        f"import runpy, sys; runpy.run_path({str(ROOT / 'scripts/parbench/deploy/startup.py')!r})\n"
        "import os; print([f for f in ('/foreign', os.path.abspath('own')) if f in sys.path])\n"
        "print([os.environ.get(name) for name in ('PYTHONPATH', 'XDG_CACHE_HOME')])\n"
    )
    home = {"HOME": "/dev/null", "PYTHONPATH": f"/foreign:{tmp_path / 'own'}"}
    done = subprocess.run(
        [sys.executable, program, "-n"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], **home},
        capture_output=True,
        text=True,
        check=True,
    )
    own, cache = str(tmp_path / "own"), str(tmp_path / ".snakemake" / "cache")
    assert done.stdout == f"{[own]}\n{[own, cache]}\n"
    packages, written = done.stderr.splitlines()
    assert packages.startswith("parbench: PYTHONPATH is ignored")
    assert written.startswith("parbench: /dev/null/.cache/snakemake cannot be written (Not a dir")
    assert written.endswith("set XDG_CACHE_HOME to choose another folder")


# ---------------------------------------------------------------- Horovod


def test_horovod_that_cannot_be_built_is_a_reason_and_everything_else_goes_on(ready):
    clone, folder = ready
    assert not (folder / "horovod.json").exists()  # entering adds nothing
    clone.run("ensure", "--stack", "tiny", "--all")
    state = json.loads((folder / "horovod.json").read_text())
    assert not state["available"]
    assert re.match(r"it needs a C\+\+ compiler.*; .*install .*", state["reason"])
    again = clone.run("ensure", "--stack", "tiny", "horovod")
    assert (again.returncode, again.stdout.strip()) == (0, str(folder))
    assert "make env ARGS=horovod tries again" in again.stderr  # a compiler may be there by now
    assert clone.run("exec", "--stack", "tiny", "--add", "horovod", "--", "tiny").stderr == ""
    (folder / "horovod.json").unlink()
    clone.run("exec", "--stack", "tiny", "--", "tiny")
    assert not (folder / "horovod.json").exists()  # built only where asked for
    bad = clone.run("ensure", "--stack", "tiny", "horovod", PARBENCH_HOROVOD_GPU="rocm")
    assert "rocm" in bad.stderr.splitlines()[-1]


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
    command = ["make", "--no-print-directory", f"PYTHON={sys.executable}", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.fixture
def made(tmp_path) -> Path:
    folder = tmp_path / "work folder"
    folder.mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    return folder


@pytest.mark.parametrize("bundle", [False, True])
def test_make_clean_deletes_results_and_reports_alone(made, bundle):
    for name in ("results/cells/x", "results/data/y", "reports", *(["bundle"] if bundle else [])):
        (made / name).mkdir(parents=True)
    for name in ("reports/final.html", "reports/final.pdf", "reports/template.html"):
        (made / name).touch()
    assert make(made, "clean").returncode == 0
    assert [path.name for path in (made / "reports").iterdir()] == ["template.html"]
    # Data that came in a bundle cannot be fetched again.
    left = [path.name for path in (made / "results").glob("*")]
    assert left == (["data"] if bundle else [])


def test_make_without_a_python_says_what_is_needed(made):
    done = make(made, "report", "PYTHON=")
    assert done.returncode == 2
    assert "no Python 3.11 or newer was found" in done.stderr


def test_make_leaves_a_sites_python_variables_out(monkeypatch):
    variables = {"PYTHONHOME": "/nowhere", "PYTHONSAFEPATH": "1", "PYTHONOPTIMIZE": "2"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = make(ROOT, "env", "ARGS=--help")
    assert (done.returncode, done.stderr) == (0, "")


# ---------------------------------------------------------------- outside the environment


def outside(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess:
    """Run Python as outside the environment: its packages are not there (-S)."""
    command = [sys.executable, "-S", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_command_says_what_to_type_on_a_bare_python(tmp_path):
    done = outside("scripts/bin/parbench", "audit", "a b.csv")
    first, *lines = done.stderr.splitlines()
    assert done.returncode == 2
    assert re.match(
        r"error: \S+ lacks packages that parbench needs \(.*\); enter its environment", first
    )
    assert lines == ['  . "$(make -s env)/bin/activate"', "  parbench audit 'a b.csv'"]
    program = str(ROOT / "scripts/bin/parbench")
    done = outside(program, "audit", "a b.csv", folder=tmp_path)  # where `parbench` finds nothing
    assert f"make -s -C {ROOT} env" in done.stderr
    assert done.stderr.endswith(f"python {program} audit 'a b.csv'\n")


def test_snakemake_of_another_environment_says_what_to_type(tmp_path):
    work = Workspace(tmp_path / "work")
    shutil.copy(ROOT / "Makefile", work.folder)
    work.edit("pyproject.toml", '"pandas>=2.2"', '"no-such-package>=2.2"')
    inside = work.snakemake("-n", "--quiet")
    assert "no-such-package" not in inside.stderr  # parbench's own environment has what is locked
    # Elsewhere, that is, with another cache, the same environment is a stranger's.
    done = work.snakemake("-n", "--config", "stack=a b", check=False, PARBENCH_CACHE=str(tmp_path))
    assert done.returncode == 1
    advice = done.stderr[done.stderr.index("error: ") :].splitlines()
    assert (
        "lacks packages that parbench needs (no no-such-package); enter its environment"
        in advice[0]
    )
    line = '  . "$(make -s env)/bin/activate"'
    assert advice[1:] == [line, "  snakemake -n --config 'stack=a b'"]


# ---------------------------------------------------------------- other systems


LINUX = "parbench needs Linux, as it locks, pins and measures processor cores; on Windows: WSL 2"


@pytest.mark.parametrize(
    ("program", "system"),
    [("parbench", "Darwin"), ("parbench", "Windows"), ("snakemake", "Darwin")],
)
def test_another_system_than_linux_is_one_sentence(program, system):
    code = f"import platform, runpy, sys; platform.system = lambda: {system!r}\n"
    if program == "snakemake":
        code += "from snakemake.cli import main; main(['-n', '--quiet'])"
    else:
        code += "runpy.run_path('scripts/bin/parbench')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if not line.startswith("Using ")]
    assert (done.returncode, said) == (1, [f"error: {LINUX}"])


def test_make_on_another_system_is_the_same_sentence(made, tmp_path, monkeypatch):
    uname = tmp_path / "bin" / "uname"
    uname.parent.mkdir()
    uname.write_text("#!/bin/sh\necho Darwin\n")
    uname.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uname.parent}:{os.environ['PATH']}")
    done = make(made, "report")
    assert (done.returncode, done.stderr) == (2, f"Makefile:7: *** {LINUX}.  Stop.\n")
