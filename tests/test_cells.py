"""Studies become cells: what is in an identity, what contradicts itself, what a user is told."""

from __future__ import annotations

import copy
import json

import pytest
import yaml

import cells
import config
import constructed
import machine
import shape
import strategies
import tables
from errors import ParbenchError
from workspace import Workspace


@pytest.fixture
def base(monkeypatch):
    """The project's configuration on a machine of two cores, Horovod at hand."""
    monkeypatch.setattr(machine, "horovod", lambda: None)
    value = config.load()
    value["available"] = {"cpu": 2}
    value["deployment"] = "host"
    return value


@pytest.fixture
def with_study(base, tmp_path, monkeypatch):
    """Expands a changed copy of a study."""
    (tmp_path / "studies").mkdir()
    (tmp_path / "containers").symlink_to(config.ROOT / "containers")
    originals = {p.stem: yaml.safe_load(p.read_text()) for p in config.ROOT.glob("studies/*.yaml")}

    def expand(change, name="quickstart"):
        value = copy.deepcopy(originals[name])
        change(value)
        for study, content in {**originals, name: value}.items():
            (tmp_path / "studies" / f"{study}.yaml").write_text(yaml.safe_dump(content))
        monkeypatch.setattr(config, "ROOT", tmp_path)
        monkeypatch.setattr(cells, "ROOT", tmp_path)
        base["studies"] = [name]
        return cells.plan(config.checked(base))

    return expand


def test_quickstart_is_thirty_cells(base):
    plan = cells.plan(config.checked(base))
    assert len(plan.cells) == 30
    assert not plan.not_run
    assert len(plan.studies["quickstart"]["groups"]) == 10
    ids = [group["id"] for group in plan.studies["quickstart"]["groups"]]
    assert len(set(ids)) == 10


def test_every_cell_fits_the_schema(base):
    base["studies"] = sorted(path.stem for path in config.ROOT.glob("studies/*.yaml"))
    plan = cells.plan(config.checked(base))
    for cell in plan.cells.values():
        config.check(cell, "cell", cell["id"])


def test_cells_without_their_hardware_are_not_run(base):
    base["studies"] = ["gorantla2024"]
    plan = cells.plan(config.checked(base))
    assert set(plan.not_run) == set(plan.cells)
    reasons = set(plan.not_run.values())
    assert {"needs 1x A100", "needs 2x A100", "needs 2x A30"} <= reasons
    assert plan.runnable("gorantla2024") == []


def test_cells_run_where_the_hardware_exists(base):
    base["studies"] = ["gorantla2024"]
    base["available"] = {"cpu": 8, "cuda": {"A100": 1}}
    plan = cells.plan(config.checked(base))
    runnable = plan.runnable("gorantla2024")
    assert runnable
    assert all(plan.cells[cell]["hardware"]["name"] == "a100x1" for cell in runnable)


def test_threads_are_those_of_devices_of_kind_cpu(base):
    base["studies"] = ["gorantla2024"]
    base["hardware"]["a100x1"]["threads"] = 2
    with pytest.raises(ParbenchError, match="hardware.a100x1: threads 2 on device cuda; remove"):
        cells.plan(config.checked(base))


def test_horovod_that_cannot_be_built_is_a_row(base, monkeypatch):
    monkeypatch.setattr(machine, "horovod", lambda: "g++: fatal error: no space")
    plan = cells.plan(config.checked(base))
    assert len(plan.not_run) == 6
    assert all("horovod" in cell for cell in plan.not_run)
    assert set(plan.not_run.values()) == {"g++: fatal error: no space"}


def test_what_does_not_change_a_measurement_changes_no_id(base):
    before = set(cells.plan(config.checked(base)).cells)
    base["timeout_seconds"] = 7
    base["checkpoint_seconds"] = 9
    base["nodes"]["interface"] = "ib0"
    base["slurm"]["partition"] = "gpu"
    base["hardware"]["cpu9"] = {"device": "cpu", "devices": 9}
    base["datasets"]["more"] = {"kind": "digits"}
    base["available"] = {"cpu": 64}
    assert set(cells.plan(config.checked(base)).cells) == before


