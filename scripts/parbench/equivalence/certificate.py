"""Make certificates of equivalence, and look up whether a cell is certified.

``make`` runs `parbench certify` for the combinations that the cells of studies use, in the image in
which they run, or takes the certificate from the cache if code, software and machine are the same.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from parbench import (
    cache,
    files,
    identity,
    interpreter,
    machine,
    models,
    probe,
    strategies,
)
from parbench.cell import (
    TF32,
    TUNING,
    Cell,
    Dataset,
    Fields,
    Hardware,
    Model,
    Options,
    RunSettings,
    Strategy,
    Training,
)
from parbench.errors import ParbenchError
from parbench.measure import provenance
from parbench.variables import PROGRAM

if TYPE_CHECKING:
    from parbench.equivalence.certificate_types import (
        CertificateContent,
        CertificateEnvironment,
        CertificateJson,
        CertificateRow,
        CertifiedEntry,
        Combination,
        GroupOfPlan,
    )
    from parbench.runs.records import Trained  # needs pydantic, which no image for training has

SCHEMA_VERSION = 1
FOLDER = Path("results/certificates")
MOST_DEVICES = 8  # largest number of processes in a trial, on one machine, however few its cores
KINDS = ("cpu", "cuda")  # kinds of devices on which trials can run
EQUAL, DIFFERS = "equal", "differs"
HOST = "host"  # the deployment of cells without an image, instead of an image's label
# The arithmetic, by precision, in which a cell is certified besides its strategy's EXACT one.
ALSO_IN = {"fp32": "float32", "bf16": "bfloat16"}
FROZEN = "frozen"  # BatchNorm mode of a trial; the other modes are the cells' setting
LOCAL, SYNCHRONIZED = "local", "synchronized"
BATCH = 23  # not divisible by any number of ranks or micro-batches
LENGTH = 16  # tokens per text


def path(place: str) -> Path:
    """Return the path of the certificate for ``place``: an image's label, or a deployment."""
    return FOLDER / f"{place}.json"


def image_of(place: str) -> str | None:
    """Return the name of the image with the label ``place``; None if ``place`` is not an image."""
    without = place == HOST or place.startswith(probe.LABEL)
    return None if without else place.partition("-")[0]


def combination(cell: Cell) -> Combination:
    """Return the part of a cell that a certificate must match, besides its arithmetic.

    It includes only the name of the model, since certificates are made with small versions.
    """
    return {
        "model": cell.model.name,
        "strategy": cell.strategy.name,
        "options": cell.strategy.options,
        "device": cell.hardware.device,
        "devices": cell.hardware.devices * cell.hardware.nodes,
        "tuned": cell.training.tuned,
    }


def tuned(training: Fields) -> Fields:
    """Return the settings for speed (TUNING) that differ from their defaults."""
    settings = {key: training[key] for key in TUNING if key in training}
    return {key: value for key, value in settings.items() if value != getattr(Training, key)}


def groups_of(plans: Iterable[Path]) -> list[GroupOfPlan]:
    """Return the groups in the files ``plans``. Raises ParbenchError if one is unreadable."""
    return [group for plan in map(files.read_json, plans) for group in plan["groups"]]


def required(groups: Iterable[GroupOfPlan], place: str) -> list[CertifiedEntry]:
    """Return the entries to certify for the cells of ``groups`` that run in ``place``, each
    once."""
    image = image_of(place)
    entries: dict[tuple[str, str, str], CertifiedEntry] = {}
    for group in groups:
        devices = group["hardware"]["devices"] * group["hardware"]["nodes"]
        model = group.get("network") or group["model"]
        elsewhere = image not in (None, strategies.image(group["strategy"], model))
        strategy = strategies.load(group["strategy"])
        trains = any(True for _ in strategy.certified())
        no_certificate = group["not_run"] or not trains or strategy.lossy(group["options"])
        device = group["hardware"]["device"]
        if device not in KINDS or no_certificate or elsewhere or devices > MOST_DEVICES:
            continue
        entry: CertifiedEntry = {
            "model": model,
            "strategy": group["strategy"],
            "options": group["options"],
            "device": device,
            "devices": devices,
            "precision": group["training"]["precision"],
            "batch_norm": group["training"]["batch_norm"],
            "tuned": tuned(group["training"]),
        }
        entries[entry["model"], entry["strategy"], files.canonical_json(entry)] = entry
    return [entries[key] for key in sorted(entries)]


