"""The JSON schemas of files that a user writes, as an editor or another program reads them."""

from __future__ import annotations

import pydantic
import yaml

from parbench.plan import places
from parbench.plan.configuration import Config
from parbench.plan.model import json_schema
from parbench.plan.published import Claims
from parbench.plan.study import Study

MADE: dict[str, tuple[type[pydantic.BaseModel], str]] = {
    "config": (Config, "config.yaml, what to run"),
    "study": (Study, "studies/<name>.yaml, a table of a paper as cells"),
    "claims": (
        Claims,
        "studies/published/claims.yaml, what sources say in words, by a name of one's own",
    ),
}


def text(name: str) -> str:
    """The content of rules/schemas/<name>.schema.yaml."""
    made = yaml.safe_dump(json_schema(*MADE[name]), sort_keys=False, allow_unicode=True, width=100)
    return f"# Made from parbench/plan by `python scripts/config.py --schemas`.\n{made}"


def write() -> None:
    """Write them all."""
    for name in MADE:
        (places.SCHEMAS / f"{name}.schema.yaml").write_text(text(name), encoding="utf-8")
