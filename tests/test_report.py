"""The report: what it shows, that HTML and PDF agree, and how it fails."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections import Counter
from html.parser import HTMLParser
from unittest import mock

import pypdf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

import constructed
from constructed import A100X2, CPU1, CPU2, Group
from parbench.errors import ParbenchError
from parbench.reporting import glossary, sections
from parbench.reporting.study_results import StudyResults
from parbench.verdicts.terms import (
    AS_PUBLISHED,
    JUDGED,
    NO_PUBLISHED_VALUE,
    NOT_COMPARABLE,
    SHARED_NODES,
    VERDICTS,
)
from shown import collect, pdf_text, render, squeezed


class Page(HTMLParser):
    """The visible text, elements and attributes of a page."""

    def __init__(self, html: str):
        super().__init__()
        self.text, self.elements, self._silent = [], [], None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self._silent = tag

    def handle_endtag(self, tag):
        if tag == self._silent:
            self._silent = None

    def handle_data(self, data):
        if self._silent is None:
            self.text.append(data)


def all_tables(data: dict) -> list[dict]:
    tables = [data["summary"]["table"], *(study["cells"] for study in data["studies"])]
    return tables + [table for study in data["studies"] for table in study["tables"]]


def row_of(table: dict, *start: str) -> list[dict]:
    """Return the row whose first cells read ``start``."""
    return next(r for r in table["rows"] if tuple(c["text"] for c in r[: len(start)]) == start)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a report made in a folder with blanks: (data, HTML, PDF, paths of the studies)."""
    folder = tmp_path_factory.mktemp("a work folder with blanks")
    lacking = {"not_run": "needs 2x A100", "published": {"train_seconds": 2000.0}}
    none = [Group("vit", "gpipe-2", A100X2, **lacking)]
    first = constructed.write_study(folder)
    plan = json.loads(first["plan"].read_text())
    for group in plan["groups"]:
        group["work"]["pipeline_bound"] = 1.6 if group["variant"] == "gpipe-1-1" else None
    constructed.write_json(first["plan"], plan)
    other = constructed.write_study(folder, constructed.usual_study("nothing-ran"), none)
    data = collect(first, other)
    return data, *render(data), (first, other)


# ---------------------------------------------------------------- what it shows


def test_tables_have_the_papers_shape_and_say_where_they_were_measured(made):
    first, second = made[0]["studies"][0]["tables"][:2]
    assert first["title"] == "Table 1. Serial training"
    assert [head["title"] for head in first["heads"]] == [
        "",
        "Test accuracy (%), not comparable",
        "Training time (min), not comparable",
    ]
    assert {row[1]["text"] for row in first["rows"]} == {"eager"}
    variants = [row[1]["text"] for row in second["rows"] if row[0]["text"] == "resnet18"]
    assert variants == ["gpipe-1-1", "gpipe-2", "ddp", "horovod"]
    facts = dict(made[0]["studies"][0]["facts"])  # once, not under each table
    assert facts["Software"] == "stack current, in this machine's own environment"
    assert "Constructed CPU, 2 cores" in facts["Machine"]
    assert "both CPU and GPU" not in first["context"]
    assert "both CPU and GPU" in second["context"]


def test_a_number_is_shown_next_to_its_published_value_in_the_tables_unit(made):
    row = row_of(made[0]["studies"][0]["tables"][0], "resnet18", "eager")
    shown = [cell["text"] for cell in row[3:]]  # without ratios, which would mean nothing
    assert shown == ["83.53", "93.00 ± 0.28 (4)", "56.4", "0.200 ± 0.003 (4)"]


def test_what_differs_from_the_source_is_said_once(made):
    data, html, pdf, _ = made
    study, other = data["studies"]
    assert study["differences"]
    for words in study["differences"]:
        assert html.count(f"<li>{escape(words)}</li>") == 1 + (words in other["differences"])
        assert squeezed(words) in squeezed(pdf_text(pdf))
    notes = [note["text"] for table in study["tables"] for note in table["notes"]]
    assert not set(notes) & set(study["differences"])


