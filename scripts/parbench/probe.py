"""Find out what a Python has: its version, packages and modules. As a program, print it as JSON.

Any Python can run this file: it does not import parbench, and its syntax is old.
"""

import hashlib
import json
import os
import pkgutil
import re
import sys
import sysconfig

LEAST = (3, 11)
LABEL = "python-"  # the beginning of `deployment` for cells that the user's own Python runs


def this_python():
    """Return {version, executable, packages, modules, include, records, torch} of this Python.

    ``records``: SHA-256 of its version and of the file lists of all packages that it finds;
    ``torch``: git_version, cuda and hip of torch's build. For an old Python, the result has only
    ``version``.
    """
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < LEAST:
        return {"version": version}
    packages, records = _packages()
    return {
        "version": version,
        "executable": sys.executable,
        "packages": packages,
        "modules": sorted({module.name for module in pkgutil.iter_modules()}),
        "include": sysconfig.get_paths()["include"],
        "records": hashlib.sha256(json.dumps([sys.version, records]).encode()).hexdigest(),
        "torch": _torch(),
    }


def label(found):
    """Return the deployment of cells that run with the Python described by ``found``."""
    return LABEL + found["records"][:12]


def _packages():
    from importlib.metadata import distributions

    packages, records = {}, {}
    for each in distributions():
        name = re.sub(r"[-_.]+", "-", each.metadata["Name"] or "").lower()
        if name and name not in packages:  # Python imports the first on the path
            packages[name] = each.version
            files = each.read_text("RECORD") or each.read_text("METADATA") or each.version
            # Files that pip compiles and scripts that it writes depend on the folder they are in.
            kept = [line for line in files.splitlines() if "__pycache__" not in line[:400]]
            kept = [line for line in kept if not line.startswith("..")]
            records[name] = [each.version, hashlib.sha256("\n".join(kept).encode()).hexdigest()]
    return packages, sorted(records.items())


def _torch():
    """Return what torch/version.py says about its build; importing torch would take seconds."""
    for folder in sys.path:
        path = os.path.join(folder, "torch", "version.py")
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                found = re.findall(r"^(\w+)(?:\s*:[^=]*)?\s*=\s*'([^']*)'", file.read(), re.M)
            build = dict(found)
            return {key: build.get(key) for key in ("git_version", "cuda", "hip")}
    return {}


if __name__ == "__main__":
    sys.path.pop(0)  # this folder
    print(json.dumps(this_python()))
