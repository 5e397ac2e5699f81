"""A small study under random kills: `make chaos`; `ARGS="--kills 5 --seed 1"` for fewer.

The study is run once in peace. Then it is run again and again by the same command, `make report`;
each time somebody is killed on the way (Snakemake, a launcher, ranks, the job of a dataset, table
or report, or all at once), and now and then a file is damaged. When the study is done, each of its
cells must be what it was in peace; then it begins anew, until all kills have struck.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "scripts"))  # as pytest does

import faults
from parbench.errors import ParbenchError, run_main
from parbench.measure import metrics_json
from workspace import ROOT, Workspace, small_study

KILLS, ROUND = 50, 10  # in all, and while the study is run once
PATIENCE = 900.0  # seconds within which a run must end, or somebody appear who is to be killed
LOOK_SECONDS = 0.05
OF_MAKE = ("ARGS", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")  # `make chaos` has its own

EPOCHS = 30
MODEL = (
    "swin: {options: {patch_size: 4, embed_dim: 12, depths: [1, 1], num_heads: [2, 2], "
    "window_size: 4, stochastic_depth: 0.3}}"
)
VARIANTS = {
    "eager": "{strategy: eager, hardware: cpu1}",
    "gpipe": "{strategy: gpipe, options: {balance: [2]}, hardware: cpu1, baseline: eager}",
    "ddp": "{strategy: ddp, hardware: cpu2, baseline: eager}",
    "horovod": "{strategy: horovod, hardware: cpu2, baseline: eager}",
}
MINE = {
    "studies: [quickstart]": "studies: [chaos]",
    "checkpoint_seconds: 300": "checkpoint_seconds: 1",
    "grace_seconds: 60": "grace_seconds: 10",
}

# The programs of a study's jobs, by which those are known that can be killed.
PROGRAMS = {
    "dataset": "dataset.py",
    "train": "launch.py",
    "table": "tables.py",
    "report": "report.py",
}
# How often a kill falls into each phase, and seconds of its first job within which it strikes.
PHASES = {"dataset": (1, 1.0), "train": (7, 5.0), "table": (1, 1.5), "report": (1, 4.0)}


@dataclass(frozen=True)
class Kill:
    """``who`` gets ``number``, ``delay`` seconds after the first sight of ``phase``, or when a cell
    has come to ``epoch``."""

    phase: str
    who: str
    number: signal.Signals
    delay: float
    epoch: int
    damage: str | None


@dataclass
class Study:
    """The work folder, and the run that is at work in it."""

    folder: Path
    strategies: list[str]
    work: Workspace = field(init=False)
    run: subprocess.Popen | None = None

    def __post_init__(self) -> None:
        self.work = Workspace(self.folder / "a work folder")
        self.temporary = self.folder / "temporary"
        self.temporary.mkdir()
        self.said = self.folder / "said.txt"
        shutil.copy(ROOT / "Makefile", self.work.folder)
        variants = "\n".join(f"{name}: {VARIANTS[name]}" for name in self.strategies)
        study = small_study("Chaos", MODEL, variants, epochs=EPOCHS, images=400)
        study = study.replace("settings: {", "settings: {mode: deterministic, ")
        (self.work.folder / "studies" / "chaos.yaml").write_text(study)
        for old, new in MINE.items():
            self.work.edit("config.yaml", old, new)

    def start(self) -> None:
        """Start `make report`."""
        own = {"TMPDIR": str(self.temporary), "PARBENCH_LEASES": str(self.folder / "leases")}
        own |= {"PARBENCH_OVERSUBSCRIBE": "1"}  # of machines with one core, too
        mine = {key: value for key, value in os.environ.items() if key not in OF_MAKE}
        with open(self.said, "w") as said:
            self.run = subprocess.Popen(
                ["make", "report"],
                cwd=self.work.folder,
                env={**mine, **own},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        return self.run is not None and self.run.poll() is None

    def end(self) -> int:
        """The exit status of the run, when it has ended."""
        try:
            return self.run.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise ParbenchError(f"a run does not end:\n{self.said.read_text()}") from None

    def kill_all(self) -> None:
        """End all that runs for this study."""
        while pids := faults.processes_of(self.temporary):
            send(pids, signal.SIGKILL)
            time.sleep(0.05)

    def begin_anew(self) -> None:
        """Forget all results."""
        self.kill_all()
        for name in ("results", ".snakemake", "reports/final.html", "reports/final.pdf"):
            path = self.work.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def pids(self, program: str) -> list[int]:
        """Processes that run this program of the project, without those that they forked."""
        found = {pid: faults.words_of(pid) for pid in faults.processes_of(self.temporary)}
        found = {
            pid: words
            for pid, words in found.items()
            if any(Path(word).name == program for word in words[:4])
        }
        return [pid for pid in found if found.get(parent_of(pid)) != found[pid]]

    def ranks(self) -> dict[str, list[int]]:
        """Training processes, by the cell that they train."""
        found: dict[str, list[int]] = {}
        for pid in faults.processes_of(self.temporary):
            words = faults.words_of(pid)
            # Not those that start them, whose words end alike.
            if any(word.endswith("scripts/train.py") for word in words[1:3]) and "--cell" in words:
                found.setdefault(cell_of(words), []).append(pid)
        return found

    def cells(self) -> dict[str, dict]:
        """metrics.json of all cells that have one."""
        paths = (self.work.folder / "results" / "cells").glob("*/metrics.json")
        return {path.parent.name: metrics_json.read(path) for path in sorted(paths)}

    def leftovers(self) -> list[Path]:
        """Half-written files."""
        return sorted((self.work.folder / "results").rglob("*.part"))


def parent_of(pid: int) -> int:
    """The process that started ``pid``; 0 where it has ended."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def cell_of(words: list[str]) -> str:
    """The cell that a command with --cell is for."""
    return Path(words[words.index("--cell") + 1]).parent.name


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