@pytest.mark.parametrize(
    ("change", "touched"),
    [
        (lambda s: s["variants"]["ddp"].update(settings={"learning_rate": 0.1}), "ddp"),
        (lambda s: s["variants"]["horovod"].update(options={"compression": "fp16"}), "horovod"),
        (lambda s: s["models"]["swin"].update(settings={"epochs": 9}), "swin"),
    ],
)
def test_a_setting_changes_its_own_cells(with_study, change, touched):
    before = set(with_study(lambda s: None).cells)
    after = set(with_study(change).cells)
    assert all(touched in cell for cell in before ^ after)
    assert len(before - after) == sum(touched in cell for cell in before)


def test_the_report_is_told_of_settings_of_one_model_or_variant(with_study):
    plan = with_study(lambda s: s["variants"]["ddp"].update(settings={"learning_rate": 0.1}))
    shown = plan.studies["quickstart"]["study"]["settings"]
    assert shown["epochs"] == 5
    assert shown["epochs of resnet18"] == 1
    assert shown["learning_rate of ddp"] == 0.1


def test_the_report_is_told_what_settings_come_to(with_study):
    """Ranks, micro-batches, rate and BatchNorm of every group, by its strategy and hardware."""
    plan = with_study(lambda s: s["settings"].update(learning_rate_rule="linear"))
    found = {
        group["variant"]: group["work"]
        for group in plan.studies["quickstart"]["groups"]
        if group["model"] == "swin"
    }
    for variant, work in found.items():
        ranks = 2 if variant in ("ddp", "horovod") else 1
        assert work["ranks"] == ranks
        assert work["learning_rate"] == 0.003 * ranks
        assert work["micro_batches"] == (2 if "gpipe" in variant else 1)
    assert found["eager"]["batch_norm"] == "the whole batch"
    assert found["ddp"]["batch_norm"] == found["horovod"]["batch_norm"] == "each rank's share"
    assert found["gpipe-2"]["batch_norm"] == "each micro-batch, running statistics not deferred"
    ddp = {"strategy": {"name": "ddp"}, "training": {"batch_norm": "synchronized"}}
    assert strategies.load("ddp").batch_norm(ddp) == "the whole batch, over all ranks"


def test_a_pipeline_has_a_bound_of_its_own(base):
    base["studies"] = ["gorantla2024", "gorantla2024-cpu"]
    plan = cells.plan(config.checked(base))
    found = {
        g["variant"]: g["work"]["pipeline_bound"] for g in plan.studies["gorantla2024"]["groups"]
    }
    assert [found[f"gpipe-1-1-c{m}-never"] for m in (1, 2, 4, 8)] == [1, 4 / 3, 8 / 5, 16 / 9]
    # On one device nothing overlaps, nor do torchgpipe's devices of kind cpu.
    assert found["gpipe-2-c4-never"] is found["horovod"] is found["eager"] is None
    # Processes are a pipeline there, too.
    on_cpu = plan.studies["gorantla2024-cpu"]["groups"]
    bound = {
        g["variant"]: g["work"]["pipeline_bound"] for g in on_cpu if g["strategy"] == "pipeline"
    }
    assert [bound[f"pipeline-gpipe-c{m}"] for m in (1, 2, 4, 8)] == [1, 4 / 3, 8 / 5, 16 / 9]
    assert bound["pipeline-1f1b"] == found["pipeline-1f1b"] == 8 / 5
    assert {g["work"]["pipeline_bound"] for g in on_cpu if g["strategy"] != "pipeline"} == {None}


def test_drawn_images_are_timed_and_never_learned(base):
    base["studies"] = ["quickstart"]
    base["override"] = {"quickstart": {"dataset": "synthetic-32"}}
    with pytest.raises(ParbenchError, match="synthetic-32 is drawn at random.*state `steps`"):
        cells.plan(config.checked(base))
    base["override"]["quickstart"]["settings"] = {"steps": 2}
    assert cells.plan(config.checked(base)).cells


