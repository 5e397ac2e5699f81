"""Where the seconds go: the phases of instrumented cells, as a table and as a stacked figure."""

from __future__ import annotations

from statistics import fmean, stdev
from typing import Any

from reporting.figures import COLOURS, FIGURE_WIDTH, PART_HEIGHT, STYLE, bar_label
from reporting.paper_tables import KEYS, context, key_cells
from reporting.study import Study
from reporting.svg import INK, svg_part
from reporting.table import Notes, absent_cell, make_table, text_cell
from reporting.text import anchor, cut, decimals, fixed, listed, ratio_text
from seeds import DECIDE_FROM

TITLE = "Why not twice as fast? Where the seconds go"
PHASES = ("input", "compute", "communication", "waiting", "bubble", "other")
DEFINED = (
    "Measured on each rank, not estimated; the phases sum to the time of the slowest rank. Input: "
    "samples are made ready. Compute: forwards, backwards and the optimizer. Communication: "
    "gradients cross the network and nothing is left to compute. Waiting: for a rank that comes "
    "late. Bubble: a device of a pipeline has nothing to do while another works. Other: the loop "
    "itself."
)
BLIND = "over several machines waiting cannot be told from communication, which holds it"

Shares = dict[str, float]  # seconds of an epoch by phase


def phases_table(study: Study) -> dict | None:
    """A row a group, the mean over its ranks, and one for each of several ranks."""
    groups = instrumented(study)
    if not groups:
        return None
    notes, rows = Notes(), []
    places = decimals([value for group in groups for value in mean(study, group).values()], "s")
    for group in groups:
        found = [run["profile"] for run in _runs(study, group)]
        marks = notes.mark("" if all(each["waiting_known"] for each in found) else BLIND)
        number = len(found[0]["ranks"])
        for rank in ["mean", *range(number)] if number > 1 else ["mean"]:
            per_seed = [_shares(run, rank) for run in _runs(study, group)]
            whole = [sum(each.values()) for each in per_seed]
            rows.append(
                [
                    *key_cells(group, marks if rank == "mean" else None),
                    text_cell(str(rank)),
                    *(_mean([each[name] for each in per_seed], places) for name in PHASES),
                    _number(whole, places),
                    _against_twin(study, group) if rank == "mean" else absent_cell("as above"),
                ]
            )
    heads = [
        ("", [*KEYS, "Rank"]),
        ("Seconds of an epoch", [name.capitalize() for name in PHASES]),
        ("", ["Sum", "Instrumented / timed"]),
    ]
    return make_table(
        f"t-{study.name}-phases",
        TITLE,
        heads,
        rows,
        caption=f"{DEFINED} Means over seeds. {_apart(study)}",
        context=context(study, groups),
        notes=notes,
    )


def phases_figure(study: Study) -> dict | None:
    """A bar a group: seconds of an epoch, stacked by phase."""
    groups = instrumented(study)
    if not groups:
        return None
    told = [f"{bar_label(study, each)} for {each['model']} {_said(study, each)}" for each in groups]
    caption = f"Of an epoch, {listed(told)}. Mean over ranks and seeds. {_apart(study)}"
    return {
        "id": anchor("f", study.name, "phases"),
        "title": TITLE,
        "caption": caption,
        "parts": _draw(study, groups, caption),
    }


def instrumented(study: Study) -> list[dict]:
    """Groups whose phases were measured, model by model."""
    models = list(dict.fromkeys(group["model"] for group in study.groups))
    found = [group for group in study.groups if _runs(study, group)]
    return sorted(found, key=lambda group: models.index(group["model"]))


def _runs(study: Study, group: dict) -> list[dict]:
    if group["training"]["profile"] != "phases":
        return []
    runs = [study.metrics[cell] for cell in study.cells(group)]
    return [run for run in runs if run["status"] == "ok"]


def _shares(run: dict, rank: str | int) -> Shares:
    """Seconds of an epoch of one run: of a rank, or their mean."""
    found = run["profile"]["mean"] if rank == "mean" else run["profile"]["ranks"][rank]
    return {name: found[name] / len(run["epoch_seconds"]) for name in PHASES}


def mean(study: Study, group: dict) -> Shares:
    """Seconds of an epoch, over ranks and seeds."""
    each = [_shares(run, "mean") for run in _runs(study, group)]
    return {name: fmean(shares[name] for shares in each) for name in PHASES}


def _said(study: Study, group: dict) -> str:
    """``computes 71 % and loses most to communication (18 %)``."""
    shares = mean(study, group)
    whole = sum(shares.values())
    compute = shares.pop("compute") / whole
    worst = max(shares, key=lambda name: shares[name])
    return f"computes {compute:.0%} and loses most to {worst} ({shares[worst] / whole:.0%})"


