"""What is installed for the full suite: what is looked for, what apt is asked, and what stays."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import system
from errors import ParbenchError
from require import require

ROOT = Path(__file__).resolve().parent.parent
NEEDS_APT = pytest.mark.skipif(shutil.which("apt-get") is None, reason="not a Debian or Ubuntu")


# ---------------------------------------------------------------- a system of stubs


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A machine of root's whose programs are stubs: apt fails as often as asked, then installs."""
    programs = tmp_path / "bin"
    programs.mkdir()
    log = tmp_path / "apt.log"
    log.touch()

    def stub(name: str, text: str) -> None:
        path = programs / name
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{text}\n")
        path.chmod(0o755)

    def apt(failures: int = 0, says: str = "E: the mirror is away", policy: str = "") -> Path:
        policy = policy or "".join(
            f"{name}:\n  Installed: (none)\n  Candidate: 1.2\n"
            for name in ("chromium", "chromium-driver", "poppler-utils")
        )
        stub("apt-cache", f"cat <<'END'\n{policy}END")
        stub(
            "apt-get",
            f'echo "$*" >>"{log}"\n'
            'case "$*" in *" install "*) ;; *) exit 0 ;; esac\n'
            f'if [ "$(grep -c " install " "{log}")" -le {failures} ]; then\n'
            f"  echo reading; echo '{says}' >&2; exit 100\nfi\n"
            'for name in "$@"; do case $name in\n'
            f'  chromium) cp /bin/true "{programs}/chromium" ;;\n'
            f'  chromium-driver) cp /bin/true "{programs}/chromedriver" ;;\n'
            f'  poppler-utils) cp /bin/true "{programs}/pdftotext" ;;\n'
            "esac; done",
        )
        stub("dpkg", f'echo "dpkg $*" >>"{log}"')
        return log

    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(system, "PAUSES", (0, 0))
    return apt


def run(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["system.py", *words])
    return system.main()


def test_a_second_run_asks_no_mirror(bare, monkeypatch, capsys):
    log = bare()
    assert run(monkeypatch, "chromium") == 0
    first = log.read_text()
    assert first.count(" update") == 1
    assert "--no-install-recommends chromium chromium-driver poppler-utils" in first
    capsys.readouterr()
    assert run(monkeypatch, "chromium") == 0
    assert log.read_text() == first
    assert capsys.readouterr().err == "parbench: all is there: chromium\n"


def test_check_tells_and_installs_nothing(bare, monkeypatch, capsys):
    log = bare()
    assert run(monkeypatch, "--check", "chromium") == 1
    assert "chromium: no chromedriver (package chromium-driver)" in capsys.readouterr().out
    assert log.read_text() == ""
    run(monkeypatch, "chromium")
    assert run(monkeypatch, "--check", "chromium") == 0
    assert capsys.readouterr().out == "all is there: chromium\n"


def test_a_mirror_that_fails_now_and_then_is_asked_again(bare, monkeypatch, capsys):
    log = bare(failures=2)
    assert run(monkeypatch, "chromium") == 0
    assert log.read_text().count(" install ") == 3
    assert log.read_text().count(" update") == 3  # its lists may be what was old
    assert "apt-get install failed (E: the mirror is away); again in 0 s" in capsys.readouterr().err


def test_a_mirror_that_stays_away_ends_in_its_own_words(bare, monkeypatch):
    bare(failures=9)
    with pytest.raises(ParbenchError, match=r"(?s)failed 3 times: apt-get .*E: the mirror is away"):
        run(monkeypatch, "chromium")


def test_an_interrupted_installation_is_finished_first(bare, monkeypatch):
    says = "E: dpkg was interrupted, you must manually run dpkg --configure -a to correct it"
    log = bare(failures=1, says=says)
    assert run(monkeypatch, "chromium") == 0
    assert "dpkg --configure -a\n" in log.read_text()


