"""Studies become cells, and a cell's state is reported with its reasons.

tests/expected has the plans of all studies and the messages for mistakes.
"""

from __future__ import annotations

import json
import re

import pytest

import constructed
from parbench import cache, decided, identity, machine, models, packages, strategies
from parbench.cell import TF32, Cell, Pair
from parbench.decided import Decided
from parbench.errors import ParbenchError
from parbench.launch import outcome
from parbench.measure import metrics_types, provenance
from parbench.plan import config_files, expansion, places, state
from parbench.plan.options import all_options
from parbench.runs import parts, records
from parbench.software import Software
from parbench.verdicts import plan_results
from parbench.verdicts.forecast import forecast
from parbench.verdicts.matching import PublishedSource
from workspace import Workspace, add_pairs, small_study


@pytest.fixture
def base(monkeypatch):
    """Return what a machine with two cores and Horovod changes of config.yaml."""
    monkeypatch.setattr(Software, "without_horovod", lambda self: None)
    override = {"quickstart": {"seeds": [0, 1, 2]}}
    return {"available": {"cpu": 2}, "deployment": "host", "override": override}


def planned(base, **changes):
    config = config_files.read([], base | changes)
    return expansion.plan(config, config.resolved_deployment())


# --- what a plan holds ---


def test_horovod_that_cannot_be_built_is_a_row(base, monkeypatch):
    reason = "g++: fatal error: no space"
    monkeypatch.setattr(Software, "without_horovod", lambda self: reason)
    plan = planned(base)
    assert len(plan.not_run) == 7
    assert all("horovod" in cell for cell in plan.not_run)
    assert set(plan.not_run.values()) == {reason}


def test_what_does_not_change_a_measurement_changes_no_id(base):
    before = set(planned(base).cells)
    base["timeout_seconds"] = 7
    base["nodes"] = {"interface": "ib0"}
    base["slurm"] = {"partition": "gpu"}
    base["hardware"] = {"cpu9": {"device": "cpu", "devices": 9}}
    base["datasets"] = {"more": {"kind": "digits"}}
    assert set(planned(base, available={"cpu": 64}).cells) == before


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (None, TF32(convolutions=True, matmul=False)),  # torch's own
        (False, TF32(convolutions=False, matmul=False)),
        ({"matmul": True}, TF32(convolutions=True, matmul=True)),
    ],
)
def test_tf32_is_torchs_own_on_gpus_and_nothing_on_cpus(base, stated, expected):
    settings = {} if stated is None else {"tf32": stated}
    found = {}
    for name, hardware in (("gpu", {"cpu1": "gpu1"}), ("cpu", {})):
        moved = {"hardware": hardware, "settings": settings}
        plan = planned(base, override={"quickstart": moved})
        cells = [each for each in plan.cells.values() if isinstance(each, Cell)]
        found[name] = next(each for each in cells if each.strategy.name == "eager")
    assert found["gpu"].training.tf32 == expected
    assert found["cpu"].json()["training"]["tf32"] is False
    assert Cell.of(found["gpu"].json()) == found["gpu"]


def test_an_override_changes_a_study_and_is_reported(base):
    base["datasets"] = {"mine": {"kind": "image-folder", "path": "somewhere"}}
    moved = {"dataset": "mine", "settings": {"epochs": 1}, "hardware": {"cpu1": "cpu1t2"}}
    plan = planned(base, studies=["gorantla2024-cpu"], override={"gorantla2024-cpu": moved})
    study = plan.studies["gorantla2024-cpu"]
    assert (study.study.dataset, study.study.source_dataset) == ("mine", "cifar10")
    for group in study.groups:
        assert "epochs 1 instead of 50" in group.scaled
        assert group.hardware.name != "cpu1"


