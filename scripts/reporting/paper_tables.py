"""The tables of a study: published beside reproduced, speedups, everything measured, verdicts."""

from __future__ import annotations

from reporting.study import OPTIONAL, Study, bound
from reporting.table import Notes, absent_cell, make_table, text_cell
from reporting.text import (
    ABSENT,
    band_text,
    convert,
    deployment_text,
    hardware_text,
    heading,
    listed,
    machine_text,
    ratio_text,
    short,
)
from seeds import DECIDE_FROM, NOT_REACHED

KEYS = ["Model", "Variant", "Hardware"]
FOUR = ["Published", "Reproduced", "Ratio", "Verdict"]
APART = ("speedup", "seconds_to_published_accuracy")  # metrics with a table of their own
VERDICTS = {  # each in the order of the summary, and its tone
    "reproduced": "good",
    "within noise": "good",
    "not reproduced": "bad",
    "better than published (suspicious)": "warn",
    "not comparable": "plain",
    "undecided": "plain",
    "not run": "plain",
    "not measured": "plain",
    "no published value": "plain",
}


PIPELINE_BOUND = (
    "A pipeline of n devices that fills and drains with each batch is at most m·n/(m + n − 1) "
    "times as fast as one device with m micro-batches of equal cost: the pipeline bound."
)


# --------------------------------------------------------------------------- cells of a row


def key_cells(group: dict, marks: list[str] | None = None) -> list[dict]:
    """Model, variant and hardware of a group: the keys of every table of groups."""
    return [
        text_cell(group["model"]),
        text_cell(group["variant"], marks=marks or None),
        text_cell(hardware_text(group["hardware"]), sort=bound(group)),
    ]


def published_cell(row: dict | None, unit: str) -> dict:
    """The source's number, or a dash that says that there is none."""
    if row is None or row["published"] is None:
        return absent_cell("no published value")
    value = convert(row["published"], row["published_unit"] or row["unit"], unit)
    return text_cell(short(value, unit), sort=value)


def outcome_cell(study: Study, group: dict, row: dict | None, unit: str, span: int = 1) -> dict:
    """The reproduced number with a link to its cells, or in words why there is none.

    The words span ``span`` columns.
    """
    link = study.panel(group)
    if row is not None and row["mean"] is not None:
        value = convert(row["mean"], row["unit"], unit)
        return text_cell(study.reproduced(row, unit), sort=value, link=link)
    status = study.status(group)
    if status == "ok" and row is not None and row["verdict"] == "not measured":
        return text_cell("not measured", span=span if span > 1 else None, tone="muted", link=link)
    if status == "ok":
        said = row["reason"].split("; ") if row is not None else []
        missed = next((words for words in said if words.startswith(NOT_REACHED)), None)
        return text_cell(missed, link=link) if missed else absent_cell("does not apply")
    why = study.why(group) or (row["reason"] if row else "")
    return text_cell(
        f"{status}: {why}" if why else status,
        span=span if span > 1 else None,
        tone="muted" if group["not_run"] else "bad",
        link=link,
    )


def verdict_cell(row: dict | None, group: dict, marks: list[str]) -> dict:
    """A verdict, never blank."""
    verdict = row["verdict"] if row else ("not run" if group["not_run"] else "")
    if verdict in ("", "no published value"):
        verdict = verdict or "no verdict"
        cell = absent_cell(verdict) | {"verdict": verdict}
    else:
        cell = text_cell(verdict, tone=VERDICTS.get(verdict, "plain"), verdict=verdict)
    return cell | ({"marks": marks} if marks else {})


