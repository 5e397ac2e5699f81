"""How fast is it in larger batches? Throughput of training and of inference, a line a hardware."""

from __future__ import annotations

from typing import Any

from parbench.reporting.drawing import COLOURS, Bar, draw_pairs, figure_json
from parbench.reporting.study import Study
from parbench.reporting.text import cut, hardware_text, listed

# What is drawn against which setting, left and right.
SIDES = (
    ("samples_per_second", "global_batch"),
    ("inference_samples_per_second", "evaluation_batch"),
)
Lines = dict[str, list[Bar]]  # by hardware, by rising batch


def batches_figure(study: Study) -> dict | None:
    """A row a model that was measured, by `steps`, in several batches; None where none was."""
    drawn = {
        model: sides
        for model in dict.fromkeys(group.model for group in study.groups)
        if any(sides := [_lines(study, model, *side) for side in SIDES])
    }
    if not drawn:
        return None
    answers = []
    for model, (training, _) in drawn.items():
        for name, line in training.items():
            ends = [
                f"{study.show(row, 'mean', row.unit)} at {group.batch}"
                for group, row in (line[0], line[-1])
            ]
            answers.append(f"{model} on {name} {' and '.join(ends)}")
    caption = (
        "Samples per second against the batch, of a few steps each; lines are means over seeds. "
        f"Training: {listed(answers)}."
    )
    parts = _draw(study, caption, drawn)
    return figure_json(study, "batches", "How fast is it in larger batches?", caption, parts)


def _lines(study: Study, model: str, metric: str, setting: str) -> Lines:
    """The hardware on which a model has a number of the metric for two batches or more."""

    def batch(point: Bar) -> int:
        return getattr(point[0].training, setting)

    found: Lines = {}
    for group in study.groups:
        row = study.row(group, metric)
        plain = group.training.profile == "none" and group.training.steps is not None
        if group.model == model and plain and row is not None and row.mean is not None:
            found.setdefault(hardware_text(group.hardware), []).append((group, row))
    return {
        name: sorted(line, key=batch)
        for name, line in found.items()
        if len(set(map(batch, line))) > 1
    }


def _draw(study: Study, alt: str, drawn: dict[str, list[Lines]]) -> list[dict]:
    names = dict.fromkeys(name for sides in drawn.values() for lines in sides for name in lines)
    palette = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(names)}

    def draw(left: Any, right: Any, model: str, handles: dict) -> None:
        for axes, lines, (_, setting) in zip((left, right), drawn[model], SIDES, strict=True):
            _draw_side(study, axes, lines, setting, palette, handles)
        left.set_title(cut(f"{model}: training", 40))
        right.set_title("Inference")

    return draw_pairs(study, "batches", alt, list(drawn), lambda model: names, draw)


def _draw_side(
    study: Study, axes: Any, lines: Lines, setting: str, palette: dict, handles: dict
) -> None:
    sizes: set[int] = set()
    for name, line in lines.items():
        batches = [getattr(group.training, setting) for group, _ in line]
        means = [row.mean for _, row in line]
        spread = [study.whiskers(row, row.unit) for _, row in line]
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
    ends = [row.mean for line in lines.values() for _, row in line]
    if ends and max(ends) > 20 * min(ends):  # a GPU beside a core
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel("Batch")
    axes.set_ylabel("Samples per second")