def test_assumed_options_of_a_strategy_reach_its_variants_and_are_reported(base, monkeypatch):
    study = config_files.study("gorantla2024-cpu")
    study.assumed["options"] = {"gpipe": {"chunks": 2, "checkpoint": "always"}}
    monkeypatch.setattr(config_files, "study", lambda name: study)
    plan = planned(base, studies=["gorantla2024-cpu"]).studies["gorantla2024-cpu"]
    options = {group.variant: group.options for group in plan.groups}
    assert (options["gpipe-1-1"]["chunks"], options["gpipe-1-1"]["checkpoint"]) == (2, "always")
    assert options["gpipe-2-c4-never"]["checkpoint"] == "never"
    assert plan.study.assumed["gpipe's chunks"] == 2
    study.assumed["options"] = {"gpip": {}}
    with pytest.raises(ParbenchError, match="assumed.options: .*did you mean 'gpipe'"):
        planned(base, studies=["gorantla2024-cpu"])


# The studies at their source's own scale, by source.
SOURCES = ("gorantla2024", "rangoju2025", "laharsh", "torchgpipe", "kamoji-images")
SOURCES += ("channels-last", "hvd-cifar10")
STUDIES = {name: [name] for name in SOURCES}
STUDIES["kamoji"] = ["kamoji", "kamoji-text"]


@pytest.mark.parametrize("name", STUDIES)
def test_every_published_number_is_of_a_group(base, name):
    asked = []
    for plan in planned(base, studies=STUDIES[name]).studies.values():
        asked += [group.published for group in [*plan.groups, *plan.together] if group.published]
    for row in PublishedSource.read(name, places.published_files(), "").rows:
        assert any(map(row.is_one_of, asked)), row


# --- pairs ---

PAIRS = """
  restarts: 2
  compare:
    - {variant: ddp, baseline: eager}
    - {variant: eager, baseline: eager, models: [cnn], inference: true}
    - {variant: concurrent, baseline: eager, models: [cnn+vit]}
"""


NAMING = ("communication", "communication-cpu", "zero-cpu", "pipeline-schedules", "quickstart")


@pytest.mark.parametrize("study", NAMING)
def test_every_claim_that_a_study_names_has_cells_there(base, study):
    plan = planned(base, studies=[study])
    without = [
        judged.name
        for judged in plan_results.judged(plan, [study])
        if judged.name in plan.studies[study].study.claims and not judged.has_cells
    ]
    assert without == []


def test_a_pair_is_of_two_variants_of_a_model_or_of_models_together(base, monkeypatch, tmp_path):
    before = planned(base, studies=["laharsh-cpu"])
    add_pairs(monkeypatch, tmp_path, PAIRS)
    plan = planned(base, studies=["laharsh-cpu"])
    study = plan.studies["laharsh-cpu"]
    assert study.groups == before.studies["laharsh-cpu"].groups
    names = [re.sub("-[0-9a-f]{8}$", "", each.id) for each in study.pairs]
    assert names == [
        "cnn.pair.ddp-cpu2.eager-cpu1",
        "vit.pair.ddp-cpu2.eager-cpu1",
        "cnn.pair.eager-cpu1.eager-cpu1.inference",
        "cnn+vit.pair.concurrent-cpu2-beside-cnn-vit.eager-cpu1",
    ]
    for each, name in zip(study.pairs, names, strict=True):
        assert set(each.cells) < set(plan.runnable("laharsh-cpu"))
        for restart, cell_id in enumerate(each.cells):
            cell = plan.cells[cell_id]
            assert cell_id.startswith(f"{name}.r{restart}-")
            assert cell == Pair.of(cell.json())
            assert {cell.seed, *(side.seed for side in cell.sides)} == {restart}
            assert [side.id for side in cell.sides] == each.sides
            assert (cell.variants, cell.inference) == (each.variants, each.inference)
    together = [plan.cells[study.pairs[-1].cells[0]].sides, study.pairs[-1].variants]
    # One side trains both at once; against it, the ViT trains after the CNN on one device.
    assert ([side.model.name for side in together[0]], together[1]) == (["cnn", "cnn", "vit"], 1)


def test_a_pair_is_not_run_where_a_side_is_not(base, monkeypatch, tmp_path):
    add_pairs(monkeypatch, tmp_path, PAIRS)
    plan = planned(base, studies=["laharsh-cpu"], available={"cpu": 1})
    reasons = [each.not_run for each in plan.studies["laharsh-cpu"].pairs]
    assert reasons == ["needs 2 cores", "needs 2 cores", None, "needs 2 cores"]
    assert sum(".pair." in name for name in plan.not_run) == 6


