"""tables.py: statistics, published values, verdicts, the CSV and the closing table."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import constructed
from constructed import table
from parbench.errors import ParbenchError
from parbench.measure.metrics import METRICS
from parbench.verdicts import words
from parbench.verdicts.published import PublishedSource
from parbench.verdicts.sequential import k
from workspace import ROOT

A100 = {"fingerprint": "aaaaaaaaaaaa", "accelerators": [{"name": "NVIDIA A100-SXM4-80GB"}] * 2}
CPU = {"fingerprint": "cccccccccccc", "accelerators": []}
EAGER = {"model": "resnet50", "strategy": "eager"}
CIFAR10 = {"name": "cifar10", "train_samples": None, "test_samples": None}


def make_hardware(device="cuda", devices=1, nodes=1, gpu_model="A100", name=None) -> dict:
    gpu_model = gpu_model if device == "cuda" else None
    return constructed.make_hardware(device, devices, nodes, gpu_model, name)


def make_group(name="eager", seeds=(0, 1, 2, 3), **changes) -> dict:
    strategy, cells = name.split("-")[0], [f"resnet50.{name}.s{seed}" for seed in seeds]
    cell = constructed.make_cell("", "resnet50", strategy, make_hardware(), dataset=CIFAR10)
    names = {"id": f"resnet50.{name}", "variant": name, "seeds": list(seeds), "cells": cells}
    return constructed.plan_entry(cell, **names | changes)


def make_plan(*groups, **study) -> dict:
    usual = constructed.usual_study("paper", dataset="cifar10", tables=[], assumed={})
    return {
        "schema_version": 1,
        "study": usual | study,
        "stack": "current",
        "deployment": "host",
        "groups": list(groups),
        "together": [],
        "arguments": ["--configfile", "mine.yaml", "--config", "studies=[paper]"],
    }


def make_run(group: dict, cell: str, machine=A100, status="ok", **changes) -> dict:
    """metrics.json of one seed of a group; ``changes`` replace its top-level values."""
    content = constructed.make_cell(
        cell,
        group["model"],
        group["strategy"],
        group["hardware"],
        options=group["options"],
        seed=group["seeds"][group["cells"].index(cell)],
        dataset=group["dataset"],
        training=group["training"],
    )
    return constructed.make_metrics(content, status, machine=machine, **changes)


def make_runs(group: dict, machine=A100, **values) -> dict:
    """One run a seed; ``values`` maps a metric to its list over the seeds."""
    return {
        cell: make_run(group, cell, machine, **{key: each[i] for key, each in values.items()})
        for i, cell in enumerate(group["cells"])
    }


def make_published(*rows: dict) -> pd.DataFrame:
    base = {"study": "paper", "document": "paper.txt", "table": "Table 1", **EAGER, "options": None}
    base |= {"hardware": "A100", "nodes": 1, "devices_per_node": 1, "batch_size": None}
    base |= {"precision": None, "metric": "test_accuracy", "value": 0.9, "unit": "fraction"}
    base |= {"note": None}
    return pd.DataFrame([{**base, **row} for row in rows], columns=list(base))


NOTHING = make_published()


def row(frame: pd.DataFrame, metric: str, group: str | None = None) -> pd.Series:
    rows = frame[frame["metric"] == metric]
    if group:
        rows = rows[rows["group"] == f"resnet50.{group}"]
    assert len(rows) == 1
    return rows.iloc[0]


def one_group(values=NOTHING, study=None, machine=A100, runs=None, **changes) -> pd.DataFrame:
    """The table of a study with one group; ``values``: published, ``runs``: metric -> values."""
    group = make_group(**changes)
    metrics = {} if group["not_run"] else make_runs(group, machine, **(runs or {}))
    return table(make_plan(group, **(study or {})), metrics, values)


def two_groups(
    base=None, other=None, metrics=None, published=NOTHING, turns=(), **study
) -> pd.DataFrame:
    """Eager and ddp, which is measured against it: so many times as fast, by restart."""
    base, other = base or make_group(), other or make_group("ddp", baseline="resnet50.eager")
    if metrics is None:
        metrics = make_runs(base) | make_runs(other)
    plan = make_plan(base, other, **study)
    metrics = metrics | take_turns(plan, base, other, turns)
    return table(plan, metrics, published)


def take_turns(plan: dict, base: dict, other: dict, ratios: Sequence[float]) -> dict:
    """Put a pair of two groups into the plan, and return its metrics.json by restart."""
    sides = [make_run(each, each["cells"][0])["cell"] for each in (other, base)]
    cells = {f"pair.r{n}": ratio for n, ratio in enumerate(ratios)}
    entry = {"model": "resnet50", "variant": other["variant"], "baseline": base["variant"]}
    entry |= {"cells": list(cells), "inference": False, "not_run": None}
    plan["pairs"] = [entry] if ratios else []
    return {
        cell: constructed.make_pair_metrics(
            constructed.make_pair(cell, sides, n), seconds=(1.0, ratio)
        )
        for n, (cell, ratio) in enumerate(cells.items())
    }


# ---------------------------------------------------------------- statistics


def test_numbers_over_seeds():
    times = [10.0, 11.0, 12.0, 15.0]
    found = row(one_group(runs={"train_seconds": times}), "train_seconds")
    assert found[["n_seeds", "mean", "min", "max"]].tolist() == [4, 12, 10, 15]
    assert found["std"] == pytest.approx(np.std(times, ddof=1))
    # The interval is that of every verdict.
    assert found["ci_high"] == pytest.approx(12 + k(4) * found["std"] / 2)
    few = row(one_group(seeds=range(3), runs={"train_seconds": times[:3]}), "train_seconds")
    assert few[["ci_low", "ci_high"]].isna().all()


# ---------------------------------------------------------------- rows


def test_a_run_is_its_mean_epoch_its_largest_process_and_its_fullest_accelerator():
    frame = one_group()
    assert row(frame, "epoch_seconds")["mean"] == 25
    assert row(frame, "peak_memory_process_mib")["mean"] == 801
    assert row(frame, "peak_memory_device_mib")["mean"] == 513
    on_cpu = one_group(hardware=make_hardware("cpu", 2), machine=CPU)
    assert "peak_memory_device_mib" not in set(on_cpu["metric"])


def test_failed_runs_are_counted_and_not_averaged():
    group = make_group(seeds=range(4))
    metrics = make_runs(group, test_accuracy=[0.8, 0.9, 0.1, 0.1])
    for seed, status in ((2, "diverged"), (3, "out_of_memory")):
        cell = group["cells"][seed]
        metrics[cell] = make_run(group, cell, status=status)
    found = row(table(make_plan(group), metrics), "test_accuracy")
    assert found["status"] == "out of memory 1 of 4, diverged 1 of 4"
    assert found[["n_seeds", "mean"]].tolist() == pytest.approx([2, 0.85])
    assert "seed 2 diverged (at step 3); seed 3 out of memory" in found["reason"]


# ---------------------------------------------------------------- beside the baseline


TURNS = (1.9, 2.0, 2.0, 2.1)


def test_a_speedup_is_that_of_pairs_whatever_whole_trainings_took():
    found = row(two_groups(turns=TURNS), "speedup")
    assert found[["n_seeds", "of", "min", "max"]].tolist() == [4, "restarts", 1.9, 2.1]
    assert found["mean"] == pytest.approx(np.prod(TURNS) ** 0.25)
    assert found["ci_low"] < 1.9 < 2.1 < found["ci_high"]
    assert "speedup" not in set(two_groups()["metric"])


def test_ratios_of_pairs_that_follow_from_the_speedup():
    names = ["throughput_ratio", "parallel_efficiency"]
    shown = [{"title": "T", "variants": ["ddp"], "metrics": names}]
    longer = {"training": constructed.TRAINING | {"epochs": 8}}
    other = make_group("ddp", baseline="resnet50.eager", hardware=make_hardware(devices=2))
    frame = two_groups(other=other | longer, turns=[1.0] * 4, tables=shown)
    found = [row(frame, name)["mean"] for name in ["speedup", *names]]
    # Twice the epochs in the time; of equal seconds a sample, one side has twice as many.
    assert found == pytest.approx([0.5, 1.0, 0.25])
    longer["training"]["steps"] = 8  # no whole trainings are compared
    frame = two_groups(other=other | longer, turns=[1.0] * 4, tables=shown)
    assert [row(frame, name)["mean"] for name in ["speedup", *names]] == [1.0, 1.0, 0.5]


@pytest.mark.parametrize(
    ("scores", "reading"),
    [
        ([0.9, 0.901, 0.899, 0.9], "equal within 0.01"),
        ([0.93, 0.931, 0.929, 0.93], "higher than the baseline's"),
        ([0.8, 0.801, 0.799, 0.8], "lower than the baseline's"),
        ([0.9, 0.92, 0.9, 0.93], r"undecided: some \d+ minutes more \(\d+ seeds\) if"),
        ([0.9, 0.9, 0.9], "undecided: 3 seeds, and 4 are the fewest"),
    ],
)
def test_accuracies_are_compared_by_their_difference_seed_by_seed(scores, reading):
    base = make_group()
    other = make_group("ddp", seeds=range(len(scores)), baseline=base["id"])
    metrics = make_runs(base) | make_runs(other, test_accuracy=scores)
    found = row(two_groups(base, other, metrics), "accuracy_difference")
    assert found["mean"] == pytest.approx(np.mean(scores) - 0.9)
    assert re.search(reading, found["reason"])


@pytest.mark.parametrize(
    ("part", "changes", "reason"),
    [
        ("training", {"global_batch": 32}, "unequal work: global_batch 32 here, 64 for"),
        ("dataset", {"test_samples": 9}, "unequal work: test_samples 9 here, all for"),
        ("training", {"mode": "deterministic"}, "mode deterministic here, performance for"),
    ],
)
def test_no_difference_between_unequal_runs(part, changes, reason):
    other = make_group("ddp", baseline="resnet50.eager")
    other[part] = other[part] | changes
    found = row(two_groups(other=other), "accuracy_difference")
    assert found["n_seeds"] == 0
    assert found["reason"].count(reason) == 1  # once, not once a seed


def test_a_difference_says_when_the_baseline_has_no_good_run_of_a_seed():
    base, other = make_group(seeds=[0, 1]), make_group("ddp", baseline="resnet50.eager")
    metrics = make_runs(base) | make_runs(other)
    metrics[base["cells"][1]] = make_run(base, base["cells"][1], status="diverged")
    found = row(two_groups(base, other, metrics), "accuracy_difference")
    assert found["n_seeds"] == 1
    told = "the baseline's seed 1: diverged; the baseline has no seed 2"
    assert found["reason"].startswith(told)
    base = make_group(not_run="needs 1x A100")
    found = row(two_groups(base, other, make_runs(other)), "accuracy_difference")
    assert found["reason"] == "the baseline resnet50.eager was not run"


# ---------------------------------------------------------------- published values


def published_of(frame: pd.DataFrame, metric="test_accuracy", **selection) -> float:
    return row(one_group(frame, published={**EAGER, **selection}), metric)["published"]


def test_a_speedup_is_of_two_published_times_or_as_printed():
    time = {"metric": "train_seconds", "unit": "s", "value": 30.0}
    ddp = {"strategy": "ddp", "value": 20.0}
    printed = {"metric": "speedup", "value": 3.0, "unit": "ratio", "strategy": "ddp"}
    groups = (
        make_group(published=EAGER),
        make_group("ddp", baseline="resnet50.eager", published={**EAGER, "strategy": "ddp"}),
    )

    def found(*rows):
        return row(two_groups(*groups, published=make_published(*rows), turns=TURNS), "speedup")

    assert found(time, time | ddp, printed)["published"] == 1.5
    assert found(time | ddp, printed)["published"] == 3.0
    told = found(time, time | ddp | {"batch_size": 64})
    assert "published times are of a different batch or precision" in told["reason"]
    told = found(time, time | ddp | {"hardware": "A30"})
    assert "published times are of different hardware: A100, A30" in told["reason"]


def test_two_values_are_refused_unless_they_are_one_or_the_selection_is_narrowed():
    again = {"table": "Table 1, again", "note": "printed twice"}
    found = row(one_group(make_published({}, again), published=EAGER), "test_accuracy")
    assert found["published_table"] == "Table 1, Table 1, again"
    frame = make_published({}, {"value": 0.8, "table": "Table 7"})
    with pytest.raises(ParbenchError) as caught:
        published_of(frame)
    message = str(caught.value)
    assert "line 2 (paper.txt, Table 1: 0.9 fraction)" in message
    assert message.endswith(
        "line 3 (paper.txt, Table 7: 0.8 fraction); narrow the selection by table"
    )
    assert published_of(frame, table="Table 7") == 0.8
    with pytest.raises(ParbenchError, match="narrow the selection by hardware"):
        published_of(make_published({}, {"hardware": "A30"}))


def test_a_selection_spells_numbers_in_several_ways_and_means_something():
    frame = make_published({"batch_size": 16.0}, {"batch_size": 64.0, "value": 0.5})
    for batch in (16, 16.0, "16"):
        assert published_of(frame, batch_size=batch, options="") == 0.9
    assert math.isnan(published_of(frame, batch_size=8))
    with pytest.raises(ParbenchError, match=r"resnet50.eager: published: 'modle' is no column"):
        published_of(frame, modle="x")
    with pytest.raises(ParbenchError, match=r"test_accuracy is in 'percent'; write it in 'frac"):
        published_of(make_published({"unit": "percent"}))


def test_a_broken_published_file_is_named(tmp_path):
    path = tmp_path / "published.csv"
    with pytest.raises(ParbenchError, match=r"published.csv: cannot be read as CSV .*No such file"):
        PublishedSource.read("a", [path])
    make_published({}, {"value": "ninety"}).to_csv(path, index=False)
    says = "published.csv: line 3: value: value ninety should be a valid number"
    with pytest.raises(ParbenchError, match=says):
        PublishedSource.read("a", [path])


def test_a_source_is_looked_up_in_every_file_and_stands_in_one(tmp_path):
    paths = [tmp_path / name for name in ("a.csv", "b.csv")]
    make_published({}, {"study": "other"}).to_csv(paths[0], index=False)
    make_published({"study": "fifth", "value": 0.7}).to_csv(paths[1], index=False)
    assert [row.value for row in PublishedSource.read("fifth", paths).rows] == [0.7]
    with pytest.raises(ParbenchError, match="published: 'papier': no row of .*a.csv, .*b.csv has"):
        PublishedSource.read("papier", paths)
    make_published({"study": "fifth"}, {}).to_csv(paths[1], index=False)
    with pytest.raises(ParbenchError, match="'paper' has rows in .*a.csv and in .*b.csv; keep"):
        PublishedSource.read("paper", paths)


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("metric", "values", "published", "verdict"),
    [
        # Half the interval is 0.0022 (or 0.022), the tolerance 0.01.
        ("test_accuracy", [0.899, 0.9, 0.9, 0.901], 0.895, words.REPRODUCED),
        ("test_accuracy", [0.899, 0.9, 0.9, 0.901], 0.92, words.NOT_REPRODUCED),
        ("test_accuracy", [0.899, 0.9, 0.9, 0.901], 0.88, words.SUSPICIOUS),
        ("test_accuracy", [0.899, 0.9, 0.9, 0.901], 0.909, words.UNDECIDED),
        ("test_accuracy", [0.89, 0.9, 0.9, 0.91], 0.9, words.UNDECIDED),
        ("test_accuracy", [0.89, 0.9, 0.9, 0.91], 0.94, words.NOT_REPRODUCED),
        # Of times the tolerance is relative, and less is better.
        ("train_seconds", [99.9, 100.0, 100.0, 100.1], 97, words.REPRODUCED),
        ("train_seconds", [99.9, 100.0, 100.0, 100.1], 90.0, words.NOT_REPRODUCED),
        ("train_seconds", [99.9, 100.0, 100.0, 100.1], 120.0, words.SUSPICIOUS),
        ("test_accuracy", [0.8, 0.9], 0.9, words.UNDECIDED),
    ],
)
def test_a_verdict(metric, values, published, verdict):
    frame = make_published({"metric": metric, "value": published, "unit": METRICS[metric].unit})
    seeds = range(len(values))
    found = row(one_group(frame, published=EAGER, seeds=seeds, runs={metric: values}), metric)
    assert found["verdict"] == verdict
    assert found["ratio"] == pytest.approx(np.mean(values) / published)
    if len(values) < 4:
        assert found["reason"] == "2 seeds, and 4 are the fewest (0.8 to 0.9)"
    else:
        assert f"differs by {np.mean(values) - published:+.2g} (tolerance" in found["reason"]
        takes = re.search("minutes more|too close to call", found["reason"])
        assert bool(takes) == (verdict == words.UNDECIDED)


@pytest.mark.parametrize(("images", "verdict"), [(1000, words.NOT_REPRODUCED), (100, "undecided")])
def test_three_test_images_are_never_a_difference(images, verdict):
    """Two points are, of 1,000 images; of 100 they are two images."""
    values = {"test_accuracy": [0.9] * 4, "confusion": [[[images]]] * 4}
    frame = one_group(make_published({"value": 0.92}), published=EAGER, runs=values)
    assert row(frame, "test_accuracy")["verdict"] == verdict


TIME = make_published({}, {"metric": "train_seconds", "value": 100.0, "unit": "s"})
DETERMINISTIC = constructed.TRAINING | {"mode": "deterministic"}
A1000 = {**A100, "accelerators": [{"name": "NVIDIA A1000"}]}


@pytest.mark.parametrize(
    ("changes", "study", "machine", "reason"),
    [
        ({}, {"assumed": {"epochs": 50, "batch": 8}}, A100, "assumed: epochs, batch"),
        ({}, {"override": {"settings": {"epochs": 1}}}, A100, "scaled: epochs 1 by config.yaml"),
        ({"hardware": make_hardware(devices=2)}, {}, A100, "here on 2x NVIDIA A100-SXM4-80GB"),
        ({"hardware": make_hardware(gpu_model=None)}, {}, A1000, "here on 1x NVIDIA A1000"),
        ({"hardware": make_hardware(gpu_model=None)}, {}, CPU, "here on 1x unknown GPU"),
        ({}, {"source_dataset": "cifar100"}, A100, "the dataset cifar100, here on cifar10"),
        ({"comparable": {"train_seconds": "it waits"}}, {}, A100, "it waits"),
        ({"differs": "it repeats"}, {}, A100, "differs from the source: it repeats"),
        ({"training": DETERMINISTIC}, {}, A100, "deterministic mode is not for timing"),
    ],
)
def test_times_that_are_not_comparable(changes, study, machine, reason):
    frame = one_group(TIME, study, machine, published=EAGER, **changes)
    found = row(frame, "train_seconds")
    assert found["verdict"] == words.NOT_COMPARABLE
    assert reason in found["reason"]
    assert found["ratio"] == 1  # shown, not judged
    # What is no matter of clocks or devices is judged, unless the work is other work.
    other = {"override", "source_dataset", "differs"} & {*changes, *study}
    accuracy = row(frame, "test_accuracy")["verdict"]
    assert accuracy == (words.NOT_COMPARABLE if other else words.REPRODUCED)


WORKER = "torchgpipe gives all CPU devices one worker: micro-batch cost, not scaling"


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({}, words.BELOW, "published on 2x A100, here on 2 CPU cores"),
        ({"note": "a note"}, words.BELOW, "; a note"),
        ({"hardware": make_hardware("cpu", 4)}, words.NOT_COMPARABLE, "here on 4 CPU cores"),
        ({"comparable": {"speedup": WORKER}, "note": WORKER}, words.NOT_COMPARABLE, WORKER),
        ({"comparable": {"speedup": WORKER}, "published": None}, words.NO_PUBLISHED_VALUE, WORKER),
        ({"differs": "it repeats", "published": None}, words.NO_PUBLISHED_VALUE, ""),
    ],
)
def test_a_speedup_lies_somewhere_also_on_other_hardware_with_as_many_devices(
    changes, verdict, reason
):
    """Published 1.5 on 2x A100; nearly 2 on two cores."""
    base = make_group(hardware=make_hardware("cpu"), published=EAGER)
    usual = {"baseline": base["id"], "hardware": make_hardware("cpu", 2)}
    usual |= {"published": {**EAGER, "strategy": "gpipe"}}
    other = make_group("gpipe", **usual | changes)
    time = {"metric": "train_seconds", "unit": "s", "value": 30.0}
    piped = {"value": 20.0, "strategy": "gpipe", "devices_per_node": 2}
    rows, metrics = make_published(time, time | piped), make_runs(base, CPU) | make_runs(other, CPU)
    found = row(two_groups(base, other, metrics, rows, (1.94, 1.95, 1.95, 1.96)), "speedup")
    assert found["verdict"] == verdict
    assert reason in found["reason"]
    assert found["reason"].count(WORKER) <= 1


# ---------------------------------------------------------------- programs


@pytest.fixture
def study(tmp_path) -> Path:
    """A work folder whose name has blanks, with a plan, metrics and published values."""
    folder = tmp_path / "work folder"
    base = make_group(published=EAGER, hardware=make_hardware("cpu", 1, name="cpu1"))
    ddp = make_group("ddp", baseline=base["id"], hardware=make_hardware("cpu", 2, name="cpu2"))
    gpipe = make_group("gpipe", baseline=base["id"], comparable={"speedup": WORKER})
    needs = "needs 2x \x1b[2J\x1b]0;x\x07A100"
    absent = make_group("horovod", baseline=base["id"], not_run=needs)
    metrics = make_runs(base, CPU, train_seconds=[100.5, 101.0, 101.5, 102.0])
    metrics |= make_runs(ddp, CPU, test_accuracy=[0.8, 0.9, 1.0, 0.9])
    metrics |= make_runs(gpipe, CPU)
    metrics[gpipe["cells"][0]] = make_run(gpipe, gpipe["cells"][0], CPU, status="diverged")
    plan = make_plan(base, ddp, gpipe, absent)
    metrics |= take_turns(plan, base, gpipe, TURNS)
    constructed.write_json(folder / "plan.json", plan)
    for cell, run in metrics.items():
        constructed.write_json(folder / "cells" / cell / "metrics.json", run)
    make_published({"value": 0.5}).to_csv(folder / "published.csv", index=False)
    return folder


def run_program(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "scripts" / name), *arguments]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=ascii_only)


FILES = "--plan=plan.json --cells=cells --published published.csv --out=results/tables/paper.csv"


def test_the_end_of_a_run_says_it_in_short(study):
    run_program("tables.py", study, *FILES.split()).check_returncode()
    constructed.write_json(study / "results/report.json", {"studies": [{"name": "paper"}]})
    lines = run_program("closing.py", study).stdout.splitlines()
    assert lines[0] == "paper (stack current, deployment host)"
    eager, ddp, gpipe, horovod = lines[3:7]
    for told in ("90.0 ? 0.0 %", "101.2 ? 0.6 s", "better than published (suspicious): a"):
        assert told in eager
    for told in ("90.0 ? 8.2 %", "100.0 ? 0.0 s"):
        assert told in ddp
    assert "2.00 ? 0.08*" in gpipe
    assert "diverged 1 of 4; no published value" in gpipe
    assert horovod.endswith("not run: needs 2x A100")
    assert lines[7].startswith("* seed 0 diverged (at step 3); torchgpipe gives all")
    (study / "results/tables/paper.csv").write_text("a,b\n1,2\n")
    done = run_program("closing.py", study)
    assert "paper.csv: not a table of parbench (KeyError('study')); delete it" in done.stderr


def test_program_fails_in_one_sentence(study):
    (study / "cells" / "resnet50.eager.s0" / "metrics.json").unlink()
    done = run_program("tables.py", study, *FILES.split())
    assert done.returncode == 2
    assert done.stderr == (
        "error: cells/resnet50.eager.s0/metrics.json: no such file; make it with: snakemake "
        "cells/resnet50.eager.s0/metrics.json --configfile mine.yaml --config 'studies=[paper]'\n"
    )
    assert not (study / "results").exists()


def test_every_verdict_and_metric_is_documented():
    text = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    for name in words.VERDICTS:
        assert f"| {name} |" in text
    for metric in METRICS.values():
        if metric.clocked:
            assert f"`{metric.name}`" in text