# ---------------------------------------------------------------- who is killed


def one(name: str, pids: list[int], draw: random.Random) -> tuple[str, list[int]]:
    return name, [draw.choice(pids)] if pids else []


def a_launcher(study: Study, draw: random.Random) -> tuple[str, list[int]]:
    _, pids = one("", study.pids("launch.py"), draw)
    words = faults.words_of(pids[0]) if pids else []
    return f"the launcher of {cell_of(words)}" if "--cell" in words else "a launcher", pids


def a_rank(study: Study, draw: random.Random) -> tuple[str, list[int]]:
    ranks = study.ranks()
    cell = draw.choice(sorted(ranks)) if ranks else ""
    return one(f"a rank of {cell}", ranks.get(cell, []), draw)


def all_ranks(study: Study, draw: random.Random) -> tuple[str, list[int]]:
    ranks = study.ranks()
    cell = draw.choice(sorted(ranks)) if ranks else ""
    return f"all ranks of {cell}", ranks.get(cell, [])


def snakemake(study: Study, draw: random.Random) -> tuple[str, list[int]]:
    return one("Snakemake", study.pids("snakemake"), draw)


def everybody(study: Study, draw: random.Random) -> tuple[str, list[int]]:
    return "everybody at once", faults.processes_of(study.temporary)


def terminal(study: Study, draw: random.Random) -> tuple[str, list[int]]:
    """Whom Ctrl-C reaches."""
    pids = faults.processes_of(study.temporary)
    return "Ctrl-C", [pid for pid in pids if group_of(pid) == study.run.pid]


def group_of(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid)
    return 0


def job_of(what: str, program: str) -> Callable[[Study, random.Random], tuple[str, list[int]]]:
    return lambda study, draw: one(f"the job of a {what}", study.pids(program), draw)


VICTIMS = {
    "snakemake": snakemake,
    "everybody": everybody,
    "terminal": terminal,
    "launcher": a_launcher,
    "rank": a_rank,
    "ranks": all_ranks,
    "certificate": job_of("certificate", "certificate.py"),  # made before anything is trained
    **{phase: job_of(phase, PROGRAMS[phase]) for phase in PHASES if phase != "train"},
}
ANYWHERE = [
    ("snakemake", signal.SIGKILL),
    ("snakemake", signal.SIGTERM),
    ("everybody", signal.SIGKILL),
    ("terminal", signal.SIGINT),
]
WHILE_TRAINING = [
    ("launcher", signal.SIGKILL),
    ("launcher", signal.SIGTERM),
    ("rank", signal.SIGKILL),
    ("ranks", signal.SIGKILL),
]

