"""The same work, whatever the strategy and the world size: samples, steps, rates, evaluation."""

from __future__ import annotations

import collections
import hashlib
import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch

import learning_rate
import strategies
import train
from fed import fed
from progress import Pulse
from strategies import eager
from training import ROOT, cell

SAMPLES, TESTED = 217, 101  # four batches of 48 and an uneven tail of 25; an odd test set
SCHEDULES = ("constant", "cosine", "onecycle")


def linear(strategy="eager", devices=1, **changes):
    """A cell whose rate grows with its ranks and changes after every step."""
    usual = {"learning_rate_rule": "linear", "schedule": "onecycle", "learning_rate": 0.01}
    return cell(strategy, devices, **{**usual, **changes})


CASES = {
    "gpipe": linear("gpipe", 2, balance=[1, 1], chunks=4, checkpoint="never"),
    **{f"ddp of {ranks}": linear("ddp", ranks) for ranks in (1, 2, 3, 4)},
    **{f"horovod of {ranks}": linear("horovod", ranks) for ranks in (1, 2)},
}


@pytest.fixture(scope="module")
def alone(digits):
    """What eager training was fed."""
    return fed(linear(), digits)


def start(*words):
    """Run tests/fed.py; ``words`` begin with the launcher."""
    paths = os.pathsep.join(str(ROOT / name) for name in ("scripts", "tests"))
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    subprocess.run(words, cwd=ROOT, env=variables, check=True, timeout=200)


def place(name, folder):
    """A folder of a case, with its cell."""
    home = folder / name.replace(" ", "-")
    home.mkdir()
    (home / "cell.json").write_text(json.dumps(CASES[name]))
    return home


@pytest.fixture(scope="module")
def ddp(digits, tmp_path_factory):
    """Folder of every ddp case, all trained by real processes."""
    folder = tmp_path_factory.mktemp("fed")
    homes = {name: place(name, folder) for name in CASES if "ddp" in name}
    start(sys.executable, "tests/fed.py", "forks", str(digits), *map(str, homes.values()))
    return homes


def of_ranks(name, data, folder, request):
    """What each rank of a case was fed."""
    value = CASES[name]
    if value["strategy"]["name"] == "gpipe":  # one process
        return [fed(value, data)]
    if value["strategy"]["name"] == "ddp":
        home = request.getfixturevalue("ddp")[name]
    else:
        if importlib.util.find_spec("horovod") is None:
            pytest.skip("Horovod could not be built here")
        home = place(name, folder)
        launcher = strategies.load(value["strategy"]["name"]).launcher(value, sys.executable)
        start(*launcher, "tests/fed.py", "rank", str(data), str(home))
    return [json.loads(path.read_text()) for path in sorted(home.glob("[0-9].json"))]