def metric_cells(study: Study, group: dict, metric: str, unit: str, notes: Notes) -> list[dict]:
    """published | reproduced | ratio | verdict of one number; reproduced alone without a source."""
    row = study.row(group, metric)
    if not study.has_source:
        outcome = outcome_cell(study, group, row, unit)
        marks = notes.mark(*row["reason"].split("; ")) if row and "link" in outcome else []
        return [outcome | ({"marks": marks} if marks and row["mean"] is not None else {})]
    outcome = outcome_cell(study, group, row, unit, span=2)
    cells, reason = [published_cell(row, unit), outcome], ""
    if "span" not in outcome:
        ratio = row["ratio"] if row else None
        known = ratio is not None
        cells.append(text_cell(ratio_text(ratio), sort=ratio) if known else absent_cell("no ratio"))
        reason = row["reason"] if row else ""
    return [*cells, verdict_cell(row, group, notes.mark(*reason.split("; ")))]


# --------------------------------------------------------------------------- tables of a study


def paper_table(study: Study, index: int, table: dict) -> dict:
    """One of the paper's tables, in its own shape."""
    notes, rows = Notes(), []
    units = {m: table.get("units", {}).get(m) or study.unit(m) for m in table["metrics"]}
    groups = study.table_groups(table)
    for group in groups:
        scaled = "scaled: " + ", ".join(group["scaled"]) if group["scaled"] else ""
        row = key_cells(group, notes.mark(scaled))
        for metric, unit in units.items():
            row += metric_cells(study, group, metric, unit, notes)
        rows.append(row)
    return make_table(
        f"t-{study.name}-{index}",
        table["title"],
        [("", KEYS)]
        + [_metric_head(study, heading(metric, unit)) for metric, unit in units.items()],
        rows,
        caption=table.get("caption", ""),
        context=context(study, groups),
        notes=notes,
        empty="The plan has no group of this table.",
    )


def _metric_head(study: Study, title: str) -> tuple[str, list[str]]:
    return (title, FOUR) if study.has_source else ("", [title])


def context(study: Study, groups: list[dict]) -> str:
    """Stack, deployment and machine of a table's numbers, and a warning when devices are mixed."""
    runs = [study.metrics[cell] for group in groups for cell in study.cells(group)]
    machines = list(dict.fromkeys(machine_text(run["environment"]["machine"]) for run in runs))
    text = (
        f"Reproduced: mean ± standard deviation, or the range of fewer than {DECIDE_FROM} seeds "
        f"(how many). Stack {study.stack}, "
        f"in {deployment_text(study.deployment)}"
    )
    if machines:
        text += f"; {'machines' if len(machines) > 1 else 'machine'}: {listed(machines)}."
    else:
        text += "; no cell of this table ran."
    if len({group["hardware"]["device"] for group in groups}) > 1:
        text += (
            " This table holds both CPU and GPU cells: "
            "numbers of one kind say nothing of the other."
        )
    if len(machines) > 1:
        text += " Numbers of different machines are not to be divided by each other."
    return text


def speedup_table(study: Study) -> dict | None:
    """Speedup of every group that has a baseline, with its bound and its noise floor."""
    notes = Notes()
    groups = [group for group in study.groups if group["baseline"]]
    if not groups:
        return None
    pipelines = any(group["work"]["pipeline_bound"] for group in groups)
    columns = ["Speedup", "95 % interval", "Bound"]
    columns += ["Pipeline bound"] if pipelines else []
    columns += ["Noise floor", "Reading"]
    columns += ["Published", "Verdict"] if study.has_source else []
    return make_table(
        f"t-{study.name}-speedup",
        "Speedup, its bound and its noise floor",
        [("", KEYS), ("", columns)],
        [_speedup_row(study, group, notes, pipelines) for group in groups],
        caption="Training time of the baseline over that of the variant, paired by seed. The "
        "bound is the number of cores or GPUs. "
        + (f"{PIPELINE_BOUND} " if pipelines else "")
        + "The noise floor is the baseline against itself: a "
        "speedup whose 95 % interval reaches into it is no difference.",
        context=context(study, groups),
        notes=notes,
    )


