"""Check what the schemas of files cannot: unknown names, and settings that contradict each
other."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping

from parbench import models, strategies
from parbench.cell import Cell, Training
from parbench.errors import ParbenchError
from parbench.files import canonical_json
from parbench.plan import places, published
from parbench.plan.configuration import Config
from parbench.plan.options import all_options, starts_published
from parbench.plan.published import Claim, Published, Selection
from parbench.plan.study import Study, VariantPair
from parbench.plan.study_plan import PlannedGroup
from parbench.plan.yaml_file import unknown_value, words_of
from parbench.software import Software
from parbench.strategies._base import Strategy
from parbench.words import brief, nearest

LEAST_TORCH = "2.6"  # the first with torch.compiler.set_stance, which stops further compilation
# The first torch with fused kernels on GPUs, by optimizer; on CPUs it is the same for both.
FUSED_ON_CUDA = {"adamw": "2.0", "sgd": "2.3"}
FUSED_ELSEWHERE = "2.4"


def known(
    key: str, name: str, names: Iterable[str], where: str, own: str = "", what: str = "name"
) -> None:
    """Raise ParbenchError if ``name``, the value of ``key``, is not among ``names``.

    For the message: ``where``, the file; ``own``, how a user adds one; ``what`` it names.
    """
    names = list(names)
    if name not in names:
        sentence = unknown_value(name, names, what)
        raise ParbenchError(f"{where}: {key}: {sentence}{own and f' ({own})'}")


def known_model(key: str, name: str, where: str, others: Iterable[str] = ()) -> None:
    """Raise ParbenchError if ``name``, the value of ``key``, is neither a model nor in ``others``.

    A network of a library that is not installed on this machine is accepted: it may exist.
    """
    library = models.library(name)
    if library is None:
        known(key, name, [*models.names(), *others], where)
    elif name not in others and importlib.util.find_spec(library.PACKAGE) is not None:
        network = name.partition("/")[2]
        if network not in (names := library.names()):
            near = nearest(network, names, listed=False)
            raise ParbenchError(
                f"{where}: {key}: unknown name {brief(name)!r}{near or f'; {library.LISTED}'}"
            )


def check_weights(name: str, config: Config) -> None:
    """Raise ParbenchError if the model of the weights ``name``, or an option, does not exist."""
    entry, key = config.weights[name], f"weights.{name}"
    where = config.set_in("weights", name, "model")
    known(f"{key}.model", entry.model, models.names(), where)
    for option, value in (entry.options or {}).items():  # each may be stated in another file
        where = config.set_in("weights", name, "options", option)
        all_options("models", entry.model, {option: value}, f"{where}: {key}.options")


# --- a study ---


def check_names(study: Study, where: str) -> None:
    """Check every name of a model, variant or strategy that a study refers to."""
    for label, entry in study.together.items():
        if label in study.models:
            raise ParbenchError(
                f"{where}: together: {label} is also the name of a model; choose another name"
            )
        for model in entry.models:
            known(f"together.{label}.models", model, study.models, where)
    row_names = [*study.models, *study.together]
    for number, table in enumerate(study.tables):
        for model in table.models or []:
            known(f"tables.{number}.models", model, row_names, where)
        for variant in table.variants:
            known(f"tables.{number}.variants", variant, study.variants, where)
    if study.second_device is not None:
        known("second_device", study.second_device, study.variants, where, what="variant")
    used_strategies = {entry.strategy for entry in study.variants.values()}
    for strategy in study.assumed.get("options", {}):
        known("assumed.options", strategy, used_strategies, where)
    for variant, entry in study.variants.items():
        for model in entry.models or []:
            known(f"variants.{variant}.models", model, study.models, where)
        for key in ("baseline", "trained_by"):
            _check_other(study, variant, key, where)
        if entry.published is not None and study.published is None:
            raise ParbenchError(
                f"{where}: variants.{variant}.published selects published rows, but the study "
                "names no source; add the key `published` with the source's name"
            )
    for entry in study.pairs.compare if study.pairs else ():
        _check_comparison(study, entry, where)


def checked_claims() -> tuple[dict[str, Claim], list[Published]]:
    """Return all claims by name, and all published values.

    Raises ParbenchError if the sources, strategies, models or options of a claim do not exist.
    """
    rows = published_rows()
    sources = {row.study for row in rows}
    models_known = {row.model for row in rows}
    by_file = {path: published.claims(path) for path in places.claims_files()}
    for path, claims in by_file.items():
        for name, claim in claims.items():
            if claim.citation is None:
                unlisted = "no file of published values has it in the column `study`"
                known(f"{name}.study", claim.study, sources, str(path), unlisted, "source")
            for test in claim.tests:
                selections = (test.about, test.numerator, test.denominator, *(test.contrast or ()))
                for cells in filter(None, selections):
                    _check_choice(name, cells, models_known, str(path))
    return published.united(by_file), rows


def _check_choice(claim: str, cells: Selection, models_known: Iterable[str], where: str) -> None:
    chosen = cells.strategy or ()
    named = [chosen] if isinstance(chosen, str) else list(chosen)
    for strategy in named:
        known(f"{claim}: strategy", strategy, strategies.names(), where)
    if cells.model is not None and "+" not in cells.model:  # else a row of `together`
        known_model(f"{claim}: model", cells.model, where, models_known)
    for key in cells.options or ():
        owners = map(strategies.load, named or strategies.names())
        known(f"{claim}: options", key, {key for owner in owners for key in owner.OPTIONS}, where)


def published_rows() -> list[Published]:
    """Return all published values."""
    return [row for path in places.published_files() for row in published.rows(path)]


def check_selections(
    study: Study, groups: Mapping[tuple[str, str], PlannedGroup], where: str
) -> None:
    """Raise ParbenchError unless each variant's `published` selects a row for some model.

    ``groups``: by model and variant.
    """
    if study.published is None:
        return
    own = [row for row in published_rows() if row.study == study.published]
    for variant, entry in study.variants.items():
        selections = [
            group.published
            for (_, name), group in groups.items()
            if name == variant and group.published is not None
        ]
        found = any(row.is_one_of(each) for row in own for each in selections)
        if own and selections and not found:
            stated = words_of(entry.published)
            raise ParbenchError(
                f"{where}: variants.{variant}.published: {stated} matches no "
                f"published row of the source {study.published!r} for any model of this variant; "
                "correct it, or remove it"
            )


def _check_other(study: Study, variant: str, key: str, where: str) -> None:
    """Raise ParbenchError unless the variant named by ``key`` trains all models of ``variant``."""
    other = getattr(study.variants[variant], key)
    if other is None:
        return
    known(f"variants.{variant}.{key}", other, study.variants, where)
    where = f"{where}: variants.{variant}.{key}"
    if key == "trained_by" and study.variants[other].trained_by is not None:
        raise ParbenchError(f"{where}: {other} trains nothing itself; name the variant that does")
    for model in study.trained(variant):
        if model not in study.trained(other):
            raise ParbenchError(
                f"{where}: {other} does not train the model {model}; add {model} to the `models` "
                f"of {other}, or leave it out of those of {variant}"
            )


def _check_comparison(study: Study, entry: VariantPair, where: str) -> None:
    for key in ("variant", "baseline"):
        known(f"pairs: {key}", getattr(entry, key), study.variants, where)
    models_in_both = study.trained_in_both(entry.variant, entry.baseline)
    for name in entry.models or ():
        known("pairs: models", name, [*study.models, *study.together], where)
    named_models = [model for name in entry.models or () for model in study.members(name)]
    missing_models = [model for model in named_models if model not in models_in_both]
    if missing_models or not models_in_both:
        problem = f"{entry.variant} and {entry.baseline} have no model in common"
        if missing_models:
            of_variant = missing_models[0] in study.trained(entry.variant)
            variant = entry.baseline if of_variant else entry.variant
            problem = f"{variant} does not train the model {missing_models[0]}"
        raise ParbenchError(
            f"{where}: pairs: {problem}; compare variants on models that both train"
        )


def check_clocks(study: Study, trained: Mapping[tuple[str, str], Training], where: str) -> None:
    """Raise ParbenchError if times that are not comparable would be compared.

    A table must not mix modes or profiles, and a speedup must not come from profiled cells.
    ``trained``: settings by model and variant.
    """
    for model, variant in trained:
        baseline = study.variants[variant].baseline
        for name in (variant, baseline) if baseline is not None else ():
            profile = trained[model, name].profile
            if profile != "none":
                raise ParbenchError(
                    f"{where}: variants.{variant}.baseline: {baseline}: speedups are not computed "
                    f"from profiled cells ({name} has `profile: {profile}`); remove the baseline"
                )
    for (number, table), key in itertools.product(enumerate(study.tables), ("mode", "profile")):
        row_by_value: dict[str, str] = {}
        for (model, variant), training in trained.items():
            if table.holds(model, variant):
                row_by_value.setdefault(getattr(training, key), f"{variant} of {model}")
        if len(row_by_value) > 1:
            cases = ", ".join(f"{value} ({name})" for value, name in row_by_value.items())
            raise ParbenchError(
                f"{where}: tables.{number}: mixes {key}s: {cases}; set one `{key}` "
                "for all of its variants, or split it into two tables"
            )


# --- a cell ---


def check_cell(cell: Cell, study: Study, where: str, model: str, holds: str) -> None:
    """Raise ParbenchError if settings contradict each other, the hardware, strategy or dataset.

    ``model``: the study's name for it; ``holds``: what the dataset contains, images or texts.
    """
    prefix, strategy = f"{where} with model {model}", strategies.of(cell)
    problems = (strategy.check(), _tuning_problems(cell, strategy), _network_problems(cell))
    for problem in itertools.chain(*problems):
        raise ParbenchError(f"{prefix}: {problem}")
    companion_options = {
        name: all_options("models", name, options, f"{prefix}: beside.{name}")
        for name, options in strategy.companions.items()
    }
    for name, options in {**companion_options, cell.model.name: cell.model.options}.items():
        try:
            models.load(name).cuts(strategy.stages, options)
        except ParbenchError as error:
            raise ParbenchError(f"{prefix}: {error}") from None
    for problem in (*_training_problems(cell, strategy), *_data_problems(cell, holds)):
        raise ParbenchError(f"{prefix}: {problem}")
    for name in (model, *companion_options) if companion_options else ():
        if starts_published(study.models.get(name)):
            raise ParbenchError(
                f"{where}: strategy {cell.strategy.name} starts its models from weights that the "
                f"seed draws, and models.{name}.pretrained asks for published ones; set it to "
                "false, or remove the variant"
            )


def _training_problems(cell: Cell, strategy: Strategy) -> Iterator[str]:
    training = cell.training
    if cell.trained_by is not None and training.steps is not None:
        yield (
            f"steps {training.steps} cannot be combined with trained_by: such a variant predicts "
            "the whole test set; remove steps, and set test_samples instead"
        )
    if cell.trained_by is not None and training.profile != "none":
        yield (
            f"profile {training.profile} and trained_by: there are no training steps to profile; "
            "remove profile"
        )
    pieces = strategy.data_parallel_size * strategy.micro_batches
    least_batch = 2 * pieces  # BatchNorm needs 2 samples in each piece
    need = "a batch needs at least 2 samples"
    if pieces > 1:
        need = (
            f"{cell.strategy.name} divides a batch into {pieces} pieces (ranks x micro-batches), "
            "which need at least 2 samples each"
        )
    for key in ("global_batch", "min_tail"):
        if getattr(training, key) < least_batch:
            yield (
                f"{key} {getattr(training, key)} is too small: {need}; choose {least_batch} or more"
            )
    if training.min_tail > training.global_batch:
        yield (
            f"min_tail {training.min_tail} is larger than global_batch {training.global_batch}; "
            f"choose at most {training.global_batch}"
        )
    yield from _schedule_problems(training)
    if training.batch_norm == "synchronized" and training.gradient_accumulation > 1:
        yield (
            "batch_norm synchronized: each micro-batch of gradient_accumulation "
            f"{training.gradient_accumulation} is normalized by itself; choose local, or "
            "gradient_accumulation: 1"
        )
    if training.precision == "fp16" and cell.hardware.device == "cpu":
        yield "precision fp16 needs an accelerator; choose bf16 or fp32 on CPU devices"


def _schedule_problems(training: Training) -> Iterator[str]:
    stated, name = list(training.learning_rate_steps), training.schedule
    if (name == "step") != bool(stated):
        yield (
            f"schedule {name} and learning_rate_steps {stated}: `schedule: step` needs the epochs "
            "after which the rate falls, and no other schedule takes them; set both or neither"
        )
    if stated != sorted(set(stated)) or any(epoch >= training.epochs for epoch in stated):
        yield (
            f"learning_rate_steps {stated}: choose ascending epochs before the last of "
            f"{training.epochs}"
        )
    if name != "step" and training.learning_rate_factor != Training.learning_rate_factor:
        yield f"learning_rate_factor applies to `schedule: step` only, not {name}; remove it"
    warmup = training.learning_rate_warmup
    if warmup >= training.epochs or any(epoch <= warmup for epoch in stated):
        yield (
            f"learning_rate_warmup {warmup:g}: choose fewer epochs than the training's "
            f"{training.epochs}, and than the first of learning_rate_steps"
        )
    if warmup and name == "onecycle":
        yield f"learning_rate_warmup {warmup:g}: schedule onecycle has its own warm-up; remove it"


def _data_problems(cell: Cell, holds: str) -> Iterator[str]:
    training, model = cell.training, cell.model
    kind = "texts" if models.vocabulary(model.name) else "images"
    if kind != holds:
        yield (
            f"model {model.name} takes {kind}, and the dataset {cell.dataset.name} holds {holds}; "
            "choose another dataset, or other models"
        )
    if kind == "images":
        if training.max_length is not None:
            yield (
                f"max_length {training.max_length} applies to texts only, and model {model.name} "
                "takes images; remove it"
            )
        return
    limit = model.options["max_positions"]
    if training.max_length is None:
        yield (
            f"the setting max_length is missing: set how many tokens model {model.name} takes "
            f"from each text, at most {limit}"
        )
    elif training.max_length > limit:
        yield (
            f"max_length {training.max_length}: model {model.name} takes texts of up to {limit} "
            "tokens; set a smaller max_length, or a larger model option max_positions"
        )
    if training.input != "tensor":
        yield f"input {training.input} applies to images only; remove it"


def _network_problems(cell: Cell) -> Iterator[str]:
    """Yield why a network from a library or a user's file cannot train on the cell's images."""
    name = cell.model.name
    library = models.library(name)
    if library is not None and importlib.util.find_spec(library.PACKAGE) is not None:
        why = _problem(name, cell.training.image_size, canonical_json(cell.model.options))
        if why is not None:
            yield f"{name}: {why}"


@functools.cache
def _problem(model: str, image_size: int, options: str) -> str | None:
    return models.load(model).problem(image_size, json.loads(options))


def _tuning_problems(cell: Cell, strategy: Strategy) -> Iterator[str]:
    """Yield a sentence for each performance setting that the cell cannot use."""
    training = cell.training
    for key, value in training.tuned.items():
        setting = f"{key} {str(value).lower()}"
        if key in strategy.REFUSES:
            default = str(getattr(type(training), key)).lower()
            yield f"{setting}: {strategy.REFUSES[key]}; choose {default}, or another strategy"
    if training.cudnn_benchmark and cell.hardware.device != "cuda":
        yield f"cudnn_benchmark applies to NVIDIA GPUs only, not {cell.hardware.device}; remove it"
    if training.cudnn_benchmark and training.mode == "deterministic":
        yield "cudnn_benchmark may choose another algorithm in each run: choose mode performance"
    if training.memory_format != "contiguous" and models.vocabulary(cell.model.name):
        yield f"memory_format {training.memory_format} applies to images only; remove it"
    if training.compile == "none":
        return
    setting = f"compile {training.compile}"
    if training.compile != "default" and training.gradient_accumulation > 1:
        yield f"{setting}: CUDA graphs overwrite gradients that are added up; choose default"
    if training.padding == "longest" and training.max_length is not None:
        yield f"{setting}: every batch length would be compiled separately; choose padding: fixed"
    if training.batch_norm == "synchronized" and strategy.data_parallel_size > 1:
        yield (
            f"{setting}: synchronized BatchNorm makes ranks wait inside a compiled pass; choose "
            "batch_norm: local"
        )
    if training.profile == "phases":
        yield f"{setting}: phases inside a compiled pass cannot be timed; choose another profile"
    if training.compile == "max-autotune" and training.mode == "deterministic":
        yield f"{setting}: kernels are chosen by measured time, which varies; choose default"


def unavailable(cell: Cell, software: Software) -> str | None:
    """Return what a cell's settings need and ``software`` or its stack lacks; None for nothing."""
    training, reason = cell.training, None
    if training.fused:
        on_cuda = cell.hardware.device == "cuda"
        least_version = FUSED_ON_CUDA[training.optimizer] if on_cuda else FUSED_ELSEWHERE
        reason = software.without_torch(cell.stack, least_version)
    if training.compile != "none":
        reason = reason or software.without_torch(cell.stack, LEAST_TORCH)
        reason = reason or software.without_compiler()
    return reason
