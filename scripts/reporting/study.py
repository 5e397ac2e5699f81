"""What is read: one study's plan, table rows and metrics, and what they say of a group."""

from __future__ import annotations

import csv
import io
import math
import shlex
from collections import Counter
from pathlib import Path

import shape
from certificate import Certificates
from errors import ParbenchError
from files import read_json
from measure import read_metrics
from printable import printable
from reporting.text import anchor, convert, decimals, fixed, status_text
from seeds import too_few

# fmt: off
TABLE_COLUMNS = [
    "study", "group", "model", "variant", "hardware", "device", "devices", "nodes", "stack",
    "deployment", "machine", "status", "metric", "unit", "n_seeds", "mean", "std", "ci_low",
    "ci_high", "min", "max", "published", "published_unit", "ratio", "verdict", "reason",
]
# fmt: on
TRAINED = Path("results/cells")
NUMBERS = ("mean", "std", "ci_low", "ci_high", "min", "max", "published", "ratio")

# Metrics that a group that ran well may lack: no baseline, no accelerator, one model alone, a goal
# not reached.
OPTIONAL = {
    "speedup",
    "throughput_ratio",
    "parallel_efficiency",
    "accuracy_difference",
    "noise_floor",
    "peak_memory_device_mib",
    "total_seconds",
    "inference_seconds",
    "inference_samples_per_second",
    "profile_self_seconds",
    "seconds_to_published_accuracy",
}


