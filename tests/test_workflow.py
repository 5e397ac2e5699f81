"""Exactly what changed runs again: jobs of dry runs are counted."""

from __future__ import annotations

import csv
import fcntl
import json
import os
import re
import subprocess
import sys
from base64 import urlsafe_b64encode
from dataclasses import asdict, replace

import pytest
from PIL import Image

from parbench.launch import run_lock
from workspace import HANG_SECONDS, ROOT, Workspace, small_study

# Two models, three strategies, one seed each, and little data: a whole run takes half a minute.
STUDY = small_study(
    "Six cells",
    """
deep_cnn: {options: {width: 8, depths: [1, 1, 1, 1]}}
swin: {options: {embed_dim: 12, depths: [1, 1], num_heads: [2, 2], window_size: 4}}
""",
    """
eager: {strategy: eager, hardware: cpu1}
gpipe-2: {strategy: gpipe, options: {balance: [2]}, hardware: cpu1, baseline: eager}
ddp: {strategy: ddp, hardware: cpu2, baseline: eager}
""",
)
AFTER = {"table": 1, "report": 1}
PROVED = {"certificate": 1, **AFTER}  # after a change of training code


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run the small study to the report in a folder with blanks; return it and the process."""
    work = Workspace(tmp_path_factory.mktemp("base") / "a work folder")
    (work.folder / "studies/six.yaml").write_text(STUDY)
    work.edit("config.yaml", "studies: [quickstart]", "studies: [six]")
    assert work.jobs() == {"dataset": 1, "train": 6, **PROVED}
    result = work.snakemake()
    return work, result


@pytest.fixture
def work(finished):
    """Yield the finished folder; undo the test's edits afterwards."""
    folder = finished[0].folder
    before = {
        path: (path.read_bytes(), path.stat())
        for part in ("config.yaml", "rules", "scripts", "studies", "reports", "Snakefile")
        for path in ([folder / part] if (folder / part).is_file() else (folder / part).rglob("*"))
        if path.is_file() and path.suffix != ".pyc"
    }
    yield finished[0]
    for path, (content, status) in before.items():
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_run_ends_with_the_report_and_a_short_table(finished):
    work, result = finished
    for file in ("reports/final.html", "reports/final.pdf", "results/tables/six.csv"):
        assert (work.folder / file).stat().st_size > 0
        assert file in result.stdout + result.stderr
    assert "swin" in result.stdout
    assert "ddp" in result.stdout


def test_nothing_changed_nothing_runs(work):
    assert work.jobs() == {}
    assert "6 cells: 6 done" in work.parbench("cells").stdout
    assert "metrics.json" in work.parbench("why", "swin.ddp.cpu2").stdout


def test_a_result_whose_workflow_was_killed_is_taken_over(work):
    """Snakemake died before it noticed that the cell was done, so it runs the cell's job again."""
    path = next((work.folder / "results/cells").glob("swin.eager*/metrics.json"))
    target = str(path.relative_to(work.folder))
    before = path.read_bytes()
    marks = work.folder / ".snakemake/incomplete"
    (marks / urlsafe_b64encode(target.encode()).decode()).write_text('{"external_jobid": null}')
    done = work.snakemake("--rerun-incomplete", target)
    assert "another run has trained it meanwhile" in done.stdout
    assert path.read_bytes() == before
    assert work.jobs() == {}


def test_words_of_the_command_line_train_nothing_again(work):
    words = "--sdm apptainer --configfile config.yaml --config studies=[six] timeout_seconds=60"
    assert work.jobs(*words.split()) == {}
    (work.folder / "mine.yaml").write_text("studies: [six]\n")
    assert work.jobs("--configfile", "mine.yaml") == AFTER  # the report's commands contain its name


GPIPE = "scripts/parbench/strategies/gpipe.py"
DATASET = "scripts/parbench/data/dataset.py"
SOURCE = "scripts/parbench/data/source.py"
PAIRS = "pairs: {restarts: 2, compare: [{variant: ddp, baseline: eager}]}\n"
RATE = "gpipe-2: {settings: {learning_rate: 0.1}, strategy: gpipe,"


@pytest.mark.parametrize(
    ("file", "old", "new", "jobs"),
    [
        ("studies/six.yaml", "gpipe-2: {strategy: gpipe,", RATE, {"train": 2, **AFTER}),
        ("studies/six.yaml", "seeds: [0]", "seeds: [0, 1]", {"train": 6, **AFTER}),
        ("studies/six.yaml", "variants:", f"{PAIRS}variants:", {"train": 4, **AFTER}),
        # Nothing to train: its hardware is missing here, as its rows say.
        ("config.yaml", "studies: [six]", "studies: [six, gorantla2024]", AFTER),
        # The value is the same, but the code is not.
        (GPIPE, '"default": False', '"default": True if False else False', {"train": 2, **PROVED}),
        (
            "scripts/parbench/models/deep_cnn.py",
            '    width = options["width"]',
            '    unused = 0\n    width = options["width"]',
            {"train": 3, **PROVED},
        ),
        (
            "scripts/parbench/training/train.py",
            "from __future__ import annotations\n",
            "from __future__ import annotations\n\nUNUSED = 1\n",
            {"train": 6, **PROVED},
        ),
        (
            SOURCE,
            "CONVERSION: ClassVar[int] = 1",
            "CONVERSION: ClassVar[int] = 2",
            {"dataset": 1, "train": 6, **AFTER},
        ),
        ("reports/template.html.j2", "<html", "<!-- more --><html", {"report": 1}),
        ("studies/published/published_results.csv", "56.4", "56.5", AFTER),
    ],
)
def test_what_changed_runs_again_and_nothing_else(work, file, old, new, jobs):
    work.edit(file, old, new)
    assert work.jobs() == jobs


