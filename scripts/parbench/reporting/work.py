"""What each group computes: the settings one must know to compare two numbers.

A group's ``work`` in the plan is what its settings amount to on its hardware.
"""

from __future__ import annotations

from dataclasses import asdict

from parbench import strategies
from parbench.plan.study_plan import DerivedSettings
from parbench.reporting.study_results import StudyResults
from parbench.reporting.table import TableCell, TableEntry, make_table
from parbench.reporting.text import mapping_text
from parbench.verdicts.groups import Group

COLUMNS = ["Learning rate", "Global batch", "BatchNorm", "Precision", "TF32", "Mode"]


def work_table(study: StudyResults) -> TableEntry:
    """Return a table with a row per set of a model's groups that compute the same, run or not."""
    unknown = [name for name in strategies.names() if strategies.load(name).PAIRS_ONLY]
    programs = [group for group in study.own if group.strategy in unknown]
    values_by_group = {group: _work(group) for group in study.own if group not in programs}
    heads = COLUMNS + ["Performance settings"] * any(
        group.training.tuned for group in values_by_group
    )
    alike = [len(set(column)) == 1 for column in zip(*values_by_group.values(), strict=True)]
    rows: dict[tuple[str, ...], list[str]] = {}
    for group, values in values_by_group.items():
        if group.training.profile == "none":
            differing = (text for text, same in zip(values, alike, strict=True) if not same)
            rows.setdefault((group.model, *differing), []).append(group.variant)
    first_values = next(iter(values_by_group.values()), [])
    shared = [
        f"{name} {text}"
        for name, text, same in zip(heads, first_values, alike, strict=False)
        if same
    ]
    columns = [name for name, same in zip(heads, alike, strict=False) if not same]
    caption = f"All of them: {', '.join(shared)}. " if shared else ""
    if programs:
        names = ", ".join(dict.fromkeys(group.variant for group in programs))
        caption += f"The user's own programs, whose settings parbench does not know: {names}. "
    return make_table(
        f"t-{study.name}-work",
        "What each variant computes",
        [("", ["Model", "Variants"]), ("", columns)],
        [
            [TableCell(model), TableCell(", ".join(dict.fromkeys(names))), *map(TableCell, values)]
            for (model, *values), names in rows.items()
        ],
        caption=f"{caption}The learning rate is the schedule's peak. BatchNorm: what it "
        "normalizes over in training, in models that have it.",
    )


def _work(group: Group) -> list[str]:
    """Return a group's values of COLUMNS, and its performance settings."""
    training, work = group.training, group.work
    rule = training.learning_rate_rule
    if rule == "linear":
        rule += f": {work.ranks} × {training.learning_rate:g}"
    return [
        f"{work.learning_rate:g} ({rule})",
        _batch(training.global_batch, work),
        f"{training.batch_norm}: {work.batch_norm}",
        training.precision,
        ", ".join(name for name, used in asdict(training.tf32).items() if used) or "no",
        training.mode,
        mapping_text(training.tuned),
    ]


def _batch(samples: int, work: DerivedSettings) -> str:
    """Return ``64 (32 a rank)``, ``65 (32 or 33 a rank)``, ``64 (4 micro-batches)``."""
    least, rest = divmod(samples, work.ranks)
    parts = []
    if work.ranks > 1:
        parts.append(f"{f'{least} or {least + 1}' if rest else least} a rank")
    if work.micro_batches > 1:
        parts.append(f"{work.micro_batches} micro-batches")
    return f"{samples} ({', '.join(parts)})" if parts else str(samples)
