"""Evidence: what a machine measured of a study, in one small file that is kept with the project.

``write`` makes reports/evidence/<study>-<machine>-<date>.json from a finished study: its plan, the
metrics of all its cells and its certificates. ``unpack`` lays these out as a run leaves them, so
that tables and report can be made without training (rules/evidence.smk). docs/evidence.md says what
a file holds, and what it leaves out.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast, final

from parbench import by_schema, files, machine
from parbench.equivalence import certificate
from parbench.errors import ParbenchError
from parbench.plan.study_plan import Evidence, PairGroup, PlannedGroup, StudyPlan
from parbench.runs import records
from parbench.runs.parts import Machine
from parbench.runs.records import CellRun, PairRun
from parbench.verdicts.incomplete import cut
from parbench.verdicts.terms import NOT_MEASURED
from parbench.words import count

if TYPE_CHECKING:
    from parbench.equivalence.certificate_types import CertificateJson
    from parbench.measure.metrics_types import EnvironmentJson, PairRunJson, RunJson

SCHEMA_VERSION = 1
Json = dict[str, object]  # a JSON object
FOLDER = Path("reports/evidence")
RESULTS = Path("results")

# Evidence may not be measured again, so nobody is asked to delete it.
FETCH_AGAIN = "get the file again from where it was made"

# An absolute path or one from a home folder; the group is its last name.
_PATH = re.compile(r"""(?:file://|(?<![\w:/.]))[~/][^\s'",;:()\[\]{}]*/([^\s'",;:/()\[\]{}]+)/?""")


class PackedSide(TypedDict):
    """A side of a pair: as in metrics.json, but ``environment`` is an index into
    `environments`."""

    environment: int


class PackedCommon(TypedDict):
    """A run: as in metrics.json, but without `cell`, and with an index into `settings` instead."""

    settings: int
    seed: int
    started: str
    finished: str


@final
class PackedRun(PackedCommon):
    """A cell's run; ``environment`` is an index into `environments`."""

    environment: int


class PackedPairRun(PackedCommon):
    """A pair's run."""

    sides: list[PackedSide]


class PackedEnvironment(TypedDict):
    """An environment: as in metrics.json, but without `code`."""

    code_digest: str
    git_dirty: bool | None


class EvidenceContent(TypedDict):
    """A file of evidence without its digest; rules/schemas/evidence.schema.yaml describes it."""

    schema_version: int
    study: str
    machine: str
    date: str
    plan: Json
    missing: list[str]
    cells: dict[str, PackedRun | PackedPairRun]
    settings: list[Json]
    environments: list[PackedEnvironment]
    code: dict[str, dict[str, str]]
    certificates: list[CertificateJson]


class EvidenceJson(EvidenceContent):
    """A file of evidence."""

    digest: str


# --------------------------------------------------------------------------------------------------
# Writing


def gather(study: str, results: Path, partial: bool = False) -> EvidenceJson:
    """Return the evidence of ``study`` from ``results``, a folder of results of finished runs.

    Raises ParbenchError if a cell is not measured; if ``partial``, lists it in `missing` instead.
    """
    path = results / "plan" / f"{study}.json"
    if not path.exists():
        fix = f"make report ARGS=\"--config studies='[{study}]'\""
        raise ParbenchError(f"{path}: no such file; run the study first: {fix}")
    study_plan = StudyPlan.read(path)
    cells = study_plan.runnable()
    paths = {cell: results / "cells" / cell / "metrics.json" for cell in cells}
    runs = {cell: records.read(paths[cell]) for cell in cells if paths[cell].exists()}
    missing = [cell for cell in cells if cell not in runs]
    if not runs or (missing and not partial):
        example = f", such as {missing[0]}" if missing else ""
        # Snakemake does not remake a missing input while everything made from it exists.
        fix = shlex.join(["snakemake", *study_plan.arguments, "--forcerun", "table"])
        raise ParbenchError(
            f"{path}: {len(missing)} of {len(cells)} cells are {NOT_MEASURED}{example}; finish the "
            f"study: {fix}, or pass --partial to keep the rest; the file then names those cells"
        )
    places = {each.place for run in runs.values() for each in run.environments}
    certificate_paths = [
        results / "certificates" / certificate.path(place).name for place in sorted(places)
    ]
    settings: list[Json] = []
    environments: list[Json] = []
    code: dict[str, dict[str, str]] = {}
    evidence: EvidenceContent = {
        "schema_version": SCHEMA_VERSION,
        "study": study,
        "machine": machine_name(runs.values()),
        "date": max(run.finished for run in runs.values())[:10],
        "plan": _plain(files.read_json(path)),
        "missing": missing,
        "cells": {
            cell: _plain(_packed(files.read_json(paths[cell]), settings, environments, code))
            for cell in runs
        },
        "settings": settings,
        "environments": _plain(environments),
        "code": code,
        "certificates": [certificate.read(path) for path in certificate_paths if path.exists()],
    }
    return {**evidence, "digest": files.digest(evidence)}


def _packed(
    run: RunJson | PairRunJson,
    settings: list[Json],
    environments: list[Json],
    code: dict[str, dict[str, str]],
) -> Json:
    """Return a run (metrics.json) with what runs share moved out and replaced by indices."""

    def environment_index(whole: EnvironmentJson) -> int:
        code[whole["code_digest"]] = whole["code"]
        return _index(environments, {key: whole[key] for key in whole if key != "code"})

    cell = {key: value for key, value in run["cell"].items() if key not in ("id", "seed")}
    packed: Json = {key: value for key, value in run.items() if key != "cell"}
    packed |= {"seed": run["cell"]["seed"], "settings": _index(settings, cell)}
    if "sides" in run:
        sides = run["sides"]
        packed["sides"] = [
            {**each, "environment": environment_index(each["environment"])} for each in sides
        ]
    else:
        packed["environment"] = environment_index(run["environment"])
    return packed


def _index(values: list[Json], value: Json) -> int:
    """Return the index of ``value`` in ``values``, appending it if it is new."""
    if value not in values:
        values.append(value)
    return values.index(value)


def machine_name(runs: Iterable[CellRun | PairRun]) -> str:
    """Return short names of the machines of ``runs``: ``h200-x1`` if GPUs were used, else by CPU.

    Names and numbers of GPUs or cores, in letters, digits and hyphens: never the name of a host.
    """
    sides = [
        (side.hardware.device, environment.machine)
        for run in runs
        for side, environment in zip(run.cell.sides, run.environments, strict=True)
    ]
    on_gpus = [side for side in sides if side[0] != "cpu"]
    names = {_machine_name(described, bool(on_gpus)) for _, described in on_gpus or sides}
    return "-and-".join(sorted(names))


def _machine_name(described: Machine, gpus: bool) -> str:
    cards = described.accelerators
    if gpus and cards:
        model, count = machine.model_name(cards[0].name), len(cards)
    else:
        noise = r"\((R|TM|C)\)|\b(CPU|Processor|\d+-Core)\b|@.*"
        model = re.sub(noise, " ", described.cpu or "unknown", flags=re.IGNORECASE)
        count = described.cores or 0
    words = re.findall(r"[a-z0-9]+", model.lower())
    return f"{'-'.join(words)[:40].rstrip('-') or 'unknown'}-x{count}"


def _plain(value: Any) -> Any:
    """Return the JSON ``value`` with paths cut to their last name, and without the host's name."""
    if isinstance(value, dict):
        return {key: _plain(content) for key, content in cast(Json, value).items()}
    if isinstance(value, list):
        return [_plain(content) for content in cast(list[Any], value)]
    if not isinstance(value, str):
        return value
    host = socket.gethostname()
    for name in (host, host.partition(".")[0]):
        value = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "this machine", value)
    return _PATH.sub(r"\1", value)


