"""Judge what sources claim in words, by the cells of one study (docs/verdicts.md).

A claim has parts, each about the models, numbers of devices and hardware that it names. A part
rests on comparisons of two groups; it has a direction and, where the source states one, a size.
Cells of two studies, and so of two machines or scales, are never judged together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from parbench.audit.arithmetic import NO_RUN_GIVES, Certainty, Contradiction
from parbench.plan.published import Claim, ClaimTest
from parbench.runs.metrics import label
from parbench.runs.operator_metrics import PROFILED, is_operator, operator_metric
from parbench.verdicts import judging, pairs, sequential, terms
from parbench.verdicts.comparisons import (
    ClaimBasis,
    Comparison,
    Largest,
    always,
    measuring,
    of_two_groups,
    untested,
)
from parbench.verdicts.controls import control_pairs, sides_without_controls
from parbench.verdicts.groups import Group, Kind, machines_of
from parbench.verdicts.sequential import ALPHA

DENIED = "denied by its own numbers"  # the audit's check
DENIES = "its own numbers deny it"
# What pairs of each kind measure.
KINDS: dict[Kind, str] = {"training": "training", "energy": "energy", "predicting": "inference"}
NOT_DECIDED = "neither held nor refuted by what was measured here"  # and therefore not firm
# If none of a part's comparisons is judged, the part gets the first of these words that any has.
WORST_FIRST = (terms.FAILED_HERE, terms.NO_PAIR, terms.NOT_COMPARABLE, terms.NOT_RUN)


@dataclass(frozen=True)
class JudgedPart:
    """A part of a claim with its comparisons in one study, at least one."""

    test: ClaimTest
    comparisons: tuple[Comparison, ...]
    denied: bool = False  # whether the source's own numbers contradict the part

    @cached_property
    def judged(self) -> list[Comparison]:
        """The comparisons whose direction was measured."""
        return [each for each in self.comparisons if each.is_judged]

    @property
    def is_beyond(self) -> bool:
        """Whether its size is beyond what the source's own devices can give."""
        sizes = [size if size >= 1 else 1 / size for size in self.test.sizes]
        return bool(sizes) and not self.test.is_of_differences and min(sizes) > self.test.most

    @property
    def against_source(self) -> str:
        """The word (terms.AGAINST_SOURCE) for a part that the source itself rules out, whatever is
        measured; else empty."""
        return terms.IMPOSSIBLE if self.is_beyond else terms.CONTRADICTED if self.denied else ""

    @property
    def direction(self) -> str:
        """The direction, or the word for why there is none."""
        verdicts = [each.verdict for each in self.comparisons]
        if terms.REPORTED in verdicts:
            return terms.REPORTED
        if not self.judged:
            return next((word for word in WORST_FIRST if word in verdicts), terms.NOT_MEASURED)
        answer = sequential.of_claim([each.at for each in self.judged])
        if answer == sequential.HOLDS:
            return terms.AS_CLAIMED
        if answer == sequential.FAILS:
            return next(each.verdict for each in self.judged if each.verdict in terms.REFUTED)
        return terms.UNDECIDED

    @property
    def size(self) -> str:
        """The measured size compared with the published one; empty if no comparison has both."""
        sizes = {each.size for each in self.judged} - {""}
        order = (terms.SMALLER, terms.LARGER, terms.NOT_TOLD_APART, terms.CANNOT_BE_SHOWN)
        return next((word for word in (*order, terms.AS_PUBLISHED) if word in sizes), "")

    @property
    def obstacles(self) -> list[str]:
        """What keeps each comparison from being measured, in a few words: ``needs 2x A100``; empty
        if nothing does. For a part that its source itself rules out, only that."""
        ruled_out = [self.against_source] if self.against_source else []
        return ruled_out or [each.obstacle for each in self.comparisons]

    @property
    def obstacle(self) -> str:
        """What keeps the part from being measured; empty if any of its comparisons was measured."""
        found = [each for each in self.obstacles if each]
        return found[0] if len(found) == len(self.obstacles) else ""


