"""Answer the Snakefile and its rules: write the plan, and say what each job needs.

Uses only what Snakemake offers to a Snakefile: ``workflow`` is read, never changed.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from snakemake.exceptions import WorkflowError  # pyright: ignore[reportMissingTypeStubs]  # it has none

from parbench import identity, models
from parbench.cache import print_message
from parbench.cell import Cell, Pair
from parbench.data import pretrained
from parbench.deploy import containers, deployment, recipes
from parbench.deploy.deployment import DeployedSoftware
from parbench.equivalence import certificate
from parbench.errors import ParbenchError
from parbench.launch import devices, run_lock, slurm, slurm_cluster
from parbench.measure import provenance
from parbench.plan import config_files, consistency, expansion, state, writing
from parbench.plan.configuration import Entry
from parbench.plan.places import ROOT, folder
from parbench.printable import printable
from parbench.words import nearest
from parbench.workflow import unfinished
from parbench.workflow.invocation import Invocation

if TYPE_CHECKING:
    from parbench.equivalence.certificate_types import CertifiedEntry

# How Snakemake finds that a result is stale; settings and code are parameters of the rules.
TRIGGERS = {"input", "mtime", "params"}
ALL = 10_000  # cores: Snakemake lowers this to its --cores


class Wildcards(Protocol):
    """The wildcards of the rules; a job has those of its rule's output."""

    cell: str
    study: str
    place: str
    dataset: str
    weights: str


def evidence_files(pattern: str) -> Callable[[Wildcards], list[str]]:
    """Return an input function that fills ``pattern`` for each unpacked file of evidence.

    The function raises WorkflowError if there is no such file; only the report on evidence calls
    it.
    """

    def files(wildcards: Wildcards) -> list[str]:
        names = sorted(path.stem for path in Path("reports/evidence").glob("*.json"))
        if not names:
            raise WorkflowError(
                "error: reports/evidence has no file of evidence; make one of a finished study: "
                "make evidence ARGS=<study>"
            )
        return [f"results/evidence/{name}/" + pattern.format(evidence=name) for name in names]

    return files


def _digest_file(image: recipes.Image) -> str:
    """Return the file that represents an image; its name has a digest of the image's inputs."""
    return f"results/images/{image.label}.json"


