"""Random configurations and studies: planned, or refused in one sentence: `make fuzz`.

Each case is a file laid over config.yaml, a study and words of `--config`, changed at random from
what is right. It goes the way of a run: read, checked, planned, and asked what its cells would want
from Slurm. `ARGS="--cases 500"` tries fewer.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import json
import math
import re
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).resolve().parent.parent / "scripts"))  # as pytest does

from snakemake.cli import parse_config

import cells
import config as configuration
import files
import images
import machine
import slurm
from errors import ParbenchError, run_main

CASES = 10_000
MOST_SECONDS = 10.0  # of a processor, for one case
MOST_MIB = 1024  # of memory that all cases together may take
STUDIES = ("quickstart", "gorantla2024-cpu", "gorantla2024")

# A cluster of a few nodes, as scontrol tells it.
CLUSTER = slurm.parsed(
    "PartitionName=cpu Default=YES MaxNodes=UNLIMITED MaxTime=1-12:00:00\n"
    "PartitionName=gpu Default=NO MaxNodes=2 MaxTime=UNLIMITED\n",
    "NodeName=c1 CPUTot=64 RealMemory=250000 AvailableFeatures=ib Partitions=cpu\n"
    "NodeName=a1 CPUTot=32 RealMemory=1 AvailableFeatures=ib,rome Gres=gpu:a100:4 Partitions=gpu\n",
    "AccountingStorageType = accounting_storage/none\nSelectType = select/cons_tres\n",
)

DEEP: Any = "end"
for _ in range(200):
    DEEP = [DEEP]
ODD = [
    *(None, True, False, 0, -1, 1, 2, 3.0, 0.5, 16, 2**31, 2**53, 2**64, 10**30, -(10**30)),
    *(math.nan, math.inf, -math.inf, 1e308, 5e-324, -0.0, datetime.date(2024, 1, 1), b"\xff"),
    *("", " ", "..", "../config", "/etc/passwd", "~nobody-at-all/x", "a/b", "x" * 300, "x" * 5000),
    *("\x1b[2J", "\n", "a\nb", "\x00", "\u202e", "<script>", "{{ 7*7 }}", "$(id)"),
    *("'; id #", "{x}", "null", "nan", "1e3", "0x", "*", "&a", "!!set", "=", "<<", "auto", "ddp"),
    *("gpipe", "horovod", "eager", "swin", "resnet18", "cpu1", "cpu2", "cuda", "cpu", "digits"),
    *("quickstart", "paper", "apptainer", "host", "submit", "gpu", "fp16", "bf16", "oras://x"),
    *([], {}, [[]], [None], {"": ""}, {1: 2}, {None: None}, {"a": 1, "b": [1]}, [0] * 1001, DEEP),
    *({"device": "cuda", "devices": 2}, {"kind": "digits"}, {"kind": "image-folder", "path": "~"}),
]
FRAGMENTS = [
    *(
        "&a ",
        "*a",
        "&a [*a]",
        "!!python/object/apply:os.system ['true']",
        "!!binary '='",
        "!x ",
        "\t",
    ),
    *("{", "}", "[", "]", ": ", "- ", "\n", "\n  ", "#", "'", '"', "|", ">", "%", "@", "? "),
    *("9" * 5000, "2024-13-01", "0b_", "0x_", ".nan", "1:61:61", '"\\x1b[2J"', '"\\ud800"', "\t"),
    *("\x00", "\x1b", "\ufeff", "\u2028", "---\n", "...\n", "<<: *a", "[" * 50_000, "? [a]\n: b\n"),
    "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n"
        for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ),
]


class Case:
    """Where cases are read from: a copy of what the checkout states, one file of it changed."""

    def __init__(self, folder: Path):
        self.folder, self.mine = folder, folder / "mine.yaml"
        root = configuration.ROOT
        for name in ("containers", "scripts", "rules"):
            (folder / name).symlink_to(root / name)
        shutil.copytree(root / "studies", folder / "studies")
        (folder / "config.yaml").write_bytes((root / "config.yaml").read_bytes())
        self.config = configuration.read_yaml(root / "config.yaml")
        self.studies = {name: configuration.study(name) for name in STUDIES}
        # What no study of ours says, and a user's may.
        started = copy.deepcopy(self.studies["quickstart"])
        started["models"]["resnet18"]["pretrained"] = True
        self.studies["quickstart"] = started
        self.slowest = 0.0
        self.found: Counter[str] = Counter()

    def run(self, mine: bytes, name: str, study: bytes, words: list[str]) -> None:
        """Try a case; AssertionError where it is neither planned nor refused as it should be."""
        self.mine.write_bytes(mine)
        path = self.folder / "studies" / f"{name}.yaml"
        right = path.read_bytes()
        path.write_bytes(study)
        try:
            self._try(words)
        finally:
            path.write_bytes(right)

    def _try(self, words: list[str]) -> None:
        began = time.thread_time()
        try:
            planned = self._plan(words)
        except ParbenchError as error:
            self.found["refused"] += 1
            said = str(error)
            assert said.isprintable(), said
            assert len(said) < 1500, said
            assert re.match(r"\S.*: |unknown|\w+ needs", said), said
        else:
            self.found["planned"] += 1
            self._fits(planned)
        seconds = time.thread_time() - began
        self.slowest = max(self.slowest, seconds)
        assert seconds < MOST_SECONDS, f"{seconds:.1f} s"

    def _plan(self, words: list[str]) -> cells.Plan:
        try:
            said = parse_config(words)
        except (AssertionError, ValueError):  # Snakemake's own to refuse
            said = {}
        changes = configuration.typed(said)
        paths = [self.folder / "config.yaml", self.mine]
        asked = configuration.merged(configuration.load(self.mine), changes)
        config = configuration.checked(asked, paths, changes)
        if config["deployment"] == "auto":
            config = {**config, "deployment": "host"}

        def lacking(group: str, cell: dict) -> str | None:
            return machine.missing(cell["hardware"], machine.available(config["available"]))

        here = cells.plan(config, [self.mine], changes, lacking)
        if config["deployment"] == "apptainer":
            for image in images.names():
                images.image(image, config["stack"], config["images"])
        if config["deployment"] == "host":
            lacking = slurm.lacking(CLUSTER, config, paths)
            there = cells.plan(config, [self.mine], changes, lacking)
            slurm.preparing(config, CLUSTER)
            requests = slurm.Requests(there, config, CLUSTER, {})
            for cell in list(there.cells)[:20]:
                if cell not in there.not_run:
                    assert requests.of(cell)["runtime"] >= 1
        for dataset in here.datasets:
            cells.source_digest(dataset, here)
        return here

    def _fits(self, plan: cells.Plan) -> None:
        """What is planned can be written, read by the launcher, and given to a shell."""
        for name, study in plan.studies.items():
            files.canonical_json(study).encode()
            assert all(isinstance(word, str) for word in study["arguments"]), name
        files.canonical_json([plan.datasets, plan.weights, plan.images]).encode()
        for cell in list(plan.cells.values())[:10]:
            configuration.check(json.loads(json.dumps(cell)), "cell", cell["id"])
            assert len(cell["id"]) < 230
            assert re.fullmatch(r"[A-Za-z0-9_.-]+", cell["id"])


@contextlib.contextmanager
def cases() -> Iterator[Case]:
    """A Case in a folder of its own, which is the project's folder meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        case = Case(Path(name))
        with (
            mock.patch.object(configuration, "ROOT", case.folder),
            mock.patch.object(cells, "ROOT", case.folder),
            mock.patch.object(cells, "RESULTS", case.folder / "results"),
        ):
            yield case