@dataclass(frozen=True)
class Judged:
    """A claim with the verdict that the cells of one ``study`` give it, and its parts.

    ``grade``: how close its cells are to the source's (terms.GRADES); ``machines``: the
    fingerprints of the machines that ran them; ``weaknesses``: all reasons why the verdict is not
    firm, none if it is. A firm verdict would not change if the 5 % error were divided among all
    claims of the report, rests on pairs fewer than half of whose pairs of slices were disturbed and
    whose A/A pairs are equal, and is not from a scaled copy.
    """

    name: str
    claim: Claim
    study: str
    parts: tuple[JudgedPart, ...]
    verdict: str
    reason: str
    grade: str
    machines: tuple[str, ...]
    weaknesses: tuple[str, ...] = (NOT_DECIDED,)

    @property
    def firm(self) -> bool:
        """Whether the verdict is firm."""
        return not self.weaknesses

    @property
    def weakness(self) -> str:
        """Why it is not firm; empty if it is."""
        return "; ".join(self.weaknesses)

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """The comparisons of all parts."""
        return [each for part in self.parts for each in part.comparisons]

    @property
    def has_cells(self) -> bool:
        """Whether the study has any cells that the claim is about."""
        return any(each.ratios or each.group for each in self.comparisons)

    @cached_property
    def obstacles(self) -> list[str]:
        """The obstacles of each part's comparisons; empty where there is none."""
        return [obstacle for part in self.parts for obstacle in part.obstacles]

    @property
    def coverage(self) -> str:
        """What the verdict rests on: ``1 comparison: vit``, ``3 comparisons of 2 models``; or how
        many parts, or comparisons of parts with several, were measured, of which models, and what
        kept the others from it: ``2 of 4 parts: vit; others: no pair 1, needs 2x A100 1``. Empty
        without parts."""
        total, measured = len(self.obstacles), sum(not obstacle for obstacle in self.obstacles)
        if measured < total:
            counted = f"{measured} of {self._counted(total)}{self._models * bool(measured)}"
            return f"{counted}; others: {self._others}"
        models = self._models.replace(", ", " of ")
        return f"{_number(measured, 'comparison')}{models}" * bool(measured)

    def _counted(self, total: int) -> str:
        """Return the ``total`` of parts or, where a part has several, of comparisons."""
        return _number(total, "part" if total == len(self.parts) else "comparison")

    @property
    def _models(self) -> str:
        """The models that were measured: ``: vit`` or ``, 2 models``."""
        parts = [part for part in self.parts if not part.against_source]
        found = [each for part in parts for each in part.comparisons if not each.obstacle]
        models = dict.fromkeys(side.model for each in found for side in each.groups)
        shown = " over ".join(models) if len(found) == 1 or len(models) == 1 else ""
        return f": {shown}" if shown else f", {_number(len(models), 'model')}"

    @property
    def _others(self) -> str:
        obstacles = Counter(obstacle for obstacle in self.obstacles if obstacle)
        return ", ".join(f"{obstacle} {number}" for obstacle, number in obstacles.items())

    @property
    def _directions(self) -> str:
        """How many parts, or comparisons, came out how: ``4 as claimed, 2 undecided of 6 parts, 2
        models``; empty if there is only one, or all are undecided."""
        parts = [part for part in self.parts if not part.against_source and part.judged]
        found = [part.direction for part in parts]
        if len(self.obstacles) != len(self.parts):
            found = [each.verdict for part in parts for each in part.judged]
        counts = Counter(found)
        counted = ", ".join(f"{counts[word]} {word}" for word in terms.DIRECTIONS if counts[word])
        others = f"; others: {self._others}" * any(self.obstacles)
        total = len(self.obstacles)
        if set(found) == {terms.UNDECIDED}:  # the verdict already says so
            return ""
        return f"{counted} of {self._counted(total)}{self._models}{others}" if total > 1 else ""

    @property
    def caveats(self) -> str:
        """How many of the pairs of slices behind the verdict were disturbed, if at least half were,
        and how many pairs drift; empty if neither."""
        parts = [part for part in self.parts if not part.against_source]
        ratios = (ratio for part in parts for each in part.judged for ratio in each.ratios)
        compared = {id(ratio.pair): ratio.pair for ratio in ratios if ratio.pair}.values()
        drifting = sum(each.drifts for each in compared)
        texts = (
            pairs.disturbance(compared) if pairs.mostly_disturbed(compared) else "",
            f"{drifting} of {len(compared)} pairs drift" if drifting else "",
        )
        return "; ".join(filter(None, texts))

    @property
    def sentence(self) -> str:
        """The verdict with its scope and caveats:
        ``holds where tested (2 of 4 parts; others: no pair 2)``."""
        return "; ".join(filter(None, (self._scoped, self.caveats)))

    @property
    def _scoped(self) -> str:
        counted = self.coverage
        if self.verdict in (terms.HOLDS_IN_PART, terms.UNDECIDED) and self._directions:
            return f"{self.verdict} ({self._directions})"
        if self.verdict in terms.AGAINST_SOURCE:
            return f"{self.verdict} ({self.reason})"
        if self.verdict == terms.NOT_TESTED and self.parts:
            return f"{self.verdict} ({self._others})"
        if not counted:
            return self.verdict
        tested = " where tested" * (any(self.obstacles) and self.verdict != terms.UNDECIDED)
        return f"{self.verdict}{tested} ({counted})"

    @property
    def sentence_with_reason(self) -> str:
        """The sentence, followed by the reason unless the sentence already contains it."""
        within = "(" in self._scoped and self.verdict in (*terms.AGAINST_SOURCE, terms.NOT_TESTED)
        reason = f": {self.reason}" if self.reason and not within else ""
        return "; ".join(filter(None, (self._scoped + reason, self.caveats)))


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def judge(
    claims: Mapping[str, Claim],
    studies: Collection[ClaimBasis],
    found: Collection[Contradiction],
) -> list[Judged]:
    """Judge the claims that each of ``studies`` tests; ``found``: the audit's findings on these.

    Several studies of one source divide its claims: each study gets those that it has cells for,
    and the first one also those that none has cells for.
    """
    by_name = {study.name: study for study in studies}
    judged: list[Judged] = []
    for name, claim in claims.items():
        asked = [study for study in studies if study.source.name == claim.study]
        asked += [study for study in studies if name in study.claims and study not in asked]
        of_claim = [_judged(name, claim, study, found) for study in asked]
        judged += [each for each in of_claim if each.has_cells] or of_claim[:1]
    order = list(by_name)
    judged.sort(key=lambda each: order.index(each.study))
    number = len(judged)
    return [
        replace(each, weaknesses=tuple(_weaknesses(each, by_name[each.study], number)))
        for each in judged
    ]


