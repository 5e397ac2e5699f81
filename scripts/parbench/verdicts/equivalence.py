"""Prove that strategies compute the same thing: each against eager training, on one batch.

    python scripts/equivalence.py --model resnet18 --out certificate.json

The batch has an uneven tail; the first step's gradients, three steps' losses and the weights after
them are compared. The steps are those of the training loop itself, in real processes of the
strategy's own launcher. Every strategy file states what of it is certified; `--plan` takes what the
cells of a study use instead. docs/equivalence.md says what is compared and how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from parbench import files, machine, models, packages, strategies
from parbench.launch import outcome, ranks
from parbench.measure import provenance
from parbench.training import launched
from parbench.verdicts import certificate, terminal, trials
from parbench.verdicts.trials import Trial
from parbench.verdicts.words import DIFFERS, EQUAL

LIMIT_SECONDS = 600  # for all ranks of one launch together
PROGRAM = provenance.SCRIPTS / "equivalence.py"

# ---------------------------------------------------------------- all trials, in their processes


def certify(todo: list[Trial], program: Path = PROGRAM) -> list[dict]:
    """The rows of a certificate: what came of every trial of ``todo``, in its order.

    ``program`` is what ranks run; a test gives one that errs.
    """
    results: dict[int, dict | str] = {}
    own, launches = [], {}
    for index, trial in enumerate(todo):
        if strategies.of(trial.cell).ranks_per_node == 1:
            own.append(index)
        else:
            launches.setdefault(trials.place(trial.cell), []).append(index)
    with (
        tempfile.TemporaryDirectory(prefix="parbench-") as folder,
        tqdm(total=len(todo), desc="certificate", unit=" trials", disable=None) as bar,
    ):
        work = Path(folder)
        for trial in todo:
            if not trial.in_half:
                trials.reference(trial, work)  # before ranks read it

        def launch_all() -> None:
            for indices in launches.values():
                found = _launched(program, [todo[index] for index in indices], work)
                results.update(zip(indices, found, strict=True))
                bar.update(len(indices))

        # What needs no processes of its own is computed here, beside those that are waited for.
        with ThreadPoolExecutor(1) as aside:
            others = aside.submit(launch_all)
            if own:
                chosen = [todo[index] for index in own]
                trials.run_trials(chosen, work, work / "own.json", bar.update)
                results.update(zip(own, files.read_json(work / "own.json"), strict=True))
            others.result()
    return [row for index, trial in enumerate(todo) for row in _rows(trial, results[index])]


def _launched(program: Path, todo: list[Trial], work: Path) -> list[dict | str]:
    """What came of trials that are started at once, run by ranks of ``program``."""
    state = Path(tempfile.mkdtemp(dir=work))
    out, log = state / "out.json", state / "log.txt"
    files.write_json(work / "todo.json", [trial.json() for trial in todo])
    words = [sys.executable, str(program), "--work", str(work), "--out", str(out)]
    count = strategies.of(todo[0].cell).ranks_per_node
    # More ranks than cores: they need not be quick.
    alone = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HOROVOD_GLOO_IFACE": "lo"}
    alone |= {"PARBENCH_STATE": str(state), "PARBENCH_STORE": str(state / "store")}
    programs = {
        rank: ranks.Program(words, {**os.environ, **alone, **ranks.place(rank, count, count)})
        for rank in range(count)
    }
    started = ranks.Ranks(programs, count, state, log)
    ranks.run(started, LIMIT_SECONDS)
    failure = outcome.failure_of(started)
    found = files.read_json(out) if out.exists() else []
    if failure is not None or len(found) < len(todo):
        why = failure.sentence if failure else "no result"
        found += [why] * (len(todo) - len(found))
    return found


def _rows(trial: Trial, result: dict | str) -> Iterator[dict]:
    """A row for each quantity of the ``result``; one, with the reason, where there is none."""
    errors, reason = ({"all": None}, result) if isinstance(result, str) else (result, None)
    bound = trials.ARITHMETIC[trial.arithmetic].bound
    row = {
        **certificate.combination(trial.cell.json()),
        "arithmetic": trial.arithmetic,
        "batch_norm": trial.batch_norm,
        "code": provenance.combined(provenance.code_of(trial.cell)),
        "bound": bound,
        "reason": reason,
    }
    for quantity, error in errors.items():
        equal = error is not None and error <= bound
        verdict = EQUAL if equal else DIFFERS
        yield row | {"quantity": quantity, "error": error, "verdict": verdict}


# ---------------------------------------------------------------- the program


def whole_matrix(chosen: list[str]) -> list[Trial]:
    """The trials of ``chosen`` models with all that every strategy states."""
    cells = [
        trials.cell_of(model, strategy, devices, options)
        for model in chosen
        for strategy in strategies.names()
        for devices, options in strategies.load(strategy).certified()
    ]
    return _distinct(trials.trials_of(cell, certificate.ALSO_IN, True) for cell in cells)


def of_plans(plans: Iterable[Path], place: str) -> list[Trial]:
    """The trials of what the cells in ``plans`` use, of those that run in ``place``."""
    return _distinct(
        trials.trials_of(
            trials.cell_of(
                each["model"], each["strategy"], each["devices"], each["options"], each["tuned"]
            ),
            {each["precision"]} & set(certificate.ALSO_IN),
            each["batch_norm"] == certificate.SYNCHRONIZED,
        )
        for each in certificate.wanted(map(files.read_json, plans), place)
    )


def _distinct(those: Iterable[list[Trial]]) -> list[Trial]:
    return list({files.digest(each.json()): each for some in those for each in some}.values())


def shown(rows: list[dict]) -> str:
    """The certificate in short, as a table; below it, all that differs."""
    quantities = certificate.QUANTITIES
    head = ["model", "strategy", "arithmetic", "BatchNorm", "of", *quantities, "bound", "verdict"]
    text = terminal.aligned([head, *certificate.summary(rows)])
    text += [
        f"differs: {row['model']}, {row['strategy']} {json.dumps(row['options'])} on "
        f"{row['devices']}: {certificate.said(row)}"
        for row in rows
        if row["verdict"] == DIFFERS
    ]
    return "\n".join(text)


def main() -> int:
    """The command line: 1 where something differs from eager training."""
    known = models.names()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--model", action="append", choices=known, help="default: all")
    what.add_argument("--plan", type=Path, nargs="+", help="what these plans of studies use")
    parser.add_argument("--place", default=certificate.HOST, help="label of the image it runs in")
    parser.add_argument("--out", type=Path, help="certificate to write")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)  # this is a rank of a trial
    arguments = parser.parse_args()
    if arguments.work is not None:
        launched.begin()
        todo = [Trial.read(each) for each in files.read_json(arguments.work / "todo.json")]
        trials.run_trials(todo, arguments.work, arguments.out)
        return 0
    if arguments.plan is not None:
        todo = of_plans(arguments.plan, arguments.place)
    else:
        lacking = machine.Software().without_text()
        here = [name for name in known if not (lacking and models.vocabulary(name))]
        if here != known and not arguments.model:
            print(f"models of texts are left out: {lacking}", file=sys.stderr)
        todo = whole_matrix(arguments.model or here)
    rows = certify(todo)
    print(shown(rows))
    bad = sum(row["verdict"] == DIFFERS for row in rows)
    if arguments.out is not None:
        about = {"python": sys.version.split()[0], "packages": packages.installed()}
        about["machine"] = machine.describe()
        made = certificate.write(arguments.out, arguments.place, about, rows)
        told = f"{len(rows)} comparisons with eager training, {bad} of which differ"
        print(f"{arguments.out}: {told}; digest {made['digest']}")
    # Of a study's cells the report says it: a strategy may be meant to differ.
    return int(bad > 0 and arguments.plan is None)