# ---------------------------------------------------------------- what is damaged


def damage_checkpoint(study: Study, draw: random.Random, how: Callable) -> str | None:
    cells = (study.work.folder / "results" / "cells").iterdir()
    found = [path for path in map(faults.newest, sorted(cells)) if path]
    if not found:
        return None
    path = draw.choice(found).with_suffix(draw.choice([".json", ".safetensors"]))
    with contextlib.suppress(FileNotFoundError, ValueError):  # its cell may train on
        how(path, draw)
        return f"{path.parent.parent.name}/checkpoints/{path.name}"
    return None


def leave_half(study: Study, draw: random.Random) -> str | None:
    """What a writer leaves who is killed: then there is no result yet."""
    cells = (study.work.folder / "results" / "cells").iterdir()
    folders = [path for path in sorted(cells) if not (path / "metrics.json").exists()]
    if not folders:
        return None
    folder = draw.choice(folders)
    (folder / ".metrics.json.chaos.part").write_text('{"status": "ok", "train_sec')
    return f"{folder.name}/.metrics.json.chaos.part"


DAMAGES: dict[str, Callable[[Study, random.Random], str | None]] = {
    "cut off": lambda study, draw: damage_checkpoint(study, draw, faults.truncate),
    "a bit flipped": lambda study, draw: damage_checkpoint(study, draw, faults.flip),
    "left half-written": leave_half,
}


def drawn(number: int, draw: random.Random) -> list[Kill]:
    """Kills of one round, in the order of its phases."""
    kills = []
    for _ in range(number):
        weights = [weight for weight, _ in PHASES.values()]
        phase = draw.choices(list(PHASES), weights)[0]
        own = WHILE_TRAINING * 2 if phase == "train" else [(phase, signal.SIGKILL)] * 4
        if phase == "dataset":
            own = [*own, *[("certificate", signal.SIGKILL)] * 4]
        who, how = draw.choice(ANYWHERE + own)
        damage = draw.choice(list(DAMAGES)) if phase == "train" and draw.random() < 0.4 else None
        # Most of them in the middle of training, some at its start.
        epoch = draw.randint(1, EPOCHS) if phase == "train" and draw.random() < 0.7 else 0
        delay = draw.uniform(0, 1.0 if epoch else PHASES[phase][1])
        kills.append(Kill(phase, who, how, delay, epoch, damage))
    return sorted(kills, key=lambda kill: list(PHASES).index(kill.phase))


# ---------------------------------------------------------------- the runs