def test_neither_a_touched_file_nor_a_comment_is_a_change(work):
    work.edit(GPIPE, '"""One process that', '# a comment\n    """One process, said otherwise, that')
    work.edit(DATASET, "import files", "import files\n\nUNUSED = 1")  # makes the same data
    for file in (
        "scripts/bin/parbench",
        "studies/six.yaml",
        "studies/published/published_results.csv",
    ):
        (work.folder / file).touch()
    assert work.jobs() == {}


def test_what_a_job_reads_of_the_plan_is_among_its_inputs(work):
    lines = work.snakemake("--detailed-summary").stdout.splitlines()
    rows = list(csv.DictReader(lines, delimiter="\t"))
    reads = {row["rule"]: set(re.findall(r"results/plan/\S+", row["shellcmd"])) for row in rows}
    inputs = {row["rule"]: set(row["input-file(s)"].split(",")) for row in rows}
    assert {rule for rule, files in reads.items() if files} >= {"dataset", "table", "report"}
    assert all(reads[rule] <= inputs[rule] for rule in reads)


def test_a_dry_run_writes_no_plan_and_shows_what_a_changed_one_makes_stale(work):
    path = work.folder / "results/plan/six.json"
    before = path.read_bytes()
    work.edit("studies/six.yaml", "title: Six cells", "title: Other cells")
    assert work.jobs() == AFTER
    assert path.read_bytes() == before
    work.snakemake()
    assert b"Other cells" in path.read_bytes()
    assert work.jobs() == {}
    work.edit("studies/six.yaml", "title: Other cells", "title: Six cells")
    work.snakemake()
    assert path.read_bytes() == before


def test_a_plan_that_another_run_uses_is_not_changed(work):
    before = (work.folder / "results/plan/six.json").read_bytes()
    work.edit("studies/six.yaml", "title: Six cells", "title: Other cells")
    with open(work.folder / run_lock.FILE, "a") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        result = work.snakemake(check=False)
    assert f"error: {run_lock.LIVES}" in result.stderr
    assert (work.folder / "results/plan/six.json").read_bytes() == before


def test_words_that_are_no_option_are_refused_before_a_silent_run(work):
    done = work.parbench("report", "studies=[six]", check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: studies=[six]: neither an option of Snakemake nor a file")


def test_snakemake_report_has_captions(work):
    work.snakemake("--report", "overview.html")
    text = (work.folder / "overview.html").read_text()
    assert "final.html" in text
    assert "six.csv" in text


# What a launcher does before its cell: it waits for the launcher of the other one.
TOGETHER = """
import os, sys, time
from pathlib import Path

Path("begun").mkdir(exist_ok=True)
Path("begun", str(os.getpid())).touch()
end = time.monotonic() + {seconds}
while len(list(Path("begun").iterdir())) < 2:
    if time.monotonic() > end:
        sys.exit("alone")
    time.sleep(0.01)
"""


def test_cells_of_two_seeds_run_at_once(tmp_path):
    """Their priorities differ, but no core stays idle for that."""
    work = Workspace(tmp_path / "a work folder")
    variants = "eager: {strategy: eager, hardware: cpu1}"
    study = small_study("Two seeds", "simple_cnn: {}", variants)
    (work.folder / "studies/two.yaml").write_text(study.replace("seeds: [0]", "seeds: [0, 1]"))
    work.edit("config.yaml", "studies: [quickstart]", "studies: [two]")
    launch = work.folder / "scripts/parbench/commands/called/launch.py"
    launch.write_text(TOGETHER.format(seconds=HANG_SECONDS) + launch.read_text())
    told = work.parbench("cells").stdout.splitlines()
    cells = [line.split()[0] for line in told if line.startswith("simple_cnn")]
    paths = [f"results/cells/{cell}/metrics.json" for cell in cells]
    work.snakemake("--cores", "2", *paths)
    assert len(list((work.folder / "begun").iterdir())) == len(paths) == 2


def test_changed_images_in_a_local_folder_are_noticed(tmp_path):
    work = Workspace(tmp_path / "a work folder")
    for part in ("train", "test"):
        for number, color in enumerate(("red", "green")):
            image = tmp_path / "my images" / part / color / f"{number}.png"
            image.parent.mkdir(parents=True)
            Image.effect_noise((8, 8), 50 + number).convert("RGB").save(image)
    spec = f"  mine: {{kind: image-folder, path: '{tmp_path / 'my images'}'}}\n"
    work.edit("config.yaml", "datasets:\n", "datasets:\n" + spec)
    work.edit("config.yaml", "override: {}", "override: {six: {dataset: mine}}")
    work.edit("config.yaml", "studies: [quickstart]", "studies: [six]")
    (work.folder / "studies/six.yaml").write_text(STUDY)
    digest = "results/data/mine/digest.json"
    work.snakemake(digest)
    image.touch()
    assert work.jobs() == {"train": 6, **PROVED}
    Image.effect_noise((8, 8), 70).convert("RGB").save(image)
    assert work.jobs(digest) == {"dataset": 1}
    before = (work.folder / digest).read_text()
    work.snakemake(digest)
    assert (work.folder / digest).read_text() != before


# ---------------------------------------------------------------- locks and profiles


SNAKEFILE = """
import os, sys
sys.path.insert(0, {scripts!r})
from parbench.launch import run_lock
if "--unlock" in sys.argv:
    run_lock.forget()
elif workflow.is_main_process:
    run_lock.hold(sys.argv[1:])
rule x:
    output: "x"
    shell: "echo $PPID >started; test -e go || cat; touch x"  # cat ends with the pipe of its input
"""
KILLED = "parbench: an earlier run was killed; releasing its lock on this folder"


@pytest.fixture
def locked(tmp_path):
    """Yield a function that runs Snakemake in a folder, and one that is in the middle of a job."""
    (tmp_path / "Snakefile").write_text(SNAKEFILE.format(scripts=str(ROOT / "scripts")))
    os.mkfifo(tmp_path / "started")
    command = [sys.executable, "-m", "snakemake", "--cores", "1"]

    def run(*words: str) -> subprocess.CompletedProcess:
        options = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False}
        return subprocess.run([*command, *words], **options)

    first = subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    with open(tmp_path / "started") as started:  # opened by the job
        started.read()
    yield run, first
    first.kill()
    first.communicate()


