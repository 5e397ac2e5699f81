"""What the words of a report mean: the list at its end, and tables of docs/, are made from this."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import TypedDict

from parbench.launch.interleaving import DISTURBED, SLICE_SECONDS
from parbench.plan.settings import Settings
from parbench.reporting.text import anchor
from parbench.verdicts import terms
from parbench.verdicts.pairs import BIASED, DRIFT, EQUAL, PAUSE
from parbench.verdicts.sequential import ALPHA, IMAGES, MOST

# Keys of report.json whose texts are not shown.
SILENT = ("id", "link", "anchor", "verdict", "tone", "terminal", "judged")


@dataclass(frozen=True)
class Term:
    """A word, or a few, and their meaning; ``words``: the spellings by which a report uses it, as
    regular expressions, if not its name."""

    name: str
    meaning: str
    words: tuple[str, ...] = ()

    def occurs_in(self, text: str) -> bool:
        """Return whether ``text`` has any of its spellings as a word of its own, or its plural."""
        spellings = "|".join(self.words or (re.escape(self.name),))
        return bool(re.search(rf"(?<!\w)({spellings})s?(?!\w)", text, re.IGNORECASE))


class TermEntry(TypedDict):
    """A term in report.json; ``id``: its anchor."""

    id: str
    name: str
    meaning: str


def _percent(share: float) -> str:
    return f"{100 * share:g} %"


GRADES = (
    Term(
        terms.SAME_CONFIGURATION,
        "what was measured is the source's work, on devices that the source used",
    ),
    Term(terms.OTHER_HARDWARE, "what was measured is the source's work, on other devices"),
    Term(
        terms.SCALED_COPY,
        "what was measured is smaller than the source's work, on other data, or otherwise "
        "different, as the study or config.yaml says",
    ),
)
FIRM = Term(
    "firm",
    f"said of a verdict that stays the same if each interval's {_percent(ALPHA)} probability of "
    "error is divided by the number of claims in the report. Its grade is not scaled copy, and it "
    "rests on pairs that do not drift, fewer than half of whose pairs of slices were disturbed, "
    "and for each of whose sides there is an A/A pair that is equal",
)
DISTURBED_PAIR = Term(
    "disturbed",
    "said of a pair of slices: during one of them, other programs or the hypervisor used its "
    f"cores for more than {_percent(DISTURBED)} of its time",
)
DRIFTING = Term(
    "drift",
    "said of a pair whose restarts gave rising or falling ratios in the order in which they were "
    f"measured (Kendall's rank correlation, p below {DRIFT:g}, which fewer than 6 restarts cannot "
    "show). Its interval errs more often, what a decision would take is unknown, and no verdict "
    "on it is firm",
)
SESSION = Term(
    "session",
    f"restarts with gaps of at most {PAUSE.total_seconds() / 3600:g} hours, which "
    "show how this machine was on that day",
    ("(?<!Spark )(?<!idle )session",),
)

# What is run, and how it is compared.
WORK = (
    Term("study", "a table of a paper, or of several, as cells: models × variants × seeds"),
    Term("source", "the publication whose numbers or claims a study compares with its own"),
    Term("variant", "a strategy with options and settings, on some hardware, as a study names it"),
    Term("strategy", "how training uses its devices: eager, ddp, gpipe, ..."),
    Term("eager", "the strategy of plain PyTorch: one process on one device"),
    Term("hardware", "a kind and number of devices, and of nodes; config.yaml names it"),
    Term("device", "a GPU or, on a CPU, one core or as many as the hardware's threads say"),
    Term(
        "cell",
        "one configuration with one seed: what is trained, kept and run again. A restart of a "
        "pair is a cell, too",
    ),
    Term(
        "seed",
        "the number that decides what is random in a cell: the first weights, and the order and "
        "augmentation of its samples",
    ),
    Term(
        "group",
        "the cells that differ only in their seed; of models that are taken together, the cells "
        "of all of them",
    ),
    Term("rank", "one process of a run"),
    Term(
        "pair",
        "two groups that take turns on the same devices, so that their times can be compared",
    ),
    Term("side", "one of the two groups that are compared"),
    Term(
        "turn",
        "a side's steps between two stops while the other side waits: a tenth of a second long, or "
        "one step of the slower side if that takes longer; a second on GPUs and with Horovod",
    ),
    Term(
        "slice",
        f"the turns of one side that add up to about {SLICE_SECONDS:g} s",
    ),
    Term(
        "pair of slices",
        "a slice of each side, measured together, turn by turn; it gives one ratio of their times",
        ("pairs? of slices",),
    ),
    DISTURBED_PAIR,
    Term(
        "restart",
        "one start of both sides of a pair, in processes of their own. It gives one value, from "
        "the ratios of its pairs of slices, and counts as a seed does",
    ),
    DRIFTING,
    SESSION,
    Term(
        "A/A pair (equal sides)",
        "a pair of a group with itself, which must come out equal; it shows whether pairs of its "
        "kind can be trusted, those that measure the same (training, its energy or inference) and "
        "have a side on the same kind and number of devices, threads and nodes. A pair whose sides "
        "differ in these needs one for each side. It is biased, not checked, or equal: shown to be "
        f"equal within {_percent(EQUAL)}",
        ("A/A", "equal sides"),
    ),
    Term(
        "biased",
        f"said of an A/A pair whose {_percent(1 - BIASED)} interval excludes 1: pairs of its kind "
        "decide nothing",
    ),
    Term(
        "not checked",
        "said of an A/A pair that is neither biased nor shown to be equal within "
        f"{_percent(EQUAL)}: no verdict on pairs of its kind is firm",
    ),
    Term("baseline", "the variant that a speedup is measured against"),
    Term(
        "shared",
        "said of a cell: other cells ran at the same time, possibly on the same machine (only its "
        "hardware is recorded), and may have slowed it; of a pair: jobs of others may have run on "
        "its nodes",
        ("shared:", terms.SHARED_CELL),
    ),
    Term("min tail", str(Settings.model_fields["min_tail"].description)),
    # How it is judged.
    Term("series", "a metric's values over seeds or restarts"),
    Term(
        "reproduced",
        f"measured here: mean ± standard deviation, or the range of fewer than {terms.FEWEST} "
        "values; their number is in parentheses",
    ),
    Term(
        "ratio",
        "one number over another: beside a published number, ours over it; of a pair, the "
        "baseline's time over the variant's; in a claim, the first side's number over the second's",
    ),
    Term(
        "interval",
        f"a range that contains the true mean with {_percent(1 - ALPHA)} probability, however "
        f"often you look while values are added. It takes {terms.FEWEST} values, and is wider than "
        "a t-interval, which is for one look",
    ),
    Term(
        "tolerance",
        "how far apart two numbers may be and still count as equal: a share of a number or ratio "
        f"(relative), or a difference of scores (accuracy), but at least {IMAGES} test images",
    ),
    Term(
        "margin",
        "how far a ratio may be from 1, or a difference from 0, and still count as no difference: "
        "the claim's own, or the study's tolerance",
    ),
    Term(
        "bound",
        "the largest gain that the devices of a comparison allow: one side's number of cores or "
        "GPUs over the other's or, if lower, what a pipeline, or models side by side, can gain. "
        "The report draws that of the devices here; that of the source's, beyond which a claim is "
        "impossible, may differ",
    ),
    Term("verdict", "how a number compares with its published value, or whether a claim holds"),
    Term(
        "reading",
        "what a ratio of times, or a difference of accuracies, shows by itself, without regard to "
        "any published value: faster, slower, higher, lower, equal within the tolerance, undecided "
        "or void",
    ),
    Term(
        "void",
        "said of a reading that decides nothing, since an A/A pair of its kind is biased",
        ("void:",),
    ),
    Term("claim", "a sentence of a source"),
    Term("part", "one thing that a claim says, of the models, devices and settings that it names"),
    Term(
        "comparison",
        "what a part of a claim rests on: the ratio (of scores, the difference) of two groups that "
        "are alike in all that the part does not name; for a `contrast`, one such ratio over "
        "another; for `largest`, the largest component in a group",
    ),
    Term(
        "direction",
        "whether an effect is on the claimed side of no effect (a ratio of 1, a difference of 0) "
        "or, where two are claimed to be the same, within the margin",
    ),
    Term("size", "how large an effect is compared with the published one"),
    Term(
        terms.CANNOT_BE_SHOWN,
        "said of a claim's size: the published one is outside the interval, and beyond the bound "
        "of the devices here. In a table, such a number is not comparable",
    ),
    Term(
        "if the estimate stays",
        "what a decision would take if mean and standard deviation do not change: the further "
        "minutes, by how long restarts or seeds took here, and in parentheses how many more of "
        "them",
    ),
    Term(
        terms.TOO_CLOSE,
        f"said of what not even {MOST:,} values would decide if mean and standard deviation do "
        "not change",
    ),
    FIRM,
    Term(
        "grade",
        "how close what was measured is to what the source measured: "
        f"{', '.join(terms.GRADES[:-1])} or {terms.GRADES[-1]}",
    ),
    *GRADES,
    Term("(✓)", "before a verdict: the claim holds in direction, or in part"),
    # What it rests on.
    Term("certificate", "the record that a strategy computes what eager training does"),
    Term(
        "stack",
        "versions of the software, as a folder of lock files: current, or paper, which has those "
        "that the sources used",
    ),
    Term("deployment", "where a cell's software is: in images, on the host, in a user's Python"),
    Term(
        "image",
        "an Apptainer file with a cell's software",
        ("Apptainer image", "Image digest"),
    ),
    Term("evidence", "one machine's results for a study, kept in one file"),
    Term(
        "identity",
        "what a measurement rests on: settings, code, software, data and weights of its cell",
    ),
    Term(
        "code digest",
        "a digest of all modules that a cell can reach, without comments and docstrings",
    ),
)

# ---------------------------------------------------------------- verdicts

UNDECIDED = Term(
    terms.UNDECIDED,
    "said of a claim, a comparison or a reading: neither shown nor refuted, since the interval "
    f"allows both or there are fewer than {terms.FEWEST} values; of a number beside a published "
    f"one: there are fewer than {terms.FEWEST} values. What it would take to decide is given next "
    "to it",
)
OPPOSITE = Term(
    terms.OPPOSITE,
    "the whole interval lies on the other side of no effect (a ratio of 1, a difference of 0) than "
    "what is published or claimed",
)
NOT_RUN = Term(terms.NOT_RUN, "it was not run on this machine; what it needs is given next to it")
NOT_COMPARABLE = Term(
    terms.NOT_COMPARABLE,
    "the numbers measure different things, or an A/A pair of the pair's kind is biased; in a "
    "table, also: the published number is beyond the bound (a claim's size then "
    f"{terms.CANNOT_BE_SHOWN}). The reason is given next to it",
)
NOT_MEASURED = Term(
    terms.NOT_MEASURED,
    "nothing here measures it: a score after some steps of an epoch, a ratio of times that no pair "
    "compares, or one for which no seed or restart has both numbers",
)
# A number beside its published value gets the first of these that applies.
NUMBERS = (
    NOT_RUN,
    NOT_MEASURED,
    Term(terms.NO_PUBLISHED_VALUE, "the source has none for it"),
    NOT_COMPARABLE,
    UNDECIDED,
    OPPOSITE,
    Term(
        terms.AS_PUBLISHED,
        "the whole interval lies within the tolerance t around the published value p; for a ratio, "
        "between p/(1 + t) and p·(1 + t)",
    ),
    Term(
        terms.SMALLER,
        "the whole interval lies below the published value; for a ratio or a difference, closer to "
        "no effect than the published value",
    ),
    Term(
        terms.LARGER,
        "the whole interval lies above the published value; for a ratio or a difference, farther "
        "from no effect than the published value",
    ),
    Term(
        terms.NOT_TOLD_APART,
        "the interval is too wide to say whether the size is as published, smaller or larger; what "
        "it would take to decide is given next to it",
    ),
)
DIRECTIONS = (
    Term(
        terms.AS_CLAIMED,
        "the whole interval lies on the claimed side; where two are claimed to be the same, within "
        "the margin",
    ),
    OPPOSITE,
    Term(
        terms.NO_DIFFERENCE,
        "the whole interval lies within the margin around no effect, and not on the claimed side",
    ),
    Term(
        terms.DIFFERENT,
        "where two are claimed to be the same: the whole interval lies outside the margin; where "
        "one is claimed to be the largest: another is",
    ),
    UNDECIDED,
)
LACKS = (
    NOT_RUN,
    Term(
        terms.FAILED_HERE,
        "a side failed in some restart or seed; how, and in how many, is given next to it",
    ),
    Term(terms.NO_PAIR, "no pair compares the times of the two groups"),
    NOT_COMPARABLE,
    NOT_MEASURED,
    Term(terms.NO_CELLS, "not measured, as the study has no cells that the part is about"),
)
CLAIMS = (
    Term(
        terms.HOLDS,
        "said of a claim: every measured part is as claimed, and each size, where one is stated, "
        "is as published",
    ),
    Term(
        terms.HOLDS_IN_DIRECTION,
        "every measured part is as claimed, but a size is smaller, larger, not told apart, or "
        "cannot be shown here",
    ),
    Term(terms.HOLDS_IN_PART, "some parts are as claimed, others are refuted"),
    Term(
        terms.FAILS,
        "what was measured here, at its scale and on its devices, refutes the claim, and no part "
        "is as claimed. The claim may hold elsewhere",
    ),
    Term(
        terms.IMPOSSIBLE,
        "it is beyond what the source's own devices can give. What is measured here does not "
        "change that",
    ),
    Term(
        terms.CONTRADICTED,
        "the source's own numbers deny it, even if all of them were rounded in its favor. What is "
        "measured here does not change that, and may be as claimed",
        ("contradicted by (its|their) sources?",),
    ),
    UNDECIDED,
    Term(terms.REPORTED, "shown, and not judged: the source asks a question and claims nothing"),
    Term(
        terms.NOT_TESTED, "no part of the claim was measured; what is missing is given next to it"
    ),
    Term(
        "where tested",
        "only some parts of the claim, or comparisons, were measured; how many, and why the others "
        "were not, is in parentheses",
    ),
)
# By the name of their table in docs/; some verdicts are in several.
TABLES = {
    "terms": WORK,
    "numbers": NUMBERS,
    "directions": DIRECTIONS,
    "lacks": LACKS,
    "claims": CLAIMS,
}
ALL = {term.name: term for table in TABLES.values() for term in table}


def sentence(term: Term) -> str:
    """Return a term and its meaning as a sentence of a caption."""
    return f"{term.name.capitalize()}: {term.meaning.rstrip('.')}."


def used(page: str) -> list[TermEntry]:
    """Return the terms that ``page``, a report as HTML, uses, by name."""
    text = _text(page)
    found = [term for term in ALL.values() if term.occurs_in(text)]
    return [
        {"id": anchor("term", term.name), "name": term.name, "meaning": term.meaning}
        for term in sorted(found, key=lambda term: term.name.lower())
    ]


def _text(page: str) -> str:
    """Return what a reader of ``page`` sees or hears."""
    page = re.sub(r"<(style|script)\b.*?</\1>", " ", page, flags=re.DOTALL)
    spoken = re.findall(r'aria-label="([^"]*)"', page)
    shown = re.sub(r"<[^>]*>", " ", page)
    return " ".join(html.unescape(" ".join([shown, *spoken])).split())
