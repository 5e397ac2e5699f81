"""Read the numbers of a table as a source prints it: Markdown, plain text, tabs or CSV.

One line maps its columns: ``Model=model, GPUs=devices, img/s=samples_per_second``. Only what is
unambiguous is read; everything else is an error with file, line and column.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

from parbench.audit.arithmetic import RATIOS, SCORES, quantity_of
from parbench.errors import ParbenchError
from parbench.files import read_text
from parbench.plan.published import Published
from parbench.runs.metrics import METRICS
from parbench.words import brief, count, nearest

# Columns that say what was measured; every other name is a metric.
KEYS = (
    *("model", "strategy", "options", "hardware", "nodes", "devices", "batch_size", "precision"),
    *("batch_per_device", "note"),
)
COUNTS = ("nodes", "devices")
UNNAMED_MODEL = "the model"  # where no column states it
UNNAMED = "device"  # hardware that no column states
WITHOUT_NUMBER = {"", "-", "--", "–", "—", "n/a", "na", "none", "nan", "?", "oom", "out of memory"}
_MARKS = "†‡§¶*¹²³⁴⁵⁶⁷⁸⁹⁰ᵃᵇᶜ"  # of footnotes
_MARK = rf"[{re.escape(_MARKS)}]|\^\w\^?|\[\^[^\]]+\]|<sup>[^<+−-]+</sup>"
_FOOTNOTES = re.compile(rf"(?<=\S)\s*({_MARK}|\[\w{{1,2}}\])+$")
_FOOTNOTES_OF_HEADER = re.compile(rf"(?<=\S)\s*({_MARK})+$")  # [s] is a unit there
_POWER_OF_TEN = re.compile(r"(?<![\d.,])10\s*([¹²³⁴⁵⁶⁷⁸⁹⁰]+|\^\d\^?|<sup>\s*\d+\s*</sup>)")
_SPREAD = re.compile(r"\s*(?:±|\+/-|\+-|\\pm)\s*")
_NUMBER = re.compile(
    r"(?P<sign>[-+−]?)(?P<digits>[0-9][0-9.,'’ \u00a0\u2009\u202f]*|\.[0-9]+)"
    r"(?P<power>[eE][-+]?[0-9]{1,3})?\s*(?P<unit>%|[a-zA-Zµ×][a-zA-Zµ×/ ]*)?"
)
# No thousands begin with 0: 0,912 and 0.912 are decimals.
_GROUPS = {",": r"[1-9]\d{0,2}(,\d{3})+", ".": r"[1-9]\d{0,2}(\.\d{3})+"}
_SEPARATOR = re.compile(r"[\s|:+=-]*")  # of header and rows
_BLANKS = "'’ \u00a0\u2009\u202f"  # between thousands


class Described(TypedDict):
    """The fields of a row that say what was measured."""

    model: str
    strategy: str
    options: str
    hardware: str
    nodes: int
    devices_per_node: int
    batch_size: str
    precision: str
    note: str


@dataclass
class Printed:
    """The ``rows`` that were read, ``notes`` on what was skipped or assumed, and the ``texts`` of
    numbers, by line and metric: all printed digits, and the spread printed next to them."""

    rows: list[Published] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    texts: dict[tuple[int, str], tuple[str, str]] = field(default_factory=dict)


_FORMS = {  # of options, each with an example
    "--columns": ("Header=name", "Model=model, GPUs=devices, img/s=samples_per_second"),
    "--given": ("name=value", "hardware=V100, strategy=ddp"),
    "--names": ("their name=our name", "ResNet (ours)=resnet50"),
}


def mapped(text: str, what: str = "--columns") -> dict[str, str]:
    """Return ``Header=name, Header=name`` as a mapping; raise ParbenchError for anything else."""
    form, example = _FORMS[what]
    found: dict[str, str] = {}
    line = text.replace("\n", " ")
    for part in next(csv.reader([line], skipinitialspace=True), None) or []:
        header, sign, name = (piece.strip() for piece in part.rpartition("="))
        if not (header and sign and name):
            raise ParbenchError(
                f'{what}: {brief(part)!r} is not `{form}`; write, for example, {what} "{example}"'
            )
        if header in found:
            raise _twice(what, header, found[header], name)
        found[header] = name
    return found


def _twice(what: str, header: str, *names: str) -> ParbenchError:
    given = " and ".join(repr(brief(f"{header}={name}")) for name in names)
    return ParbenchError(f"{what} gives {brief(header)!r} twice: {given}; keep one of them")


def read(
    path: Path, columns: Mapping[str, str], given: Mapping[str, str], *, measured: bool = False
) -> Printed:
    """Read all tables of ``path`` that have the headers of ``columns`` (their names by header).

    ``given``: values of KEYS that no column states; ``measured``: whether every metric must be one
    that cells have; otherwise any score is accepted. Raises ParbenchError for a header, name or
    number that cannot be read.
    """
    _check_names(columns, given, measured)
    printed, lines = Printed(), list(_lines(path))
    wanted: dict[str, str] = {}
    for header, name in columns.items():
        if (key := _plain(header)) in wanted:  # in another spelling
            raise _twice("--columns", header, wanted[key], name)
        wanted[key] = name
    tables = list(_tables(path, lines, wanted))
    if not tables:
        headers = [f"line {number}: {', '.join(cells)}" for number, cells in _headers(lines)]
        found = "; ".join(map(brief, headers[:3])) or "no line of several columns"
        raise ParbenchError(
            f"{path}: no table has all of the columns {', '.join(columns)}; found: {found}"
        )
    for table in tables:
        _read_table(path, table, given, printed)
    return printed


def _headers(lines: Iterable[PrintedLine]) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line of each block of lines with several columns, with its number."""
    is_inside = False
    for number, cells, _ in lines:
        if len(cells) > 1 and not is_inside:
            yield number, cells
        is_inside = len(cells) > 1


