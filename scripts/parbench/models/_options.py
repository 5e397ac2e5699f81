"""Make JSON schemas of model options."""

from __future__ import annotations


def number(description: str, default: int, maximum: int) -> dict:
    """Return the schema of an integer from 1 to ``maximum``."""
    return {
        "description": description,
        "type": "integer",
        "minimum": 1,
        "maximum": maximum,
        "default": default,
    }


def share(description: str, default: float) -> dict:
    """Return the schema of a number in [0, 1)."""
    return {
        "description": description,
        "type": "number",
        "minimum": 0,
        "exclusiveMaximum": 1,
        "default": default,
    }


def numbers(
    description: str, maximum: int, default: list[int], least: int = 4, most: int = 4
) -> dict:
    """Return the schema of ``least`` to ``most`` integers from 1 to ``maximum``."""
    return {
        "description": description,
        "type": "array",
        "items": {"type": "integer", "minimum": 1, "maximum": maximum},
        "minItems": least,
        "maxItems": most,
        "default": default,
    }
