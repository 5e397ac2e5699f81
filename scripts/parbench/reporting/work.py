"""What each group computes: the settings without which two numbers are not set beside each other.

The plan's ``work`` of a group tells what its settings come to on its hardware.
"""

from __future__ import annotations

from parbench.cell import Training
from parbench.plan.study_plan import Work
from parbench.reporting.paper_tables import KEYS, key_cells
from parbench.reporting.study import Study
from parbench.reporting.table import Cell, make_table
from parbench.reporting.text import mapping_text
from parbench.verdicts.groups import Group

# Settings that `work_pairs` tells, and which need not be listed again.
TOLD = {
    "learning_rate",
    "learning_rate_rule",
    "global_batch",
    "batch_norm",
    "precision",
    "tf32",
    "mode",
    "profile",
}


def work_pairs(group: Group) -> list[list[str]]:
    """Name and value, in words, of all that a comparison rests on; the same names for any group."""
    training, work = group.training, group.work
    return [
        ["learning rate", _rate(training, work)],
        ["global batch", _batch(training.global_batch, work)],
        ["BatchNorm", f"{training.batch_norm}: {work.batch_norm}"],
        ["precision", training.precision],
        ["TF32", mapping_text(training.tf32)],
        ["mode", _mode(training)],
    ]


def _rate(training: Training, work: Work) -> str:
    """``0.004 (linear: 2 × 0.002)``, ``0.002 (fixed)``."""
    rule, stated = training.learning_rate_rule, training.learning_rate
    if rule == "linear":
        rule += f": {work.ranks} × {stated:g}"
    return f"{work.learning_rate:g} ({rule})"


def _mode(training: Training) -> str:
    """``performance``, ``performance, instrumented: phases``."""
    profile = training.profile
    return training.mode + ("" if profile == "none" else f", instrumented: {profile}")


def _batch(samples: int, work: Work) -> str:
    """``64 (32 a rank)``, ``65 (32 or 33 a rank)``, ``64 (4 micro-batches)``."""
    least, rest = divmod(samples, work.ranks)
    parts = []
    if work.ranks > 1:
        parts.append(f"{f'{least} or {least + 1}' if rest else least} a rank")
    if work.micro_batches > 1:
        parts.append(f"{work.micro_batches} micro-batches")
    return f"{samples} ({', '.join(parts)})" if parts else str(samples)


def work_table(study: Study) -> dict:
    """A row a group, also of those that were not run."""
    titles = [name[0].upper() + name[1:] for name, _ in work_pairs(study.own[0])]
    return make_table(
        f"t-{study.name}-work",
        "What each group computes",
        [("", KEYS), ("", titles)],
        [key_cells(group) + [Cell(value) for _, value in work_pairs(group)] for group in study.own],
        caption="The learning rate is that of the schedule's peak. BatchNorm: over what a model "
        "that has it normalises in training.",
    )
