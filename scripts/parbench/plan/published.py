"""Published values (rows of studies/published/*.csv) and claims (claims.yaml beside them)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import pydantic
from pydantic import ConfigDict, Field, RootModel, model_validator
from pydantic_core import PydanticCustomError

from parbench.cell import Options
from parbench.errors import ParbenchError
from parbench.plan.csv_file import read_csv
from parbench.plan.places import shown
from parbench.plan.settings import Layer
from parbench.plan.strict_model import (
    Form,
    Names,
    Number,
    Positive,
    StrictModel,
    Whole,
    problem,
    read_model,
    validated,
    with_optional_fields,
    wrong,
)
from parbench.plan.yaml_file import unknown_value
from parbench.runs.metrics import METRICS
from parbench.runs.operator_metrics import OPERATOR_METRICS
from parbench.words import brief


def _bare(text: object) -> object:
    """Return ``text``; raise a validation error unless it is a bare number."""
    if isinstance(text, str) and not _NUMBER.fullmatch(text):
        raise wrong(
            [],
            f"{brief(text)!r} is not a bare number; write digits with a decimal point, without "
            "unit, %, ±, ~, > or thousands separators, or delete the row",
        )
    return text


_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?")
Bare = pydantic.BeforeValidator(_bare)
BareOrEmpty = pydantic.BeforeValidator(lambda text: text and _bare(text))
Count = Annotated[int, Bare, Field(ge=1, le=1_000_000)]


class Published(pydantic.BaseModel):
    """A row of a CSV file of published values: one value of one metric, with its unit."""

    model_config = ConfigDict(extra="ignore", frozen=True, str_strip_whitespace=True)

    study: str  # the source's name
    document: str = ""
    table: str
    model: str
    strategy: str
    options: str = ""
    hardware: str
    nodes: Count
    devices_per_node: Count
    batch_size: str = ""
    precision: str = ""
    metric: str
    value: Annotated[pydantic.FiniteFloat, Bare]
    unit: str
    published_value: Annotated[str, BareOrEmpty] = ""
    published_unit: str = ""
    note: str = ""
    line: int  # line number in the file

    @property
    def devices(self) -> int:
        """The number of devices on all nodes."""
        return self.nodes * self.devices_per_node

    @property
    def rounding(self) -> float:
        """Half a unit of the last printed digit, in the unit of ``value``."""
        text = self.published_value or "0"
        printed = float(text)
        last_digit = Decimal(text).as_tuple().exponent
        if printed == 0 or not isinstance(last_digit, int):  # a letter if it is not finite
            return 0.0
        return 0.5 * 10.0**last_digit * abs(self.value / printed)

    @property
    def least(self) -> float:
        """The smallest number that rounds to the printed one."""
        return self.value - self.rounding

    @property
    def most(self) -> float:
        """The largest number that rounds to the printed one."""
        return self.value + self.rounding

    @property
    def setting(self) -> tuple[object, ...]:
        """The columns that must agree for two rows to be compared: what is trained, how precisely,
        and on which kind of device. An empty column is a value, too."""
        return self.study, self.model, self.hardware, self.batch_size, self.precision

    @property
    def way(self) -> tuple[object, ...]:
        """The columns in which compared rows may differ: how it is trained, and on how many nodes
        and devices."""
        return self.strategy, self.options, self.nodes, self.devices

    @property
    def configuration(self) -> tuple[object, ...]:
        """Setting and way together, for which a source states one value per metric."""
        return (*self.setting, *self.way)

    @property
    def shown(self) -> str:
        """The value with its unit, such as ``39.2 s``."""
        return f"{self.value:g} {self.unit}"

    @property
    def where(self) -> str:
        """The row's line, document and table, with its value."""
        document_and_table = ", ".join(filter(None, (self.document, self.table)))
        return f"line {self.line} ({document_and_table}: {self.value} {self.unit})"

    def __str__(self) -> str:
        """Return the configuration as text."""
        parts = [self.model, self.strategy, self.options]
        parts += [f"batch {self.batch_size}"] if self.batch_size else []
        return " ".join(filter(None, [*parts, f"on {self.devices}x {self.hardware}"]))

    def is_one_of(self, selection: Mapping[str, object]) -> bool:
        """Return whether each column in ``selection`` has the value there, or one of them."""

        def has(column: str, value: object) -> bool:
            choices = cast(list[object], value if isinstance(value, list) else [value])
            return _spelling(getattr(self, column, None)) in map(_spelling, choices)

        return all(has(column, value) for column, value in selection.items())


