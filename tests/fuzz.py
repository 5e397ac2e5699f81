"""Random configurations and studies: planned, or refused in one sentence: `make fuzz`.

Each case is a file laid over config.yaml, and a study, changed at random from what is right. It
goes the way of a run: read, checked, planned. `ARGS="--cases 500"` tries fewer.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import datetime
import json
import math
import re
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

from parbench import files, machine
from parbench.deploy import images
from parbench.errors import ParbenchError, run_main
from parbench.plan import by_schema, cells, places
from parbench.plan import config as configuration
from parbench.plan.yaml_file import read_yaml

CASES = 10_000
MOST_SECONDS = 10.0  # of a processor, for one case
STUDIES = ("quickstart", "gorantla2024-cpu", "gorantla2024")

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
    *("&a ", "*a", "&a [*a]", "!!python/object/apply:os.system ['true']", "!!binary '='", "!x "),
    *("{", "}", "[", "]", ": ", "- ", "\n", "\n  ", "#", "'", '"', "|", ">", "%", "@", "? "),
    *("9" * 5000, "2024-13-01", "0b_", "0x_", ".nan", "1:61:61", '"\\x1b[2J"', '"\\ud800"', "\t"),
    *("\x00", "\x1b", "\ufeff", "\u2028", "---\n", "...\n", "<<: *a", "[" * 50_000, "? [a]\n: b\n"),
]


class Case:
    """Where cases are read from: a copy of what the checkout states, one file of it changed."""

    def __init__(self, folder: Path):
        self.folder, self.mine = folder, folder / "mine.yaml"
        for name in ("containers", "scripts", "rules"):
            (folder / name).symlink_to(places.ROOT / name)
        shutil.copytree(places.ROOT / "studies", folder / "studies")
        (folder / "config.yaml").write_bytes((places.ROOT / "config.yaml").read_bytes())
        self.config = read_yaml(folder / "config.yaml")
        self.studies = {name: read_yaml(folder / "studies" / f"{name}.yaml") for name in STUDIES}
        # What no study of ours says, and a user's may.
        self.studies["quickstart"]["models"]["resnet18"]["pretrained"] = True
        self.slowest = 0.0
        self.found: Counter[str] = Counter()

    def run(self, mine: bytes, name: str, study: bytes) -> None:
        """Try a case; AssertionError where it is neither planned nor refused as it should be."""
        self.mine.write_bytes(mine)
        (self.folder / "studies" / f"{name}.yaml").write_bytes(study)
        began = time.thread_time()
        try:
            self._fits(self._plan())
        except ParbenchError as error:
            self.found["refused"] += 1
            said = str(error)
            assert said.isprintable(), said
            assert len(said) < 1500, said
            assert re.match(r"\S.*: |unknown|\w+ needs", said), said
        else:
            self.found["planned"] += 1
        seconds = time.thread_time() - began
        self.slowest = max(self.slowest, seconds)
        assert seconds < MOST_SECONDS, f"{seconds:.1f} s"

    def _plan(self) -> cells.Plan:
        asked = configuration.load(self.mine)
        config = configuration.checked(asked, [self.folder / "config.yaml", self.mine])
        if config["deployment"] == "auto":
            config = {**config, "deployment": "host"}
        available = machine.available(config["available"])
        lacking = mock.Mock(side_effect=lambda _, cell: machine.missing(cell.hardware, available))
        plan = cells.plan(config, [self.mine], lacking=lacking)
        if config["deployment"] == "apptainer":
            for image in images.names():
                images.image(image, config["stack"], config["images"])
        for dataset in plan.datasets:
            cells.source_digest(dataset, plan)
        return plan

    def _fits(self, plan: cells.Plan) -> None:
        """What is planned can be written, read by the launcher, and given to a shell."""
        for study in plan.studies.values():
            files.canonical_json(study).encode()
        files.canonical_json([plan.datasets, plan.weights, plan.images]).encode()
        for cell in list(plan.cells.values())[:10]:
            by_schema.check(json.loads(json.dumps(cell.json())), "cell", cell.id)
            assert len(cell.id) < 230
            assert re.fullmatch(r"[A-Za-z0-9_.-]+", cell.id)


@contextlib.contextmanager
def cases() -> Iterator[Case]:
    """A Case in a folder of its own, which is the project's folder meanwhile."""
    with tempfile.TemporaryDirectory() as name:
        case = Case(Path(name))
        with (
            mock.patch.object(places, "ROOT", case.folder),
            mock.patch.object(places, "RESULTS", case.folder / "results"),
        ):
            yield case


# --- changing what is right ---


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
        lambda part: st.lists(part, max_size=4) | st.dictionaries(st.text(max_size=6), part),
        max_leaves=8,
    ),
)
KEYS = st.sampled_from([odd for odd in ODD[:40] if not isinstance(odd, (list, dict))])
NAMES = st.text(max_size=8) | st.sampled_from(["../x", "x" * 300, "a b", "ddp"])


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
        match draw(st.sampled_from(["replace", "replace", "remove", "add", "rename"])):
            case "remove":
                del parent[last]
            case "add" if isinstance(parent, dict):
                parent[draw(KEYS)] = copy.deepcopy(draw(VALUES))
            case "rename" if isinstance(parent, dict):
                parent[draw(NAMES)] = parent.pop(last)
            case _:
                parent[last] = copy.deepcopy(draw(VALUES))
    return value


def dumped(value: dict) -> str:
    """``value`` as YAML."""
    return yaml.dump(
        value, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), allow_unicode=True
    )


@st.composite
def texts(draw: st.DrawFn, value: dict) -> bytes:
    """``value`` changed, as the bytes of a YAML file in which pieces may stand that do not fit."""
    text = dumped(draw(changed(value)))
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2]))):
        place = draw(st.integers(0, len(text)))
        gone = draw(st.sampled_from([0, 0, 1, 30]))
        text = text[:place] + draw(st.sampled_from(FRAGMENTS)) + text[place + gone :]
    return text.encode(errors="surrogatepass")


def trial(case: Case, cases: int, **more: Any):
    """A function that tries ``cases`` random cases; ``more`` are settings of hypothesis."""

    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        **more,
    )
    @given(st.data())
    def run(data: st.DataObject) -> None:
        study = data.draw(st.sampled_from(STUDIES))
        overlaid = {**case.config, "studies": [study]}
        right = st.just(dumped(overlaid).encode())
        mine = data.draw(st.one_of(texts(overlaid), right, right))
        case.run(mine, study, data.draw(texts(case.studies[study])))

    return run


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=CASES)
    arguments = parser.parse_args()
    with cases() as case:
        trial(case, arguments.cases, phases=[Phase.generate, Phase.shrink])()
    said = ", ".join(f"{number:,} {what}" for what, number in sorted(case.found.items()))
    print(f"{said}; no traceback; the slowest took {case.slowest:.2f} s")


if __name__ == "__main__":
    run_main(main)
