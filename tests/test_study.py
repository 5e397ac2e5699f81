"""parbench study: what a new study is made from, and what a table must state for that."""

from __future__ import annotations

import csv
import re

import pytest

from isolated import ROOT
from parbench.plan import config_files, expansion, places
from parbench.verdicts import preview
from workspace import Workspace

TABLE = """\
# Results

| Network | Method | GPUs | Time (min) | Top-1 (%) |
|---|---|---|---|---|
| ResNet-50 | PyTorch | 1 | 56.4 | 83.53 |
| ResNet-50 | Horovod | 2 | 39.2 | 83.04 |
| Swin | PyTorch | 1 | 120.6 | 91.20 |
| Swin | Horovod | 2 | 92.6 | 89.96 ± 0.2 |
"""
COLUMNS = "Network=model, Method=strategy, GPUs=devices, Time=train_seconds, Top-1=test_accuracy"


CLAIM = """
theirs-faster:
  study: theirs
  claim: Two GPUs are faster.
  test: {metric: train_seconds, numerator: {devices: 2}, denominator: {devices: 1}, op: "<"}
  parts:
    - {about: {model: swin}}
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    made = Workspace(tmp_path_factory.mktemp("a project"))
    (made.folder / "table.md").write_text(TABLE)
    return made


def new(workspace, *words, table="table.md", columns=COLUMNS):
    """Run `study.py new` on a table."""
    words = ["new", *words, "--table", table, "--columns", columns]
    return workspace.parbench("study", *words, check=False)


def test_its_files_are_a_study_and_a_small_copy_that_can_be_planned(workspace):
    done = new(workspace, "mine", "--given", "hardware=A100", "--title", "Two GPUs")
    assert done.returncode == 0, done.stderr
    assert "studies/mine.yaml" in done.stdout
    assert "#   study: mine" in done.stdout
    with (workspace.folder / "studies/published/mine.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    first = rows[0]
    assert (first["model"], first["strategy"], first["hardware"]) == ("resnet50", "eager", "A100")
    assert (float(first["value"]), first["unit"]) == (56.4 * 60, "s")
    assert (first["published_value"], first["published_unit"]) == ("56.4", "min")
    assert first["note"] == "model printed as ResNet-50; strategy printed as PyTorch"
    assert rows[4]["published_value"] == "83.53"
    assert (rows[7]["published_value"], rows[7]["value"]) == ("89.96", "0.8996")
    assert rows[7]["note"].endswith("; printed with ± 0.2")
    for study in ("mine", "mine-cpu"):
        workspace.snakemake("-n", "--config", f"studies=[{study}]")
        text = (workspace.folder / f"studies/{study}.yaml").read_text()
        assert "horovod-2" in text
    again = new(workspace, "mine", "--given", "hardware=A100")
    assert "exists; choose another name, or remove it" in again.stderr


@pytest.mark.parametrize(
    ("words", "change", "sentence"),
    [
        (["a/b"], {}, "'a/b' is not a valid study name; use lowercase letters, digits and hyphens"),
        (["x"], {"Swin": "GPT-9"}, "line 7: model 'GPT-9' is unknown; name which of"),
        (["x"], {"Horovod": "Hogwild"}, "line 6: strategy 'Hogwild' is unknown; name which"),
        (["x"], {"56.4": "56,400.2.1"}, "line 5: column 'Time (min)': '56,400.2.1' is not one"),
    ],
)
def test_what_a_table_must_say(workspace, words, change, sentence):
    text = TABLE
    for old, other in change.items():
        text = text.replace(old, other, 1)
    (workspace.folder / "other.md").write_text(text)
    done = new(workspace, *words, table="other.md")
    assert done.returncode != 0
    assert sentence in done.stderr
    assert not (workspace.folder / "studies/x.yaml").exists()


def test_a_table_that_states_neither_its_model_nor_a_title(workspace):
    columns = COLUMNS.replace("Network=model, ", "")
    done = new(workspace, "x", columns=columns)
    assert "table.md: no column states the model; map one to it, as --columns" in done.stderr
    # Without its heading, after which the study would be called.
    (workspace.folder / "one.md").write_text("".join(TABLE.splitlines(keepends=True)[2:6]))
    again = new(workspace, "x", "--given", "model=ResNet-50", table="one.md", columns=columns)
    assert again.returncode == 0, again.stderr
    for name, title in (("x", "one"), ("x-cpu", "one, scaled down to processor cores")):
        assert f"\ntitle: {title}\n" in (workspace.folder / f"studies/{name}.yaml").read_text()


def test_outside_of_the_checkout_a_study_is_named_by_its_path(workspace, tmp_path):
    done = new(workspace, "theirs", "--folder", tmp_path / "a paper", "--given", "hardware=A100")
    assert done.returncode == 0, done.stderr
    (tmp_path / "a paper/published/claims.yaml").write_text(CLAIM)
    small = tmp_path / "a paper/theirs-cpu.yaml"
    dry = workspace.snakemake("-n", "--config", f"studies=['{small}', quickstart]").stdout
    checked = workspace.parbench("study", "check", small).stdout
    (tmp_path / "mine.yaml").write_text(f"studies: ['{small}']\n")
    words = ["check", "theirs-cpu", "--configfile", tmp_path / "mine.yaml"]
    assert workspace.parbench("study", *map(str, words)).stdout == checked
    assert "line 2, resnet50 eager on 1x A100, train_seconds 56.4 min: beside eager-1" in checked
    assert "scaled: epochs 2 instead of 10" in checked
    lines = [line.strip() for line in checked.splitlines()]
    assert "- train_seconds; model swin; devices 2 over devices 1: a ratio below 1" in lines
    assert "horovod-2 over eager-1 of swin: decided by pairs" in lines
    assert "1 of 1 claim can be tested with them: theirs-faster" in checked
    assert checked.rpartition("\n\n")[0] in dry


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ("model: swinn", "theirs-faster: model: unknown name 'swinn'; did you mean 'swin'?"),
        ("options: {bucket_cap: 3}", "theirs-faster: options: unknown name 'bucket_cap'; did you"),
        ("settings: {memory_format: chanels_last}", "memory_format: unknown value 'chanels_last'"),
        ("settings: {memory_fromat: x}", "unknown key 'memory_fromat' (value 'x'); did you mean"),
    ],
)
def test_what_a_claim_names_must_exist(workspace, named, sentence):
    path = workspace.folder / "studies/published/claims.yaml"
    before = path.read_text()
    claim = CLAIM.replace("model: swin", named).replace("study: theirs", "study: gorantla2024")
    path.write_text(before + claim)
    done = workspace.parbench("study", "check", "quickstart", check=False)
    path.write_text(before)
    assert sentence in done.stderr, done.stdout


def test_of_two_claims_with_one_name_the_message_names_the_users_file(workspace, tmp_path):
    (tmp_path / "published").mkdir()
    own = tmp_path / "published/claims.yaml"
    name = "gorantla-horovod-faster"
    claim = CLAIM.replace("study: theirs", "study: gorantla2024").replace("theirs-faster", name)
    own.write_text(claim)
    study = tmp_path / "theirs-cpu.yaml"
    study.write_text((workspace.folder / "studies/quickstart.yaml").read_text())
    done = workspace.parbench("study", "check", str(study), check=False)
    assert (
        f"error: {own}: duplicate claim '{name}': studies/published/claims.yaml has " in done.stderr
    )


def test_a_variant_of_a_copy_alone_may_select_published_rows(workspace, tmp_path):
    """The source's study states the batch for each variant only, and has no such variant."""
    lines = [
        f"{line} {'---' if '---' in line else 'Batch' if 'Network' in line else 64} |"
        for line in TABLE.splitlines()[2:]
    ]
    (workspace.folder / "batch.md").write_text("\n".join(lines))
    words = ["extra", "--folder", tmp_path / "f", "--given", "hardware=A100"]
    done = new(workspace, *words, table="batch.md", columns=f"{COLUMNS}, Batch=batch_size")
    assert done.returncode == 0, done.stderr
    copy = tmp_path / "f/extra-cpu.yaml"
    copy.write_text(copy.read_text().replace("horovod-2-64", "two"))
    assert "two over" not in workspace.parbench("study", "check", copy).stderr


