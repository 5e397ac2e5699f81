"""The certificate of equivalence: strategies get it, and planted errors are caught."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

import planted
from parbench import models, strategies
from parbench.equivalence import certificate, certify
from parbench.equivalence import trials as trials_room
from parbench.equivalence.certificate import DIFFERS, EQUAL
from require import required
from workspace import ROOT

MODES = ("never", "except_last", "always")


def trials(model, strategy, devices=1, precisions=("fp32",), synchronized=False, **options):
    cell = certificate.cell_of(model, strategy, devices, options)
    return trials_room.trials_of(cell, precisions, synchronized)


def thinned():
    """Return trials with every value of every dimension of `make certificate`, at little cost.

    All strategies for a model without BatchNorm and one with it; eager and GPipe for the others.
    """
    both = ("fp32", "bf16")
    found = few()
    for model in ("vit", "simple_cnn", "cnn", "convnext", "convnextv2", "deit", "resnet18"):
        found += trials(model, "eager")
        found += trials(model, "gpipe", 1, balance=[2], chunks=8, checkpoint="always")
    for model in ("swin", "deep_cnn"):
        found += trials(model, "ddp", 4, both, True)  # one rank has no sample of the last batch
        if importlib.util.find_spec("horovod"):
            found += trials(model, "horovod", 3, both, True)
        # The last one has more stages than micro-batches.
        for options in ({"schedule": "1f1b", "chunks": 4}, {"schedule": "gpipe", "chunks": 1}):
            found += trials(model, "pipeline", 2, both, **options)
        # Of 8 micro-batches, 7 of one size are no whole rounds of 2.
        for schedule, chunks in (("1f1b", 4), ("1f1b", 8), ("zbv", 8), ("gpipe", 1)):
            options = {"schedule": schedule, "chunks": chunks, "stages_per_rank": 2}
            precisions = both if model == "swin" else ()
            found += trials(model, "pipeline", 2, precisions, **options)
        found += trials(model, "fsdp", 3, both, True)
        if importlib.util.find_spec("deepspeed"):
            found += trials(model, "deepspeed", 2, (), True, stage=1)
            found += trials(model, "deepspeed", 2, both, True, stage=3)
            in_bf16 = {"stage": 2, "mixed_precision": "engine"}
            found += trials(model, "deepspeed", 2, ("bf16",), **in_bf16)
    return found


def few():
    """Return those trials that need no rank beside this process, and DDP's.

    tests/test_train.py trains with every strategy, to the losses of eager training.
    """
    found = []
    for model in ("swin", "deep_cnn"):
        found += trials(model, "eager", 1, ("fp32", "bf16"))
        for index, chunks in enumerate((1, 4, 8)):
            balance = ([2], [1, 1])[index % 2]
            options = {"balance": balance, "chunks": chunks, "checkpoint": MODES[index % 3 - 1]}
            found += trials(model, "gpipe", len(balance), ("fp32", "bf16"), **options)
    return found + trials("deep_cnn", "ddp", 2, ("fp32", "bf16"), True)


def test_every_strategy_computes_what_eager_training_does():
    rows = certify.certify(thinned() if required("whole") else few())
    print(certify.shown(rows))
    assert [row for row in rows if row["verdict"] == DIFFERS] == []
    assert "ddp" in {row["strategy"] for row in rows if row["batch_norm"] == "synchronized"}


def errors_by_quantity(rows):
    return {row["quantity"]: row["verdict"] for row in rows}


def erring(trial, error):
    return replace(trial, cell=replace(trial.cell, id=error))


def certified_with(todo, error):
    with planted.plant():
        return certify.certify([erring(trial, error) for trial in todo])


def test_planted_errors_of_ranks_are_caught():
    """All errors in one run of two ranks."""
    errors = ["nothing", "summed", "other_weights", "uneven_mean"]
    (trial,) = trials("swin", "ddp", 2, precisions=())
    todo = [erring(trial, error) for error in errors]
    rows = certify.certify(todo, [str(ROOT / "tests" / "planted.py")])
    verdicts = {
        error: errors_by_quantity(rows[3 * i : 3 * i + 3]) for i, error in enumerate(errors)
    }
    assert set(verdicts["nothing"].values()) == {EQUAL}
    for error in errors[1:]:
        assert verdicts[error]["weights"] == DIFFERS, error
    assert verdicts["summed"]["gradients"] == DIFFERS
    assert verdicts["other_weights"]["loss"] == DIFFERS
    assert verdicts["uneven_mean"]["loss"] == DIFFERS


@pytest.mark.parametrize("error", ["nothing", "dropped"])
def test_a_planted_loss_of_a_micro_batch_is_caught(error):
    todo = trials("swin", "gpipe", 1, precisions=(), balance=[2], chunks=4)
    verdicts = errors_by_quantity(certified_with(todo, error))
    expected = EQUAL if error == "nothing" else DIFFERS
    assert verdicts["loss"] == verdicts["gradients"] == verdicts["weights"] == expected


def test_gradients_that_differ_with_one_batch_alone_are_roundings():
    """In float64 nothing is: there one batch decides."""
    exact, single = trials("simple_cnn", "eager", precisions=("fp32",))
    found = {}
    with planted.plant():
        for error in ("nothing", "kink", "imprecise"):
            rows = certify.certify([erring(exact, error), erring(single, error)])
            for row in (row for row in rows if row["quantity"] == "gradients"):
                found[error, row["arithmetic"]] = row["verdict"], row["batch"]
    assert found == {
        **{("nothing", arithmetic): (EQUAL, 1) for arithmetic in ("float64", "float32")},
        ("kink", "float64"): (DIFFERS, 1),
        ("kink", "float32"): (EQUAL, 2),
        **{("imprecise", arithmetic): (DIFFERS, 1) for arithmetic in ("float64", "float32")},
    }


@pytest.mark.parametrize("error", ["nothing", "not_in_half"])
def test_autocast_that_does_not_reach_the_stages_is_caught(error):
    options = {"balance": [1, 1], "chunks": 4, "checkpoint": "always"}
    todo = trials("swin", "gpipe", 2, precisions=["bf16"], **options)[1:]
    rows = certified_with(todo, error)
    (row,) = (row for row in rows if row["quantity"] == "products in float32")
    # Autocast around the model reaches no thread of the pipeline.
    assert row["error"] == (0.0 if error == "nothing" else 1.0)


def test_a_model_is_compared_in_the_pipelines_that_it_can_be_cut_into(monkeypatch, capsys):
    """As one of three layers, which has no four stages."""
    monkeypatch.delitem(models.load("simple_cnn").CUTS, 4)
    todo = certify.whole_matrix(["simple_cnn"])
    assert {strategies.of(trial.cell).stages for trial in todo} == {1, 2}
    assert capsys.readouterr().err == (
        "simple_cnn: left out in 4 stages, for which it has no cuts\n"
    )


def test_what_cannot_run_is_no_certificate():
    todo = trials("swin", "gpipe", 5, precisions=(), balance=[1] * 5)
    (row,) = certify.certify(todo)
    assert row["verdict"] == DIFFERS
    assert "cannot be cut into 5 stages" in row["reason"]
    (other,) = certify.certify(trials("swin", "ddp", 2, precisions=(), backend="nccl"))
    assert other["verdict"] == DIFFERS
    assert other["reason"]


# No training, or none that is known.
UNKNOWN = {"spark", "stream", "command"}


@pytest.mark.parametrize("name", sorted({*strategies.names()} - UNKNOWN))
def test_every_strategy_states_what_is_certified(name):
    stated = list(strategies.load(name).certified())
    assert stated
    for devices, options in stated:
        cell = certificate.cell_of("swin", name, devices, options)
        cell = replace(cell, training=replace(cell.training, global_batch=24))  # of whole chunks
        in_half = replace(cell, training=replace(cell.training, precision="bf16"))
        assert any(not list(strategies.of(each).check()) for each in (cell, in_half))