def test_a_machine_without_gpus_may_be_stated_with_null(base):
    plan = planned(base, studies=["laharsh"], available={"cpu": 2, "cuda": None})
    reasons = {group.not_run for group in plan.studies["laharsh"].groups}
    assert reasons == {"needs 1x T4", "needs 2x T4"}


# --- cells that predict with another's weights ---


@pytest.fixture
def with_spark(base, monkeypatch):
    """Return the same configuration with Spark."""
    monkeypatch.setattr(Software, "without_spark", lambda self: None)
    return base


def predicting(plan) -> list:
    found = [cell for cell in plan.cells.values() if not isinstance(cell, Pair) and cell.trained_by]
    assert found
    return found


def test_who_predicts_has_a_trainer_of_its_seed_that_keeps_its_weights(with_spark, monkeypatch):
    """Also for seeds that were added, and whichever study comes last."""
    names = ["kamoji-stream-cpu", "kamoji-spark-cpu"]
    first = planned(with_spark, studies=names)
    killed = next(g for g in first.studies[names[0]].groups if g.variant == "killed")
    monkeypatch.setattr(decided, "read", lambda: Decided(restarts={killed.id: 5}))
    for studies in (names, names[::-1]):
        plan = planned(with_spark, studies=studies)
        for cell in predicting(plan):
            trainer = plan.cells[cell.trained_by]
            assert (trainer.seed, trainer.run.keeps_weights) == (cell.seed, True)
        assert {cell.seed for cell in predicting(plan)} == {0, 1, 2, 3, 4}


# --- options ---


def test_options_of_every_strategy_and_model_are_described_and_can_be_checked():
    """New files are covered without editing a test."""
    for name in strategies.names():
        options = strategies.load(name).OPTIONS
        some = {"array": [1], "object": {"swin": {}}, "number": 1, "string": "a b"}
        stated = {key: part for key, part in options.items() if "default" not in part}
        needed = {key: some[part["type"]] for key, part in stated.items()}
        assert set(all_options("strategies", name, needed, "test")) == set(options)
    for name in models.names():
        defaults = all_options("models", name, {}, "test")
        assert models.load(name).cuts(1, defaults) == []
        assert len(models.load(name).cuts(2, defaults)) == 1


def test_planning_never_imports_torch(tmp_path):
    """Nor others that slow a workflow's start; tested in a process of its own."""
    program = (
        "import sys; sys.path.insert(0, 'scripts'); "
        "from parbench.plan import config_files, expansion; "
        "read = config_files.read(); expansion.plan(read, read.resolved_deployment()); "
        "print(*({'torch', 'numpy', 'pandas', 'jsonschema'} & set(sys.modules)))"
    )
    assert Workspace(tmp_path / "work folder").run("-c", program).stdout.strip() == ""


# --- the state of a cell ---


class Trained:
    """A plan in which one cell has a result (constructed; no number is reported): the first whose
    ID contains ``part``."""

    def __init__(self, base, folder, part=""):
        self.plan, self.folder = planned(base), folder
        self.cell = next(cell for name, cell in self.plan.cells.items() if part in name)
        self.data = folder / "data" / self.cell.dataset.name / "digest.json"
        self.path = self.path_of(self.cell)
        code = provenance.code_of(self.cell)
        self.environment = {
            "code": code,
            "code_digest": provenance.combined(code),
            "dataset_digest": "0" * 64,
            **{"python": identity.installed_versions()["Python"], "packages": packages.installed()},
        }
        self.write(self.data, {"sha256": "0" * 64})
        self.leave()

    def path_of(self, cell):
        return self.folder / "cells" / cell.id / "metrics.json"

    def write(self, path, value):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))

    def leave(self, status="ok", **environment):
        """Write what a run of the cell leaves."""
        environment = self.environment | environment
        is_pair = isinstance(self.cell, Pair)
        make = constructed.make_pair_metrics if is_pair else constructed.make_metrics
        made = make(self.cell.json(), status, environment=environment)
        self.write(self.path, made)

    def state(self):
        return state.state(self.cell.id, self.plan)