def test_a_snap_is_no_package(bare, monkeypatch, capsys):
    policy = (
        "chromium:\n  Installed: (none)\n  Candidate: 2:1snap1-0ubuntu2\n"
        "poppler-utils:\n  Installed: (none)\n  Candidate: 24.02.0-1ubuntu9\n"
    )
    log = bare(policy=policy)
    with pytest.raises(ParbenchError, match="still lacking: chromium: no chromium "):
        run(monkeypatch, "chromium")
    assert "--no-install-recommends poppler-utils\n" in log.read_text()  # the rest is installed
    assert "sudo snap install chromium" in capsys.readouterr().err


def test_on_ubuntu_apptainer_comes_from_its_authors(bare, monkeypatch, capsys, tmp_path):
    log = bare(policy="debootstrap:\n  Installed: (none)\n  Candidate: 1.0.134\n")
    monkeypatch.setattr(system, "is_debian", lambda: False)
    monkeypatch.setattr(system, "SUBID_FILES", {})
    monkeypatch.setenv("PARBENCH_APPTAINER_PREFIX", str(tmp_path / "none"))
    monkeypatch.delenv("PARBENCH_APPTAINER", raising=False)
    with pytest.raises(ParbenchError, match="still lacking: apptainer: no Apptainer 1.2 or newer"):
        run(monkeypatch, "apptainer")
    assert "--no-install-recommends debootstrap\n" in log.read_text()
    assert "add-apt-repository -y ppa:apptainer/ppa" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_without_root_it_names_the_command(bare, monkeypatch, capsys):
    log = bare()
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    with pytest.raises(ParbenchError, match=r"needs root: sudo make system.*--prefix"):
        run(monkeypatch, "chromium")
    assert "no pdftotext (package poppler-utils)" in capsys.readouterr().err
    assert log.read_text() == ""


def test_another_system_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ParbenchError, match="no Debian or Ubuntu"):
        run(monkeypatch, "chromium")
    with pytest.raises(ParbenchError, match="nonsense: parts are apptainer, slurm, chromium"):
        run(monkeypatch, "nonsense")


