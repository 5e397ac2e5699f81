"""Scaling: speedups and serial fractions; curves over batch size, image size and samples."""

from __future__ import annotations

import math
from html import unescape

import pytest

import constructed
from constructed import CPU1, CPU2, Group
from parbench.reporting.phase_section import PHASES
from parbench.reporting.scaling import gustafson, karp_flatt
from shown import collect, pdf_text, render, squeezed

CPU4, CPU8 = (constructed.make_hardware(devices=n) for n in (4, 8))


def test_the_serial_fraction_is_the_one_that_laws_put_in():
    for devices in (2, 4, 8):
        for fraction in (0.0, 0.1, 0.5, 1.0):
            amdahl = 1 / (fraction + (1 - fraction) / devices)
            assert karp_flatt(amdahl, devices) == pytest.approx(fraction)
            assert gustafson(devices + (1 - devices) * fraction, devices) == pytest.approx(fraction)


def few(variant: str, hardware: dict, **more) -> Group:
    """Return a group that trains a few steps, to measure speed only."""
    settings = {"steps": 8, **more.pop("training", {})}
    return Group("vit", variant, hardware, training=settings, epochs=4, **more)


def turns(gain: float) -> tuple[float, ...]:
    """Return the ratios of four restarts; their geometric mean is ``gain``."""
    return tuple(gain * math.exp(step) for step in (-0.02, -0.01, 0.01, 0.02))


GROUPS = [
    few("eager", CPU1),
    few("ddp-2", CPU2, turns=turns(1.6)),
    few("ddp-4", CPU4, turns=turns(2.0)),
    few("ddp-8", CPU8, not_run="needs 8 cores", turns=turns(1.0)),
    few("ddp-2-each", CPU2, turns=turns(1.9), training={"global_batch": 128}),
    few("ddp-4-each", CPU4, turns=turns(3.4), training={"global_batch": 256, "steps": 4}),
    few("eager-128", CPU1, seconds=11.0, training={"global_batch": 128, "min_tail": 8}),
    few("eager-256", CPU1, seconds=10.5, training={"global_batch": 256}),
    few("eager-512", CPU1, status="out_of_memory", training={"global_batch": 512, "steps": 2}),
    few("ddp-2-phases", CPU2, phases=[dict.fromkeys(PHASES, 1.0)] * 2),
    few("eager-large", CPU1, seconds=48.0, training={"image_size": 64}),
    *(
        Group("vit", f"eager-of-{n}", CPU1, n / 100, 0.5 + n / 10_000, train_samples=n)
        for n in (256, 512, 1024, 2048)
    ),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a constructed study's section of report.json, its HTML and its PDF."""
    folder = tmp_path_factory.mktemp("scaling")
    rows = [{"title": "Times", "variants": ["eager"], "metrics": ["samples_per_second"]}]
    study = constructed.usual_study(tables=rows, published=None)
    data = collect(constructed.write_study(folder, study, GROUPS))
    return data["studies"][0], *render(data)


def shown(made, title: str) -> tuple[str, str]:
    """Return a figure's alternative text, which the HTML must contain, and its SVG."""
    (part,) = next(f["parts"] for f in made[0]["figures"] if f["title"].startswith(title))
    assert part["alt"] in unescape(made[1])
    return part["alt"], part["svg"]


def test_gains_stand_beside_what_does_not_scale(made):
    words, svg = shown(made, "What do more devices bring")
    for told in (
        "ddp, batch 64 in all: at 2 1.60 (1.52 to 1.68), at 4 2.00",
        "Serial fraction, strong: ddp, batch 64 in all: at 2 0.25 (0.19 to 0.31), at 4 0.33",
        "Serial fraction, weak: ddp, batch 64 each: at 2 0.10 (0.01 to 0.19), at 4 0.20",
    ):
        assert told in words
    assert "at 4 3.40" in words.partition("Weak")[2]
    assert "Strong scaling: speedup" in svg
    assert [f["title"].split("?")[0] for f in made[0]["figures"]][-2:] == [
        "What do more devices bring, and what does not scale",
        "Why not twice as fast",  # the figure of phases is next to it
    ]
    table = next(t for t in made[0]["tables"] if t["title"] == "Compared in turns")
    cells = {row[1]["text"]: [cell["text"] for cell in row] for row in table["rows"]}
    assert "0.25 (0.19 to 0.31)" in cells["ddp-2"]
    assert cells["ddp-8"][3:] == ["needs 8 cores"]


def test_a_batch_that_memory_does_not_hold_is_marked_in_its_place(made):
    words, svg = shown(made, "What does a larger batch bring")
    assert "at 128 523 (515 to 530), at 256 548 (540 to 555), at 512 out of memory" in words
    assert "Peak memory, process" in words
    assert "out of memory" in svg
    assert "ddp" not in words  # several devices have their own figure


@pytest.mark.parametrize(
    ("title", "points"),
    [
        ("What do larger images cost", "at 32 479 (472 to 486), at 64 120 (118 to 121)"),
        ("What do more training samples bring", "at 256 2.56 (2.52 to 2.60), at 512 5.12"),
        ("What do more training samples bring", "at 256 0.5256 (0.5228 to 0.5284)"),
    ],
)
def test_curves_are_drawn_over_what_varies(made, title, points):
    assert points in shown(made, title)[0]


def test_the_pdf_has_the_figures(made):
    assert squeezed("Serial fraction") in squeezed(pdf_text(made[2]))
