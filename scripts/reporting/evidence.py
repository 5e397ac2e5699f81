"""What a report rests on that is made of files of evidence, and not of runs of its own."""

from __future__ import annotations

from reporting.study import Study
from reporting.table import make_table, text_cell
from reporting.text import count, deployment_text, listed, machine_text


def section(studies: list[Study]) -> dict | None:
    """A row a file, and the sentence of the first page; None in a report of runs."""
    files = [study for study in studies if study.evidence is not None]
    if not files:
        return None
    dates = sorted({study.evidence["date"] for study in files})
    machines = list(dict.fromkeys(name for study in files for name in _machines(study)))
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    stacks = list(dict.fromkeys(study.stack for study in files))
    return {
        "sentence": f"Rendered from {count(len(files), 'file')} of evidence; nothing was trained "
        f"for it. Measured on {listed(machines)}, {when}, with the stack {listed(stacks)}.",
        "table": make_table(
            "t-evidence",
            "Evidence",
            [("", ["File"]), ("", ["Machine", "Measured", "Stack", "Cells", "Digest"])],
            [_row(study) for study in files],
            caption="What was measured elsewhere or earlier, and is kept with the project. To "
            "measure it again: make report with the study's name; scripts/compare.py sets two "
            "files side by side.",
        ),
    }


def _machines(study: Study) -> list[str]:
    runs = study.metrics.values()
    return list(dict.fromkeys(machine_text(run["environment"]["machine"]) for run in runs))


def _row(study: Study) -> list[dict]:
    told = study.evidence
    return [
        text_cell(told["file"]),
        text_cell("; ".join(_machines(study))),
        text_cell(told["date"]),
        text_cell(f"{study.stack}, in {deployment_text(study.deployment)}"),
        text_cell(str(len(study.metrics)), sort=len(study.metrics)),
        text_cell(told["digest"][:12]),
    ]