@pytest.mark.parametrize(
    "words",
    [
        "needs 2x A100",
        "out of memory: the kernel killed the process at 23.9 GiB",
        "diverged: loss was NaN in epoch 2",
    ],
)
def test_what_has_no_number_says_why(made, words):
    assert words in made[1]
    assert squeezed(words) in squeezed(pdf_text(made[2]))


def test_a_speedup_is_shown_next_to_its_bound(made):
    table = next(t for t in made[0]["studies"][0]["tables"] if t["id"].startswith("t-turns"))
    columns = [name for head in table["heads"] for name in head["columns"]]
    shown, pipeline = (
        dict(zip(columns, (cell["text"] for cell in row_of(table, "resnet18", name)), strict=True))
        for name in ("ddp", "gpipe-1-1")
    )
    assert shown["Bound"] == "2×"
    assert shown["Times as fast"].startswith("1.61 (")
    assert (shown["Reading"], shown["Against"]) == ("faster", "eager")
    assert pipeline["Bound"] == "2×, pipeline 1.60×"
    assert "m·n/(m + n − 1)" in table["caption"]


def test_the_note_on_gpipe_on_cpu_is_shown_below_its_tables(made):
    tables = made[0]["studies"][0]["tables"]
    for table in tables:
        marks = {mark for row in table["rows"] for cell in row for mark in cell.get("marks", [])}
        assert marks == {note["mark"] for note in table["notes"]}
    table = next(table for table in tables if table["id"].startswith("t-turns"))
    (mark,) = (note["mark"] for note in table["notes"] if note["text"] == constructed.GPIPE_NOTE)
    noted = [row for row in table["rows"] if any(mark in c.get("marks", []) for c in row)]
    assert [row[1]["text"] for row in noted] == ["gpipe-1-1", "gpipe-1-1"]
    assert constructed.GPIPE_NOTE in made[1]


EQUAL = (1.0, 1.001, 0.999, 1.0)  # ratios of an A/A pair that is equal
TAKES = "undecided: some 24 hours more (1,397 restarts) if the estimate stays"


@pytest.mark.parametrize(
    ("turns", "says"),
    [
        ((1.0, 1.01, 0.99, 1.0), "equal within 5%"),
        ((0.8, 0.81, 0.79, 0.8), "slower"),
        ((1.6, 1.61, 1.59, 1.6), "faster"),
        ((1.9, 2.0, 2.1, 2.1), "faster"),  # only its mean is above the bound
        ((2.6, 2.61, 2.59, 2.6), "above the bound: suspect the clock"),
        ((0.7, 1.4, 1.1, 1.0), TAKES),
        ((1.6, 1.6, 1.6), "undecided: 3 restarts, but at least 4 are needed"),
    ],
)
def test_reading_of_a_speedup(tmp_path, turns, says):
    """The bound is 2."""
    groups = [Group("resnet18", "eager", CPU1), Group("resnet18", "ddp", CPU2, turns=turns)]
    paths = constructed.write_study(tmp_path, groups=groups)
    tables = collect(paths)["studies"][0]["tables"]
    table = next(table for table in tables if table["id"].startswith("t-turns"))
    columns = [name for head in table["heads"] for name in head["columns"]]
    row = row_of(table, "resnet18", "ddp")
    assert row[columns.index("Reading")]["text"] == says


def test_a_pair_beside_others_jobs_says_so_at_its_number(tmp_path):
    two = Group("resnet18", "ddp", CPU2, turns=(1.6, 1.61, 1.59, 1.6), beside={"shared": True})
    paths = constructed.write_study(tmp_path, groups=[Group("resnet18", "eager", CPU1), two])
    tables = collect(paths)["studies"][0]["tables"]
    table = next(table for table in tables if table["id"].startswith("t-turns"))
    reading = row_of(table, "resnet18", "ddp")[-1]
    noted = [note["text"] for note in table["notes"] if note["mark"] in reading["marks"]]
    assert noted.count(SHARED_NODES) == 1