def cell_of(
    model: str,
    strategy: str,
    devices: int,
    options: Options,
    tuned: Fields | None = None,
    device: str = "cpu",
) -> Cell:
    """Return the cell that a trial runs: the small version of ``model`` on ``devices`` cores or
    GPUs, with the settings ``tuned``."""
    strategy_module, model_module = strategies.load(strategy), models.load(model)
    defaults = {key: option.get("default") for key, option in strategy_module.OPTIONS.items()}
    return Cell(
        id=f"{model}.{strategy}",
        model=Model(model, models.stated_options(model, models.options(model, model_module.SMALL))),
        strategy=Strategy(strategy, strategies.stated_options(strategy, defaults | options)),
        hardware=Hardware(
            f"{device}{devices}", device, devices, threads=1, nodes=1, gpu_model=None
        ),
        dataset=Dataset("noise", train_samples=None, test_samples=None),
        training=Training(
            epochs=1,
            global_batch=BATCH,
            min_tail=1,
            warmup_steps=0,
            optimizer="sgd",
            schedule="constant",
            learning_rate=0.001,
            image_size=getattr(model_module, "SMALL_SIZE", Training.image_size),
            max_length=LENGTH if models.vocabulary(model) else None,
            padding="fixed",
            tf32=TF32(False, False),  # off, since it changes the arithmetic
            **(tuned or {}),
        ),
        stack="current",
        deployment="host",
        seed=0,
        run=RunSettings(300, 3600, grace_seconds=60, interface=None, connect_seconds=120),
    )


def cell_for(entry: CertifiedEntry) -> Cell:
    """Return the cell that trials of ``entry``, one of `required`, run."""
    return cell_of(
        entry["model"],
        entry["strategy"],
        entry["devices"],
        entry["options"],
        entry["tuned"],
        entry["device"],
    )


def content(todo: Iterable[CertifiedEntry], place: str) -> str:
    """Return a digest of all that the certificate of ``todo``, entries of `required`, depends on.

    That is the code and the host's packages used by certification and by the certified cells. The
    label ``place`` identifies the software of an image or of a Python of the user's own.
    """
    todo = list(todo)
    modules = provenance.closure("parbench.equivalence.certify")
    for names in {provenance.names_of(cell_for(entry)) for entry in todo}:
        modules |= provenance.cell_code(*names)
    software = identity.reached(modules) if place == HOST else place
    return files.digest([todo, provenance.combined(modules), software])


def make(plans: list[Path], place: str, out: Path, python: str | None = None) -> None:
    """Write the certificate of what ``plans`` use in ``place``: a cached one, or a new one, which
    is also printed. Raises ParbenchError if certification fails.

    ``python``: the path of a Python of the user's own, if ``place`` is its label.
    """
    todo = required(groups_of(plans), place)
    seen = machine.describe(), machine.available()["cuda"]
    key = files.digest([content(todo, place), sys.version, *seen])
    environment = None if python is None else interpreter.environment(python)
    cached = cache.folder() / "certificates" / f"{key}.json"
    if not cached.exists():
        program = [python or sys.executable]
        if (image := image_of(place)) is not None:
            program = [sys.executable, str(PROGRAM), "images", "run", image]
            program += ["--plan", "results/plan/images.json", "--", "python"]
        command = [*program, str(PROGRAM), "certify", "--plan", *map(str, plans)]
        command += ["--place", place, "--out", str(out)]
        process = subprocess.run(command, env=environment, check=False)
        if process.returncode:
            raise ParbenchError(
                f"{out}: `parbench certify` ended with status {process.returncode}; see above"
            )
        certificate = read(out)
        # Not cached if a trial failed, so that a killed rank is tried again.
        if not any(row["reason"] for row in certificate["rows"]):
            files.write_json(cached, certificate)
        return
    files.write_json(out, read(cached))


def write(
    out: Path, place: str, environment: CertificateEnvironment, rows: list[CertificateRow]
) -> CertificateJson:
    """Write a certificate, with its digest, and return it."""
    content: CertificateContent = {
        "schema_version": SCHEMA_VERSION,
        "place": place,
        "environment": environment,
        "rows": rows,
    }
    certificate: CertificateJson = {**content, "digest": files.digest(content)}
    files.write_json(out, certificate)
    return certificate


def read(source: Path) -> CertificateJson:
    """Return the certificate in ``source``. Raises ParbenchError if it is invalid or was
    changed."""
    certificate: CertificateJson = files.read_json(source)
    fix = "delete it and run again"
    is_object = isinstance(certificate, dict)
    if not is_object or certificate.get("schema_version") != SCHEMA_VERSION:
        raise ParbenchError(f"{source}: not a certificate of this version; {fix}")
    content = {key: value for key, value in certificate.items() if key != "digest"}
    if certificate.get("digest") != files.digest(content):
        raise ParbenchError(f"{source}: its digest is wrong; it was changed or damaged; {fix}")
    return certificate


IN_HALF = "products in float32"
QUANTITIES = ("loss", "gradients", "weights", "running statistics", IN_HALF)