# ---------------------------------------------------------------- changing what is right


def _spots(value: Any, keys: tuple = ()) -> Iterator[tuple]:
    """The keys of everything in ``value``."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in items:
        yield (*keys, key)
        if isinstance(part, (dict, list)):
            yield from _spots(part, (*keys, key))


VALUES = st.one_of(
    st.sampled_from(ODD),
    st.text(max_size=20),
    st.integers(),
    st.integers(1, 64),
    st.floats(),
    st.recursive(
        st.sampled_from(ODD[:30]),
        lambda part: (
            st.lists(part, max_size=4) | st.dictionaries(st.text(max_size=6), part, max_size=4)
        ),
        max_leaves=8,
    ),
)


@st.composite
def changed(draw: st.DrawFn, value: dict) -> dict:
    """``value`` with up to four changes, most of them somewhere deep."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 1, 2, 4]))):
        spots = list(_spots(value))
        if not spots:
            break
        *way, last = draw(st.sampled_from(spots))
        parent = value
        for key in way:
            parent = parent[key]
        match draw(st.sampled_from(["replace", "replace", "remove", "add", "rename", "copy"])):
            case "remove":
                del parent[last]
            case "add" if isinstance(parent, dict):
                parent[draw(st.sampled_from(ODD[:40]).filter(_hashable))] = copy.deepcopy(
                    draw(VALUES)
                )
            case "rename" if isinstance(parent, dict):
                name = draw(
                    st.text(max_size=8) | st.sampled_from(["../x", "x" * 300, "a b", "ddp"])
                )
                parent[name] = parent.pop(last)
            case "copy":
                keys = draw(st.sampled_from(spots))
                part: Any = value
                with contextlib.suppress(KeyError, IndexError, TypeError):
                    for key in keys:
                        part = part[key]
                    parent[last] = copy.deepcopy(part)
            case _:
                parent[last] = copy.deepcopy(draw(VALUES))
    return value


