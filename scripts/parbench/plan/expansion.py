"""Expand studies into groups and cells.

A cell is one configuration with one seed; a group is that configuration with all its seeds.
For a pair of configurations, a cell is one restart and a group is all restarts.
Never imports torch: the workflow imports this when it is parsed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from parbench import decided, machine, models, strategies
from parbench.cell import Cell, Dataset, Pair, RunSettings, Strategy, Training
from parbench.data import source
from parbench.decided import Decided
from parbench.deploy.deployment import DeployedSoftware, Deployment
from parbench.deploy.recipes import ImageSettings
from parbench.errors import ParbenchError
from parbench.files import read_json
from parbench.plan import (
    about,
    config_files,
    consistency,
    overriding,
    pairing,
    places,
    published,
    study_plan,
)
from parbench.plan.configuration import Config, Entry, Override
from parbench.plan.naming import CellNames
from parbench.plan.options import all_options, model
from parbench.plan.settings import resolved
from parbench.plan.study import Variant
from parbench.plan.study_plan import DerivedSettings, PlannedGroup, StudyPlan
from parbench.plan.yaml_file import YamlMapping
from parbench.software import Software
from parbench.training import learning_rate
from parbench.words import nearest


@dataclass(eq=False)  # compared by identity
class Plan:
    """Everything that a configuration asks for.

    ``cells``: every cell by id. ``not_run``: by id, why this machine cannot run a cell.
    ``studies``: the plan of each, for the report. ``datasets`` and ``weights``: the configuration's
    entries, as written. ``stack`` and ``images``: what images are built from. ``decided``: what
    earlier runs decided about the cells.
    """

    cells: dict[str, Cell | Pair] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    studies: dict[str, StudyPlan] = field(default_factory=dict)
    datasets: dict[str, Entry] = field(default_factory=dict)
    weights: dict[str, Entry] = field(default_factory=dict)
    stack: str = ""
    images: ImageSettings = field(default_factory=ImageSettings)
    decided: Decided = field(default_factory=Decided)

    @classmethod
    def without_cells(cls, config: Config) -> Plan:
        """Return a plan of ``config`` that has no cells."""
        weights = {name: entry.stated() for name, entry in config.weights.items()}
        return cls(
            datasets=config.datasets,
            weights=weights,
            stack=config.stack,
            images=config.images.settings,
        )

    def runnable(self, study: str) -> list[str]:
        """Return the ids of the study's cells that this machine can run."""
        return self.studies[study].runnable()


# Takes a group's id and one of its cells without seed; returns why the cells cannot run, or None.
WhyUnavailable = Callable[[str, Cell], str | None]


def unavailable_here(config: Config, software: Software) -> WhyUnavailable:
    """Return a function that returns what a group's cells need and this machine lacks."""
    stated = config.available
    if stated == "auto":
        available = machine.available()
    else:
        available = machine.Available(cpu=stated.cpu, cuda=stated.cuda or {})

    def why_unavailable(group: str, cell: Cell) -> str | None:
        reason = machine.missing(cell.hardware, available) or missing_packages(cell, software)
        return reason or consistency.unavailable(cell, software)

    return why_unavailable


def missing_packages(cell: Cell, software: Software) -> str | None:
    """Return why ``software`` lacks what the model and strategy of ``cell`` need, or None."""
    reason = software.without_text() if models.vocabulary(cell.model.name) else None
    library = models.library(cell.model.name)
    if library is not None and software.without("torch", library.PACKAGE):
        reason = f"needs {library.PACKAGE}, which is not installed beside torch"
    reason = reason or strategies.of(cell).unavailable(software)
    return reason or software.without_modules(cell)


def unavailable_as_planned(studies: list[str]) -> WhyUnavailable:
    """Return a function that returns what was missing when the plans of ``studies`` were written.

    The jobs of a run use it: a compute node must plan the same cells as the submitting machine.
    """
    paths = [places.RESULTS / "plan" / f"{study}.json" for study in studies]
    groups = (group for path in paths if path.exists() for group in read_json(path)["groups"])
    reasons = {
        group["id"]: group["not_run"]
        for group in groups
        if group["not_run"] != strategies.load(group["strategy"]).PAIRS_ONLY
    }
    return lambda group, cell: reasons.get(group)