@pytest.mark.parametrize(
    ("other", "training"), [(CPU1, {"precision": "bf16"}), (A100X2, {}), (CPU1, {})]
)
def test_only_more_devices_of_one_kind_have_a_bound(tmp_path, other, training):
    """2.6 times as fast gives no reason to suspect the clock."""
    half = Group("resnet18", "bf16", other, turns=(2.6, 2.61, 2.59, 2.6), training=training)
    paths = constructed.write_study(tmp_path, groups=[Group("resnet18", "eager", CPU1), half])
    tables = collect(paths)["studies"][0]["tables"]
    table = next(table for table in tables if table["id"].startswith("t-turns"))
    assert [row_of(table, "resnet18", "bf16")[at]["text"] for at in (-2, -1)] == ["–", "faster"]


def test_figures_ask_and_show_what_has_a_number(made):
    study, nothing_ran = made[0]["studies"]
    assert nothing_ran["figures"] == []
    assert [figure["title"] for figure in study["figures"]] == ["Does it learn the same?"]
    drawn = "".join(part["svg"] for part in study["figures"][0]["parts"])
    assert "resnet50" in drawn


def test_figures_have_text_names_and_ids_of_their_own(made):
    svgs = [part["svg"] for f in made[0]["studies"][0]["figures"] for part in f["parts"]]
    ids = [name for svg in svgs for name in re.findall(r'\bid="([^"]+)"', svg)]
    assert len(ids) == len(set(ids))
    for svg in svgs:
        assert "<text" in svg
        assert "currentColor" in svg
        assert "<style" not in svg  # a style inside an SVG applies to the whole page
        used = re.findall(r'(?:url\(#|href="#)([^)"]+)', svg)
        assert set(used) <= set(ids)
    assert 'role="img" aria-label="Does it learn the same? resnet50"' in made[1]


def test_every_reproduced_number_leads_to_its_cells(made):
    data, html = made[0], made[1]
    targets = {attributes.get("id") for _, attributes in Page(html).elements}
    cells = [cell for table in all_tables(data) for row in table["rows"] for cell in row]
    assert {cell["link"] for cell in cells if "link" in cell} <= targets
    numbers = [cell for cell in cells if re.fullmatch(r".* \(4\)", cell["text"])]
    assert numbers
    assert all("link" in cell for cell in numbers)


def test_a_cells_details_hold_what_rebuilds_and_explains_it(made):
    html, cells = made[1], made[3][0]["cells"]
    cell = constructed.usual_groups()[0].cell_id(1)
    start = html.index(f'id="c-constructed-{cell}"')
    part = html[start : html.index("</details>", start)]
    path = cells / cell / "metrics.json"
    command = escape(f"snakemake {shlex.quote(str(path))} --config 'studies=[constructed]'")
    link = f'<a href="../{path.parent}">'
    for words in (command, "c0de" * 16, "da7a" * 16, "0" * 40, link, "0.9300"):
        assert words in part


def test_an_environment_names_image_and_digest(tmp_path):
    """And a cell refers to its environment."""
    paths = constructed.write_study(tmp_path, change=constructed.in_image, deployment="apptainer")
    data = collect(paths)
    facts = {each["name"]: dict(each["pairs"]) for each in data["environments"]}
    for panel in data["groups"]:
        name = "horovod" if "horovod" in panel["group"] else "torch"
        for cell in panel["cells"]:
            found = facts[cell["environment"]]
            assert found["Image"] == f"{name}-current-0123456789ab"
            assert found["Image digest"] == f"sha256:51f{'0' * 61}"
            assert found["Stack"] == "current, in Apptainer images"


