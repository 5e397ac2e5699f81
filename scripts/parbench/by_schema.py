"""Check result files against rules/schemas/<name>.schema.yaml."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parbench.errors import ParbenchError

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

SCHEMAS = Path(__file__).resolve().parents[2] / "rules" / "schemas"


@functools.cache
def _validator(name: str) -> Validator:
    import jsonschema  # imported late: it takes half a second, and no plan needs it
    import yaml

    schema = yaml.safe_load((SCHEMAS / f"{name}.schema.yaml").read_text(encoding="utf-8"))
    return jsonschema.Draft202012Validator(schema)


def check(value: Any, name: str, where: str, fix: str = "") -> None:
    """Check ``value`` against schema ``name``; ParbenchError names ``where``, key, value, fix."""
    error = next(_validator(name).iter_errors(value), None)
    if error is not None:
        problem = f"{error.json_path}: {error.message[:300]}"
        raise ParbenchError(f"{where}: {problem}{fix and f'; {fix}'}")