def test_two_studies_share_a_cell(base):
    base["studies"] = ["quickstart"]
    one = cells.plan(config.checked(base))
    group = one.studies["quickstart"]["groups"][0]
    assert "quickstart" not in group["cells"][0]  # a cell does not know its study


def test_more_cells_than_a_workflow_holds_are_refused(with_study, monkeypatch):
    monkeypatch.setattr(cells, "MOST_CELLS", 9_999)
    with pytest.raises(ParbenchError, match=r"10,000 cells .*x seeds.*at most 9,999"):
        with_study(lambda s: s.update(seeds=list(range(1000))))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda s: s["variants"]["ddp"].update(strategy="dpd"),
            "unknown value 'dpd'; did you mean 'ddp'",
        ),
        (
            lambda s: s["variants"]["ddp"].update(hardware="cpu3"),
            "unknown value 'cpu3'; did you mean",
        ),
        (
            lambda s: s["models"].update(resnet19={}),
            "unknown value 'resnet19'; did you mean 'resnet18'",
        ),
        (lambda s: s.update(dataset="digit"), "unknown value 'digit'; did you mean 'digits'"),
        (
            lambda s: s["variants"]["gpipe-1-1"]["options"].update(balance=[1, 1, 1]),
            r"variants.gpipe-1-1 .*balance \[1, 1, 1\] places stages on 3 devices, .* cpu2 has 2",
        ),
        (
            lambda s: s["variants"]["gpipe-2"]["options"].update(balance=[3]),
            "resnet18.py states cuts for 1, 2, 4 stages, not for 3",
        ),
        (
            lambda s: s["variants"]["gpipe-2"]["options"].update(chunks=32),
            "min_tail 16 is too small|global_batch 32 is too small",
        ),
        (
            lambda s: s["variants"]["gpipe-2"]["options"].update(chunk=2),
            "'chunk'.*did you mean 'chunks'",
        ),
        (
            lambda s: s["variants"]["eager"].update(hardware="cpu2"),
            "eager training uses one device",
        ),
        (
            lambda s: s["variants"]["ddp"].update(options={"backend": "nccl"}),
            "nccl works between GPUs only",
        ),
        (
            lambda s: s["variants"].update(again=dict(s["variants"]["ddp"])),
            "the same cells as variant",
        ),
        (lambda s: s["settings"].update(min_tail=64), "min_tail 64 is larger than global_batch 32"),
        (
            lambda s: s["variants"]["ddp"].update(settings={"mode": "deterministic"}),
            r"mixes modes: deterministic \(ddp of resnet18\), performance \(eager of resnet18\)",
        ),
        (
            lambda s: s["variants"]["ddp"].update(settings={"profile": "phases"}, baseline="ddp"),
            "variants.ddp.baseline: .*instrumented cells, and ddp has `profile: phases`",
        ),
        (
            lambda s: s["variants"]["eager"].update(settings={"profile": "phases"}),
            "instrumented cells, and eager has `profile: phases`; remove the baseline",
        ),
        (
            lambda s: (
                s["variants"]["ddp"].pop("baseline"),
                s["variants"]["ddp"].update(settings={"profile": "phases"}),
            ),
            r"mixes profiles: phases \(ddp of resnet18\), none \(eager of resnet18\)",
        ),
        (lambda s: s["settings"].update(precision="fp16"), "fp16 needs an accelerator"),
        (
            lambda s: s.update(
                not_yet=[{"what": "it", "reason": "x", "published": {"model": "y"}}]
            ),
            "not_yet: 'it': published selects no row of source None",
        ),
        (lambda s: s["settings"].pop("learning_rate"), "setting 'learning_rate' .* is missing"),
        (lambda s: s["tables"][0].update(variants=["egaer"]), "did you mean 'eager'"),
        (lambda s: s["variants"]["ddp"].update(baseline="eagr"), "baseline: unknown value 'eagr'"),
        (
            lambda s: s["variants"]["ddp"].update(models=["swim"]),
            "variants.ddp.models: unknown value 'swim'; did you mean 'swin'",
        ),
        (
            lambda s: s["variants"]["eager"].update(models=["swin"]),
            "baseline: eager does not train the model resnet18; add it to the `models` of",
        ),
        (
            lambda s: s["models"]["swin"]["options"].update(num_heads=[3]),
            r"depths \[2, 2\] and num_heads \[3\] have different lengths",
        ),
        (lambda s: s["variants"]["ddp"].update(published={"hardware": "A100"}), "key `published`"),
    ],
)
def test_contradictions_are_refused(with_study, change, words):
    with pytest.raises(ParbenchError, match=words) as caught:
        with_study(change)
    assert "studies/quickstart.yaml" in str(caught.value)


