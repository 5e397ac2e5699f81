"""`make system`: what is looked for, what apt is asked, and what is left as it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TOOLS = (
    "bash", "awk", "cat", "chmod", "comm", "cut", "dirname", "env", "grep", "head", "id",
    "ls", "mkdir", "mktemp", "mv", "realpath", "rm", "sed", "sort", "tr", "wc", "xargs",
)  # fmt: skip
ALL = (
    "mksquashfs", "squashfuse_ll", "fuse-overlayfs", "newuidmap", "fakeroot", "debootstrap",
    "sbatch", "srun", "slurmctld", "slurmd", "munged", "chromium", "chromedriver", "pdftotext",
)  # fmt: skip


class Machine:
    """A machine whose programs are stubs; apt notes what it is asked, and installs it."""

    def __init__(self, folder: Path):
        self.bin, self.calls = folder / "bin", folder / "calls"
        self.bin.mkdir()
        self.calls.touch()
        for tool in TOOLS:
            (self.bin / tool).symlink_to(f"/usr/bin/{tool}")
        self.stub("sleep")
        self.stub("usermod", f'echo "usermod $*" >>"{self.calls}"')

    def stub(self, name: str, body: str = "") -> None:
        (self.bin / name).unlink(missing_ok=True)  # a link to the machine's own
        (self.bin / name).write_text(f"#!/bin/bash\n{body}\n")
        (self.bin / name).chmod(0o755)

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess:
        # The script looks into sbin, too: a copy of it does not.
        script = (ROOT / "containers/system.sh").read_text()
        script = script.replace(":/usr/local/sbin:/usr/sbin:/sbin", "")
        script = script.replace("/usr/sbin/policy-rc.d", str(self.bin / "policy-rc.d"))
        script = script.replace("/usr/local/bin/apptainer", str(self.bin / "apptainer"))
        env = {"PATH": str(self.bin), "PARBENCH_APPTAINER_PREFIX": str(self.bin / "prefix")}
        return subprocess.run(
            ["/bin/bash", "-c", script, "system.sh", *words],
            env={**env, **variables},
            capture_output=True,
            text=True,
        )


@pytest.fixture
def machine(tmp_path) -> Machine:
    return Machine(tmp_path)


def test_where_all_is_there_nothing_is_asked(machine):
    for name in ALL:
        machine.stub(name)
    machine.stub("apptainer", "echo apptainer version 1.4.5")
    machine.stub("apt-get", f'echo "$*" >>"{machine.calls}"')
    done = machine.run("slurm", "chromium")
    assert (done.returncode, done.stderr) == (0, "parbench: all is there: slurm chromium\n")
    assert machine.run("--check", "chromium").stdout == "all is there: chromium\n"
    assert machine.calls.read_text() == ""


def test_check_names_what_is_lacking_and_installs_nothing(machine):
    done = machine.run("--check", "chromium", "apptainer")
    assert done.returncode == 1
    assert "chromium: no chromedriver (package chromium-driver)\n" in done.stdout
    assert "apptainer: no Apptainer 1.2 or newer (package apptainer)\n" in done.stdout
    machine.stub("apptainer", "echo apptainer version 1.1.9")
    assert "no Apptainer 1.2 or newer" in machine.run("--check", "apptainer").stdout
    machine.stub("apptainer", "echo apptainer version 1.4.5")
    assert "no Apptainer" not in machine.run("--check", "apptainer").stdout


def test_apt_is_asked_again_when_a_mirror_fails_and_no_service_starts(machine):
    if os.getuid():
        pytest.skip("only root installs")
    body = f"""echo "$*" >>"{machine.calls}"
case "$*" in
    *install*) [[ -e "{machine.bin}/policy-rc.d" ]] || exit 9
        [[ $(grep -c install "{machine.calls}") -gt 1 ]] || exit 100
        for name in chromium chromedriver pdftotext; do
            printf '#!/bin/bash\\n' >"{machine.bin}/$name"; chmod 755 "{machine.bin}/$name"
        done ;;
esac"""
    machine.stub("apt-get", body)
    machine.stub("apt-cache", 'echo "  Candidate: 1.0"')
    done = machine.run("chromium")
    assert done.returncode == 0, done.stderr
    asked = machine.calls.read_text().splitlines()
    assert asked[0].endswith("update")
    assert [line.split("recommends ")[1] for line in asked[1:]] == [
        "chromium chromium-driver poppler-utils"
    ] * 2
    assert "again in 5 s" in done.stderr
    assert not (machine.bin / "policy-rc.d").exists()


def test_a_package_that_only_installs_a_snap_is_none(machine):
    if os.getuid():
        pytest.skip("only root installs")
    machine.stub("apt-get", f'echo "$*" >>"{machine.calls}"')
    machine.stub("apt-cache", 'echo "  Candidate: 2:1snap1-0ubuntu2"')
    done = machine.run("chromium")
    assert done.returncode == 2
    assert "still lacking: chromium: no chromium" in done.stderr
    assert "snap install chromium" in done.stderr
    assert "install" not in machine.calls.read_text()


def test_mistakes_are_one_sentence(machine):
    done = machine.run("nonsense")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "nonsense: parts are apptainer, slurm, chromium" in done.stderr
    assert "--prefix is for Apptainer alone" in machine.run("slurm", "--prefix", "/x").stderr
    machine.stub("id", "echo 1000")
    done = machine.run("chromium")
    assert done.returncode == 2
    assert "needs root: sudo make system" in done.stderr