def test_here_it_finds_apptainer():
    require("apptainer")
    command = [sys.executable, "-B", str(ROOT / "scripts/system.py"), "--check", "apptainer"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "no Apptainer" not in done.stdout
    # Helpers and sub-ids may be another matter for an ordinary user.
    assert done.returncode == (0 if done.stdout == "all is there: apptainer\n" else 1)


# ---------------------------------------------------------------- Slurm


def test_a_cluster_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\n")
    sbatch.chmod(0o755)
    assert system.sites_own_slurm() == str(sbatch)  # not where Debian puts it
    assert system.examine(["slurm"], tmp_path) == []
    sbatch.unlink()
    conf = tmp_path / "slurm.conf"
    conf.touch()
    monkeypatch.setenv("SLURM_CONF", str(conf))
    assert system.sites_own_slurm() == str(conf)


def test_no_service_starts_while_installing(tmp_path, monkeypatch):
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(system, "POLICY", policy)
    for left_by_a_killed_run in (False, True):
        if left_by_a_killed_run:
            policy.write_text(system.POLICY_TEXT)
        with system._no_service_starts():
            assert subprocess.run([policy]).returncode == 101
        assert not policy.exists()
    policy.write_text("#!/bin/sh\nexit 0\n")
    with system._no_service_starts():
        assert policy.read_text() == "#!/bin/sh\nexit 0\n"
    assert policy.exists()


# ---------------------------------------------------------------- sub-ids


LINES = st.tuples(
    st.sampled_from(["root", "0", "ada", "1000"]),
    st.integers(100_000, 600_000),
    st.integers(1, 200_000),
)


@given(st.lists(LINES, max_size=12))
def test_a_new_range_is_nobodys(rows):
    text = "".join(f"{who}:{first}:{count}\n" for who, first, count in rows)
    start = system.free_subids(text)
    assert start >= system.FIRST_SUBID
    for _, first, count in rows:
        assert start + system.SUBIDS <= first or first + count <= start
    assert system.has_subids(f"{text}root:{start}:{system.SUBIDS}\n", "root", 0)


def test_a_range_counts_by_name_or_number_and_by_length():
    assert system.has_subids("ada:100000:65536\n", "ada", 1000)
    assert system.has_subids("# lines\n\n1000:100000:65536", "ada", 1000)
    assert not system.has_subids("ada:100000:65535\nbob:1:65536\nada:x:y\n", "ada", 1000)
    assert system.free_subids("") == 200_000
    with pytest.raises(ParbenchError, match="are free"):
        system.free_subids(f"bob:1:{2**32}")


def test_ids_are_for_who_calls_sudo_too(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", "1")
    assert [uid for _, uid in system.builders()] == [0, 1]
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    assert [uid for _, uid in system.builders()] == [1]


# ---------------------------------------------------------------- apt's sources

ARCHIVE = """\
Types: deb deb-src
URIs: {uri}
Suites: bookworm bookworm-updates
Components: main contrib
"""
DEB822 = f"""\
Types: deb
URIs: http://sec.example/debian-security
Suites: bookworm-security
Components: main

# the archive
{ARCHIVE}"""
OTHERS = """\
deb [arch=amd64] https://tools.example/apt bookworm main
deb https://docker.example/linux/debian bookworm stable
deb http://flat.example/x ./
"""


@NEEDS_APT
@pytest.mark.parametrize(
    ("lines", "stanzas", "mirror"),
    [
        ("deb http://a.example/debian bookworm main  # tail\n", "", "http://a.example/debian/"),
        ("deb [arch=amd64] http://a.example/debian/ trixie main\n", "", "http://a.example/debian/"),
        ("", DEB822.format(uri="http://b.example/debian"), "http://b.example/debian/"),
        (OTHERS, DEB822.format(uri="http://b.example/debian"), "http://b.example/debian/"),
        ("deb http://c.example/snap/2026/ bookworm main\n", "", "http://c.example/snap/2026/"),
        ("deb-src http://a.example/debian bookworm main\n", "", None),
        ("deb http://d.example/ubuntu noble main\n", "", None),
        ("", "Enabled: no\n" + ARCHIVE.format(uri="http://b.example/debian"), None),
    ],
)
def test_the_mirror_is_the_machines_own(tmp_path, lines, stanzas, mirror):
    (tmp_path / "sources.list").write_text(lines)
    (tmp_path / "parts").mkdir()
    if stanzas:
        (tmp_path / "parts" / "debian.sources").write_text(stanzas)
    places = {"SourceList": "sources.list", "SourceParts": "parts"}
    options = [f"-oDir::Etc::{key}={tmp_path / name}" for key, name in places.items()]
    done = subprocess.run(
        ["apt-get", *options, *system.TARGETS], capture_output=True, text=True, check=True
    )
    assert system.debian_mirror(done.stdout, "bookworm") == mirror


def test_libraries_are_told_from_helpers():
    fields = {
        "Pre-Depends": "libcrypt1 (>= 4.4)",
        "Depends": "ca-certificates, libc6 (>= 2.38), libsqlite3-0:any (>= 3.36) | other, uidmap",
    }
    assert system.libraries(fields) == ["libcrypt1", "libc6", "libsqlite3-0"]
    assert system.libraries({}) == []


def test_os_release_with_and_without_quotes():
    fields = system.os_release('ID=debian\nVERSION_CODENAME="bookworm"\n# x\n')
    assert fields == {"ID": "debian", "VERSION_CODENAME": "bookworm"}


# ---------------------------------------------------------------- a prefix of one's own


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Stands for the download: packages whose `apptainer` is `env`, with this machine's libc."""
    for tool in ("patchelf", "dpkg-deb", "apt-get"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    shown = subprocess.run(["ldd", "/usr/bin/env"], capture_output=True, text=True).stdout
    words = [word for word in shown.split() if word.startswith("/")]
    loader = next(word for word in words if "/ld-" in word)
    tree = tmp_path / "tree"
    for folder in ("DEBIAN", "usr/bin", "usr/lib64", "usr/lib/m/apptainer/bin", "etc/apptainer"):
        (tree / folder).mkdir(parents=True)
    for program in ("usr/bin/apptainer", "usr/lib/m/apptainer/bin/starter"):
        shutil.copy("/usr/bin/env", tree / program)
    shutil.copy(loader, tree / "usr/lib64" / Path(loader).name)
    for library in set(words) - {loader}:
        shutil.copy(library, tree / "usr/lib/m")
    control = "Package: apptainer\nVersion: 9\nArchitecture: all\nMaintainer: x\nDescription: x\n"
    (tree / "DEBIAN" / "control").write_text(control)

    def download(folder: Path, mirror: str) -> dict[str, str]:
        folder.mkdir(parents=True)
        command = ["dpkg-deb", "-Znone", "--build", str(tree), str(folder / "x.deb")]
        subprocess.run(command, check=True, capture_output=True)
        return {"apptainer": "9"}

    monkeypatch.setattr(system, "_download", download)
    monkeypatch.setattr(system, "debian_mirror", lambda *_: "http://a.example/debian/")
    monkeypatch.setattr(system, "KEYRING", Path("/etc/os-release"))


def loader_of(prefix: Path) -> str:
    command = ["patchelf", "--print-interpreter", str(prefix / "usr/bin/apptainer")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_prefix_has_its_own_loader_and_may_move(packages, tmp_path):
    prefix = tmp_path / "opt" / "apptainer"
    system.install_private(prefix)
    assert loader_of(prefix).startswith(str(prefix))
    assert (prefix / "usr/lib/etc/apptainer").resolve() == prefix / "etc/apptainer"
    assert prefix.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in sorted(prefix.parent.iterdir())] == [
        ".apptainer.lock",
        "apptainer",
    ]
    before = (prefix / "usr/bin/apptainer").stat()
    system.install_private(prefix)
    assert (prefix / "usr/bin/apptainer").stat() == before  # nothing was done

    moved = tmp_path / "elsewhere"
    prefix.rename(moved)
    assert system.find_apptainer(moved, only=True) is None
    system.install_private(moved)
    assert loader_of(moved).startswith(str(moved))
    assert system.find_apptainer(moved, only=True) == moved / "usr/bin/apptainer"


def test_a_killed_installation_leaves_nothing_half(packages, tmp_path):
    prefix = tmp_path / "opt" / "apptainer"
    killed = f"""
import os, signal, sys
sys.path[:0] = {[str(ROOT / "scripts"), str(ROOT / "tests")]}
import system
system._download = lambda folder, mirror: os.kill(os.getpid(), signal.SIGKILL)
system.debian_mirror = lambda *_: "http://a.example/debian/"
system.KEYRING = system.Path("/etc/os-release")
system.install_private(system.Path({str(prefix)!r}))
"""
    assert subprocess.run([sys.executable, "-c", killed]).returncode == -9
    assert not prefix.exists()
    assert list(prefix.parent.glob(".*.part"))
    system.install_private(prefix)
    assert not list(prefix.parent.glob(".*.part"))
    (prefix / "usr/bin/apptainer").write_bytes(b"")  # broken: made anew
    system.install_private(prefix)
    assert system.find_apptainer(prefix, only=True)


def test_a_folder_of_something_else_is_kept(packages, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(ParbenchError, match="holds something else"):
        system.install_private(tmp_path / "mine")
    with pytest.raises(ParbenchError, match="without blanks"):
        system.install_private(tmp_path / "a folder")
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_the_link_takes_no_place_that_is_taken(tmp_path, monkeypatch):
    place = tmp_path / "bin" / "apptainer"
    monkeypatch.setattr(system, "LINK", place)
    prefix = tmp_path / "prefix"
    (prefix / "usr/bin").mkdir(parents=True)
    (prefix / "usr/bin/apptainer").touch()
    system.link(prefix)
    assert place.readlink() == prefix / "usr/bin/apptainer"
    place.unlink()
    place.symlink_to(tmp_path / "gone")  # to an installation that was deleted
    system.link(prefix)
    assert place.readlink() == prefix / "usr/bin/apptainer"
    place.unlink()
    place.write_text("the site's own")
    system.link(prefix)
    assert place.read_text() == "the site's own"