def test_a_study_may_not_be_named_as_another_one(workspace, tmp_path):
    (tmp_path / "quickstart.yaml").write_text("title: mine")
    for path, sentence in (
        (
            tmp_path / "quickstart.yaml",
            "parbench already has a study 'quickstart'; rename the file",
        ),
        (tmp_path / "none.yaml", "no such file; name a study by the path of its .yaml file, or"),
    ):
        done = workspace.parbench("study", "check", path, check=False)
        assert sentence in done.stderr


def test_a_copy_has_as_many_nodes_as_its_source(workspace):
    nodes = TABLE.replace("| Network |", "| Nodes | Network |").replace(
        "|---|---|", "|---|---|---|", 1
    )
    rows = nodes.replace("| ResNet-50 |", "| 1 | ResNet-50 |").replace("| Swin |", "| 2 | Swin |")
    (workspace.folder / "nodes.md").write_text(rows.replace("| 2 | 92.6", "| 1 | 92.6"))
    done = new(workspace, "nodes", table="nodes.md", columns=f"Nodes=nodes, {COLUMNS}")
    assert done.returncode == 0, done.stderr
    assert "hardware: cpu2x1" in (workspace.folder / "studies/nodes-cpu.yaml").read_text()


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (
            "Swin=swinn",
            "--names: 'swinn', for 'Swin', is not a model or strategy; did you mean 'swin'",
        ),
        ("Swim=swin", "prints no model or strategy 'Swim'; it prints Horovod, PyTorch, ResNet-50,"),
        (
            "Swin=resnet50",
            "lines 5 and 7: the models 'ResNet-50' and 'Swin' both become 'resnet50'",
        ),
    ],
)
def test_names_that_name_nothing_or_two_things_are_refused(workspace, names, sentence):
    done = new(workspace, "y", "--names", names)
    assert done.returncode != 0
    assert sentence in done.stderr
    assert not (workspace.folder / "studies/y.yaml").exists()