def test_the_summary_counts_what_can_be_compared_and_says_what_the_rest_lacks(made):
    data = made[0]
    table = data["summary"]["table"]
    (columns,) = (head["columns"] for head in table["heads"][1:])
    numbers = ([int(cell["text"]) for cell in row[1:]] for row in table["rows"])
    sums = dict(zip(columns, map(sum, zip(*numbers, strict=True)), strict=True))
    compared = sum(sums.get(name, 0) for name in JUDGED)
    total = sum(sums.values()) - sums["Cells"]
    sentence = data["summary"]["sentence"]
    assert sentence.startswith(f"{compared} of {total} published numbers can be compared")
    assert f"{sums['not run']} were not run" in sentence
    facts = dict(data["summary"]["facts"])
    assert re.fullmatch(r"2030-01-01 07:00 to 2030-01-04 \d\d:\d\d UTC", facts["Runs"])
    assert facts["Machine"] == "Constructed CPU, 2 cores, 23 GiB (ID 0123456789ab)"


def test_the_headline_leaves_out_no_verdict(tmp_path):
    paths = constructed.write_study(tmp_path)
    study = StudyResults(paths["plan"], paths["table"], paths["cells"])
    drawn = [name for name in VERDICTS if name != NO_PUBLISHED_VALUE]

    @given(st.dictionaries(st.sampled_from(drawn), st.integers(1, 99), min_size=1))
    def counts(verdicts):
        with mock.patch(
            "parbench.reporting.sections.counted_verdicts", return_value=Counter(verdicts)
        ):
            sentence = sections.summary([study])["sentence"]
        compared, total, *each = map(int, re.findall(r"\d+", sentence))
        assert total == sum(verdicts.values()) == sum(each)
        assert compared == sum(verdicts.get(name, 0) for name in JUDGED)
        assert all(name in sentence for name in verdicts if name in JUDGED)

    counts()


def test_a_ratio_of_what_is_not_certified_says_so_without_a_row_of_its_own(tmp_path):
    ddp = Group("net", "ddp", CPU2, turns=(1.5, 1.6), told={"baseline": None})
    paths = constructed.write_study(tmp_path, groups=[Group("net", "eager", CPU1), ddp])
    tables = collect(paths, certified=[])["studies"][0]["tables"]
    table = next(table for table in tables if table["id"].startswith("t-turns"))
    assert "⚠ not certified: " in "".join(note["text"] for note in table["notes"])


def test_a_restart_names_the_environment_of_each_side(tmp_path):
    made = constructed.ENVIRONMENT | {"machine": constructed.MACHINE, "world_size": 2}
    sides = [{"steps": 4, "environment": made | {"python": text}} for text in ("3.11.7", "3.12.1")]
    ddp = Group("net", "ddp", CPU2, turns=(1.5, 1.6), beside={"sides": sides})
    data = collect(constructed.write_study(tmp_path, groups=[Group("net", "eager", CPU1), ddp]))
    (named,) = {row[7]["text"] for row in data["studies"][0]["restarts"]["rows"]}
    found = {each["name"]: dict(each["pairs"])["Python"] for each in data["environments"]}
    assert [found[name] for name in named.split(", ")] == ["3.11.7", "3.12.1"]


def test_every_restart_that_decides_is_in_the_report(tmp_path):
    """With when, where and by which code it was measured, its load and how to make it again."""
    slices = [
        {"pair": n, "side": side, "samples": 64, "seconds": 1.0, "disturbed": n == 0}
        | {"others": 0.1 * (n == 0), "steal": 0.0, "waited": None}
        for n in range(2)
        for side in range(2)
    ]
    ddp = Group("net", "ddp", CPU2, turns=(1.5, 1.6), beside={"slices": slices})
    data = collect(constructed.write_study(tmp_path, groups=[Group("net", "eager", CPU1), ddp]))
    html, pdf = render(data)
    table = data["studies"][0]["restarts"]
    cells = [f"{ddp.id}.pair.r{restart}" for restart in range(2)]
    for cell, row in zip(cells, table["rows"], strict=True):
        texts = [each["text"] for each in row]
        assert texts[:3] == [cell, "ddp with eager", "ok"]
        assert texts[4:8] == [
            "2, 1 disturbed, all counted",
            "0.050",
            "2030-01-01 07:00 to 07:01",
            "E1",
        ]
        assert cell in html
        assert squeezed(cell) in squeezed(pdf_text(pdf))
    assert "snakemake " in table["caption"]
    facts = dict(data["summary"]["facts"])
    assert facts["Measured"] == "8 cells and 2 restarts of pairs"
    assert facts["Runs"].startswith("2030-01-01 07:00 to ")