def _judged(name: str, claim: Claim, study: ClaimBasis, found: Collection[Contradiction]) -> Judged:
    denied = {each.part for each in found if each.check == DENIED}
    parts = tuple(
        JudgedPart(test, tuple(_comparisons(test, study)), (name, number) in denied)
        for number, test in enumerate(claim.tests)
    )
    verdict, reason = _verdict(parts) if parts else _by_audit(claim, found)
    comparisons = [each for part in parts for each in part.comparisons]
    groups = [group for each in comparisons for group in each.groups]
    machines = machines_of(groups)
    grade = _grade(groups or study.groups, study)
    return Judged(name, claim, study.name, parts, verdict, reason, grade, machines)


def _grade(groups: Collection[Group], study: ClaimBasis) -> str:
    """Return how close ``groups`` are to what the source measured (terms.GRADES)."""
    if any(group.differs or judging.scale_difference(group, study.about) for group in groups):
        return terms.SCALED_COPY
    if all(study.source.is_on_its_hardware(group) for group in groups):
        return terms.SAME_CONFIGURATION
    return terms.OTHER_HARDWARE


def _comparisons(test: ClaimTest, study: ClaimBasis) -> list[Comparison]:
    return _largest(test, study) if test.op == "largest" else of_two_groups(test, study)


# ---------------------------------------------------------------- one group at a time


