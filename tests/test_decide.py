"""make decide: restarts are added until every comparison is decided, or the time is over."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from types import SimpleNamespace

import pytest

from parbench.plan.study import Tolerance
from parbench.verdicts.sequential import Series
from parbench.workflow import deciding
from workspace import Workspace, small_study

STUDY = small_study("Decided", "simple_cnn: {}", "eager: {strategy: eager, hardware: cpu1}")
SIDES = "variant: eager, baseline: eager"
PAIRS = f"pairs: {{restarts: 1, compare: [{{{SIDES}}}, {{{SIDES}, inference: true}}]}}\n"


CLOCK = """
from parbench import decided


def monotonic():
    \"\"\"Return hours, one for each restart or seed that was added: nothing else takes time.\"\"\"
    return 3600.0 * sum(decided.read().restarts.values())
"""


@pytest.fixture
def work(tmp_path):
    work = Workspace(tmp_path / "work")
    (work.folder / "scripts/parbench/workflow/rounds.py").write_text(CLOCK)
    file, line = (
        "scripts/parbench/workflow/deciding.py",
        "from parbench.verdicts import closing, plan_results",
    )
    work.edit(file, "import time\n", "")
    work.edit(file, line, f"from parbench.workflow import rounds as time\n{line}")
    (work.folder / "studies" / "decided.yaml").write_text(STUDY + PAIRS)
    work.edit("config.yaml", "studies: [quickstart]", "studies: [decided]")
    return work


def cost(work, cells, seconds):
    """Set the duration in the results of ``cells`` to ``seconds``."""
    for path in work.folder.glob(f"results/cells/{cells}/metrics.json"):
        metrics = json.loads(path.read_text())
        finished = datetime.fromisoformat(metrics["started"]) + timedelta(seconds=seconds)
        told = finished.isoformat().replace("+00:00", "Z")
        path.write_text(json.dumps(metrics | {"finished": told}))


def test_restarts_are_added_and_kept(work):
    said = work.parbench("decide", "--minutes", "0").stdout
    assert "then keeps measuring" not in said  # `make report` does, and says so before
    assert "not checked: 1 restart, but at least 4 are needed" in said
    kept = work.folder / "results/restarts.json"
    assert not kept.exists()
    # A restart of 0 seconds fits into any time, and one round takes all of it.
    cost(work, "*.pair.*", 0)
    said = work.parbench("decide", "--minutes", "0.05").stdout
    assert "undecided comparisons: 2; one more restart or seed of each" in said
    assert said.count("not checked: 2 restarts, but at least 4 are needed") == 2
    assert list(json.loads(kept.read_text()).values()) == [2, 2]
    # Two more restarts of 8 seconds do not fit into 12, but those of the other pair do.
    cost(work, "*.pair.*", 0)
    cost(work, "*.inference.*", 8)
    said = work.parbench("decide", "--minutes", "0.2").stdout
    # Between restarts of one pair, one of another pair is measured, if the time allows it.
    assert "undecided comparisons: 1; one more restart or seed of each, with one of" in said
    assert list(json.loads(kept.read_text()).values()) == [3, 3]
    cost(work, "*.inference.*", 20)
    said = work.parbench("decide", "--minutes", "0.2").stdout
    assert "with one of" not in said
    training, inference = json.loads(kept.read_text()).values()
    assert training > inference == 3
    # The workflow's next run plans them, too: only the whole training is left.
    assert work.jobs()["train"] == 1


CLAIM = """
batch-changes-nothing:
  study: somebody
  claim: The batch changes nothing.
  test: {metric: test_accuracy, numerator: {batch_size: 16}, denominator: {batch_size: 32},
         op: same}