class Study:
    """One study's plan, table rows and metrics, checked against each other.

    ``study`` and ``groups`` are the ``plan``'s, ``own`` those groups that have cells of their own,
    ``rows`` the table's by (group, metric), ``metrics`` the metrics.json files by cell, ``proofs``
    the certificates that stand for them, ``evidence`` what the plan says of the file that it was
    unpacked from (scripts/evidence.py), which brings cells and certificates of its own.
    ParbenchError for what is missing or broken.
    """

    def __init__(
        self,
        plan_path: Path,
        table_path: Path,
        cells_folder: Path,
        proofs: Certificates | None = None,
    ):
        self.table_path, self.cells_folder, self.proofs = table_path, cells_folder, proofs
        plan = printable(read_json(plan_path))
        self.evidence = plan.get("evidence")
        if self.evidence is not None:
            home = plan_path.parent.parent
            self.cells_folder = home / "cells"
            self.proofs = Certificates(sorted((home / "certificates").glob("*.json")))
        try:
            # Those of several models together stand after those that have cells of their own.
            self.study, self.groups = plan["study"], [*plan["groups"], *plan["together"]]
            self.plan, self.own = plan, plan["groups"]
            self.stack, self.deployment = plan["stack"], plan["deployment"]
            self.arguments = plan["arguments"]
            self.name = self.study["name"]
            self.has_source = self.study["published"] is not None
            self.by_id = {group["id"]: group for group in self.groups}
            self.rows = self._read_table()
            self.metrics = self._read_cells()
            self._check_numbers()
        except (KeyError, TypeError) as error:
            raise ParbenchError(
                f"{plan_path}: no key {error}; delete it and run again: make report"
            ) from None
        self._decimals: dict[tuple[str, str], int] = {}

    # ----------------------------------------------------------------------- reading

    def _read_table(self) -> dict[tuple[str, str], dict]:
        """Rows by (group, metric), numbers as floats or None."""
        fix = f"rebuild it: {self.command(self.table_path)} --force"
        try:
            text = self.table_path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ParbenchError(f"{self.table_path}: cannot be read ({error}); {fix}") from None
        reader = csv.DictReader(io.StringIO(printable(text)))
        missing = [name for name in TABLE_COLUMNS if name not in (reader.fieldnames or [])]
        if missing:
            raise ParbenchError(f"{self.table_path}: no column {', '.join(missing)}; {fix}")
        rows = {}
        for number, row in enumerate(reader, start=2):
            where = f"{self.table_path}, line {number}"
            if None in row or None in row.values():
                raise ParbenchError(f"{where}: not as many fields as the heading has; {fix}")
            if row["group"] not in self.by_id:
                raise ParbenchError(f"{where}: group {row['group']!r} is not in the plan; {fix}")
            for name in NUMBERS:
                row[name] = _number(row[name], f"{where}, {name}", fix)
            row["n_seeds"] = int(_number(row["n_seeds"], f"{where}, n_seeds", fix) or 0)
            rows[row["group"], row["metric"]] = row
        return rows

    def _read_cells(self) -> dict[str, dict]:
        """metrics.json by cell id, for every planned cell that this machine runs."""
        found = {}
        for group in self.own:
            for cell in self.cells(group):
                path = self.metrics_path(cell)
                if not path.exists():
                    raise ParbenchError(
                        f"{path}: cell {cell} of study {self.name} is planned but has no metrics; "
                        f"run: {self.command(path)}"
                    )
                found[cell] = printable(read_metrics(path))
        return found

    def _check_numbers(self) -> None:
        """Every number that the study's tables ask for exists, or a status says why not."""
        for table in self.study["tables"]:
            for group in self.table_groups(table):
                for metric in table["metrics"]:
                    row = self.row(group, metric)
                    lacking = row is None or (
                        row["status"] == "ok"
                        and row["mean"] is None
                        and row["verdict"] != "not measured"
                    )
                    if lacking and metric not in OPTIONAL and not group["not_run"]:
                        raise ParbenchError(
                            f"{self.table_path}: no number for metric {metric} of group "
                            f"{group['id']}; rebuild it: {self.command(self.table_path)} --force"
                        )

    def command(self, path: Path) -> str:
        """What rebuilds one of the study's files, in the configuration of this run."""
        return shlex.join(["snakemake", str(path), *self.arguments])

    def cell_command(self, cell: str) -> str:
        """What trains a cell: again, or, where it is known from evidence, here."""
        path = self.metrics_path(cell)
        return self.command(path if self.evidence is None else TRAINED / cell / path.name)

    # ----------------------------------------------------------------------- groups

    def row(self, group: dict, metric: str) -> dict | None:
        """The table's row of a group's metric."""
        return self.rows.get((group["id"], metric))

    def cells(self, group: dict) -> list[str]:
        """The cells of a group that this machine runs."""
        return [] if group["not_run"] else group["cells"]

    def metrics_path(self, cell: str) -> Path:
        """Where a cell's metrics.json lies; its log lies beside it."""
        return self.cells_folder / cell / "metrics.json"

    def table_groups(self, table: dict) -> list[dict]:
        """The groups of one of the paper's tables: model by model, variants in their order."""
        models = list(dict.fromkeys(group["model"] for group in self.groups))
        named = table.get("variants") or [group["variant"] for group in self.groups]
        order = {variant: index for index, variant in enumerate(dict.fromkeys(named))}
        chosen = [group for group in self.groups if shape.holds(table, group)]
        return sorted(chosen, key=lambda g: (models.index(g["model"]), order[g["variant"]]))

    def status(self, group: dict) -> str:
        """``ok``, ``not run``, ``diverged`` or, of several seeds, ``diverged 1 of 3``."""
        if group["not_run"]:
            return "not run"
        states = Counter(self.metrics[cell]["status"] for cell in group["cells"])
        del states["ok"]
        total = len(group["cells"])
        words = (
            status_text(state) + ("" if number == total else f" {number} of {total}")
            for state, number in states.items()
        )
        return ", ".join(words) or "ok"

    def why(self, group: dict) -> str:
        """Why a group did not run or end well, as its plan or first failed cell says, or ""."""
        reasons = (self.metrics[cell]["reason"] for cell in self.cells(group))
        return group["not_run"] or next(filter(None, reasons), "")

    def panel(self, group: dict) -> str | None:
        """The anchor of a group's details; None when it has no cell."""
        own = group.get("members", [group["id"]])[0]
        return None if group["not_run"] else anchor("g", self.name, own)

    def cell_panel(self, cell: str) -> str:
        """The anchor of a cell's details; two files of evidence may hold the same cell."""
        return anchor("c", *([] if self.evidence is None else [self.name]), cell)

    # ----------------------------------------------------------------------- numbers

    def unit(self, metric: str) -> str:
        """The unit that the study shows a metric in, unless a table says otherwise."""
        for table in self.study["tables"]:
            if metric in table.get("units", {}):
                return table["units"][metric]
        return next((row["unit"] for (_, name), row in self.rows.items() if name == metric), "")

    def _places(self, metric: str, unit: str) -> int:
        """Decimals of a metric throughout the study, so that its columns compare."""
        if (metric, unit) not in self._decimals:
            rows = [row for (_, name), row in self.rows.items() if name == metric]
            means = [convert(r["mean"], r["unit"], unit) for r in rows if r["mean"] is not None]
            stds = [convert(r["std"], r["unit"], unit) for r in rows if r["std"] is not None]
            self._decimals[metric, unit] = decimals(means, unit, stds)
        return self._decimals[metric, unit]

    def show(self, row: dict, key: str, unit: str) -> str:
        """One number of a row (``mean``, ``ci_low``, ...) as text, in the unit ``unit``."""
        places = self._places(row["metric"], unit)
        return fixed(convert(row[key], row["unit"], unit), places)

    def spread(self, row: dict, unit: str) -> str:
        """``12.00 ± 0.13``, mean and standard deviation; ``11.9 to 12.1`` of too few seeds."""
        if not too_few(row["n_seeds"]):
            return f"{self.show(row, 'mean', unit)} ± {self.show(row, 'std', unit)}"
        ends = (self.show(row, end, unit) for end in ("min", "max"))
        return " to ".join(dict.fromkeys(ends))

    def whiskers(self, row: dict, unit: str) -> tuple[float, float]:
        """How far the spread reaches below and above the mean, in the unit ``unit``."""
        below = above = row["std"]
        if too_few(row["n_seeds"]):
            below, above = row["mean"] - row["min"], row["max"] - row["mean"]
        return convert(below, row["unit"], unit), convert(above, row["unit"], unit)

    def reproduced(self, row: dict, unit: str) -> str:
        """``12.00 ± 0.13 (3)``: mean and standard deviation, or range, and how many seeds."""
        return f"{self.spread(row, unit)} ({row['n_seeds']})"

    # ----------------------------------------------------------------------- speedups

    def noise_band(self, group: dict) -> tuple[float, float] | None:
        """The range in which a group's baseline against itself lies with 95 %; None: unknown."""
        row = self.rows.get((group["baseline"], "noise_floor"))
        if row is None or row["ci_low"] is None or row["ci_high"] is None:
            return None
        return row["ci_low"], row["ci_high"]

    def against(self, group: dict) -> str:
        """The name of what a group's speedup is measured against."""
        return self.by_id.get(group["baseline"], {}).get("variant", "the baseline")

    def reading(self, group: dict, row: dict) -> str:
        """What a group's speedup (its ``row``) says, given its bound and the noise."""
        if few := too_few(row["n_seeds"]):
            return f"undecided: {few}"
        ends = row["ci_low"], row["ci_high"]
        interval = None if None in ends else ends
        band, against = self.noise_band(group), self.against(group)
        return reading(row["mean"], interval, bound(group), band, against)


