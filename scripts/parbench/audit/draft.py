"""Draft a study from a table as a source prints it: published values, study, small copy, claims.

What the table does not state becomes a line under `assumed`, to be filled in; a name that parbench
does not know is an error that says how to map it.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import yaml

from parbench import models, strategies
from parbench.audit import printed_table
from parbench.audit.arithmetic import Contradiction, converted
from parbench.errors import ParbenchError
from parbench.plan.published import Published
from parbench.plan.selection import Configuration
from parbench.runs.metrics import METRICS
from parbench.words import brief, nearest

# Other common spellings of our names.
CALLED = {
    "pytorch": "eager", "torch": "eager", "baseline": "eager", "single": "eager",
    "serial": "eager", "1gpu": "eager", "distributeddataparallel": "ddp", "torchddp": "ddp",
    "fullyshardeddataparallel": "fsdp", "torchgpipe": "gpipe", "zero": "deepspeed",
}  # fmt: skip
# Settings that few tables state, with a usual value; the reader fills in the source's.
USUAL = {
    "epochs": 10,
    "global_batch": 64,
    "image_size": 32,
    "optimizer": "sgd",
    "learning_rate": 0.01,
    "schedule": "constant",
    "precision": "fp32",
    "augment": True,
}
DATASET = "cifar10"
PLURALS = {"model": "models", "strategy": "strategies"}  # the keys whose names are ours
SCHEMA = "# yaml-language-server: $schema="
SMALL = {"epochs": 2, "train_samples": 2048, "test_samples": 1000}
COLUMNS = [name for name in Published.model_fields if name != "line"]


@dataclass(frozen=True)
class Way:
    """A configuration of the source without its model: a variant of the study."""

    strategy: str
    options: str
    nodes: int
    devices: int  # on each node
    batch_size: str
    precision: str
    on_cpu: bool

    @classmethod
    def of(cls, row: Published) -> Way:
        """Return the configuration of a row."""
        layout = row.strategy, row.options, row.nodes, row.devices_per_node
        return cls(*layout, row.batch_size, row.precision, row.hardware.upper() == "CPU")

    @property
    def layout(self) -> str:
        """Its devices as in names of hardware: ``2``, or ``2x1`` on two nodes."""
        return f"{self.nodes}x{self.devices}" if self.nodes > 1 else str(self.devices)

    @property
    def batch(self) -> int | None:
        """The samples of a step over all devices; None if the table does not say."""
        return int(self.batch_size) if self.batch_size.isdecimal() else None

    @property
    def name(self) -> str:
        """Its name in the study, such as ``ddp-2x2-64``."""
        options = re.sub(r"[^a-z0-9]+", "-", self.options.lower()).strip("-")
        parts = [self.strategy, self.layout, self.batch_size, options, self.precision]
        return re.sub(r"[^a-z0-9-]", "", "-".join(filter(None, parts)).lower())

    @property
    def selection(self) -> dict[str, str | int]:
        """The keys and values by which a claim selects it."""
        named: dict[str, str | int] = {"strategy": self.strategy, "devices": self.devices}
        named["nodes"] = self.nodes
        return named | ({"batch_size": self.batch} if self.batch else {})

    @property
    def batch_per_device(self) -> float | None:
        """The samples of a step on each device; None if the table does not say."""
        return self.batch and self.batch / (self.nodes * self.devices)

    def baseline(self, ways: Iterable[Way]) -> Way | None:
        """Return the one of ``ways`` that its speedup is measured against: on one device, by eager
        training or its own strategy, with its batch or as large a batch on each device."""
        alone = [
            way
            for way in ways
            if way.nodes * way.devices == 1
            and way != self
            and (way.strategy == "eager" or self.nodes * self.devices > 1)
            and way.strategy in ("eager", self.strategy)
            and way.precision == self.precision
            and (way.batch_size == self.batch_size or way.batch_per_device == self.batch_per_device)
        ]

        # Compared with their own strategy, sources scale weakly; with another one, strongly.
        def distance(way: Way) -> tuple[bool, bool]:
            if way.strategy == "eager":
                return False, way.batch_size != self.batch_size
            return True, way.batch_per_device != self.batch_per_device

        return min(alone, key=distance, default=None)


def renamed(table: Path, rows: Collection[Published], given: Mapping[str, str]) -> list[Published]:
    """Return the ``rows`` of a file with our names of models and strategies; ``given``: ours by the
    source's.

    Raises ParbenchError for a name that is not clear, and for ``given`` names that match nothing or
    merge two configurations into one.
    """
    _check_given(table, rows, given)
    networks = [name for name in given.values() if "/" in name and models.exists(name)]
    ours = {
        "model": _by_spelling({}, given, [*models.names(), *networks]),
        "strategy": _by_spelling(CALLED, given, strategies.names()),
    }
    found: list[Published] = []
    for row in rows:
        changes: dict[str, str] = {}
        for key, known in ours.items():
            printed = getattr(row, key)
            name = known.get(_spelled(printed)) if printed else _unnamed(row)
            if printed == printed_table.UNNAMED_MODEL:
                raise ParbenchError(
                    f"{table}: no column states the model; map one to it, as --columns "
                    '"...=model", or --given "model=..."'
                )
            if name is None:
                names = models.names() if key == "model" else strategies.names()
                raise ParbenchError(
                    f"{table}: line {row.line}: {key} {brief(printed)!r} is unknown"
                    f"{nearest(printed.lower(), names, listed=False)}; name which of these it is, "
                    f'--names "{brief(printed, 30)}=...", or add it (docs/extending.md): '
                    f"{', '.join(names)}"
                )
            changes[key] = name
        notes = [
            f"{key} printed as {getattr(row, key)}" if getattr(row, key) else f"{key} assumed"
            for key in ours
        ]
        changes["note"] = "; ".join(filter(None, [*notes, row.note]))
        found.append(row.model_copy(update=changes))
    _check_one_value(table, rows, found)
    return found


def _check_given(table: Path, rows: Iterable[Published], given: Mapping[str, str]) -> None:
    printed = {name for row in rows for name in (row.model, row.strategy) if name}
    known = [*models.names(), *strategies.names()]
    for theirs, ours in given.items():
        if ours not in known and not ("/" in ours and models.exists(ours)):
            raise ParbenchError(
                f"--names: {brief(ours)!r}, for {brief(theirs)!r}, is not a model or strategy"
                f"{nearest(ours, known, listed=False)}; known: {', '.join(known)}"
            )
        if _spelled(theirs) not in map(_spelled, printed):
            raise ParbenchError(
                f"--names: {table} prints no model or strategy {brief(theirs)!r}; it prints "
                f"{', '.join(map(brief, sorted(printed)))}"
            )


def _check_one_value(table: Path, before: Iterable[Published], after: Iterable[Published]) -> None:
    """Raise ParbenchError if two printed names became one, which now has two values."""
    firsts: dict[tuple[object, ...], tuple[Published, Published]] = {}
    for printed, row in zip(before, after, strict=True):
        other, first = firsts.setdefault((row.configuration, row.metric), (printed, row))
        for key, plural in PLURALS.items():
            names = [getattr(each, key) for each in (other, printed)]
            if first.value != row.value and len(set(map(_spelled, names))) > 1:
                one, two = (repr(brief(name, 30)) if name else "nothing" for name in names)
                raise ParbenchError(
                    f"{table}: lines {other.line} and {printed.line}: the {plural} {one} and {two} "
                    f"both become {getattr(row, key)!r}, which then has two values of "
                    f"{row.metric}; map what they differ in to a column, such as "
                    "GPUs=devices or Precision=precision, or tell them apart by --names"
                )


def _unnamed(row: Published) -> str:
    """Return the strategy that is assumed where the table names none."""
    return "eager" if row.devices == 1 else "ddp"


def merged(before: Iterable[Published], after: Iterable[Published]) -> list[str]:
    """Return a sentence for each of our names that replaces several printed ones, if these differ
    in more than capitals, blanks and signs."""
    names: dict[tuple[str, str], dict[str, str]] = {}
    for printed, row in zip(before, after, strict=True):
        for key in PLURALS:
            theirs = getattr(printed, key)
            names.setdefault((key, getattr(row, key)), {}).setdefault(_spelled(theirs), theirs)
    return [
        f"the {PLURALS[key]} {', '.join(map(brief, theirs.values()))} all become {ours}"
        for (key, ours), theirs in names.items()
        if len(theirs) > 1 and all(theirs)
    ]


def assumed(rows: Iterable[Published]) -> list[str]:
    """Return what the drafts assume of printed ``rows`` besides settings, and how to correct it."""
    assumed = [f"dataset {DATASET}, since a table names none; correct the key `dataset`"]
    rows = list(rows)
    if unnamed := dict.fromkeys(_unnamed(row) for row in rows if not row.strategy):
        assumed.append(
            f"strategy {' on one device, '.join(unnamed)}{' on several' * ('ddp' in unnamed)}, "
            'since the table names none; map a column to it, or --given "strategy=..."'
        )
    if any(row.hardware == printed_table.UNNAMED for row in rows):
        assumed.append(
            "hardware: GPUs of any kind, since the table names none; map a column to it, or "
            '--given "hardware=A100"'
        )
    return assumed


def _spelled(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _by_spelling(
    called: Mapping[str, str], given: Mapping[str, str], names: Iterable[str]
) -> dict[str, str]:
    own = {_spelled(name): name for name in names}
    chosen = {_spelled(key): name for key, name in given.items() if name in own.values()}
    return {**called, **own, **chosen}


def values(
    name: str,
    table: Path,
    rows: Iterable[Published],
    texts: Mapping[tuple[int, str], tuple[str, str]],
) -> str:
    """Return the published values of the source ``name`` as CSV, in our units and as printed, from
    the ``rows`` of the file ``table``; ``texts``: as in `Printed`."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        own = converted(row)
        if isinstance(own, Contradiction):
            raise ParbenchError(
                f"{table}: line {row.line}: {own.says}; correct the table, or --columns"
            )
        metric = METRICS.get(row.metric)
        unit = metric.unit if metric else own.unit
        values = {"study": name, "value": f"{own.value:.12g}", "unit": unit}
        text, spread = texts[row.line, row.metric]
        note = "; ".join(filter(None, [row.note, spread and f"printed with ± {spread}"]))
        printed = {"published_value": text, "published_unit": row.unit or unit, "note": note}
        writer.writerow(own.model_dump(include=set(COLUMNS)) | values | printed)
    return out.getvalue()


