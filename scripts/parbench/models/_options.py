"""JSON schemas of options that several models have."""

from __future__ import annotations


def number(description: str, default: int, maximum: int) -> dict:
    """A whole number from 1 to ``maximum``."""
    return {
        "description": description,
        "type": "integer",
        "minimum": 1,
        "maximum": maximum,
        "default": default,
    }


def share(description: str, default: float) -> dict:
    """A number from 0 to below 1."""
    return {
        "description": description,
        "type": "number",
        "minimum": 0,
        "exclusiveMaximum": 1,
        "default": default,
    }


def four(description: str, maximum: int, default: list[int]) -> dict:
    """Four whole numbers from 1 to ``maximum``: one for each resolution."""
    return {
        "description": description,
        "type": "array",
        "items": {"type": "integer", "minimum": 1, "maximum": maximum},
        "minItems": 4,
        "maxItems": 4,
        "default": default,
    }