def write(made: EvidenceJson, folder: Path) -> Path:
    """Write the evidence ``made`` by `gather` under its own name, and return its path.

    Raises ParbenchError if a file of that name holds something else.
    """
    path = folder / f"{made['study']}-{made['machine']}-{made['date']}.json"
    by_schema.check(made, "evidence", str(path))
    if path.exists() and files.read_json(path, "move it away first") != made:
        raise ParbenchError(
            f"{path}: holds other evidence of that machine and day; move or delete it first"
        )
    files.write_atomically(path, json.dumps(made, separators=(",", ":"), ensure_ascii=False) + "\n")
    return path


# --------------------------------------------------------------------------------------------------
# Reading


def read(path: Path) -> EvidenceJson:
    """Read a file of evidence. Raises ParbenchError if it is not one or was changed."""
    evidence: EvidenceJson = files.read_json(path, FETCH_AGAIN)
    by_schema.check(evidence, "evidence", f"{path}: not a file of evidence", FETCH_AGAIN)
    content = {key: value for key, value in evidence.items() if key != "digest"}
    if evidence["digest"] != files.digest(content):
        raise ParbenchError(
            f"{path}: its content does not match its digest, so it was changed or damaged; "
            f"{FETCH_AGAIN}"
        )
    plan = StudyPlan.of(evidence["plan"], f"{path}: plan")
    groups = {group.id for group in plan.groups}
    for group in plan.together:
        if not group.members or not groups.issuperset(group.members):
            raise ParbenchError(f"{path}: plan: {group.id} has members that are not groups")
    return evidence


