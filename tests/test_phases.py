"""Where the seconds go: phases sum to the measured time, and planted delays show in theirs."""

from __future__ import annotations

import json

import pytest
import torch

import constructed
from constructed import CPU1, CPU2, Group
from parbench import strategies
from parbench.measure.profiling import phases
from parbench.strategies import gpipe
from parbench.training import loop
from parbench.training.companions import Companions
from parbench.training.progress import Heartbeat
from parbench.training.run import Run
from shown import collect, pdf_text, render, squeezed
from training import altered, cell, run

STEPS = 10  # in two epochs


def trained(value, data, plant=lambda run: None):
    """Train in this process; return (the profile's result, seconds of the epochs, the run)."""
    strategy = strategies.of(value)
    strategy.setup()
    made = Run(value, data, strategy, Heartbeat(0))
    plant(made)
    loop.begin(made)
    with made.profile:
        loop.train(made, Companions(made))
    return made.profile.result(), sum(entry["seconds"] for entry in made.history), made


def instrumented(value):
    """Return the same cell with the profile."""
    return altered(value, training={"profile": "phases"})


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check_sums(result, seconds):
    assert result["kind"] == "phases"
    for row in [result["mean"], *result["ranks"]]:
        assert sum(row[name] for name in phases.PHASES) == pytest.approx(seconds, rel=1e-9)
        assert all(row[name] >= -1e-9 for name in phases.PHASES)


# --- arithmetic -----------------------------------------------------------------------------------


def test_a_pipeline_of_equal_stages_has_the_bubble_of_theory():
    """m micro-batches of 1 s through n stages take m + n - 1 s, of which a stage idles n - 1."""
    n, m = 3, 4
    busy = {f"d{i}": [(i + j, i + j + 1) for j in range(m)] for i in range(n)}
    assert phases.idle(busy) == n - 1
    assert phases.idle({"cpu": [(0, 1), (3, 4)]}) == 0  # one device alone has no bubble
    assert phases.idle({}) == 0


# --- strategies -----------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """Return the time, in seconds, which passes only where a test lets it."""
    now = [0.0]
    monkeypatch.setattr(phases.time, "perf_counter", lambda: now[0])
    return now


def test_a_slow_loader_is_input(digits, clock):
    """An input of three seconds, and a step of two."""

    def plant(made):
        batch, loss = made.augment.train_batch, made.loss

        def slow(*given):
            clock[0] += 3
            return batch(*given)

        def working(*given):
            clock[0] += 2
            return loss(*given)

        made.augment.train_batch, made.loss = slow, working

    result, seconds, _ = trained(cell(profile="phases"), digits, plant)
    check_sums(result, seconds)
    nothing = dict.fromkeys(phases.PHASES, 0)
    assert result["mean"] == nothing | {"input": 3 * STEPS, "compute": 2 * STEPS}


PIPELINE = cell("gpipe", 2, balance=[1, 1], chunks=3, checkpoint="never", epochs=1)


@pytest.mark.parametrize("checkpoint", ["never", "always"])
def test_stages_that_take_turns_leave_each_other_idle(digits, monkeypatch, clock, checkpoint):
    """As if the one worker were two devices: at any time one of them works and one is idle."""

    def works(*_):
        clock[0] += 1

    def watch(self, told, model, optimizer):
        for index, partition in enumerate(model.partitions):
            told.watch_stage(partition, torch.device("cpu", index))
            partition.register_forward_pre_hook(works)

    monkeypatch.setattr(gpipe.Strategy, "watch", watch)
    value = instrumented(PIPELINE)
    value.strategy.options["checkpoint"] = checkpoint
    result, seconds, _ = trained(value, digits)
    check_sums(result, seconds)
    found = result["mean"]
    assert found["bubble"] == found["compute"] > 0


@pytest.mark.whole
def test_a_late_rank_is_waited_for_and_a_slow_network_is_not(digits, tmp_path):
    """The delays and the profile change nothing that is learned."""
    late, network = 0.15, 0.02
    value = cell("ddp", 2, mode="deterministic", epochs=1)
    planted = json.dumps({"late": late, "network": network, "losses": 1, "folder": str(tmp_path)})
    metrics, _ = run(
        instrumented(value), digits, tmp_path / "a", program=["tests/phased.py"], PLANTED=planted
    )
    result, steps = metrics["profile"], metrics["steps_per_epoch"]
    check_sums(result, metrics["train_seconds"])
    early, last = result["ranks"]
    assert early["waiting"] >= late * steps  # at least: other load adds to all phases
    for each in (early, last):
        assert each["communication"] >= network * steps
        assert each["bubble"] == 0
    assert last["compute"] >= late * steps
    assert result["mean"]["waiting"] == pytest.approx((early["waiting"] + last["waiting"]) / 2)
    plain, _ = run(value, digits, tmp_path / "b")
    assert plain["profile"] is None
    assert plain["weights_sha256"] == metrics["weights_sha256"]


