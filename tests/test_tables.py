"""tables.py: statistics, published values, verdicts, the CSV and the closing table."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import constructed
from constructed import CPU1, CPU2, Group, make_hardware
from parbench.errors import ParbenchError
from parbench.runs import records
from parbench.runs.metrics import METRICS
from parbench.verdicts import terms
from parbench.verdicts.matching import PublishedSource
from parbench.verdicts.sequential import k
from workspace import ROOT

ONE, TWO = (make_hardware("cuda", n, gpu_model="A100") for n in (1, 2))
A100 = {"accelerators": [{"name": "NVIDIA A100-SXM4-80GB"}] * 2}
EAGER = {"model": "resnet50", "strategy": "eager"}
COLUMNS = "study document table model strategy options hardware nodes devices_per_node batch_size"


def group(variant="eager", hardware=ONE, seeds=4, machine=A100, **changes) -> Group:
    """Return a group whose seeds are alike, except for what is ``measured`` of each."""
    alike = {"test_accuracy": [0.9] * seeds, "train_seconds": [100.0] * seeds}
    changes["measured"] = alike | changes.pop("measured", {})
    return Group("resnet50", variant, hardware, seeds=range(seeds), machine=machine, **changes)


def make_published(*rows: dict) -> str:
    """Return the CSV of a source; each row is by default an accuracy of 0.9."""
    base = {"study": "paper", "document": "paper.txt", "table": "Table 1", **EAGER}
    base |= {"hardware": "A100", "nodes": 1, "devices_per_node": 1}
    base |= {"metric": "test_accuracy", "value": 0.9, "unit": "fraction"}
    columns = [*COLUMNS.split(), "precision", "metric", "value", "unit", "note"]
    return pd.DataFrame([base | row for row in rows], columns=columns).to_csv(index=False)


def table(*groups: Group, published="", **study) -> pd.DataFrame:
    usual = constructed.usual_study("paper", tables=[], assumed={})
    with tempfile.TemporaryDirectory(prefix="a table ") as folder:
        paths = constructed.write_study(Path(folder), usual | study, groups, published=published)
        return constructed.read_table(paths["table"])


def row(frame: pd.DataFrame, metric: str, variant="eager") -> pd.Series:
    (found,) = (
        row for _, row in frame.iterrows() if (row.metric, row.variant) == (metric, variant)
    )
    return found


# ---------------------------------------------------------------- statistics


def test_numbers_over_seeds():
    times = [10.0, 11.0, 12.0, 15.0]
    found = row(table(group(measured={"train_seconds": times})), "train_seconds")
    assert found[["n_seeds", "mean", "min", "max"]].tolist() == [4, 12, 10, 15]
    assert found["std"] == pytest.approx(np.std(times, ddof=1))
    # The interval is the one that verdicts use.
    assert found["ci_high"] == pytest.approx(12 + k(4) * found["std"] / 2)
    few = row(table(group(seeds=3)), "train_seconds")
    assert few[["ci_low", "ci_high"]].isna().all()


def test_failed_runs_are_counted_and_not_averaged():
    status = ["ok", "ok", "diverged", "out_of_memory"]
    frame = table(group(measured={"test_accuracy": [0.8, 0.9, 0.1, 0.1], "status": status}))
    found = row(frame, "test_accuracy")
    assert found["status"] == "out of memory 1 of 4, diverged 1 of 4"
    assert found[["n_seeds", "mean"]].tolist() == pytest.approx([2, 0.85])
    assert "seed 2 diverged (at step 3); seed 3 out of memory" in found["reason"]


# ---------------------------------------------------------------- beside the baseline


TURNS = (1.9, 2.0, 2.0, 2.1)


def test_a_speedup_is_that_of_pairs_whatever_whole_trainings_took():
    found = row(table(group(), group("ddp", turns=TURNS)), "speedup", "ddp")
    assert found[["n_seeds", "of", "min", "max"]].tolist() == [4, "restarts", 1.9, 2.1]
    assert found["mean"] == pytest.approx(np.prod(TURNS) ** 0.25)
    assert found["ci_low"] < 1.9 < 2.1 < found["ci_high"]
    assert "speedup" not in set(table(group(), group("ddp"))["metric"])


def test_a_speedup_needs_no_whole_trainings_and_names_its_machine():
    left = {"told": {"not_run": "not measured"}, "machine": {"fingerprint": "f" * 12}}
    found = table(group(**left), group("ddp", turns=TURNS, **left))
    speedup = row(found, "speedup", "ddp")
    assert speedup[["n_seeds", "machine"]].tolist() == [4, "f" * 12]
    assert "not measured" not in speedup["reason"]
    whole = row(found, "train_seconds", "ddp")
    assert (whole["verdict"], whole["reason"]) == (terms.NOT_RUN, "not measured")


def test_energy_and_memory_are_of_sides_of_pairs_where_no_training_was_whole():
    left = {"told": {"not_run": "not measured"}}
    spent = {
        "slices": [
            {"pair": n, "side": side, "samples": 64, "seconds": 1.0, "disturbed": False}
            | {"others": 0.0, "steal": 0.0, "waited": None, "joules": joules}
            for n in range(4)
            for side, joules in enumerate((96.0, 64.0))
        ]
    }
    shown = [{"title": "T", "variants": ["ddp"], "metrics": ["joules_per_sample"]}]
    ddp = group("ddp", turns=TURNS, beside=spent, **left)
    found = row(table(group(**left), ddp, tables=shown), "joules_per_sample", "ddp")
    assert found[["mean", "n_seeds", "of", "unit"]].tolist() == [1.5, 4, "restarts", "J"]
    found = row(table(group(), ddp, tables=shown), "joules_per_sample")
    assert found["mean"] == 1.0


def test_a_rate_of_a_second_is_called_short():
    for seconds, short in (([1.9, 3.0], True), ([2.0, 3.0], False)):
        frame = table(group(seeds=2, measured={"train_seconds": seconds}))
        assert ("short: timed" in row(frame, "samples_per_second")["reason"]) == short
        assert "short: timed" not in row(frame, "startup_seconds")["reason"]


def test_use_of_the_arithmetic_is_of_as_many_devices_and_only_where_a_table_names_it():
    counted = {"flops_per_sample": [2e9] * 4, "best_flops_per_second": [4e12] * 4}
    counted["samples_per_second"] = [1000.0] * 4
    shown = [{"title": "T", "variants": ["ddp"], "metrics": ["mfu"]}]
    frame = table(group(measured=counted), group("ddp", TWO, measured=counted), tables=shown)
    assert row(frame, "mfu", "ddp")["mean"] == pytest.approx(0.25)
    assert set(frame[frame["metric"] == "mfu"]["variant"]) == {"ddp"}


@pytest.mark.parametrize(
    ("training", "ratios"),
    [
        # Equal seconds per sample, but twice the epochs, and so half the speedup.
        ({}, [0.5, 1.0, 0.25]),
        ({"steps": 8}, [1.0, 1.0, 0.5]),  # no whole trainings are compared
    ],
)
def test_ratios_of_pairs_that_follow_from_the_speedup(training, ratios):
    names = ["throughput_ratio", "parallel_efficiency"]
    shown = [{"title": "T", "variants": ["ddp"], "metrics": names}]
    longer = group("ddp", TWO, turns=(1.0,) * 4, epochs=8, training=training)
    frame = table(group(), longer, tables=shown)
    assert [row(frame, n, "ddp")["mean"] for n in ["speedup", *names]] == pytest.approx(ratios)


@pytest.mark.parametrize(
    ("scores", "reading"),
    [
        ([0.9, 0.901, 0.899, 0.9], "equal within 0.01"),
        ([0.93, 0.931, 0.929, 0.93], "higher than the baseline's"),
        ([0.8, 0.801, 0.799, 0.8], "lower than the baseline's"),
        ([0.9, 0.92, 0.9, 0.93], r"undecided: some \d+ minutes more \(\d+ seeds\) if"),
        ([0.9, 0.9, 0.9], "undecided: 3 seeds, but at least 4 are needed"),
    ],
)
def test_accuracies_are_compared_by_their_difference_seed_by_seed(scores, reading):
    other = group("ddp", seeds=len(scores), measured={"test_accuracy": scores})
    found = row(table(group(), other), "accuracy_difference", "ddp")
    assert found["mean"] == pytest.approx(np.mean(scores) - 0.9)
    assert re.search(reading, found["reading"])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"training": {"global_batch": 32}}, "unequal work: global_batch 32 here, 64 for"),
        ({"train_samples": 9}, "unequal work: train_samples 9 here, all for"),
        ({"training": {"mode": "deterministic"}}, "mode deterministic here, performance for"),
    ],
)
def test_no_difference_between_unequal_runs(changes, reason):
    found = row(table(group(), group("ddp", **changes)), "accuracy_difference", "ddp")
    assert found["n_seeds"] == 0
    assert found["reason"].count(reason) == 1  # once, not per seed


# ---------------------------------------------------------------- published values


def test_a_cell_that_ran_beside_one_of_another_study_is_shared(tmp_path):
    def at_seven(metrics: dict) -> dict:
        day = f"2030-01-{metrics['cell']['seed'] + 1:02}"
        return metrics | {"started": f"{day}T07:00:00Z", "finished": f"{day}T07:09:00Z"}

    def written(name, model):
        own = [Group(model, "eager", CPU1)]
        study = constructed.usual_study(name)
        return constructed.write_study(tmp_path, study, own, change=at_seven)

    paths = written("one", "resnet18")
    alone = constructed.read_table(paths["table"])
    assert not row(alone, "train_seconds").reason
    written("two", "swin")
    paths = written("one", "resnet18")
    assert terms.SHARED in row(constructed.read_table(paths["table"]), "train_seconds").reason


def published_of(published: str, **selection) -> float:
    frame = table(group(told={"published": EAGER | selection}), published=published)
    return row(frame, "test_accuracy")["published"]


def test_a_speedup_is_of_two_published_times_or_as_printed():
    time = {"metric": "train_seconds", "unit": "s", "value": 30.0}
    ddp = time | {"strategy": "ddp", "value": 20.0}
    printed = {"metric": "speedup", "value": 3.0, "unit": "ratio", "strategy": "ddp"}

    def found(*rows):
        frame = table(group(), group("ddp", turns=TURNS), published=make_published(*rows))
        return row(frame, "speedup", "ddp")

    assert found(time, ddp, printed)["published"] == 1.5
    assert found(ddp, printed)["published"] == 3.0
    told = found(time, ddp | {"batch_size": 64})
    assert "published times come from a different batch size or precision" in told["reason"]
    told = found(time, ddp | {"hardware": "A30"})
    assert "published times come from different hardware: A100, A30" in told["reason"]


def test_two_values_are_refused_unless_they_are_one_or_the_selection_is_narrowed():
    again = {"table": "Table 1, again", "note": "printed twice"}
    found = row(table(group(), published=make_published({}, again)), "test_accuracy")
    assert found["published_table"] == "Table 1, Table 1, again"
    two = make_published({}, {"value": 0.8, "table": "Table 7"})
    with pytest.raises(ParbenchError) as caught:
        published_of(two)
    message = str(caught.value)
    assert "line 2 (paper.txt, Table 1: 0.9 fraction)" in message
    assert message.endswith(
        "line 3 (paper.txt, Table 7: 0.8 fraction); narrow the selection by table"
    )
    assert published_of(two, table="Table 7") == 0.8
    with pytest.raises(ParbenchError, match="narrow the selection by hardware"):
        published_of(make_published({}, {"hardware": "A30"}))


def test_a_source_is_looked_up_in_every_file_and_found_in_one(tmp_path):
    paths = [tmp_path / name for name in ("a.csv", "b.csv")]
    with pytest.raises(ParbenchError, match=r"a.csv: no such file"):
        PublishedSource.read("paper", paths, "s.yaml")
    paths[0].write_text(make_published({}, {"study": "other"}))
    paths[1].write_text(make_published({"study": "fifth", "value": 0.7}))
    assert [row.value for row in PublishedSource.read("fifth", paths, "s.yaml").rows] == [0.7]
    with pytest.raises(
        ParbenchError, match="^s.yaml: published: 'papier': no row of .*a.csv, .*b.csv has"
    ):
        PublishedSource.read("papier", paths, "s.yaml")
    paths[1].write_text(make_published({"study": "fifth"}, {}))
    with pytest.raises(ParbenchError, match="'paper' has rows in .*a.csv and in .*b.csv; keep"):
        PublishedSource.read("paper", paths, "s.yaml")
    paths[1].write_text(make_published({}, {"value": "ninety"}))
    says = "b.csv: line 3: value: 'ninety' is not a bare number; write digits"
    with pytest.raises(ParbenchError, match=says):
        PublishedSource.read("paper", paths, "s.yaml")


# ---------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("metric", "values", "published", "verdict"),
    [
        # The half-width of the interval is 0.0022 (or 0.022), the tolerance 0.01.
        ("test_accuracy", [0.899, 0.9, 0.9, 0.901], 0.895, terms.AS_PUBLISHED),
        ("test_accuracy", [0.899, 0.9, 0.9, 0.901], 0.92, terms.SMALLER),
        ("test_accuracy", [0.899, 0.9, 0.9, 0.901], 0.88, terms.LARGER),
        ("test_accuracy", [0.899, 0.9, 0.9, 0.901], 0.909, terms.SMALLER),
        ("test_accuracy", [0.89, 0.9, 0.9, 0.91], 0.9, terms.NOT_TOLD_APART),
        ("test_accuracy", [0.89, 0.9, 0.9, 0.91], 0.94, terms.SMALLER),
        # For times the tolerance is relative.
        ("train_seconds", [99.9, 100.0, 100.0, 100.1], 97, terms.AS_PUBLISHED),
        ("train_seconds", [99.9, 100.0, 100.0, 100.1], 90.0, terms.LARGER),
        ("train_seconds", [99.9, 100.0, 100.0, 100.1], 120.0, terms.SMALLER),
        ("test_accuracy", [0.8, 0.9], 0.9, terms.UNDECIDED),
    ],
)
def test_a_verdict(metric, values, published, verdict):
    source = make_published({"metric": metric, "value": published, "unit": METRICS[metric].unit})
    own = group(seeds=len(values), measured={metric: values, "confusion": [[[1000]]] * 4})
    found = row(table(own, published=source), metric)
    assert found["verdict"] == verdict
    assert found["ratio"] == pytest.approx(np.mean(values) / published)
    if len(values) < 4:
        assert found["reason"] == "2 seeds, but at least 4 are needed (0.8 to 0.9)"
    else:
        assert f"differs by {np.mean(values) - published:+.2g} (tolerance" in found["reason"]
        takes = re.search("minutes more|too close to call", found["reason"])
        assert bool(takes) == (verdict == terms.NOT_TOLD_APART)


@pytest.mark.parametrize(
    ("images", "verdict"), [(1000, terms.SMALLER), (100, terms.NOT_TOLD_APART)]
)
def test_three_test_images_are_never_a_difference(images, verdict):
    """0.02 is a difference with 1,000 images; with 100 it is two images."""
    own = group(measured={"confusion": [[[images]]] * 4})
    frame = table(own, published=make_published({"value": 0.92}))
    assert row(frame, "test_accuracy")["verdict"] == verdict


TIME = make_published({}, {"metric": "train_seconds", "value": 100.0, "unit": "s"})
UNKNOWN = make_hardware("cuda")
A1000, NONE = {"accelerators": [{"name": "NVIDIA A1000"}]}, {"accelerators": []}


@pytest.mark.parametrize(
    ("changes", "study", "reason"),
    [
        ({}, {"assumed": {"epochs": 50, "batch": 8}}, "assumed: epochs, batch"),
        ({}, {"override": {"settings": {"epochs": 1}}}, "scaled: epochs 1 by config.yaml"),
        ({"hardware": TWO}, {}, "here on 2x NVIDIA A100-SXM4-80GB"),
        ({"hardware": UNKNOWN, "machine": A1000}, {}, "here on 1x NVIDIA A1000"),
        ({"hardware": UNKNOWN, "machine": NONE}, {}, "here on 1x unknown GPU"),
        ({}, {"source_dataset": "cifar100"}, "the dataset cifar100, here on digits"),
        ({"notes": {"train_seconds": "it waits"}}, {}, "it waits"),
        ({"told": {"differs": "it repeats"}}, {}, "differs from the source: it repeats"),
        ({"training": {"mode": "deterministic"}}, {}, "deterministic mode is not for timing"),
    ],
)
def test_times_that_are_not_comparable(changes, study, reason):
    frame = table(group(**changes), published=TIME, **study)
    found = row(frame, "train_seconds")
    assert found["verdict"] == terms.NOT_COMPARABLE
    assert reason in found["reason"]
    assert found["ratio"] == 1  # shown, not judged
    # Accuracy does not depend on clocks or devices: it is judged unless the work differs.
    other = {"override", "source_dataset", "told"} & {*changes, *study}
    accuracy = row(frame, "test_accuracy")["verdict"]
    assert accuracy == (terms.NOT_COMPARABLE if other else terms.AS_PUBLISHED)


WORKER = "torchgpipe gives all CPU devices one worker: micro-batch cost, not scaling"


@pytest.mark.parametrize(
    ("changes", "verdict", "reason"),
    [
        ({}, terms.LARGER, "published on 2x A100, here on 2 CPU cores"),
        ({"told": {"note": "a note"}}, terms.LARGER, "; a note"),
        ({"hardware": make_hardware(devices=4)}, terms.NOT_COMPARABLE, "here on 4 CPU cores"),
        (
            {"notes": {"speedup": WORKER}, "told": {"note": WORKER}},
            *(terms.NOT_COMPARABLE, WORKER),
        ),
        (
            {"notes": {"speedup": WORKER}, "told": {"published": None}},
            *(terms.NO_PUBLISHED_VALUE, WORKER),
        ),
        ({"told": {"published": None, "differs": "it repeats"}}, terms.NO_PUBLISHED_VALUE, ""),
    ],
)
def test_a_speedup_lies_somewhere_also_on_other_hardware_with_as_many_devices(
    changes, verdict, reason
):
    """Published 1.5 on 2x A100; measured nearly 2 on two cores."""
    piped = group("gpipe", **{"hardware": CPU2, "turns": (1.94, 1.95, 1.95, 1.96)} | changes)
    time = {"metric": "train_seconds", "unit": "s", "value": 30.0}
    rows = make_published(time, time | {"value": 20.0, "strategy": "gpipe", "devices_per_node": 2})
    found = row(table(group(hardware=CPU1), piped, published=rows), "speedup", "gpipe")
    assert found["verdict"] == verdict
    assert reason in found["reason"]
    assert found["reason"].count(WORKER) <= 1


# ---------------------------------------------------------------- programs


def run_program(folder: Path, *words: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "scripts/bin/parbench"), *words]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=ascii_only)


def test_a_file_that_is_no_plan_is_not_to_be_deleted(tmp_path):
    (tmp_path / "config.yaml").write_text("studies: [quickstart]\n")
    (tmp_path / "package.json").write_text('{"study": {}}')
    for name in ("config.yaml", "package.json"):
        said = run_program(ROOT, "tables", "--plan", str(tmp_path / name)).stderr
        assert said.startswith(f"error: {tmp_path / name}")
        assert "delete" not in said
        assert "a study's plan is results/plan/<study>.json, which every run writes" in said


def test_the_end_of_a_run_says_it_in_short(tmp_path):
    times, scores = [100.5, 101.0, 101.5, 102.0], [0.8, 0.9, 1.0, 0.9]
    broken = {"status": ["diverged", "ok", "ok", "ok"]}
    groups = [
        group(hardware=CPU1, measured={"train_seconds": times}),
        group("ddp", CPU2, measured={"test_accuracy": scores}),
        group("gpipe", CPU2, notes={"speedup": WORKER}, measured=broken, turns=TURNS),
        group("horovod", TWO, not_run="needs 2x \x1b[2J\x1b]0;x\x07A100"),
        group("fsdp", CPU2, training={"steps": 8}, measured={"test_accuracy": [None] * 4}),
    ]
    study = constructed.usual_study("paper", tables=[])
    published = make_published({"value": 0.5})
    paths = constructed.write_study(tmp_path, study, groups, published=published)
    made = {"studies": [{"name": "paper"}], "claims": None, "turns": "Compared in turns: nothing."}
    constructed.write_json(tmp_path / "results/report.json", made)
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/final.html").write_text("x" * 29_609)
    (tmp_path / "reports/final.pdf").write_text("x" * 1_250_000)
    lines = run_program(tmp_path, "closing").stdout.splitlines()
    assert lines[-3:-1] == ["reports/final.html  30 kB", "reports/final.pdf  1.2 MB"]
    assert lines[-1] == "reports/final.html#terms says what these words mean"
    assert lines[0] == "paper (stack current, deployment host)"
    eager, ddp, gpipe, horovod, fsdp = lines[3:8]
    for told in ("90.0 ? 0.0 %", "101.2 ? 0.6 s", "larger than published: accuracy"):
        assert told in eager
    for told in ("90.0 ? 8.2 %", "100.0 ? 0.0 s"):
        assert told in ddp
    assert "2.00 (1.79 to 2.23)*" in gpipe
    assert gpipe.endswith("diverged 1 of 4; faster")
    assert horovod.endswith("not run: needs 2x A100")
    assert fsdp.endswith("  accuracy not measured")
    assert lines[8].startswith("* seed 0 diverged (at step 3); torchgpipe gives all")
    assert "Compared in turns: nothing." in lines
    for text, problem in (
        ("a,b\n1,2\n", "it has no column 'study'"),
        ("a,b\n", "it has no rows"),
        ("", "No columns to parse from file"),
    ):
        paths["table"].write_text(text)
        done = run_program(tmp_path, "closing")
        assert f"paper.csv: not a table of parbench ({problem}); delete it" in done.stderr


def test_epochs_hold_further_numbers_for_metrics():
    content = constructed.metrics_json(group(), 0)
    for epoch in content["history"]:
        epoch["gradient_norm"] = 0.5 * epoch["epoch"]
    history = records.of(content, "a run").history
    assert [epoch.number("gradient_norm") for epoch in history[:2]] == [0.5, 1]
    assert history[0].number("unknown") is None
    content["history"][1]["gradient_norm"] = "large"
    with pytest.raises(ParbenchError, match="history.1.gradient_norm: value 'large'"):
        records.of(content, "a run")


def test_the_time_of_a_batch_is_the_evaluation_s_over_its_batches():
    content = constructed.metrics_json(group(), 0)
    content["inference"] = {"samples": 360, "seconds": 0.5}
    content["cell"]["training"]["evaluation_batch"] = 16
    read = METRICS["inference_batch_seconds"].read
    assert read(records.of(content, "a run")) == pytest.approx(0.5 / 360 * 16)
    content["inference"] = None
    assert read(records.of(content, "a run")) is None


def test_every_verdict_is_documented():
    text = (ROOT / "docs" / "verdicts.md").read_text(encoding="utf-8")
    for name in {*terms.VERDICTS, *terms.DIRECTIONS, *terms.UNJUDGED, *terms.CLAIM_VERDICTS}:
        assert f"| {name} |" in text
