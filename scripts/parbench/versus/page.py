"""Show the result of a comparison as a sentence, as JSON and as one HTML page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parbench.files import write_atomically, write_json
from parbench.reporting.render import page
from parbench.runs.parts import Machine
from parbench.variables import STEADY
from parbench.verdicts import pairs
from parbench.verdicts.pairs import EQUAL, Compared
from parbench.versus.measuring import KINDS, MeasuredRestart, of
from parbench.versus.record import (
    NAME,
    VERSION,
    ComparedProgram,
    KeptRestart,
    KeptSlice,
    ProgramComparison,
)


@dataclass(frozen=True)
class Result:
    """The result of comparing program ``b`` with ``a``: variables added for both, the folder in
    which they run, the restarts, the machine and the cores used."""

    a: ComparedProgram
    b: ComparedProgram
    environment: dict[str, str]
    folder: str
    found: list[MeasuredRestart]
    machine: Machine
    cores: list[int]
    minutes: float

    @property
    def compared(self) -> Compared:
        """B compared with A."""
        return of(self.found, False)

    @property
    def equal_sides(self) -> Compared:
        """A compared with itself."""
        return of(self.found, True)

    @property
    def verdict(self) -> str:
        """Whether B is faster, slower, equal or undecided, and what a decision would take."""
        if self.equal_sides.biased:
            return "void: A beside itself is biased: taking turns favors one side"
        return self.compared.reading(EQUAL)

    @property
    def sentence(self) -> str:
        """A sentence with the verdict, the ratio, its interval and how many pairs of slices were
        disturbed. A ratio without an interval means nothing, so it is left out."""
        series = self.compared.series
        if series.ci_low is None:
            sentence = f"{self.b.label} beside {self.a.label}: {self.verdict}"
        else:
            sentence = (
                f"{self.b.label} is {series.mean:.3f} times as fast as {self.a.label} "
                f"in training (95 % interval {series.ci_low:.3f} to {series.ci_high:.3f}), by "
                f"{series.seeds} restarts: {self.verdict}"
            )
            if not (
                series.undecided(EQUAL) or self.equal_sides.is_equal or self.equal_sides.biased
            ):
                sentence += ", but not firm: A beside itself is not shown to be equal"
        return "; ".join(filter(None, (sentence, pairs.caveats(self.compared))))

    @property
    def equality(self) -> str:
        """A sentence with the result of A beside itself and how many pairs of slices were
        disturbed."""
        sentence = self.equal_sides.equality
        return "; ".join(filter(None, (sentence, pairs.caveats(self.equal_sides))))

    @property
    def record(self) -> ProgramComparison:
        """The record that versus.json stores."""
        series = self.compared.series
        return ProgramComparison(
            schema_version=VERSION,
            a=self.a,
            b=self.b,
            environment=self.environment,
            folder=self.folder,
            machine=self.machine,
            cores=self.cores,
            minutes=self.minutes,
            sentence=self.sentence,
            verdict=self.verdict,
            ratio=None if series.ci_low is None else series.mean,
            low=series.ci_low,
            high=series.ci_high,
            equal_sides=self.equality,
            restarts=[
                KeptRestart(
                    of=KINDS[each.beside_itself],
                    ratio=series.shown(each.restart.value),
                    pairs=each.restart.slice_pairs,
                    disturbed=each.restart.disturbed,
                    started=f"{each.restart.started:%FT%TZ}",
                    finished=f"{each.restart.finished:%FT%TZ}",
                    slices=[KeptSlice.model_validate(one.json()) for one in each.slices],
                )
                for each in self.found
            ],
        )

    def write(self, folder: Path) -> Path:
        """Write versus.json and versus.html into ``folder``; return the page's path."""
        content = self.record.model_dump()
        write_json(folder / NAME, content)
        path = folder / "versus.html"
        write_atomically(
            path, page("versus.html.j2", content | {"variables": STEADY | self.environment})
        )
        return path