def plan(
    config: Config,
    deployment: Deployment,
    why_unavailable: WhyUnavailable | None = None,
) -> Plan:
    """Expand all studies of ``config`` into cells that run in ``deployment``.

    ``why_unavailable`` returns why a cell cannot run; by default, what this machine lacks. Raises
    ParbenchError, which names study, key and value.
    """
    for study in config.override:
        if not places.study(study).exists():
            hint = nearest(study, places.studies())
            raise config.error(["override", study], f"unknown study {study!r}{hint}")
    for name in config.weights:
        consistency.check_weights(name, config)
    result = Plan.without_cells(config)
    result.decided = decided.read()
    why_unavailable = why_unavailable or unavailable_here(config, DeployedSoftware(deployment))
    for name in config.studies:
        restarts = result.decided.restarts
        expanded = Expansion(name, config, why_unavailable, deployment, restarts)
        expanded.check_override()
        arguments = config_files.arguments(name, config.layers)
        try:
            result.studies[name] = expanded.plan(arguments)
        except ParbenchError as error:
            again = partial(_expand, name, deployment)
            raise overriding.explained(error, config, again) from None
        result.cells.update(expanded.cells)
        result.not_run.update(expanded.not_run)
    single_cells = (cell for cell in result.cells.values() if isinstance(cell, Cell))
    for name in {cell.trained_by for cell in single_cells if cell.trained_by is not None}:
        trainer = result.cells[name]
        result.cells[name] = replace(trainer, run=replace(trainer.run, keeps_weights=True))
    return result


def _expand(study: str, deployment: Deployment, config: Config) -> None:
    """Raise ParbenchError if ``study`` cannot be planned on a machine that lacks nothing."""
    Expansion(study, config, lambda group, cell: None, deployment, {}).plan([])


def of_files(configfiles: Sequence[str | Path], studies: Sequence[str] = ()) -> Plan:
    """Return the plan of config.yaml overridden by ``configfiles``.

    ``studies`` replace those of the configuration. Raises ParbenchError, also outside the project's
    folder.
    """
    places.require_root("parbench")
    changes: YamlMapping = {"studies": list(studies)} if studies else {}
    config = config_files.read(configfiles, changes, "--study")
    return plan(config, config.resolved_deployment())


