"""What published numbers say against themselves, and against what their source says in words:
arithmetic alone, of any paper, without training.

Reads a file in the form of studies/published/published_results.csv and prints what cannot all be
true: docs/audit.md says which columns it needs and how each check reckons.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd

import config
import tables
from errors import ParbenchError, run_main
from files import write_json

# What is compared is told by these; where a row says nothing, that is a value like any other.
WORK = ["study", "model", "hardware", "batch_size", "precision"]
CONFIGURATION = [*WORK, "strategy", "options", "nodes", "devices"]
TIMES = ("train_seconds", "total_seconds")
# Ratios that a source prints, and the metrics they are made of: time before over time after, or
# throughput after over before.
RATIOS = {"speedup": TIMES, "throughput_ratio": ("samples_per_second",)}
# Throughput may leave out the start of an epoch, or its end: not a fifth of the time.
EPOCHS_WITHIN = 1.2
DIGITS = 3  # with fewer, two accuracies are equal now and then


@dataclass(frozen=True)
class Task:
    """What the numbers are of: ``classes`` and ``train_samples``, and whether each class has as
    many test samples as any other.
    """

    classes: int = 10
    train_samples: int = 50_000
    balanced: bool = True


@dataclass(frozen=True)
class Finding:
    """Something that cannot be, or hardly: ``lines`` are those of the file that say so."""

    check: str
    study: str
    says: str
    lines: tuple[int, ...]


def read(path: str | Path) -> pd.DataFrame:
    """Published values, one a row, with ``devices`` (of all nodes), ``line`` in the file and
    ``rounding``: by how much the true value may differ from the printed one, in ``value``'s unit.
    """
    frame = tables.read_published(path).copy()
    needed = {"model", "strategy"} - set(frame.columns)
    if needed:
        raise ParbenchError(f"{path}: lacks the column(s) {', '.join(sorted(needed))}")
    for column in ("options", "batch_size", "precision", "note", "published_value"):
        if column not in frame.columns:
            frame[column] = None
    printed = pd.read_csv(path, dtype=str, keep_default_na=False)
    frame["devices"] = frame["nodes"].astype(int) * frame["devices_per_node"].astype(int)
    frame["line"] = range(2, len(frame) + 2)
    digits = printed["published_value"] if "published_value" in printed else printed["value"]
    frame["rounding"] = list(map(_rounding, digits, frame["value"]))
    texts = {
        column: frame[column].astype(object).fillna("").astype(str)
        for column in ("options", "precision", "note")
    }
    return frame.assign(**texts, batch_size=frame["batch_size"].map(_spelling))


def _rounding(printed: str, value: float) -> float:
    """Half a unit of the last printed digit, in the unit of ``value``."""
    digits = re.fullmatch(r"-?\d+(?:\.(\d+))?", printed.strip())
    if digits is None or float(printed) == 0:
        return 0.0
    return 0.5 * 10 ** -len(digits[1] or "") * abs(value / float(printed))


def _spelling(value: object) -> str:
    return "" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value)


def _groups(frame: pd.DataFrame, by: list[str]) -> Iterator[pd.DataFrame]:
    for _, rows in frame.groupby(by, sort=False, dropna=False):
        yield rows


def _name(row: pd.Series) -> str:
    """A configuration in words."""
    parts = [row["model"], row["strategy"], row["options"]]
    if row["batch_size"]:
        parts.append(f"batch {row['batch_size']}")
    parts.append(f"on {row['devices']}x {row['hardware']}")
    return " ".join(part for part in parts if part)


def _lines(*rows: pd.Series) -> tuple[int, ...]:
    return tuple(dict.fromkeys(int(row["line"]) for row in rows))


# ---------------------------------------------------------------- the checks


def faster_than_its_devices(frame: pd.DataFrame, task: Task) -> Iterator[Finding]:
    """n times the devices are at most n times as fast."""
    for metrics in (*((time,) for time in TIMES), RATIOS["throughput_ratio"]):
        for rows in _groups(frame[frame["metric"].isin(metrics)], WORK):
            for few, many, ratio, least in _ratios(rows):
                bound = many["devices"] / few["devices"]
                if least > bound:
                    yield Finding(
                        "faster than its devices",
                        many["study"],
                        f"{_name(many)}: {_shown(few)} to {_shown(many)} is {ratio:.3g} times, but "
                        f"{many['devices']} devices instead of {few['devices']} make at most "
                        f"{bound:g}",
                        _lines(few, many),
                    )
    for _, row in frame[frame["metric"].isin(RATIOS)].iterrows():
        if row["value"] - row["rounding"] > row["devices"]:
            yield Finding(
                "faster than its devices",
                row["study"],
                f"{_name(row)}: a printed {row['metric']} of {row['value']:g}, but "
                f"{row['devices']} devices make at most {row['devices']}",
                _lines(row),
            )


def another_number_of_devices(frame: pd.DataFrame, task: Task) -> Iterator[Finding]:
    """A note that counts other devices than the columns: what the times would be with those."""
    for rows in _groups(frame[frame["metric"].isin(TIMES)], WORK):
        for few, many, ratio, least in _ratios(rows):
            counted = re.search(r"\b(\d+) (?:GPU|CPU|device|accelerator)s?\b", many["note"])
            told = int(counted[1]) if counted else many["devices"]
            if few["devices"] < told < many["devices"] and least > told / few["devices"]:
                yield Finding(
                    "another number of devices",
                    many["study"],
                    f"{_name(many)}: the source also says {counted[0]}; {_shown(few)} to "
                    f"{_shown(many)} is {ratio:.3g} times, and {told} instead of {few['devices']} "
                    f"make at most {told / few['devices']:g}",
                    _lines(few, many),
                )


def _shown(row: pd.Series) -> str:
    return f"{row['value']:g} {row['unit']}"


def _ratios(rows: pd.DataFrame) -> Iterator[tuple[pd.Series, pd.Series, float, float]]:
    """Of each two rows of one metric, few devices and more: how many times as fast the second is,
    and at least is, if rounding was kind.
    """
    for few, many in itertools.permutations((row for _, row in rows.iterrows()), 2):
        if few["devices"] < many["devices"] and min(few["value"], many["value"]) > 0:
            slow, quick = (few, many) if few["unit"] == "s" else (many, few)
            ratio = slow["value"] / quick["value"]
            least = (slow["value"] - slow["rounding"]) / (quick["value"] + quick["rounding"])
            yield few, many, ratio, least


def two_values(frame: pd.DataFrame, task: Task) -> Iterator[Finding]:
    """One configuration has one value of a metric."""
    for rows in _groups(frame, [*CONFIGURATION, "metric"]):
        different = rows.drop_duplicates("value")
        if len(different) > 1:
            listed = [row for _, row in different.iterrows()]
            values = " and ".join(f"{_shown(row)} ({row['table']})" for row in listed)
            yield Finding(
                "two values for one thing",
                listed[0]["study"],
                f"{_name(listed[0])}: {listed[0]['metric']} is {values}",
                _lines(*listed),
            )


def ratio_of_its_numbers(frame: pd.DataFrame, task: Task) -> Iterator[Finding]:
    """A printed speedup is the ratio of two printed times, where there are any."""
    for _, row in frame[frame["metric"].isin(RATIOS)].iterrows():
        same = (frame[WORK].fillna("") == row[WORK].fillna("")).all(axis=1)
        rows = frame[same & frame["metric"].isin(RATIOS[row["metric"]])]
        made = [
            (few, many, ratio)
            for few, many, ratio, _ in _ratios(rows)
            if many["devices"] == row["devices"] and many["strategy"] == row["strategy"]
        ]
        # The times are rounded, too, and some print the ratio of rounded ones.
        if made and not any(
            math.isclose(ratio, row["value"], rel_tol=0.01, abs_tol=2 * row["rounding"])
            for *_, ratio in made
        ):
            told = " or ".join(f"{ratio:.3g}" for *_, ratio in made)
            yield Finding(
                "a ratio of other numbers",
                row["study"],
                f"{_name(row)}: {row['metric']} {row['value']:g} is printed; its numbers give "
                f"{told}",
                _lines(row, *(each for few, many, _ in made for each in (few, many))),
            )


def efficiency(frame: pd.DataFrame, task: Task) -> Iterator[Finding]:
    """Parallel efficiency is speedup over devices."""
    for _, row in frame[frame["metric"] == "parallel_efficiency"].iterrows():
        same = (frame[CONFIGURATION].fillna("") == row[CONFIGURATION].fillna("")).all(axis=1)
        speedups = [each for _, each in frame[same & (frame["metric"] == "speedup")].iterrows()]
        follows = (
            abs(each["value"] / row["devices"] - row["value"])
            <= row["rounding"] + each["rounding"] / row["devices"]
            for each in speedups
        )
        if speedups and not any(follows):
            told = " and ".join(
                f"{each['value']:g} / {row['devices']} is {each['value'] / row['devices']:.3g}"
                for each in speedups
            )
            yield Finding(
                "an efficiency of another speedup",
                row["study"],
                f"{_name(row)}: parallel efficiency {row['value']:g} is printed, but {told}",
                _lines(row, *speedups),
            )


def equal_accuracies(frame: pd.DataFrame, task: Task) -> Iterator[Finding]:
    """Different runs do not end with the same accuracy to the last digit."""
    accuracies = frame[(frame["metric"] == "test_accuracy") & (frame["rounding"] < 10.0**-DIGITS)]
    for rows in _groups(accuracies, ["study", "model", "value"]):
        different = rows.drop_duplicates([c for c in CONFIGURATION if c != "model"])
        if len(different) > 1:
            listed = [row for _, row in different.iterrows()]
            yield Finding(
                "equal to the last digit",
                listed[0]["study"],
                f"test accuracy {listed[0]['value']:g} of "
                f"{' and of '.join(_name(row) for row in listed)}",
                _lines(*listed),
            )


def scores(frame: pd.DataFrame, task: Task) -> Iterator[Finding]:
    """On a balanced test set macro recall is accuracy, and specificity follows from either.

    Each class has as many samples: the mean of the recalls is the share of hits. Each miss is a
    false positive of one class, among (classes - 1) times as many negatives: macro specificity is
    1 - (1 - recall) / (classes - 1).
    """
    if not task.balanced:
        return
    names = ["test_accuracy", "test_recall_macro", "test_specificity_macro"]
    for rows in _groups(frame[frame["metric"].isin(names)], CONFIGURATION):
        found = {row["metric"]: row for _, row in rows.iterrows()}
        accuracy, recall, specificity = (found.get(name) for name in names)
        if accuracy is not None and recall is not None and not _agree(accuracy, recall):
            yield Finding(
                "recall is accuracy",
                accuracy["study"],
                f"{_name(accuracy)}: accuracy {accuracy['value']:g} and macro recall "
                f"{recall['value']:g}, which are one number on a balanced test set",
                _lines(accuracy, recall),
            )
        base = accuracy if recall is None else recall
        if base is None or specificity is None:
            continue
        due = 1 - (1 - base["value"]) / (task.classes - 1)
        slack = specificity["rounding"] + base["rounding"] / (task.classes - 1)
        if abs(specificity["value"] - due) > 1.01 * slack:
            yield Finding(
                "specificity follows from recall",
                base["study"],
                f"{_name(base)}: macro specificity {specificity['value']:g} is printed; "
                f"{base['metric']} {base['value']:g} of {task.classes} balanced classes makes it "
                f"{due:.4f}",
                _lines(base, specificity),
            )


def _agree(one: pd.Series, other: pd.Series) -> bool:
    slack = one["rounding"] + other["rounding"]
    return abs(one["value"] - other["value"]) <= 1.01 * slack  # the last digits of a float


def epochs(frame: pd.DataFrame, task: Task) -> Iterator[Finding]:
    """Throughput times training time is the stated epochs times the training set."""
    for rows in _groups(frame, CONFIGURATION):
        found = {row["metric"]: row for _, row in rows.iterrows()}
        time, rate = found.get("train_seconds"), found.get("samples_per_second")
        stated = [n for n in (_stated_epochs(row) for _, row in rows.iterrows()) if n]
        if time is None or rate is None or not stated:
            continue
        samples, due = time["value"] * rate["value"], stated[0] * task.train_samples
        if not 1 / EPOCHS_WITHIN <= samples / due <= EPOCHS_WITHIN:
            yield Finding(
                "throughput times time",
                time["study"],
                f"{_name(time)}: {_shown(rate)} for {_shown(time)} are {samples:,.0f} samples, "
                f"{samples / task.train_samples:.1f} epochs of {task.train_samples:,}; "
                f"{stated[0]:g} are stated",
                _lines(time, rate),
            )


def _stated_epochs(row: pd.Series) -> float | None:
    if "epochs" in row and not pd.isna(row["epochs"]):
        return float(row["epochs"])
    stated = re.search(r"\b(\d+) epochs?\b", row["note"])
    return float(stated[1]) if stated else None


def operators(frame: pd.DataFrame, task: Task) -> Iterator[Finding]:
    """Times of operators add up, and those of an accelerator are not the host's."""
    for rows in _groups(frame, CONFIGURATION):
        listed = [row for _, row in rows.iterrows()]
        own = [row for row in listed if row["metric"].startswith("operator_self_seconds:")]
        whole = next((row for row in listed if row["metric"] == "profile_self_seconds"), None)
        total = sum(row["value"] for row in own)
        rounding = sum(row["rounding"] for row in own)
        if whole is not None and total - rounding > whole["value"] + whole["rounding"]:
            yield Finding(
                "parts and the whole",
                whole["study"],
                f"{_name(whole)}: the self times of {len(own)} operators add up to {total:.4g} s, "
                f"more than the {whole['value']:g} s of all",
                _lines(whole, *own),
            )
        host = [row for row in listed if re.search(r"self[- ]cpu", row["note"], re.IGNORECASE)]
        if host and host[0]["hardware"].upper() != "CPU":
            yield Finding(
                "another device's clock",
                host[0]["study"],
                f"{_name(host[0])}: {len(host)} times are printed as Self-CPU, which is the host's "
                "time and does not measure the accelerator",
                _lines(*host),
            )


