"""Certify that strategies compute the same, by comparing each with eager training on one batch.

    parbench certify --model resnet18 --out certificate.json

The batch has an uneven tail; the first step's gradients, three steps' losses and the weights after
them are compared. The steps are those of the training loop itself, in real processes of the
strategy's own launcher. Each strategy file lists which options to certify on how many devices;
`--plan` takes those of a study's cells. docs/equivalence.md: what is compared, how to read it.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from parbench import (
    files,
    interpreter,
    machine,
    models,
    packages,
    probe,
    strategies,
    terminal,
)
from parbench.cell import Cell
from parbench.equivalence import certificate, trials
from parbench.equivalence.certificate import DIFFERS, EQUAL
from parbench.equivalence.trials import Errors, Trial, TrialResult
from parbench.errors import ParbenchError
from parbench.launch import outcome, ranks
from parbench.measure import provenance
from parbench.software import Software
from parbench.training import launched
from parbench.variables import PROGRAM

if TYPE_CHECKING:
    from parbench.equivalence.certificate_types import (
        CertificateEnvironment,
        CertificateRow,
        RowStart,
    )

LIMIT_SECONDS = 600  # limit for all trials of one launch
RANK = (str(PROGRAM), "trials")

# ---------------------------------------------------------------- all trials, in their processes


def certify(todo: list[Trial], program: Sequence[str] = RANK) -> list[CertificateRow]:
    """Run the trials ``todo`` and return the rows of a certificate, in the same order.

    A trial that differs is repeated with another batch where the difference may be mere rounding
    (BATCHES). ``program``: the command that ranks run; a test passes a faulty one.
    """
    rows = [list(_rows(trial, result)) for trial, result in _tried(todo, program)]
    for batch in range(2, max(trials.BATCHES.values()) + 1):
        differing = [
            index
            for index, trial in enumerate(todo)
            if batch <= trials.BATCHES[trial.arithmetic]
            and any(row["verdict"] == DIFFERS and row["reason"] is None for row in rows[index])
        ]
        repeated = _tried([replace(todo[index], batch=batch) for index in differing], program)
        for index, (trial, result) in zip(differing, repeated, strict=True):
            found = list(_rows(trial, result))
            if all(row["verdict"] == EQUAL for row in found):
                rows[index] = found
    return [row for group in rows for row in group]


def _tried(todo: list[Trial], program: Sequence[str]) -> list[tuple[Trial, TrialResult]]:
    """Run the trials ``todo``; return each with its errors by quantity, or why it failed."""
    results: dict[int, TrialResult] = {}
    unlaunched: list[int] = []
    indices_by_place: dict[str, list[int]] = {}
    for index, trial in enumerate(todo):
        if strategies.of(trial.cell).ranks_per_node == 1:
            unlaunched.append(index)
        else:
            indices_by_place.setdefault(trials.place(trial.cell), []).append(index)
    counted = itertools.count(1)

    def write_progress() -> None:
        if sys.stderr.isatty():
            print(f"{next(counted)} of {len(todo)} trials", end="\r", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="parbench-") as folder:
        work = Path(folder)
        for trial in todo:
            if not trial.in_half:
                trials.reference(trial, work)  # in advance, since ranks read it

        def launch_all() -> None:
            for indices in indices_by_place.values():
                launched_results = _launched(program, [todo[index] for index in indices], work)
                results.update(zip(indices, launched_results, strict=True))
                for _ in indices:
                    write_progress()

        # Trials without processes of their own run in this one while the launched ones run.
        with ThreadPoolExecutor(1) as executor:
            launching = executor.submit(launch_all)
            if unlaunched:
                chosen = [todo[index] for index in unlaunched]
                trials.run_trials(chosen, work, work / "own.json", write_progress)
                results.update(zip(unlaunched, files.read_json(work / "own.json"), strict=True))
            launching.result()
    return [(trial, results[index]) for index, trial in enumerate(todo)]


def _launched(program: Sequence[str], todo: list[Trial], work: Path) -> list[TrialResult]:
    """Launch ranks of ``program`` to run ``todo``; return each trial's errors, or why it failed."""
    state = Path(tempfile.mkdtemp(dir=work))
    out, log = state / "out.json", state / "log.txt"
    files.write_json(work / "todo.json", [trial.json() for trial in todo])
    command = [sys.executable, *program, "--work", str(work), "--out", str(out)]
    count = strategies.of(todo[0].cell).ranks_per_node
    # There may be more ranks than cores, as they need not be fast.
    variables = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "HOROVOD_GLOO_IFACE": "lo"}
    variables |= {"PARBENCH_STATE": str(state), "PARBENCH_STORE": str(state / "store")}
    programs = {
        rank: ranks.RankCommand(
            command, {**os.environ, **variables, **launched.place(rank, count, count)}
        )
        for rank in range(count)
    }
    started = ranks.Ranks(programs, count, state, log)
    ranks.run(started, LIMIT_SECONDS)
    failure = outcome.failure_of(started)
    results: list[TrialResult] = files.read_json(out) if out.exists() else []
    if failure is not None or len(results) < len(todo):
        why = failure.sentence if failure else "no result"
        results += [why] * (len(todo) - len(results))
    return results


