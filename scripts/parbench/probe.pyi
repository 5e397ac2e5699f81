"""Types of probe.py, whose own syntax must be old."""

from typing import TypedDict

LEAST: tuple[int, int]
LABEL: str

class PythonFacts(TypedDict):
    """What a Python has."""

    version: str
    executable: str
    packages: dict[str, str]
    modules: list[str]
    include: str
    records: str
    torch: dict[str, str | None]

def this_python() -> PythonFacts: ...
def label(found: PythonFacts) -> str: ...
