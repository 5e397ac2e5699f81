"""What the full suite needs of the system, on Debian and Ubuntu: Apptainer, Slurm, Chromium.

    sudo make system                            # all of it
    sudo make system ARGS=chromium              # one part
    make system ARGS=--check                    # what is lacking; installs nothing
    make system ARGS="apptainer --prefix DIR"   # Apptainer in a folder of one's own, without root

What is there is left as it is, and when all is there nothing is asked of any mirror. Services are
neither started nor configured. Where the distribution has no Apptainer (Debian 12), Debian's
unstable one is unpacked with its own libraries into a folder of its own, `/opt/parbench/apptainer`
or `$PARBENCH_APPTAINER_PREFIX`, so that no library of the system changes.

Standard library only: this runs on a bare Python. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cache
from errors import ParbenchError, run_main
from files import read_json, write_atomically, write_json

PARTS = ("apptainer", "slurm", "chromium")
# The programs that are looked for, and the packages of Debian and Ubuntu that hold them.
HELPERS = {
    "mksquashfs": "squashfs-tools",
    "squashfuse_ll": "squashfuse",
    "fuse-overlayfs": "fuse-overlayfs",
    "newuidmap": "uidmap",
    "fakeroot": "fakeroot",
    "debootstrap": "debootstrap",
}
SLURM = {
    "sbatch": "slurm-wlm",
    "srun": "slurm-wlm",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "munged": "munge",
}
BROWSER = {
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
    "pdftotext": "poppler-utils",
}

APPTAINER_NEEDED = (1, 2)  # the first with build arguments and SOURCE_DATE_EPOCH
PREFIX = Path("/opt/parbench/apptainer")
LINK = Path("/usr/local/bin/apptainer")
STAMP = "parbench.json"  # in the prefix: what it was made of, and for which folder
SUITE = "sid"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
UPSTREAM = "https://apptainer.org/docs/admin/latest/installation.html"
PPA = (
    "sudo apt-get install -y software-properties-common"
    " && sudo add-apt-repository -y ppa:apptainer/ppa && sudo apt-get install -y apptainer"
)

SUBIDS = 65536  # Apptainer wants as many
FIRST_SUBID = 200_000
PAUSES = (5, 20)  # seconds before a second and a third try: mirrors fail now and then
SECONDS_BETWEEN_LINES = 10
LAST_LINES = 12
POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_TEXT = "#!/bin/sh\n# By parbench, while it installs: no service is started.\nexit 101\n"


def say(text: str) -> None:
    """A line for people."""
    print(f"parbench: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Lack:
    """One thing that is not there, and the package that mends it; none: see `mend`."""

    part: str
    what: str
    package: str | None = None
    mend: str = ""

    def __str__(self) -> str:
        by = f" (package {self.package})" if self.package else ""
        return f"{self.part}: no {self.what}{by}" + (f"; {self.mend}" if self.mend else "")


def examine(parts: Iterable[str], prefix: Path) -> list[Lack]:
    """All that is lacking for ``parts``, in their order."""
    checks = {"apptainer": _apptainer, "slurm": _slurm, "chromium": _chromium}
    return [lack for part in PARTS if part in parts for lack in checks[part](prefix)]


def _lacking_programs(part: str, programs: dict[str, str]) -> list[Lack]:
    return [
        Lack(part, program, package)
        for program, package in programs.items()
        if which(program) is None
    ]


def which(program: str) -> str | None:
    """The path of ``program``; an ordinary user's PATH on Debian leaves out sbin."""
    return shutil.which(program) or shutil.which(program, path="/usr/local/sbin:/usr/sbin:/sbin")


def _apptainer(prefix: Path) -> Iterator[Lack]:
    if find_apptainer(prefix) is None:
        wanted = ".".join(map(str, APPTAINER_NEEDED))
        yield Lack("apptainer", f"Apptainer {wanted} or newer", "apptainer")
    yield from _lacking_programs("apptainer", HELPERS)
    yield from _lacking_subids()


