"""Where cells run: settled once for a work folder, and never changed behind its back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from parbench.deploy import apptainer, build, deployment, environment, images
from parbench.errors import ParbenchError

WORKS = apptainer.Apptainer("/usr/bin/apptainer", "1.4.5")
ABSENT = apptainer.Apptainer(None, trouble="Apptainer is not installed; sudo make system")
KEPT = Path("results/deployment.json")


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path) -> None:
    """A fresh work folder on a machine where Apptainer runs and builds images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(apptainer, "probe", lambda: WORKS)
    monkeypatch.setattr(images, "obstacle", lambda stack, settings: None)


def config(asked: str = "auto") -> dict:
    settings = {"arguments": {}, "given": {}, "public_key": None, "unpack": True}
    return {"deployment": asked, "stack": "current", "images": settings}


def run(asked: str = "auto", typed: bool = False) -> dict:
    """Settle and keep, as the workflow does at the start of a run."""
    settled = deployment.settle(config(asked), typed)
    deployment.keep(settled, typed)
    return settled


def kept() -> dict:
    return json.loads(KEPT.read_text())


def lose_apptainer(monkeypatch) -> None:
    monkeypatch.setattr(apptainer, "probe", lambda: ABSENT)


# ---------------------------------------------------------------- auto


def test_auto_takes_images_where_they_work_and_keeps_that(capsys):
    assert run()["deployment"] == "apptainer"
    reason = "Apptainer 1.4.5 runs images here"
    assert kept() == {"deployment": "apptainer", "reason": reason}
    said = capsys.readouterr().out
    assert said == f"parbench: cells run in Apptainer images, stack current: {reason}\n"
    assert run()["deployment"] == "apptainer"
    assert "results/deployment.json keeps that; delete it to look again" in capsys.readouterr().out


def test_auto_takes_the_host_without_apptainer_and_says_why(monkeypatch, capsys):
    lose_apptainer(monkeypatch)
    assert run()["deployment"] == "host"
    assert kept() == {"deployment": "host", "reason": ABSENT.trouble}
    said = capsys.readouterr().out
    assert said.startswith("parbench: cells run in this machine's own environment, stack current: ")
    assert ABSENT.trouble in said


@pytest.mark.parametrize(
    "obstacle",
    [
        "debootstrap, which builds images, is missing: sudo make system",
        "this user cannot build images: no range of ids for me in /etc/subuid; sudo make system",
    ],
)
def test_auto_takes_the_host_where_images_cannot_be_built(monkeypatch, capsys, obstacle):
    monkeypatch.setattr(images, "obstacle", lambda stack, settings: obstacle)
    assert run()["deployment"] == "host"
    assert obstacle in capsys.readouterr().out
    assert kept()["reason"] == obstacle


def test_settling_alone_keeps_nothing():
    deployment.settle(config())  # `snakemake -n`, `scripts/cells.py list`
    assert not KEPT.exists()


def test_a_folder_of_the_host_stays_one_when_apptainer_is_installed(monkeypatch):
    lose_apptainer(monkeypatch)
    run()
    before = kept()
    monkeypatch.setattr(apptainer, "probe", lambda: WORKS)
    assert run()["deployment"] == "host"
    assert kept() == before
    KEPT.unlink()
    assert run()["deployment"] == "apptainer"


def test_a_folder_of_images_does_not_fall_back_when_apptainer_goes(monkeypatch):
    run()
    lose_apptainer(monkeypatch)
    with pytest.raises(ParbenchError) as error:
        run()
    message = str(error.value)
    assert message.startswith("this folder's cells run in images (results/deployment.json), but ")
    assert "sudo make system" in message
    assert kept()["deployment"] == "apptainer"


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"deployment": "docker"}', "\udcff"])
def test_a_damaged_record_is_one_message_that_names_it(content):
    KEPT.parent.mkdir()
    KEPT.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ParbenchError, match=r"^results/deployment\.json: .*; delete it") as error:
        run()
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------- asked for