def _largest(test: ClaimTest, study: ClaimBasis) -> list[Comparison]:
    """Return the largest component of a metric in each group, as measured and as published."""
    metric = test.metric
    printed = {row.metric for row in study.source.rows if row.metric.startswith(f"{metric}:")}
    comparisons: list[Comparison] = []
    groups = measuring(study.groups, metric, test.about, profiled=True)
    for group in (each for each in groups if _may_measure(each, metric)):
        means = {
            name: mean for (group_id, name), mean in study.means.items() if group_id == group.id
        }
        measured_components = {
            name: mean for name, mean in means.items() if name.startswith(f"{metric}:")
        }
        printed_components = {
            name: published.value
            for name in sorted(printed)
            if (published := study.source.find(group, operator_metric(name)))
        }
        verdict, reasons, answer = terms.REPORTED, (), terms.UNDECIDED
        if not measured_components:
            verdict = terms.NOT_RUN if group.not_run else terms.NOT_MEASURED
            no_component = f"no cell measures {metric}" if group.runs else terms.NO_VALUES
            reasons = (group.not_run or no_component,)
        published, measured = map(_largest_component, (printed_components, measured_components))
        if test.expected and measured:
            is_expected = measured in test.expected
            verdict = terms.AS_CLAIMED if is_expected else terms.DIFFERENT
            answer = sequential.HOLDS if is_expected else sequential.FAILS
            seeds = f"{len(group.ok)} seed{'s' * (len(group.ok) != 1)}"
            reasons = (f"judged by the mean of {seeds}, without an interval",)
        if test.expected and (clock := _other_clock(study, group, metric)):
            verdict, reasons, answer = terms.NOT_COMPARABLE, (clock,), terms.UNDECIDED
        if printed_components or measured_components or group.not_run:
            made = Comparison(study.name, verdict, reasons, group=group, at=always(answer))
            comparisons.append(replace(made, largest=Largest(published, measured)))
    return comparisons or [untested(study, f"no cell of {study.name} measures {metric}")]


def _largest_component(sizes: Mapping[str, float]) -> str | None:
    """Return the component with the largest of ``sizes`` (by <metric>:<component>); None if
    empty."""
    largest = max(sizes, key=lambda name: sizes[name], default=None)
    return largest and largest.partition(":")[2]


def _may_measure(group: Group, metric: str) -> bool:
    """Return whether cells of the group can have components of ``metric``: only profiled cells have
    times of operators."""
    return not is_operator(metric) or group.training.profile in PROFILED


def _other_clock(study: ClaimBasis, group: Group, metric: str) -> str:
    """Return why a group's operators cannot be compared with what the source prints for its model:
    all of that is of devices whose operator times come from a different timer of the profiler; else
    empty."""
    printed = {
        row.hardware
        for row in study.source.rows
        if row.model == group.model and row.metric.startswith(f"{metric}:")
    }
    kinds = {{"CPU": "cpu", "MPS": "mps"}.get(name, "cuda") for name in printed}
    if not kinds or group.hardware.device in kinds:
        return ""
    kinds_printed = ", ".join(sorted(printed))
    return f"the source prints {group.model} only on {kinds_printed}, timed by other clocks"


# ---------------------------------------------------------------- verdicts


def _verdict(parts: Collection[JudgedPart]) -> tuple[str, str]:
    """Return a claim's verdict, given its parts, and what it takes to decide the undecided ones."""
    if all(part.against_source for part in parts):
        return _ruled_out(parts)
    parts = [part for part in parts if not part.against_source]
    directions = [part.direction for part in parts]
    judged = [part for part in parts if part.judged]
    if not judged:
        reasons = dict.fromkeys(part.obstacle for part in parts if part.obstacle)
        word = terms.REPORTED if terms.REPORTED in directions else terms.NOT_TESTED
        return word, "; ".join(reasons)
    answer = sequential.of_claim([each.at for part in judged for each in part.judged])
    if answer == sequential.FAILS:
        word = terms.HOLDS_IN_PART if terms.AS_CLAIMED in directions else terms.FAILS
        return word, _outlooks(judged)
    if answer == terms.UNDECIDED:
        return terms.UNDECIDED, _outlooks(judged) or _against(judged)
    sizes = dict.fromkeys(part.size for part in judged)
    others = [f"size {size}" for size in sizes if size not in ("", terms.AS_PUBLISHED)]
    return terms.HOLDS_IN_DIRECTION if others else terms.HOLDS, ", ".join(others)


def _ruled_out(parts: Collection[JudgedPart]) -> tuple[str, str]:
    """Return the verdict and reason of a claim all of whose ``parts`` the source rules out. One
    part beyond its devices makes the claim impossible."""
    beyond = [part.test.most for part in parts if part.is_beyond]
    if not beyond:
        return terms.CONTRADICTED, DENIES
    gain = f"give at most {max(beyond):.3g} times for the same work"
    gain = "cannot do the same work faster" if max(beyond) == 1 else gain
    denied = len(parts) - len(beyond)
    others = f"; its own numbers deny {denied} of {len(parts)} parts" * bool(denied)
    return terms.IMPOSSIBLE, f"the source's own devices {gain}{others}"