def bound(group: dict) -> int:
    """All cores or GPUs of a group, which no speedup should exceed."""
    hardware = group["hardware"]
    return hardware["devices"] * hardware["threads"] * hardware["nodes"]


def reading(
    speedup: float,
    interval: tuple[float, float] | None,
    bound: int,
    band: tuple[float, float] | None,
    against: str,
) -> str:
    """What a speedup says, given its 95 % interval, its bound and the noise.

    It says something only where the whole interval lies outside the noise floor: a mean may fall
    there by chance. ``interval`` is None for one seed, ``band`` where the noise is unknown.
    """
    low, high = interval or (speedup, speedup)
    floor, ceiling = band or (1.0, 1.0)
    if band and low <= ceiling and floor <= high:
        return f"no difference from {against} beyond noise"
    if low > bound * ceiling:
        return "above the bound: suspect the clock"
    words = f"{'faster' if speedup > 1 else 'slower'} than {against}"
    return words if interval and band else f"{words}; noise unknown"


def _number(text: str, where: str, fix: str) -> float | None:
    if text == "":
        return None
    try:
        value = float(text)
    except ValueError:
        raise ParbenchError(f"{where}: {text!r} is not a number; {fix}") from None
    # The noise floor of two wild seeds has no upper end: shown as unknown.
    return value if math.isfinite(value) else None
