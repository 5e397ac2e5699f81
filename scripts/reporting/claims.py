"""The sources' claims with their verdicts, and what the published numbers alone contradict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pandas as pd

import audit
import claims as engine
import config
from claims import Comparison, Judged, Trial
from printable import printable
from reporting.study import Study
from reporting.table import Notes, absent_cell, make_table, text_cell
from reporting.text import (
    ABSENT,
    band_text,
    count,
    decimals,
    fixed,
    hardware_text,
    label,
    listed,
    mapping_text,
    ratio_text,
)
from seeds import too_few
from tables import Summary, groups_of, read_published

TONES = {engine.HOLDS: "good", engine.FAILS: "bad"}
OPS = {
    ">": "more than {}",
    "<": "less than {}",
    "within_noise": "1, within noise",
    "report": "told, not judged",
    "largest": "the largest is told, not judged",
    "equal": "1, in every run",
}
LISTED = 4  # comparisons that the first page names one by one
DETAIL = "t-claims-each"

Value = float | str | Summary | None


def section(studies: list[Study], claimed: Path | None, published: list[Path]) -> dict | None:
    """The table of claims, its comparisons one by one, and the audit of the same sources.

    None without ``claimed`` or without a study that has a source.
    """
    sources = {study.study["published"] for study in studies if study.has_source}
    if claimed is None or not published or not sources:
        return None
    frame = pd.concat(map(read_published, published))
    claims = config.claims(claimed)
    task = audit.Task()
    found = []
    for path in published:
        rows = audit.read(path)
        all_of_it = (*audit.findings(rows, task), *audit.of_claims(claims, rows))
        found += [(path, finding) for finding in all_of_it if finding.study in sources]
    trials = [_trial(study) for study in studies if study.has_source]
    panels = {(s.name, group["id"]): s.panel(group) for s in studies for group in s.groups}
    judged = engine.judge(printable(claims), trials, frame, [each for _, each in found])
    return {
        "table": _first_page(judged),
        "detail": _one_by_one(judged, panels),
        "audit": _audit(found, task),
    }


def _trial(study: Study) -> Trial:
    groups = tuple(groups_of(study.plan, study.metrics).values())
    means = {key: row["mean"] for key, row in study.rows.items() if row["mean"] is not None}
    return Trial(study.name, study.study, groups, means)


# --------------------------------------------------------------------------- the first page


def _first_page(judged: list[Judged]) -> dict:
    notes, counts = Notes(), Counter(each.verdict for each in judged)
    told = listed([f"{counts[name]} {name}" for name in engine.VERDICTS if counts[name]])
    return make_table(
        "t-claims",
        "What the sources claim",
        [("", ["Source", "Claim"]), ("", ["Published", "Reproduced", "Verdict"])],
        [_claim_row(each, notes) for each in judged],
        caption=f"{count(len(judged), 'claim')}: {told}. Numbers are ratios, each named under "
        "“Claims, one by one”: mean ± standard deviation over paired seeds (how many)."
        if judged
        else "",
        notes=notes,
        empty="The sources of this report make no claim that is known.",
    )


def _claim_row(each: Judged, notes: Notes) -> list[dict]:
    tested = {c.trial.name for c in each.comparisons if c.verdict != engine.UNTESTED}
    # Of several studies, those that could test it; else the first, for the published number.
    shown = tested or {c.trial.name for c in each.comparisons[:1]}
    comparisons = [c for c in each.comparisons if c.trial.name in shown]
    names = list(map(_model, comparisons)), _labels(comparisons)
    published = _several(*names, [c.published for c in comparisons])
    if tested:
        outcome = text_cell(_several(*names, [c.measured for c in comparisons]), link=f"{DETAIL}-h")
    else:
        outcome = text_cell(each.reason)
    return [
        text_cell(each.claim["study"]),
        text_cell(each.claim["claim"]),
        text_cell(published) if published else absent_cell("no number"),
        outcome,
        _verdict(each.verdict, notes.mark(each.reason) if tested else []),
    ]


def _several(models: list[str], names: list[str], values: list[Value]) -> str:
    """``swin 1.30, resnet50 1.44``; of many numbers the range of each model."""
    have = [each for each in zip(models, names, values, strict=True) if each[2] is not None]
    if len(have) <= LISTED or any(isinstance(value, str) for *_, value in have):
        return ", ".join(f"{name} {_text(value)}" for _, name, value in have)
    by_model: dict[str, list[float]] = {}
    for model, _, value in have:
        number = value.mean if isinstance(value, Summary) else value
        by_model.setdefault(model, []).append(number)
    return ", ".join(f"{model} {_range(numbers)}" for model, numbers in by_model.items())


def _range(numbers: list[float]) -> str:
    ends = dict.fromkeys(map(ratio_text, (min(numbers), max(numbers))))
    return " to ".join(ends)


def _text(value: Value) -> str:
    """A ratio; of several seeds with its spread, or their range, and how many they are."""
    if not isinstance(value, Summary):
        return value if isinstance(value, str) else ratio_text(value)
    places = decimals([value.mean], "x", [value.std])
    text = f"{fixed(value.mean, places)} ± {fixed(value.std, places)}"
    if too_few(value.n):
        text = " to ".join(dict.fromkeys(fixed(end, places) for end in (value.min, value.max)))
    return f"{text} ({value.n})"


def _verdict(verdict: str, marks: list[str]) -> dict:
    return text_cell(
        verdict, tone=TONES.get(verdict, "plain"), verdict=verdict, marks=marks or None
    )


def _labels(comparisons: list[Comparison]) -> list[str]:
    """What tells the comparisons of a claim apart, in as few words as will do."""
    ways: list[Callable[[Comparison], str]] = [
        _model,
        lambda each: f"{_model(each)} {_variant(each, 0)}",
        lambda each: f"{_model(each)} {_variant(each, 1)}",
        lambda each: f"{_model(each)} {_variant(each, 0)} over {_variant(each, 1)}",
        lambda each: f"{each.trial.name}: {_compared(each)}",
    ]
    labels = [list(map(way, comparisons)) for way in ways]
    return next((each for each in labels if len(set(each)) == len(each)), labels[-1])


def _model(each: Comparison) -> str:
    if each.group is not None:
        model = each.group.plan["model"]
        if isinstance(each.published, float):
            return model
        return f"{model} on {hardware_text(each.group.plan['hardware'])}"  # whose word it is
    return " over ".join(ratio.over.plan["model"] for ratio in each.ratios)


def _variant(each: Comparison, side: int) -> str:
    if each.group is not None:
        return each.group.plan["variant"]
    return " and ".join((ratio.over, ratio.under)[side].plan["variant"] for ratio in each.ratios)


def _compared(each: Comparison) -> str:
    """In words: ``swin: eager over ddp``."""
    if each.group is not None:
        return f"{_model(each)}, {each.group.plan['variant']}"
    return ", over ".join(
        f"{ratio.over.plan['model']}: {ratio.over.plan['variant']} over "
        f"{ratio.under.plan['variant']}"
        for ratio in each.ratios
    )


# --------------------------------------------------------------------------- one by one


def _one_by_one(judged: list[Judged], panels: dict[tuple[str, str], str | None]) -> dict:
    notes = Notes()
    rows = [
        _comparison_row(each, comparison, panels, notes)
        for each in judged
        for comparison in each.comparisons
    ]
    columns = ["Test", "Published", "Reproduced", "95 % interval", "Noise", "Verdict"]
    return make_table(
        DETAIL,
        "Claims, one by one",
        [("", ["Claim", "Study", "Compared"]), ("", columns)],
        rows,
        caption="A metric of the first over that of the second, seed by seed. “Noise” is where a "
        "ratio of 1 lies by chance, or what counts as 1. A claim holds where every comparison that "
        "could be made holds, and does not where one of them is clearly against it.",
        notes=notes,
        empty="No claim of these sources has a test.",
    )


def _comparison_row(
    judged: Judged, each: Comparison, panels: dict[tuple[str, str], str | None], notes: Notes
) -> list[dict]:
    test = judged.claim["test"]
    keys = [judged.name, each.trial.name, _compared(each) or ABSENT]
    op = OPS[test["op"]].format(mapping_text(test.get("value")))
    over = f" over {label(test['against'])}" if "against" in test else ""
    row = [*map(text_cell, keys), text_cell(f"{label(test['metric'])}{over}: {op}")]
    row.append(absent_cell("no number") if each.published is None else _cell(each.published))
    why = [*each.reasons, f"scaled: {', '.join(each.scaled)}" if each.scaled else ""]
    if each.measured is None:
        row.append(text_cell("; ".join(each.reasons), span=3))
        why = []
    else:
        group = each.group or each.ratios[0].over
        row.append(_cell(each.measured) | {"link": panels[each.trial.name, group.plan["id"]]})
        row += [_interval(each.measured), _noise(each)]
    return [*row, _verdict(each.verdict, notes.mark(*why, judged.claim.get("note", "")))]


def _cell(value: Value) -> dict:
    sort = value.mean if isinstance(value, Summary) else value
    return text_cell(_text(value), sort=None if isinstance(value, str) else sort)


def _interval(value: Value) -> dict:
    if not isinstance(value, Summary) or value.n < 2:
        return absent_cell("needs at least two seeds")
    places = decimals([value.mean], "x", [value.std])
    ends = (fixed(end, places) for end in (value.ci_low, value.ci_high))
    return text_cell(" to ".join(ends), sort=value.ci_low)


def _noise(each: Comparison) -> dict:
    if isinstance(each.measured, str):
        return absent_cell("does not apply")
    if each.band == engine.EVEN:
        return absent_cell("none beside the interval")
    return text_cell(band_text(each.band), sort=each.band[1] if each.band else None)


# --------------------------------------------------------------------------- published alone


def _audit(found: list[tuple[Path, audit.Finding]], task: audit.Task) -> dict:
    rows = [
        [
            text_cell(printable(finding.study)),
            text_cell(finding.check),
            text_cell(printable(finding.says)),
            text_cell(f"{path.name}, {_lines(finding.lines)}"),
        ]
        for path, finding in found
    ]
    return make_table(
        "t-audit",
        "What the published numbers alone contradict",
        [("", ["Source", "Check"]), ("", ["Finding", "Where"])],
        rows,
        caption="Arithmetic alone, without training: a question to the authors and no verdict. "
        f"Taken for granted: {task.classes} classes, {task.train_samples:,} training samples, and "
        "a test set with as many samples of each class.",
        empty="Nothing: the published numbers agree with each other.",
    )


def _lines(lines: tuple[int, ...]) -> str:
    shown = list(map(str, lines[:LISTED])) + ["..."] * (len(lines) > LISTED)
    return f"line {shown[0]}" if len(shown) == 1 else f"lines {', '.join(shown)}"
