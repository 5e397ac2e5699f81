"""Remove environment variables that a user or a site has set for other programs.

Standard library only, since every command imports it first.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[1]
PROGRAM = SCRIPTS / "bin" / "parbench"  # runs a command: python PROGRAM COMMAND ...

# Variables that change what programs started by parbench do; docs/slurm-admin.md lists them.
DROPPED = frozenset(
    " ".join(
        (
            # Python would find other packages, leave out assertions or print more.
            "PYTHONHOME PYTHONSTARTUP PYTHONSAFEPATH PYTHONPLATLIBDIR PYTHONOPTIMIZE PYTHONCASEOK",
            "PYTHONWARNINGS PYTHONINSPECT PYTHONDEVMODE PYTHONDEBUG PYTHONVERBOSE PYTHONBREAKPOINT",
            "PYTHONPROFILEIMPORTTIME PYTHONMALLOC PYTHONTRACEMALLOC PYTHONEXECUTABLE",
            "PYTHON_CPU_COUNT",
            # git would look at another repository, or understand paths otherwise.
            "GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_COMMON_DIR GIT_NAMESPACE",
            "GIT_OBJECT_DIRECTORY GIT_ALTERNATE_OBJECT_DIRECTORIES GIT_PREFIX GIT_CONFIG",
            "GIT_SHALLOW_FILE GIT_GRAFT_FILE GIT_REPLACE_REF_BASE GIT_NO_REPLACE_OBJECTS",
            "GIT_IMPLICIT_WORK_TREE",
            "GIT_CEILING_DIRECTORIES GIT_DISCOVERY_ACROSS_FILESYSTEM GIT_INTERNAL_SUPER_PREFIX",
            "GIT_LITERAL_PATHSPECS GIT_GLOB_PATHSPECS GIT_NOGLOB_PATHSPECS GIT_ICASE_PATHSPECS",
            # Spark would start another Spark.
            "SPARK_HOME PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PYSPARK_DRIVER_PYTHON_OPTS",
            "PYSPARK_SUBMIT_ARGS SPARK_DIST_CLASSPATH SPARK_JARS_DIR SPARK_SCALA_VERSION",
            "SPARK_ENV_LOADED SPARK_TESTING SPARK_REMOTE SPARK_CONNECT_MODE_ENABLED",
            "SPARK_DAEMON_JAVA_OPTS SPARK_DAEMON_CLASSPATH CLASSPATH",
            # matplotlib would draw into a notebook, or in another style.
            "MPLBACKEND MATPLOTLIBRC",
            # The shell's `cd` would go elsewhere.
            "CDPATH",
            # Memory would be allocated otherwise.
            "GLIBC_TUNABLES",
        )
    ).split()
)
# Threads would be bound to cores other than the cell's, or behave differently.
PREFIXES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "NUMEXPR_")
PREFIXES += ("MALLOC_",)  # memory would be allocated otherwise
# glibc keeps freed memory. By default it may return some to the kernel after each step, depending
# on where the first allocations of a process happen to be, so that one start of a loop is faster
# than another (docs/verdicts.md).
STEADY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
# Variables of a site's own Spark, kept for cells that use its cluster, for example through YARN.
OF_SITES_SPARK = (
    *("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "HADOOP_HOME", "HADOOP_CLASSPATH"),
    *("SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_PUBLIC_DNS"),
    *("SPARK_MASTER_HOST", "SPARK_MASTER_PORT", "SPARK_MASTER_WEBUI_PORT", "SPARK_MASTER_OPTS"),
    *("SPARK_WORKER_CORES", "SPARK_WORKER_MEMORY", "SPARK_WORKER_PORT", "SPARK_WORKER_OPTS"),
    *("SPARK_WORKER_DIR", "SPARK_WORKER_WEBUI_PORT", "SPARK_NO_DAEMONIZE", "SPARK_LOG_DIR"),
    *("SPARK_DRIVER_MEMORY", "SPARK_EXECUTOR_MEMORY", "SPARK_EXECUTOR_CORES"),
)
# Variables that a separate environment must not have. PYTHONDONTWRITEBYTECODE would cost every cell
# ten seconds at its start.
FOREIGN = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "CONDA_PREFIX")
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def clean() -> dict[str, str]:
    """Return this process's variables for a child process, without those that change what it does.

    Addresses of this machine bypass a proxy. A TMPDIR that is not a folder is removed, since Python
    ignores it, too.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in DROPPED
        # Snakemake sets these to a job's number of threads, and the launcher to a rank's.
        and (
            not key.startswith(PREFIXES) or key.endswith("_NUM_THREADS") or STEADY.get(key) == value
        )
    }
    for key in ("TMPDIR", "TEMP", "TMP"):
        if key in kept and not os.path.isdir(kept[key]):
            del kept[key]
    if foreign := _foreign_folders():
        folders = kept.pop("PYTHONPATH").split(os.pathsep)
        if own := [folder for folder in folders if folder not in foreign]:
            kept["PYTHONPATH"] = os.pathsep.join(own)
    past_proxy(kept, *LOOPBACK)
    return kept


def _foreign_folders() -> set[str]:
    """Return the folders of PYTHONPATH whose packages would replace those of this environment.

    A virtual environment has its own packages, but a Python outside of one may need those on
    PYTHONPATH. Folders of this checkout are never foreign.
    """
    if sys.prefix == sys.base_prefix:
        return set()
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {
        folder for folder in folders if not Path(folder).resolve().is_relative_to(SCRIPTS.parent)
    } - {""}


def without_foreign() -> dict[str, str]:
    """Return the variables for a program that runs in another environment."""
    return {key: value for key, value in clean().items() if key not in FOREIGN}


def without_sites_spark(variables: Mapping[str, str]) -> dict[str, str]:
    """Return ``variables`` without those of a site's Spark, for the Spark of this environment."""
    return {key: value for key, value in variables.items() if key not in OF_SITES_SPARK}


def past_proxy(variables: MutableMapping[str, str], *addresses: str) -> None:
    """Change ``variables`` so that ``addresses`` bypass a proxy."""
    known = variables.get("no_proxy") or variables.get("NO_PROXY") or ""
    if known.strip() != "*":
        known = ",".join(dict.fromkeys([*filter(None, known.split(",")), *addresses]))
    variables["no_proxy"] = variables["NO_PROXY"] = known


def enter() -> None:
    """Clean this process's own variables, before a library reads them, and its module path.

    Called when a command or the workflow begins. From then on, a character that the terminal cannot
    show is printed as a question mark.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    foreign = set(map(os.path.abspath, _foreign_folders()))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) not in foreign]
    kept = clean()
    for key in os.environ.keys() - kept.keys():
        del os.environ[key]
    os.environ.update(kept)