def test_unknown_stack_and_override(base):
    base["stack"] = "curent"
    with pytest.raises(ParbenchError, match="did you mean 'current'"):
        cells.plan(config.checked(base))
    base["stack"] = "current"
    base["override"] = {"quickstrat": {}}
    with pytest.raises(ParbenchError, match="did you mean 'quickstart'"):
        cells.plan(config.checked(base))


def test_override_moves_a_study_to_other_hardware(base):
    base["studies"] = ["gorantla2024"]
    base["available"] = {"cpu": 2, "cuda": {"H200": 1}}

    def groups(**moved):
        base["override"] = {"gorantla2024": {"hardware": moved}}
        return cells.plan(config.checked(base)).studies["gorantla2024"]["groups"]

    eager = groups(a100x1="gpu1")[0]
    assert eager["not_run"] is None
    assert eager["hardware"]["name"] == "gpu1"
    assert eager["hardware"]["gpu_model"] is None
    for moved, words in (
        ({"a100": "gpu1"}, "override.gorantla2024: hardware: unknown value 'a100'; did you mean"),
        ({"a100x1": "gp1"}, "hardware: unknown value 'gp1'; did you mean"),
        ({"a100x1": "gpu2"}, r"eager \(moved to gpu2 by `override`\) .* uses one device"),
        ({"a100x1": "gpu1", "a30x1": "gpu1"}, "the same cells as variant 'gpipe-2-a30'"),
    ):
        with pytest.raises(ParbenchError, match=words):
            groups(**moved)


def test_override_changes_dataset_and_says_so(base):
    base["studies"] = ["gorantla2024-cpu"]
    base["datasets"]["cifar10-jpeg"] = {"kind": "image-folder", "path": "somewhere"}
    base["override"] = {"gorantla2024-cpu": {"dataset": "cifar10-jpeg", "settings": {"epochs": 1}}}
    plan = cells.plan(config.checked(base))
    study = plan.studies["gorantla2024-cpu"]
    assert study["study"]["dataset"] == "cifar10-jpeg"
    assert study["study"]["source_dataset"] == "cifar10"
    for group in study["groups"]:
        assert "epochs 1 instead of 50" in group["scaled"]
        assert "train_samples 2048 instead of all" in group["scaled"]
    swin = next(g for g in study["groups"] if g["model"] == "swin")
    assert any("embed_dim 48 instead of 96" in words for words in swin["scaled"])


def test_other_options_of_a_strategy_are_told_of_a_scaled_variant(base):
    names = ["torchgpipe-cpu", "gorantla2024-cpu", "laharsh-cpu", "kamoji-cpu"]
    plan = cells.plan(config.checked({**base, "studies": names}))

    def scaled(study, variant):
        groups = plan.studies[study]["groups"]
        return next(g["scaled"] for g in groups if g["variant"] == variant)

    assert "chunks 8 instead of 1667" in scaled("torchgpipe-cpu", "pipeline-2")
    assert not [words for words in scaled("torchgpipe-cpu", "pipeline-1") if "chunks" in words]
    assert scaled("gorantla2024-cpu", "gpipe-1-1") == scaled("gorantla2024-cpu", "eager")
    assert scaled("laharsh-cpu", "concurrent")[-1] == "other options in beside"
    # A variant that the larger study has not: what it states itself is no scale.
    assert scaled("kamoji-cpu", "one-8") == scaled("kamoji-cpu", "one-32")
    assert "image_size 32 instead of 224" in scaled("kamoji-cpu", "one-8")


