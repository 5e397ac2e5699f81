"""Write a Workflow Run RO-Crate: what was run, its inputs and results, for other programs.

The crate holds the workflow, its configuration, the metrics of all cells, tables and report, each
with its SHA-256. It names images, data and published weights by SHA-256 only. The workflow's run
and each cell's run are actions. See docs/evidence.md.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from rocrate.model import ContextEntity, Entity
from rocrate.rocrate import ROCrate

from parbench.data import saved_weights
from parbench.equivalence import certificate
from parbench.errors import ParbenchError
from parbench.files import make_folder, read_record, rename_durably, sha256_file
from parbench.plan import config_files, expansion, places, state
from parbench.runs import records
from parbench.runs.parts import Environment
from parbench.runs.records import CellRun, PairRun
from parbench.verdicts.closing import REPORTS
from parbench.words import count

VERSION = "1.1"  # of RO-Crate, required by the profiles
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": "Process Run Crate",
    "https://w3id.org/ro/wfrun/workflow/0.5": "Workflow Run Crate",
    "https://w3id.org/ro/wfrun/provenance/0.5": "Provenance Run Crate",
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": "Workflow RO-Crate",
}
WFRUN = "https://w3id.org/ro/terms/workflow-run#"
TERMS = ("ContainerImage", "containerImage", "sha256")  # from WFRUN; RO-Crate itself lacks them
LICENSE = "https://spdx.org/licenses/Apache-2.0"
DATA = Path("results/report.json")
FIX = "first: make report, with the same ARGS"


# --------------------------------------------------------------------------------------------------
# What was run


def finished(plan: expansion.Plan) -> dict[str, CellRun | PairRun]:
    """Return metrics.json of ``plan``'s runnable cells; ParbenchError if there are none, or one or
    the report is missing or stale."""
    names = ", ".join(plan.studies)
    cells = dict.fromkeys(cell for study in plan.studies for cell in plan.runnable(study))
    if not cells:
        raise ParbenchError(
            f"studies: {names}: none of their cells runs here, so there is nothing to describe"
        )
    states = {cell: state.state(cell, plan) for cell in cells}
    unfinished = [
        f"{cell}: {reasons[0]}" for cell, (word, reasons) in states.items() if word != "done"
    ]
    if unfinished:
        raise ParbenchError(
            f"{len(unfinished)} of {len(cells)} cells have no result, or a stale one, such as "
            f"{unfinished[0]}; {FIX} and --forcerun table"  # --forcerun remakes missing cells
        )
    runs = {cell: records.read(places.folder(cell) / "metrics.json") for cell in cells}
    end = datetime.fromisoformat(max(run.finished for run in runs.values()))
    for path in report_files(plan):
        if not path.exists():
            raise ParbenchError(f"{path}: no such file; {FIX}")
        if datetime.fromtimestamp(path.stat().st_mtime, UTC) < end:
            raise ParbenchError(f"{path}: a cell was finished since it was made; {FIX}")
    names_in_report = ", ".join(study["name"] for study in read_record(DATA, "studies")["studies"])
    if names_in_report != names:
        raise ParbenchError(f"{DATA}: a report of {names_in_report}, and not of {names}; {FIX}")
    return runs


def report_files(plan: expansion.Plan) -> list[Path]:
    """Return the tables and report files that a run of ``plan`` makes."""
    return [*(Path(f"results/tables/{study}.csv") for study in plan.studies), DATA, *REPORTS]


def inputs(plan: expansion.Plan, stack: str, configfiles: Sequence[Path]) -> list[Path]:
    """Return the files that decide what is run, and the resulting plans."""
    studies = [
        path
        for study in plan.studies
        for path in (places.study(study), Path(f"results/plan/{study}.json"))
    ]
    sources = [*places.published_files(), *places.claims_files()]
    locks = sorted(Path("containers/locks", stack).glob("*.txt"))
    return [Path("config.yaml"), *configfiles, *studies, *sources, *locks]


# --------------------------------------------------------------------------------------------------
# The crate


class Crate:
    """The crate, built step by step, of ``plan``'s ``runs``, by cell."""

    def __init__(self, plan: expansion.Plan, runs: dict[str, CellRun | PairRun]) -> None:
        self.plan, self.runs = plan, runs
        self.environments = [each for run in runs.values() for each in run.environments]
        self.crate = ROCrate(version=VERSION, exclude=["__pycache__"])
        self.crate.metadata.extra_terms = {term: WFRUN + term for term in TERMS}

    def describe(self, license_: str) -> None:
        """Add the subject, what was not run, the license and the profiles."""
        titles = [study.study.title for study in self.plan.studies.values()]
        reasons = Counter(self.plan.not_run.values()).items()
        cells_not_run = "".join(f"; {number} not: {reason}" for reason, number in reasons)
        cells_run = f"{len(self.runs)} of {len(self.plan.cells)} cells were run"
        self.crate.name, self.crate.description = (
            f"parbench: {', '.join(titles)}",
            f"{cells_run}{cells_not_run}.",
        )
        self.crate.license = self.named(license_, "CreativeWork", name=license_)
        profiles = [self.named(each, "CreativeWork", name=PROFILES[each]) for each in PROFILES]
        self.crate.root_dataset["conformsTo"] = profiles

    def named(self, identifier: str, kind: str, **properties: object) -> Entity:
        """Add an entity that is not a file of the crate."""
        entity = ContextEntity(self.crate, identifier, {"@type": kind, **properties})
        return _added(self.crate.add(entity))

    def file(self, path: Path, *types: str) -> Entity:
        """Add a file once, by its relative path, or by its base name if from another folder."""
        name = os.path.relpath(path)
        name = path.name if name.startswith("..") else name
        properties = {"@type": ["File", *types] if types else "File", "sha256": sha256_file(path)}
        known = self.crate.get(quote(name))
        return _added(known or self.crate.add_file(path, name, properties=properties))

    def tensors(self, description: Path) -> Entity:
        """Add the data or weights that the file ``description`` describes."""
        file, name = self.file(description), str(description.parent)
        if description.name == saved_weights.DIGEST:  # a cell's weights: not a file's digest
            return file
        properties = {"sha256": read_record(description, "sha256")["sha256"], "subjectOf": file}
        return self.named(f"#{name}", "CreativeWork", name=name, **properties)

    def add_code(self) -> tuple[Entity, Entity]:
        """Add the workflow and the program that runs a cell."""
        installed = (each.packages | {"Python": each.python} for each in self.environments)
        software = [
            self.named(f"#{name}-{version}", "SoftwareApplication", name=name, version=version)
            for name, version in sorted(
                {item for packages in installed for item in packages.items()}
            )
        ]
        launcher = self.file(Path("scripts/bin/parbench"), "SoftwareSourceCode")
        launcher["softwareRequirements"] = software
        properties = {"name": "parbench", "sha256": sha256_file("Snakefile"), "hasPart": launcher}
        main = _added(
            self.crate.add_workflow("Snakefile", main=True, lang="snakemake", properties=properties)
        )
        if versions := {version for each in self.environments if (version := _version(each))}:
            main["version"] = launcher["version"] = ", ".join(sorted(versions))
        for folder in ("rules", "scripts", "containers"):
            self.crate.add_dataset(folder, folder)
        return main, launcher

    def add_actions(self, taken: list[Path], agent: str | None) -> None:
        """Add the workflow's run, with the input files ``taken``, and each cell's run."""
        main, launcher = self.add_code()
        ran = {"agent": self.named("#agent", "Person", name=agent)} if agent else {}
        descriptions = {path for cell in self.runs for path in self._described(cell)}
        outer = sorted(path for path in descriptions if path.name != saved_weights.DIGEST)
        proofs = {certificate.path(each.place) for each in self.environments}
        outputs = [*report_files(self.plan), *filter(Path.exists, sorted(proofs))]
        properties = {
            "@type": "CreateAction",
            "name": "The workflow",
            "description": "From the start of the first cell to the end of the last one.",
            "startTime": min(run.started for run in self.runs.values()),
            "endTime": max(run.finished for run in self.runs.values()),
            "actionStatus": "http://schema.org/CompletedActionStatus",
        }
        objects = [*map(self.file, taken), *map(self.tensors, outer)]
        workflow_run = self.crate.add_action(
            main, "#run", objects, list(map(self.file, outputs)), properties | ran
        )
        cell_runs = [self._add_cell(cell, launcher, ran) for cell in self.runs]
        self.crate.root_dataset["mentions"] = [workflow_run, *cell_runs]

    def _described(self, cell: str) -> list[Path]:
        """Return the descriptions of a cell's data and weights."""
        return [state.data_path(self.plan.cells[cell]), *state.weights(self.plan.cells[cell])]

    def _add_cell(self, cell: str, launcher: Entity, ran: dict[str, Entity]) -> Entity:
        run, cell_folder = self.runs[cell], places.folder(cell)
        outputs = filter(
            Path.exists, (cell_folder / "metrics.json", cell_folder / saved_weights.DIGEST)
        )
        properties: dict[str, object] = {
            "@type": "CreateAction",
            "description": f"A run of parbench that ended {run.status}",
            "startTime": run.started,
            "endTime": run.finished,
            "actionStatus": "http://schema.org/CompletedActionStatus",
        }
        if run.status != "ok":
            properties |= {
                "actionStatus": "http://schema.org/FailedActionStatus",
                "error": run.reason,
            }
        digests = {each.image: each.image_digest for each in run.environments}
        if images := {label: sha256 for label, sha256 in digests.items() if label}:
            properties["containerImage"] = [
                self.named(
                    f"#{label}",
                    "ContainerImage",
                    name=label,
                    sha256=sha256,
                    additionalType={"@id": f"{WFRUN}SIFImage"},
                )
                for label, sha256 in images.items()
            ]
        objects = [self.file(cell_folder / "cell.json"), *map(self.tensors, self._described(cell))]
        results = list(map(self.file, outputs))
        properties |= ran
        return _added(self.crate.add_action(launcher, f"#{cell}", objects, results, properties))

    def write(self, out: Path) -> None:
        """Write the crate, whole or not at all: a folder, or an archive if ``out`` is .zip."""
        make_folder(out.parent)
        with tempfile.TemporaryDirectory(".part", ".crate-", out.parent) as folder:
            path = Path(folder, "crate")
            self.crate.write(path)
            if out.suffix == ".zip":
                path = Path(shutil.make_archive(str(path), "zip", path))
            rename_durably(path, out)