def _check_names(columns: Mapping[str, str], given: Mapping[str, str], measured: bool) -> None:
    metrics = [name for name in columns.values() if name not in KEYS]
    known = [name for name in (*METRICS, *RATIOS) if quantity_of(name)]
    for name in metrics:
        if name not in known and (measured or not re.fullmatch(SCORES, name)):
            names = [*KEYS, *dict.fromkeys(known)]
            can = "that cells have" if measured else "that can be checked"
            raise ParbenchError(
                f"--columns: {brief(name)!r} is not a column or metric {can}"
                f"{nearest(name, names, listed=False)}; known: {', '.join(names)}"
            )
    if not metrics:
        raise ParbenchError("--columns names no metric, such as train_seconds; map one")
    for name, number in Counter(columns.values()).items():
        if number > 1:
            raise ParbenchError(f"--columns maps {number} headers to {name!r}; keep one of them")
    for name in given:
        if name not in KEYS:
            raise ParbenchError(f"--given: unknown name {brief(name)!r}{nearest(name, KEYS)}")
    _check_stated_once(columns, given)
    _described("--given", given)


def _check_stated_once(columns: Mapping[str, str], given: Mapping[str, str]) -> None:
    """Raise ParbenchError if two columns, or a column and ``given``, state the same thing."""
    stated: dict[str, str] = {}
    by_columns = [(name, f"--columns {brief(header)!r}={name}") for header, name in columns.items()]
    by_given = [(name, f"--given {name}={brief(value)!r}") for name, value in given.items()]
    for name, words in (*by_columns, *by_given):
        about = "batch_size" if name == "batch_per_device" else name
        if about in stated:
            raise ParbenchError(f"{stated[about]} and {words} state the same; keep one of them")
        stated[about] = words


# ---------------------------------------------------------------- lines and tables

PrintedLine = tuple[int, list[str], str]  # number, cells, and the text itself


def _lines(path: Path) -> Iterator[PrintedLine]:
    """Yield each line of the file with its cells."""
    text = read_text(path)
    if path.suffix.lower() == ".csv":
        separator = max(",;\t", key=text.partition("\n")[0].count)
        reader = csv.reader(io.StringIO(text), delimiter=separator, strict=True)
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                fix = "close quotation marks where a value ends"
                raise ParbenchError(f"{path}: line {line}: {error}; {fix}") from None
            yield line, [cell.strip() for cell in cells], ",".join(cells)
    for number, line in enumerate(text.split("\n"), 1):
        if "|" in line:
            inner = re.sub(r"^\s*\||\|\s*$", "", line)
            cells = re.split(r"(?<!\\)\|", inner)
        else:
            cells = re.split(r"\t" if "\t" in line else r" {2,}", line.strip())
        yield number, [cell.strip() for cell in cells], line.strip()