def findings(frame: pd.DataFrame, task: Task) -> list[Finding]:
    """All that the checks find in a frame of ``read``, in the order of the file."""
    checks = (
        faster_than_its_devices,
        another_number_of_devices,
        two_values,
        ratio_of_its_numbers,
        efficiency,
        equal_accuracies,
        scores,
        epochs,
        operators,
    )
    found = [finding for check in checks for finding in check(frame, task)]
    return sorted(found, key=lambda finding: (finding.lines[0], finding.check))


# ---------------------------------------------------------------- what a source says in words

WAYS = ["strategy", "options", "nodes", "devices_per_node"]  # how something is trained
PLACE = [*WAYS, "hardware", "precision", "batch_size"]


def of_claims(claims: Mapping[str, Mapping], frame: pd.DataFrame) -> list[Finding]:
    """What a source's own numbers say against its ``claims``, as config.claims reads them."""
    sources = set(frame["study"])
    mine = {
        name: claim
        for name, claim in claims.items()
        if claim["study"] in sources and "numerator" in claim.get("test", {})
    }
    checks = denied_by_its_numbers, promised_above_devices
    return [found for name in mine for check in checks for found in check(name, mine[name], frame)]


def denied_by_its_numbers(name: str, claim: Mapping, frame: pd.DataFrame) -> Iterator[Finding]:
    """The claim's own test, of the source's own numbers: where it fails, as one finding."""
    test = claim["test"]
    value = test.get("value")
    if value is None or value == "published":  # nothing to be above or below, or what others say
        return
    ratios = list(_own_ratios(claim, frame))
    if "models" in test:
        first, second = ([r for r in ratios if r.rows[0]["model"] == m] for m in test["models"])
        ratios = [one.over(other) for one in first for other in second if one.is_beside(other)]
    against = [r for r in ratios if (r.most <= value if test["op"] == ">" else r.least >= value)]
    if against:
        told = "; ".join(r.says for r in against[:3]) + ", and more" * (len(against) > 3)
        yield Finding(
            "denied by its own numbers",
            claim["study"],
            f"{name} claims a ratio of {test['metric']} {test['op']} {value:g}; the source's own "
            f"numbers give {told}",
            _lines(*(row for each in against for row in each.rows)),
        )