def test_two_printed_names_of_one_model_are_reported(workspace):
    (workspace.folder / "one.md").write_text(TABLE.replace("Swin | PyTorch | 1", "ViT | Torch | 4"))
    done = new(workspace, "one", "--names", "ViT=swin", table="one.md")
    assert done.returncode == 0, done.stderr
    assert "note: the models ViT, Swin all become swin" in done.stdout
    assert "note: the strategies PyTorch, Torch all become eager" in done.stdout


def test_what_the_table_does_not_say_is_said_to_be_assumed(workspace):
    done = new(workspace, "bare", columns=COLUMNS.replace("Method=strategy, ", ""))
    assert done.returncode == 0, done.stderr
    for path in ("bare.yaml", "bare-cpu.yaml"):
        text = (workspace.folder / "studies" / path).read_text()
        for word in ("dataset cifar10", "strategy eager on one device, ddp on several", "hardware"):
            assert f"# assumed: {word}" in text
            assert f"\nassumed: {word}" in done.stdout
    assert "strategy assumed" in (workspace.folder / "studies/published/bare.csv").read_text()
    workspace.parbench("study", "check", "bare-cpu")


def test_a_metric_that_no_cell_has_is_refused_with_the_names_of_all(workspace):
    done = new(workspace, "z", columns=COLUMNS.replace("test_accuracy", "accuracy"))
    assert (
        "'accuracy' is not a column or metric that cells have; did you mean 'test_acc"
        in done.stderr
    )
    assert "; known: model, strategy, " in done.stderr
    assert ", test_f1_macro, " in done.stderr


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("quickstart", "parbench already has a study 'quickstart'; choose another name"),
        ("laharsh", "parbench already has a study 'laharsh'; choose another name"),
    ],
)
def test_a_draft_may_not_be_named_as_a_study_of_the_checkout(workspace, tmp_path, name, sentence):
    done = new(workspace, name, "--folder", tmp_path)
    assert sentence in done.stderr
    assert not list(tmp_path.iterdir())


