"""The first page and the section of a study, put together from tables, figures and facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from reporting import time_to_accuracy
from reporting.batches import batches_figure
from reporting.figures import figures
from reporting.not_yet import not_yet_table
from reporting.operators import operators_figure, operators_table, processor_table
from reporting.panels import every_run
from reporting.paper_tables import (
    VERDICTS,
    every_metric_table,
    paper_table,
    speedup_table,
    verdict_table,
)
from reporting.phases import phases_figure, phases_table
from reporting.study import Study
from reporting.table import make_table, text_cell
from reporting.text import (
    ABSENT,
    anchor,
    count,
    counted,
    deployment_text,
    listed,
    machine_text,
    mapping_text,
    moment,
    settings_pairs,
)
from reporting.work import work_table


def summary(studies: list[Study], verdicts: dict) -> dict:
    """The first page: counts of ``verdicts`` (the table of all), machines, stacks, dates."""
    total = Counter(row[-1]["verdict"] for row in verdicts["rows"])
    order = [name for name in VERDICTS if name in total]
    order += sorted(name for name in total if name not in VERDICTS)
    states = Counter(study.status(group) for study in studies for group in study.groups)
    return {
        "sentence": _headline(states, verdicts),
        "facts": _facts(studies, states),
        "counts": [
            {"verdict": name, "count": str(total[name]), "tone": VERDICTS.get(name, "plain")}
            for name in order
        ],
        "table": _count_table(studies, order),
    }


def study_section(study: Study) -> dict:
    """What the report says of one study."""
    text = study.study
    tables = [paper_table(study, index, table) for index, table in enumerate(text["tables"], 1)]
    more = (
        speedup_table,
        time_to_accuracy.table,
        operators_table,
        processor_table,
        phases_table,
        every_metric_table,
        not_yet_table,
    )
    tables += filter(None, (make(study) for make in more))
    tables += [work_table(study)] if study.groups else []
    states = Counter(study.status(group) for group in study.groups)
    return {
        "id": anchor("study", study.name),
        "name": study.name,
        "title": text["title"],
        "description": text.get("description") or "",
        "citation": _citation(text.get("citation")),
        "facts": [
            ["Dataset", str(text["dataset"])],
            ["Groups", f"{len(study.groups)}: {counted(states)}" if study.groups else "none"],
            ["Stack", study.stack],
            ["Deployment", deployment_text(study.deployment)],
            *([["Tolerance", mapping_text(text["tolerance"])]] if study.has_source else []),
        ],
        "settings": settings_pairs(text["settings"]),
        "assumed": settings_pairs(text["assumed"]),
        "tables": tables,
        "figures": [
            *figures(study),
            *filter(
                None, (make(study) for make in (batches_figure, operators_figure, phases_figure))
            ),
        ],
    }


def _citation(citation: dict | None) -> dict | None:
    """The text, and the address where it is one that a browser may safely open."""
    if citation is None:
        return None
    url = citation.get("url") or ""
    web = url.startswith(("https://", "http://"))
    return {"text": citation["text"], "url": url if web else None}


def _facts(studies: list[Study], states: Counter) -> list[list[str]]:
    runs = every_run(studies)
    started = min((run["started"] for run in runs.values()), default="")
    finished = max((run["finished"] for run in runs.values()), default="")
    environments = [run["environment"] for run in runs.values()]
    commits = (
        (env["git_commit"] or "unknown")[:12]
        + (" with uncommitted changes" if env["git_dirty"] else "")
        for env in environments
    )
    facts = [
        ["Studies", listed([study.name for study in studies])],
        ["Groups", f"{states.total()}: {counted(states)}"],
        ["Cells", str(len(runs))],
        ["Machine", _several(machine_text(env["machine"]) for env in environments)],
        ["Stack", _several(study.stack for study in studies)],
        ["Deployment", _several(deployment_text(study.deployment) for study in studies)],
        ["Runs", f"{moment(started)} to {moment(finished)} UTC" if runs else "none"],
        ["Code", _several(commits)],
    ]
    used = sorted({env["image"] for env in environments if env["image"]})
    if used:
        facts.insert(6, ["Images", ", ".join(used)])
    differs = sorted({text for env in environments for text in env["lock_mismatch"]})
    return facts + ([["Differs from the lock", ", ".join(differs)]] if differs else [])


def _several(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts)) or "none"


def _headline(states: Counter, verdicts: dict) -> str:
    groups = states.total()
    published = len(verdicts["heads"][0]["columns"])  # the first column after the keys
    with_published = [row for row in verdicts["rows"] if row[published]["text"] != ABSENT]
    said = Counter(row[-1]["verdict"] for row in with_published)
    text = f"{groups - states['not run']} of {count(groups, 'group')} ran here. "
    if not with_published:
        return text + "No number of this report has a published counterpart."
    parts = [f"{said[name]} {name}" for name in VERDICTS if name in said]
    return text + f"Of {count(len(with_published), 'published number')}: {listed(parts)}."


def _count_table(studies: list[Study], order: list[str]) -> dict:
    rows = []
    for study in studies:
        total = Counter(row[-1]["verdict"] for row in verdict_table([study])["rows"])
        cells = [text_cell(str(total[name]), sort=total[name]) for name in order]
        rows.append([text_cell(study.study["title"], link=anchor("study", study.name)), *cells])
    return make_table(
        "t-counts", "Verdicts by study", [("", ["Study"]), ("", order)], rows, empty="No study."
    )
