"""`make system`: what it looks for, what it asks of apt, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from workspace import ROOT

TOOLS = ("bash", "cat", "chmod", "env", "grep", "id", "ls", "rm", "sed", "wc")
CHROMIUM = ("chromium", "chromedriver", "pdftotext")


class Machine:
    """A machine whose programs are links and stubs; ``calls`` is for what apt is asked."""

    def __init__(self, folder: Path):
        self.bin, self.calls = folder / "bin", folder / "calls"
        self.bin.mkdir()
        self.calls.touch()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(f"/usr/bin/{tool}")

    def stub(self, name: str, body: str = "") -> None:
        (self.bin / name).unlink(missing_ok=True)  # it may be a link to the real program
        (self.bin / name).write_text(f"#!/bin/bash\n{body}\n")
        (self.bin / name).chmod(0o755)

    def run(self, *words: str) -> subprocess.CompletedProcess:
        # The script also searches sbin; this copy must not.
        script = (ROOT / "containers/system.sh").read_text()
        script = script.replace(":/usr/local/sbin:/usr/sbin:/sbin", "")
        script = script.replace("/usr/sbin/policy-rc.d", str(self.bin / "policy-rc.d"))
        return subprocess.run(
            ["/bin/bash", "-c", script, "system.sh", *words],
            env={"PATH": str(self.bin)},
            capture_output=True,
            text=True,
        )


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


def test_apt_is_asked_for_what_is_lacking_and_no_service_starts(machine):
    if os.getuid():
        pytest.skip("only root installs")
    machine.stub(
        "apt-get",
        f"""echo "$*" >>"{machine.calls}"
case "$*" in
    *install*) [[ -e "{machine.bin}/policy-rc.d" ]] || exit 9 ;;
esac""",
    )
    machine.stub("chromium")
    done = machine.run("chromium")
    assert (done.returncode, done.stderr) == (0, "parbench: all is there: chromium\n")
    update, install = machine.calls.read_text().splitlines()
    assert update.endswith("update")
    assert install.endswith("recommends chromium-driver poppler-utils")
    assert not (machine.bin / "policy-rc.d").exists()
    for name in CHROMIUM:
        machine.stub(name)
    machine.calls.write_text("")
    assert machine.run("chromium").returncode == 0
    assert machine.calls.read_text() == ""  # all is there


def test_mistakes_are_one_sentence(machine):
    done = machine.run("nonsense")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "nonsense: parts are apptainer, slurm, chromium, java" in done.stderr
    machine.stub("id", "echo 1000")
    done = machine.run("chromium")
    assert done.returncode == 2
    assert "needs root: sudo make system" in done.stderr
