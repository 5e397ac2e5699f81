"""Say what a Python has: its version, packages and modules. Printed as JSON if run as a program.

Any Python runs it, by this file alone: nothing of parbench is imported, and the syntax is old.
"""

import hashlib
import json
import os
import pkgutil
import re
import sys
import sysconfig

LEAST = (3, 11)
LABEL = "python-"  # begins the deployment of cells that a Python of the user's own runs


def this_python():
    """Return {version, executable, packages, modules, include, records, torch} of this Python.

    ``records``: SHA-256 over its version and the lists of files of all packages that it finds;
    ``torch``: git_version, cuda and hip of torch's build. Of an old Python only its version.
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
        if name and name not in packages:  # the first on the path is what is imported
            packages[name] = each.version
            files = each.read_text("RECORD") or each.read_text("METADATA") or each.version
            # What pip compiles and the scripts it writes differ by where they lie.
            kept = [line for line in files.splitlines() if "__pycache__" not in line[:400]]
            kept = [line for line in kept if not line.startswith("..")]
            records[name] = [each.version, hashlib.sha256("\n".join(kept).encode()).hexdigest()]
    return packages, sorted(records.items())


def _torch():
    """Return what torch/version.py says of its build; importing torch would take seconds."""
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