class OwnRatio(NamedTuple):
    """Of two published rows, the first over the second; or of two such ratios, four rows.

    ``least`` and ``most`` are what rounding allows.
    """

    rows: tuple[pd.Series, ...]
    value: float
    least: float
    most: float

    def is_beside(self, other: OwnRatio) -> bool:
        """Whether two ratios differ in nothing but their model."""
        pairs = zip(self.rows, other.rows, strict=True)
        return all((mine[PLACE] == theirs[PLACE]).all() for mine, theirs in pairs)

    def over(self, other: OwnRatio) -> OwnRatio:
        """This ratio divided by the other."""
        rows = (*self.rows, *other.rows)
        ends = self.least / other.most, self.most / other.least
        return OwnRatio(rows, self.value / other.value, *ends)

    @property
    def says(self) -> str:
        """In words."""
        over, under, *others = self.rows
        told = f"{self.value:.3g} of {_name(over)} over {_name(under)}"
        return told + (f", over that of {others[0]['model']}" if others else "")


def _own_ratios(claim: Mapping, frame: pd.DataFrame) -> Iterator[OwnRatio]:
    """Of rows that a claim's test compares, alike in all that it does not name."""
    test = claim["test"]
    sides = test["numerator"], test["denominator"]
    named = {key for side in sides for key in side}
    alike = ["model", "hardware", "precision"]
    alike += [] if "batch_size" in named else ["batch_size"]
    alike += [] if named & {"strategy", "options", "nodes", "devices"} else WAYS
    rows = frame[(frame["study"] == claim["study"]) & (frame["metric"] == test["metric"])]
    overs, unders = ([row for _, row in rows.iterrows() if _chosen(row, side)] for side in sides)
    for over, under in itertools.product(overs, unders):
        if over["line"] != under["line"] and (over[alike] == under[alike]).all() and under["value"]:
            least = (over["value"] - over["rounding"]) / (under["value"] + under["rounding"])
            most = (over["value"] + over["rounding"]) / (under["value"] - under["rounding"])
            yield OwnRatio((over, under), over["value"] / under["value"], least, most)


