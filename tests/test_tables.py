"""tables.py: statistics, published values, verdicts, the CSV and the closing table."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import constructed
import tables
from errors import ParbenchError

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "studies" / "published" / "published_results.csv"

A100 = {"fingerprint": "aaaaaaaaaaaa", "accelerators": [{"name": "NVIDIA A100-SXM4-80GB"}] * 2}
CPU = {"fingerprint": "cccccccccccc", "accelerators": []}


def make_hardware(device="cuda", devices=1, nodes=1, gpu_model="A100", name=None) -> dict:
    gpu_model = gpu_model if device == "cuda" else None
    return constructed.make_hardware(device, devices, nodes, gpu_model, name)


def make_group(name="eager", seeds=(0, 1, 2), **changes) -> dict:
    group = {
        "id": f"resnet50.{name}",
        "model": "resnet50",
        "variant": name,
        "strategy": name.split("-")[0],
        "options": {},
        "hardware": make_hardware(),
        "dataset": {"name": "cifar10", "train_samples": None, "test_samples": None},
        "training": constructed.TRAINING,
        "seeds": list(seeds),
        "cells": [f"resnet50.{name}.s{seed}" for seed in seeds],
        "not_run": None,
        "baseline": None,
        "published": None,
        "scaled": [],
    }
    return {**group, **changes}


def make_plan(*groups, **study) -> dict:
    return {
        "schema_version": 1,
        "study": {
            "name": "paper",
            "title": "A paper",
            "description": "",
            "citation": None,
            "dataset": "cifar10",
            "settings": {},
            "assumed": {},
            "published": "paper",
            "tolerance": {"relative": 0.05, "accuracy": 0.01},
            "tables": [],
            **study,
        },
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
    base = {
        "study": "paper",
        "document": "paper.txt",
        "table": "Table 1",
        "model": "resnet50",
        "strategy": "eager",
        "options": None,
        "hardware": "A100",
        "nodes": 1,
        "devices_per_node": 1,
        "batch_size": None,
        "precision": None,
        "metric": "test_accuracy",
        "value": 0.9,
        "unit": "fraction",
        "note": None,
    }
    return pd.DataFrame([{**base, **row} for row in rows], columns=list(base))


NOTHING = make_published()
EAGER = {"model": "resnet50", "strategy": "eager"}


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
    return tables.table(make_plan(group, **(study or {})), metrics, values)


def two_groups(base=None, other=None, metrics=None, published=NOTHING, study=None) -> pd.DataFrame:
    """Eager and ddp, which is measured against it."""
    base, other = base or make_group(), other or make_group("ddp", baseline="resnet50.eager")
    if metrics is None:
        metrics = make_runs(base) | make_runs(other)
    return tables.table(make_plan(base, other, **(study or {})), metrics, published)


# --- statistics -----------------------------------------------------------------------------------

values_of = st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=20)


@given(values_of)
def test_summary_agrees_with_scipy(values):
    summary = tables.summarise(values)
    assert summary.n == len(values)
    assert summary.mean == pytest.approx(np.mean(values))
    assert summary.std == pytest.approx(np.std(values, ddof=1), abs=1e-6)
    assert (summary.min, summary.max) == (min(values), max(values))
    error = stats.sem(values)
    if error > 1e-9 * np.mean(values):
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), error)
        assert (summary.ci_low, summary.ci_high) == (
            pytest.approx(low, abs=1e-6),
            pytest.approx(high, abs=1e-6),
        )


@given(st.lists(st.floats(1e-3, 1e6), min_size=5, max_size=20, unique=True))
def test_trimmed_summary_agrees_with_scipy(values):
    summary = tables.summarise(values, trim=True)
    cut = (1.5 / len(values),) * 2  # scipy floors: one value a side
    assert summary.mean == pytest.approx(stats.trim_mean(values, cut[0]))
    assert summary.std == pytest.approx(np.std(values, ddof=1))
    winsorised = np.asarray(stats.mstats.winsorize(np.array(values), cut))
    error = winsorised.std(ddof=1) / ((1 - 2 / len(values)) * math.sqrt(len(values)))
    half = stats.t.ppf(0.975, len(values) - 3) * error
    assert summary.half_width == pytest.approx(half, abs=1e-6)


def test_mean_is_trimmed_from_five_seeds_on_and_only_for_clocked_metrics():
    times = [10.0, 11.0, 12.0, 13.0, 100.0]
    five = one_group(seeds=range(5), runs={"train_seconds": times, "test_accuracy": times})
    assert row(five, "train_seconds")["mean"] == 12
    assert row(five, "train_seconds")["max"] == 100
    assert row(five, "test_accuracy")["mean"] == np.mean(times)
    four = one_group(seeds=range(4), runs={"train_seconds": times[1:]})
    assert row(four, "train_seconds")["mean"] == np.mean(times[1:])


def test_one_seed_has_a_mean_and_no_spread():
    found = row(one_group(seeds=[0]), "test_accuracy")
    assert found["mean"] == 0.9
    assert found[["std", "ci_low", "ci_high"]].isna().all()


@given(st.lists(st.floats(1.0, 1000.0), min_size=2, max_size=8))
def test_noise_floor_is_symmetric_around_one(times):
    floor = tables.noise_floor(times)
    ratios = [a / b for i, a in enumerate(times) for j, b in enumerate(times) if i != j]
    assert floor.n == len(times)
    assert floor.mean == pytest.approx(np.mean(ratios))
    assert floor.std == pytest.approx(np.std(ratios), abs=1e-9)
    assert floor.min * floor.max == pytest.approx(1)
    assert floor.ci_low * floor.ci_high == pytest.approx(1)
    spread = math.sqrt(2) * np.std(np.log(times), ddof=1)
    half = stats.t.ppf(0.975, len(times) - 1) * spread
    assert math.log(floor.ci_high) == pytest.approx(half, abs=1e-9)


def test_noise_floor_interval_covers_a_further_ratio():
    draw = np.random.default_rng(0)
    hits = 0
    for _ in range(1000):
        times = np.exp(draw.normal(3, 0.05, 5))  # three seeds, and two runs to come
        floor = tables.noise_floor(times[:3])
        hits += floor.ci_low <= times[3] / times[4] <= floor.ci_high
    assert 920 <= hits <= 980


# --- rows -----------------------------------------------------------------------------------------


def test_columns_and_metrics_of_a_group():
    frame = one_group(runs={"test_accuracy": [0.8, 0.9, 1.0]})
    assert list(frame.columns) == tables.COLUMNS
    assert list(frame["metric"]) == [
        name
        for name, metric in tables.METRICS.items()
        if metric.read and metric.of == "one" and name != "profile_self_seconds"
    ]
    assert row(frame, "epoch_seconds")["mean"] == 25  # over the epochs of a run
    assert row(frame, "peak_memory_process_mib")["mean"] == 801  # the largest process
    assert row(frame, "peak_memory_device_mib")["mean"] == 513
    assert row(frame, "samples_per_second")["unit"] == "samples/s"
    found = row(frame, "test_accuracy")
    assert found[["n_seeds", "min", "max", "status"]].tolist() == [3, 0.8, 1.0, "ok"]
    assert found["mean"] == pytest.approx(0.9)
    assert found["cells"].split() == [f"resnet50.eager.s{seed}" for seed in range(3)]
    assert found["machine"] == "aaaaaaaaaaaa"
    assert found["verdict"] == tables.NO_PUBLISHED_VALUE


def test_no_device_memory_on_cpu():
    frame = one_group(hardware=make_hardware("cpu", 2), machine=CPU)
    assert "peak_memory_device_mib" not in set(frame["metric"])
    assert (frame["device"] == "cpu").all()


def test_failed_runs_are_counted_and_not_averaged():
    group = make_group(seeds=range(4))
    metrics = make_runs(group, test_accuracy=[0.8, 0.9, 0.1, 0.1])
    for seed, status in ((2, "diverged"), (3, "out_of_memory")):
        cell = group["cells"][seed]
        metrics[cell] = make_run(group, cell, status=status)
    found = row(tables.table(make_plan(group), metrics, NOTHING), "test_accuracy")
    assert found["status"] == "out of memory 1 of 4, diverged 1 of 4"
    assert found["n_seeds"] == 2
    assert found["mean"] == pytest.approx(0.85)
    assert "seed 2 diverged (at step 3); seed 3 out of memory" in found["reason"]


def test_group_without_an_ok_run_keeps_its_rows():
    group = make_group(published=EAGER)
    metrics = {cell: make_run(group, cell, status="diverged") for cell in group["cells"]}
    frame = tables.table(make_plan(group), metrics, make_published({}))
    found = row(frame, "test_accuracy")
    assert (found["status"], found["n_seeds"]) == ("diverged 3 of 3", 0)
    assert math.isnan(found["mean"])
    assert found["verdict"] == tables.UNDECIDED


def test_not_run_group_has_default_rows_with_published_values():
    changes = {"not_run": "needs 2x A100", "published": {**EAGER, "strategy": "ddp"}}
    other = make_group("ddp", baseline="resnet50.eager", **changes)
    base = make_group(published=EAGER)
    published = make_published(
        {"strategy": "ddp"},
        {"metric": "train_seconds", "value": 30.0, "unit": "s"},
        {"metric": "train_seconds", "value": 20.0, "unit": "s", "strategy": "ddp", "table": "T2"},
    )
    frame = two_groups(base, other, make_runs(base), published)
    frame = frame[frame["variant"] == "ddp"]
    assert list(frame["metric"]) == ["test_accuracy", "train_seconds", "speedup"]
    assert set(frame["status"]) == set(frame["verdict"]) == {"not run"}
    assert set(frame["reason"]) == {"needs 2x A100"}
    assert frame[["n_seeds", "mean", "std", "ratio"]].isna().all(axis=None)
    assert row(frame, "speedup")[["published", "published_unit"]].tolist() == [1.5, "x"]
    assert row(frame, "speedup")["published_table"] == "Table 1, T2"


def test_not_run_group_has_the_rows_that_its_tables_name():
    shapes = [
        {"title": "One", "variants": ["eager"], "metrics": ["test_f1_macro", "speedup"]},
        {"title": "Two", "variants": ["ddp"], "metrics": ["train_seconds"]},
        {"title": "All", "metrics": ["epoch_seconds"]},
    ]
    frame = one_group(not_run="needs an A30", study={"tables": shapes})
    assert list(frame["metric"]) == ["test_f1_macro", "epoch_seconds"]  # no baseline: no speedup


def test_unknown_metric_in_a_table_is_refused():
    with pytest.raises(ParbenchError, match=r"table 'One' names the metric 'acuracy'; known: test"):
        one_group(study={"tables": [{"title": "One", "variants": [], "metrics": ["acuracy"]}]})


def test_missing_metrics_name_file_and_command(tmp_path):
    plan = make_plan(make_group())
    with pytest.raises(ParbenchError, match=r"s0/metrics.json: no such file; make it with: snake"):
        tables.table(plan, {}, NOTHING)
    with pytest.raises(ParbenchError) as caught:
        tables.read_metrics(plan, tmp_path / "a b")
    assert f"snakemake '{tmp_path}/a b/resnet50.eager.s0/metrics.json'" in str(caught.value)


def test_metrics_of_another_cell_are_refused():
    group = make_group(seeds=[0, 1])
    metrics = make_runs(group)
    first, second = group["cells"]
    metrics[first] = metrics[second]
    with pytest.raises(ParbenchError, match=f"cell {first} holds a run of {second}"):
        tables.table(make_plan(group), metrics, NOTHING)


# --- time to the published accuracy ---------------------------------------------------------------


def history(*accuracies: float | None) -> list[dict]:
    """Epochs of 10 s each."""
    return [
        {"test_accuracy": accuracy, "elapsed_seconds": 10.0 * epoch}
        for epoch, accuracy in enumerate(accuracies, 1)
    ]


def to_published(*histories: list[dict], **changes) -> pd.Series:
    """The row of groups whose seeds learned like this; 0.9 is published."""
    return row(
        one_group(
            make_published({}),
            seeds=range(len(histories)),
            published=EAGER,
            runs={"history": list(histories)},
            **changes,
        ),
        tables.TO_PUBLISHED,
    )


def test_time_to_the_published_accuracy_ends_with_the_first_epoch_that_has_it():
    found = to_published(history(0.5, 0.9, 0.8), history(0.91), history(None, 0.2, 0.8999, 0.95))
    assert found[["n_seeds", "min", "max", "unit"]].tolist() == [3, 10.0, 40.0, "s"]
    assert found["mean"] == pytest.approx((20 + 10 + 40) / 3)
    assert found["verdict"] == tables.NO_PUBLISHED_VALUE
    assert found["reason"] == ""


def test_a_seed_that_never_got_there_is_not_averaged_away():
    found = to_published(history(0.5, 0.9), history(0.5, 0.6), history(0.9))
    assert found[["n_seeds", "min", "max"]].tolist() == [2, 10.0, 20.0]
    assert found[["mean", "std", "ci_low", "ci_high"]].isna().all()
    assert found["reason"] == "not reached by 1 of 3 seeds (the others: 10 to 20 s)"
    none = to_published(history(0.5), history(0.6), scaled=["epochs 1 instead of 50"])
    assert none["reason"] == "not reached by 2 of 2 seeds; scaled: epochs 1 instead of 50"
    assert none[["mean", "min", "max"]].isna().all()


def test_no_time_to_an_accuracy_that_was_not_measured():
    found = to_published(history(None), history(None, None))
    assert found[["n_seeds", "reason"]].tolist() == [0, ""]


def test_no_time_to_an_accuracy_that_nobody_published():
    times = make_published({"metric": "train_seconds", "value": 90.0, "unit": "s"})
    frame = one_group(times, published=EAGER)
    assert tables.TO_PUBLISHED not in set(frame["metric"])


# --- speedup and noise floor ----------------------------------------------------------------------


def test_speedup_is_paired_by_seed_not_by_place():
    base = make_group(seeds=[0, 1, 2])
    other = make_group("ddp", seeds=[2, 1, 0], baseline=base["id"])
    metrics = make_runs(base, train_seconds=[100.0, 200.0, 400.0])
    metrics |= make_runs(other, train_seconds=[100.0, 100.0, 100.0])
    found = row(two_groups(base, other, metrics), "speedup")
    assert found[["n_seeds", "min", "max"]].tolist() == [3, 1, 4]
    assert found["mean"] == pytest.approx(7 / 3)
    assert found["std"] == pytest.approx(np.std([1, 2, 4], ddof=1))


def test_accuracies_are_compared_seed_by_seed_on_any_machine():
    base, other = make_group(seeds=[2, 0, 1]), make_group("ddp", baseline="resnet50.eager")
    metrics = make_runs(base, test_accuracy=[0.7, 0.9, 0.8])
    metrics |= make_runs(other, CPU, test_accuracy=[0.91, 0.82, 0.7])
    found = row(two_groups(base, other, metrics), "accuracy_difference")
    differences = [0.01, 0.02, 0.0]
    interval = stats.t.interval(0.95, 2, np.mean(differences), stats.sem(differences))
    assert found[["n_seeds", "status", "variant"]].tolist() == [3, "ok", "ddp"]
    assert found["mean"] == pytest.approx(0.01)
    assert found[["ci_low", "ci_high"]].tolist() == pytest.approx(interval)
    change(metrics[other["cells"][1]], "cell.dataset.test_samples", 9)
    found = row(two_groups(base, other, metrics), "accuracy_difference")
    assert found["n_seeds"] == 2
    assert "no difference between unequal work: test_samples 9 here, all for" in found["reason"]


def test_speedup_only_for_groups_with_a_baseline_and_noise_floor_only_for_baselines():
    frame = two_groups()
    assert set(frame.loc[frame["metric"] == "speedup", "variant"]) == {"ddp"}
    assert set(frame.loc[frame["metric"] == "noise_floor", "variant"]) == {"eager"}
    assert row(frame, "noise_floor")[["mean", "std", "ci_low", "ci_high"]].tolist() == [1, 0, 1, 1]


def test_unknown_baseline_is_refused():
    with pytest.raises(ParbenchError, match=r"baseline 'nobody' is no group"):
        one_group(baseline="nobody")


def change(run: dict, path: str, value) -> None:
    *parents, last = path.split(".")
    for key in parents:
        run = run[key]
    run[last] = value


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("environment.machine.fingerprint", "bbbb", "no speedup between machines: bbbb here, aaaa"),
        (
            "resumed_from",
            [{"epoch": 1, "step": 2, "machine": "bbbb"}],
            "no speedup between machines: bbbb and aaaa",
        ),
        ("environment.stack", "paper", "no speedup between stacks: paper here, current for"),
        ("environment.deployment", "apptainer", "no speedup between deployments: apptainer here"),
        ("cell.training.epochs", 2, "no speedup between unequal work: epochs 2 here, 4 for"),
        ("cell.training.global_batch", 32, "unequal work: global_batch 32 here, 64 for"),
        ("cell.training.image_size", 64, "unequal work: image_size 64 here, 32 for"),
        ("cell.dataset.train_samples", 9, "unequal work: train_samples 9 here, all for"),
        ("cell.dataset.name", "digits", "unequal work: dataset digits here, cifar10 for"),
        ("cell.training.mode", "deterministic", "mode deterministic here, performance for"),
        ("cell.training.profile", "phases", "profile phases here, none for"),
    ],
)
def test_no_speedup_between_unequal_runs(path, value, reason):
    base, other = make_group(), make_group("ddp", baseline="resnet50.eager")
    metrics = make_runs(base) | make_runs(other)
    for cell in other["cells"]:
        change(metrics[cell], path, value)
    found = row(two_groups(base, other, metrics), "speedup")
    assert found["n_seeds"] == 0
    assert math.isnan(found["mean"])
    assert found["reason"].count(reason) == 1  # once, not once a seed


def test_throughput_may_be_of_other_batches_which_is_said():
    base, other = make_group(), make_group("gpipe", baseline="resnet50.eager")
    shown = [{"title": "T", "variants": ["gpipe"], "metrics": ["throughput_ratio"]}]
    plan = make_plan(base, other, tables=shown)
    metrics = make_runs(base, samples_per_second=[10.0, 20.0, 40.0])
    metrics |= make_runs(other, samples_per_second=[15.0, 30.0, 60.0])
    for cell in other["cells"]:
        change(metrics[cell], "cell.training.global_batch", 320)
        change(metrics[cell], "cell.training.steps", 2)
    found = row(tables.table(plan, metrics, NOTHING), "throughput_ratio")
    assert (found["n_seeds"], found["mean"]) == (3, 1.5)
    said = "of unequal work: steps 2 here, all for the baseline, global_batch 320 here, 64 for"
    assert found["reason"].count(said) == 1
    for cell in other["cells"]:
        change(metrics[cell], "cell.training.image_size", 64)
    found = row(tables.table(plan, metrics, NOTHING), "throughput_ratio")
    assert (found["n_seeds"], found["reason"].count("image_size 64 here, 32 for")) == (0, 1)


def test_machines_are_listed_and_one_bad_pair_leaves_the_others():
    base, other = make_group(), make_group("ddp", baseline="resnet50.eager")
    metrics = make_runs(base) | make_runs(other)
    change(metrics[other["cells"][1]], "environment.machine.fingerprint", "bbbb")
    found = row(two_groups(base, other, metrics), "speedup")
    assert found[["n_seeds", "machine"]].tolist() == [2, "aaaaaaaaaaaa bbbb"]


def test_speedup_says_when_the_baseline_has_no_good_run_of_a_seed():
    base, other = make_group(seeds=[0, 1]), make_group("ddp", baseline="resnet50.eager")
    metrics = make_runs(base) | make_runs(other)
    metrics[base["cells"][1]] = make_run(base, base["cells"][1], status="diverged")
    found = row(two_groups(base, other, metrics), "speedup")
    assert found["n_seeds"] == 1
    assert found["reason"] == "the baseline's seed 1: diverged; the baseline has no seed 2"


def test_speedup_without_a_run_of_the_baseline():
    base, other = make_group(not_run="needs 1x A100"), make_group("ddp", baseline="resnet50.eager")
    found = row(two_groups(base, other, make_runs(other)), "speedup")
    assert found["n_seeds"] == 0
    assert found["reason"] == "the baseline resnet50.eager was not run"


@pytest.mark.parametrize(
    ("seeds", "fingerprint", "reason"),
    [
        ([0], "aaaaaaaaaaaa", "no noise floor from fewer than 2 seeds"),
        ([0, 1], "bbbb", "no noise floor: its seeds ran on different machines or software"),
    ],
)
def test_noise_floor_needs_two_seeds_of_one_machine(seeds, fingerprint, reason):
    base, other = make_group(seeds=seeds), make_group("ddp", baseline="resnet50.eager")
    metrics = make_runs(base) | make_runs(other)
    change(metrics[base["cells"][0]], "environment.machine.fingerprint", fingerprint)
    found = row(two_groups(base, other, metrics), "noise_floor")
    assert math.isnan(found["ci_low"])
    assert found["reason"] == reason


# --- published values -----------------------------------------------------------------------------


def test_real_gorantla_rows_are_all_reachable():
    frame = tables.read_published(PUBLISHED)
    source = tables.Published(frame, "gorantla2024")
    rows = frame[frame["study"] == "gorantla2024"]
    assert len(rows) >= 16
    for _, each in rows.iterrows():
        keys = ["model", "strategy", "options", "hardware", "devices_per_node"]
        # as JSON carries it: an empty column is null
        selection = {key: None if pd.isna(each[key]) else each[key] for key in keys}
        group = make_group(published=selection)
        found = source.find(group, tables.METRICS[each["metric"]])
        assert found.value == each["value"]
        assert found.table == each["table"]


def test_real_published_speedups():
    frame = tables.read_published(PUBLISHED)
    source = tables.Published(frame, "gorantla2024")
    eager = make_group(published={"model": "resnet50", "strategy": "eager", "hardware": "A100"})
    selection = {"model": "resnet50", "strategy": "gpipe"}
    a100 = make_group("gpipe", published={**selection, "hardware": "A100"})
    a30 = make_group("gpipe", published={**selection, "hardware": "A30"})
    found, why = source.speedup(a100, eager)
    assert found.value == pytest.approx(56.4 / 51)
    assert (found.unit, found.table, why) == ("x", "Table 1, Table 2", "")
    found, why = source.speedup(a30, eager)
    assert found is None
    assert why == "published times are of different hardware: A100, A30"


def test_no_published_speedup_between_batches_and_printed_one_without_times():
    rows = [
        {"metric": "train_seconds", "value": 30.0, "unit": "s", "batch_size": 16},
        {
            "metric": "train_seconds",
            "value": 20.0,
            "unit": "s",
            "batch_size": 64,
            "strategy": "ddp",
        },
        {"metric": "speedup", "value": 3.0, "unit": "ratio", "strategy": "ddp"},
    ]
    eager = make_group(published=EAGER)
    ddp = make_group("ddp", published={**EAGER, "strategy": "ddp"})
    found, why = tables.Published(make_published(*rows), "paper").speedup(ddp, eager)
    assert found is None
    assert why == "published times are of a different batch or precision"
    found, _ = tables.Published(make_published(*rows[1:]), "paper").speedup(ddp, eager)
    assert (found.value, found.unit) == (3.0, "x")


def test_identical_duplicates_are_one_value():
    frame = make_published({}, {"table": "Table 1, again", "note": "printed twice"})
    found = tables.Published(frame, "paper").find(
        make_group(published=EAGER), tables.METRICS["test_accuracy"]
    )
    assert (found.value, found.table) == (0.9, "Table 1, Table 1, again")


def test_two_values_are_refused_unless_the_selection_is_narrowed():
    frame = make_published({}, {"value": 0.8, "table": "Table 7"})
    source = tables.Published(frame, "paper")
    metric = tables.METRICS["test_accuracy"]
    with pytest.raises(ParbenchError) as caught:
        source.find(make_group(published=EAGER), metric)
    message = str(caught.value)
    assert "line 2 (paper.txt, Table 1: 0.9 fraction)" in message
    assert "line 3 (paper.txt, Table 7: 0.8 fraction)" in message
    assert message.endswith("narrow the selection by table")
    assert source.find(make_group(published={**EAGER, "table": "Table 7"}), metric).value == 0.8


def test_equal_values_of_different_hardware_are_refused():
    frame = make_published({}, {"hardware": "A30"})
    with pytest.raises(ParbenchError, match="narrow the selection by hardware"):
        one_group(frame, published=EAGER)


def test_selection_spells_numbers_and_nothing_in_several_ways():
    frame = make_published({"batch_size": 16.0}, {"batch_size": 64.0, "value": 0.5})
    source = tables.Published(frame, "paper")
    metric = tables.METRICS["test_accuracy"]
    for batch in (16, 16.0, "16"):
        group = make_group(published={**EAGER, "batch_size": batch, "options": ""})
        assert source.find(group, metric).value == 0.9
    assert source.find(make_group(published={**EAGER, "batch_size": 8}), metric) is None


def test_operators_are_selected_as_values_are():
    """By a list, too, and with the same words for a column that is none."""
    names = [f"operator_self_seconds:aten::{name}" for name in ("mm", "copy_", "add")]
    tables_of = zip(names, ("Table 1", "Table 2", "Table 3"), strict=True)
    frame = make_published(*({"metric": m, "unit": "s", "table": t} for m, t in tables_of))
    source = tables.Published(frame, "paper")
    group = make_group(published={**EAGER, "table": ["Table 1", "Table 3"]})
    assert source.operators(group) == ["aten::mm", "aten::add"]
    with pytest.raises(ParbenchError, match="'modle' is no column"):
        source.operators(make_group(published={"modle": "resnet50"}))
    assert source.operators(make_group()) == []
    assert tables.Published(tables.read_source(None, []), None).operators(group) == []


def test_values_of_other_studies_are_not_found():
    frame = make_published({"study": "other"})
    assert row(one_group(frame, published=EAGER), "test_accuracy")["verdict"] == (
        tables.NO_PUBLISHED_VALUE
    )
    found = one_group(make_published({}), published=EAGER, study={"published": None})
    assert row(found, "test_accuracy")["verdict"] == tables.NO_PUBLISHED_VALUE


def test_unknown_column_of_a_selection_is_refused():
    with pytest.raises(ParbenchError, match=r"resnet50.eager: published: 'modle' is no column"):
        two_groups(make_group(published={"modle": "x"}), published=make_published({}))


def test_other_unit_is_refused():
    with pytest.raises(ParbenchError, match=r"test_accuracy is in 'percent'; write it in 'frac"):
        tables.table(
            make_plan(make_group(published=EAGER, seeds=[])),
            {},
            make_published({"unit": "percent"}),
        )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("study,table\n", "lacks the column.* devices_per_node, hardware"),
        (
            "study,table,hardware,nodes,devices_per_node,metric,value,unit\n"
            "a,b,c,1,1,d,1,s\na,b,c,1,1,d,ninety,s\n",
            "line 3: value is 'ninety', not a number",
        ),
        ('"', "cannot be read as CSV"),
    ],
)
def test_broken_published_file_is_named(tmp_path, content, message):
    path = tmp_path / "published.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ParbenchError, match=f"published.csv: {message}"):
        tables.read_published(path)


def test_a_source_is_looked_up_in_every_file_and_stands_in_one(tmp_path):
    paths = [tmp_path / name for name in ("a.csv", "b.csv")]
    make_published({}, {"study": "other"}).to_csv(paths[0], index=False)
    make_published({"study": "fifth", "value": 0.7}).to_csv(paths[1], index=False)
    assert tables.read_source("fifth", paths)["value"].tolist() == [0.7]
    assert set(tables.read_source("paper", paths)["study"]) == {"paper", "other"}
    assert tables.read_source(None, paths).empty
    with pytest.raises(ParbenchError, match="published: 'papier': no row of .*a.csv, .*b.csv has"):
        tables.read_source("papier", paths)
    make_published({"study": "fifth"}, {}).to_csv(paths[1], index=False)
    with pytest.raises(ParbenchError, match="'paper' has rows in .*a.csv and in .*b.csv; keep"):
        tables.read_source("paper", paths)


# --- verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "verdict"),
    [
        (0.9, tables.REPRODUCED),
        (0.895, tables.REPRODUCED),
        (0.91, tables.REPRODUCED),  # 0.91 - 0.9 is above 0.01 in binary
        (0.92, tables.NOT_REPRODUCED),
        (0.88, tables.SUSPICIOUS),
    ],
)
def test_verdict_with_a_narrow_interval(published, verdict):
    values = {"test_accuracy": [0.899, 0.9, 0.901]}  # half width 0.0025
    found = row(
        one_group(make_published({"value": published}), published=EAGER, runs=values),
        "test_accuracy",
    )
    assert found["verdict"] == verdict
    assert found["ratio"] == pytest.approx(0.9 / published)
    assert (
        f"differs by {0.9 - published:+.2g} (tolerance 0.01, interval ±0.0025)" in (found["reason"])
    )


@pytest.mark.parametrize(
    ("published", "verdict"),
    [
        (0.9, tables.WITHIN_NOISE),  # near, but the interval is wider than the tolerance
        (0.94, tables.WITHIN_NOISE),
        (0.96, tables.NOT_REPRODUCED),
        (0.84, tables.SUSPICIOUS),
    ],
)
def test_verdict_with_a_wide_interval(published, verdict):
    values = {"test_accuracy": [0.88, 0.9, 0.92]}  # half width 0.0497
    found = row(
        one_group(make_published({"value": published}), published=EAGER, runs=values),
        "test_accuracy",
    )
    assert found["verdict"] == verdict


@pytest.mark.parametrize(
    ("published", "verdict"),
    [
        (100.0, tables.REPRODUCED),
        (95.5, tables.REPRODUCED),
        (90.0, tables.NOT_REPRODUCED),  # slower than published
        (120.0, tables.SUSPICIOUS),
    ],
)
def test_lower_times_are_better_and_tolerance_is_relative(published, verdict):
    frame = make_published({"metric": "train_seconds", "value": published, "unit": "s"})
    values = {"train_seconds": [99.9, 100.0, 100.1]}
    found = row(one_group(frame, published=EAGER, runs=values), "train_seconds")
    assert found["verdict"] == verdict


@given(
    st.floats(0.01, 10),
    st.floats(0, 2),
    st.floats(0.01, 10),
    st.floats(0.001, 1),
    st.booleans(),
)
def test_every_judgement_is_one_of_four_and_consistent(mean, half, published, tolerance, higher):
    summary = tables.Summary(3, mean, 0.0, mean - half, mean + half, mean, mean)
    found = tables.judge(summary, published, tolerance, higher)
    gap = abs(mean - published)
    if found == tables.REPRODUCED:
        assert gap <= tolerance * (1 + 1e-6)
    elif found == tables.WITHIN_NOISE:
        assert gap <= half + 1e-6
    else:
        assert found in (tables.SUSPICIOUS, tables.NOT_REPRODUCED)
        assert gap > 0
        assert (found == tables.SUSPICIOUS) == ((mean > published) == higher)


def test_two_seeds_decide_nothing_and_give_their_range():
    frame = one_group(
        make_published({}),
        published=EAGER,
        seeds=[0, 1],
        runs={"test_accuracy": [0.8, 0.9]},
    )
    found = row(frame, "test_accuracy")
    assert found["verdict"] == tables.UNDECIDED
    assert found["reason"] == "2 of at least 3 seeds, range 0.8 to 0.9"


TIME = make_published({}, {"metric": "train_seconds", "value": 100.0, "unit": "s"})


@pytest.mark.parametrize(
    ("changes", "study", "machine", "reason"),
    [
        ({"scaled": ["epochs 2 instead of 50"]}, {}, A100, "scaled: epochs 2 instead of 50"),
        ({}, {"assumed": {"epochs": 50, "batch": 8}}, A100, "assumed: epochs, batch"),
        (
            {"hardware": make_hardware("cpu", 1)},
            {},
            CPU,
            "published on 1x A100, here on 1 CPU core",
        ),
        (
            {"hardware": make_hardware(devices=2)},
            {},
            A100,
            "published on 1x A100, here on 2x NVIDIA A100-SXM4-80GB",
        ),
        (
            {"hardware": make_hardware(gpu_model=None)},
            {},
            {**A100, "accelerators": [{"name": "NVIDIA A1000"}]},
            "published on 1x A100, here on 1x NVIDIA A1000",
        ),
        (
            {"hardware": make_hardware(nodes=2)},
            {},
            A100,
            "here on 2 nodes of 1x NVIDIA A100-SXM4-80GB",
        ),
        (
            {"hardware": make_hardware(gpu_model=None)},
            {},
            CPU,
            "here on 1x unknown GPU",
        ),
        (
            {"dataset": {"name": "digits", "train_samples": None, "test_samples": None}},
            {},
            A100,
            "published on the dataset cifar10, here on digits",
        ),
        ({"comparable": {"train_seconds": "it waits"}}, {}, A100, "it waits"),
        ({"differs": "it repeats"}, {}, A100, "differs from the source: it repeats"),
    ],
)
def test_times_that_are_not_comparable(changes, study, machine, reason):
    frame = one_group(TIME, study, machine, published=EAGER, **changes)
    found = row(frame, "train_seconds")
    assert found["verdict"] == tables.NOT_COMPARABLE
    assert reason in found["reason"]
    assert found["ratio"] == 1  # shown, not judged


def test_accuracy_is_judged_on_other_hardware_and_with_assumptions():
    changes = {"hardware": make_hardware("cpu", 2)}
    frame = one_group(TIME, {"assumed": {"epochs": 50}}, CPU, published=EAGER, **changes)
    found = row(frame, "test_accuracy")
    assert found["verdict"] == tables.REPRODUCED
    assert "not stated by the source, assumed: epochs" in found["reason"]


@pytest.mark.parametrize(
    ("changes", "study", "reason"),
    [
        ({"scaled": ["epochs 2 instead of 50"]}, {}, "scaled: epochs 2 instead of 50"),
        ({}, {"source_dataset": "cifar100"}, "the dataset cifar100, here on cifar10"),
        ({}, {"dataset": "digits"}, "the dataset digits, here on cifar10"),
        ({}, {"override": {"settings": {"epochs": 1}}}, "scaled: epochs 1 by config.yaml"),
    ],
)
def test_accuracy_that_is_not_comparable(changes, study, reason):
    found = row(one_group(TIME, study, published=EAGER, **changes), "test_accuracy")
    assert found["verdict"] == tables.NOT_COMPARABLE
    assert reason in found["reason"]


def test_source_dataset_decides_which_dataset_is_the_papers():
    study = {"dataset": "cifar10-jpeg", "source_dataset": "cifar10"}
    found = row(one_group(TIME, study, published=EAGER), "test_accuracy")
    assert found["verdict"] == tables.REPRODUCED


def speedup_case(devices=2, machine=CPU, **changes) -> pd.Series:
    """Published 1.5 on 2x A100; measured exactly 2."""
    hardware = make_hardware("cpu", 1)
    base = make_group(hardware=hardware, published=EAGER)
    other = make_group(
        "gpipe",
        **{
            "baseline": base["id"],
            "hardware": make_hardware("cpu", devices),
            "published": {**EAGER, "strategy": "gpipe"},
            **changes,
        },
    )
    metrics = make_runs(base, machine) | make_runs(other, machine, train_seconds=[50.0] * 3)
    time = {"metric": "train_seconds", "unit": "s"}
    published = make_published(
        {**time, "value": 30.0},
        {**time, "value": 20.0, "strategy": "gpipe", "devices_per_node": 2},
    )
    return row(two_groups(base, other, metrics, published), "speedup")


def test_speedup_is_judged_on_other_hardware_with_as_many_devices():
    found = speedup_case(scaled=["epochs 2 instead of 50"])
    assert found["published"] == 1.5
    assert found["verdict"] == tables.SUSPICIOUS
    assert "published on 2x A100, here on 2 CPU cores" in found["reason"]
    assert "scaled: epochs 2 instead of 50" in found["reason"]


def test_speedup_with_other_device_count_is_not_comparable():
    found = speedup_case(devices=4)
    assert found["verdict"] == tables.NOT_COMPARABLE
    assert found["reason"] == "published on 2x A100, here on 4 CPU cores"


def test_what_differs_from_the_source_by_the_study_itself_forbids_a_verdict():
    found = speedup_case(differs="it repeats one batch")
    assert found["verdict"] == tables.NOT_COMPARABLE
    assert found["reason"] == "differs from the source: it repeats one batch"
    # Nothing is said of it where nothing was published.
    found = speedup_case(differs="it repeats one batch", published=None)
    assert (found["verdict"], found["reason"]) == (tables.NO_PUBLISHED_VALUE, "")


def test_plan_may_forbid_a_comparison_and_note_something():
    why = "torchgpipe gives all CPU devices one worker: micro-batch cost, not scaling"
    found = speedup_case(comparable={"speedup": why}, note=why)
    assert (found["verdict"], found["reason"]) == (tables.NOT_COMPARABLE, why)
    found = speedup_case(comparable={"speedup": why}, published=None)
    assert (found["verdict"], found["reason"]) == (tables.NO_PUBLISHED_VALUE, why)
    found = speedup_case(note="a note")
    assert found["verdict"] == tables.SUSPICIOUS
    assert found["reason"].endswith("; a note")


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"mode": "deterministic"}, "deterministic mode is not for timing"),
        ({"profile": "phases"}, "an instrumented run is not for timing"),
    ],
)
def test_deterministic_and_instrumented_runs_are_never_timed(setting, reason):
    frame = one_group(TIME, published=EAGER, training=constructed.TRAINING | setting)
    found = row(frame, "train_seconds")
    assert found["verdict"] == tables.NOT_COMPARABLE
    assert found["reason"] == reason
    assert row(frame, "test_accuracy")["verdict"] == tables.REPRODUCED


def test_oversubscribed_runs_are_never_timed():
    group = make_group(published=EAGER)
    metrics = make_runs(group)
    change(metrics[group["cells"][0]], "environment.oversubscribed", True)
    frame = tables.table(make_plan(group), metrics, TIME)
    assert row(frame, "train_seconds")["verdict"] == tables.NOT_COMPARABLE
    assert row(frame, "epoch_seconds")["reason"] == "its devices shared cores"
    assert row(frame, "test_accuracy")["verdict"] == tables.REPRODUCED


# --- program --------------------------------------------------------------------------------------


def write_study(folder: Path) -> list[str]:
    """A work folder with a plan, metrics and published values; the arguments of tables.py."""
    base = make_group(published=EAGER, hardware=make_hardware("cpu", 1, name="cpu1"))
    ddp = make_group("ddp", baseline=base["id"], hardware=make_hardware("cpu", 2, name="cpu2"))
    long = make_group(
        "gpipe-1-1-1-1-with-a-rather-long-name",
        baseline=base["id"],
        hardware=make_hardware("cpu", 4, name="cpu4-oversubscribed"),
        comparable={"speedup": "one worker: " + "no scaling " * 12},
    )
    absent = make_group(
        "horovod", baseline=base["id"], hardware=make_hardware(devices=2), not_run="needs 2x A100"
    )
    metrics = make_runs(base, CPU, train_seconds=[7200.5, 7300.0, 7400.0])
    metrics |= make_runs(ddp, CPU, test_accuracy=[0.8, 0.9, 1.0])
    metrics |= make_runs(long, CPU)
    metrics[long["cells"][0]] = make_run(long, long["cells"][0], CPU, status="diverged")
    (folder / "plan.json").write_text(json.dumps(make_plan(base, ddp, long, absent)))
    for cell, run in metrics.items():
        path = folder / "cells" / cell / "metrics.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(run))
    make_published({}).to_csv(folder / "published.csv", index=False)
    return [
        f"--{name}={folder / file}"
        for name, file in {
            "plan": "plan.json",
            "cells": "cells",
            "published": "published.csv",
            "out": "tables/paper.csv",
        }.items()
    ]


@pytest.fixture
def study(tmp_path):
    """Arguments of tables.py in a work folder whose name has blanks."""
    folder = tmp_path / "work folder"
    folder.mkdir()
    return write_study(folder), folder


def test_program_writes_the_table_twice_alike(study):
    arguments, folder = study
    tables.main(arguments)
    path = folder / "tables" / "paper.csv"
    first = path.read_bytes()
    tables.main(arguments)
    assert path.read_bytes() == first
    assert [entry.name for entry in path.parent.iterdir()] == ["paper.csv"]
    assert first.decode().splitlines()[0] == ",".join(tables.COLUMNS)
    frame = pd.read_csv(path)
    assert row(frame, "train_seconds", "eager")["mean"] == pytest.approx(7300.1666667)
    absent = row(frame, "train_seconds", "horovod")
    assert absent[["n_seeds", "mean"]].isna().all()


def test_no_run_stands_in_for_a_failed_one(study):
    """A further seed that ended well lies there: the group is what the study asks for."""
    arguments, folder = study
    tables.main(arguments)
    path = folder / "tables" / "paper.csv"
    first = path.read_bytes()
    more = make_group("ddp", seeds=(3,), hardware=make_hardware("cpu", 2, name="cpu2"))
    cell = more["cells"][0]
    (folder / "cells" / cell).mkdir()
    run = make_run(more, cell, CPU)
    (folder / "cells" / cell / "metrics.json").write_text(json.dumps(run))
    tables.main(arguments)
    assert path.read_bytes() == first


def test_show_obeys_no_escape_sequence():
    group = make_group(not_run="needs \x1b[2J\x1b]0;x\x07a GPU")
    assert "needs a GPU" in tables.show(tables.table(make_plan(group), {}, NOTHING))


def test_show_is_narrow_and_says_everything(study, capsys):
    arguments, folder = study
    tables.main(arguments)
    tables.main(["--show", str(folder / "tables" / "paper.csv")])
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert max(map(len, lines)) <= tables.SHOW_WIDTH
    assert lines[0] == "paper (stack current, deployment host)"
    by_strategy = {line.split()[1]: line for line in lines[3:7]}
    eager, ddp = by_strategy["eager"], by_strategy["ddp"]
    assert "90.0 ± 0.0 %" in eager
    assert "2.0 ± 0.0 h" in eager
    assert "1 (0.9" in eager  # the noise floor stands where a speedup would
    assert eager.endswith("reproduced: accuracy")
    assert "90.0 ± 10.0 %" in ddp
    assert "100.0 ± 0.0 s" in ddp
    assert "73.00 ± 1.00" in ddp
    assert "not run: needs 2x A100" in by_strategy["horovod"]
    assert "diverged 1 of 3" in lines[5]
    assert "73.00-74.00*" in lines[5]  # of two seeds the range
    assert "the ratio of two equal runs" in lines[7]
    assert " ".join(lines[8:]).startswith("* seed 0 diverged (at step 3); one worker: no scaling")


def test_show_of_a_study_that_could_not_run_at_all(study, capsys):
    _, folder = study
    frame = one_group(not_run="needs 64x " + "H200 with NVLink and much more " * 5)
    (folder / "none.csv").write_text(frame.to_csv(index=False))
    tables.main(["--show", str(folder / "none.csv")])
    lines = capsys.readouterr().out.splitlines()
    assert "not run: needs 64x H200" in lines[-1]
    assert max(map(len, lines)) <= tables.SHOW_WIDTH


def test_show_of_a_group_without_good_runs():
    group = make_group()
    metrics = {cell: make_run(group, cell, status="out_of_memory") for cell in group["cells"]}
    text = tables.show(tables.table(make_plan(group), metrics, NOTHING))
    assert "out of memory 3 of 3" in text


def test_show_names_what_is_suspicious():
    values = {"test_accuracy": [0.9, 0.9, 0.9]}
    frame = one_group(make_published({"value": 0.5}), published=EAGER, runs=values)
    assert "suspicious: accuracy" in tables.show(frame)


def test_show_refuses_other_files(tmp_path):
    with pytest.raises(ParbenchError, match=r"none.csv: cannot be read"):
        tables.read_table(tmp_path / "none.csv")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ParbenchError, match=r"other.csv: not a table of parbench"):
        tables.read_table(tmp_path / "other.csv")


def run_program(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "tables.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_program_fails_in_one_sentence(tmp_path):
    folder = tmp_path / "work folder"
    folder.mkdir()
    arguments = write_study(folder)
    missing = folder / "cells" / "resnet50.eager.s0" / "metrics.json"
    missing.unlink()
    done = run_program(*arguments)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {missing}: no such file; make it with: snakemake '{missing}' "
        "--configfile mine.yaml --config 'studies=[paper]'\n"
    )
    assert not (folder / "tables").exists()


def test_program_asks_for_what_is_missing():
    done = run_program("--plan", "plan.json")
    assert done.returncode == 2
    assert "missing --cells, --published, --out (or give --show)" in done.stderr


def test_show_prints_on_a_terminal_without_unicode(study):
    arguments, folder = study
    tables.main(arguments)
    done = run_program("--show", str(folder / "tables" / "paper.csv"), PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "90.0 ? 0.0 %" in done.stdout


def test_every_verdict_and_metric_is_documented():
    text = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    for name in (tables.NOT_RUN, *tables.GRAVITY):
        assert f"| {name} |" in text
    for metric in tables.METRICS.values():
        if metric.clocked:
            assert f"`{metric.name}`" in text