def _rows(trial: Trial, result: TrialResult) -> Iterator[CertificateRow]:
    """Yield a row for each quantity in ``result``, or one with the reason why there is none."""
    errors: Errors = {"all": None} if isinstance(result, str) else result
    bound = trials.ARITHMETIC[trial.arithmetic].bound
    row: RowStart = {
        **certificate.combination(trial.cell),
        "arithmetic": trial.arithmetic,
        "batch_norm": trial.batch_norm,
        "batch": trial.batch,
        "code": provenance.combined(provenance.code_of(trial.cell)),
        "bound": bound,
        "reason": result if isinstance(result, str) else None,
    }
    for quantity, error in errors.items():
        equal = error is not None and error <= bound
        verdict = EQUAL if equal else DIFFERS
        yield {**row, "quantity": quantity, "error": error, "verdict": verdict}


# ---------------------------------------------------------------- the program


def whole_matrix(chosen: list[str]) -> list[Trial]:
    """Return the trials of the ``chosen`` models with all cases that each strategy certifies.

    Pipelines of more stages than a model can be cut into are left out, with a message.
    """
    cells = [
        certificate.cell_of(model, strategy, devices, options)
        for model in chosen
        for strategy in strategies.names()
        for devices, options in strategies.load(strategy).certified()
    ]
    uncut = [cell for cell in cells if not _can_be_cut(cell)]
    for model, stages in {(cell.model.name, strategies.of(cell).stages) for cell in uncut}:
        print(f"{model}: left out in {stages} stages, for which it has no cuts", file=sys.stderr)
    possible = (cell for cell in cells if cell not in uncut)
    return _distinct(trials.trials_of(cell, certificate.ALSO_IN, True) for cell in possible)


def _can_be_cut(cell: Cell) -> bool:
    try:
        models.load(cell.model.name).cuts(strategies.of(cell).stages, cell.model.options)
    except ParbenchError:
        return False
    return True


def of_plans(plans: Iterable[Path], place: str) -> list[Trial]:
    """Return the trials of what the cells of ``plans`` that run in ``place`` use."""
    return _distinct(
        trials.trials_of(
            certificate.cell_for(entry),
            {entry["precision"]} & set(certificate.ALSO_IN),
            entry["batch_norm"] == certificate.SYNCHRONIZED,
        )
        for entry in certificate.required(certificate.groups_of(plans), place)
        # Trials on GPUs run only where there are enough of them.
        if entry["device"] == "cpu" or entry["devices"] <= torch.cuda.device_count()
    )


def _distinct(those: Iterable[list[Trial]]) -> list[Trial]:
    return list({files.digest(trial.json()): trial for group in those for trial in group}.values())


def shown(rows: list[CertificateRow]) -> str:
    """Return a summary of the certificate as a table, followed by all rows that differ."""
    quantities = certificate.QUANTITIES
    head = ["model", "strategy", "arithmetic", "BatchNorm", "of", *quantities, "bound", "verdict"]
    lines = terminal.aligned([head, *certificate.summary(rows)])
    lines += [
        f"differs: {row['model']}, {row['strategy']} {json.dumps(row['options'])} on "
        f"{row['devices']}: {certificate.error_text(row)}"
        for row in rows
        if row["verdict"] == DIFFERS
    ]
    return "\n".join(lines)


def _check_place(place: str) -> None:
    """Raise ParbenchError if ``place`` is the label of a Python other than this one."""
    own = probe.label(probe.this_python()) if place.startswith(probe.LABEL) else place
    if place != own:
        raise ParbenchError(
            f"--place {place}: {sys.executable} is {own}; run this with the Python of "
            f"{interpreter.KEY}, whose packages it certifies"
        )


def run_rank(work: Path, out: Path) -> None:
    """Run the trials that ``_launched`` wrote into ``work``, as one rank; rank 0 writes ``out``."""
    launched.begin()
    todo = [Trial.read(entry) for entry in files.read_json(work / "todo.json")]
    trials.run_trials(todo, work, out)


def certify_models(chosen: Sequence[str] | None, out: Path | None, place: str) -> int:
    """Certify all strategies for the ``chosen`` models, by default those with installed packages.

    Prints the result, writes it to ``out``, and returns how many quantities differ.
    """
    _check_place(place)
    if not chosen:
        missing = Software().without_text()
        chosen = [name for name in models.names() if not (missing and models.vocabulary(name))]
        if chosen != models.names():
            print(f"text models are left out: {missing}", file=sys.stderr)
    return _certified(whole_matrix(list(chosen)), out, place)


def certify_plans(plans: Sequence[Path], out: Path | None, place: str) -> int:
    """Certify what the cells of ``plans`` in ``place`` use; otherwise as ``certify_models``."""
    _check_place(place)
    return _certified(of_plans(plans, place), out, place)


def _certified(todo: list[Trial], out: Path | None, place: str) -> int:
    rows = certify(todo)
    print(shown(rows))
    differing = sum(row["verdict"] == DIFFERS for row in rows)
    if out is not None:
        environment: CertificateEnvironment = {
            "python": sys.version.split()[0],
            "packages": packages.installed(),
            "machine": machine.describe(),
        }
        content = certificate.write(out, place, environment, rows)
        summary = f"{len(rows)} quantities compared with eager training, {differing} differ"
        print(f"{out}: {summary}; digest {content['digest']}")
    return differing
