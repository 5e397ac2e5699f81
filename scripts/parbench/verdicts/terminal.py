"""Tables on a terminal, and the closing table of a run."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence

from parbench.printable import printable
from parbench.verdicts import words
from parbench.verdicts.rows import Row

WIDTH = 100
HEAD = ["model", "strategy", "hardware", "accuracy", "train time", "speedup", "verdict"]
NAMES = 3  # model, strategy and hardware may be cut; numbers may not
SHOWN = {
    "test_accuracy": "accuracy",
    "train_seconds": "time",
    "total_seconds": "time",
    "speedup": "speedup",
}
TIME_UNITS = (("h", 3600.0, 7200.0), ("min", 60.0, 120.0), ("s", 1.0, 0.0))  # unit, seconds, from
# From what a reader must see first to what says nothing.
GRAVITY = (
    words.SUSPICIOUS,
    words.NOT_REPRODUCED,
    words.UNDECIDED,
    words.WITHIN_NOISE,
    words.REPRODUCED,
    words.NOT_COMPARABLE,
    words.NOT_MEASURED,
    words.NO_PUBLISHED_VALUE,
)


def say(text: str) -> None:
    """Print ``text``, also on a terminal that cannot say ±."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    print(printable(text))


def aligned(lines: Sequence[Sequence[str]], width: int = 10_000) -> list[str]:
    """Columns two blanks apart, the first line as their head; the last field of a line that has
    fewer runs into the next columns. Lines are cut to ``width``.
    """
    columns = len(lines[0])
    widths = [
        max(len(line[i]) for line in lines if i < len(line) - 1 or len(line) == columns)
        for i in range(columns)
    ]
    text = []
    for line in lines:
        fields = [field.ljust(size) for field, size in zip(line[:-1], widths, strict=False)]
        text.append(_cut("  ".join([*fields, line[-1]]).rstrip(), width))
    return [text[0], "-" * max(map(len, text)), *text[1:]]


def number(mean: float, std: float | None, ends: tuple, few: bool, form: str, to: str) -> str:
    """``93.00 ± 0.20``: mean and standard deviation; of ``few`` seeds their range."""
    if not few:
        return f"{mean:{form}} ± {std:{form.lstrip('+')}}"
    return to.join(dict.fromkeys(f"{end:{form}}" for end in ends))


# ---------------------------------------------------------------- the end of a run


def closing(rows: Sequence[Row]) -> str:
    """The short table of one study, no line longer than ``WIDTH``."""
    groups: dict[str, dict[str, Row]] = {}
    for row in rows:
        groups.setdefault(row.group, {})[row.metric] = row
    text = _within_width([HEAD, *map(_line, groups.values())])
    notes = []
    if any("1 (" in line for line in text):
        notes.append("1 (a-b): the ratio of two equal runs lies in a-b here (95 %)")
    notes += dict.fromkeys(f"* {row.reason}" for row in rows if _is_warned_of(row))
    first = rows[0]
    title = f"{first.study} (stack {first.stack}, deployment {first.deployment})"
    wrapped = [line for note in notes for line in textwrap.wrap(note, WIDTH)]
    return "\n".join([_cut(title, WIDTH), *text, *wrapped])


def _is_warned_of(row: Row) -> bool:
    """Whether a speedup is shown that must not be read as one without its reason."""
    unjudged = row.verdict in (words.NOT_COMPARABLE, words.NO_PUBLISHED_VALUE)
    return bool(row.metric == "speedup" and row.mean is not None and unjudged and row.reason)


def _line(rows: Mapping[str, Row]) -> list[str]:
    """The fields of one group, whose ``rows`` are by metric."""
    first = next(iter(rows.values()))
    strategy, variant = first.strategy, first.variant
    strategy = variant if variant.startswith(strategy) else f"{strategy} ({variant})"
    line = [first.model, strategy, first.hardware]
    if first.status == words.NOT_RUN:
        return [*line, f"not run: {first.reason.split('; ')[0]}"]
    accuracy = _shown(rows.get("test_accuracy"), 100, ".1f", " %")
    status = "" if first.status == words.OK else first.status
    if status and not accuracy:
        accuracy, status = status, ""
    decision = _gravest(rows)
    seconds = _seconds(rows.get("train_seconds", rows.get("total_seconds")))
    return [
        *line,
        accuracy,
        seconds,
        _speedup(rows),
        f"{status}; {decision}" if status else decision,
    ]


def _gravest(rows: Mapping[str, Row]) -> str:
    verdicts = {SHOWN[name]: rows[name].verdict for name in SHOWN if name in rows}
    gravest = min(verdicts.values(), key=GRAVITY.index, default=words.NO_PUBLISHED_VALUE)
    if GRAVITY.index(gravest) >= GRAVITY.index(words.NOT_COMPARABLE):
        return gravest
    named = ", ".join(name for name, each in verdicts.items() if each == gravest)
    return f"{'suspicious' if gravest == words.SUSPICIOUS else gravest}: {named}"


def _shown(row: Row | None, factor: float, form: str, unit: str) -> str:
    if row is None or row.mean is None:
        return ""
    std = None if row.std is None else factor * row.std
    ends = (factor * row.min, factor * row.max)
    return number(factor * row.mean, std, ends, bool(row.too_few), form, "-") + unit


def _seconds(row: Row | None) -> str:
    if row is None or row.mean is None:
        return ""
    unit, seconds = next((u, s) for u, s, start in TIME_UNITS if row.mean >= start)
    return _shown(row, 1 / seconds, ".1f", f" {unit}")


def _speedup(rows: Mapping[str, Row]) -> str:
    row, floor = rows.get("speedup"), rows.get("noise_floor")
    if row is not None and row.mean is not None:
        return _shown(row, 1, ".2f", "*" if _is_warned_of(row) else "")
    if floor is not None and None not in (floor.ci_low, floor.ci_high):
        return f"1 ({floor.ci_low:.2f}-{floor.ci_high:.2f})"
    return ""


def _within_width(lines: list[list[str]]) -> list[str]:
    """The aligned lines, names cut as far as numbers and the beginning of verdicts need."""
    whole = [line for line in lines if len(line) == len(HEAD)]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    widths[:NAMES] = [max(len(line[i]) for line in lines) for i in range(NAMES)]
    widths[-1] = min(28, widths[-1])
    while sum(widths) + 2 * (len(HEAD) - 1) > WIDTH and max(widths[:NAMES]) > 8:
        widths[widths.index(max(widths[:NAMES]))] -= 1
    cut = [[*map(_cut, line[:NAMES], widths), *line[NAMES:]] for line in lines]
    return aligned(cut, WIDTH)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