def dumped(value: dict) -> str:
    """``value`` as YAML."""
    return yaml.dump(
        value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), allow_unicode=True
    )


def _hashable(value: Any) -> bool:
    return not isinstance(value, (list, dict))


@st.composite
def texts(draw: st.DrawFn, value: dict) -> bytes:
    """``value`` changed, as the bytes of a YAML file in which pieces may stand that do not fit."""
    text = dumped(draw(changed(value)))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2]))):
        place = draw(st.integers(0, len(text)))
        gone = draw(st.sampled_from([0, 0, 1, 30]))
        text = text[:place] + draw(st.sampled_from(FRAGMENTS)) + text[place + gone :]
    return text.encode(errors="surrogatepass")


WORDS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "studies",
                "stack",
                "timeout_seconds",
                "override",
                "hardware",
                "datasets",
                "weights",
                "nodes",
                "x1",
            ]
        ),
        st.one_of(
            st.sampled_from(
                ["[quickstart]", "[]", "nan", "inf", "1e999", "0x1", "true", "null", "{a: b}", "{"]
            ),
            st.sampled_from(["{quickstart: {seeds: [0, 1]}}", "&a [*a]", "[{}, {}]", "paper", "5"]),
            st.sampled_from(FRAGMENTS),
            st.text(min_size=1, max_size=10),
        ),
    ).map("=".join),
    max_size=1,
)


def trial(case: Case, cases: int, **more: Any):
    """A function that tries ``cases`` random cases; ``more`` are settings of hypothesis."""
    name = st.sampled_from(STUDIES)

    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        **more,
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        study = data.draw(name)
        overlaid = {**case.config, "studies": [study]}
        right = st.just(dumped(overlaid).encode())
        mine = data.draw(st.one_of(texts(overlaid), right, right))
        content = data.draw(texts(case.studies[study]))
        case.run(mine, study, content, data.draw(st.one_of(st.just([]), st.just([]), WORDS)))

    return run


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seed", type=int, help="the same cases again")
    arguments = parser.parse_args()
    began = time.monotonic()
    with cases() as case:
        before = peak_mib()
        run = trial(case, arguments.cases, phases=[Phase.generate, Phase.shrink])
        if arguments.seed is not None:
            from hypothesis import seed

            run = seed(arguments.seed)(run)
        run()
        grown = peak_mib() - before
    said = ", ".join(f"{number:,} {what}" for what, number in sorted(case.found.items()))
    print(
        f"{case.found.total():,} cases in {time.monotonic() - began:.0f} s: {said}; no traceback; "
        f"the slowest took {case.slowest:.2f} s, all together {grown:.0f} MiB of memory"
    )
    if grown > MOST_MIB:
        raise ParbenchError(f"tests/fuzz.py: {grown:.0f} MiB are more than {MOST_MIB}")


def peak_mib() -> float:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    run_main(main)
