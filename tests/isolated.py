"""Keep tests apart from the results in the checkout and from the shell that starts them.

Once this is imported, before anything of the project is, tests and the programs that they start
use a copy of the project's own files, few variables, and signals as a login shell sets them.
Results, reports and a bundle in the checkout change no test, and `make report` may run meanwhile.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
# What a developer may not have added to Git yet; a user's own studies and evidence are no part of
# the project.
CODE = ("scripts", "tests", "rules", "containers")

# The only variables that tests see.
KEPT = {
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TMPDIR", "LD_LIBRARY_PATH"),
    # what is there, and what must be; what `make chaos-stream` and tests/test_expected.py document
    *("PARBENCH_CACHE", "PARBENCH_REQUIRE", "PARBENCH_KILLS", "REWRITE_EXPECTED"),
    # where packages come from; behind a proxy, by pip's own setting
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_TRUSTED_HOST", "PIP_PROXY"),
    *("PIP_CONFIG_FILE", "PIP_CERT", "PIP_CLIENT_CERT", "PIP_DEFAULT_TIMEOUT"),
    *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
}
# What a shell ignores for a program that it starts with `&`.
SIGNALS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)

_folder = tempfile.TemporaryDirectory(prefix="parbench-tests-", ignore_cleanup_errors=True)


def _isolate() -> Path:
    """Take variables and signals away, copy the project, and have it imported from the copy.

    Returns the copy's folder, which is deleted when this process ends.
    """
    for number in SIGNALS:
        # Still ignored here; but programs that are started from here have the default.
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    _drop_variables()
    root = Path(_folder.name).resolve() / "project"
    for name in _own_files():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(CHECKOUT / name, root / name, follow_symlinks=False)
    sys.path[:] = [path for path in sys.path if path != str(CHECKOUT / "scripts")]
    sys.path.insert(0, str(root / "scripts"))
    return root


def _drop_variables() -> None:
    """Drop all variables but KEPT and pytest's own, also what PYTHONPATH has done."""
    if "REWRITE_CONTRACT" in os.environ:
        sys.exit("REWRITE_CONTRACT is REWRITE_EXPECTED now; use that")
    foreign = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [path for path in sys.path if path not in foreign]
    if "XDG_CACHE_HOME" in os.environ:
        os.environ.setdefault("PARBENCH_CACHE", f"{os.environ['XDG_CACHE_HOME']}/parbench")
    if (bundled := CHECKOUT / "bundle" / "cache").is_dir():
        os.environ["PARBENCH_CACHE"] = str(bundled)
    for name in os.environ.keys() - KEPT:
        if not name.startswith("PYTEST_"):
            del os.environ[name]
    os.environ["PARBENCH_TESTS"] = _folder.name  # names this run to the programs that it starts
    # Cells of this process wait for no others, be they of `make report` or of a worker beside.
    os.environ["PARBENCH_LOCKS"] = str(Path(_folder.name) / "locks")
    # A user's hooks and signatures are not for commits of tests.
    os.environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def _own_files() -> Iterator[str]:
    """Yield the paths of the project's files, relative to the checkout: what Git has and, of CODE,
    what it does not ignore. In an archive that was unpacked, all that it would not ignore."""
    git = ["git", "-C", str(CHECKOUT), "ls-files", "-z"]
    found = ""
    try:
        for words in ((), ("--others", "--exclude-standard", "--", *CODE)):
            done = subprocess.run([*git, *words], check=True, capture_output=True, encoding="utf-8")
            found += done.stdout
    except (OSError, subprocess.CalledProcessError):
        lines = (CHECKOUT / ".gitignore").read_text("utf-8").split()
        names = (line.strip("/").split("/")[-1] for line in lines)
        ignored = shutil.ignore_patterns(".git", *names)
        for folder, folders, files in os.walk(CHECKOUT):
            folders[:] = set(folders) - ignored(folder, folders)
            for name in set(files) - ignored(folder, files):
                yield os.path.relpath(Path(folder, name), CHECKOUT)
    yield from (name for name in found.split("\0") if name and (CHECKOUT / name).is_file())


ROOT = _isolate()
