"""Numbers, units and names as text. Every displayed number is formatted in this module, once."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from parbench.cell import Hardware
from parbench.errors import ParbenchError
from parbench.runs.metrics import label
from parbench.runs.parts import Machine
from parbench.verdicts.rows import Row
from parbench.verdicts.sequential import Series
from parbench.words import count

ABSENT = "–"

UNITS = {  # unit: (what it measures, its size, how it is written)
    "ms": ("time", 0.001, "ms"),
    "s": ("time", 1.0, "s"),
    "min": ("time", 60.0, "min"),
    "h": ("time", 3600.0, "h"),
    "fraction": ("share", 1.0, "fraction"),
    "percent": ("share", 0.01, "%"),
    "MiB": ("memory", 1.0, "MiB"),
    "GiB": ("memory", 1024.0, "GiB"),
    "samples/s": ("throughput", 1.0, "samples/s"),
    "x": ("ratio", 1.0, "×"),
}
# Where a cell's software comes from, after "in".
DEPLOYMENTS = {"apptainer": "Apptainer images", "host": "this machine's own environment"}


# ---------------------------------------------------------------- numbers


def convert(value: float, unit: str, into: str) -> float:
    """Convert ``value`` from ``unit``; ParbenchError if the units measure different things."""
    if unit == into:
        return value
    if unit not in UNITS or into not in UNITS or UNITS[unit][0] != UNITS[into][0]:
        raise ParbenchError(f"cannot show {unit!r} as {into!r}; use one of {', '.join(UNITS)}")
    return value * UNITS[unit][1] / UNITS[into][1]


def decimals(
    values: Iterable[float | None], unit: str, spreads: Iterable[float | None] = ()
) -> int:
    """Return a column's decimals, so that its numbers compare.

    A share has four (percent: two), a ratio two, and any other unit as many as give its smallest
    number three significant digits. Ratios and other units get one more, up to three, if a spread
    rounds to zero.
    """
    kind, size, _ = UNITS.get(unit, ("", 1.0, unit))
    if kind == "share":
        return 4 if size == 1.0 else 2
    magnitudes = [abs(value) for value in values if value]
    places = 2
    if kind != "ratio":
        places = min(3, max(0, 2 - math.floor(math.log10(min(magnitudes))))) if magnitudes else 1
    narrowest = min(filter(None, spreads), default=1.0)
    return min(3, places + 1) if round(narrowest, places) == 0 else places


def fixed(value: float, places: int) -> str:
    """Format a number with fixed decimals and a true minus sign."""
    return f"{value:,.{places}f}".replace("-", "−")


def short(value: float, unit: str = "") -> str:
    """Format a number as a source prints it; a ratio, which may be computed, has four digits."""
    digits = 4 if UNITS.get(unit, ("",))[0] == "ratio" else 6
    return f"{value:.{digits}g}".replace("-", "−")


def spread_text(found: Series | Row, places: int, scale: float = 1.0) -> str:
    """Return ``12.00 ± 0.13``, mean and standard deviation, or ``11.9 to 12.1`` for too few values.

    All are multiplied by ``scale``.
    """
    few = found.too_few
    numbers = (found.min, found.max) if few else (found.mean, found.std)
    texts = [fixed(scale * value, places) for value in numbers if value is not None]
    return joined_ends(texts) if few else " ± ".join(texts)


def joined_ends(ends: Iterable[str]) -> str:
    """Return ``11.9 to 12.1``, or one number if both ends have the same text."""
    return " to ".join(dict.fromkeys(ends))


# ---------------------------------------------------------------- words


def listed(words: list[str]) -> str:
    """Return ``a, b and c``."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def counted(states: Counter[str]) -> str:
    """Return ``3 ok and 1 not run``."""
    return listed([f"{number} {state}" for state, number in states.items()])


def cut(text: str, width: int) -> str:
    """Cut ``text`` to ``width`` characters, with an ellipsis if it is longer."""
    return text if len(text) <= width else text[: width - 1] + "…"


def anchor(*words: str) -> str:
    """Return an HTML id made from ``words``."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(words))


def date_time(stamp: str) -> str:
    """Turn ``2024-01-31T07:00:00Z`` into ``2024-01-31 07:00``."""
    return stamp[:16].replace("T", " ")


def period(started: str, finished: str) -> str:
    """Turn two stamps into ``2024-01-31 07:00 to 07:09``; the second day only if it differs."""
    begin, end = date_time(started), date_time(finished)
    return f"{begin} to {end[11:] if end[:10] == begin[:10] else end}"


# ---------------------------------------------------------------- names


def unit_text(unit: str) -> str:
    """Return a unit as written in a heading."""
    return UNITS[unit][2] if unit in UNITS else unit


def heading(metric: str, unit: str) -> str:
    """Return a metric's name and unit."""
    return f"{label(metric)} ({unit_text(unit)})" if unit else label(metric)


def status_text(status: str) -> str:
    """Return a cell's status in words."""
    return status.replace("_", " ")


def mapping_text(value: object) -> str:
    """Return a setting's value in one line."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {mapping_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return "[" + ", ".join(mapping_text(item) for item in value) + "]"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value)


def settings_pairs(settings: Mapping[str, object]) -> list[list[str]]:
    """Return name and value of every setting."""
    return [[key.replace("_", " "), mapping_text(value)] for key, value in settings.items()]


def software_text(stack: str, deployment: str) -> str:
    """Return the name of cells' software; ``stack`` is the user's own Python if that ran them."""
    return f"the stack {stack}" if deployment in DEPLOYMENTS else stack


def deployment_text(deployment: str) -> str:
    """Return where cells get their software from, in general words."""
    return DEPLOYMENTS.get(deployment, "the user's own Python")


def hardware_text(hardware: Hardware) -> str:
    """Describe hardware; a CPU device is one core or, with threads, several."""
    devices, threads = hardware.devices, hardware.threads
    if hardware.device == "cpu" and threads > 1:
        text = f"{count(devices, 'CPU device')} of {threads} cores"
    elif hardware.device == "cpu":
        text = count(devices, "CPU core")
    else:
        text = f"{devices}× {hardware.gpu_model or hardware.device.upper()}"
    return text if hardware.nodes == 1 else f"{hardware.nodes} nodes, each {text}"


def short_machine_text(machine: Machine) -> str:
    """Return a machine's CPU, with its numbers of cores and accelerators in parentheses."""
    parts = [count(machine.cores, "core")] if machine.cores else []
    parts += _cards(machine)
    return (machine.cpu or "an unknown CPU") + (f" ({', '.join(parts)})" if parts else "")


def _cards(machine: Machine) -> list[str]:
    """Return ``2× NVIDIA H200`` of each kind of accelerator."""
    cards = Counter(card.name for card in machine.accelerators)
    return [f"{number}× {name}" for name, number in cards.items()]


def machine_text(machine: Machine) -> str:
    """Describe a machine: CPU, cores, memory, accelerators, fingerprint as its ID."""
    parts = [machine.cpu or "unknown CPU"]
    if machine.cores:
        parts.append(count(machine.cores, "core"))
    if machine.memory_mib:
        parts.append(f"{machine.memory_mib / 1024:.0f} GiB")
    parts += _cards(machine)
    return ", ".join(parts) + f" (ID {machine.fingerprint})"