@pytest.mark.parametrize(
    ("ratios", "equal", "told"),
    [
        ((1.5, 1.51, 1.5, 1.51), EQUAL, "{ddp}: faster. A/A pairs: equal"),
        (
            (1.5, 1.5),
            (),
            "net, ddp beside eager: undecided: 2 restarts, but at least 4 are needed.",
        ),
        ((1.5, 1.51, 1.5, 1.51), (1.2, 1.201, 1.2, 1.2), "{ddp}: void: the A/A pair on 2"),
    ],
)
def test_results_of_pairs_are_in_the_headline_the_table_and_the_csv(tmp_path, ratios, equal, told):
    """Of a study without claims, which nothing else would answer."""
    ddp = Group("net", "ddp", CPU2, turns=ratios, equal=equal)
    study = constructed.usual_study(published=None)
    paths = constructed.write_study(tmp_path, study, [Group("net", "eager", CPU1), ddp])
    data = collect(paths)
    tables = data["studies"][0]["tables"]
    (row, *_) = next(t for t in tables if t["title"] == "Compared in turns")["rows"]
    sides = f"net, ddp {row[3]['text']} times as fast as eager"
    assert told.format(ddp=sides) in data["turns"]
    assert f'<p class="lead">{escape(data["turns"])}</p>' in render(data)[0]
    frame = constructed.read_table(paths["table"])
    (reading,) = frame[frame["metric"] == "speedup"]["reading"]
    assert row[-1]["text"] == reading
    assert f"eager: {reading}." in data["turns"]


@pytest.mark.parametrize(
    ("equal", "told"),
    [
        (EQUAL, ". A/A pairs: equal within 5% (2)."),
        (
            (),
            ". A/A pairs: equal within 5% (1); none of training on 2 CPU cores, so that no reading "
            "of a pair with such a side is firm.",
        ),
    ],
)
def test_the_head_names_the_devices_without_an_equal_pair(tmp_path, equal, told):
    groups = [
        Group("net", "eager", CPU1, equal=EQUAL),
        Group("net", "ddp", CPU2, turns=(1.5, 1.51, 1.5, 1.51), equal=equal),
    ]
    study = constructed.usual_study(published=None)
    data = collect(constructed.write_study(tmp_path, study, groups))
    assert data["turns"].endswith(f"times as fast as eager: faster{told}")


@pytest.mark.parametrize(
    ("equal", "verdict"),
    [(EQUAL, AS_PUBLISHED), ((1.2, 1.201, 1.2, 1.2), NOT_COMPARABLE)],
)
def test_a_biased_pair_decides_nothing_about_a_published_speedup(tmp_path, equal, verdict):
    measured = {"turns": (1.5, 1.51, 1.5, 1.51), "equal": equal}
    ddp = Group("net", "ddp", CPU2, published={"speedup": 1.5}, **measured)
    groups = [Group("net", "eager", CPU1), ddp]
    paths = constructed.write_study(tmp_path, constructed.usual_study(), groups)
    collect(paths)
    frame = constructed.read_table(paths["table"])
    (row,) = frame[(frame["metric"] == "speedup") & (frame["variant"] == "ddp")].to_dict("records")
    assert row["verdict"] == verdict
    assert ("is biased" in row["reason"]) == (verdict == NOT_COMPARABLE)