def _chosen(row: pd.Series, selection: Mapping) -> bool:
    """Whether a published row is one of a claim's selection."""
    strategies = selection.get("strategy", row["strategy"])
    own = {
        "model": row["model"],
        "device": "cpu" if row["hardware"].upper() == "CPU" else "gpu",
        "devices": row["devices_per_node"],
        "nodes": row["nodes"],
        "batch_size": row["batch_size"],
    }
    return (
        row["strategy"] in ([strategies] if isinstance(strategies, str) else strategies)
        and all(str(selection.get(key, value)) == str(value) for key, value in own.items())
        and all(
            _has_option(row["options"], key, value)
            for key, value in selection.get("options", {}).items()
        )
    )


def _has_option(options: str, key: str, value: object) -> bool:
    """Whether ``options``, as "balance=[1,1], chunks=4", hold this one."""
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    part = re.escape(f"{key}={text}")
    return re.search(rf"(?:^|[,;]){part}(?:$|[,;])", options.replace(" ", "")) is not None


def promised_above_devices(name: str, claim: Mapping, frame: pd.DataFrame) -> Iterator[Finding]:
    """A speedup of more than the devices, whoever measured it."""
    test, published = claim["test"], claim.get("published")
    over, under = test["numerator"], test["denominator"]
    one = over.get("devices") == 1 and over.get("nodes", 1) == 1
    alone = over.get("strategy") == "eager" or one
    if test["metric"] not in TIMES or test["op"] != ">" or not alone or "devices" not in under:
        return
    devices = under["devices"] * under.get("nodes", 1)
    stated = published if test["value"] == "published" else test["value"]
    parts = stated if isinstance(stated, Mapping) else {"": stated}
    numbers = {of: value for of, value in parts.items() if isinstance(value, int | float)}
    above = {of: value for of, value in numbers.items() if value >= devices}
    if above:
        told = ", ".join(f"{value:g} ({of})" if of else f"{value:g}" for of, value in above.items())
        rows = frame[(frame["study"] == claim["study"]) & (frame["metric"] == test["metric"])]
        lines = [int(row["line"]) for _, row in rows.iterrows() if _chosen(row, under)]
        yield Finding(
            "promised above its devices",
            claim["study"],
            f"{name} asks for more than {told} times on {devices} devices, which make at most "
            f"{devices}",
            tuple(lines),
        )