def study(name: str, title: str, rows: list[Published], schema: str, assumed: Iterable[str]) -> str:
    """Return the study of these rows at the source's scale as YAML, with places to fill in;
    ``schema``: the path of its JSON schema, for editors; ``assumed``: its list `assumed`."""
    ways = list(dict.fromkeys(map(Way.of, rows)))
    usual = {key: value for key, value in USUAL.items() if not _states(key, ways)}
    head = {
        "title": title,
        "description": "What is compared, and why: fill in.",
        "citation": {"text": "Authors (year), title, where: fill in"},
        "published": name,
        "dataset": DATASET,
        "seeds": [0, 1, 2, 3],
    }
    return "\n".join(
        [
            f"{SCHEMA}{schema}",
            *(f"# assumed: {each}" for each in assumed),
            _yaml(head),
            "# The table does not give these: fill in what the source says elsewhere, under",
            "# `settings`, and keep in this list what it does not state.",
            _yaml({"assumed": usual}),
            _grid(rows, ways),
        ]
    )


def copy(
    name: str, title: str, rows: list[Published], schema: str, assumed: Iterable[str]
) -> str | None:
    """Return the study's small copy for two cores; None if none of it fits there. The arguments
    are those of `study`."""
    ways = [way for way in dict.fromkeys(map(Way.of, rows)) if way.nodes * way.devices <= 2]
    own_rows = [row for row in rows if Way.of(row) in ways]
    if not ways:
        return None
    usual = {key: value for key, value in USUAL.items() if not _states(key, ways)}
    head = {
        "title": f"{title}, scaled down to processor cores",
        "description": "The rows of at most two devices, on as many cores, with few images.",
        "citation": None,
        "published": name,
        "scaled_from": name,
        "dataset": DATASET,
        "seeds": [0, 1, 2, 3],
        "settings": SMALL,
        "assumed": {key: value for key, value in usual.items() if key not in SMALL},
    }
    notes = (f"# assumed: {each}" for each in assumed)
    grid = _grid(own_rows, ways, small=True)
    return "\n".join([f"{SCHEMA}{schema}", *notes, _yaml(head), grid])