def runs(made: EvidenceJson, path: Path) -> dict[str, Json]:
    """Return metrics.json of every cell in the evidence ``made``, which was read from ``path``."""
    run_by_cell: dict[str, Json] = {}
    for cell, packed in made["cells"].items():
        try:
            run_by_cell[cell] = _unpacked(made, cell, packed)
            records.of(run_by_cell[cell], f"{path}: cell {cell}")
        except (LookupError, TypeError, AttributeError) as error:
            raise ParbenchError(
                f"{path}: cell {cell}: incomplete ({error}); {FETCH_AGAIN}"
            ) from None
        except ParbenchError as error:
            raise ParbenchError(f"{error}; {FETCH_AGAIN}") from None
    return run_by_cell


def _unpacked(made: EvidenceJson, cell: str, packed: PackedRun | PackedPairRun) -> Json:
    """Return metrics.json of ``cell``, of which the evidence ``made`` has ``packed``."""
    run = {key: value for key, value in packed.items() if key not in ("settings", "seed")}
    if "sides" in packed:
        run["sides"] = [
            {**side, "environment": _full_environment(made, side["environment"])}
            for side in packed["sides"]
        ]
    else:
        run["environment"] = _full_environment(made, packed["environment"])
    settings = made["settings"][packed["settings"]]
    run["cell"] = {"id": cell, **settings} | {"id": cell, "seed": packed["seed"]}
    return run


def _full_environment(made: EvidenceJson, index: int) -> Json:
    environment = made["environments"][index]
    return {**environment, "code": made["code"][environment["code_digest"]]}


def plan(made: EvidenceJson) -> StudyPlan:
    """Return the plan of the evidence ``made``, with its missing cells marked as such."""
    return cut(StudyPlan.of(made["plan"], "plan"), made["cells"], _missing)


def _missing(group: PlannedGroup | PairGroup, missing: list[str]) -> Json:
    """Return what the plan says about a group that lacks the cells ``missing``."""
    notes = [group.note]
    if len(missing) < len(group.cells):
        notes.append(f"{len(missing)} of {len(group.cells)} cells {NOT_MEASURED}")
    note = "; ".join(filter(None, notes)) or None
    return {"not_run": NOT_MEASURED, "note": note, "waiting": len(missing)}


def unpack(path: Path, folder: Path) -> Path:
    """Lay out the evidence in ``path`` as a run leaves it, in a folder of its name; return that.

    It gets plan/<name>.json, cells/<cell>/metrics.json and certificates/<image or host>.json. The
    study is named after the file, so that one report can show it from several machines.
    """
    if not re.fullmatch(files.FILE_NAME, path.stem):
        raise ParbenchError(
            f"{path}: the folder {path.stem!r} would be named after the file; rename it to "
            "<study>-<machine>-<date>.json"
        )
    evidence, out = read(path), folder / path.stem
    study_plan = plan(evidence)
    title = f"{study_plan.study.title} ({evidence['machine']}, {evidence['date']})"
    kept = Evidence(
        file=path.name,
        study=evidence["study"],
        machine=evidence["machine"],
        date=evidence["date"],
        digest=evidence["digest"],
    )
    study = study_plan.study.model_copy(update={"name": path.stem, "title": title})
    study_plan = study_plan.model_copy(update={"study": study, "evidence": kept})
    for name in ("cells", "certificates"):
        if (out / name).exists():
            shutil.rmtree(out / name)
        (out / name).mkdir(parents=True)
    for cell, run in runs(evidence, path).items():
        files.write_json(out / "cells" / cell / "metrics.json", run)
    for proof in evidence["certificates"]:
        files.write_json(out / "certificates" / certificate.path(proof["place"]).name, proof)
    files.write_json(out / "plan" / f"{path.stem}.json", study_plan.stated())
    return out


def keep(studies: Iterable[str], partial: bool) -> None:
    """Write the evidence of ``studies`` (names or paths), by default those of the last report, to
    reports/evidence/; if ``partial``, also where cells are not measured."""
    for study in [Path(each).stem for each in studies] or _reported():
        evidence = gather(study, RESULTS, partial)
        path = write(evidence, FOLDER)
        cells = count(len(evidence["cells"]), "cell")
        print(f"{path}  {cells}, {path.stat().st_size / 1e3:.0f} kB")
        if any(environment["git_dirty"] for environment in evidence["environments"]):
            print(
                f"note: {study}: some cells were measured with uncommitted changes; the report "
                "says so",
                file=sys.stderr,
            )


def _reported() -> list[str]:
    """Return the studies of the last report that run at least in part on this machine."""
    path = RESULTS / "report.json"
    if not path.exists():
        raise ParbenchError(f"{path}: no such file; make the report first, or name studies")
    runnable: list[str] = []
    for name in (study["name"] for study in files.read_json(path)["studies"]):
        plan = StudyPlan.read(RESULTS / "plan" / f"{name}.json")
        if all(group.not_run for group in plan.groups):
            print(f"note: {name}: none of its cells runs on this machine", file=sys.stderr)
        else:
            runnable.append(name)
    return runnable
