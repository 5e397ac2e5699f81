"""The shape of a study's tables, as its file states them."""

from __future__ import annotations

from collections.abc import Mapping


def holds(table: Mapping, group: Mapping) -> bool:
    """Whether ``group`` of a plan is a row of ``table``: its variant, of one of its models.

    Several models together are a row only where the table names them.
    """
    models = table.get("models", [] if "members" in group else [group["model"]])
    variants = table.get("variants", [group["variant"]])
    return group["model"] in models and group["variant"] in variants
