"""What the doctor finds: one check each, and the table that people read."""

from __future__ import annotations

from dataclasses import dataclass

OK, LIMITED, MISSING = "ok", "limited", "missing"


@dataclass(frozen=True)
class Finding:
    """One check: what was found; where that is not all, what it costs and what mends it."""

    check: str
    state: str
    found: str
    costs: str = ""
    mend: str = ""
    essential: bool = False  # missing: nothing runs at all


def table(findings: list[Finding]) -> str:
    """The findings for people: one line each, and two more where something is lacking."""
    width = max(len(finding.check) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.check:<{width}}  {finding.state:<7}  {finding.found}")
        for word, text in (("costs", finding.costs), ("mend", finding.mend)):
            if text:
                lines.append(f"{'':<{width}}  {'':<7}  {word + ':':<6} {text}")
    return "\n".join(lines)