"""
HEAD = "study,table,model,strategy,hardware,nodes,devices_per_node,metric,value,unit"
ROW = "somebody,Table 1,simple_cnn,eager,CPU,1,1,test_accuracy,0.5,fraction"


@pytest.mark.whole
def test_seeds_are_added_to_what_claims_and_published_numbers_compare(work):
    """A claim about scores compares two batches; a number is compared with its published value."""
    half = "half: {strategy: eager, hardware: cpu1, settings: {global_batch: 16}}"
    longer = (
        "longer: {strategy: eager, hardware: cpu1, settings: {epochs: 2}, published: {nodes: 1}}"
    )
    study = STUDY.replace("tables:", f"  {half}\n  {longer}\npublished: somebody\ntables:")
    (work.folder / "studies" / "decided.yaml").write_text(study)
    published = work.folder / "studies/published"
    (published / "somebody.csv").write_text(f"{HEAD}\n{ROW}\n")
    (published / "claims.yaml").write_text(CLAIM)
    work.snakemake("results/tables/decided.csv", "--quiet", "all")
    cost(work, "*", 0)  # a seed that costs nothing is always tried
    work.parbench("decide", "--minutes", "0.05")  # one round
    seeds = json.loads((work.folder / "results/restarts.json").read_text())
    assert len(seeds) == 3
    assert all(number > 1 for number in seeds.values())
    assert "train" not in work.jobs()  # the new seeds are in the plan and done


@pytest.mark.whole
def test_a_restart_that_was_deleted_is_in_the_report_again(work):
    (work.folder / "mine.yaml").write_text("budget_minutes: 0\n")
    options = ["--configfile", "mine.yaml", "--config", "checkpoint_seconds=77"]
    work.snakemake("--quiet", "all", *options)
    next(work.folder.glob("results/cells/*.pair.*/metrics.json")).unlink()
    work.parbench("decide", "--report", *options, "--cores", "1")
    assert work.jobs(*options) == {}


def test_make_report_spends_no_more_than_its_budget(work):
    (work.folder / "studies" / "decided.yaml").write_text(STUDY)
    work.edit("config.yaml", "studies: [decided]", "studies: [quickstart]")
    changes = ["--config", "studies=[decided]", "budget_minutes=0"]  # as Snakemake reads them
    done = work.parbench("decide", "--report", *changes, "--cores", "1")
    assert (done.stdout, done.stderr) == ("", "")
    assert not (work.folder / "results/restarts.json").exists()


def test_make_report_measures_nothing_in_a_dry_run_of_a_profile(work):
    (work.folder / "mine").mkdir()
    (work.folder / "mine/config.yaml").write_text("dry-run: true\ncores: 1\n")
    done = work.parbench("decide", "--report", "--profile", "mine")
    assert (done.stdout, done.stderr) == ("", "")
    assert not (work.folder / "results").exists()


def test_a_check_fails_where_a_claim_is_refuted_or_undecided(work):
    sides = {"numerator": {"strategy": "eager"}, "denominator": {"strategy": "ddp", "devices": 2}}
    untested = {"study": "somebody", "claim": "It is slower."}
    untested |= {"test": {"metric": "train_seconds", "op": ">", **sides}}
    impossible = untested | {"test": untested["test"] | {"size": 3}}
    denied = untested | {"test": untested["test"] | {"metric": "epoch_seconds"}}
    rows = ("net,eager,X,1,1,epoch_seconds,100,s", "net,ddp,X,1,2,epoch_seconds,125,s")
    published = work.folder / "studies/published"
    of_source = "".join(f"somebody,Table 1,{row}\n" for row in rows)
    (published / "somebody.csv").write_text(f"{HEAD}\n{ROW}\n{of_source}")
    study = STUDY.replace("tables:", "published: somebody\ntables:")
    study = study.replace("hardware: cpu1", "hardware: a30x1")  # not run here, nor missing
    (work.folder / "studies" / "decided.yaml").write_text(study)
    for claim, refuted in (
        (untested, ""),
        (impossible, "impossible as stated (the source's own devices give at most 2"),
        (denied, "contradicted by its source (its own numbers deny it)"),
    ):
        (published / "claims.yaml").write_text(json.dumps({"it-is": claim}))
        done = work.parbench("decide", "--check", check=False)
        assert done.returncode == bool(refuted), done.stderr
        assert (f"it-is (decided): {refuted}" in done.stdout) == bool(refuted)
        assert f"1 claim: {int(bool(refuted))} refuted" in done.stdout


def test_a_check_fails_where_a_cell_is_missing(work):
    (work.folder / "studies" / "decided.yaml").write_text(STUDY)
    done = work.parbench("decide", "--check", check=False)
    assert "1 cell not measured: make report" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--check", "--report"], "argument --report: not allowed with argument --check"),
        (["--check", "--minutes", "3"], "--minutes: remove it, since --check and --report do not"),
        (["--check", "--config", "studies=[noo]", "--config", "grace_seconds=5"], "'noo'"),
    ],
)
def test_no_option_is_ignored(work, words, sentence):
    done = work.parbench("decide", *words, check=False)
    assert done.returncode == 2
    assert sentence in done.stderr


def test_a_study_without_pairs_has_nothing_to_decide(work):
    (work.folder / "studies" / "decided.yaml").write_text(STUDY)
    done = work.parbench("decide", check=False)
    assert done.returncode == 2
    assert "error: studies: decided: none has `pairs`" in done.stderr


@pytest.mark.parametrize(("baseline", "is_open"), [("eager", True), ("ddp", False)])
def test_equal_sides_are_equal_within_5_percent_whatever_the_study_tolerates(
    monkeypatch, baseline, is_open
):
    values = {number: value for number, value in enumerate([0.2, -0.2] * 4)}
    compared = SimpleNamespace(series=Series(values, "restarts", logs=True))
    monkeypatch.setattr(deciding, "_compared", lambda pair: compared)
    pair = SimpleNamespace(not_run=None, variant="eager", baseline=baseline)
    about = SimpleNamespace(tolerance=Tolerance(relative=0.5))
    plan = SimpleNamespace(studies={"s": SimpleNamespace(study=about, pairs=[pair])})
    assert bool(list(deciding._of_pairs("s", plan))) == is_open