def test_names_of_ones_own_are_mapped(workspace):
    (workspace.folder / "own.md").write_text(TABLE.replace("Swin", "Our transformer"))
    done = new(workspace, "own", "--names", "Our transformer=swin", table="own.md")
    assert done.returncode == 0, done.stderr
    assert "swin" in (workspace.folder / "studies/own.yaml").read_text()


# A study of one's own on GPUs, a copy of it with other images, values and claims.
OWN = """
title: Own
description: It lacks a pair.
citation: null
published: own
dataset: cifar10
seeds: [0, 1, 2, 3]
settings: {epochs: 1, global_batch: 32, optimizer: sgd, schedule: constant, learning_rate: 0.05}
models: {cnn: {}}
variants:
  eager: {strategy: eager, hardware: gpu1, published: {devices_per_node: 1}}
  eager-last: {strategy: eager, hardware: gpu1, settings: {memory_format: channels_last}}
  ddp: {strategy: ddp, hardware: gpu2, baseline: eager, published: {devices_per_node: 2}}
tables: [{title: All, variants: [eager, eager-last, ddp], metrics: [train_seconds, speedup]}]
"""
COPY = OWN.replace("cifar10", "digits").replace("gpu", "cpu") + "scaled_from: own\n"
PAIR = "{variant: ddp, baseline: eager}"
AA = "{variant: eager, baseline: eager}"
VALUES = """study,table,model,strategy,hardware,nodes,devices_per_node,metric,value,unit
own,1,cnn,eager,T4,1,1,test_accuracy,0.8,fraction
own,1,cnn,ddp,T4,1,2,speedup,1.5,ratio
own,1,cnn,ddp,T4,1,4,speedup,2.5,ratio
own,1,cnn,ddp,T4,1,8,speedup,3.5,ratio
"""
CLAIMS = """
own-claim:
  study: own
  claim: All sorts of things.
  test: {op: "<", metric: train_seconds}
  parts:
    - {numerator: {devices: 2}, denominator: {devices: 1}, about: {strategy: [eager, ddp]}}
    - {numerator: {devices: 2}, denominator: {devices: 1}, metric: speedup, op: ">"}
    - numerator: {settings: {memory_format: channels_last}}
      denominator: {settings: {memory_format: contiguous}}
      about: {strategy: eager, settings: {augment: true}}
      metric: test_accuracy
      op: ">"
      size: [0.02, null]
"""


@pytest.fixture
def previewed(tmp_path, monkeypatch):
    """Return what is previewed of a study, by name, where two cores are."""
    monkeypatch.chdir(ROOT)
    files = {"own.yaml": OWN, "own-cpu.yaml": COPY}
    files |= {"published/own.csv": VALUES, "published/claims.yaml": CLAIMS}
    (tmp_path / "published").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def lines(name: str, **changes) -> list[str]:
        changes |= {"studies": [str(tmp_path / f"{name}.yaml")], "available": {"cpu": 2}}
        config = config_files.read([], changes | {"deployment": "host"})
        plan = expansion.plan(config, config.resolved_deployment())
        return [line.strip() for line in preview.preview(plan, name)]

    yield lines
    places.look_in([])


def test_what_a_study_lacks_is_reported_even_where_its_hardware_is_missing(previewed, tmp_path):
    lines = previewed("own")
    assert f"Published values, by line of {tmp_path}/published/own.csv" in lines
    lack = "no pair (`pairs`) compares them in turns; not run here: needs 2 GPUs"
    assert any(f"not measured: {lack}" in line and line.startswith("line 3, ") for line in lines)
    one = "line 2, cnn eager on 1x T4, test_accuracy 0.8 fraction: "
    assert any(line.startswith(one) and line.endswith("here: needs 1 GPU") for line in lines)
    assert "no cell selects lines 4 to 5 (`published` of variants)" in lines
    assert f"ddp over eager of cnn: {lack}, needs 1 GPU" in lines


