"""make versus: two programs in turns, their verdict, and programs that cannot take turns."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

import training
from parbench.__main__ import main
from parbench.data import dataset
from parbench.errors import ParbenchError
from parbench.launch import interleaving
from parbench.runs.parts import Machine
from parbench.training import program
from parbench.training.program import Program, ProgramError
from parbench.verdicts.pairs import Restart
from parbench.versus import measuring
from parbench.versus.page import Result
from parbench.versus.record import side_of
from require import require_package
from workspace import ROOT

MACHINE = Machine(fingerprint="0")
TRAINS = """
import sys
from parbench_turns import step

for number in range(10**9):
    sum(range(20_000))
    step(samples=4)
"""
# Its first process does nothing but start two ranks and wait for them.
TWO_RANKS = """
import os, subprocess, sys

if "RANK" in os.environ:
    from parbench_turns import step
    while True:
        sum(range(20_000))
        step(samples=1 + int(os.environ["RANK"]))
os.environ["WORLD_SIZE"] = "2"
ranks = [
    subprocess.Popen([sys.executable, __file__], env=os.environ | {"RANK": str(n)})
    for n in range(2)
]
sys.exit(max(rank.wait() for rank in ranks))
"""
# A helper that counts all the time, as a data loader's workers do.
WITH_HELPER = """
import mmap, os, sys
from parbench_turns import step

with open(sys.argv[1], "r+b") as file:
    count = mmap.mmap(file.fileno(), 8)
if os.fork() == 0:
    while True:
        count[:] = (int.from_bytes(count, "little") + 1).to_bytes(8, "little")
while True:
    sum(range(20_000))
    step(samples=4)
"""
WATCHES = """
import mmap, sys
from parbench_turns import step

with open(sys.argv[1], "r+b") as file:
    count = mmap.mmap(file.fileno(), 8)
step(samples=1)
while True:
    before = bytes(count)
    sum(range(20_000))
    if bytes(count) != before:
        sys.exit("the other side's helper counts")
    step(samples=4)
"""


# The program, where a further restart always takes longer than is left.
ONE_RESTART = """
import os, sys
from parbench.__main__ import main
from parbench.launch import interleaving
from parbench.versus import measuring

interleaving.SLICE_SECONDS, interleaving.TURN_SECONDS = 0.02, 0.01
measuring._longest = lambda found: 1e6 * (len(found) > int(os.environ.get("EARLIER", 0)))
main(["versus", *sys.argv[1:]])
"""


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Return a function that makes a program of a script's text and its arguments."""
    monkeypatch.setattr(interleaving, "SLICE_SECONDS", 0.02)
    monkeypatch.setattr(interleaving, "TURN_SECONDS", 0.01)
    monkeypatch.delenv("PARBENCH_USERS_PATH", raising=False)

    def made(text: str, *words: object, label="A", patience=100.0) -> Program:
        script = tmp_path / f"a script {len(list(tmp_path.glob('*.py')))}.py"
        script.write_text(text)
        command = shlex.join(map(str, (sys.executable, script, *words)))
        return Program(label, command, {}, tmp_path / f"{label}.log", patience)

    return made


def once(a: Program, b: Program) -> measuring.MeasuredRestart:
    """Compare two programs in one restart."""
    (found,) = measuring.compare(a, b, 1e-9, lambda line: None)
    return found