def digests(runs):
    """By (part, epoch, step): a digest of the samples of all ranks, whoever got them."""
    batches = collections.defaultdict(list)
    for run in runs:
        for part, epoch, step, *sample in run["rows"]:
            batches[part, epoch, step].append(sample)
    return {
        place: hashlib.sha256(json.dumps(sorted(samples)).encode()).hexdigest()
        for place, samples in batches.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_every_strategy_is_fed_the_same(alone, digits, tmp_path, request, name):
    runs = of_ranks(name, digits, tmp_path, request)
    ranks = strategies.load(CASES[name]["strategy"]["name"]).shares(CASES[name])
    assert [run["rank"] for run in runs] == list(range(ranks))
    assert digests(runs) == digests([alone])
    # Nobody idles: the shares of a batch are alike.
    sizes = [len(run["rows"]) for run in runs]
    assert max(sizes) - min(sizes) <= len(digests([alone]))
    # The rate that the optimizer used last, in each epoch.
    for run in runs:
        rates = [entry["learning_rate"] for entry in run["history"]]
        assert rates == pytest.approx([ranks * e["learning_rate"] for e in alone["history"]])


def test_each_image_once_an_epoch(alone):
    """In the batches that the settings ask for; augmented anew in the second epoch."""
    fed_in = collections.Counter()
    images = collections.defaultdict(set)
    for part, epoch, step, index, _, image in alone["rows"]:
        fed_in[part, epoch, step] += 1
        images[part, epoch].add((index, image))
    assert [fed_in["train", 1, step] for step in range(5)] == [48, 48, 48, 48, 25]
    for epoch in (0, 1):
        assert sorted(index for index, _ in images["train", epoch]) == list(range(SAMPLES))
        assert sorted(index for index, _ in images["test", epoch]) == list(range(TESTED))
    assert sum(fed_in.values()) == 2 * (SAMPLES + TESTED)
    assert images["test", 0] == images["test", 1]
    assert len(images["train", 0] & images["train", 1]) < SAMPLES / 20  # 1 of 162 by chance


class Rank(eager.Strategy):
    """One rank of several, whose sums are taken by the test."""

    def __init__(self, value, rank, world_size):
        super().__init__(value)
        self.rank, self.local_rank, self.world_size = rank, rank, world_size
        self.setup()


class Beats(Pulse):
    """Counts how often a rank looked up: at a place where all must."""

    def __init__(self):
        super().__init__(0)
        self.places = []

    def beat(self, phase, epoch=0, step=0):
        self.places.append((phase, step))


def rank_of(value, data, rank=0, world_size=1):
    return train.Run(value, data, Rank(value, rank, world_size), Beats())


@pytest.mark.parametrize("tested", [1, 5, 101])  # fewer than ranks, and no multiple of any
@pytest.mark.parametrize("world_size", range(1, 8))
def test_evaluation_counts_exactly_the_test_set(digits, tested, world_size):
    value = cell(train_samples=16, test_samples=tested, evaluation_batch=4)
    whole, loss = rank_of(value, digits).evaluate()
    seen, predicted, losses, places = [], torch.zeros(tested, dtype=torch.int64), 0.0, []
    for rank in range(world_size):
        run = rank_of(value, digits, rank, world_size)
        test_batch = run.augment.test_batch

        def counted(start, stop, test_batch=test_batch):
            seen.extend(range(start, stop))
            return test_batch(start, stop)

        run.augment.test_batch = counted
        mine, mean = run.evaluate()
        predicted, losses = predicted + mine, losses + mean
        places.append(run.pulse.places)
    assert set(seen) == set(range(tested))
    assert len(seen) < tested + world_size  # one whose share is done joins, and does not count
    assert torch.equal(predicted, whole)
    assert losses == pytest.approx(loss, rel=1e-6)
    assert all(place == places[0] for place in places)  # a rank that looks up alone would hang


# ---- the learning rate ----


def test_rules():
    stated = {"learning_rate": 0.1}
    for ranks in (1, 2, 4):
        assert learning_rate.peak({**stated, "learning_rate_rule": "fixed"}, ranks) == 0.1
        assert learning_rate.peak({**stated, "learning_rate_rule": "linear"}, ranks) == 0.1 * ranks


def rates(digits, rule, schedule, world_size):
    """The rates that the optimizer uses, step by step, and those that the history keeps."""
    value = linear(learning_rate_rule=rule, schedule=schedule, train_samples=100)
    run = rank_of(value, digits, 0, world_size)
    used, step = [], run.step

    def noted(batch, epoch):
        used.append(run.optimizer.param_groups[0]["lr"])
        return step(batch, epoch)

    run.step = noted
    run.warm_up(1)  # at a rate of its own, and undone
    used.clear()
    run.begin()
    run.train(train.Display(False, 2, len(run.bounds), run.samples))
    return used, [entry["learning_rate"] for entry in run.history]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rule_holds_for_every_schedule(digits, schedule):
    one, kept = rates(digits, "linear", schedule, 1)
    assert kept == [one[len(one) // 2 - 1], one[-1]]  # of the last step, not of the next
    assert 0.005 < max(one) <= 0.01
    for rule, factor in (("fixed", 1), ("linear", 3)):
        three, kept = rates(digits, rule, schedule, 3)
        assert three == pytest.approx([factor * rate for rate in one])
        assert kept == [three[len(one) // 2 - 1], three[-1]]