def summary(rows: Iterable[CertificateRow]) -> list[list[str]]:
    """Return a table row for each model, strategy, arithmetic and BatchNorm mode.

    A row has these, the numbers of options and devices, the worst error of each of the QUANTITIES
    over them, the bound, and the verdict.
    """
    rows_by_key: dict[tuple[str, ...], list[CertificateRow]] = {}
    for row in rows:
        settings = (f"{name} {value}".lower() for name, value in row.get("tuned", {}).items())
        place = ["on GPUs"] if row.get("device", "cpu") != "cpu" else []
        strategy = ", ".join([row["strategy"], *place, *settings])
        key = (row["model"], strategy, row["arithmetic"], row["batch_norm"])
        rows_by_key.setdefault(key, []).append(row)
    return [[*key, *_worst(group)] for key, group in rows_by_key.items()]


def _worst(rows: list[CertificateRow]) -> Iterator[str]:
    yield str(len({files.canonical_json([row["options"], row["devices"]]) for row in rows}))
    for quantity in QUANTITIES:
        errors = [row["error"] for row in rows if row["quantity"] == quantity]
        known = [error for error in errors if error is not None]
        yield "no number" if len(known) < len(errors) else shown(max(known)) if known else ""
    bounds = sorted(row["bound"] for row in rows if row["quantity"] != IN_HALF)
    yield " to ".join(dict.fromkeys(map(shown, (bounds[:1] + bounds[-1:]))))
    yield DIFFERS if any(row["verdict"] == DIFFERS for row in rows) else EQUAL


def shown(error: float) -> str:
    """Format an error (relative, or a share of products) or a bound for printing."""
    return f"{error:.1e}" if 0 < error < 0.01 else f"{error:.2g}"


class Certificates:
    """The certificates of a study's images."""

    def __init__(self, paths: Iterable[Path]):
        self.all = {certificate["place"]: certificate for certificate in map(read, paths)}

    def digest(self, trained: Trained) -> str | None:
        """Return the digest of the certificate that applies to a trained cell, or None."""
        certificate = self.all.get(trained.environment.place)
        return certificate["digest"] if certificate else None

    def problems(self, trained: Iterable[Trained]) -> list[str]:
        """Return why cells are not certified, each reason once; empty if all are."""
        return list(dict.fromkeys(filter(None, map(self.problem, trained))))

    def problem(self, trained: Trained) -> str | None:
        """Return why the mathematics of a cell is not certified, or how it deliberately deviates
        from eager training; None if it is certified."""
        if trained.cell.trained_by is not None:
            return None  # it only predicts; the cell that trained its weights has a certificate
        strategy = trained.cell.strategy
        if lossy := strategies.load(strategy.name).lossy(strategy.options):
            return f"⚠ approximate by design: {lossy}"
        why = self._why_not(trained)
        return why and f"⚠ not certified: {why}"

    def _why_not(self, trained: Trained) -> str | None:
        training, place = trained.cell.training, trained.environment.place
        strategy = strategies.load(trained.cell.strategy.name)
        if trained.code is None:
            return "only its pairs were measured, and they do not record the code of each side"
        if place not in self.all:
            return f"nothing of {place} is"
        if training.profile != "none":
            return f"it is profiled (profile {training.profile})"
        if training.precision not in ALSO_IN:
            return f"precision {training.precision} is not"
        required = combination(trained.cell)
        rows = [row for row in self.all[place]["rows"] if _matches(row, required)]
        if not rows:
            kind = "GPUs" if required["device"] == "cuda" else "devices"
            return f"this combination of model, strategy, options and {kind} is not"
        if any(row["code"] != trained.code for row in rows):
            return "its code is another"
        kinds = {_kind(row) for row in rows}
        needed = {(strategy.EXACT, FROZEN), (ALSO_IN[training.precision], FROZEN)}
        # Present only if the model has BatchNorm and the strategy treats it as eager training does.
        needed |= {kind for kind in kinds if kind[1] == training.batch_norm}
        if missing := needed - kinds:
            return f"{', '.join(sorted(name for name, _ in missing))} is not"
        differing = (row for row in rows if _kind(row) in needed and row["verdict"] == DIFFERS)
        return next(map(error_text, differing), None)


def _matches(row: CertificateRow, required: Combination) -> bool:
    """Return whether ``row`` is of the combination ``required``.

    Certificates of earlier versions lack the keys `tuned` and `device`.
    """
    return {"tuned": {}, "device": "cpu", **row}.items() >= required.items()


def _kind(row: CertificateRow) -> tuple[str, str]:
    return row["arithmetic"], row["batch_norm"]


def error_text(row: CertificateRow) -> str:
    """Return a sentence about a row that differs from eager training."""
    where = f"in {row['arithmetic']}, BatchNorm {row['batch_norm']}"
    if row["reason"] is not None:
        return f"{row['reason']} ({where})"
    amount = "without bound" if row["error"] is None else f"by {shown(row['error'])}"
    return f"{row['quantity']} differs {amount} from eager's, bound {shown(row['bound'])} ({where})"
