"""The summary at the end of a run: results of the report's studies, claims and files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from parbench import probe
from parbench.files import read_record
from parbench.terminal import aligned, print_text
from parbench.verdicts import terms
from parbench.verdicts.ratios import with_interval
from parbench.verdicts.rows import Row, read_rows

if TYPE_CHECKING:
    from parbench.reporting.report import ReportFile

REPORTS = (Path("reports/final.html"), Path("reports/final.pdf"))
HEAD = ["model", "strategy", "hardware", "accuracy", "train time", "speedup", "reading, verdict"]
JUDGED = {
    "test_accuracy": "accuracy",
    "train_seconds": "time",
    "total_seconds": "time",
    "speedup": "speedup",
}
# Most important to a reader first.
WORST_FIRST = (
    terms.OPPOSITE,
    terms.SMALLER,
    terms.LARGER,
    terms.UNDECIDED,
    terms.NOT_TOLD_APART,
    terms.AS_PUBLISHED,
    terms.NOT_COMPARABLE,
    terms.NOT_MEASURED,
    terms.NO_PUBLISHED_VALUE,
)


def spread(found: Row, factor: float, form: str, unit: str = "") -> str:
    """Return mean ± standard deviation (``93.00 ± 0.20``), or the range if there are too few seeds;
    empty without values.

    ``factor``: multiplies all values for display (100 for percent); ``form``: a format
    specification.
    """
    if found.mean is None:
        return ""
    if found.too_few or found.std is None:
        ends = (f"{factor * end:{form}}" for end in (found.min, found.max) if end is not None)
        return " to ".join(dict.fromkeys(ends)) + unit
    return f"{factor * found.mean:{form}} ± {factor * found.std:{form.lstrip('+')}}{unit}"


def closing(rows: Sequence[Row]) -> str:
    """Return the short table of one study for the end of a run."""
    groups: dict[str, dict[str, Row]] = {}
    for row in rows:
        groups.setdefault(row.group, {})[row.metric] = row
    first = rows[0]
    lines = [f"{first.study} ({_software(first)})"]
    lines += aligned([HEAD, *map(_line, groups.values())])
    lines += dict.fromkeys(f"* {row.reason}" for row in rows if _is_warned_of(row))
    return "\n".join(lines)


def _software(row: Row) -> str:
    """Return the stack and the deployment or, in place of both, the user's own Python."""
    if row.deployment.startswith(probe.LABEL):
        return row.stack
    return f"stack {row.stack}, deployment {row.deployment}"


def _is_warned_of(row: Row) -> bool:
    """Return whether the row is a speedup whose reason must be read with it."""
    unjudged = row.verdict in (terms.NOT_COMPARABLE, terms.NO_PUBLISHED_VALUE)
    return bool(row.metric == "speedup" and row.mean is not None and unjudged and row.reason)


def _line(rows: Mapping[str, Row]) -> list[str]:
    """Return the fields of one group, given its ``rows`` by metric."""
    first = next(iter(rows.values()))
    strategy, variant = first.strategy, first.variant
    strategy = variant if variant.startswith(strategy) else f"{strategy} ({variant})"
    line = [first.model, strategy, first.hardware]
    accuracy, time, speedup = (
        rows.get("test_accuracy"),
        rows.get("train_seconds", rows.get("total_seconds")),
        rows.get("speedup"),
    )
    status = "" if first.status == terms.OK else f"{first.status}; "
    if first.status == terms.NOT_RUN:
        if not speedup or speedup.mean is None:
            return [*line, f"not run: {first.reason.split('; ')[0]}"]
        accuracy, time, status = None, None, "in turns only; "
    return [
        *line,
        spread(accuracy, 100, ".1f", " %") if accuracy else "",
        _time(time) if time else "",
        _speedup(speedup) if speedup else "",
        status + _verdict_counts(rows),
    ]


def _time(time: Row) -> str:
    """Return a training time; ``shared`` for cells that shared their machine, since it would appear
    next to speedups that were measured separately."""
    return "shared" if terms.SHARED in time.reason else spread(time, 1, ".1f", " s")


def _speedup(speedup: Row) -> str:
    """Return a speedup with its interval, or the range of too few restarts; and a * if
    the reason below the table must be read."""
    mark = "*" * _is_warned_of(speedup)
    if speedup.ci_low is None or speedup.ci_high is None:
        return spread(speedup, 1, ".2f", mark)
    return with_interval(speedup) + mark


def _verdict_counts(rows: Mapping[str, Row]) -> str:
    """Return the reading of the speedup, and the worst of the verdicts on published values."""
    reading = rows["speedup"].reading if "speedup" in rows else ""
    worst = _worst(rows)
    if reading and worst == terms.NO_PUBLISHED_VALUE:
        return reading
    return "; ".join(filter(None, (reading, worst)))


def _worst(rows: Mapping[str, Row]) -> str:
    """Return the worst verdict and what it is about: ``opposite: speedup``, ``accuracy not
    measured``."""
    verdicts = {JUDGED[name]: rows[name].verdict for name in JUDGED if name in rows}
    worst = min(verdicts.values(), key=WORST_FIRST.index, default=terms.NO_PUBLISHED_VALUE)
    names = ", ".join(name for name in verdicts if verdicts[name] == worst)
    if worst == terms.NOT_MEASURED:
        return f"{names} {worst}"
    if WORST_FIRST.index(worst) >= WORST_FIRST.index(terms.NOT_COMPARABLE):
        return worst
    return f"{worst}: {names}"


def is_of(studies: Collection[str]) -> bool:
    """Return whether the last report is of ``studies``."""
    source = Path("results/report.json")
    if not source.exists():
        return False
    report: ReportFile = read_record(source, "studies")
    return {study["name"] for study in report["studies"]} == set(studies)


def show() -> None:
    """Print the table of every study in the report, the claims' verdicts and its files."""
    source = Path("results/report.json")
    if source.exists():
        _show_results(read_record(source, "studies", "claims", "turns"))
    for path in filter(Path.exists, REPORTS):
        size = path.stat().st_size
        print(f"{path}  {size / 1e3:.0f} kB" if size < 1e6 else f"{path}  {size / 1e6:.1f} MB")
    if REPORTS[0].exists():
        print(f"{REPORTS[0]}#terms says what these words mean")


def _show_results(report: ReportFile) -> None:
    for study in report["studies"]:
        table = Path(f"results/tables/{study['name']}.csv")
        if table.exists():
            print_text(f"{closing(read_rows(table))}\n")
    if claims := report["claims"]:
        print_text("\n".join([claims["sentence"], *aligned(claims["terminal"]), ""]))
    if turns := report["turns"]:
        print_text(f"{turns}\n")