def test_another_strategy_is_told_of_a_scaled_variant(with_study):
    def change(study):
        eager = {"strategy": "eager", "options": {}, "hardware": "cpu1t2"}
        study["variants"]["gpipe-2-c4-never"] |= eager

    groups = with_study(change, "gorantla2024-cpu").studies["gorantla2024-cpu"]["groups"]
    found = next(g["scaled"] for g in groups if g["variant"] == "gpipe-2-c4-never")
    assert found[-1] == "strategy eager instead of gpipe"


def test_settings_of_a_variant_beside_published_rows_are_told_as_scaled(with_study):
    def change(study):
        study["variants"]["one-8"]["published"] = {"hardware": "CPU"}

    groups = with_study(change, "kamoji-cpu").studies["kamoji-cpu"]["groups"]
    found = {g["variant"]: g["scaled"] for g in groups}
    assert "steps 10 instead of all" in found["one-8"]
    assert "steps 10 instead of all" not in found["one-32"]


def test_what_a_variant_does_else_than_the_source_is_in_the_plan(base):
    base["studies"] = ["torchgpipe", "quickstart"]
    studies = cells.plan(config.checked(base)).studies
    found = {g["variant"]: g["differs"] for g in studies["torchgpipe"]["groups"]}
    assert found["baseline"] == found["pipeline-1"] != found["pipeline-2"]
    assert "repeats one batch" in found["baseline"]
    assert "places 370 layers by hand" in found["pipeline-8"]
    assert {group["differs"] for group in studies["quickstart"]["groups"]} == {None}


def test_baseline_and_published_rows(base):
    base["studies"] = ["gorantla2024"]
    groups = cells.plan(config.checked(base)).studies["gorantla2024"]["groups"]
    by_variant = {g["variant"]: g for g in groups if g["model"] == "swin"}
    assert by_variant["horovod"]["baseline"] == by_variant["eager"]["id"]
    assert by_variant["horovod"]["published"]["hardware"] == "A100"
    assert by_variant["ddp"]["published"] is None
    # a note about CPU pipelines does not belong on a GPU
    assert by_variant["gpipe-1-1-a100"]["comparable"] == {}


@pytest.mark.parametrize("name", ["gorantla2024", "rangoju2025", "laharsh", "kamoji", "torchgpipe"])
def test_every_published_number_has_its_place(base, name):
    """In a table of the study at published scale, of its model, with its metric; or not yet."""
    base["studies"] = [name]
    plan = cells.plan(config.checked(base)).studies[name]
    files = [config.ROOT / path for path in cells.published_files()]
    frame = tables.read_source(name, files)
    source = tables.Published(frame, name)
    placed = {
        (table, group["published"]["model"], metric.name, found.value)
        for shown in plan["study"]["tables"]
        for group in [*plan["groups"], *plan["together"]]
        if shape.holds(shown, group)
        for metric in [
            *(tables.METRICS[metric] for metric in shown["metrics"]),
            *tables.operators_of(tables.Group(group, ()), source),
        ]
        if (found := source.find(group, metric))
        for table in [found.table]
    }
    later = [row for entry in plan["study"]["not_yet"] for row in entry["published"]]
    placed |= {(row["table"], row["model"], row["metric"], row["value"]) for row in later}
    rows = frame[frame["study"] == name]
    wanted = {
        (table, r["model"], tables.METRIC_ALIASES.get(r["metric"], r["metric"]), r["value"])
        for _, r in rows.iterrows()
        for table in [r["table"]]
    }
    assert wanted <= placed


def test_a_table_may_be_about_some_models(with_study):
    def about(models):
        return lambda study: study["tables"][0].update(models=models)

    plan = with_study(about(["swin"]))
    shown = plan.studies["quickstart"]["study"]["tables"][0]
    held = {g["model"] for g in plan.studies["quickstart"]["groups"] if shape.holds(shown, g)}
    assert held == {"swin"}
    with pytest.raises(ParbenchError, match="models: unknown value 'swim'; did you mean 'swin'"):
        with_study(about(["swim"]))