def claims(name: str, rows: list[Published]) -> str:
    """Return a claim for claims.yaml, to be edited, that each way is faster than its baseline; all
    its lines are comments. Empty if the table has neither times nor rates, or no baseline.
    """
    ways = list(dict.fromkeys(map(Way.of, rows)))
    measured = {row.metric for row in rows}
    bounded = (metric for metric in METRICS.values() if metric.bounded_by_devices)
    metric = next((metric for metric in bounded if metric.name in measured), None)
    parts: list[str] = []
    for way in ways if metric else ():
        if baseline := way.baseline(ways):
            sides = (json.dumps(side.selection).replace('"', "") for side in (way, baseline))
            parts += ["#     - numerator: {}\n#       denominator: {}".format(*sides)]
    if metric is None or not parts:
        return ""
    op = ">" if metric.higher_is_better else "<"
    head = [
        f"# {name}-faster:",
        f"#   study: {name}",
        "#   claim: What the source says, in your own words.",
        f'#   test: {{metric: {metric.name}, op: "{op}"}}',
        "#   parts:  # one for each statement; sizes follow from the source's numbers",
    ]
    return "\n".join([*head, *parts, ""])


def _states(key: str, ways: Iterable[Way]) -> bool:
    """Return whether the table itself states a setting."""
    stated = {"global_batch": "batch_size", "precision": "precision"}
    return key in stated and all(getattr(way, stated[key]) for way in ways)


