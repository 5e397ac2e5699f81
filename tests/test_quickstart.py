"""The default study on real data, from its cells to the report that a user opens."""

from __future__ import annotations

import json

import pandas
import pytest

import as_json
from parbench.deploy import apptainer

# To test the workflow's rules without waiting for it: pytest -m "not whole"
pytestmark = pytest.mark.whole


@pytest.fixture(scope="module")
def metrics(quickstart):
    folder = quickstart[0].folder / "results/cells"
    return {path.parent.name: as_json.read(path) for path in folder.glob("*/metrics.json")}


def test_every_cell_learns(quickstart, metrics):
    plan = json.loads((quickstart[0].folder / "results/plan/quickstart.json").read_text())
    groups = plan["groups"]
    measured = [*groups, *plan["pairs"]]
    runnable = [cell for each in measured if not each["not_run"] for cell in each["cells"]]
    assert (len(groups), len(plan["pairs"])) == (11, 7)
    assert set(runnable) == set(metrics)
    # Only Horovod may be missing, where it cannot be compiled.
    assert all(group["strategy"] == "horovod" for group in groups if group["not_run"])
    for cell, values in metrics.items():
        assert values["status"] == "ok", cell
        assert "slices" in values or values["test_accuracy"] >= 0.60, cell


def test_every_cell_saw_the_same_work(metrics):
    for values in (each for each in metrics.values() if "slices" not in each):
        assert sum(map(sum, values["confusion"])) == 360
        # 1,437 images in batches of 24 or 64; the last one has 21 or 29
        batch = values["cell"]["training"]["global_batch"]
        assert values["steps_per_epoch"] == {24: 60, 64: 23}[batch]
        in_images = apptainer.probe().problem is None
        assert (values["environment"]["image"] is not None) == in_images
        cell = values["cell"]  # models trained side by side have one core each
        ranks = 1 if values["beside"] else cell["hardware"]["devices"]
        assert len(set(values["environment"]["cores"])) == ranks


def test_table_is_tidy_and_whole(quickstart):
    table = pandas.read_csv(quickstart[0].folder / "results/tables/quickstart.csv")
    assert table.groupby("group").ngroups == 13  # 11, and two models together in two ways
    assert not table.duplicated(["group", "metric"]).any()
    done = table[table.status == "ok"]
    assert (done[done.metric == "test_accuracy"].n_seeds == 1).all()
    speedup = done[(done.metric == "speedup") & (done.of == "restarts")]
    assert set(speedup.variant) >= {"gpipe-2-recompute", "ddp", "channels-last", "concurrent"}
    # All are certified.
    assert not done.reason.fillna("").str.contains("not certified").any()


def test_report_shows_each_number(quickstart):
    work, result = quickstart
    html = (work.folder / "reports/final.html").read_text()
    assert len(html.encode()) < 3_000_000
    for line in ("reports/final.html", "reports/final.pdf"):
        assert line in result.stdout + result.stderr
    claims = ("rangoju-two-gpus", "gorantla-recompute-slows", "laharsh-total-at-once")
    for claim in (*claims, "channels-last-faster-cpu"):
        assert claim in result.stdout + result.stderr
    assert "contradicted by its source; here " in result.stdout + result.stderr
    # The source is audited whose claims the study tests, and denies what its own numbers deny.
    judged = json.loads((work.folder / "results/claims.json").read_text())["claims"]
    verdicts = {each["name"]: each["verdict"] for each in judged}
    assert verdicts["gorantla-slightly-longer"] == "contradicted by its source"
    assert "denied by its own numbers" in html
    table = pandas.read_csv(work.folder / "results/tables/quickstart.csv")
    for cells in table[table.metric == "test_accuracy"].cells.dropna():
        assert all(cell in html for cell in cells.split())


def test_repeated_at_no_cost(quickstart):
    work, _ = quickstart
    assert work.jobs() == {}


def test_one_cell_is_rebuilt_alone(quickstart):
    work, _ = quickstart
    metrics = next((work.folder / "results/cells").glob("swin.eager*/metrics.json"))
    aside = metrics.rename(metrics.with_suffix(".aside"))
    try:
        assert work.jobs(str(metrics.relative_to(work.folder))) == {"train": 1}
    finally:
        aside.rename(metrics)