def _slurm(prefix: Path) -> list[Lack]:
    return [] if sites_own_slurm() else _lacking_programs("slurm", SLURM)


def _chromium(prefix: Path) -> list[Lack]:
    return _lacking_programs("chromium", BROWSER)


def sites_own_slurm() -> str | None:
    """What shows that this machine belongs to a cluster, whose Slurm is never touched."""
    sbatch = which("sbatch")
    if sbatch and not sbatch.startswith("/usr/bin/"):
        return sbatch
    conf = os.environ.get("SLURM_CONF")
    known = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")
    return next((path for path in (conf, *known) if path and Path(path).exists()), None)


# ---------------------------------------------------------------- apt

APT = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"]


def _apt_environment() -> dict[str, str]:
    return {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}


def _ask(command: list[str], folder: Path | None = None) -> str:
    """What a program prints; nothing when it fails."""
    try:
        done = subprocess.run(
            command, cwd=folder, env=_apt_environment(), capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _stream(command: list[str], folder: Path | None) -> tuple[int, str]:
    """Run a program; now and then say its newest line. Returns its status and last lines."""
    last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
    said = time.monotonic()
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_apt_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return 127, f"{command[0]}: {error.strerror}"
    with process:
        for line in process.stdout or ():
            if line.strip():
                last.append(line.strip())
            if last and time.monotonic() - said > SECONDS_BETWEEN_LINES:
                say(f"... {last[-1]}")
                said = time.monotonic()
    return process.returncode, "\n".join(last)


def persist(
    command: list[str], *, mend: Iterable[list[str]] = (), folder: Path | None = None
) -> None:
    """Run ``command``; when it fails again, after ``mend``, three times in all.

    Raises ParbenchError with the command's last lines.
    """
    verb = next((word for word in command if word in ("update", "install", "download")), "")
    what = f"{command[0]} {verb}".strip()
    for pause in (*PAUSES, None):
        status, last = _stream(command, folder)
        if not status:
            return
        if pause is None:
            break
        say(f"{what} failed ({last.splitlines()[-1] if last else status}); again in {pause} s")
        time.sleep(pause)
        if "dpkg --configure -a" in last:  # an earlier installation was interrupted
            _stream(["dpkg", "--configure", "-a"], folder)
        for other in mend:
            _stream(other, folder)
    tries = len(PAUSES) + 1
    raise ParbenchError(
        f"this failed {tries} times: {' '.join(command)}\n{last}\nRun the same again later:"
        " mirrors fail now and then, and what was installed stays"
    )


def candidates(packages: Iterable[str]) -> dict[str, str]:
    """The version of each package that apt would install; what apt does not have is left out.

    Nor are Ubuntu's packages that only install a snap (2:1snap1-0ubuntu2) packages in this sense.
    """
    policy = _ask(["apt-cache", "policy", *packages])
    found = re.findall(r"^(\S+):\n(?:  .*\n)??  Candidate: (\S+)", policy, re.MULTILINE)
    return {name: new for name, new in found if new != "(none)" and "snap" not in new}


@contextlib.contextmanager
def _no_service_starts() -> Iterator[None]:
    """Debian starts a service once it is installed; this is Debian's own switch against that."""
    ours = not POLICY.exists() or _text(POLICY) == POLICY_TEXT  # left by a killed installation
    if ours:
        write_atomically(POLICY, POLICY_TEXT)
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        if ours:
            POLICY.unlink(missing_ok=True)


def install_packages(packages: set[str]) -> set[str]:
    """Install by apt, as root, what apt has of ``packages``. Returns what it has."""
    started = time.monotonic()
    update = [*APT, "update"]
    say("asking the mirror what there is")
    try:
        persist(update)
    except ParbenchError as error:  # perhaps a source that is not the one needed
        say(f"{error}\nparbench: going on with the lists that are there")
    offered = set(candidates(sorted(packages)))
    if "apptainer" in packages - offered and is_debian():  # for the private one
        offered |= {"patchelf"} if which("patchelf") is None else set()
        offered |= {"debian-archive-keyring"} if not KEYRING.exists() else set()
    if offered:
        say(f"installing {', '.join(sorted(offered))}")
        command = [*APT, "install", "--no-install-recommends", *sorted(offered)]
        quiet = _no_service_starts() if offered & set(SLURM.values()) else contextlib.nullcontext()
        with quiet:
            persist(command, mend=[update])
    say(f"apt is done ({time.monotonic() - started:.0f} s)")
    return offered


# ---------------------------------------------------------------- the distribution


def os_release(text: str | None = None) -> dict[str, str]:
    """The fields of /etc/os-release."""
    lines = (_text(Path("/etc/os-release")) if text is None else text).splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}