# --------------------------------------------------------------------------- against timed cells


def _ratios(study: Study, group: dict) -> list[float]:
    """Training time with the instrument over that without, by seed, on one machine."""
    timed = {**group["training"], "profile": "none"}
    alike = ("model", "strategy", "options", "model_options", "pretrained", "hardware", "dataset")
    twins = [
        other
        for other in study.groups
        if other["training"] == timed and all(other.get(key) == group.get(key) for key in alike)
    ]
    without = {
        _place(run): run["train_seconds"]
        for twin in twins
        for run in (study.metrics[cell] for cell in study.cells(twin))
        if run["status"] == "ok"
    }
    pairs = [(run["train_seconds"], without.get(_place(run))) for run in _runs(study, group)]
    return [own / other for own, other in pairs if other is not None]


def _place(run: dict) -> tuple:
    return run["cell"]["seed"], run["environment"]["machine"]["fingerprint"]


def _against_twin(study: Study, group: dict) -> dict:
    ratios = _ratios(study, group)
    return _number(ratios, 2) if ratios else absent_cell("no timed cell to compare with")


def _apart(study: Study) -> str:
    """What the instrument costs, in words."""
    ratios = [fmean(found) for group in instrumented(study) if (found := _ratios(study, group))]
    text = "Instrumented cells stand apart from the timed ones"
    if not ratios:
        return f"{text}; of none is there a timed one beside it, so that nobody knows their cost."
    ends = " to ".join(dict.fromkeys(ratio_text(end) for end in (min(ratios), max(ratios))))
    return f"{text}: they took {ends} times as long as the same cells without the instrument."


def _mean(values: list[float], places: int) -> dict:
    return text_cell(fixed(fmean(values), places), sort=fmean(values))


def _number(values: list[float], places: int) -> dict:
    """Mean and standard deviation over seeds, or the range of too few."""
    middle = fmean(values)
    if len(values) >= DECIDE_FROM:
        text = f"{fixed(middle, places)} ± {fixed(stdev(values), places)}"
    else:
        ends = (fixed(end, places) for end in (min(values), max(values)))
        text = " to ".join(dict.fromkeys(ends))
    return text_cell(text, sort=middle)


# --------------------------------------------------------------------------- drawing


def _draw(study: Study, groups: list[dict], alt: str) -> list[dict]:
    """Small multiples, a panel a model, in as many parts as pages need."""
    import matplotlib
    from matplotlib.figure import Figure

    models: dict[str, list[dict]] = {}
    for group in groups:
        models.setdefault(group["model"], []).append(group)
    parts: list[list[str]] = [[]]
    room = PART_HEIGHT
    for model, bars in models.items():
        height = _height(bars)
        if parts[-1] and room < height:
            parts.append([])
            room = PART_HEIGHT
        parts[-1].append(model)
        room -= height
    drawn = []
    with matplotlib.rc_context(STYLE):
        for number, part in enumerate(parts, 1):
            heights = [_height(models[model]) for model in part]
            figure = Figure((FIGURE_WIDTH, sum(heights) + 0.35), layout="constrained")
            grid = figure.subplots(len(part), 1, squeeze=False, height_ratios=heights)
            for (axes,), model in zip(grid, part, strict=True):
                _draw_bars(axes, study, models[model])
                axes.set_title(cut(model, 60))
            handles, names = grid[0][0].get_legend_handles_labels()
            figure.legend(handles, names, loc="outside lower left", ncols=len(PHASES))
            drawn.append(svg_part(figure, f"{study.name}-phases-{number}", alt))
    return drawn


def _height(bars: list[dict]) -> float:
    return len(bars) * 0.3 + 0.75


def _draw_bars(axes: Any, study: Study, bars: list[dict]) -> None:
    ends = [0.0] * len(bars)
    shares = [mean(study, group) for group in bars]
    for name, colour in zip(PHASES, COLOURS, strict=False):
        widths = [each[name] for each in shares]
        axes.barh(range(len(bars)), widths, left=ends, height=0.6, color=colour, label=name)
        ends = [end + width for end, width in zip(ends, widths, strict=True)]
    places = decimals(ends, "s")
    for place, end in enumerate(ends):
        axes.text(end + max(ends) * 0.015, place, fixed(end, places), va="center", fontsize=7.5)
    axes.set_yticks(range(len(bars)), [bar_label(study, group) for group in bars])
    axes.set_ylim(len(bars) - 0.4, -0.6)
    axes.set_xlim(0, max(ends) * 1.16)
    axes.grid(visible=True, axis="x", color=INK)
    axes.set_xlabel("Seconds of an epoch")