class WorkflowRun:
    """What the rules need: ``config``, ``plan`` and each cell's resources on Slurm.

    Raises ParbenchError for an invalid configuration, WorkflowError for a job that cannot exist.
    """

    def __init__(self, invocation: Invocation):
        self.invocation, on_slurm = invocation, invocation.on_slurm
        if on_slurm or not invocation.main:  # of the plugin: to submit, and within a job
            slurm_cluster.retry_sbatch_and_srun()
        self.config = config_files.read(invocation.configfiles, invocation.changes)
        self.deployment = self.config.resolved_deployment(invocation.apptainer)
        self.writes_plan = False
        if invocation.main:
            self._print_triggers()
            self.writes_plan = self._take_lock() and not (invocation.dry or invocation.unlock)
        self.cluster = slurm_cluster.ask() if on_slurm else None
        self.earlier_jobs = slurm.find_earlier_jobs(ROOT) if on_slurm else {}
        self.plan = self._plan()
        if self.writes_plan:  # before the graph, whose rules have the plan's files as inputs
            writing.write(self.plan)
        self.requests = slurm.Requests(self.plan, self.config, self.cluster, self.earlier_jobs)
        self.preparing = slurm.preparing(self.config.slurm, self.cluster)
        self.requested: set[str] = set()  # the cells in Snakemake's graph of jobs
        self.started = time.time()
        if invocation.dry:
            # `snakemake -n | head`: end as other programs do. Snakemake would print a traceback for
            # each line that nobody reads, and a dry run has nothing to save.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            atexit.register(self._print_dry_run)

    def _print_triggers(self) -> None:
        if ignored := sorted(TRIGGERS - self.invocation.triggers):
            chosen = ", ".join(sorted(self.invocation.triggers)) or "none"
            print_message(
                f"rerun-triggers is {chosen}, without {' and '.join(ignored)}: changed settings, "
                "code or data may go unnoticed and results become stale; remove rerun-triggers "
                f"from your profile, or type --rerun-triggers {' '.join(sorted(TRIGGERS))}"
            )

    def _take_lock(self) -> bool:
        """Return False if another run is using this folder; Snakemake's own lock stops this one."""
        if self.invocation.unlock:
            run_lock.forget()
        elif self.invocation.dry:
            run_lock.require_writable()
        else:
            return run_lock.hold(self.invocation.unlocking)
        return True

    def _plan(self) -> expansion.Plan:
        config, invocation = self.config, self.invocation
        if invocation.cell is not None:  # one of thousands of jobs: it needs no other cell
            return writing.plan_of(invocation.cell, config)
        # What cells lack depends on where they run: on a cluster or this machine. A job of a run
        # uses what was found when that run began.
        software = DeployedSoftware(self.deployment)
        if self.cluster is not None:
            why_unavailable = slurm.why_unavailable(self.cluster, config, software)
        elif invocation.main:
            why_unavailable = expansion.unavailable_here(config, software)
        else:
            why_unavailable = expansion.unavailable_as_planned(config.studies)
        # Only the report needs claims, after hours of training, but a typo should be found first.
        consistency.checked_claims()
        return expansion.plan(config, self.deployment, why_unavailable)

    @property
    def prepares_here(self) -> bool:
        """Whether preparation and report run where Snakemake runs, not as Slurm jobs."""
        return self.config.slurm.prepare == "submit"

    # ------------------------------------------------------------ a cell's job

    def cell(self, wildcards: Wildcards) -> Cell | Pair:
        """Return a job's cell. Raises WorkflowError if it is unknown or cannot run here."""
        name = wildcards.cell
        if name not in self.plan.cells:
            near = nearest(name, list(self.plan.cells), listed=False)
            raise WorkflowError(f"error: unknown cell {name!r}{near}")
        if name in self.plan.not_run:
            raise WorkflowError(f"error: {name} is not run here: {self.plan.not_run[name]}")
        self.requested.add(name)
        return self.plan.cells[name]

    def cell_dataset(self, wildcards: Wildcards) -> str:
        """Return its dataset's digest file: small, so Snakemake compares content, not time."""
        return f"results/data/{self.cell(wildcards).dataset.name}/digest.json"

    def cell_weights(self, wildcards: Wildcards) -> list[str]:
        """Return the digest files of the weights it starts from; none if the seed draws them."""
        return list(map(str, state.weights(self.cell(wildcards))))

    @property
    def keeps_weights(self) -> str:
        """A regular expression that matches the cells that keep their weights for others."""
        cells = self.plan.cells.values()
        names = [cell.id for cell in cells if isinstance(cell, Cell) and cell.run.keeps_weights]
        return "|".join(map(re.escape, names)) or "none"

    def cell_image(self, wildcards: Wildcards) -> list[str]:
        """Return the digest files of its images; none if cells run on the host."""
        images_of_sides = (state.image_of(side, self.plan) for side in self.cell(wildcards).sides)
        return list(
            dict.fromkeys(_digest_file(image) for image in images_of_sides if image is not None)
        )

    def cell_identity(self, wildcards: Wildcards) -> str:
        """Return a digest of the code and the software that it can reach."""
        cell = self.cell(wildcards)
        return identity.planned(cell, state.image_labels(cell, self.plan))

    def cell_threads(self, wildcards: Wildcards) -> int:
        """Return the cores that a cell holds on a node; a pair gets all, so that it runs alone."""
        cell = self.cell(wildcards)
        return ALL if isinstance(cell, Pair) else devices.needed(cell, 1)[1]

    def cell_priority(self, wildcards: Wildcards) -> int:
        """Return 1000 - seed (or restart), so that compared strategies run close in time.

        This orders cells with the same number of cores: a cell with more cores waits while smaller
        ones keep taking the last free core. The result is never negative: Snakemake would leave
        cores idle while other jobs have priority 0.
        """
        return max(0, 1000 - self.plan.cells[wildcards.cell].seed)

    def resources(self) -> dict[str, Callable[[Wildcards], int | str | None]]:
        """Return cells' resources by the Slurm plugin's names; none if cells run on this machine.

        They do not use `threads`, which Snakemake limits to the submitting machine's cores.
        """
        if self.invocation.main and not self.invocation.on_slurm:
            return {}

        def one(key: str) -> Callable[[Wildcards], int | str | None]:
            return lambda wildcards: self.requests.of(wildcards.cell).get(key)

        return {key: one(key) for key in slurm.KEYS}

    # ------------------------------------------------------------ tables, report, certificates

    def _study(self, wildcards: Wildcards) -> str:
        """Return the table's study. Raises WorkflowError if the run has no such study."""
        study = wildcards.study
        if study not in self.plan.studies:
            near = nearest(study, list(self.plan.studies))
            raise WorkflowError(f"error: study {study!r} is not in `studies`{near}")
        return study

    def metrics(self, wildcards: Wildcards) -> list[str]:
        """Return the metrics.json of each cell of the study that can run here."""
        return [
            str(folder(cell) / "metrics.json")
            for cell in self.plan.runnable(self._study(wildcards))
        ]

    def measured(self, wildcards: Wildcards) -> list[str]:
        """Return the metrics.json of every cell that can run here, and the certificates."""
        cells = (cell for study in self.plan.studies for cell in self.plan.runnable(study))
        metrics = [str(folder(cell) / "metrics.json") for cell in dict.fromkeys(cells)]
        return [*metrics, *self.certificates_of(self.plan.studies)]

    # ------------------------------------------------------------ the plan's files

    def _planned(self, names: Iterable[str], is_ready: Callable[[Path], bool]) -> list[str]:
        """Return the plan's files of these names, as inputs.

        A dry run writes no plan, and Snakemake stops if an input does not exist. In a dry run,
        files not yet written are left out of the inputs, so the job is listed as one to run.
        """
        paths = [writing.FOLDER / name for name in names]
        if self.invocation.main and not self.writes_plan:
            paths = list(filter(is_ready, paths))
        return list(map(str, paths))

    def study_plans(self, studies: Iterable[str]) -> list[str]:
        """Return the files of the plans of ``studies``."""
        return self._planned(
            (f"{study}.json" for study in studies),
            lambda path: writing.is_written(path, self._content[path]),
        )

    @cached_property
    def _content(self) -> dict[Path, object]:
        """What the plan's files should contain; used only by runs that write no plan."""
        return writing.content(self.plan)

    def study_plan(self, wildcards: Wildcards) -> list[str]:
        """Return the file of the plan of the table's study."""
        return self.study_plans([self._study(wildcards)])

    def planned(self, name: str) -> Callable[[Wildcards], list[str]]:
        """Return an input function for a file of the plan that all studies share."""
        return lambda wildcards: self._planned([name], Path.exists)

    @property
    def report_image(self) -> str | list[str]:
        """The digest file of the image that makes tables and report; none on the host."""
        if not self.deployment.in_images:
            return []
        image = recipes.image("report", self.plan.stack, self.plan.images)
        return _digest_file(image)

    @property
    def inside_report_image(self) -> str:
        """The command prefix for programs that make tables and report; empty on the host."""
        run = "python scripts/bin/parbench images run report --plan results/plan/images.json --"
        return run if self.deployment.in_images else ""

    def plan_of_images(self, wildcards: Wildcards) -> list[str]:
        """Return the file that the programs above find their image by; none on the host."""
        return self._planned(["images.json"], Path.exists) if self.deployment.in_images else []

    def certificates(self, wildcards: Wildcards) -> list[str]:
        """Return the certificates for a table's study."""
        return self.certificates_of([wildcards.study])

    def certificates_of(self, studies: Iterable[str]) -> list[str]:
        """Return the certificates for the cells of ``studies``: of their images or their Python."""
        plans = [self.plan.studies[study] for study in studies if study in self.plan.studies]
        runnable = [group for plan in plans for group in plan.groups if group.not_run is None]
        groups = [group for group in runnable if group.trained_by is None]
        cells = (self.plan.cells[group.cells[0]] for group in groups)
        used_images = {state.image_of(side, self.plan) for cell in cells for side in cell.sides}
        alone = self.deployment.label
        labels = {alone if image is None else image.label for image in used_images}
        return [str(certificate.path(label)) for label in sorted(labels)]

    def _certified(self, place: str, studies: Iterable[str]) -> list[CertifiedEntry]:
        plans = [self.plan.studies[study].stated() for study in studies]
        return certificate.required([group for plan in plans for group in plan["groups"]], place)

    def certified(self, wildcards: Wildcards) -> str:
        """Return a digest of what a certificate must cover.

        The certified code and the host's packages are part of it.
        """
        todo = self._certified(wildcards.place, self.plan.studies)
        return certificate.content(todo, wildcards.place)

    def certified_plans(self, wildcards: Wildcards) -> list[str]:
        """Return the plans with cells that need a certificate (what it must cover: `certified`)."""
        names = [
            f"{study}.json"
            for study in self.plan.studies
            if self._certified(wildcards.place, [study])
        ]
        return self._planned(names, Path.exists)

    def certified_image(self, wildcards: Wildcards) -> str | list[str]:
        """Return the digest file of a certificate's image; none on the host."""
        image = certificate.image_of(wildcards.place)
        return [] if image is None else f"results/images/{wildcards.place}.json"

    def certified_python(self, wildcards: Wildcards) -> list[str]:
        """Return the arguments that name the user's own Python; none without one."""
        python = self.deployment.python
        return [] if python is None else ["--python", python]

    # ------------------------------------------------------------ what decides an input's bytes

    def dataset_source(self, wildcards: Wildcards) -> str:
        """Return what determines a dataset's bytes: not its mirrors, nor the code that fetches it.

        A change of the conversion must raise CONVERSION of the dataset's kind. For a local folder,
        the bytes of its files count, not their times: if this rule runs, so do all cells of the
        dataset.
        """
        self._entry("dataset", self.plan.datasets, wildcards.dataset)
        try:
            digest = state.source_digest(wildcards.dataset, self.plan)
        except ParbenchError as error:
            # The rule runs, and its program prints this; raised here, Snakemake would show a
            # traceback.
            digest = str(error)
        return " ".join(filter(None, (state.made_from(wildcards.dataset, self.plan), digest)))

    def weights_source(self, wildcards: Wildcards) -> str:
        """Return what determines the bytes of published weights, and their model's code."""
        spec = self._entry("weight", self.plan.weights, wildcards.weights)
        model = provenance.combined(provenance.closure(models.module(spec["model"])))
        return json.dumps([spec, pretrained.CONVERSION, model], sort_keys=True)

    @staticmethod
    def _entry(kind: str, entries: dict[str, Entry], name: str) -> Entry:
        if name not in entries:
            raise WorkflowError(f"error: unknown {kind} {name!r}{nearest(name, list(entries))}")
        return {part: value for part, value in entries[name].items() if part != "urls"}

    # ------------------------------------------------------------ at the start and the end

    def begin(self) -> None:
        """Print what will happen. Raises ParbenchError if another run owns the plan."""
        if not self.writes_plan:  # that run has not yet taken Snakemake's lock
            raise ParbenchError(run_lock.LIVES)
        deployment.keep(self.deployment, self.invocation.apptainer)
        to_train = self._to_train()
        sides = (side for cell in to_train for side in self.plan.cells[cell].sides)
        for image in {image for side in sides if (image := state.image_of(side, self.plan))}:
            containers.recheck(image)
        writing.write_progress(to_train)
        self._forget_finished()
        self._print_forecast(to_train)
        for cell in to_train:
            if job_ids := self.earlier_jobs.get(cell):
                print(
                    f"parbench: {cell}: job {', '.join(job_ids)} of an earlier run still exists; "
                    "its result will be used"
                )
        unfinished.REPORT.unlink(missing_ok=True)

    def _to_train(self) -> list[str]:
        if self.invocation.forced:
            return sorted(self.requested)
        return sorted(cell for cell in self.requested if not self._is_done(cell))

    def _is_done(self, cell: str) -> bool:
        return state.state(cell, self.plan)[0] == "done"

    def _print_forecast(self, trained: list[str]) -> None:
        from parbench.verdicts.forecast import forecast  # imports scipy, which no cell's job needs

        for line in slurm.not_run(self.plan):
            print(f"parbench: {line}")
        if to_build := self._images_to_build():
            print(f"parbench: images to build first: {', '.join(to_build)}; those of most studies "
                  f"are built {containers.COST}")  # fmt: skip
        try:
            budget = self.config.budget_minutes
            lines = forecast(self.plan, trained, budget) or ["no cell is to be trained"]
        except ParbenchError as error:  # evidence of an earlier run; training does not need it
            count = f"{len(trained)} cell{'s' * (len(trained) != 1)} to train"
            lines = [f"{count}; no forecast: {printable(str(error))}"]
        for line in lines:
            print(f"parbench: {line}")

    def _images_to_build(self) -> list[str]:
        """Return the labels of images that cells of this run need and that do not exist."""
        sides = (side for cell in self.requested for side in self.plan.cells[cell].sides)
        needed = {image for side in sides if (image := state.image_of(side, self.plan))}
        return sorted(image.label for image in needed if image.facts is None)

    def _print_dry_run(self) -> None:
        """Print at the end of a dry run what the run will take."""
        if self.requested or self.plan.not_run:
            with contextlib.chdir(ROOT):  # Snakemake has left the folder of --directory
                self._preview()
                self._print_forecast(self._to_train())

    def _preview(self) -> None:
        """Print what will be compared with published values, and what will decide claims.

        Only studies all of whose cells were requested are shown.
        """
        from parbench.verdicts.preview import preview  # scipy, as above

        for study in self.plan.studies:
            if self.requested.issuperset(self.plan.runnable(study)):
                try:
                    print("\n".join(preview(self.plan, study)), end="\n\n")
                except ParbenchError as error:
                    print(f"parbench: {study}: no preview: {printable(str(error))}")

    def _forget_finished(self) -> None:
        """Delete finished.json of cells that are forced to run or whose metrics.json was deleted.

        The file is only for a workflow that was killed before it recorded the result.
        """
        for cell in self.requested:
            has_result = (folder(cell) / "metrics.json").exists() or cell in self.earlier_jobs
            if self.invocation.forced or not has_result:
                (folder(cell) / "finished.json").unlink(missing_ok=True)

    def _is_new(self, path: Path) -> bool:
        return path.exists() and path.stat().st_mtime >= self.started

    def finish(self) -> None:
        """Print a summary of the results if tables were made.

        `make` prints it itself, since Snakemake does not call this if it has nothing to do.
        """
        tables = (Path(f"results/tables/{study}.csv") for study in self.plan.studies)
        if any(map(self._is_new, tables)) and os.environ.get("PARBENCH_CLOSING") != "make":
            subprocess.run([sys.executable, "scripts/bin/parbench", "closing"], check=False)

    def fail(self) -> None:
        """Name the cells that failed, and make a report of those that are done.

        If no cell failed, the report is made only if all are done and a certificate is not, or if
        the caller asks for it: after Ctrl-C nobody waits for a report.
        """
        print(
            "The run stopped because of the error above or, if there is none, because it was "
            "interrupted. Finished work is kept: the same command continues from there.",
            file=sys.stderr,
        )
        paths = ((cell, folder(cell) / "failed.json") for cell in sorted(self.requested))
        failed = [cell for cell, path in paths if self._is_new(path)]
        if failed:
            unfinished.print_failures(self.plan, failed, self.inside_report_image)
        elif self._is_uncertified() or (
            os.environ.get("PARBENCH_REPORT_WHEN_STOPPED")
            and any(map(self._is_done, self.requested))
        ):
            unfinished.write(self.plan, [], self.inside_report_image, "What is done so far")

    def _is_uncertified(self) -> bool:
        """Return whether only a certificate is missing."""
        certificates = map(Path, self.certificates_of(self.plan.studies))
        lacks_certificate = not all(map(Path.exists, certificates))
        return (
            lacks_certificate and bool(self.requested) and all(map(self._is_done, self.requested))
        )
