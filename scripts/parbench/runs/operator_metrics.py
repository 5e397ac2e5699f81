"""Make the metrics of single operators, and read the operators of an instrumented run."""

from __future__ import annotations

from parbench.runs.metric import Metric
from parbench.runs.parts import Operator, Profiled
from parbench.runs.records import CellRun

# The recording, of each kind of operator profile, that is compared with published operators.
PROFILED = {"operators": "inference", "training_operators": "training"}
# Metrics of single operators, without the operator's name.
OPERATOR_METRICS = {"operator_self_seconds": "Self time", "operator_total_seconds": "Total time"}
DESCRIPTIONS = {
    "operator_self_seconds": "with `profile: operators`: an operator's time in inference (with "
    "`training_operators`, in training), without the operators that it calls, on the accelerator "
    "if there is one. torch.profiler records five training steps and five batches of the last "
    "evaluation, on all threads of rank 0. Rows for the operators that the source prints and the "
    "five largest here",
    "operator_total_seconds": "the same, with the operators that it calls",
}


def is_operator(metric: str) -> bool:
    """Return whether ``metric`` is the time of one operator."""
    return metric.startswith("operator_")


def operator_metric(name: str) -> Metric:
    """Return ``operator_self_seconds:<operator>`` or ``operator_total_seconds:<operator>``.

    It does not depend on the clock as others do: only profiled runs have it, and profiling slows
    all operators.
    """
    quantity, _, operator = name.partition(":")

    def read(run: CellRun) -> float | None:
        return seconds(run, operator, quantity.split("_")[1])

    description = DESCRIPTIONS.get(quantity, "")
    return Metric(name, label(name), unit="s", kind="absolute", description=description, read=read)


def label(metric: str) -> str:
    """Return its name for readers: ``Self time of aten::addmm``."""
    quantity, _, operator = metric.partition(":")
    phrase = OPERATOR_METRICS.get(quantity, quantity.replace("_", " "))
    return f"{phrase} of {operator}" if operator else phrase


def clock(device: str) -> str:
    """Return whose clock is used for operators: the accelerator's if there is one."""
    return "cpu" if device == "cpu" else "device"


def operators(run: CellRun) -> dict[str, Operator]:
    """Return the operators in a run's profile, of inference or of training steps, by name."""
    found = _recording(run)
    return {operator.name: operator for operator in found.operators} if found else {}


def seconds(run: CellRun, operator: str, quantity: str) -> float | None:
    """Return the seconds of an operator in the profile of ``run``; None if it has none.

    ``quantity``: ``self``, without the operators that it calls, or ``total``, with them.
    """
    entry = operators(run).get(operator)
    return entry and getattr(entry, f"{_clock(run)}_{quantity}_seconds")


def self_seconds(run: CellRun) -> dict[str, float]:
    """Return the self time of each operator in a run's profile."""
    field = f"{_clock(run)}_self_seconds"
    return {name: getattr(operator, field) for name, operator in operators(run).items()}


def all_self_seconds(run: CellRun) -> float | None:
    """Return the self time of all operators together; None without a profile of operators."""
    found = _recording(run)
    return found and getattr(found, f"{_clock(run)}_self_seconds")


def _recording(run: CellRun) -> Profiled | None:
    name = PROFILED.get(run.cell.training.profile)
    return getattr(run.profile, name) if name and run.profile else None


def _clock(run: CellRun) -> str:
    return clock(run.cell.hardware.device)