def test_it_names_the_verdict_writes_a_page_and_ends_all_processes(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text(TRAINS)
    sides = [f"--{name}={shlex.join([sys.executable, f'{name}.py'])}" for name in ("a", "b")]
    words = ["--label", "<plain>", "other", "--env", "KEY=a value", "--out", "a folder"]
    done = subprocess.run(
        [sys.executable, "-c", ONE_RESTART, *sides, *words],
        cwd=tmp_path,
        env=os.environ | {"PARBENCH_LOCKS": str(tmp_path), "PYTHONPATH": str(ROOT / "scripts")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "a folder/versus.json").read_text())
    (restart,) = result["restarts"]
    assert restart["of"] == "B beside A"
    assert result["environment"] == {"KEY": "a value"}
    # One restart says nothing: no ratio, but what it takes.
    assert result["ratio"] is None
    assert "\nother beside <plain>: undecided: 1 restart, but at least 4 are needed" in done.stdout
    assert (
        "which is more than is left of --minutes 5; it has 1 of at least 8 restarts that deciding "
        "takes\n" in done.stdout
    )
    (least,) = re.findall(r"the fewest that can decide take (\d+) min; it may ", done.stdout)
    assert int(done.stdout.rpartition("--minutes ")[2]) >= max(15, int(least))
    assert "waits for the first step of <plain>" in done.stdout
    assert "A beside itself: not checked" in done.stdout
    page = (tmp_path / "a folder/versus.html").read_text()
    assert "other beside &lt;plain&gt;" in page
    assert "<plain>" not in page
    assert not [each for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == str(tmp_path)]


def test_a_later_run_adds_restarts_until_a_file_changes(tmp_path):
    (tmp_path / "a.py").write_text(TRAINS)
    side = shlex.join([sys.executable, "a.py"])
    kept = tmp_path / "a folder"

    def run(*words: object) -> subprocess.CompletedProcess:
        variables = {"PARBENCH_LOCKS": str(tmp_path), "PYTHONPATH": str(ROOT / "scripts")}
        return subprocess.run(
            [sys.executable, "-c", ONE_RESTART, *map(str, words)],
            cwd=tmp_path,
            env=os.environ | variables | {"EARLIER": str(int("--continue" in words))},
            capture_output=True,
            text=True,
        )

    begun = run("--a", side, "--b", side, "--label", "one", "two", "--out", kept)
    assert f"--continue '{kept}'" in begun.stdout
    first = json.loads((kept / "versus.json").read_text())
    assert run("--continue", kept).returncode == 0
    both = json.loads((kept / "versus.json").read_text())
    assert [each["of"] for each in both["restarts"]] == ["B beside A", "A beside itself"]
    assert both["restarts"][0] == first["restarts"][0]
    assert (both["b"], both["minutes"]) == (first["b"], 10)
    assert "--a: " in run("--continue", kept, "--a", side).stderr
    (tmp_path / "a.py").write_text(f"{TRAINS}\n")
    assert "one (" in (changed := run("--continue", kept).stderr)
    assert "differs from before: a file that the command names has changed" in changed
    (kept / "versus.json").write_text("{}")
    assert (
        "was written by another version of parbench; start over" in run("--continue", kept).stderr
    )
    assert "has no versus.json" in run("--continue", tmp_path).stderr


def test_disturbed_turns_are_reported_next_to_the_verdict(make, monkeypatch):
    monkeypatch.setattr(interleaving.TimedSlice, "disturbed", True)
    a, b = make(TRAINS), make(TRAINS, label="B")
    found = [once(a, b)]
    result = Result(side_of(a), side_of(b), {}, ".", found, MACHINE, [0], 1.0)
    pairs = found[0].restart.slice_pairs
    disturbed = f"{pairs} of {pairs} pairs of slices disturbed by other programs"
    used = "counted in 1 of 1 restarts, where fewer than 2 others remained"
    assert result.sentence.endswith(f"at least 4 are needed; {disturbed}, {used}")


def measured(beside_itself: bool, values: list[float]) -> list[measuring.MeasuredRestart]:
    """Return restarts with these logs of ratios."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    restarts = [
        Restart(number, value, value, (value,) * 4, 4, 0, math.inf, at, at)
        for number, value in enumerate(values)
    ]
    return [measuring.MeasuredRestart(beside_itself, each, ()) for each in restarts]


@pytest.mark.parametrize(("spread", "firm"), [(0.001, True), (0.3, False)])
def test_a_verdict_without_equal_sides_is_not_firm(make, spread, firm):
    found = measured(False, [0.199, 0.201] * 2) + measured(True, [-spread, spread] * 2)
    a, b = side_of(make(TRAINS)), side_of(make(TRAINS, label="B"))
    sentence = Result(a, b, {}, ".", found, MACHINE, [0], 1.0).sentence
    assert sentence.startswith("B is 1.221 times as fast as A in training (95 % int")
    assert (": faster" in sentence, "not firm" in sentence) == (True, not firm)


def test_nothing_is_waited_for_longer_than_all_may_take(tmp_path):
    (tmp_path / "a.py").write_text("import threading; threading.Event().wait()")
    side = shlex.join([sys.executable, "a.py"])
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "scripts/bin/parbench",
            "versus",
            "--a",
            side,
            "--b",
            side,
            "--minutes=0.01",
        ],
        cwd=tmp_path,
        env=os.environ | {"PARBENCH_LOCKS": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "no training step in 0.6 s" in done.stderr
    assert "or raise --minutes" in done.stderr


def test_a_side_is_stopped_with_its_helpers_while_the_other_has_its_turn(make, tmp_path):
    counts = tmp_path / "counts"
    counts.write_bytes(bytes(8))
    found = once(make(WITH_HELPER, counts), make(WATCHES, counts, label="B"))
    assert found.restart.slice_pairs >= 4
    assert int.from_bytes(counts.read_bytes(), "little") > 0


def test_an_empty_value_takes_back_what_versus_sets(make):
    """Given as it is, it would be 0."""
    set_there = (
        'import os\nassert {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_"} - {*os.environ} == '
    )
    usual = make(f"{set_there}set()\n{TRAINS}")
    own = make(f'{set_there}{{"MALLOC_TRIM_THRESHOLD_"}}\n{TRAINS}', label="B")
    own.environment["MALLOC_TRIM_THRESHOLD_"] = ""
    once(usual, own)


def test_samples_of_all_ranks_count(make):
    found = once(make(TWO_RANKS), make(TRAINS, label="B"))
    samples = {side: {t.samples for t in found.slices if t.side == side} for side in (0, 1)}
    (of_ranks,), (of_one,) = samples.values()
    assert of_ranks % 3 == 0  # one and two in each step
    assert of_one % 4 == 0


def test_programs_change_places_from_one_restart_to_the_next(make, monkeypatch):
    monkeypatch.setattr(measuring, "_longest", lambda found: 1e6 * (len(found) == 4))
    a, b = make(TRAINS), make(TRAINS.replace("samples=4", "samples=3"), label="B")
    told: list[str] = []
    found = measuring.compare(a, b, 100, told.append)
    waits = re.findall(r"the first step of (.+)", "\n".join(told))
    assert waits == ["A", "B", "A", "A's second copy", "B", "A", "A's second copy", "A"]
    assert [each.slices[0].side for each in found] == [0, 0, 1, 1]
    of_b = [turn for each in found if not each.beside_itself for turn in each.slices]
    assert all(turn.samples % (4, 3)[turn.side] == 0 for turn in of_b)


def test_a_comparison_that_is_decided_goes_on_until_time_is_up(make, monkeypatch):
    """To narrow its interval."""
    earlier = measured(False, [0.2] * 4) + measured(True, [0.0] * 4)
    assert measuring.is_decided(earlier)
    monkeypatch.setattr(measuring, "_longest", lambda found: 1e6 * (len(found) == 10))
    found = measuring.compare(make(TRAINS), make(TRAINS, label="B"), 100, [].append, earlier)
    assert [each.beside_itself for each in found[8:]] == [False, False]


@pytest.mark.whole
@pytest.mark.parametrize("loop", ["loader", "lightning", "accelerate"])
def test_loops_that_people_use_take_turns_with_ours(tmp_path, monkeypatch, loop):
    require_package("peers", "lightning")
    monkeypatch.setattr(interleaving, "SLICE_SECONDS", 0.02)
    monkeypatch.setattr(interleaving, "TURN_SECONDS", 0.01)
    sizes = {"classes": 10, "image_size": 32, "train_samples": 160, "test_samples": 32}
    data = tmp_path / "data.safetensors"
    spec = {"kind": "synthetic", "seed": 0, **sizes}
    dataset.prepare("synthetic", spec, data, tmp_path / "digest.json")
    cell = training.cell(model="simple_cnn", train_samples=None, test_samples=None, augment=True)
    (tmp_path / "cell.json").write_text(json.dumps(cell.json()))

    def peer(way: str) -> Program:
        script = ROOT / "tests/peer_loop.py"
        words = [sys.executable, script, way, tmp_path / "cell.json", tmp_path]
        scripts = {"PYTHONPATH": str(ROOT / "scripts")}
        return Program(way, shlex.join(map(str, words)), scripts, tmp_path / f"{way}.log", 600)

    found = once(peer(loop), peer("parbench"))
    assert {turn.side for turn in found.slices} == {0, 1}
    assert all(turn.samples % cell.training.global_batch == 0 for turn in found.slices)


def test_every_second_restart_is_of_equal_sides(make):
    a, b = make(TRAINS), make(TRAINS, label="B")
    told: list[str] = []

    class Enough(Exception):
        pass

    def tell(line: str) -> None:
        told.extend([line] * line.endswith(":"))
        if len(told) == 3:
            raise Enough

    with pytest.raises(Enough):
        measuring.compare(a, b, 100, tell)
    kinds = [line.partition(",")[0] for line in told]
    assert kinds == ["B beside A", "A beside itself", "B beside A"]


CALLS = "from parbench_turns import step\n"
# Neither takes a second step before both have called.
TWO_PROCESSES = """
import os
import parbench_turns

pipes = os.pipe(), os.pipe()
mine = int(os.fork() == 0)
begin = parbench_turns._Turns.__init__

def told(self, path):
    begin(self, path)
    os.write(pipes[mine][1], b"x")

parbench_turns._Turns.__init__ = told
parbench_turns.step(samples=1)
os.read(pipes[1 - mine][0], 1)
while True:
    parbench_turns.step(samples=1)
"""
WRONG = {
    "never calls step": (
        "print('done')",
        "ended without a training step; add to it: from parbench",
    ),
    "ends early": (f"{CALLS}for _ in range(3): step(samples=1)", "let it train longer"),
    "dies": (
        f"{CALLS}import sys\nstep(samples=1)\nprint('the cause')\nsys.exit(3)",
        rf"ended with status 3 after [^\n]*; ran {re.escape(sys.executable)}\n  the cause$",
    ),
    "is killed": (
        f"{CALLS}import os\nstep(samples=1)\nos.kill(os.getpid(), 9)",
        "was ended by SIGKILL after",
    ),
    "prints garbage": (
        f"{CALLS}import os\nos.write(1, bytes(range(256)) * 9)\n1 / 0",
        "ended with status 1 after 0 steps(.|\n)*ZeroDivisionError: division by zero$",
    ),
    "passes no number": (f"{CALLS}step(samples='many')", r"calls step\(samples='many'\): pass"),
    "passes less than nothing": (f"{CALLS}step(samples=-1)", r"calls step\(samples=-1\): pass"),
    "passes nothing at all": (
        f"{CALLS}while True: step(samples=0)",
        r"step\(samples=0\) throughout",
    ),
    "calls it in two threads": (
        f"{CALLS}import threading\nstep(samples=1)\n"
        "threading.Thread(target=step, args=(1,)).start()\nthreading.Event().wait()",
        "calls step from two threads: call it from the one that trains",
    ),
    "forks": (
        TWO_PROCESSES,
        "both call step as rank 0 of 1: call it in one process, or start the ranks with torchrun",
    ),
}


@pytest.mark.parametrize("which", WRONG)
@pytest.mark.parametrize("first", [True, False], ids=["A", "B"])
def test_what_no_comparison_can_use_is_one_sentence(make, which, first):
    text, sentence = WRONG[which]
    sides = make(text, label="wrong"), make(TRAINS, label="right")
    with pytest.raises(ProgramError, match=rf"^wrong \((.|\n)*{sentence}"):
        once(*(sides if first else reversed(sides)))


def test_one_that_hangs_is_named(make, monkeypatch):
    with pytest.raises(
        ProgramError, match=r"no training step in 0.5 s; add to it: from parbench_t"
    ):
        once(make("import threading; threading.Event().wait()", patience=0.5), make(TRAINS))
    hangs = f"{CALLS}import threading\nstep(samples=1)\nthreading.Event().wait()"
    a = make(hangs)
    measured = program.Program.take

    def impatient(self, steps):
        self.patience = 0.5
        return measured(self, steps)

    monkeypatch.setattr(program.Program, "take", impatient)
    with pytest.raises(
        ProgramError, match=r"rank 0 did not take 2 steps in 0.5 s after .* --patience"
    ):
        once(a, make(TRAINS, label="B"))


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("no-such-program --now", "cannot be started: No such file or directory; check"),
        ("", "no command"),
        ("python 'a.py", "quotes do not end"),
    ],
)
def test_a_command_that_cannot_be_started(make, tmp_path, command, sentence):
    a = Program("A", command, {}, tmp_path / "a.log", 10)
    with pytest.raises(ProgramError, match=sentence):
        once(a, make(TRAINS))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--cores", "0,x"],
            "--cores 0,x: 'x' is not a core that this process may use; it may use ",
        ),
        (["--env", "KEY"], "--env KEY: write NAME=VALUE"),
        (["--minutes", "0"], "--minutes 0.0: must be more than 0"),
        (["--label", "x y", "x y"], "--label 'x y' 'x y': give two different labels"),
        (["--patience", "nan"], "--patience nan: must be more than 0"),
    ],
)
def test_arguments_that_cannot_be_used(words, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParbenchError) as error:
        main(["versus", "--a", "true", "--b", "true", *words])
    assert str(error.value).startswith(sentence)


def test_outside_of_parbench_step_does_nothing():
    client = Path(program.CLIENT)
    done = subprocess.run(
        [sys.executable, "-c", "from parbench_turns import step; print(step(samples='any'))"],
        cwd=client,
        env={key: value for key, value in os.environ.items() if key != "PARBENCH_TURNS"},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("None\n", "")