def test_a_variant_may_train_some_models(with_study):
    plan = with_study(lambda study: study["variants"]["ddp"].update(models=["swin"]))
    groups = plan.studies["quickstart"]["groups"]
    assert [g["model"] for g in groups if g["variant"] == "ddp"] == ["swin"]
    assert [g["model"] for g in groups if g["variant"] == "eager"] == ["resnet18", "swin"]


def test_pipeline_on_cpu_is_never_a_scaling_result(base):
    groups = cells.plan(config.checked(base)).studies["quickstart"]["groups"]
    noted = {g["variant"] for g in groups if "speedup" in g["comparable"]}
    assert noted == {"gpipe-1-1"}


def test_every_strategy_and_model_file_keeps_the_contract():
    """A new file is picked up without a test being edited."""
    for name in config.modules("strategies"):
        module = strategies.load(name)
        stated = (
            "OPTIONS processes shares parts stages launcher beside check notes unavailable Strategy"
        )
        for part in [*stated.split(), "pipeline_bound"]:
            assert hasattr(module, part), f"strategies/{name}.py lacks {part}"
        for option in module.OPTIONS.values():
            assert option["description"]
    for name in config.modules("models"):
        module = cells.models.load(name)
        assert all(hasattr(module, part) for part in ("OPTIONS", "cuts", "build")), name
        defaults = {key: part["default"] for key, part in module.OPTIONS.items()}
        assert module.cuts(1, defaults) == []
        assert len(module.cuts(2, defaults)) == 1


def test_planning_never_imports_torch(tmp_path):
    copy_ = Workspace(tmp_path / "work folder")
    program = (
        "import sys; sys.path.insert(0, 'scripts'); import cells, config; "
        "cells.plan(config.checked(config.load())); assert 'torch' not in sys.modules"
    )
    copy_.run("-c", program)


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def work(tmp_path):
    return Workspace(tmp_path / "work folder")


def metrics_of(plan, cell_id):
    """What training the cell now would leave."""
    cell = plan.cells[cell_id]
    code = cells.provenance.cell_code(cell["strategy"]["name"], cell["model"]["name"])
    environment = {
        "code": code,
        "code_digest": cells.provenance.combined(code),
        "dataset_digest": "0" * 64,
    }
    return constructed.make_metrics(cell, environment=environment)


@pytest.mark.parametrize("status", ["ok", "diverged", "out_of_memory"])
def test_a_failed_run_is_a_result_and_not_trained_again(base, tmp_path, monkeypatch, status):
    monkeypatch.setattr(cells, "RESULTS", tmp_path)
    plan = cells.plan(config.checked(base))
    cell_id = next(iter(plan.cells))
    metrics = constructed.make_metrics(
        plan.cells[cell_id], status, environment=metrics_of(plan, cell_id)["environment"]
    )
    for name, value in (
        (f"cells/{cell_id}/metrics.json", metrics),
        ("data/digits/digest.json", {"sha256": "0" * 64}),
    ):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(json.dumps(value))
    assert cells.state(cell_id, plan) == ("done", [])


@pytest.fixture
def trained(work, base):
    """A work folder in which one cell stands as trained (constructed; no number is reported)."""
    plan = cells.plan(config.checked(base))
    cell_id = next(iter(plan.cells))
    home = work.folder / "results/cells" / cell_id
    home.mkdir(parents=True)
    (home / "metrics.json").write_text(json.dumps(metrics_of(plan, cell_id)))
    data = work.folder / "results/data/digits"
    data.mkdir(parents=True)
    (data / "digest.json").write_text(json.dumps({"sha256": "0" * 64}))
    return work, cell_id


def test_list_tells_each_state(trained):
    work, cell_id = trained
    out = work.run("scripts/cells.py", "list").stdout
    assert f"{cell_id} " in out
    assert "30 cells: 1 done, 29 missing" in out


def test_why_of_a_finished_cell_tells_what_it_was_run_with(trained):
    work, cell_id = trained
    out = work.run("scripts/cells.py", "why", cell_id).stdout
    assert "done" in out
    assert "torch 2.15.0" in out
    assert "learning_rate" in out


