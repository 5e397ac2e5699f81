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


def numbers(
    description: str, maximum: int, default: list[int], least: int = 4, most: int = 4
) -> dict:
    """``least`` to ``most`` whole numbers from 1 to ``maximum``: one for each resolution."""
    return {
        "description": description,
        "type": "array",
        "items": {"type": "integer", "minimum": 1, "maximum": maximum},
        "minItems": least,
        "maxItems": most,
        "default": default,
    }
