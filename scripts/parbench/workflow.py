"""One run of the workflow, from its Snakefile's side: what was asked for, and what it says.

Of Snakemake only what a Snakefile may use: ``workflow`` is read.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snakemake.exceptions import WorkflowError

from parbench import files, machine
from parbench.cell import Cell, Pair
from parbench.data import dataset, pretrained
from parbench.deploy import deployment, images
from parbench.errors import ParbenchError
from parbench.launch import slurm, slurm_cluster
from parbench.measure import provenance
from parbench.plan import config as configuration
from parbench.plan import expansion, places, published, state, writing
from parbench.plan.places import ROOT, folder
from parbench.reporting import unfinished
from parbench.verdicts import certificate
from parbench.words import nearest

ALL = 10_000  # cores: Snakemake takes no more than its --cores


@dataclass(frozen=True)
class Invocation:
    """How Snakemake was called.

    ``main``: not as a job of a run, which reads the Snakefile once more; ``cell``: whose job this
    is; ``forced``: jobs that have nothing to do are to be run as well.
    """

    main: bool
    cell: str | None
    on_slurm: bool
    dry: bool
    forced: bool
    apptainer: bool  # --sdm apptainer, as Snakemake's users type it
    configfiles: list[Path]
    changes: dict  # of --config


def invocation(workflow: Any) -> Invocation:
    """Read from ``workflow`` and the command line how Snakemake was called.

    Which cells there are depends on where they will run and on whose job this is, and Snakemake
    itself tells a Snakefile its executor and its targets only after it has read it: so its own
    parser reads the command line and the profiles.
    """
    from snakemake.cli import parse_args

    if sum(word.startswith("--configfile") for word in sys.argv) > 1:
        raise ParbenchError(
            "--configfile stands twice, and Snakemake reads the last one's files alone; name all "
            "after one: --configfile a.yaml b.yaml"
        )
    # It would say a second time which profiles it reads.
    with contextlib.redirect_stderr(io.StringIO()):
        given = parse_args(sys.argv[1:])[1]
    main, methods = workflow.is_main_process, workflow.deployment_settings.deployment_method
    cells = [job.wildcards_dict.get("cell") for job in given.target_jobs or ()]
    return Invocation(
        main=main,
        cell=cells[0] if not main and len(cells) == 1 else None,
        on_slurm=main and given.executor == "slurm",
        dry=main and bool(given.dryrun),
        forced=main and bool(given.force or given.forceall or given.forcerun),
        apptainer=any(method.name == "APPTAINER" for method in methods),
        configfiles=list(map(Path, workflow.overwrite_configfiles)),
        changes=configuration.typed(workflow.config_settings.config),
    )


def evidence_files(pattern: str) -> Callable[[Any], list[str]]:
    """An input function: ``pattern`` of each file of evidence, as it is unpacked. Asked only by
    the report that is made of them."""

    def asked(wildcards: Any) -> list[str]:
        names = sorted(path.stem for path in Path("reports/evidence").glob("*.json"))
        if not names:
            raise WorkflowError(
                "error: reports/evidence holds no file of evidence; make one of a finished study: "
                "make evidence ARGS=<study>"
            )
        return [f"results/evidence/{name}/" + pattern.format(evidence=name) for name in names]

    return asked


def _digest_file(image: images.Image) -> str:
    """Stands for an image: its name holds the digest of what the image is made from."""
    return f"results/images/{image.label}.json"


class WorkflowRun:
    """What the rules ask: ``config`` and ``plan``, and what Slurm is asked for each cell.

    ParbenchError where the configuration is wrong; WorkflowError for a job that cannot be.
    """

    def __init__(self, called: Invocation):
        self.called, on_slurm = called, called.on_slurm
        read = configuration.read(called.configfiles, called.changes)
        self.config = deployment.settle(read, called.apptainer)
        self.cluster = slurm_cluster.ask() if on_slurm else None
        self.left = slurm.left_behind(ROOT) if on_slurm else {}
        self.plan = self._plan()
        self.requests = slurm.Requests(self.plan, self.config, self.cluster, self.left)
        self.preparing = slurm.preparing(self.config, self.cluster)
        self.asked: set[str] = set()  # the cells that Snakemake's own plan reaches
        self.started = time.time()
        if called.dry:
            atexit.register(self._foretell)

    def _plan(self) -> expansion.Plan:
        config, called = self.config, self.called
        if called.cell is not None:  # one of thousands of jobs: the others' cells are not its own
            return writing.plan_of(called.cell, config)
        # What counts is what runs the cells: this machine, a cluster or, for a job of a run, what
        # was found when that run began.
        if self.cluster is not None:
            lacking = slurm.lacking(self.cluster, config, called.configfiles)
        elif called.main:
            lacking = expansion.lacking_here(config)
        else:
            lacking = expansion.lacking_as_planned(config["studies"])
        # The report reads them, after hours of training: a typo is told now.
        published.claims(places.CLAIMS)
        return expansion.plan(config, called.configfiles, called.changes, lacking)

    @property
    def prepares_here(self) -> bool:
        """Whether preparation and report run where Snakemake does, and not as jobs."""
        return self.config["slurm"]["prepare"] == "submit"

    # ------------------------------------------------------------ a cell's job

    def cell(self, wildcards: Any) -> Cell | Pair:
        """The cell of a job."""
        name = wildcards.cell
        if name not in self.plan.cells:
            near = nearest(name, list(self.plan.cells), listed=False)
            raise WorkflowError(f"error: unknown cell {name!r}{near}")
        if name in self.plan.not_run:
            raise WorkflowError(f"error: {name} is not run here: {self.plan.not_run[name]}")
        self.asked.add(name)
        return self.plan.cells[name]

    def cell_dataset(self, wildcards: Any) -> str:
        """The small digest file of its dataset: Snakemake compares its content, not its time."""
        return f"results/data/{self.cell(wildcards).dataset.name}/digest.json"

    def cell_weights(self, wildcards: Any) -> list[str]:
        """The same of the weights that it starts from; none where its seed draws them."""
        return list(map(str, state.weights(self.cell(wildcards))))

    @property
    def keeping(self) -> str:
        """A pattern of the cells that leave their weights for others."""
        cells = self.plan.cells.values()
        names = [each.id for each in cells if isinstance(each, Cell) and each.run.keeps_weights]
        return "|".join(map(re.escape, names)) or "none"

    def cell_image(self, wildcards: Any) -> list[str]:
        """The digest files of its images; none where cells run on the host."""
        found = (state.image_of(side, self.plan) for side in self.cell(wildcards).sides)
        return list(dict.fromkeys(_digest_file(image) for image in found if image is not None))

    def cell_code(self, wildcards: Any) -> str:
        """Digest of the code that it can reach: comments and other strategies do not count."""
        return state.code_digest(self.cell(wildcards))

    def cell_threads(self, wildcards: Any) -> int:
        """The cores of devices of kind cpu; a GPU's process needs one for itself. Of a pair all:
        nothing runs beside it."""
        cell = self.cell(wildcards)
        return ALL if isinstance(cell, Pair) else machine.cores_of(cell.hardware)

    def cell_priority(self, wildcards: Any) -> int:
        """Seeds in turn, and restarts: strategies that are compared run near each other in time.

        Among cells of as many cores: one of more waits until no smaller one fills the last core.
        Never below 0, where Snakemake's scheduler leaves cores free as long as others are at 0.
        """
        return max(0, 1000 - self.plan.cells[wildcards.cell].seed)

    def resources(self) -> dict:
        """The resources of cells, by the plugin's names: none where cells run on this machine.

        They never come from `threads`, which the cores of the submitting machine limit.
        """
        if self.called.main and not self.called.on_slurm:
            return {}

        def one(key: str):
            return lambda wildcards: self.requests.of(wildcards.cell).get(key)

        return {key: one(key) for key in slurm.KEYS}

    # ------------------------------------------------------------ tables, report, certificates

    def metrics(self, wildcards: Any) -> list[str]:
        """metrics.json of all the study's cells that this machine can run."""
        study = wildcards.study
        if study not in self.plan.studies:
            near = nearest(study, list(self.plan.studies))
            raise WorkflowError(f"error: study {study!r} is not in `studies`{near}")
        return [str(folder(cell) / "metrics.json") for cell in self.plan.runnable(study)]

    def plan_digest(self, wildcards: Any) -> str:
        """Changes when the shape of a study does: its groups, tables, texts."""
        return files.digest(self.plan.studies[wildcards.study].stated())

    @property
    def report_image(self) -> str | list:
        """The digest file of the image that makes tables and report."""
        if not deployment.in_images(self.config):
            return []
        image = images.image("report", self.config["stack"], self.config["images"])
        return _digest_file(image)

    @property
    def inside_report_image(self) -> str:
        """What stands before the programs that make tables and report."""
        run = "python scripts/images.py run report --plan results/plan/images.json --"
        return run if deployment.in_images(self.config) else ""

    def certificates(self, wildcards: Any) -> list[str]:
        """The certificates of the study of a table."""
        return self.certificates_of([wildcards.study])

    def certificates_of(self, studies: Iterable[str]) -> list[str]:
        """Those that stand for the cells of ``studies``: of their images, or of the host."""
        plans = [self.plan.studies[study] for study in studies if study in self.plan.studies]
        every = [group for plan in plans for group in plan.groups if group.not_run is None]
        groups = [group for group in every if group.trained_by is None]
        found = {state.image_of(self.plan.cells[group.cells[0]], self.plan) for group in groups}
        places = {certificate.HOST if image is None else image.label for image in found}
        return [str(certificate.path(place)) for place in sorted(places)]

    def _certified(self, place: str, studies: Iterable[str]) -> list[dict]:
        return certificate.wanted([self.plan.studies[study].stated() for study in studies], place)

    def certified(self, wildcards: Any) -> str:
        """Changes when what a certificate is to hold does, or the code that it is about."""
        todo = self._certified(wildcards.place, self.plan.studies)
        return files.digest([todo, certificate.code(todo)])

    def certified_plans(self, wildcards: Any) -> list[str]:
        """The plans that ask for any of it."""
        asked = [name for name in self.plan.studies if self._certified(wildcards.place, [name])]
        return [f"results/plan/{name}.json" for name in asked]

    def certified_image(self, wildcards: Any) -> str | list:
        """The digest file of the image in which a certificate is made; none on the host."""
        on_host = wildcards.place == certificate.HOST
        return [] if on_host else f"results/images/{wildcards.place}.json"

    # ------------------------------------------------------------ what decides an input's bytes

    def dataset_source(self, wildcards: Any) -> str:
        """What decides a dataset's bytes: not the mirrors, nor the code that fetches it.

        A change of the conversion itself raises CONVERSION in parbench/data/dataset.py. Of a local
        folder it is the bytes and not the times: a run of this rule is a run of all its cells.
        """
        spec = self._known("datasets", wildcards.dataset)
        held = state.source_digest(wildcards.dataset, self.plan)
        return json.dumps([spec, dataset.CONVERSION, *([held] if held else [])], sort_keys=True)

    def weights_source(self, wildcards: Any) -> str:
        """The same of published weights, which get the names of their model's own blocks."""
        spec = self._known("weights", wildcards.weights)
        model = provenance.combined(provenance.closure(f"parbench.models.{spec['model']}"))
        return json.dumps([spec, pretrained.CONVERSION, model], sort_keys=True)

    def _known(self, key: str, name: str) -> dict:
        if name not in self.config[key]:
            near = nearest(name, list(self.config[key]))
            raise WorkflowError(f"error: unknown {key.removesuffix('s')} {name!r}{near}")
        return {part: v for part, v in self.config[key][name].items() if part != "urls"}

    # ------------------------------------------------------------ at the start and the end

    def begin(self) -> None:
        """Write cells and plans, and say what will happen."""
        writing.write(self.plan)
        deployment.keep(self.config, self.called.apptainer)
        trained = self._to_train()
        writing.write_progress(trained)
        self._forget_finished()
        self._say(trained)
        for cell in trained:
            if numbers := self.left.get(cell):
                print(
                    f"parbench: {cell}: job {', '.join(numbers)} of an earlier run is still there; "
                    "its result is taken over"
                )
        unfinished.REPORT.unlink(missing_ok=True)

    def _to_train(self) -> list[str]:
        if self.called.forced:
            return sorted(self.asked)
        return sorted(cell for cell in self.asked if state.state(cell, self.plan)[0] != "done")

    def _say(self, trained: list[str]) -> None:
        from parbench.verdicts.forecast import forecast  # scipy, which no cell's job needs

        if self.called.on_slurm:
            for line in slurm.not_run(self.plan):
                print(f"parbench: {line}")
        for line in forecast(self.plan, trained) or ["no cell is to be trained"]:
            print(f"parbench: {line}")

    def _foretell(self) -> None:
        """At the end of a dry run: what the run will take."""
        if self.asked:
            self._say(self._to_train())

    def _forget_finished(self) -> None:
        """Results beside checkpoints count where a workflow was killed before it took them: of a
        cell whose metrics.json was deleted, or that is to run whatever there is, they do not."""
        for cell in self.asked:
            there = (folder(cell) / "metrics.json").exists() or cell in self.left
            if self.called.forced or not there:
                (folder(cell) / "finished.json").unlink(missing_ok=True)

    def _is_new(self, path: Path) -> bool:
        return path.exists() and path.stat().st_mtime >= self.started

    def finish(self) -> None:
        """The results in short, where tables were made. `make` prints them itself, also when
        Snakemake found nothing to do and calls nobody."""
        made = (Path(f"results/tables/{study}.csv") for study in self.plan.studies)
        if any(map(self._is_new, made)) and os.environ.get("PARBENCH_CLOSING") != "make":
            subprocess.run([sys.executable, "scripts/closing.py"], check=False)

    def fail(self) -> None:
        """Which cells failed, and a report of what is there."""
        print(
            "The run stopped: see the error above. What is finished is kept; start it again to go "
            "on.",
            file=sys.stderr,
        )
        told = ((cell, folder(cell) / "failed.json") for cell in sorted(self.asked))
        failed = [cell for cell, path in told if self._is_new(path)]
        if failed:  # none where somebody typed Ctrl-C
            unfinished.tell(self.plan, failed, self.inside_report_image)