class Expansion:
    """The expansion of one study of ``config`` into groups and cells.

    ``cells`` and ``not_run`` are as in Plan. Error messages begin with ``where``, the study's file,
    or, for a key of the configuration, with the file or option that sets it
    (``config.set_in(*keys)``).
    """

    def __init__(
        self,
        name: str,
        config: Config,
        why_unavailable: WhyUnavailable,
        deployment: Deployment,
        restarts: Mapping[str, int],
    ) -> None:
        self.name, self.config, self.deployment = name, config, deployment
        self.why_unavailable = why_unavailable
        self.study = config_files.study(name)
        self.override = config.override.get(name) or Override.model_validate({})
        self.where = places.shown(places.study(name))
        self.dataset = self.override.dataset or self.study.dataset
        self.seeds = self.override.seeds or self.study.seeds
        self.cells: dict[str, Cell | Pair] = {}
        self.not_run: dict[str, str] = {}
        # The groups whose weights other groups predict with, by id: names, and a cell without id
        # and seed.
        self.trainers: dict[str, tuple[CellNames, Cell]] = {}
        # How many restarts of a pair or seeds of a group are wanted, if more than the study states.
        self.restarts = dict(restarts)

    def plan(self, arguments: list[str]) -> StudyPlan:
        """Return the study's plan; ``arguments``: Snakemake's, to run the study again."""
        self._check()
        templates = dict(self._templates())
        for (model_name, variant), cell in templates.items():
            if cell.trained_by is not None:
                trainer = templates[model_name, cell.trained_by]
                trainer_names = CellNames.of(trainer)
                templates[model_name, variant] = replace(cell, trained_by=trainer_names.group)
                self.trainers[trainer_names.group] = trainer_names, trainer
                # A trainer needs as many seeds as any group that predicts with its weights.
                own = CellNames.of(templates[model_name, variant]).group
                counts = (self.restarts.get(group, 0) for group in (own, trainer_names.group))
                self.restarts[trainer_names.group] = max(counts)
        training_by_key = {key: cell.training for key, cell in templates.items()}
        consistency.check_clocks(self.study, training_by_key, self.where)
        names_by_key = self._names(templates)
        source_study = about.source_of(self.study, self.where)
        groups: dict[tuple[str, str], PlannedGroup] = {}
        reasons: dict[tuple[str, str], str | None] = {}
        for (model_name, variant), cell in templates.items():
            entry = self.study.variants[variant]
            baseline = (
                names_by_key[model_name, entry.baseline].group
                if entry.baseline is not None
                else None
            )
            selection = (
                {"model": model_name, **entry.published} if entry.published is not None else None
            )
            names = names_by_key[model_name, variant]
            reasons[model_name, variant] = self._why_not_run(names, cell)
            groups[model_name, variant] = self._group(
                cell,
                names,
                reasons[model_name, variant],
                model=model_name,
                variant=variant,
                baseline=baseline,
                published=selection,
                differs=entry.differs,
                scores_differ=entry.scores_differ,
                scaled=about.differences(cell, model_name, variant, self.study, source_study),
            )
        consistency.check_selections(self.study, groups, self.where)
        pairs: dict[str, Any] = {}  # without `pairs`, the plan states none
        measured = pairing.pairs(self.study, templates, groups, reasons, self.restarts, self.where)
        for pair, cells in measured:
            self._keep(cells, pair.not_run)
            pairs.setdefault("pairs", []).append(pair)
        return StudyPlan(
            schema_version=study_plan.SCHEMA_VERSION,
            study=about.about(self.name, self.study, self.override, self.dataset),
            stack=self.deployment.stack,
            deployment=self.deployment.label,
            groups=list(groups.values()),
            together=list(about.together(self.study, groups, self.where)),
            arguments=arguments,
            **pairs,
        )

    def check_override(self) -> None:
        """Raise ParbenchError if the study's `override` names a dataset or hardware that does not
        exist."""
        if self.override.dataset is not None:
            self._check_dataset(*self._overridden("dataset"))
        hardware_names = {entry.hardware for entry in self.study.variants.values()}
        for name, hardware in self.override.hardware.items():
            key, where = self._overridden("hardware", name)
            consistency.known(key.removesuffix(f".{name}"), name, hardware_names, where)
            consistency.known(key, hardware, self.config.hardware, where)

    def _check(self) -> None:
        """Raise ParbenchError for mistakes that can be found without cells."""
        self._check_dataset("dataset", self.where)
        if self.study.claims:
            claims = published.claims(*(places.ROOT / path for path in places.claims_files()))
            for claim in self.study.claims:
                consistency.known("claims", claim, claims, self.where)
        consistency.check_names(self.study, self.where)

    def _check_dataset(self, key: str, where: str) -> None:
        own = "add your own under `datasets` in config.yaml or a --configfile"
        consistency.known(key, self.dataset, self.config.datasets, where, own)

    def _overridden(self, *keys: str) -> tuple[str, str]:
        """Return a key of the study's `override`, in full, and the file that sets it."""
        key = ["override", self.name, *keys]
        return ".".join(key), self.config.set_in(*key)

    def _templates(self) -> Iterator[tuple[tuple[str, str], Cell]]:
        """Yield (model, variant) of each group, and its cell without id and seed."""
        for model_name, model_entry in self.study.models.items():
            if model_entry.file is None:
                name = model_entry.model or model_name
                consistency.known_model("models", name, self.where)
            for variant, entry in self.study.variants.items():
                if model_name in self.study.trained(variant):
                    yield (model_name, variant), self._template(model_name, variant, entry)

    def _template(self, of: str, variant: str, entry: Variant) -> Cell:
        config, where = self.config, f"{self.where}: variants.{variant}"
        strategy = entry.strategy
        consistency.known("strategy", strategy, strategies.names(), where)
        hardware = self.override.hardware.get(entry.hardware, entry.hardware)
        consistency.known("hardware", hardware, config.hardware, where)
        study, model_entry = self.study, self.study.models[of]
        layers = [study.settings, study.assumed, model_entry.settings, entry.settings]
        settings = resolved([*layers, self.override.settings], where)
        learns = settings["steps"] is None and entry.trained_by is None
        if learns and config.datasets[self.dataset]["kind"] == "synthetic":
            raise ParbenchError(
                f"{where}: the dataset {self.dataset} is random noise, so there is nothing to "
                "learn from it; set `steps` (steps to time per epoch) or choose another dataset"
            )
        device = config.hardware[hardware].with_name(hardware)
        if device.device != "cuda":
            settings["tf32"] = False  # only CUDA devices have it
        sample_counts = {key: settings.pop(key) for key in ("train_samples", "test_samples")}
        options = all_options(
            "strategies", strategy, study.options(entry), f"{where}: options of {strategy}"
        )
        folder = Path(places.shown(places.study(self.name).parent))
        options = strategies.load(strategy).resolved(options, folder, where)
        cell = Cell(
            id="",
            model=model(of, model_entry, config.weights, places.study(self.name)),
            strategy=Strategy(strategy, strategies.stated_options(strategy, options)),
            hardware=device,
            dataset=Dataset(self.dataset, **sample_counts),
            training=Training(**settings),
            stack=self.deployment.stack,
            deployment=self.deployment.label,
            seed=0,
            trained_by=entry.trained_by,
            run=RunSettings(
                timeout_seconds=config.timeout_seconds,
                checkpoint_seconds=config.checkpoint_seconds,
                grace_seconds=config.grace_seconds,
                interface=config.nodes.interface,
                connect_seconds=config.nodes.connect_seconds,
                spark_master=config.spark.master,
                spark_conf=config.spark.conf,
                python=self.deployment.python,
            ),
        )
        kind = source.load(config.datasets[self.dataset]["kind"])
        consistency.check_cell(cell, study, where, of, kind.HOLDS)
        return cell

    def _names(self, templates: dict[tuple[str, str], Cell]) -> dict[tuple[str, str], CellNames]:
        """Return the names of all groups; raise ParbenchError if two variants have equal cells."""
        names_by_key = {key: CellNames.of(cell) for key, cell in templates.items()}
        variant_by_group: dict[str, str] = {}
        for (model_name, variant), names in names_by_key.items():
            twin = variant_by_group.setdefault(names.group, variant)
            if twin != variant:
                raise ParbenchError(
                    f"{self.where}: variants.{variant}: has the same cells as variant {twin!r} "
                    f"(model {model_name}); remove one of them or change an option"
                )
        return names_by_key

    def _keep(self, cells: Sequence[Cell | Pair], not_run: str | None) -> None:
        self.cells.update({cell.id: cell for cell in cells})
        if not_run is not None:
            self.not_run.update(dict.fromkeys((cell.id for cell in cells), not_run))

    def _why_not_run(self, names: CellNames, template: Cell) -> str | None:
        """Return why this machine cannot run the cells of ``template``; None if it can."""
        reason = self.why_unavailable(names.group, template)
        if reason is None and template.trained_by is not None:
            trainer_names, trainer_cell = self.trainers[template.trained_by]
            reason = self.why_unavailable(trainer_names.group, trainer_cell)
            reason = reason and f"{trainer_names.group} trains for it: {reason}"
        return reason

    def _group(
        self, template: Cell, names: CellNames, not_run: str | None, **fields: Any
    ) -> PlannedGroup:
        """Return the group of ``template`` with all seeds.

        ``not_run``: why this machine cannot run its cells; ``fields``: further fields of the group.
        """
        model, strategy = template.model, strategies.of(template)
        reason = not_run or strategy.PAIRS_ONLY
        extra_count = self.restarts.get(names.group, 0) - len(self.seeds)
        unused = (seed for seed in itertools.count() if seed not in self.seeds)
        seeds = [*self.seeds, *itertools.islice(unused, max(0, extra_count))]
        seeds = [] if strategy.PAIRS_ONLY else seeds
        cells = [replace(template, id=names.cell(seed), seed=seed) for seed in seeds]
        if template.trained_by is not None:
            trainer_names, _ = self.trainers[template.trained_by]
            cells = [replace(cell, trained_by=trainer_names.cell(cell.seed)) for cell in cells]
        self._keep(cells, reason)
        ranks = strategy.data_parallel_size
        return PlannedGroup(
            id=names.group,
            **({"network": model.name} if model.name != fields["model"] else {}),
            strategy=template.strategy.name,
            options=template.strategy.options,
            model_options=model.options,
            pretrained={model.name: model.pretrained.sha256} if model.pretrained else {},
            hardware=template.hardware,
            dataset=template.dataset,
            training=template.training,
            seeds=seeds,
            cells=[cell.id for cell in cells],
            not_run=reason,
            trained_by=template.trained_by,
            comparable=strategy.notes(),
            work=DerivedSettings(
                ranks=ranks,
                micro_batches=strategy.micro_batches,
                learning_rate=learning_rate.peak(template.training, ranks),
                batch_norm=strategy.batch_norm_scope,
                pipeline_bound=strategy.pipeline_bound,
            ),
            **fields,
        )