def test_of_many_pairs_the_head_counts_what_they_show(tmp_path):
    """That no reading drops out is what its numbers add up to."""
    names = ("ddp", "fsdp", "horovod", "gpipe")
    ratios = ((1.5,) * 4, (1.6,) * 4, (0.5,) * 4, (1.5, 1.5))
    groups = [Group("net", n, CPU2, turns=r) for n, r in zip(names, ratios, strict=True)]
    study = constructed.usual_study(published=None)
    failed = Group("net", "pipeline", CPU2, turns=(1.5,) * 4, status="out_of_memory")
    groups = [Group("net", "eager", CPU1), *groups, failed]
    data = collect(constructed.write_study(tmp_path, study, groups))
    assert data["turns"] == (
        "Compared in turns: of 5, 2 faster, 1 slower, 1 undecided and 1 not measured. A/A pairs: "
        "none of training on 2 CPU cores and of training on 1 CPU core, so that no reading of a "
        "pair with such a side is firm."
    )


def test_no_time_of_a_shared_cell_is_shown_next_to_a_ratio(tmp_path):
    def change(metrics: dict) -> dict:
        return metrics | {"started": "2030-01-01T07:00:00Z", "finished": "2030-01-01T07:09:00Z"}

    groups = [Group("net", "eager", CPU1), Group("net", "ddp", CPU2, turns=(1.5,) * 4)]
    for own, shown in ((groups, "shared its machine"), (groups[:1], "0.200 ± 0.003 (4)")):
        paths = constructed.write_study(tmp_path / shown[:6], groups=own, change=change)
        table = collect(paths)["studies"][0]["tables"][0]
        assert shown in [cell["text"] for cell in row_of(table, "net", "eager")]


@pytest.mark.parametrize(
    ("same_time", "axis", "caption"),
    [
        ({}, "Training time (min)", "(a dot) against the training time so far: mean over seeds."),
        (
            {"started": "2030-01-01T07:00:00Z", "finished": "2030-01-01T07:09:00Z"},
            "Epoch",
            "Not against the training time, since other cells ran at the same time",
        ),
    ],
)
def test_no_time_of_a_shared_cell_is_drawn(tmp_path, same_time, axis, caption):
    groups = [Group("net", "eager", CPU1), Group("net", "ddp", CPU2)]
    paths = constructed.write_study(tmp_path, groups=groups, change=lambda made: made | same_time)
    (figure,) = collect(paths)["studies"][0]["figures"]
    assert caption in figure["caption"]
    assert f">{axis}<" in figure["parts"][0]["svg"]


def test_the_head_says_where_it_was_measured_and_counts_groups_that_ran(tmp_path):
    lacking = Group("net", "gpipe-2", A100X2, not_run="needs 2x A100")
    groups = [Group("net", "eager", CPU1), Group("net", "ddp", CPU2), lacking]
    study = constructed.usual_study(published=None)
    data = collect(constructed.write_study(tmp_path, study, groups))
    html, pdf = render(data)
    for told in (
        "2 of 3 groups of cells ran here; no number in a study's table has a published",
        "Measured on Constructed CPU (2 cores).",
    ):
        assert escape(told) in html
        assert squeezed(told) in squeezed(pdf_text(pdf))


def test_batch_norm_is_spoken_of_only_for_models_that_have_it(made):
    texts = [term["meaning"] for term in made[0]["terms"]]
    texts += [table["caption"] for study in made[0]["studies"] for table in study["tables"]]
    sentences = [text for text in texts if "BatchNorm" in text]
    assert sentences
    assert all(re.search("models with BatchNorm|models that have it", each) for each in sentences)


def test_two_studies_may_share_a_cell(tmp_path):
    groups = [Group("resnet18", "eager", CPU1), Group("resnet18", "ddp", CPU2)]
    paths = [
        constructed.write_study(tmp_path, constructed.usual_study(name), groups)
        for name in ("one", "two")
    ]
    data = collect(*paths)
    html, _ = render(data)
    assert dict(data["summary"]["facts"])["Measured"] == "8 cells"
    names = [attributes["id"] for _, attributes in Page(html).elements if "id" in attributes]
    assert len(names) == len(set(names))


