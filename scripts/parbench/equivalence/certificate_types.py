"""What a certificate contains, and the part of a study's plan that decides what is certified.

For type checkers only. A plan is read here as JSON, since images for training have no pydantic.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

from parbench.cell import Fields, Options
from parbench.machine import Description


class Combination(TypedDict):
    """The part of a cell that a certificate must match, besides its arithmetic."""

    model: str
    strategy: str
    options: Options
    device: str
    devices: int
    tuned: Fields  # settings for speed


class CertifiedEntry(Combination):
    """What is certified for some cells of a plan."""

    precision: str
    batch_norm: str


class RowStart(Combination):
    """What all rows of a trial have in common."""

    arithmetic: str
    batch_norm: str
    batch: int
    code: str
    bound: float
    reason: str | None


class CertificateRow(RowStart):
    """A quantity that was compared with eager training; ``error``: None if it is not finite."""

    quantity: str
    error: float | None
    verdict: str


class CertificateEnvironment(TypedDict):
    """Where trials ran."""

    python: str
    packages: dict[str, str]
    machine: Description


class CertificateContent(TypedDict):
    """A certificate without its digest."""

    schema_version: int
    place: str
    environment: CertificateEnvironment
    rows: list[CertificateRow]


class CertificateJson(CertificateContent):
    """A certificate."""

    digest: str


class GroupOfPlan(TypedDict):
    """A group of a plan, as far as it decides what is certified."""

    model: str
    network: NotRequired[str | None]
    strategy: str
    options: Options
    hardware: Fields
    training: Fields
    not_run: str | None