def _outlooks(parts: Collection[JudgedPart]) -> str:
    """Return what it takes to decide the undecided comparisons of ``parts``, which are named where
    it differs."""
    subjects_by_outlook: dict[str, list[str]] = {}
    several = len({part.test.metric for part in parts}) > 1
    for part in parts:
        metric = f"{label(part.test.metric)} of " * several
        for each in part.judged:
            if each.verdict == terms.UNDECIDED and each.measured is not None:
                outlook = each.measured.outlook(each.boundaries)
                subjects_by_outlook.setdefault(outlook, []).append(f"{metric}{_sides(each)}")
    if len(subjects_by_outlook) == 1:
        return next(iter(subjects_by_outlook))
    return "; ".join(
        f"{' and '.join(dict.fromkeys(subjects))}: {outlook}"
        for outlook, subjects in subjects_by_outlook.items()
    )


def _sides(each: Comparison) -> str:
    """Return what is compared: ``swin eager over ddp``."""
    return ", against ".join(
        f"{over.model} {over.variant} over "
        f"{f'{under.model} ' * (over.model != under.model)}{under.variant}"
        for over, under in ((ratio.over, ratio.under) for ratio in each.ratios)
    )


def _against(parts: Collection[JudgedPart]) -> str:
    """Return how many more values would let the contradicting comparisons refute the claim: among
    many comparisons, a single one might contradict it by chance."""
    comparisons = [each for part in parts for each in part.judged]
    takes = [
        each.measured.outlook(each.boundaries, ALPHA / len(comparisons))
        for each in comparisons
        if each.verdict in terms.REFUTED and each.measured is not None and each.boundaries
    ]
    return (
        f"too many comparisons for so little evidence against it: {'; '.join(takes)}"
        if takes
        else ""
    )


def _weaknesses(judged: Judged, study: ClaimBasis, claims: int) -> Iterator[str]:
    """Yield the reasons why a verdict in a report of so many ``claims`` is not firm."""
    tested = [each for part in judged.parts for each in part.judged]
    if not tested or judged.verdict not in (terms.HOLDS, terms.HOLDS_IN_DIRECTION, terms.FAILS):
        yield NOT_DECIDED
        return
    if any(each.scaled for each in tested):
        yield "from a scaled copy"
    if not all(each.ratios for each in tested):
        yield "based on the largest component, which has no interval"
    timed = [(ratio, ratio.pair) for each in tested for ratio in each.ratios if ratio.pair]
    kinds = [ratio.sides_and_kind for ratio, _ in timed]
    yield from dict.fromkeys(
        f"no A/A pair of {KINDS[kind]} on {side.describe_hardware()}"
        for sides, kind in kinds
        for side in sides_without_controls(study.groups, sides, kind)
    )
    controls = (pair for each in kinds for _, pair in control_pairs(study.groups, *each))
    if not all(pair.is_equal for pair in controls):
        yield "based on pairs whose A/A pair is not shown to be equal"
    if any(pairs.mostly_disturbed([pair]) for _, pair in timed):
        yield "based on a pair with half or more of its pairs of slices disturbed"
    if any(pair.drifts for _, pair in timed):
        yield "based on a pair that drifts"
    answer = sequential.of_claim([each.at for each in tested], ALPHA / claims)
    if answer == terms.UNDECIDED:
        yield "not clear enough among all claims"


def _by_audit(claim: Claim, found: Collection[Contradiction]) -> tuple[str, str]:
    """Return the verdict and reason of a claim without a test, which only the audit can judge."""
    own = [each for each in found if (each.study, each.check) == (claim.study, claim.finding)]
    if any(each.certainty is Certainty.CERTAIN for each in own):
        if claim.finding in NO_RUN_GIVES:
            return terms.IMPOSSIBLE, f"no run on its devices gives it: {claim.finding}"
        return terms.CONTRADICTED, f"{DENIES}: {claim.finding}"
    if any(each.certainty is Certainty.LIKELY for each in own):
        return terms.NOT_TESTED, f"its own numbers are likely to contradict it: {claim.finding}"
    needs = f"needs {claim.needs}" if claim.needs else "its own numbers do not contradict it"
    return terms.NOT_TESTED, needs
