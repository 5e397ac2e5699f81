"""Where the seconds go: the phases of profiled cells, as a table and as a stacked figure."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from parbench.reporting.drawing import COLORS, FigureEntry, Panel, bar_label, figure_json
from parbench.reporting.paper_tables import KEYS, context, key_cells
from parbench.reporting.study_results import StudyResults
from parbench.reporting.table import TableCell, TableEntry, absent, make_table, number
from parbench.reporting.text import cut, decimals, fixed, spread_text
from parbench.runs.parts import Phases
from parbench.runs.records import CellRun
from parbench.verdicts.groups import Group
from parbench.verdicts.sequential import numbered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Why not twice as fast? Where the seconds go"
PHASES = ("input", "compute", "communication", "waiting", "bubble", "other")
DEFINED = (
    "Measured on each rank, not estimated; the phases sum to the time of the "
    "slowest rank. Input: samples are prepared. Compute: forward and backward "
    "passes and the optimizer. Communication: gradients cross the network while "
    "nothing is left to compute. Waiting: for a late rank; on several machines it "
    "is part of communication. Bubble: a device of a pipeline is idle while another "
    "one works. Other: the loop itself."
)
APART = (
    "Profiled cells are kept apart from timed ones. The last column is the time "
    "of a cell over that of the same cell without profiling: what profiling costs."
)

# Equal in a profiled group and its timed twin, as is training except for the profile.
ALIKE = ("model", "strategy", "options", "model_options", "pretrained", "hardware", "dataset")

Shares = dict[str, float]  # seconds per epoch, by phase


def phases_table(study: StudyResults) -> TableEntry | None:
    """Return a table: per group the mean over ranks and, if several, each rank; None if empty."""
    groups = instrumented(study)
    if not groups:
        return None
    rows = []
    places = decimals([value for group in groups for value in mean(group).values()], "s")
    for group in groups:
        rank_count = len(_phases(_runs(group)[0]).ranks)
        for rank in [None, *range(rank_count)] if rank_count > 1 else [None]:
            shares = [_shares(run, rank) for run in _runs(group)]
            sums = [sum(by_phase.values()) for by_phase in shares]
            rows.append(
                [
                    *key_cells(group),
                    TableCell("mean" if rank is None else str(rank)),
                    *(_mean([by_phase[phase] for by_phase in shares], places) for phase in PHASES),
                    _number(sums, places),
                    _against_twin(study, group) if rank is None else absent("as above"),
                ]
            )
    heads = [
        ("", [*KEYS, "Rank"]),
        ("Seconds of an epoch", [phase.capitalize() for phase in PHASES]),
        ("", ["Sum", "Profiled / timed"]),
    ]
    return make_table(
        f"t-{study.name}-phases",
        TITLE,
        heads,
        rows,
        caption=f"{DEFINED} Means over seeds. {APART}",
        context=context(groups),
    )


def phases_figure(study: StudyResults) -> FigureEntry | None:
    """Return a figure, a bar per group: seconds per epoch, by phase; None if there are none."""
    groups_by_model: dict[str, list[Group]] = {}
    for group in instrumented(study):
        groups_by_model.setdefault(group.model, []).append(group)
    if not groups_by_model:
        return None
    panels = {
        model: Panel(partial(_draw_bars, study, model, groups), len(groups) * 0.2 + 1.05)
        for model, groups in groups_by_model.items()
    }
    caption = "Seconds of an epoch by phase: mean over ranks and seeds."
    return figure_json(study, "phases", TITLE, caption, panels)


def instrumented(study: StudyResults) -> list[Group]:
    """Return the groups whose phases were measured, by model."""
    models = list(dict.fromkeys(group.model for group in study.groups))
    groups = [group for group in study.groups if _runs(group)]
    return sorted(groups, key=lambda group: models.index(group.model))


def _runs(group: Group) -> list[CellRun]:
    return group.ok if group.training.profile == "phases" and not group.members else []


def _phases(run: CellRun) -> Phases:
    """Return what a run of a profiled group measured."""
    assert isinstance(run.profile, Phases)
    return run.profile


def _shares(run: CellRun, rank: int | None = None) -> Shares:
    """Return a run's seconds per epoch by phase: those of one rank, or the mean over ranks."""
    seconds = _phases(run).mean if rank is None else _phases(run).ranks[rank]
    return {phase: getattr(seconds, phase) / len(run.epoch_seconds) for phase in PHASES}


def mean(group: Group) -> Shares:
    """Return seconds per epoch, averaged over ranks and seeds."""
    run_shares = [_shares(run) for run in _runs(group)]
    return {phase: fmean(shares[phase] for shares in run_shares) for phase in PHASES}


# ---------------------------------------------------------------- against timed cells


def _ratios(study: StudyResults, group: Group) -> list[float]:
    """Return training times divided by the timed twin's, matched by seed and machine."""
    timed_training = replace(group.training, profile="none")
    twins = [
        other
        for other in study.own
        if other.training == timed_training
        and all(getattr(other, key) == getattr(group, key) for key in ALIKE)
    ]
    twin_seconds = {_place(run): run.train_seconds for twin in twins for run in twin.ok}
    pairs = [(run.train_seconds, twin_seconds.get(_place(run))) for run in _runs(group)]
    return [own / twin for own, twin in pairs if own is not None and twin is not None]


def _place(run: CellRun) -> tuple[int, str]:
    return run.cell.seed, run.environment.machine.fingerprint


def _against_twin(study: StudyResults, group: Group) -> TableCell:
    ratios = _ratios(study, group)
    return _number(ratios, 2) if ratios else absent("no timed cell to compare with")


def _mean(values: list[float], places: int) -> TableCell:
    return number(fmean(values), fixed(fmean(values), places))


def _number(values: list[float], places: int) -> TableCell:
    """Return mean and standard deviation over seeds, or the range if there are too few."""
    series = numbered(values)
    return number(series.known_mean, spread_text(series, places))


# ---------------------------------------------------------------- drawing


def _draw_bars(study: StudyResults, model: str, groups: list[Group], figure: Figure) -> None:
    axes = figure.subplots()
    axes.set_title(cut(model, 40))
    axes.set_yticks(range(len(groups)), [bar_label(study, group) for group in groups])
    axes.tick_params(axis="y", width=0)
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.grid(visible=True, axis="x")
    axes.set_xlabel("Seconds of an epoch")
    ends = [0.0] * len(groups)
    shares = [mean(group) for group in groups]
    for phase, color in zip(PHASES, COLORS, strict=False):
        widths = [by_phase[phase] for by_phase in shares]
        axes.barh(range(len(groups)), widths, left=ends, height=0.6, color=color, label=phase)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    places = decimals(ends, "s")
    for row, end in enumerate(ends):
        axes.text(end + max(ends) * 0.015, row, fixed(end, places), va="center", fontsize=7.5)
    axes.set_xlim(0, max(ends) * 1.16)
    figure.legend(loc="outside lower left", ncols=6)