def _stated(way: Way) -> dict[str, str | int]:
    """Return the settings that the table states for a variant."""
    stated: dict[str, str | int] = {}
    if way.batch:
        stated["global_batch"] = way.batch
    if way.precision:
        stated["precision"] = way.precision.lower()
    return stated


def _grid(rows: list[Published], ways: list[Way], small: bool = False) -> str:
    """Return the models, variants, pairs and tables of a study; ``small``: on processor cores."""

    def hardware(way: Way) -> str:
        return f"{'cpu' if small or way.on_cpu else 'gpu'}{way.layout}"

    own_models = list(dict.fromkeys(row.model for row in rows))
    entries = {
        model: {"options": models.load(model).SMALL} if small and models.load(model).SMALL else {}
        for model in own_models
    }
    variants: dict[str, dict[str, object]] = {}
    compare: list[dict[str, str]] = []
    for way in ways:
        baseline = way.baseline(ways)
        own = [row.model for row in rows if Way.of(row) == way]
        trained = [model for model in own_models if model in own]
        options = Configuration.of_row(next(row for row in rows if Way.of(row) == way)).options
        published = {
            "strategy": way.strategy,
            "nodes": way.nodes,
            "devices_per_node": way.devices,
            **({"batch_size": way.batch} if way.batch else {}),
            **({"precision": way.precision} if way.precision else {}),
        }
        entry = {
            "strategy": way.strategy,
            "options": {key: yaml.safe_load(value) for key, value in options.items() if value},
            "models": trained if trained != own_models else None,
            "hardware": hardware(way),
            "settings": _stated(way),
            "baseline": baseline and baseline.name,
            "published": published,
        }
        variants[way.name] = {key: value for key, value in entry.items() if value}
        if baseline is not None:
            compare.append({"variant": way.name, "baseline": baseline.name})
    kinds = groupby(sorted(ways, key=hardware), hardware)
    compare += [{"variant": first.name, "baseline": first.name} for _, (first, *_) in kinds]
    metrics = [metric for metric in dict.fromkeys(row.metric for row in rows) if metric in METRICS]
    table = {"title": title_of(rows), "variants": list(variants), "metrics": metrics}
    grid = {"models": entries, "variants": variants, "pairs": {"compare": compare}}
    return _yaml(grid | {"tables": [table]})


def title_of(rows: list[Published]) -> str:
    """Return the title of the source's first table or, if it has none, the name of its file."""
    first = rows[0]
    return first.study if re.fullmatch(r"line \d+", first.table) else first.table


def _yaml(value: Mapping[str, object]) -> str:
    """Return YAML in block style whose innermost mappings are on one line."""
    return yaml.dump(value, sort_keys=False, width=110, default_flow_style=None, allow_unicode=True)