def _unmarked(cell: str) -> str:
    """Return a header without emphasis, with single blanks."""
    return " ".join(re.sub(r"[*_`]{1,3}(?=\S)|(?<=\S)[*_`]{1,3}", "", cell).split())


def _plain(cell: str) -> str:
    """Return a header for comparison: without emphasis, in small letters."""
    return _unmarked(cell).casefold()


def _unit(header: str) -> str:
    """Return the unit in brackets at the end of a header, or empty."""
    plain = _FOOTNOTES_OF_HEADER.sub("", _unmarked(header))
    found = re.search(r"[(\[]([^()\[\]]+)[)\]]$", plain)
    return found[1].strip() if found else ""


def _bare(header: str) -> str:
    """Return a header as compared, without footnote marks and a unit in brackets."""
    plain = _FOOTNOTES_OF_HEADER.sub("", _plain(header))
    return re.sub(r"\s*[(\[][^()\[\]]+[)\]]$", "", plain)


def _positions(cells: Sequence[str], wanted: Iterable[str]) -> dict[str, list[int]]:
    """Return the positions of ``wanted`` headers among ``cells``; one that no cell has as a whole
    is also found without the unit in brackets."""
    found: dict[str, list[int]] = {}
    rest = dict(enumerate(cells))
    for spelled in (_plain, _bare):
        keys = {position: spelled(cell) for position, cell in rest.items()}
        for key in [each for each in wanted if each not in found]:
            if same := [position for position in rest if keys[position] == key]:
                found[key] = same
        rest = {n: cell for n, cell in rest.items() if keys[n] not in found}
    return found


@dataclass(frozen=True)
class _Table:
    name: str
    header: list[str]
    names: Mapping[int, str]  # of the columns that are read, by position
    rows: list[PrintedLine]


def _tables(
    path: Path, lines: Sequence[PrintedLine], wanted: Mapping[str, str]
) -> Iterator[_Table]:
    title = ""
    rest = iter(lines)
    for number, cells, text in rest:
        positions = _positions(cells, wanted)
        if len(positions) < len(wanted):
            if not (text.startswith("|") or _SEPARATOR.fullmatch(text)):
                title = text.strip("#*_ ") or title
            continue
        for same in positions.values():
            if len(same) > 1:
                headers = ", ".join(repr(brief(cells[position])) for position in same)
                raise ParbenchError(
                    f"{path}: line {number}: {len(same)} columns have one header of --columns: "
                    f"{headers}; give each column a name of its own, and map that"
                )
        names = {position: wanted[key] for key, (position,) in positions.items()}
        rows: list[PrintedLine] = []
        for row in rest:
            if not row[2].strip(" |,;\t"):
                break
            if not _SEPARATOR.fullmatch(row[2]):
                rows.append(row)
        for row_number, values, _ in rows:
            if len(values) != len(cells):
                raise ParbenchError(
                    f"{path}: line {row_number}: {count(len(values), 'value')}, but the header "
                    f"at line {number} has {len(cells)}; give each column a value or a dash"
                )
        yield _Table(brief(title, 60) or f"line {number}", cells, dict(sorted(names.items())), rows)


# ---------------------------------------------------------------- values