@pytest.mark.parametrize("asked", ["apptainer", "host"])
def test_what_config_yaml_says_holds_and_is_not_kept(monkeypatch, capsys, asked):
    monkeypatch.setattr(images, "obstacle", lambda stack, settings: pytest.fail("not asked"))
    settled = run(asked)
    assert (settled["deployment"], settled["reason"]) == (asked, "config.yaml says so")
    assert "config.yaml says so" in capsys.readouterr().out
    assert not KEPT.exists()


def test_what_config_yaml_says_goes_before_what_was_kept(monkeypatch):
    lose_apptainer(monkeypatch)
    run()
    monkeypatch.setattr(apptainer, "probe", lambda: WORKS)
    assert run("apptainer")["deployment"] == "apptainer"
    assert kept()["deployment"] == "host"


def test_images_that_were_asked_for_and_cannot_run_are_an_error_with_key_and_mend(monkeypatch):
    lose_apptainer(monkeypatch)
    with pytest.raises(ParbenchError) as error:
        run("apptainer")
    assert str(error.value) == f"config.yaml: deployment: apptainer, but {ABSENT.trouble}"
    assert not KEPT.exists()


# ---------------------------------------------------------------- --sdm apptainer


def test_sdm_apptainer_in_a_fresh_folder_asks_for_images(monkeypatch):
    obstacle = "debootstrap, which builds images, is missing: sudo make system"
    monkeypatch.setattr(images, "obstacle", lambda stack, settings: obstacle)
    assert run(typed=True)["deployment"] == "apptainer"
    assert kept() == {"deployment": "apptainer", "reason": "--sdm apptainer was typed"}
    assert run()["deployment"] == "apptainer"  # from now on without typing it


def test_sdm_apptainer_without_apptainer_is_an_error(monkeypatch):
    lose_apptainer(monkeypatch)
    with pytest.raises(ParbenchError) as error:
        run(typed=True)
    assert str(error.value) == f"--sdm apptainer, but {ABSENT.trouble}"
    assert not KEPT.exists()


def test_sdm_apptainer_changes_nothing_in_a_folder_of_the_host(monkeypatch, capsys):
    lose_apptainer(monkeypatch)
    run()
    monkeypatch.setattr(apptainer, "probe", lambda: WORKS)
    assert run(typed=True)["deployment"] == "host"
    assert kept()["deployment"] == "host"
    assert "--sdm apptainer changes nothing in a folder whose cells run on" in (
        capsys.readouterr().out
    )


# ---------------------------------------------------------------- what cells find


def test_horovod_is_compiled_only_where_a_plan_asks_for_it_and_make_report_says_so(monkeypatch):
    asked = []
    monkeypatch.setattr(environment, "ensure_horovod", asked.append)
    monkeypatch.delenv("PARBENCH_BUILD_HOROVOD", raising=False)
    host = deployment.software(run("host"))
    host.without_horovod()
    assert asked == []
    monkeypatch.setenv("PARBENCH_BUILD_HOROVOD", "current")
    host.without_horovod()
    assert asked == ["current"]
    assert deployment.software(run("apptainer")).without_horovod() is None
    assert asked == ["current"]


def test_the_real_obstacles_of_building(monkeypatch, tmp_path):
    """What images.obstacle says on a machine with an empty cache."""
    monkeypatch.undo()
    monkeypatch.setenv("PARBENCH_CACHE", str(tmp_path / "cache"))
    asked = config()["images"]
    lack = "no range of ids for me in /etc/subuid; sudo make system"
    monkeypatch.setattr(apptainer, "lacking_subids", lambda: lack)
    monkeypatch.setattr(build, "debootstrap", lambda: None)
    assert images.obstacle("current", asked) == (
        "this user cannot build images: no debootstrap; sudo make system"
    )
    other = {**asked, "arguments": {"bootstrap": "docker", "from": f"debian@sha256:{'0' * 64}"}}
    assert images.obstacle("current", other) == f"this user cannot build images: {lack}"
    # Who is given all images builds none.
    given = {}
    for name in images.names():
        (tmp_path / f"{name}.sif").write_text(name)
        given[name] = str(tmp_path / f"{name}.sif")
    assert images.obstacle("current", {**asked, "given": given}) is None
