"""`make system`: what it looks for, what it asks of apt, and what it leaves alone."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from workspace import ROOT

TOOLS = ("bash", "cat", "chmod", "cut", "env", "grep", "id", "ls", "rm", "sed", "sort", "tr", "wc")
CHROMIUM = ("chromium", "chromedriver", "pdftotext")


class Machine:
    """A machine whose programs are links and stubs; ``calls`` is for what apt is asked."""

    def __init__(self, folder: Path):
        self.bin, self.calls = folder / "bin", folder / "calls"
        self.os_release = folder / "os-release"
        self.os_release.write_text("ID=debian\n")
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
        script = script.replace("/etc/os-release", str(self.os_release))
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
    machine.stub("id", "echo 0")
    machine.stub(
        "apt-get",
        f"""echo "$*" >>"{machine.calls}"
case "$*" in
    *install*) [[ -e "{machine.bin}/policy-rc.d" ]] || exit 9 ;;
esac""",
    )
    machine.stub("apt-cache")
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
    assert "nonsense: parts are apptainer, slurm, accounting, chromium, java, zsh" in done.stderr
    machine.stub("id", "echo 1000")
    done = machine.run("chromium")
    assert done.returncode == 2
    assert "needs root: sudo make system" in done.stderr


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("ID=fedora", "here: sudo dnf install chromedriver chromium poppler-utils"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', "sudo dnf install "),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"', "sudo zypper install .* poppler-tools"),
        ("ID=arch", r"here install \(by Debian's names\): chromium chromium-driver poppler-utils"),
    ],
)
def test_packages_are_named_as_each_distribution_names_them(machine, system, words):
    machine.os_release.write_text(f"{system}\n")
    done = machine.run("chromium")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert re.search(words, done.stderr), done.stderr
    for name in CHROMIUM:
        machine.stub(name)
    done = machine.run("chromium")
    assert (done.returncode, done.stderr) == (0, "parbench: all is there: chromium\n")


def test_java_is_one_that_the_distribution_has(machine):
    machine.stub("id", "echo 0")
    machine.stub("apt-get", f'echo "$*" >>"{machine.calls}"')
    machine.stub("apt-cache", "exit 100")  # Debian 13
    assert machine.run("java").returncode == 0
    assert machine.calls.read_text().endswith("recommends openjdk-21-jre-headless\n")