def _read_table(path: Path, table: _Table, given: Mapping[str, str], printed: Printed) -> None:
    keys = {name: position for position, name in table.names.items() if name in KEYS}
    above: dict[str, str] = {}
    passed: Counter[str] = Counter()
    described: list[tuple[int, Described]] = []
    for number, cells, _ in table.rows:
        # An empty cell in a column that says what was measured repeats the cell above.
        about = {
            name: _text(cells[position]) or above.get(name, "") for name, position in keys.items()
        }
        above = about
        described.append((number, _described(f"{path}: line {number}", {**given, **about})))
    for position, metric in table.names.items():
        if metric in KEYS:
            continue
        header = table.header[position]
        texts = [(number, _text(cells[position])) for number, cells, _ in table.rows]
        numbers = [(n, t) for n, t in texts if t.casefold() not in WITHOUT_NUMBER]
        passed.update(t or "empty" for _, t in texts if t.casefold() in WITHOUT_NUMBER)
        read_numbers = _Column(f"{path}: line {{}}: column {header!r}", [t for _, t in numbers])
        values = {n: read_numbers.number(n, t) for n, t in numbers}
        default, note = _default_unit(metric, header, values.values())
        if note:
            printed.notes.append(f"{table.name}: {note}")
        for number, about in described:
            if number in values:
                one = values[number]
                printed.texts[number, metric] = one.text, one.spread
                printed.rows.append(
                    Published(
                        study=path.stem,
                        table=table.name,
                        metric=metric,
                        value=one.value,
                        unit=one.unit or default,
                        published_value=one.digits,
                        line=number,
                        **about,
                    )
                )
    if passed:
        listed = ", ".join(f"{text} ({number})" for text, number in passed.items())
        printed.notes.append(f"{table.name}: no number, skipped: {listed}")


def _text(cell: str) -> str:
    """Return a cell without emphasis, Markdown's escapes and footnote marks."""
    plain = re.sub(r"\\([^\w\s])", r"\1", cell)
    plain = re.sub(r"[`_]|\*{1,3}(?=\S)|(?<=\S)\*{1,3}|</?(?:b|i|em|strong)>", "", plain)
    return plain if _POWER_OF_TEN.fullmatch(plain) else _FOOTNOTES.sub("", plain).strip()


def _described(where: str, about: Mapping[str, str]) -> Described:
    """Return the fields of a row that say what was measured; those without a column default to one
    unnamed device on one node. Errors begin with ``where``."""
    counts: dict[str, int] = {}
    for name in COUNTS:
        text = about.get(name, "1")
        found = re.fullmatch(r"([0-9]{1,6})\s*(x|×|[a-zA-Z]*s?)", text)
        if not found or int(found[1]) < 1:
            raise ParbenchError(f"{where}: {name}: {brief(text)!r} is not a number of {name}")
        counts[name] = int(found[1])
    texts = {key: about[key] for key in KEYS if key in about and key not in COUNTS}
    if each := texts.pop("batch_per_device", ""):
        if not re.fullmatch("[0-9]{1,9}", each):
            raise ParbenchError(
                f"{where}: batch_per_device: {brief(each)!r} is not a number of samples"
            )
        texts["batch_size"] = str(int(each) * counts["nodes"] * counts["devices"])
    return Described(
        model=texts.get("model", UNNAMED_MODEL),
        strategy=texts.get("strategy", ""),
        hardware=texts.get("hardware", UNNAMED),
        options=texts.get("options", ""),
        batch_size=texts.get("batch_size", ""),
        precision=texts.get("precision", ""),
        note=texts.get("note", ""),
        nodes=counts["nodes"],
        devices_per_node=counts["devices"],
    )


@dataclass(frozen=True)
class _Number:
    value: float
    digits: str  # as printed, with no more digits than the spread next to them justifies
    unit: str
    text: str  # with all digits
    spread: str  # printed next to it, or empty


