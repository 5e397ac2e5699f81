"""The program parbench: its commands, their help, where it is found, and names that it replaced."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parbench import __main__ as program
from parbench import variables
from parbench.deploy import host_environment
from require import require
from test_images import ready
from workspace import ROOT

NAMES = [name for folder in program.FOLDERS.values() for name in program.names(folder)]
REPLACED = sorted(path.name for path in variables.SCRIPTS.glob("*.py") if path.is_symlink())


def run(*words: object, folder: Path = ROOT, **more: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        list(map(str, words)), cwd=folder, capture_output=True, text=True, check=False, **more
    )


def taken(name: str) -> set[str]:
    """Return the options and arguments of a command."""
    actions = program.parser_of(name, program.load(name))._actions
    return {word for action in actions for word in (*action.option_strings, action.dest)}


def test_the_help_of_each_command_needs_no_packages():
    helps = "import sys\nsys.path.insert(0, 'scripts')\nfrom parbench.__main__ import main\n"
    helps += f"for name in {NAMES}:\n    try:\n        main([name, '--help'])\n"
    helps += "    except SystemExit as end:\n        assert not end.code, name\n"
    done = run(sys.executable, "-S", "-c", helps)
    assert (done.returncode, done.stderr) == (0, "")
    for name in NAMES:
        assert f"usage: parbench {name} " in done.stdout


def test_the_help_lists_each_command_with_the_first_line_of_its_own():
    listed = run(sys.executable, "-S", variables.PROGRAM, "--help").stdout
    commands, called = listed.partition("called by the workflow:")[::2]
    assert "  why          Show why a cell would run again" in commands
    assert "  train        Train one cell" in called
    for name in NAMES:
        assert program.load(name).__doc__.partition("\n")[0] in listed


def test_a_command_imports_only_what_it_needs():
    code = "import sys; sys.path.insert(0, 'scripts'); from parbench.__main__ import main\n"
    code += "main(['rank', 'x', '']) if 0 else None\nimport parbench.commands.called.launch\n"
    code += "from parbench.launch import launcher\n"
    code += "print({'snakemake', 'pydantic', 'pandas', 'torch'} & sys.modules.keys())"
    assert run(sys.executable, "-c", code).stdout == "set()\n"


def test_an_unknown_command_is_answered_by_the_nearest():
    done = run(sys.executable, variables.PROGRAM, "cell")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: there is no command 'cell'; did you mean 'cells'?\n"
    done = run(sys.executable, variables.PROGRAM, "nosuch")
    assert done.stderr == "error: there is no command 'nosuch'; `parbench --help` lists them\n"


@pytest.mark.parametrize("name", [name for name in NAMES if "--study" in taken(name)])
def test_an_unknown_study_is_named_with_the_option_that_names_it(name):
    needed = ["x"] * ("cell" in taken(name))
    done = run(sys.executable, variables.PROGRAM, name, *needed, "--study", "nosuch")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: --study: unknown study 'nosuch': there is no studies/")


def test_a_word_that_is_no_argument_is_refused():
    done = run(sys.executable, variables.PROGRAM, "cells", "--cores", "2")
    assert done.returncode == 2
    assert "parbench cells: error: unrecognized arguments: --cores 2" in done.stderr


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cells.py list", "parbench cells"),
        ("cells.py --study quickstart why vit", "parbench why --study quickstart vit"),
        ("cells.py command vit", "parbench command vit"),
        ("equivalence.py --model vit", "parbench certify --model vit"),
        ("environment.py ensure --all", "parbench env ensure --all"),
        ("study.py check mine", "parbench study check mine"),
    ],
)
def test_an_old_program_names_the_line_to_type_instead(old, new):
    name, *words = old.split()
    done = run(sys.executable, variables.SCRIPTS / name, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == f"error: scripts/{name} is now: {new}"


@pytest.mark.parametrize("name", REPLACED)
def test_the_successor_of_an_old_program_exists(name):
    said = run(sys.executable, variables.SCRIPTS / name).stderr
    assert said.splitlines()[0].split()[-1] in NAMES


def typed(keys: str, *shell: str, folder: Path) -> str:
    """Return what an interactive ``shell``, which the ``keys`` end, shows in its terminal."""
    controller, terminal = pty.openpty()
    ends = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "dumb"}
    process = subprocess.Popen(shell, cwd=folder, env=environment, start_new_session=True, **ends)
    os.close(terminal)
    os.write(controller, keys.encode())
    shown = b""
    with contextlib.suppress(OSError):  # no process has the terminal any more
        while read := os.read(controller, 4096):
            shown += read
    os.close(controller)
    process.wait()
    return shown.decode()


@pytest.mark.parametrize("shell", [("bash", "--norc"), ("zsh", "-f")], ids=lambda words: words[0])
def test_a_shell_completes_commands_actions_and_options(shell, tmp_path):
    if shell[0] == "zsh":
        require("zsh")
    script = run(sys.executable, "-S", variables.PROGRAM, "completions", shell[0]).stdout
    (tmp_path / "script").write_text(f"{script}\nparbench() {{ echo ran $*.; }}\n")
    lines = [
        ". ./script",
        "parbench cel\t",
        "parbench claims sh\t",
        "parbench cells --st\t",
        "exit",
    ]
    shown = typed("".join(f"{line}\n" for line in lines), *shell, "-i", folder=tmp_path)
    shown = shown.replace(" .", ".")
    assert re.findall("ran .*[.]", shown) == [
        "ran cells.",
        "ran claims show.",
        "ran cells --study.",
    ]


@pytest.fixture
def found(tmp_path):
    """Return the folder of an environment, with the program that finds the checkout."""
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/python").symlink_to(sys.executable)
    host_environment._add_ours(tmp_path / "env")
    return tmp_path / "env/bin"


def test_the_environment_runs_the_code_of_the_checkout_around_the_working_folder(found, tmp_path):
    other = tmp_path / "another checkout"
    (other / "scripts/bin").mkdir(parents=True)
    (other / "inner").mkdir()
    (other / "scripts/bin/parbench").write_text("import sys; print('another', *sys.argv[1:])")
    paths = {**os.environ, "PATH": f"{found}:{os.environ['PATH']}"}
    assert run("parbench", "a b", folder=other / "inner", env=paths).stdout == "another a b\n"
    assert "usage: parbench" in run("parbench", "--help", folder=ROOT / "docs", env=paths).stdout


def test_outside_a_checkout_the_program_says_so(found, tmp_path):
    done = run(found / "parbench", "cells", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {tmp_path} is in no checkout of parbench: go to one")


def test_the_module_runs_as_the_program_does():
    path = {**os.environ, "PYTHONPATH": str(variables.SCRIPTS)}
    done = run(sys.executable, "-m", "parbench", "why", "--help", env=path)
    assert "usage: parbench why " in done.stdout


def test_the_module_runs_inside_an_image():
    ready("report")
    inside = ["images", "run", "report", "--", "python", "-m", "parbench", "render", "--help"]
    done = run(sys.executable, variables.PROGRAM, *inside)
    assert "usage: parbench render " in done.stdout, done.stderr