def is_debian() -> bool:
    """Debian itself: an Ubuntu's mirror does not have Debian's suites."""
    return os_release().get("ID") == "debian"


# What apt itself says of its sources, in either format of theirs.
TARGETS = [
    "indextargets",
    "--no-release-info",
    "--format",
    "$(REPO_URI)|$(RELEASE)|$(COMPONENT)",
    "Created-By: Packages",
]


def debian_mirror(targets: str, codename: str) -> str | None:
    """The address, among apt's own sources, of a mirror of Debian's archive."""
    rows = [line.split("|") for line in targets.splitlines() if line.count("|") == 2]
    rows = [(uri, suite) for uri, suite, component in rows if component == "main"]
    archives = [uri for uri, suite in rows if uri.rstrip("/").endswith("/debian")]
    # Others offer a suite of this name as well, so that it only counts after a name that says it.
    named = [uri for uri, suite in rows if codename and suite == codename]
    return next(iter([*archives, *named]), None)


def machine_mirror() -> str | None:
    """The mirror of Debian's archive that this machine itself uses; None on another system."""
    if not is_debian():
        return None
    return debian_mirror(_ask(["apt-get", *TARGETS]), os_release().get("VERSION_CODENAME", ""))


# ---------------------------------------------------------------- sub-ids

SUBID_FILES = {Path("/etc/subuid"): "--add-subuids", Path("/etc/subgid"): "--add-subgids"}


def builders() -> list[tuple[str, int]]:
    """Who builds images here, with their ids: who calls this; also root's caller by sudo."""
    ids = [os.geteuid()]
    if ids == [0] and os.environ.get("SUDO_UID", "").isdigit():
        ids.append(int(os.environ["SUDO_UID"]))
    known = []
    for uid in dict.fromkeys(ids):
        with contextlib.suppress(KeyError):
            known.append((pwd.getpwuid(uid).pw_name, uid))
    return known


def _ranges(text: str) -> list[tuple[str, int, int]]:
    fields = (line.strip().split(":") for line in text.splitlines())
    numbers = (row for row in fields if len(row) == 3 and row[1].isdigit() and row[2].isdigit())
    return [(owner, int(first), int(count)) for owner, first, count in numbers]


def has_subids(text: str, name: str, uid: int) -> bool:
    """Does this /etc/subuid or /etc/subgid give a user a range that is long enough?"""
    return any(who in (name, str(uid)) and count >= SUBIDS for who, _, count in _ranges(text))


def free_subids(text: str) -> int:
    """The first of as many ids, from FIRST_SUBID on, as no line of the file has any of."""
    start = FIRST_SUBID
    for _, first, count in sorted(_ranges(text), key=lambda row: row[1]):
        if first < start + SUBIDS and start < first + count:
            start = first + count
    if start + SUBIDS > 2**32 - 1:
        raise ParbenchError(f"no {SUBIDS} sub-ids in a row are free: see /etc/subuid, /etc/subgid")
    return start


def lacking_to_build(debootstrap: bool = True) -> list[Lack]:
    """What who calls this would need to build images; debootstrap only where one begins with it."""
    lacks = []
    if debootstrap and which("debootstrap") is None:
        lacks.append(Lack("apptainer", "debootstrap", "debootstrap", "sudo make system"))
    return [*lacks, *lacking_subids()]