def test_the_lock_of_a_killed_run_is_released_and_that_of_a_living_one_is_not(locked, tmp_path):
    run, first = locked
    beside = run()
    assert beside.returncode == 1
    assert "parbench: another run is using this folder: wait until it ends" in beside.stderr
    first.kill()
    first.communicate()
    (tmp_path / "started").unlink()
    (tmp_path / "go").touch()
    second = run("--rerun-incomplete", "--", "x")
    assert second.returncode == 0, second.stderr
    assert second.stderr.count(KILLED) == 1
    assert (tmp_path / "x").exists()
    assert "parbench: " not in run().stderr  # a run that ended by itself is not a killed one


HERE = run_lock.Host.this_host()


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (HERE, [KILLED]),
        (replace(HERE, name="a-container", machine=""), [KILLED]),  # the same kernel
        (replace(HERE, machine="1", boot="1"), "elsewhere"),  # another machine of this name
        (replace(HERE, name="n2", boot="1"), "elsewhere"),
    ],
)
def test_only_a_lock_of_this_machine_is_released(monkeypatch, tmp_path, capfd, before, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_lock.atexit, "register", lambda *call: None)
    (tmp_path / "Snakefile").write_text("")
    run_lock.FILE.parent.mkdir()
    run_lock.FILE.write_text(json.dumps(asdict(before)))
    run_lock.hold(["--cores", "1"])
    said = capfd.readouterr().err
    if words == "elsewhere":
        assert f"the last run in this folder, on {before.name}, has not ended properly" in said
        assert "snakemake --unlock" in said
        assert run_lock.FILE.read_text() == json.dumps(asdict(before))  # and is not forgotten
    else:
        assert said.splitlines() == words
        assert run_lock.FILE.read_text() == json.dumps(asdict(HERE))


def test_a_machine_is_the_same_after_a_restart():
    assert replace(HERE, machine="1").is_same(replace(HERE, machine="1", boot="1"))
    assert not replace(HERE, machine="").is_same(replace(HERE, machine="", boot="1"))


def test_triggers_that_leave_out_what_makes_results_stale_are_reported(work, tmp_path):
    (tmp_path / "config.yaml").write_text("rerun-triggers: [mtime]\n")
    done = work.snakemake("-n", SNAKEMAKE_PROFILE=str(tmp_path))
    assert "parbench: rerun-triggers is mtime, without input and params: " in done.stderr
    assert "rerun-triggers is" not in work.snakemake("-n").stderr


def test_what_a_failed_certificate_printed_is_shown(tmp_path):
    work = Workspace(tmp_path / "work")
    (work.folder / "studies/six.yaml").write_text(STUDY)
    work.edit("config.yaml", "studies: [quickstart]", "studies: [six]")
    (work.folder / "scripts/parbench/commands/certify.py").write_text(
        "raise SystemExit('no such library')"
    )
    cache = {"PARBENCH_CACHE": str(tmp_path / "cache")}
    result = work.snakemake("results/certificates/host.json", check=False, **cache)
    assert result.returncode != 0
    assert "no such library" in result.stderr