@pytest.fixture
def trained(base, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "RESULTS", tmp_path)
    return Trained(base, tmp_path)


@pytest.mark.parametrize("status", ["ok", "diverged", "out_of_memory"])
def test_a_failed_run_is_a_result_and_not_trained_again(trained, status):
    trained.leave(status)
    assert trained.state() == ("done", [])


def test_a_cell_whose_last_run_failed_says_why(trained, capsys):
    trained.path.unlink()
    assert trained.state()[0] == "missing"
    log = trained.path.with_name("log.txt")
    outcome.record_failure(trained.path.parent, "rank 1 exited with status 3", log)
    reason = f"its last run failed: rank 1 exited with status 3 ({log})"
    with cache.locked(log.with_name(".lock"), "a result"):  # as its launcher does
        assert trained.state()[0] == "running"
    assert trained.state() == ("failed", [reason])
    state.show_why(trained.cell.id, trained.plan)
    assert f"It would run because:\n  - {reason}\n" in capsys.readouterr().out
    trained.leave()
    assert trained.state() == ("done", [])


def test_what_changed_is_named(trained):
    code = dict(trained.environment["code"])
    code["parbench.training.train"] = "0" * 64
    code["parbench.gone"] = code.pop("parbench.files")
    trained.leave(code=code)
    trained.write(trained.data, {"sha256": "1" * 64})
    assert trained.state() == (
        "stale",
        [
            "it also uses parbench.files now",
            "it no longer uses parbench.gone",
            "parbench.training.train changed since it was trained",
            "the dataset digits changed from 000000000000 to 111111111111",
        ],
    )


def test_the_state_of_a_pair_rests_on_all_sides(base, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(places, "RESULTS", tmp_path)
    add_pairs(monkeypatch, tmp_path, PAIRS)
    pair = Trained(base | {"studies": ["laharsh-cpu"]}, tmp_path, "cnn.pair.ddp")
    assert pair.state() == ("done", [])
    restarts = [cell for cell in pair.plan.cells if "cnn.pair.ddp" in cell]
    assert "by earlier runs some 2 min" in forecast(pair.plan, restarts)[0]
    state.show_why(pair.cell.id, pair.plan)
    assert "It would not run" in capsys.readouterr().out
    code = dict(pair.environment["code"])
    del code["parbench.strategies.eager"]
    pair.leave(code=code)
    gone = "it also uses parbench.strategies.eager now"
    assert pair.state() == ("stale", [gone])
    changed = {"laharsh-cpu": {"settings": {"learning_rate": 0.004}}}
    plan = planned(base, studies=["laharsh-cpu"], override=changed)
    state.show_why(state.find("cnn.pair.ddp-cpu2.eager-cpu1.r0", plan), plan)
    assert "side 2.training.learning_rate changed from 0.001 to 0.004" in capsys.readouterr().out


def test_results_of_before_the_modules_got_new_names_say_so_once(trained):
    trained.leave(code={"train.py": "0" * 64, "strategies/eager.py": "1" * 64})
    word, (reason,) = trained.state()
    assert word == "stale"
    assert "whose modules have other names; every such cell is trained again once" in reason


def test_a_run_says_what_it_will_train_and_how_long(trained):
    names = list(trained.plan.cells)
    times = {"started": "2030-01-01T07:00:00Z", "finished": "2030-01-01T07:30:00Z"}
    trained.write(trained.path, json.loads(trained.path.read_text()) | times)
    told, claims = forecast(trained.plan, names[:4])
    assert told == (
        "4 cells to train, 1 of them again (`parbench why <cell>` says why); by earlier runs some "
        "1.5 h of training one after the other, and 1 for which it is unknown"
    )
    # Not testable: a speedup of GPipe on a CPU, and what the source's devices or numbers deny.
    assert claims.startswith("5 of 9 claims can be tested with them: gorantla-horovod-faster, ")
    assert forecast(trained.plan, names[-1:])[0] == (
        "1 cell to train; how long it takes is unknown: none of it has run here; the first cells "
        "will show"
    )
    assert forecast(trained.plan, []) == []
    assert forecast(trained.plan, names[:1], 3)[-1] == (
        "`make report` then keeps measuring what is undecided, for at most 3 minutes "
        "(budget_minutes)"
    )


def test_evidence_says_how_long_cells_took_elsewhere(base, monkeypatch, tmp_path):
    monkeypatch.setattr(places, "RESULTS", tmp_path)
    plan = planned(base, studies=["torchgpipe-cpu"])
    told = forecast(plan, list(plan.cells))[0]
    assert "; on amd-epyc-x2, the machine of the evidence, cells of these names took " in told
    assert told.endswith(" min of training one after the other")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[:500], "metrics.json, line 1: not valid JSON: "),
        (lambda text: "[]", "contains [], not the result of a run"),
        (
            lambda text: text.replace('"status": "ok"', '"status": 3'),
            "status: value 3 should be",
        ),
        (lambda text: text.replace(".s0-", ".s7-"), "a run of"),
    ],
)
def test_a_damaged_result_is_named_and_the_others_listed(trained, capsys, damage, words):
    trained.write(trained.path, damage(trained.path.read_text()))
    state.show_all(trained.plan)
    out = capsys.readouterr().out
    line = next(line for line in out.splitlines() if line.startswith(trained.cell.id))
    where = ", line 1: " if "line 1" in words else ": "
    assert f"unreadable {trained.path}{where}" in line
    assert words in line
    assert "delete" in line
    count = len(trained.plan.cells)
    assert f"{count} cells: 1 unreadable, {count - 1} missing" in out


