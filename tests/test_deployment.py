"""Where cells run: decided once per work folder, and never changed silently."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from parbench.deploy import apptainer, containers, deployment, host_environment, recipes
from parbench.errors import ParbenchError
from parbench.software import Software

WORKS = apptainer.Apptainer("/usr/bin/apptainer", "1.4.5")
ABSENT = apptainer.Apptainer(None, problem="Apptainer is not installed; sudo make system")
KEPT = Path("results/deployment.json")
OBSTACLE = "this user cannot build images: no debootstrap; sudo make system ARGS=apptainer"

UNBUILT = (
    f"its images are not built yet; `deployment: apptainer` builds them first, {containers.COST}"
)


@pytest.fixture(autouse=True)
def has(monkeypatch, tmp_path):
    """Enter a fresh folder where Apptainer runs and builds; return a function to change that."""
    monkeypatch.chdir(tmp_path)

    def change(found: apptainer.Apptainer, obstacle: str | None = None) -> None:
        monkeypatch.setattr(apptainer, "probe", lambda: found)
        monkeypatch.setattr(containers, "obstacle", lambda stack, settings: obstacle)

    change(WORKS)
    return change


def resolved(asked: str = "auto", typed: bool = False) -> deployment.Deployment:
    settings = recipes.ImageSettings(unpack=True)
    return deployment.resolve(asked, "current", settings, "config.yaml", typed)


def run(asked: str = "auto", typed: bool = False) -> str:
    """Resolve and keep the deployment, as the workflow does at the start of a run."""
    found = resolved(asked, typed)
    deployment.keep(found, typed)
    return found.label


def kept() -> dict:
    return json.loads(KEPT.read_text())


# ---------------------------------------------------------------- auto


def test_auto_takes_images_where_they_work_and_keeps_that(has, capsys):
    resolved()  # `snakemake -n`, `parbench cells`
    assert not KEPT.exists()
    assert run() == "apptainer"
    reason = "Apptainer 1.4.5 runs images here, and they are built"
    assert kept() == {"deployment": "apptainer", "reason": reason}
    said = capsys.readouterr().out
    assert said == f"parbench: cells run in Apptainer images, stack current: {reason}\n"
    assert run() == "apptainer"
    assert (
        "this is kept in results/deployment.json; delete that file to choose again"
        in capsys.readouterr().out
    )
    has(ABSENT)  # no fallback
    with pytest.raises(ParbenchError, match=r"^this folder's cells run in images \(results/deploy"):
        run()


@pytest.mark.parametrize(
    ("found", "obstacle", "reason"),
    [(ABSENT, None, ABSENT.problem), (WORKS, OBSTACLE, OBSTACLE), (WORKS, UNBUILT, UNBUILT)],
    ids=["no Apptainer", "no images", "none built"],
)
def test_auto_takes_the_host_elsewhere_says_why_and_stays_there(
    has, capsys, found, obstacle, reason
):
    has(found, obstacle)
    assert run() == "host"
    assert kept() == {"deployment": "host", "reason": reason}
    assert f"this machine's own environment, stack current: {reason}" in capsys.readouterr().out
    has(WORKS)
    assert run() == "host"
    assert run(typed=True) == "host"
    assert "--sdm apptainer changes nothing in a folder whose cells" in capsys.readouterr().out
    assert run("apptainer") == "apptainer"  # config.yaml overrides what was kept
    KEPT.unlink()
    assert run() == "apptainer"


# ---------------------------------------------------------------- asked for


@pytest.mark.parametrize("asked", ["apptainer", "host"])
def test_what_config_yaml_says_holds_and_is_not_kept(has, capsys, asked):
    has(WORKS, OBSTACLE)
    assert run(asked) == asked
    assert "`deployment` says so" in capsys.readouterr().out
    assert not KEPT.exists()


def test_sdm_apptainer_in_a_fresh_folder_asks_for_images(has):
    has(WORKS, OBSTACLE)
    assert run(typed=True) == "apptainer"
    assert kept() == {"deployment": "apptainer", "reason": "--sdm apptainer was typed"}
    assert run() == "apptainer"  # from now on without typing it


@pytest.mark.parametrize(
    ("asked", "typed", "said"),
    [
        ("apptainer", False, "config.yaml: deployment: apptainer, but "),
        ("auto", True, "--sdm apptainer, but "),
    ],
)
def test_images_that_were_asked_for_and_cannot_run_are_an_error(has, asked, typed, said):
    has(ABSENT)
    with pytest.raises(ParbenchError) as error:
        run(asked, typed)
    assert str(error.value) == said + ABSENT.problem
    assert not KEPT.exists()


# ---------------------------------------------------------------- what cells find


def test_packages_are_added_only_before_a_run_and_only_those_that_cells_need_and_lack(monkeypatch):
    added = []
    monkeypatch.setattr(host_environment, "add", lambda names, stack: added.extend(names))
    monkeypatch.setattr(host_environment, "entered", lambda: "current")
    monkeypatch.setattr(Software, "without_horovod", lambda self: "no Horovod")
    monkeypatch.setattr(Software, "without", lambda self, name, module: f"no {name}")
    on_host, in_images = map(resolved, ("host", "apptainer"))
    while_parsed = deployment.DeployedSoftware(on_host)
    assert (while_parsed.without_horovod(), while_parsed.without_spark()) == (
        "no Horovod", "no spark"
    )  # fmt: skip
    assert added == []
    before = deployment.CompletedSoftware(on_host)
    assert before.without_horovod() == "no Horovod"  # it could not be compiled
    assert before.without("spark", "pyspark") == "no spark"
    assert added == ["horovod", "spark"]
    before = deployment.CompletedSoftware(in_images)
    assert before.without_horovod() is before.without_spark() is None
    assert before.without_text() == "no text"  # tokenized on the host
    assert added == ["horovod", "spark", "text"]
    monkeypatch.setattr(host_environment, "entered", lambda: None)
    deployment.CompletedSoftware(on_host).without_horovod()
    assert added == ["horovod", "spark", "text"]  # another Python is left as it is


@pytest.mark.parametrize("stack", ["current", "paper"])
def test_the_real_obstacles_of_images(monkeypatch, tmp_path, stack):
    """Why `auto` takes no images on a machine with an empty cache."""
    monkeypatch.undo()
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(apptainer, "BUILD_PATH", str(tmp_path))
    monkeypatch.setattr("platform.freedesktop_os_release", lambda: {"ID": "debian"})
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    monkeypatch.setenv("USER", "me")
    asked = recipes.ImageSettings(unpack=True)
    assert containers.obstacle(stack, asked) == OBSTACLE
    other = {"bootstrap": "docker", "from": f"debian@sha256:{'0' * 64}"}
    lack = "this user cannot build images: no range of ids for me in /etc/subuid; sudo "
    lack += "make system ARGS=apptainer"
    assert containers.obstacle(stack, replace(asked, arguments=other)) == lack
    monkeypatch.setattr(apptainer, "cannot_build", lambda debootstrap: None)
    unasked = containers.obstacle(stack, asked)
    assert unasked.startswith("its images are not built yet; `deployment: apptainer` builds them")
    assert "six minutes on two idle cores, 20 GB" in unasked
    # Nothing is built when the images that most studies need were copied into the cache.
    for name in ("torch", "horovod", "report"):
        one = recipes.image(name, stack, asked)
        one.path.parent.mkdir(parents=True, exist_ok=True)
        one.path.touch()
        facts = {"label": one.label, "sha256": "0", "python": "3.11", "packages": {}}
        one.beside(".json").write_text(json.dumps(facts))
    assert containers.obstacle(stack, asked) is None