def _spelling(value: Any) -> str | float:
    """Return a canonical form of a column's value, so that 16, 16.0 and "16" are equal."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return "" if value is None else str(value)


def rows(path: str | Path, hint: str = "") -> list[Published]:
    """Read a CSV file of published values; ParbenchError names line, column and value, and ends
    with ``hint`` if the file lacks columns."""
    fields = {name: field for name, field in Published.model_fields.items() if name != "line"}
    required = [name for name, field in fields.items() if field.is_required()]
    optional = [name for name in fields if name not in required]
    return [
        validated(Published, {**values, "line": line}, f"{path}: line {line}")
        for line, values in read_csv(path, required, optional, hint)
    ]


# --- claims ---


class Selection(StrictModel):
    """A choice of cells; keys that are left out match any value."""

    strategy: str | Names | None = Field(None, description="strategy, or several")
    options: Options | None = Field(None, description="options of the strategy")
    model: str | None = Field(None, description="model: a file scripts/parbench/models/<name>.py")
    device: Literal["cpu", "gpu"] | None = Field(None, description="kind of device")
    devices: Whole | None = Field(None, description="number of devices on a node")
    nodes: Whole | None = Field(None, description="number of nodes")
    cores: Whole | None = Field(None, description="cores of a CPU device (`threads`)")
    gpu: str | None = Field(None, description="GPU model, as published values name it: A100")
    batch_size: Whole | None = Field(
        None, description="samples of one step over all ranks (`global_batch`)"
    )
    settings: Layer | None = Field(
        None, description="other settings, such as {memory_format: channels_last}"
    )

    @model_validator(mode="after")
    def _selects(self) -> Selection:
        if not self.model_fields_set:
            raise PydanticCustomError("nothing", "should name at least one key")
        for key in self.model_fields_set:
            if getattr(self, key) is None:
                raise wrong([key], "has no value; write one, or remove the key")
        return self

    def __str__(self) -> str:
        """Return the selection as text: ``strategy gpipe, checkpoint always``."""
        return in_words(self.stated())


def in_words(stated: Mapping[str, Any]) -> str:
    """Return the content of a Selection as text: ``strategy gpipe or ddp, checkpoint always``."""
    nested = ("options", "settings")
    named = {key: value for key, value in stated.items() if key not in nested}
    several = named.get("strategy")
    if isinstance(several, list):
        named["strategy"] = " or ".join(cast(list[str], several))
    for key in nested:
        named |= stated.get(key) or {}
    return ", ".join(
        f"{key} {value if isinstance(value, str) else json.dumps(value)}"
        for key, value in named.items()
    )


def _number_or_two(value: object) -> object:
    is_range = isinstance(value, list) and len(cast(list[object], value)) == 2
    if isinstance(value, (list, str)) and not is_range:
        raise PydanticCustomError("size", "should be a number or a list of two")
    return cast(object, value)


Size = Annotated[
    Number | Annotated[list[Number | None], Field(min_length=2, max_length=2)],
    pydantic.BeforeValidator(_number_or_two),
]


class ClaimTest(StrictModel):
    """One thing that a claim says: the ratio (for scores, the difference) of a metric between the
    numerator's and the denominator's cells, which agree in all that neither of the two names."""

    metric: str = Field(
        min_length=1, description="a metric as in tables; with `largest`, its name before the colon"
    )
    about: Selection | None = Field(
        None, description="what both sides have in common: the test says nothing about other cells"
    )
    numerator: Selection | None = Field(
        None, description="the cells whose metric is divided, such as {strategy: gpipe}"
    )
    denominator: Selection | None = Field(
        None, description="the cells by whose metric it is divided, such as {strategy: eager}"
    )
    contrast: Annotated[list[Selection], Field(min_length=2, max_length=2)] | None = Field(
        None,
        description="two selections of cells, such as two models: the ratio among the first "
        "divided by that among the second is judged (for scores, the difference of the "
        "differences)",
    )
    op: Literal[">", "<", "same", "report", "largest"] = Field(
        description="the claimed direction: the ratio is above (>) or below (<) 1, the difference "
        "above or below 0, or the two are the `same`; `report`: show the ratio without judging it; "
        "`largest`: judge which component of the metric (such as an operator) is the largest, see "
        "`expected`"
    )
    expected: Names | None = Field(
        None,
        description="with `largest`: the components of the metric of which one is claimed to be "
        "the largest; default: it is reported, and not judged",
    )
    margin: Positive | None = Field(
        None,
        description="for `same`: the largest difference that still counts as equal: a share for "
        "ratios (0.05: 1/1.05 to 1.05), a difference for scores (at least three test images); "
        "default: the study's `tolerance`, else 0.05 for ratios and 0.01 for scores",
    )
    size: Size | None = Field(
        None,
        description="the ratio, or the difference of scores (0.01 is one percentage point), that "
        "the source states or that follows from its numbers; a range is a list of two, such as "
        "[1.5, 2], or [1.5, null] for 1.5 or more; default: computed from the published values",
    )
    bound: Positive | None = Field(
        None,
        description="the most that the source's own devices can give, as a ratio; default: the "
        "ratio of the devices that the two sides name",
    )
    note: str | None = Field(None, description="what a reader must know about this part")

    @model_validator(mode="after")
    def _fits_its_op(self) -> ClaimTest:
        of_two = self.op != "largest"
        for key in ("numerator", "denominator"):
            if of_two and getattr(self, key) is None:
                raise self.missing(key)
        allowed = {"numerator": of_two, "denominator": of_two, "contrast": of_two, "size": of_two}
        allowed |= {"margin": self.op == "same", "bound": self.op in (">", "<")}
        allowed |= {"expected": not of_two}
        for key, is_allowed in allowed.items():
            if not is_allowed and key in self.model_fields_set:
                raise self.unwanted(key, f"`op: {self.op}`")
        for size in self.sizes[: 1 if self.is_open else None]:
            if not math.isfinite(size):
                raise wrong(["size"], "begins with null; write [1.8, null] for 1.8 or more")
            if self.is_of_differences and not -1 < size < 1:
                problem = (
                    "is not a valid score difference; use a value between -1 and 1 "
                    "(0.01 is one percentage point)"
                )
                raise wrong(["size"], f"value {size} {problem}")
            if not self.is_of_differences and size <= 0:
                raise wrong(["size"], f"value {size} is not a valid ratio; use one above 0")
        metrics = METRICS if of_two else OPERATOR_METRICS
        if self.metric not in metrics:
            raise wrong(["metric"], unknown_value(self.metric, metrics))
        if self.contrast and self.contrast[0] == self.contrast[1]:
            raise wrong(["contrast"], "names the same cells twice; name two different selections")
        return self

    @property
    def sizes(self) -> tuple[float, ...]:
        """The stated size: no number, one, or the two ends of a range (infinity if it is open)."""
        if self.size is None:
            return ()
        ends = self.size if isinstance(self.size, list) else [self.size]
        return tuple(math.inf if end is None else end for end in ends)

    @property
    def is_open(self) -> bool:
        """Whether the source states only a lower bound of the size."""
        return len(self.sizes) == 2 and self.sizes[1] == math.inf

    @property
    def is_of_differences(self) -> bool:
        """Whether scores are compared, by their difference instead of a ratio."""
        metric = METRICS.get(self.metric)
        return self.op != "largest" and metric is not None and metric.is_score

    @property
    def sides(self) -> tuple[Selection, Selection]:
        """The numerator and the denominator; only a test with `largest` has none."""
        assert self.numerator is not None
        assert self.denominator is not None
        return self.numerator, self.denominator

    @property
    def named(self) -> set[str]:
        """The keys that either side names, in which the two may differ."""
        return {key for side in self.sides for key in side.model_fields_set}

    @property
    def named_options(self) -> set[str]:
        """The options that either side names."""
        return {key for side in self.sides for key in side.options or {}}

    @property
    def named_settings(self) -> set[str]:
        """The settings that either side names, except the batch size."""
        return {key for side in self.sides for key in side.settings or {}}

    @property
    def may_differ_in_devices(self) -> bool:
        """Whether the two sides may be trained on different numbers of devices and nodes.

        They may if they name different numbers or different strategies. Sides that differ only in
        options are compared on the same number.
        """
        over, under = self.sides
        return any(
            getattr(over, key) != getattr(under, key) for key in ("strategy", "devices", "nodes")
        )

    @property
    def most(self) -> float:
        """The highest ratio, above 1, that the source's own devices allow.

        It is infinite if the claim does not say how many devices the two sides use.
        """
        if self.bound is not None:
            return self.bound
        metric = METRICS.get(self.metric)
        bounded = metric is not None and metric.bounded_by_devices
        if self.op not in (">", "<") or not bounded or self.contrast:
            return math.inf
        over, under = (_devices(side, self.about) for side in self.sides)
        if over is None or under is None or over == under:
            return math.inf
        return max(over / under, under / over)


def _devices(side: Selection, about: Selection | None) -> int | None:
    """Return how many devices a side has (eager: one); None if the claim does not say."""
    named = [each for each in (side, about) if each]
    devices = next((each.devices for each in named if each.devices), None)
    nodes = next((each.nodes for each in named if each.nodes), 1)
    if devices is None:
        return 1 if side.strategy == "eager" else None
    return devices * nodes


class ClaimPart(with_optional_fields(ClaimTest)):
    """The keys that a part of a claim sets itself; keys that all parts share are under `test`."""


class Claim(StrictModel):
    """A statement that a source makes in words, divided into parts that each say one thing."""

    study: str = Field(description="the source: its name in column `study` of the published values")
    citation: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="the citation of a source without published values; its claim is tested where "
        "a study's `claims` name it",
    )
    claim: str = Field(min_length=1, description="what the source says")
    test: ClaimPart | None = Field(
        None, description="what all `parts` share; without `parts`, the only part"
    )
    parts: Annotated[list[ClaimPart], Field(min_length=1)] | None = Field(
        None, description="what each part says; its keys override those of `test`"
    )
    finding: str | None = Field(
        None,
        description="for a claim without test: the check of `parbench audit` that contradicts it",
    )
    needs: str | None = Field(
        None, description="for a claim without test: what a test would need that parbench lacks"
    )
    note: str | None = Field(None, description="what a reader must know about the claim")
    _tests: tuple[ClaimTest, ...] = ()

    @model_validator(mode="after")
    def _has_whole_parts(self) -> Claim:
        shared = self.test.stated() if self.test else {}
        tests: list[ClaimTest] = []
        for number, part in enumerate(self.parts or ([ClaimPart()] if self.test else [])):
            where: list[str | int] = ["parts", number] if self.parts else ["test"]
            stated = shared | part.stated()
            try:
                tests.append(ClaimTest.model_validate(stated))
            except pydantic.ValidationError as error:
                mistake = problem(ClaimTest, stated, error)
                raise wrong([*where, *mistake.keys], mistake.sentence, mistake.wrong_key) from None
        for key in ("finding", "needs"):
            if tests and getattr(self, key):
                raise self.unwanted(key, "`parts`" if self.parts else "`test`")
        if not (tests or self.finding or self.needs):
            raise self.missing("test")
        self._tests = tuple(tests)
        return self

    @property
    def tests(self) -> tuple[ClaimTest, ...]:
        """The complete tests, one for each part; empty if only the audit can judge the claim."""
        return self._tests


ClaimName = Annotated[
    str,
    Form("^[a-z0-9][a-z0-9-]{0,63}$", "a name of at most 64 lowercase letters, digits and hyphens"),
]


class Claims(RootModel[dict[ClaimName, Claim]]):
    """All claims that sources make in words, by name."""


def claims(*paths: Path) -> dict[str, Claim]:
    """Read the claims of files, by name; ParbenchError names file, key, value, fix."""
    return united({path: read_model(Claims, path).root for path in paths})


def united(claims_by_file: Mapping[Path, dict[str, Claim]]) -> dict[str, Claim]:
    """Return the claims of all files, by name.

    Raises ParbenchError, which names both files, if two have one name.
    """
    found: dict[str, Claim] = {}
    file_by_name: dict[str, Path] = {}
    for path, own in claims_by_file.items():
        if duplicates := sorted(found.keys() & own.keys()):
            name = duplicates[0]
            raise ParbenchError(
                f"{shown(path)}: duplicate claim {name!r}: {shown(file_by_name[name])} has one of "
                "this name; rename one of the two"
            )
        found |= own
        file_by_name |= dict.fromkeys(own, path)
    return found