# --- the command line ---


def test_the_plan_of_a_single_cell_counts_it(tmp_path):
    work = Workspace(tmp_path)
    text = small_study("One", "cnn: {}", "eager: {strategy: eager, hardware: cpu1}")
    (tmp_path / "studies/one.yaml").write_text(text)
    told = work.parbench("plan", "--study", "one").stdout.splitlines()
    assert told[-2:] == ["one: One", "  1 cell: 1 missing"]


def test_the_command_of_a_cell_says_what_to_make_first(tmp_path):
    work = Workspace(tmp_path / "work folder")
    (work.folder / "mine.yaml").write_text("timeout_seconds: 60\n")
    words = ["--configfile", "mine.yaml", "vit.ddp.cpu2.s0"]
    said = work.parbench("command", *words).stderr
    assert "first: snakemake results/data/digits/digest.json --configfile mine.yaml" in said


OLDER = {"oversubscribed", "input_seconds"}  # only in files of older versions


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (metrics_types.RunJson, records.CellRun),
        (metrics_types.PairRunJson, records.PairRun),
        (metrics_types.PairSideJson, parts.Side),
        (metrics_types.SliceJson, parts.Slice),
        (metrics_types.EnvironmentJson, parts.Environment),
        (metrics_types.InterpreterJson, parts.Interpreter),
        (metrics_types.MemoryJson, parts.Memory),
        (metrics_types.DeviceMemoryJson, parts.DeviceMemory),
        (metrics_types.PeakMemoryJson, parts.PeakMemory),
        (metrics_types.InferenceJson, parts.Inference),
        (metrics_types.TokensJson, parts.Tokens),
        (metrics_types.EpochJson, parts.Epoch),
        (metrics_types.BesideJson, parts.Beside),
        (metrics_types.ResumedJson, parts.Resumed),
        (metrics_types.PhaseSecondsJson, parts.PhaseSeconds),
        (metrics_types.RankPhasesJson, parts.RankPhases),
        (metrics_types.PhasesJson, parts.Phases),
        (metrics_types.OperatorJson, parts.Operator),
        (metrics_types.ProfiledJson, parts.Profiled),
        (metrics_types.OperatorsJson, parts.Operators),
        (machine.Description, parts.Machine),
        (machine.Card, parts.Accelerator),
    ],
    ids=lambda kind: kind.__name__,
)
def test_what_is_written_has_the_keys_that_are_read(written, read):
    keys = written.__required_keys__ | written.__optional_keys__
    assert keys == read.model_fields.keys() - OLDER
