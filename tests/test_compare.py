"""compare.py: two files of evidence side by side, on made-up numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import constructed
from constructed import A100X2, CPU1, CPU2, Group
from parbench.errors import ParbenchError
from parbench.verdicts import certificate, compare, evidence

EAGER = Group("resnet18", "eager", CPU1)
DDP = Group("resnet18", "ddp", CPU2, 7.0)


def write(folder: Path, groups, change=lambda metrics: metrics, name="constructed", **plan) -> Path:
    """Write evidence of groups; ``change`` alters each metrics.json, ``plan`` the plan."""
    constructed.write_study(folder, constructed.usual_study(name), groups, change)
    path = folder / f"results/plan/{name}.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | plan))
    certificate.write(folder / "results/certificates/host.json", "host", {}, [])
    return evidence.write(evidence.gather(name, folder / "results"), folder)


def changed(seconds=1.0, accuracy=0.0, weights=None, shift=(0, 0, 0, 0)):
    """Return a change to another machine's results; ``shift`` is added to accuracies by seed."""

    def change(metrics):
        if metrics["status"] == "ok":
            metrics["train_seconds"] *= seconds
            metrics["test_accuracy"] += accuracy + shift[metrics["cell"]["seed"]]
            metrics["weights_sha256"] = weights or metrics["weights_sha256"]
        metrics["environment"]["machine"] |= {"cpu": "Other CPU"}
        return metrics

    return change


@pytest.fixture
def first(tmp_path):
    return write(tmp_path / "a", [EAGER, DDP])


def said(capsys, a: Path, b: Path) -> list[str]:
    compare.main([str(a), str(b)])
    return capsys.readouterr().out.splitlines()


def line(lines: list[str], variant: str) -> str:
    return next(each for each in lines if each.startswith(f"resnet18  {variant}"))


def test_the_same_cells_are_compared_seed_by_seed(tmp_path, first, capsys):
    second = write(tmp_path / "b", [EAGER, DDP], changed(0.5, 0.02, weights="f" * 64))
    lines = said(capsys, first, second)
    assert lines[0] == "A: constructed, constructed-x2, 2030-01-04, stack current, deployment host"
    for told in ("93.00 ± 0.28 %", "+2.00 ± 0.00", "12.00 ± 0.17 s", "2.00 ± 0.00  B's is higher"):
        assert told in line(lines, "eager")
    assert "7.00 ± 0.10 s" in line(lines, "ddp")
    assert lines[-1] == (
        "8 cells are the same on both: 0 learned the same weights to the last bit."
    )
    assert "0.50 ± 0.00  A's is higher" in line(said(capsys, second, first), "eager")


@pytest.mark.parametrize(
    ("groups", "change", "reading"),
    [
        ([EAGER], changed(), "equal within 0.01"),
        ([EAGER], changed(shift=(0, 0.01, 0, 0.03)), "if the estimate stays"),
        (
            [Group("resnet18", "eager", CPU1, seeds=(1, 2))],
            changed(2.0),
            "23.87 to 24.13 s  0.50  undecided: 2 seeds, and 4 are the fewest",
        ),
        (
            [Group("resnet18", "eager", CPU1, status="diverged", reason="loss was NaN")],
            changed(),
            "diverged 4 of 4 undecided: 0 seeds, and 4 are the fewest",
        ),
        (
            [Group("resnet18", "eager", CPU1, not_run="needs 2 cores"), DDP],
            changed(),
            "not run undecided: 0 seeds, and 4 are the fewest",
        ),
        ([Group("resnet18", "eager", CPU1, epochs=8)], changed(), "not judged: other work"),
    ],
)
def test_what_the_accuracies_say(tmp_path, first, capsys, groups, change, reading):
    second = write(tmp_path / "b", groups, change)
    assert " ".join(line(said(capsys, first, second), "eager").split()).endswith(
        " ".join(reading.split())
    )


def test_what_differs_and_what_is_left_is_said(tmp_path, first, capsys):
    groups = [Group("resnet18", "ddp", A100X2, 0.7), Group("swin", "eager", CPU1)]
    lines = said(capsys, first, write(tmp_path / "b", groups, changed(), stack="paper"))
    assert "ddp [1]" in line(lines, "ddp")
    assert lines[-3:] == [
        "[1] stack current against paper; hardware 2 CPU cores against 2x A100",
        "Only in A: resnet18 eager.",
        "Only in B: swin eager.",
    ]


def test_files_that_cannot_be_compared_are_refused_in_a_sentence(tmp_path, first):
    other = write(tmp_path / "b", [Group("swin", "eager", CPU1)], name="another")
    with pytest.raises(ParbenchError, match=r"no variant of a model .*constructed and another"):
        compare.main([str(first), str(other)])
    with pytest.raises(ParbenchError, match=r"nothing.json: no such file"):
        compare.main([str(first), str(tmp_path / "nothing.json")])