class Chaos:
    """All rounds: ``number`` kills, drawn by ``draw``."""

    def __init__(self, study: Study, number: int, draw: random.Random):
        self.study, self.number, self.draw = study, number, draw
        self.done = self.runs = self.rounds = 0
        self.lost: list[str] = []
        self.cells: Counter[str] = Counter()
        self.begun = time.monotonic()

    def in_peace(self) -> None:
        """Run the study; nobody is killed."""
        self.study.start()
        self.must_be(self.study.end(), "in peace")
        self.whole = self.study.cells()
        self.took = time.monotonic() - self.begun
        print(f"in peace: {len(self.whole)} cells in {self.took:.0f} s", flush=True)

    def must_be(self, status: int, where: str) -> None:
        said = self.study.said.read_text()
        if status != 0 or "Traceback" in said:
            raise ParbenchError(f"a run {where} ended with status {status}:\n{said}")

    def all(self) -> None:
        """Rounds until all kills have struck."""
        self.in_peace()
        while self.done < self.number:
            self.rounds += 1
            self.study.begin_anew()
            self.round(drawn(min(ROUND, self.number - self.done), self.draw))
            self.compare()

    def round(self, kills: list[Kill]) -> None:
        """Run the study until it is done, with these kills as far as there is time for them."""
        while True:
            self.study.start()
            self.runs += 1
            struck = False
            while kills and not struck:
                struck = self.strike(kills.pop(0))
            status = self.study.end()
            if not struck:
                self.must_be(status, "in which nobody was killed")
                return

    def strike(self, kill: Kill) -> bool:
        """Kill, when its time comes; False where it does not, or nobody is there any more."""
        study, begun = self.study, None
        deadline = time.monotonic() + PATIENCE
        while study.is_running():
            phases = [phase for phase, program in PROGRAMS.items() if study.pids(program)]
            if kill.phase in phases and self.epoch() >= kill.epoch:
                begun = begun or time.monotonic()
            elif phases and phases[0] not in self.until(kill.phase):
                return False
            if begun is not None and time.monotonic() - begun >= kill.delay:
                name, pids = VICTIMS[kill.who](study, self.draw)
                if pids:
                    self.send(kill, name, pids)
                    return True
            if time.monotonic() > deadline:
                raise ParbenchError(f"no {kill.phase} begins:\n{study.said.read_text()}")
            time.sleep(LOOK_SECONDS)
        return False

    def until(self, phase: str) -> list[str]:
        """The phases to this one."""
        return list(PHASES)[: list(PHASES).index(phase) + 1]

    def epoch(self) -> int:
        """How far the farthest cell is that is trained now."""
        return max((beat["epoch"] for beat in self.beats()), default=0)

    def beats(self) -> list[dict]:
        """What living ranks tell."""
        beats = faults.beats(self.study.temporary)
        return [beat for beat in beats if Path(f"/proc/{beat['pid']}").exists()]

    def send(self, kill: Kill, name: str, pids: list[int]) -> None:
        """Kill, damage, and tell of it."""
        told = self.where(pids)
        send(pids, kill.number)
        self.done += 1
        clock = time.monotonic() - self.begun
        line = f"{self.done:>3}/{self.number} {clock:6.1f} s  {kill.number.name}  {name}{told}"
        if kill.damage is not None:
            file = DAMAGES[kill.damage](self.study, self.draw)
            line += f"; {file}: {kill.damage}" if file else ""
        print(line, flush=True)

    def where(self, pids: list[int]) -> str:
        """How far they were in training, or somebody was."""
        beats = self.beats()
        beats = [beat for beat in beats if beat["pid"] in pids] or beats
        if not beats:
            return ""
        beat = max(beats, key=lambda beat: (beat["epoch"], beat["step"]))
        at = f" of epoch {beat['epoch']}, step {beat['step']}" if beat["epoch"] else ""
        return f", {beat['phase']}{at}"

    def compare(self) -> None:
        """Each cell with what it was in peace; what is not the same is lost."""
        found = self.study.cells()
        for cell, whole in self.whole.items():
            if cell not in found:
                self.lost.append(f"{cell}: no result")
                continue
            self.cells["all"] += 1
            self.cells["resumed"] += found[cell]["resumed_from"] is not None
            ours, theirs = metrics_json.learned(found[cell]), metrics_json.learned(whole)
            changed = [key for key, value in theirs.items() if ours[key] != value]
            if changed:
                self.lost.append(f"{cell}: another {', '.join(changed)}")
        for name in ("final.html", "final.pdf"):
            if not (self.study.work.folder / "reports" / name).exists():
                self.lost.append(f"reports/{name}")
        self.lost += [f"{path}: half-written" for path in self.study.leftovers()]

    def summary(self) -> str:
        """What was lost."""
        lost = "\n  ".join(self.lost) if self.lost else "nothing"
        return (
            f"{self.done} kills in {self.runs} runs of {self.rounds} studies, "
            f"{time.monotonic() - self.begun:.0f} s; {self.cells['all']} cells trained, "
            f"{self.cells['resumed']} of them from a checkpoint\n"
            f"compared with the run in peace, lost: {lost}"
        )


def main() -> int:
    """The command line: 0 when nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--strategies", default=",".join(VARIANTS), help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn; default: 0")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as folder:
        study = Study(Path(folder), arguments.strategies.split(","))
        chaos = Chaos(study, arguments.kills, random.Random(arguments.seed))
        try:
            chaos.all()
        finally:
            study.kill_all()
    print(chaos.summary())
    return 1 if chaos.lost else 0


if __name__ == "__main__":
    run_main(main)