def test_a_missing_a_a_pair_is_named_with_the_line_that_adds_it(previewed, tmp_path):
    """Each side's devices need one, in training and in predicting."""
    path, compare = tmp_path / "own-cpu.yaml", "pairs: {compare: ["
    path.write_text(f"{COPY}{compare}{PAIR}, {PAIR[:-1]}, inference: true}}, {AA}]}}\n")
    found = [line for line in previewed("own-cpu") if "A/A pair" in line]
    lack = "There is no A/A pair of {} on {}, so that no verdict on a pair with such a side is firm"
    adding = "; add {{variant: {0}, baseline: {0}{1}}} to pairs.compare."
    inference = ", inference: true"
    assert found == [
        lack.format("training", "2 CPU cores") + adding.format("ddp", ""),
        lack.format("inference", "2 CPU cores") + adding.format("ddp", inference),
        lack.format("inference", "1 CPU core") + adding.format("eager", inference),
    ]


def test_a_committed_study_lacks_no_a_a_pair(monkeypatch):
    monkeypatch.chdir(ROOT)
    for path in sorted((ROOT / "studies").glob("*.yaml")):
        config = config_files.read([], {"studies": [path.stem], "deployment": "host"})
        plan = expansion.plan(config, config.resolved_deployment())
        lines = preview.preview(plan, path.stem)
        assert not [line for line in lines if "There is no A/A pair" in line], path


def test_a_claim_is_printed_in_words_with_what_a_ratio_would_need(previewed):
    lines = previewed("own")
    one = "- train_seconds; strategy eager or ddp; devices 2 over devices 1: a ratio below 1"
    assert one in lines
    both = "memory_format channels_last over memory_format contiguous"
    asked = "a difference above 0, published 0.02 or more"
    assert f"- test_accuracy; strategy eager, augment true; {both}: {asked}" in lines
    assert "own-claim: All sorts of things. (0 of 3 comparisons can be decided here)" in lines
    of_two = "no cell measures speedup, which compares two cells; name what each side has, such as"
    assert any(f"not measured: {of_two} train_seconds, " in line for line in lines)


def test_the_work_and_restarts_of_each_cell_are_printed(previewed, tmp_path):
    pairs = "pairs: {compare: [{variant: ddp, baseline: eager}], restarts: 5}\n"
    short = COPY.replace("epochs: 1", "epochs: 2, train_samples: 512")
    (tmp_path / "own-cpu.yaml").write_text(short + pairs)
    (ddp,) = (line for line in previewed("own-cpu") if line.startswith("cnn    ddp"))
    assert "2 epochs of 512 samples  4      eager (5)" in ddp


def test_missing_data_are_reported_before_anything_runs(previewed, tmp_path):
    study = re.sub(", published: {.*?}|published: own\n", "", OWN)
    (tmp_path / "own-cpu.yaml").write_text(study.replace("gpu", "cpu").replace("cifar10", "mine"))
    here = {"kind": "image-folder", "path": str(tmp_path)}
    lines = previewed("own-cpu", datasets={"mine": here})
    assert f"mine: {tmp_path}" in lines
    lines = previewed("own-cpu", datasets={"mine": here | {"path": f"{tmp_path}/none"}})
    assert f"mine: {tmp_path}/none does not exist, and no cell runs without it" in lines
    # A study without a source has nothing to differ from, or to stand beside.
    assert not any("source" in line or "Published" in line for line in lines)


def test_another_dataset_than_the_sources_is_a_difference(previewed):
    assert any("scaled: dataset digits instead of cifar10" in line for line in previewed("own-cpu"))