def show(found: list[Finding]) -> str:
    """For a terminal: by study, with the lines of the file."""
    parts = []
    for study, group in itertools.groupby(
        sorted(found, key=lambda finding: finding.study), key=lambda finding: finding.study
    ):
        parts.append(study)
        for finding in group:
            lines = ", ".join(map(str, finding.lines[:6])) + (", ..." * (len(finding.lines) > 6))
            text = f"{finding.check}: {finding.says} (lines {lines})"
            parts += textwrap.wrap(text, 100, initial_indent="  - ", subsequent_indent="    ")
    return "\n".join(parts)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("csv", type=Path, help="published values, one a row")
    parser.add_argument("--classes", type=int, default=Task.classes)
    parser.add_argument("--train-samples", type=int, default=Task.train_samples)
    parser.add_argument(
        "--unbalanced", action="store_true", help="test classes differ in size: no check of scores"
    )
    parser.add_argument(
        "--claims", type=Path, help="what the sources say in words; by default claims.yaml beside"
    )
    parser.add_argument("--out", type=Path, help="write the findings as JSON, too")
    arguments = parser.parse_args()
    if arguments.classes < 2 or arguments.train_samples < 1:
        raise ParbenchError("--classes must be at least 2, --train-samples at least 1")
    task = Task(arguments.classes, arguments.train_samples, not arguments.unbalanced)
    frame = read(arguments.csv)
    found = findings(frame, task)
    beside = arguments.csv.with_name("claims.yaml")
    claims = arguments.claims or (beside if beside.is_file() else None)
    if claims is not None:
        found += of_claims(config.claims(claims), frame)
    if arguments.out:
        told = {"file": arguments.csv.name, "claims": claims and claims.name, "rows": len(frame)}
        told["task"] = asdict(task)
        write_json(arguments.out, {**told, "findings": [asdict(finding) for finding in found]})
    if found:
        print(show(found))
    balance = "balanced" if task.balanced else "not balanced"
    print(
        f"{len(frame)} values, {len(found)} findings (taken for granted: {task.classes} classes, "
        f"{task.train_samples:,} training samples, a test set that is {balance})"
    )


if __name__ == "__main__":
    run_main(main)