def _speedup_row(study: Study, group: dict, notes: Notes, pipelines: bool) -> list[dict]:
    unit = "x"
    row = study.row(group, "speedup")
    most, band = bound(group), study.noise_band(group)
    outcome = outcome_cell(study, group, row, unit)
    if row is not None and row["mean"] is not None:
        interval = _interval(study, row, unit)
        says = text_cell(study.reading(group, row))
        explained = False
    else:
        interval = says = absent_cell("not measured")
        # What did not run or failed says why in the speedup's own place.
        explained = outcome["text"] != ABSENT
    marks = notes.mark(*row["reason"].split("; ")) if row and not explained else []
    return [
        *key_cells(group),
        outcome,
        interval,
        text_cell(f"{most}×", sort=most),
        *([_pipeline_cell(group["work"]["pipeline_bound"])] if pipelines else []),
        text_cell(band_text(band), sort=band[1] if band else None),
        says | ({"marks": marks} if marks else {}),
        *([published_cell(row, unit), verdict_cell(row, group, [])] if study.has_source else []),
    ]


def _pipeline_cell(most: float | None) -> dict:
    if most is None:
        return absent_cell("no pipeline")
    return text_cell(f"{ratio_text(most)}×", sort=most)


def _interval(study: Study, row: dict, unit: str) -> dict:
    if row["ci_low"] is None or row["ci_high"] is None:
        return absent_cell("needs at least two seeds")
    ends = [study.show(row, end, unit) for end in ("ci_low", "ci_high")]
    return text_cell(" to ".join(ends), sort=row["ci_low"])


def every_metric_table(study: Study) -> dict | None:
    """All that was measured, a row a group; but for what has a table of its own."""
    have = {key for key, row in study.rows.items() if row["mean"] is not None}
    measured, ran = {metric for _, metric in have}, {group for group, _ in have}
    named = dict.fromkeys(metric for _, metric in study.rows)
    # Operators have a table of their own, too.
    shown = [m for m in named if m in measured and m not in APART and ":" not in m]
    units = {metric: study.unit(metric) for metric in shown}
    groups = [group for group in study.groups if group["id"] in ran]
    if not units or not groups:
        return None
    notes = Notes()
    rows = [
        key_cells(group, notes.mark(_instrument(group)))
        + [outcome_cell(study, group, study.row(group, m), unit) for m, unit in units.items()]
        for group in groups
    ]
    return make_table(
        f"t-{study.name}-all",
        "Everything measured",
        [("", KEYS)] + [("", [heading(metric, unit)]) for metric, unit in units.items()],
        rows,
        context=context(study, groups),
        notes=notes,
    )


def _instrument(group: dict) -> str:
    profile = group["training"]["profile"]
    return "" if profile == "none" else f"instrumented ({profile}): its times are not judged"


def verdict_table(studies: list[Study]) -> dict:
    """Every verdict of the report in one table; a study without a source has none."""
    rows = []
    for study in filter(lambda study: study.has_source, studies):
        for group, metric in _judged(study):
            unit = study.unit(metric)
            cells = metric_cells(study, group, metric, unit, Notes())
            cells[-1].pop("marks", None)  # the notes stand under the study's own tables
            name = text_cell(heading(metric, unit))
            rows.append([text_cell(study.name), *key_cells(group), name, *cells])
    heads = [("", ["Study", *KEYS, "Metric"]), ("", FOUR)]
    return make_table(
        "t-verdicts",
        "Published beside reproduced",
        heads,
        rows,
        empty="No study of this report has a published source.",
    )


def _judged(study: Study) -> list[tuple[dict, str]]:
    """(group, metric) of every number in the study's tables, and of every published one."""
    wanted = [
        (group["id"], metric)
        for table in study.study["tables"]
        for group in study.table_groups(table)
        for metric in table["metrics"]
        if metric not in OPTIONAL or (group["id"], metric) in study.rows
    ]
    wanted += [key for key, row in study.rows.items() if row["published"] is not None]
    return [(study.by_id[group], metric) for group, metric in dict.fromkeys(wanted)]