def lacking_subids() -> list[Lack]:
    """The ranges of ids that who calls this would need to build images."""
    return list(_lacking_subids())


def _lacking_subids() -> Iterator[Lack]:
    for file in SUBID_FILES:
        for name, uid in builders():
            if not has_subids(text := _text(file), name, uid):
                mend = f"sudo make system, or this line in it: {name}:{free_subids(text)}:{SUBIDS}"
                yield Lack("apptainer", f"range of ids for {name} in {file}", mend=mend)


def add_subids() -> None:
    """Give who builds images a range of ids.

    Without one, an ordinary user's build cannot set the owners of files, and root cannot build at
    all where it has fewer capabilities than root usually has.
    """
    for file, option in SUBID_FILES.items():
        for name, uid in builders():
            if has_subids(text := _text(file), name, uid):
                continue
            first = free_subids(text)
            file.touch()
            span = f"{first}-{first + SUBIDS - 1}"
            status, last = _stream(["usermod", option, span, name], None)
            done = f"usermod failed: {last}" if status else f"{name} may use {span}"
            say(f"{file}: {done}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# ---------------------------------------------------------------- Apptainer in a folder of its own


def default_prefix() -> Path:
    """`$PARBENCH_APPTAINER_PREFIX`, by default /opt/parbench/apptainer."""
    return Path(os.environ.get("PARBENCH_APPTAINER_PREFIX") or PREFIX).absolute()


def apptainer_version(program: str | os.PathLike) -> tuple[int, ...] | None:
    """(1, 4, 5), or None when the program does not run."""
    match = re.search(r"(\d+(?:\.\d+)+)", _ask([str(program), "--version"]))
    return tuple(map(int, match[1].split("."))) if match else None


def find_apptainer(prefix: Path, *, only: bool = False) -> Path | None:
    """An Apptainer that runs and is new enough: $PARBENCH_APPTAINER, on PATH, in ``prefix``."""
    own = prefix / "usr" / "bin" / "apptainer"
    places = [own]
    if not only:
        found = shutil.which("apptainer")
        places = [Path(found), own] if found else [own]
        if named := os.environ.get("PARBENCH_APPTAINER"):  # whoever names one means no other
            places = [Path(named)]
    for place in places:
        if (version := apptainer_version(place)) and version >= APPTAINER_NEEDED:
            return place
    return None


def install_private(prefix: Path) -> None:
    """Unpack Debian's unstable Apptainer, with the libraries that it needs, into ``prefix``.

    Two at once install once; one that is killed leaves the prefix as it was. A folder that was
    moved is adapted to where it is now. Raises ParbenchError.
    """
    if " " in str(prefix) or ":" in str(prefix):  # the loader's search path has no way to say it
        raise ParbenchError(f"{prefix}: choose a folder without blanks and colons in its path")
    for tool in ("apt-get", "dpkg", "patchelf"):
        if which(tool) is None:
            raise ParbenchError(f"Apptainer in {prefix} needs {tool}: sudo apt-get install {tool}")
    lock = prefix.with_name(f".{prefix.name}.lock")
    with cache.locked(lock, str(prefix), "choose a folder of yours: --prefix DIR"):
        if find_apptainer(prefix, only=True):
            return
        stamp = prefix / STAMP
        if stamp.is_file() and read_json(stamp)["prefix"] != str(prefix):
            say(f"{prefix} was moved; adapting it")
            _adapt(prefix, prefix)
            write_json(stamp, {**read_json(stamp), "prefix": str(prefix)})
        if not find_apptainer(prefix, only=True):
            _unpack(prefix)
        if not find_apptainer(prefix, only=True):
            raise ParbenchError(
                f"{prefix}/usr/bin/apptainer does not run; is the file system mounted noexec?"
                f" Otherwise install Apptainer another way: {UPSTREAM}"
            )


def _unpack(prefix: Path) -> None:
    """Build a new prefix aside and put it in place."""
    started = time.monotonic()
    if prefix.exists() and any(prefix.iterdir()) and not (prefix / STAMP).is_file():
        raise ParbenchError(f"{prefix} holds something else; empty it, or choose --prefix DIR")
    mirror = machine_mirror()
    if mirror is None:
        raise ParbenchError(f"apt's sources name no mirror of Debian; Apptainer: {UPSTREAM}")
    if not KEYRING.exists():
        raise ParbenchError(f"{KEYRING} is missing: sudo apt-get install debian-archive-keyring")
    for old in prefix.parent.glob(f".{prefix.name}.*.part"):
        shutil.rmtree(old)
    with contextlib.ExitStack() as stack:
        try:
            aside = tempfile.mkdtemp(prefix=f".{prefix.name}.", suffix=".part", dir=prefix.parent)
        except OSError as error:
            raise ParbenchError(f"{prefix.parent}: {error.strerror}") from None
        stack.callback(shutil.rmtree, aside, ignore_errors=True)
        root, apt = Path(aside, "root"), Path(aside, "apt")
        root.mkdir()
        root.chmod(0o755)
        versions = _download(apt, mirror)
        say(f"Apptainer {versions['apptainer']} of Debian {SUITE}, for {prefix}")
        for archive in sorted(apt.glob("*.deb")):
            status, last = _stream(["dpkg", "-x", str(archive), str(root)], None)
            if status:
                raise ParbenchError(f"{archive.name} could not be unpacked: {last}")
        _lay_out(root)
        _adapt(root, prefix)
        write_json(root / STAMP, {"prefix": str(prefix), "mirror": mirror, "packages": versions})
        if prefix.exists():
            prefix.rename(Path(aside, "old"))
        root.rename(prefix)
    say(f"Apptainer is in {prefix} ({time.monotonic() - started:.0f} s)")


def _download(apt: Path, mirror: str) -> dict[str, str]:
    """Fetch Apptainer and all libraries below it, by an apt of its own that checks signatures.

    Returns the packages and their versions.
    """
    for folder in ("lists/partial", "cache/archives/partial", "none"):
        (apt / folder).mkdir(parents=True)
    write_atomically(apt / "status", "")
    write_atomically(apt / "sources", f"deb [signed-by={KEYRING}] {mirror} {SUITE} main\n")
    settings = {
        "Dir::State": apt,
        "Dir::State::Lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Etc::SourceList": apt / "sources",
        "Dir::Etc::SourceParts": apt / "none",
        "Dir::Etc::Preferences": apt / "none" / "none",
        "Dir::Etc::PreferencesParts": apt / "none",
        "Dir::Cache": apt / "cache",
        "Dir::Cache::pkgcache": "pkgcache.bin",  # Debian's container images keep none
        "APT::Sandbox::User": "",  # the folder is of the user who runs this
        "APT::Default-Release": "",
        "APT::Update::Error-Mode": "any",
        "Acquire::Languages": "none",
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    update = ["apt-get", "-q", *options, "update"]
    persist(update, folder=apt)
    versions: dict[str, str] = {}
    wanted = {"apptainer"}
    while wanted:  # packages that are no libraries are the helpers, which the system has
        shown = _ask(["apt-cache", *options, "show", "--no-all-versions", *sorted(wanted)], apt)
        records = [_fields(record) for record in shown.split("\n\n") if record.strip()]
        versions |= {fields["Package"]: fields["Version"] for fields in records}
        if lost := wanted - set(versions):
            raise ParbenchError(
                f"{mirror} {SUITE} has no {', '.join(sorted(lost))} for this machine;"
                f" other ways to install Apptainer: {UPSTREAM}"
            )
        wanted = {name for fields in records for name in libraries(fields)} - set(versions)
    names = [f"{name}={version}" for name, version in sorted(versions.items())]
    persist(["apt-get", "-q", *options, "download", *names], mend=[update], folder=apt)
    return versions


def _fields(record: str) -> dict[str, str]:
    return dict(re.findall(r"^([A-Za-z-]+): (.*)$", record, re.MULTILINE))


def libraries(fields: dict[str, str]) -> list[str]:
    """The libraries that a package depends on, by name; the first of alternatives."""
    depends = ",".join(fields.get(key, "") for key in ("Pre-Depends", "Depends"))
    names = (re.match(r"\s*([a-z0-9.+-]+)", entry) for entry in depends.split(","))
    return [name[1] for name in names if name and name[1].startswith("lib")]


def _programs(root: Path) -> list[Path]:
    return [root / "usr/bin/apptainer", *sorted(root.glob("usr/lib/*/apptainer/bin/*"))]


def _lay_out(root: Path) -> None:
    """Put files where Apptainer looks for them.

    It takes its own folders relative to its programs: `usr` for the one in usr/bin, and `usr/lib`
    for the other, in usr/lib/<machine>/apptainer/bin.
    """
    (root / "usr/etc").symlink_to("../etc")
    (root / "usr/var").symlink_to("../var")
    (root / "usr/lib/etc").mkdir()
    (root / "usr/lib/etc/apptainer").symlink_to("../../../etc/apptainer")
    (root / "usr/lib/var/lib/apptainer/mnt/session").mkdir(parents=True)


def _adapt(root: Path, prefix: Path) -> None:
    """Make the programs in ``root`` take loader and libraries from ``prefix``, its later place.

    The path of a program's loader is absolute: that is why a moved folder must be adapted.
    """
    for program in _programs(root):
        loader = next(
            iter((*root.glob("usr/lib64/ld-linux*"), *root.glob("usr/lib/ld-linux*"))), None
        )
        folder = next(iter(root.glob("usr/lib/*/libc.so.6")), None)
        if loader is None or folder is None:
            raise ParbenchError(f"Debian's libc6 holds no loader; install Apptainer: {UPSTREAM}")
        inside = prefix / folder.parent.relative_to(root)
        adapted = program.with_name(f".{program.name}.part")
        shutil.copy2(program, adapted)
        command = ["patchelf", "--set-interpreter", str(prefix / loader.relative_to(root))]
        # An rpath, which is asked before LD_LIBRARY_PATH, and holds for the libraries' libraries.
        command += ["--force-rpath", "--set-rpath", str(inside), str(adapted)]
        status, last = _stream(command, None)
        if status:
            raise ParbenchError(f"{program}: patchelf failed: {last}")
        listed = _stream(
            [str(loader), "--library-path", str(folder.parent), "--list", str(adapted)], None
        )
        if listed[0] or "not found" in listed[1]:
            raise ParbenchError(f"{program} lacks a library: {listed[1]}")
        adapted.replace(program)


def link(prefix: Path) -> None:
    """Link the private Apptainer onto PATH, unless something is there."""
    program = prefix / "usr" / "bin" / "apptainer"
    if LINK.is_symlink() and not LINK.exists():
        LINK.unlink()  # to an Apptainer that is gone
    if not LINK.exists():
        LINK.parent.mkdir(parents=True, exist_ok=True)
        LINK.symlink_to(program)
        say(f"{LINK} -> {program}")


def try_out(program: Path) -> None:
    """Build the smallest image and run it; says how that went."""
    loader = next(iter((*Path("/lib64").glob("ld-*"), *Path("/lib").glob("ld-*"))), None)
    if loader is None:
        return
    with tempfile.TemporaryDirectory(prefix="parbench-") as folder:
        tree = Path(folder, "tree")
        for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "var/tmp", "root", "home"):
            (tree / name).mkdir(parents=True)
        shutil.copy(loader, tree / "bin" / "loader")  # a program that needs no library

        def fails(*words: str) -> str:
            status, last = _stream([str(program), "-s", *words], Path(folder))
            return re.sub(r"\x1b\[\d+m", "", last) or f"status {status}" if status else ""

        flags = ["--userns", "--containall", "--no-home"]
        run = ["image.sif", "/bin/loader", "--version"]
        reason = fails("build", "image.sif", "tree") or fails("exec", *flags, *run)
        if not reason:
            say("Apptainer builds an image and runs it")
        elif not fails("exec", "--unsquash", *flags, *run):
            say(f"Apptainer runs an image only unpacked at each start (--unsquash): {reason}")
        else:
            say(f"Apptainer is installed but cannot run an image here: {reason}")


# ---------------------------------------------------------------- the program


def _as_root(lacks: list[Lack], prefix: Path) -> None:
    """Install what is lacking, for all users."""
    if which("apt-get") is None:
        raise ParbenchError(
            f"this is no Debian or Ubuntu: there is no apt-get. Apptainer: {UPSTREAM};"
            " Slurm, Chromium: this system's own packages"
        )
    packages = {lack.package for lack in lacks if lack.package}
    offered = install_packages(packages) if packages else set()
    if any(lack.part == "apptainer" for lack in lacks):
        add_subids()
    if "apptainer" in packages:
        if find_apptainer(prefix) is None and is_debian():
            install_private(prefix)
            link(prefix)
        if program := find_apptainer(prefix):
            say(f"Apptainer {'.'.join(map(str, apptainer_version(program)))}: {program}")
            try_out(program)
    for package in sorted(packages - offered):
        if package.startswith("chromium"):
            say(f"{package}: apt has no package but perhaps a snap; sudo snap install chromium")
        elif package == "apptainer" and not is_debian():
            say(f"apptainer: not in this system's archive; its authors' is: {PPA}")


def main() -> int:
    """Install, or with --check print, what is lacking."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--check", action="store_true", help="print what is lacking, install none")
    parser.add_argument("--prefix", type=Path, help="Apptainer into this folder, without root")
    arguments = parser.parse_args()
    parts = arguments.parts or list(PARTS)
    if unknown := sorted(set(parts) - set(PARTS)):
        raise ParbenchError(f"{', '.join(unknown)}: parts are {', '.join(PARTS)}")
    os.umask(0o022)  # what root installs is for everyone
    if arguments.prefix is not None:
        return _own_prefix(arguments.prefix.absolute(), parts, arguments.check)

    prefix = default_prefix()
    lacks = examine(parts, prefix)
    if arguments.check:
        print("\n".join(map(str, lacks)) or f"all is there: {', '.join(parts)}")
        return int(bool(lacks))
    if "slurm" in parts and (theirs := sites_own_slurm()):
        say(f"slurm: left as it is, since this machine has its own ({theirs})")
    if lacks and os.geteuid() != 0:
        for lack in lacks:
            say(str(lack))
        raise ParbenchError(
            "installing this needs root: sudo make system. Apptainer alone can be had without:"
            ' make system ARGS="apptainer --prefix $HOME/.local/opt/apptainer"'
        )
    if lacks:
        _as_root(lacks, prefix)
        lacks = examine(parts, prefix)
    if lacks:
        raise ParbenchError("still lacking: " + "; ".join(map(str, lacks)))
    say(f"all is there: {', '.join(parts)}")
    return 0


def _own_prefix(prefix: Path, parts: list[str], check: bool) -> int:
    """Apptainer in a folder of the user's own."""
    if parts != ["apptainer"]:
        raise ParbenchError(
            '--prefix is for Apptainer alone: make system ARGS="apptainer --prefix DIR"'
        )
    there = find_apptainer(prefix, only=True)
    if check:
        print(f"Apptainer is in {prefix}" if there else f"no Apptainer in {prefix}")
        return int(there is None)
    if there is None:
        if not is_debian():
            raise ParbenchError(f"--prefix takes Debian's packages. Ubuntu: {PPA}; else {UPSTREAM}")
        install_private(prefix)
    if lacking := _lacking_programs("apptainer", HELPERS):
        packages = " ".join(sorted({lack.package for lack in lacking if lack.package}))
        say(f"for building and mounting images it also wants: sudo apt-get install {packages}")
    program = prefix / "usr" / "bin" / "apptainer"
    if there is None:
        try_out(program)
    print(f"export PARBENCH_APPTAINER={program}")
    return 0


if __name__ == "__main__":
    run_main(main)
