"""Find the command that installs a program on this machine's distribution.

Standard library only.
"""

from __future__ import annotations

import platform
import sys

_VERSION = sys.version_info
# Debian's and Ubuntu's names of packages; those of Fedora and RHEL; those of openSUSE and SLE.
_PACKAGES = {
    "apptainer": ("apptainer", "apptainer", "apptainer"),
    "compiler": ("g++", "gcc-c++", "gcc-c++"),
    "debootstrap": ("debootstrap", "debootstrap", "debootstrap"),
    "headers": (
        f"python{_VERSION.major}.{_VERSION.minor}-dev",
        f"python{_VERSION.major}.{_VERSION.minor}-devel",
        f"python{_VERSION.major}{_VERSION.minor}-devel",
    ),
    "java": ("openjdk-17-jre-headless", "java-21-openjdk-headless", "java-17-openjdk-headless"),
    "make": ("make", "make", "make"),
    "pip": ("python3-pip", "python3-pip", "python3-pip"),
}
_MANAGERS = ("apt", "dnf", "zypper")
_FAMILIES = (("debian", "ubuntu"), ("fedora", "rhel"), ("suse", "opensuse"))


def family() -> int | None:
    """Return the index of this system's family in _PACKAGES; None if it is unknown."""
    try:
        facts = platform.freedesktop_os_release()
    except OSError:
        return None
    names = {facts.get("ID"), *facts.get("ID_LIKE", "").split()}
    return next((number for number, each in enumerate(_FAMILIES) if names & {*each}), None)


def install(*programs: str) -> str:
    """Return the command that installs ``programs``, which are keys of _PACKAGES.

    If the package manager is unknown, returns a sentence with Debian's names of the packages.
    """
    number = family()
    if number is None:
        names = ", ".join(_PACKAGES[program][0] for program in programs)
        return f"install {names} (the names may differ on this system)"
    names = " ".join(_PACKAGES[program][number] for program in programs)
    return f"sudo {_MANAGERS[number]} install {names}"


def system(part: str, program: str | None = None) -> str:
    """Return the command that installs ``program``, by default the one called ``part``.

    On Debian and Ubuntu this is `make system` with ``part``, which also installs what it needs.
    """
    return f"sudo make system ARGS={part}" if family() == 0 else install(program or part)


def give_ids(user: str) -> str:
    """Return the command that gives ``user`` the range of ids that building images needs."""
    if family() == 0:
        return system("apptainer")
    return f"sudo usermod --add-subuids 200000-265535 --add-subgids 200000-265535 {user}"