def test_the_report_ends_with_the_terms_that_it_uses_and_no_others(made):
    data, html, pdf, _ = made
    before, _, end = html.partition('<section id="terms"')
    page = Page(before)
    spoken = (attributes.get("aria-label", "") for _, attributes in page.elements)
    text = " ".join(" ".join([*page.text, *spoken]).split())
    names = [name.strip() for name in re.findall(r"<dt>(.*?)<dd>", end)]
    used = [term.name for term in glossary.ALL.values() if term.occurs_in(text)]
    assert sorted(names) == sorted(used)
    assert {"pair of slices", "restart", "not comparable", "firm"} < set(names)
    assert not {"(✓)", "grade", "evidence"} & set(names)
    assert re.findall(r'<div id="(.*?)"', end) == [term["id"] for term in data["terms"]]
    in_pdf = squeezed(pdf_text(pdf))
    for term in data["terms"]:
        assert escape(term["meaning"]) in end
        assert squeezed(term["name"] + term["meaning"]) in in_pdf


# ---------------------------------------------------------------- HTML and PDF


def test_html_and_pdf_show_every_string_of_every_table(made):
    data, html, pdf, _ = made
    in_html, in_pdf = squeezed("".join(Page(html).text)), squeezed(pdf_text(pdf))
    for table in all_tables(data):
        for row in table["rows"]:
            for cell in row:
                assert squeezed(cell["text"]) in in_html
                assert squeezed(cell["text"]) in in_pdf
    for study in data["studies"]:
        for figure in study["figures"]:
            assert squeezed(figure["caption"]) in in_html
            assert squeezed(figure["caption"]) in in_pdf


def test_html_has_no_outside_reference(made):
    html = made[1]
    for tag, attributes in Page(html).elements:
        for name in ("src", "srcset", "poster", "data", "action", "background", "xlink:href"):
            assert name not in attributes, (tag, name)
        assert tag not in ("link", "base", "iframe", "object", "embed", "img")
        if not attributes.get("href", "#").startswith(("#", "../")):
            assert (tag, attributes["href"]) == ("a", "https://example.org/paper")
    style = "".join(re.findall(r"<style>(.*?)</style>", html, re.DOTALL))
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in html
    assert len(re.findall("https?://", html)) == 2 * html.count('rel="noreferrer external"')


def test_two_renderings_are_equal_byte_for_byte(made):
    _, html, pdf, paths = made
    assert render(collect(*paths)) == (html, pdf)


def test_pdf_is_tagged_titled_and_numbered(made):
    reader = pypdf.PdfReader(io.BytesIO(made[2]))
    assert reader.metadata.title == "parbench: constructed and nothing-ran"
    assert "/MarkInfo" in reader.trailer["/Root"]
    assert reader.outline
    total = len(reader.pages)
    for number, page in enumerate(reader.pages, 1):
        assert f"{number}/{total}" in squeezed(page.extract_text())
        assert float(page.mediabox.width) == pytest.approx(595, abs=1)


def test_an_unfinished_report_says_what_is_lacking_and_links_the_logs(tmp_path):
    paths = constructed.write_study(tmp_path)
    plan = json.loads(paths["plan"].read_text())
    group = next(group for group in plan["groups"] if not group["not_run"])
    lines = ["epoch 1", "\x1b[1mKilled <b>"]
    log = "results/cells/a.ddp/log.txt"
    group["failed"] = [{"cell": "a.ddp", "sentence": "rank 1 & died", "lines": lines, "log": log}]
    group["waiting"] = 2
    restart = {"cell": "a.pair.r0", "sentence": "out of memory", "lines": [], "log": log}
    plan["pairs"][0] |= {"failed": [restart], "waiting": 3}
    paths["plan"].write_text(json.dumps(plan))
    html, _ = render(collect(paths))
    assert "This report is not finished: 2 cells failed and 5 cells not trained yet." in html
    assert "a.pair.r0" in html
    assert "rank 1 &amp; died" in html
    assert "epoch 1\nKilled &lt;b&gt;" in html
    assert f'<a href="../{log}">' in html


# ---------------------------------------------------------------- hostile text