def test_a_slow_gather_of_shards_is_communication(digits, tmp_path):
    """Of four blocks and the rest, for both passes: at least five a step."""
    network = 0.02
    planted = json.dumps({"late": 0, "network": network, "losses": 1, "folder": str(tmp_path)})
    value = instrumented(cell("fsdp", 2, epochs=1))
    metrics, _ = run(value, digits, tmp_path, program=["tests/phased.py"], PLANTED=planted)
    check_sums(metrics["profile"], metrics["train_seconds"])
    for each in metrics["profile"]["ranks"]:
        assert each["communication"] >= 5 * network * metrics["steps_per_epoch"]


@pytest.mark.whole
def test_a_slow_last_stage_is_the_bubble_of_the_first(digits, tmp_path):
    late = 0.1  # for each of four micro-batches
    value = instrumented(cell("pipeline", 2, epochs=1))
    planted = json.dumps({"late": late, "network": 0, "losses": 4, "folder": str(tmp_path)})
    metrics, _ = run(value, digits, tmp_path, program=["tests/phased.py"], PLANTED=planted)
    result = metrics["profile"]
    check_sums(result, metrics["train_seconds"])
    first, last = result["ranks"]
    assert first["bubble"] >= 0.5 * late * metrics["steps_per_epoch"]  # for the last one at least
    assert last["compute"] >= 4 * late * metrics["steps_per_epoch"]


# --- the report -----------------------------------------------------------------------------------


def seconds(**told):
    return {name: told.get(name, 0.0) for name in phases.PHASES}


CPU2X2 = constructed.make_hardware(devices=2, nodes=2)
RANKS = [
    seconds(input=1.0, compute=6.0, communication=2.0, waiting=3.0),
    seconds(input=1.0, compute=8.0, communication=2.0, waiting=1.0),
]
INSTRUMENTED = [
    Group("resnet18", "eager", CPU1, 10.0),
    Group("resnet18", "eager-<b>", CPU1, 12.0, phases=[seconds(input=2.0, compute=10.0)]),
    Group("resnet18", "ddp", CPU2, 10.0),
    Group("resnet18", "ddp-phases", CPU2, 12.0, phases=RANKS),
    Group("resnet18", "ddp-far", CPU2X2, 12.0, phases=RANKS * 2),
]


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """Return a report of constructed groups: (its study as JSON, HTML, PDF)."""
    folder = tmp_path_factory.mktemp("report")
    variants = ["eager", "ddp"]
    study = constructed.usual_study(
        tables=[{"title": "Times", "variants": variants, "metrics": ["train_seconds"]}]
    )
    data = collect(constructed.write_study(folder, study, INSTRUMENTED))
    return data["studies"][0], *render(data)


def test_the_report_tells_where_seconds_go_and_what_the_instrument_costs(reported):
    section, html, pdf = reported
    table = next(each for each in section["tables"] if each["id"].endswith("-phases"))
    rows = [[c["text"] for c in row] for row in table["rows"]]
    assert [row[1:4:2] for row in rows] == [
        ["eager-<b>", "mean"],
        *(["ddp-phases", rank] for rank in ("mean", "0", "1")),
        *(["ddp-far", rank] for rank in ("mean", "0", "1", "2", "3")),
    ]
    ddp = rows[1][4:-1]
    shares = [f"{n:.3f}" for n in (0.25, 1.75, 0.5, 0.5, 0, 0)]  # of four epochs
    assert ddp == [*shares, "3.000 ± 0.000"]
    assert rows[2][7] == "0.750"  # the early rank waits
    assert rows[0][-1] == rows[1][-1] == "1.20 ± 0.00"  # 12 s with, 10 without
    assert rows[4][-1] == "–"
    figure = section["figures"][-1]
    assert all(name in figure["parts"][0]["svg"] for name in phases.PHASES)
    assert "eager-<b>" not in html
    assert "eager-&lt;b&gt;" in html
    assert squeezed("Where the seconds go") in squeezed(pdf_text(pdf))


def test_instrumented_groups_stand_apart_from_timed_ones(reported):
    section, _, _ = reported
    for figure in section["figures"][:-1]:
        assert "ddp-phases" not in "".join(part["svg"] for part in figure["parts"])