class _Column:
    """The numbers of a column, which all write thousands and decimals in the same way."""

    def __init__(self, where: str, texts: Sequence[str]):
        self._where = where
        digits = [found["digits"].strip() for t in texts if (found := _NUMBER.match(t))]

        def has(pattern: str) -> bool:
            return any(re.search(pattern, each) for each in digits)

        self._point = has(r"(^|\d)\.(\d{1,2}|\d{4,})$|^0\.\d+$")
        self._comma = has(r"\d,(\d{1,2}|\d{4,})$|^0,\d+$")
        self._thousands = has(rf"^({_GROUPS[',']}\.\d+|[1-9]\d{{0,2}}(,\d{{3}}){{2,}})$")
        # With both marks, the cell that is refused is the one with a comma.
        self._odd_comma = self._point and has(r"^\d+,(\d{1,2}|\d{4,})$|^0,\d+$")

    def _refuse(self, line: int, text: str, why: str) -> ParbenchError:
        return ParbenchError(f"{self._where.format(line)}: {brief(text)!r} {why}")

    def number(self, line: int, text: str) -> _Number:
        """Return the number that ``text`` prints; ParbenchError if that is not clear."""
        first, *spread = _SPREAD.split(text)
        found = _NUMBER.fullmatch(first)
        more = _NUMBER.fullmatch(spread[0]) if spread else None
        if found is None or len(spread) > 1 or (spread and more is None):
            fix = "; write the number in digits 0 to 9, with its unit if you like, or a dash"
            raise self._refuse(line, text, f"is not one number{fix}")
        exact = found["sign"].replace("−", "-") + self._plain(line, text, found["digits"])
        exact += found["power"] or ""
        value, beside, printed, spread_text = float(exact), 0.0, exact, ""
        if more is not None:
            spread_text = self._plain(line, text, more["digits"]) + (more["power"] or "")
            beside = float(spread_text)
            exact = _coarse(value, exact, beside) if math.isfinite(value + 10 * beside) else exact
        if not math.isfinite(value + 10 * beside):
            raise self._refuse(line, text, "is too large; write a finite number")
        unit = (more and more["unit"]) or found["unit"] or ""
        return _Number(value, exact, unit.strip(), printed, spread_text)

    def _plain(self, line: int, text: str, digits: str) -> str:
        """Return ``digits`` with only a decimal point."""
        digits = digits.strip()
        blanks = re.sub(f"[{_BLANKS}]", "_", digits)
        if "_" in blanks:
            if not re.fullmatch(r"[1-9]\d{0,2}(_\d{3})+([.,]\d+)?", blanks):
                raise self._refuse(line, text, "is not one number; write it without blanks")
            digits = blanks.replace("_", "")
        if "," in digits and "." in digits:
            last = max(digits, key=lambda sign: digits.rfind(sign) if sign in ",." else -1)
            other = "," if last == "." else "."
            if not re.fullmatch(rf"{_GROUPS[other]}{re.escape(last)}\d+", digits):
                raise self._refuse(line, text, "is not one number")
            return digits.replace(other, "").replace(",", ".")
        if re.fullmatch(r"[1-9]\d{0,2},\d{3}", digits):
            if self._comma == (self._point or self._thousands):
                choices = f"{digits.replace(',', '')} or {digits.replace(',', '.')}"
                raise self._refuse(line, text, f"may be {choices}; write one of these")
            return digits.replace(",", "." if self._comma else "")
        if re.fullmatch(_GROUPS[","], digits):
            return digits.replace(",", "")
        if "," in digits:
            if self._point or not re.fullmatch(r"\d+,\d+", digits):
                fix = "write a decimal point, as other numbers of this column have"
                raise self._refuse(line, text, f"is not clear; {fix}")
            return digits.replace(",", ".")
        if self._comma and not self._odd_comma and re.fullmatch(r"[1-9]\d{0,2}\.\d{3}", digits):
            choices = f"{digits.replace('.', '')} or {digits}"
            raise self._refuse(line, text, f"may be {choices}; write one of these")
        if digits.count(".") > 1:
            if not re.fullmatch(_GROUPS["."], digits):
                raise self._refuse(line, text, "is not one number")
            return digits.replace(".", "")
        return digits


def _coarse(value: float, digits: str, spread: float) -> str:
    """Return ``value`` with so few digits that half a unit of the last one is at least ``spread``,
    so that a value known only to that spread contradicts no value closer than it.
    """
    places = len(digits.partition(".")[2])
    while 0.5 * 10.0**-places < spread:
        places -= 1
    if places > 0:
        return f"{value:.{places}f}"
    return f"{max(1, round(abs(value) * 10.0**places))}e{-places}"


def _default_unit(metric: str, header: str, values: Iterable[_Number]) -> tuple[str, str]:
    """Return the unit of numbers that print none, and a note if it is assumed."""
    quantity = quantity_of(metric)
    assert quantity is not None  # it is a metric that tables may name
    for stated in (_unit(header), header):
        if stated and quantity.size(stated) is not None:
            return stated, ""
    bare = [one.value for one in values if not one.unit]
    if not bare:
        return "", ""
    if re.fullmatch(SCORES, metric) and max(bare) > 1:
        return "percent", f"{header} is taken as percent: some values are above 1"
    assumed = f"{header} is taken in {quantity.unit}: its header names no other unit"
    return quantity.unit, assumed * (quantity.unit != "ratio")
