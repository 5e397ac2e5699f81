"""Print JSON schemas of the files that users write, and of results, for editors and programs."""

from __future__ import annotations

import pydantic
import yaml
from pydantic.json_schema import GenerateJsonSchema

from parbench.by_schema import SCHEMAS
from parbench.plan.configuration import Config
from parbench.plan.published import Claims
from parbench.plan.study import Study
from parbench.runs.records import CellRun, PairRun

MADE: dict[str, tuple[type[pydantic.BaseModel], str]] = {
    "config": (Config, "config.yaml, what to run"),
    "study": (Study, "studies/<name>.yaml, a table of a paper as cells"),
    "claims": (
        Claims,
        "studies/published/claims.yaml, what sources say in words, by the name of the claim",
    ),
    "metrics": (CellRun, "metrics.json, what one run of one cell measured"),
    "pair": (PairRun, "metrics.json of a pair, one restart of sides that took turns"),
}


class _Untitled(GenerateJsonSchema):
    """A generator that omits the titles pydantic makes from field names."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """Return False."""
        return False


def text(name: str) -> str:
    """Return the content of rules/schemas/<name>.schema.yaml."""
    kind, title = MADE[name]
    schema = kind.model_json_schema(schema_generator=_Untitled)
    header = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    body = yaml.safe_dump(
        {**header, **schema, "title": title}, sort_keys=False, allow_unicode=True, width=100
    )
    command = "PYTHONPATH=scripts python -m parbench.plan.schemas"
    return f"# Made from {kind.__module__} by `{command}`.\n{body}"


if __name__ == "__main__":
    for each in MADE:
        (SCHEMAS / f"{each}.schema.yaml").write_text(text(each), encoding="utf-8")