def _added(entity: object) -> Entity:
    """Return what was added to a crate, with the type that rocrate does not declare."""
    assert isinstance(entity, Entity)
    return entity


def _version(environment: Environment) -> str | None:
    """Return parbench's commit in ``environment``; None without git."""
    changed = " with uncommitted changes" if environment.git_dirty else ""
    return environment.git_commit and environment.git_commit + changed


def write(
    out: Path,
    configfiles: Sequence[Path],
    settings: Sequence[str],
    agent: str | None,
    license_address: str | None,
) -> None:
    """Write the crate of the run of ``configfiles`` and ``settings`` (key=value) to ``out``.

    ``agent``: the name of who ran it; ``license_address``: None for parbench's own. Raises
    ParbenchError.
    """
    if out.exists():
        raise ParbenchError(f"{out}: already exists; move or delete it, or set --out")
    changes = config_files.parse_changes(settings)
    config = config_files.read(configfiles, changes)
    why_unavailable = expansion.unavailable_as_planned(config.studies)
    plan = expansion.plan(config, config.resolved_deployment(), why_unavailable)
    crate = Crate(plan, finished(plan))
    crate.describe(license_address or LICENSE)
    crate.add_actions(inputs(plan, config.stack, configfiles), agent)
    crate.write(out)
    print(f"{out}  {count(len(crate.runs), 'cell')}")