def test_why_names_the_changed_code(trained):
    work, cell_id = trained
    work.edit("scripts/loader.py", "def order(", "def order_(x):\n    return x\n\n\ndef order(")
    out = work.run("scripts/cells.py", "why", cell_id).stdout
    assert "scripts/loader.py changed since it was trained" in out


def test_why_names_the_changed_data(trained):
    work, cell_id = trained
    digest = work.folder / "results/data/digits/digest.json"
    digest.write_text(json.dumps({"sha256": "1" * 64}))
    assert "the dataset digits changed" in work.run("scripts/cells.py", "why", cell_id).stdout


def damaged(kind, metrics):
    """metrics.json as it should not be."""
    no_environment = {key: value for key, value in metrics.items() if key != "environment"}
    other = {**metrics, "cell": {**metrics["cell"], "id": "another"}}
    return {
        "half": json.dumps(metrics)[:500],
        "list": "[]",
        "foreign": json.dumps(no_environment),
        "another": json.dumps(other),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("half", "not valid JSON"),
        ("list", "is not of type 'object'"),
        ("foreign", "'environment' is a required property"),
        ("another", "a run of another"),
    ],
)
def test_a_damaged_result_is_named_and_the_others_listed(trained, kind, words):
    work, cell_id = trained
    path = work.folder / "results/cells" / cell_id / "metrics.json"
    path.write_text(damaged(kind, json.loads(path.read_text())))
    out = work.run("scripts/cells.py", "list").stdout
    line = next(line for line in out.splitlines() if line.startswith(cell_id))
    assert f"unreadable results/cells/{cell_id}/metrics.json: " in line
    assert words in line
    assert "delete" in line
    assert "30 cells: 1 unreadable, 29 missing" in out
    done = work.run("scripts/cells.py", "why", cell_id)
    assert words in done.stdout
    # and where another cell looks for its nearest
    work.run("scripts/cells.py", "why", cell_id.replace(".s0", ".s1").rpartition("-")[0])


def test_a_damaged_description_of_the_data_is_named(trained):
    work, _ = trained
    (work.folder / "results/data/digits/digest.json").write_text("[]")
    out = work.run("scripts/cells.py", "list").stdout
    assert "digest.json: describes no dataset; delete it" in out


def test_why_names_the_changed_setting(trained):
    work, _ = trained
    work.edit("studies/quickstart.yaml", "learning_rate: 0.001", "learning_rate: 0.004")
    out = work.run("scripts/cells.py", "why", "resnet18.eager.cpu1.s0").stdout
    assert "training.learning_rate: 0.001 became 0.004" in out


def test_command_prints_what_trains_a_cell(work):
    out = work.run("scripts/cells.py", "command", "resnet18.ddp.cpu2.s1").stdout
    assert "torch.distributed.run" in out
    assert "scripts/train.py" in out


def test_command_says_how_to_make_a_missing_dataset(work):
    (work.folder / "mine.yaml").write_text("timeout_seconds: 60\n")
    words = ["--configfile", "mine.yaml", "command", "resnet18.ddp.cpu2.s1"]
    done = work.run("scripts/cells.py", *words)
    assert done.stdout.count("\n") == 1  # nothing but what is to be pasted
    assert "first: snakemake results/data/digits/digest.json --configfile mine.yaml" in done.stderr
    digest = work.folder / "results/data/digits/digest.json"
    digest.parent.mkdir(parents=True)
    digest.write_text(json.dumps({"sha256": "0" * 64}))
    assert work.run("scripts/cells.py", *words).stderr == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["why", "nothing"], "unknown cell 'nothing'"),
        (["why", "ddp"], "means 6 cells"),
        (["--study", "gorantla2024", "command", "swin.gpipe.a30x2.balance-1-1.s0"], "needs 2x A30"),
        (["--configfile", "missing.yaml", "list"], "missing.yaml: no such file"),
    ],
)
def test_mistakes_on_the_command_line(work, words, message):
    result = work.run("scripts/cells.py", *words, check=False)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
