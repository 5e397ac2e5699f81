"""Start and end a standalone Spark cluster on this machine, from the pip package."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import psutil

from parbench import variables
from parbench.deploy import containers, recipes
from parbench.deploy.deployment import DeployedSoftware, Deployment
from parbench.errors import ParbenchError

FOLDER = Path("results/spark")
HOST = "127.0.0.1"
START_SECONDS = 120.0
END_SECONDS = 10.0
CLOCK_SECONDS = 5.0  # a process's start time may shift by this when the clock is set


def up(deployment: Deployment, workers: int, cores: int, memory: str, port: int) -> str:
    """Start a cluster in ``deployment`` and return its address.

    The daemons outlive this process. ``memory``: per worker, in Spark's notation. Raises
    ParbenchError if a cluster exists already or does not come up.
    """
    if _daemons():
        raise ParbenchError(f"{FOLDER}: a cluster is already running; end it: make spark-down")
    shutil.rmtree(FOLDER, ignore_errors=True)  # left by a cluster that was killed
    if missing := DeployedSoftware(deployment).without_spark():
        raise ParbenchError(missing)
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise ParbenchError(f"port {port} of {HOST} is taken; choose another: --port")
    web_port = _free_port()
    address = f"spark://{HOST}:{port}"
    host_options = ["--host", HOST, "--webui-port"]
    _start(deployment, "master", ["Master", *host_options, str(web_port), "--port", str(port)])
    try:
        _wait(web_port, 0)
        limits = ["--cores", str(cores), "--memory", memory]
        for number in range(workers):
            name = f"worker{number}"
            work_options = ["--work-dir", str((FOLDER / name).absolute())]
            _start(
                deployment, name, ["Worker", *host_options, "0", *limits, *work_options, address]
            )
        _wait(web_port, workers)
    except BaseException:
        down()
        raise
    return address


def down() -> bool:
    """End the cluster and delete its files; return whether there was one."""
    daemons = _daemons()
    for process in (processes := [one for daemon in daemons for one in _with_children(daemon)]):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(processes, timeout=END_SECONDS)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    existed = FOLDER.is_dir()
    shutil.rmtree(FOLDER, ignore_errors=True)
    return existed


def _daemons() -> list[psutil.Process]:
    """Return the daemons that run, identified by process id and start time.

    Command lines do not identify them: Apptainer changes its processes' titles.
    """
    daemons = []
    for path in FOLDER.glob("*.pid"):
        number, begun = path.read_text().split()
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(number))
            same_process = abs(process.create_time() - float(begun)) < CLOCK_SECONDS
            if same_process and process.status() != psutil.STATUS_ZOMBIE:
                daemons.append(process)
    return daemons


def _with_children(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def _start(deployment: Deployment, name: str, arguments: list[str]) -> None:
    """Start a daemon in its own session and record its process id."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    kind, *options = arguments
    program = [f"org.apache.spark.deploy.{kind.lower()}.{kind}", *options]
    spark_variables = {"SPARK_LOCAL_IP": HOST, "SPARK_DAEMON_MEMORY": "256m", **variables.STEADY}
    if deployment.in_images:
        # All share one /tmp, since executors on one host read each other's files.
        temporary = (FOLDER / "tmp").absolute()
        temporary.mkdir(exist_ok=True)
        image = recipes.image("spark", deployment.stack, deployment.images)
        inside = ["/opt/parbench/bin/spark-class", *program]
        command, environment = containers.inside(image, deployment.images, inside, temporary)
        environment |= {f"APPTAINERENV_{name}": value for name, value in spark_variables.items()}
    else:
        command = [str(Path(sys.executable).with_name("spark-class")), *program]
        environment = variables.without_sites_spark(variables.clean()) | spark_variables
    with open(FOLDER / f"{name}.log", "ab") as log:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    begun = psutil.Process(process.pid).create_time()
    (FOLDER / f"{name}.pid").write_text(f"{process.pid} {begun}")


def _wait(web: int, workers: int) -> None:
    """Wait until the master, whose web page is at port ``web``, has ``workers`` workers."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            with urlopen(f"http://{HOST}:{web}/json/", timeout=5) as answer:
                if json.load(answer)["aliveworkers"] >= workers:
                    return
        except (URLError, ConnectionError, TimeoutError):
            pass
        if len(_daemons()) < len(list(FOLDER.glob("*.pid"))):
            raise ParbenchError(f"Spark did not start; its last lines: {_last_lines()}")
        time.sleep(0.5)
    raise ParbenchError(
        f"Spark's master did not have {workers} workers within {START_SECONDS:g} s; its log: "
        f"{FOLDER / 'master.log'}"
    )


def _last_lines() -> str:
    logs = sorted(FOLDER.glob("*.log"), key=lambda path: path.stat().st_mtime)
    return " / ".join(logs[-1].read_text(errors="replace").splitlines()[-5:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]