HOSTILE = '<script>alert("x")</script> #typst[*b*] $x^2$ {{ 7*7 }} \\ & " \' `r` _u_ @y'
HOSTILE_URL = 'https://x/"onclick="alert(1)'


def test_markup_in_any_text_is_shown_as_text(tmp_path):
    groups = [
        Group("<b>$m$</b>", "eager", CPU1, seeds=(0, 1, 2), scaled=(HOSTILE,)),
        Group("<b>$m$</b>", "ddp", CPU2, status="diverged", reason=HOSTILE + "\x00\u202e"),
        Group("<b>$m$</b>", "gpipe-2", A100X2, not_run=HOSTILE),
    ]
    raw = HOSTILE + "\x1b[2J\x1b]0;x\x07"  # escape sequences are removed
    study = constructed.usual_study(title=raw, description=raw, settings={raw: raw})
    study["citation"] = {"text": HOSTILE, "authors": [], "year": 2024, "url": HOSTILE_URL}
    study["tables"][0]["title"] = HOSTILE
    paths = constructed.write_study(tmp_path, study, groups, log=HOSTILE + "\x1b[31m\x00\n")
    html, pdf = render(collect(paths))
    page = Page(html)
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert [tag for tag, _ in page.elements].count("b") == 0
    assert HOSTILE_URL not in html  # its quotes are escaped
    shown, drawn = squeezed("".join(page.text)), squeezed(pdf_text(pdf))
    assert shown.count(squeezed(HOSTILE)) >= 6
    assert drawn.count(squeezed(HOSTILE)) >= 5
    assert squeezed("<b>$m$</b>") in drawn
    assert not set("\x00\x07\x1b\u202e") & set(html + drawn)


# ---------------------------------------------------------------- failures


def test_what_is_missing_or_broken_fails(tmp_path):
    paths = constructed.write_study(tmp_path)
    plan = json.loads(paths["plan"].read_text())
    other = plan["study"]["tables"][0] | {"units": {"train_seconds": "percent"}}
    constructed.write_json(paths["plan"], plan | {"study": plan["study"] | {"tables": [other]}})
    with pytest.raises(ParbenchError, match="cannot show 's' as 'percent'"):
        collect(paths)
    constructed.write_json(paths["plan"], plan)
    paths["table"].write_text("study,group\n1,2\n")
    with pytest.raises(ParbenchError, match=r"constructed\.csv: not a table .*snakemake"):
        collect(paths)
    cell = constructed.usual_groups()[0].cell_id(2)
    (paths["cells"] / cell / "metrics.json").unlink()
    with pytest.raises(ParbenchError, match=f"{cell}.*no such file; make it with: snakemake"):
        collect(paths)


# ---------------------------------------------------------------- what failed, and goals


def test_time_to_the_published_accuracy_is_shown_next_to_the_time_for_the_epochs(tmp_path):
    groups = [
        Group("resnet18", "eager", CPU1, published={"test_accuracy": 0.8}),
        Group("resnet18", "ddp", CPU2, 7.0, 0.931, published={"test_accuracy": 0.92}),
        Group("swin", "eager", CPU1),
        Group("resnet18", "gpipe-2", A100X2, not_run="none", published={"test_accuracy": 0.8}),
    ]
    made = collect(constructed.write_study(tmp_path, groups=groups))
    html, pdf = render(made)
    shown = made["studies"][0]["tables"]
    table = next(t for t in shown if t["id"] == "t-constructed-time-to-accuracy")
    eager, ddp = ([cell["text"] for cell in row] for row in table["rows"])  # the rest: no goal
    assert eager[3:5] == ["80", "93.00 ± 0.28 (4)"]
    assert eager[7] == "0.100 ± 0.001 (4)"  # the second epoch's end
    assert ddp[7] == "not reached by 2 of 4 seeds (the others: 7.039 to 7.115 s)"
    for where in (html, pdf_text(pdf)):
        assert squeezed(ddp[7]) in squeezed(where)
    assert "seconds_to_published" not in html
