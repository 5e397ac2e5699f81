"""How fast is it in larger batches? Throughput of training and of inference, a line a hardware."""

from __future__ import annotations

import math
from typing import Any

from reporting.figures import COLOURS, FIGURE_WIDTH, PART_HEIGHT, STYLE, figure_json
from reporting.study import Study
from reporting.svg import svg_part
from reporting.text import cut, hardware_text, listed

# What is drawn against which setting, left and right.
SIDES = (
    ("samples_per_second", "global_batch"),
    ("inference_samples_per_second", "evaluation_batch"),
)
Lines = dict[str, list[tuple[dict, dict]]]  # by hardware: a group and its row, by rising batch


def batches_figure(study: Study) -> dict | None:
    """A row a model that was measured, by `steps`, in several batches; None where none was."""
    drawn = {
        model: sides
        for model in dict.fromkeys(group["model"] for group in study.groups)
        if any(sides := [_lines(study, model, *side) for side in SIDES])
    }
    if not drawn:
        return None
    answers = []
    for model, (training, _) in drawn.items():
        for name, line in training.items():
            first, last = line[0], line[-1]
            ends = [
                f"{study.show(row, 'mean', row['unit'])} at {group['training']['global_batch']}"
                for group, row in (first, last)
            ]
            answers.append(f"{model} on {name} {' and '.join(ends)}")
    caption = (
        "Samples per second against the batch, of a few steps each; lines are means over seeds. "
        f"Training: {listed(answers)}."
    )
    return figure_json(
        study, "batches", "How fast is it in larger batches?", caption, _draw(study, caption, drawn)
    )


def _lines(study: Study, model: str, metric: str, setting: str) -> Lines:
    """The hardware on which a model has a number of the metric for two batches or more."""
    found: Lines = {}
    for group in study.groups:
        training, row = group["training"], study.row(group, metric)
        plain = training["profile"] == "none" and training["steps"] is not None
        if group["model"] == model and plain and row is not None and row["mean"] is not None:
            found.setdefault(hardware_text(group["hardware"]), []).append((group, row))
    return {
        name: sorted(line, key=lambda point: point[0]["training"][setting])
        for name, line in found.items()
        if len({group["training"][setting] for group, _ in line}) > 1
    }


def _draw(study: Study, alt: str, drawn: dict[str, list[Lines]]) -> list[dict]:
    import matplotlib
    from matplotlib.figure import Figure

    names = dict.fromkeys(name for sides in drawn.values() for lines in sides for name in lines)
    palette = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}
    models, each = list(drawn), max(1, int(PART_HEIGHT / 1.9) - 1)
    parts = []
    with matplotlib.rc_context(STYLE | {"ytick.major.width": 0.6}):
        for number, start in enumerate(range(0, len(models), each), 1):
            part = models[start : start + each]
            height = 1.8 * len(part) + 0.2 * math.ceil(len(names) / 3) + 0.15
            figure = Figure((FIGURE_WIDTH, height), layout="constrained")
            grid = figure.subplots(len(part), 2, squeeze=False)
            handles: dict[str, Any] = {}
            for row, model in zip(grid, part, strict=True):
                for axes, lines, side in zip(row, drawn[model], SIDES, strict=True):
                    _draw_side(study, axes, lines, side[1], palette, handles)
                row[0].set_title(cut(f"{model}: training", 40))
                row[1].set_title("Inference")
            figure.legend(handles.values(), handles, loc="outside lower left", ncols=3)
            parts.append(svg_part(figure, f"{study.name}-batches-{number}", alt))
    return parts


def _draw_side(
    study: Study, axes: Any, lines: Lines, setting: str, palette: dict, handles: dict
) -> None:
    sizes: set[int] = set()
    for name, line in lines.items():
        batches = [group["training"][setting] for group, _ in line]
        means = [row["mean"] for _, row in line]
        spread = [study.whiskers(row, row["unit"]) for _, row in line]
        handles[name] = axes.errorbar(
            batches,
            means,
            yerr=list(zip(*spread, strict=True)),
            color=palette[name],
            **{"lw": 1.4, "marker": "o", "ms": 3, "capsize": 2.5},
        )
        sizes |= set(batches)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(sizes), [str(size) for size in sorted(sizes)])
    axes.minorticks_off()
    ends = [row["mean"] for line in lines.values() for _, row in line]
    if ends and max(ends) > 20 * min(ends):  # a GPU beside a core
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel("Batch")
    axes.set_ylabel("Samples per second")
    axes.grid(visible=True)
