"""The report: what it shows, that HTML and PDF agree, and how it fails."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import pypdf
import pytest
from markupsafe import escape

import constructed
import report
import tables
from constructed import A100X2, CPU1, CPU2, Group
from errors import ParbenchError
from reporting import paper_tables, text
from reporting import render as layout
from reporting.study import Study, reading
from reporting.table import Notes
from reporting.work import work_pairs


def collect(folder: Path, *studies: dict[str, Path]) -> Path:
    """Write report.json of studies that `constructed.write_study` wrote."""
    out = folder / "results" / "report.json"
    report.main(
        [
            "collect",
            "--plan",
            *[str(paths["plan"]) for paths in studies],
            "--table",
            *[str(paths["table"]) for paths in studies],
            "--cells",
            str(studies[0]["cells"]),
            "--out",
            str(out),
        ]
    )
    return out


def render(folder: Path, data: Path) -> tuple[str, bytes]:
    """The HTML and the PDF of a report.json."""
    html, pdf = folder / "reports" / "final.html", folder / "reports" / "final.pdf"
    report.main(["html", "--data", str(data), "--out", str(html)])
    report.main(["pdf", "--data", str(data), "--out", str(pdf)])
    return html.read_text(encoding="utf-8"), pdf.read_bytes()


def pdf_text(pdf: bytes) -> str:
    return "\n".join(page.extract_text() for page in pypdf.PdfReader(io.BytesIO(pdf)).pages)


def squeezed(text: str) -> str:
    """Text without blanks and break opportunities: where a line ends says nothing."""
    return re.sub(r"[\s\u200b]+", "", text)


class Page(HTMLParser):
    """Visible text, elements and attributes of a page."""

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
    tables = [data["summary"]["table"], data["verdicts"], data["cells"]]
    return tables + [table for study in data["studies"] for table in study["tables"]]


def row_of(table: dict, *start: str) -> list[dict]:
    """The row whose first cells read ``start``."""
    return next(r for r in table["rows"] if tuple(c["text"] for c in r[: len(start)]) == start)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A report in a folder whose name has blanks: (data, html, pdf, folder)."""
    folder = tmp_path_factory.mktemp("a work folder with blanks")
    none = [
        Group(
            "vit", "gpipe-2", A100X2, not_run="needs 2x A100", published={"train_seconds": 2000.0}
        )
    ]
    data = collect(
        folder,
        constructed.write_study(folder),
        constructed.write_study(folder, constructed.usual_study("nothing-ran"), none),
    )
    html, pdf = render(folder, data)
    return json.loads(data.read_text()), html, pdf, folder


# ---------------------------------------------------------------- what it shows


def test_tables_have_the_papers_shape(made):
    first, second = made[0]["studies"][0]["tables"][:2]
    assert first["title"] == "Table 1. Serial training"
    assert [head["title"] for head in first["heads"]] == [
        "",
        "Test accuracy (%)",
        "Training time (min)",
    ]
    assert {row[1]["text"] for row in first["rows"]} == {"eager"}
    variants = [row[1]["text"] for row in second["rows"] if row[0]["text"] == "resnet18"]
    assert variants == ["gpipe-1-1", "gpipe-2", "ddp", "horovod"]


def test_a_number_stands_beside_its_published_value_in_the_tables_unit(made):
    row = row_of(made[0]["studies"][0]["tables"][0], "resnet18", "eager")
    accuracy, seconds = [cell["text"] for cell in row[3:7]], [cell["text"] for cell in row[7:11]]
    assert accuracy == ["83.53", "93.00 ± 0.22 (3)", "1.11", "not comparable"]
    assert seconds == ["56.4", "0.200 ± 0.002 (3)", "0.0035", "not comparable"]


@pytest.mark.parametrize("citation", [None, {"text": "A paper.", "authors": [], "year": 2024}])
def test_a_citation_may_lack_an_address_or_be_missing(tmp_path, citation):
    groups = [Group("resnet18", "eager", CPU1, seeds=(0,))]
    study = constructed.usual_study(citation=citation)
    html, _ = render(tmp_path, collect(tmp_path, constructed.write_study(tmp_path, study, groups)))
    assert ("A paper." in html) == (citation is not None)
    assert "external" not in html


def test_a_report_without_any_source_has_no_empty_columns(tmp_path):
    """As quickstart: nothing is published, so there are no verdicts to show, or to fail at."""
    study = constructed.usual_study("alone", published=None, citation=None)
    groups = [Group("resnet18", "eager", CPU1), Group("resnet18", "ddp", CPU2)]
    made = collect(tmp_path, constructed.write_study(tmp_path, study, groups))
    html, pdf = render(tmp_path, made)
    data = json.loads(made.read_text())
    for table in data["studies"][0]["tables"]:
        columns = [name for head in table["heads"] for name in head["columns"]]
        assert not {"Published", "Ratio", "Verdict"} & set(columns)
    assert data["summary"]["counts"] == []
    assert "Verdicts by study" not in html
    assert "Verdicts by study" not in pdf_text(pdf)


def test_no_published_value_is_a_dash_with_words(made):
    row = row_of(made[0]["studies"][0]["tables"][1], "resnet18", "ddp")
    assert row[3] == {"text": "–", "spoken": "no published value"}
    assert '<span aria-hidden="true">–</span><span class="spoken">no published value' in made[1]


@pytest.mark.parametrize(
    "words",
    [
        "not run: needs 2x A100",
        "out of memory: the kernel killed the process at 23.9 GiB",
        "diverged: loss was NaN in epoch 2",
    ],
)
def test_what_has_no_number_says_why(made, words):
    assert words in made[1]
    assert squeezed(words) in squeezed(pdf_text(made[2]))


def test_speedup_stands_beside_bound_and_noise_floor(made):
    table = next(t for t in made[0]["studies"][0]["tables"] if t["id"].endswith("speedup"))
    columns = [name for head in table["heads"] for name in head["columns"]]
    row = row_of(table, "resnet18", "ddp")
    shown = dict(zip(columns, (cell["text"] for cell in row), strict=True))
    assert shown["Bound"] == "2×"
    assert shown["Noise floor"] == "0.95 to 1.05"
    assert shown["Speedup"].startswith("1.619 ± ")
    assert shown["Reading"] == "faster than eager"


def test_a_pipeline_stands_beside_its_own_bound(tmp_path):
    paths = constructed.write_study(tmp_path)
    plan = json.loads(paths["plan"].read_text())
    for group in plan["groups"]:
        group["work"]["pipeline_bound"] = 1.6 if group["variant"] == "gpipe-1-1" else None
    paths["plan"].write_text(json.dumps(plan))
    study = Study(paths["plan"], paths["table"], paths["cells"])
    table = paper_tables.speedup_table(study)
    columns = [name for head in table["heads"] for name in head["columns"]]
    assert columns[3:8] == ["Speedup", "95 % interval", "Bound", "Pipeline bound", "Noise floor"]
    found = {row[1]["text"]: row[columns.index("Pipeline bound")]["text"] for row in table["rows"]}
    assert (found["gpipe-1-1"], found["ddp"]) == ("1.60×", "–")
    assert "m·n/(m + n − 1)" in table["caption"]
    study.groups = [group for group in study.groups if group["variant"] != "gpipe-1-1"]
    table = paper_tables.speedup_table(study)
    assert "Pipeline bound" not in [name for head in table["heads"] for name in head["columns"]]
    assert "m·n" not in table["caption"]


def test_the_note_of_gpipe_on_cpu_stands_under_its_tables(made):
    table = next(t for t in made[0]["studies"][0]["tables"] if t["id"].endswith("speedup"))
    assert [note["text"] for note in table["notes"]] == [constructed.GPIPE_NOTE]
    marked = [row[1]["text"] for row in table["rows"] if any("marks" in cell for cell in row)]
    assert marked == ["gpipe-1-1", "gpipe-1-1"]
    assert constructed.GPIPE_NOTE in made[1]


@pytest.mark.parametrize(
    ("speedup", "interval", "band", "says"),
    [
        (1.02, (1.01, 1.03), (0.95, 1.05), "no difference from eager beyond noise"),
        (1.02, (0.80, 1.24), (0.95, 1.05), "no difference from eager beyond noise"),
        (1.40, (1.04, 1.76), (0.95, 1.05), "no difference from eager beyond noise"),
        (0.77, (0.60, 0.96), (0.95, 1.05), "no difference from eager beyond noise"),
        (0.77, (0.70, 0.84), (0.95, 1.05), "slower than eager"),
        (1.62, (1.06, 2.18), (0.95, 1.05), "faster than eager"),
        (2.05, (2.02, 2.08), (0.95, 1.05), "faster than eager"),
        (2.30, (2.05, 2.55), (0.95, 1.05), "faster than eager"),
        (2.30, (2.20, 2.40), (0.95, 1.05), "above the bound: suspect the clock"),
        (1.62, (1.50, 1.74), None, "faster than eager; noise unknown"),
        (1.62, None, (0.95, 1.05), "faster than eager; noise unknown"),
        (1.02, None, (0.95, 1.05), "no difference from eager beyond noise"),
        (2.30, None, None, "above the bound: suspect the clock"),
    ],
)
def test_reading_of_a_speedup(speedup, interval, band, says):
    assert reading(speedup, interval, 2, band, "eager") == says


def test_a_table_of_cpu_and_gpu_cells_says_so(made):
    first, second = made[0]["studies"][0]["tables"][:2]
    assert "both CPU and GPU" not in first["context"]
    assert "both CPU and GPU" in second["context"]
    assert "Stack current, in this machine's own environment" in first["context"]
    assert "Constructed CPU, 2 cores" in first["context"]


def test_a_study_of_which_nothing_ran_has_tables_and_no_figure(made):
    study = made[0]["studies"][1]
    assert study["figures"] == []
    assert [row[3]["text"] for row in study["tables"][1]["rows"]] == ["–"]
    assert len(made[0]["studies"][0]["figures"]) == 4


def test_figures_are_titled_with_questions_and_answered(made):
    figures = made[0]["studies"][0]["figures"]
    assert [figure["title"] for figure in figures] == [
        "Which strategy trains fastest?",
        "Does it scale?",
        "Does it learn the same?",
        "What does it cost in memory?",
    ]
    assert figures[0]["caption"].startswith("Least training time: ddp for resnet18 (0.124 ± 0.001")
    assert "1.619× against eager and a bound of 2×" in figures[1]["caption"]


def test_a_failed_group_is_named_in_the_time_figure(made):
    times, speedups = made[0]["studies"][0]["figures"][:2]
    drawn = [
        re.findall(r">([^<]+)</text>", p["svg"]) for p in (*times["parts"], *speedups["parts"])
    ]
    assert {"swin", "out of memory", "diverged"} <= set(drawn[0])
    assert "swin" not in drawn[1]  # a speedup needs two numbers
    assert "swin" not in times["caption"]


def test_captions_do_not_look_for_a_difference_between_equal_numbers(tmp_path):
    groups = [
        Group("tied", variant, CPU1, seconds) for variant, seconds in (("eager", 9), ("a", 8))
    ]
    groups += [Group("alone", "eager", CPU1), Group("apart", "eager", CPU1, accuracy=0.5)]
    groups += [Group("apart", "a", CPU1), Group("apart", "b", CPU1)]
    made = collect(tmp_path, constructed.write_study(tmp_path, groups=groups))
    *_, learning, memory = json.loads(made.read_text())["studies"][0]["figures"]
    assert learning["caption"] == (
        "Final accuracy (%): for tied all reached 93.00, for alone 93.00 ± 0.22 (3) (eager) and "
        "for apart from 50.00 ± 0.22 (3) (eager) to 93.00 ± 0.22 (3) (a and b). "
        "Lines: mean over seeds."
    )
    assert "(MiB): for tied all needed 812" in memory["caption"]


def test_figures_have_text_titles_and_ids_of_their_own(made):
    svgs = [part["svg"] for f in made[0]["studies"][0]["figures"] for part in f["parts"]]
    ids = [name for svg in svgs for name in re.findall(r'\bid="([^"]+)"', svg)]
    assert len(ids) == len(set(ids))
    for svg in svgs:
        assert "<title" in svg
        assert "<desc" in svg
        assert "<text" in svg
        assert "currentColor" in svg
        assert "<style" not in svg  # a style inside an SVG holds for the whole page
        used = re.findall(r'(?:url\(#|href="#)([^)"]+)', svg)
        assert set(used) <= set(ids)


def test_many_models_are_drawn_in_parts_that_fit_a_page(tmp_path):
    groups = [
        Group(f"model{m:02}", variant, CPU1 if variant == "eager" else CPU2, 10 + m, seeds=(0,))
        for m in range(16)
        for variant in ("eager", "ddp", "horovod", "gpipe-1-1", "gpipe-2", "eager-b", "eager-c")
    ]
    data = json.loads(
        collect(tmp_path, constructed.write_study(tmp_path, groups=groups)).read_text()
    )
    for figure in data["studies"][0]["figures"]:
        assert len(figure["parts"]) > 1
        for part in figure["parts"]:
            height = float(re.search(r'<svg [^>]*height="([\d.]+)pt"', part["svg"])[1])
            assert height <= 72 * 8.6


def test_every_reproduced_number_leads_to_its_cells(made):
    data, html = made[0], made[1]
    targets = {attributes.get("id") for _, attributes in Page(html).elements}
    links = [
        cell["link"]
        for t in all_tables(data)
        for row in t["rows"]
        for cell in row
        if "link" in cell
    ]
    assert set(links) <= targets
    numbers = [
        cell
        for study in data["studies"]
        for t in study["tables"]
        for row in t["rows"]
        for cell in row
        if re.fullmatch(r".* \(3\)", cell["text"])
    ]
    assert numbers
    assert all("link" in cell for cell in numbers)


def test_a_cells_details_hold_what_rebuilds_and_explains_it(made):
    html, folder = made[1], made[3]
    cell = constructed.usual_groups()[0].cell_id(1)
    start = html.index(f'id="c-{cell}"')
    part = html[start : html.index("</details>", start)]
    path = folder / "results" / "cells" / cell / "metrics.json"
    command = escape(f"snakemake {shlex.quote(str(path))} --config 'studies=[constructed]'")
    for words in (
        command,
        "c0de" * 16,
        "da7a" * 16,
        "0" * 40,
        "Confusion matrix",
        "History",
        "epoch 2\ndone",
        "0.9300",
    ):
        assert words in part


@pytest.mark.parametrize(
    ("training", "work", "expected"),
    [
        ({}, {}, {"learning rate": "0.002 (fixed)", "global batch": "64", "TF32": "no"}),
        ({"tf32": True, "precision": "bf16"}, {}, {"TF32": "yes", "precision": "bf16"}),
        ({}, {"micro_batches": 4}, {"global batch": "64 (4 micro-batches)"}),
        (
            {"learning_rate_rule": "linear", "learning_rate": 0.003},
            {"ranks": 3, "learning_rate": 0.003 * 3},
            {"learning rate": "0.009 (linear: 3 × 0.003)", "global batch": "64 (21 or 22 a rank)"},
        ),
        (
            {"global_batch": 64},
            {"ranks": 2, "micro_batches": 2},
            {"global batch": "64 (32 a rank, 2 micro-batches)"},
        ),
        (
            {"batch_norm": "synchronized", "mode": "deterministic"},
            {"batch_norm": "the whole batch, over all ranks"},
            {
                "BatchNorm": "synchronized: the whole batch, over all ranks",
                "mode": "deterministic",
            },
        ),
    ],
)
def test_what_a_group_computes_in_words(training, work, expected):
    usual = {"ranks": 1, "micro_batches": 1, "learning_rate": 0.002, "batch_norm": "all"}
    group = {"training": constructed.TRAINING | training, "work": usual | work}
    assert expected.items() <= dict(work_pairs(group)).items()


def test_what_every_group_computes_stands_in_both_files(made):
    """Also of groups that were not run; and in each panel, where no setting stands twice."""
    data, html, pdf, _ = made
    shown = squeezed("".join(Page(html).text)), squeezed(pdf_text(pdf))
    for study in data["studies"]:
        table = study["tables"][-1]
        assert table["title"] == "What each group computes"
        for row in table["rows"]:
            for cell in row[3:]:
                assert all(squeezed(cell["text"]) in where for where in shown)
    for panel in data["groups"]:
        names = [name.lower() for name, _ in panel["settings"]]
        assert len(names) == len(set(names))
        wanted = {"learning rate", "global batch", "batchnorm", "precision", "tf32", "mode"}
        assert wanted <= set(names)


@pytest.fixture(scope="module")
def in_images(tmp_path_factory):
    """A report of cells that ran in images: (report.json as a dict, HTML, PDF)."""
    folder = tmp_path_factory.mktemp("images")
    paths = constructed.write_study(folder, change=constructed.in_image, deployment="apptainer")
    data = collect(folder, paths)
    return json.loads(data.read_text()), *render(folder, data)


TORCH = f"torch-current-0123456789ab sha256:51f{'0' * 61}"
HOROVOD = TORCH.replace("torch", "horovod")


def test_what_stands_behind_a_number_names_image_and_digest(in_images):
    data, html, _ = in_images
    for panel in data["groups"]:
        image = HOROVOD if "horovod" in panel["group"] else TORCH
        assert panel["software"] == [image]
        assert ["deployment", "Apptainer images"] in panel["settings"]
        name, digest = image.split()
        for cell in panel["cells"]:
            facts = dict(cell["facts"])
            assert (facts["image"], facts["image digest"]) == (name, digest)
            environment = next(e for e in data["environments"] if e["name"] == cell["environment"])
            facts = dict(environment["pairs"])
            assert (facts["Image"], facts["Image digest"]) == (name, digest)
    # All of it is in the group's panel, which a reproduced number opens.
    panels = re.split('<div class="panel" id="g-', html)[1:]
    assert len(panels) == len(data["groups"])
    assert all(TORCH in panel or HOROVOD in panel for panel in panels)


def test_the_images_of_a_report_are_listed_with_their_digests(in_images):
    data, html, pdf = in_images
    counts = {True: 0, False: 0}
    for panel in data["groups"]:
        counts["horovod" in panel["group"]] += len(panel["cells"])
    assert data["images"] == [
        [name, f"sha256:51f{'0' * 61}, {counts['horovod' in name]} cells"]
        for name in ("horovod-current-0123456789ab", "torch-current-0123456789ab")
    ]
    shown = squeezed("".join(Page(html).text)), squeezed(pdf_text(pdf))
    for name, fact in data["images"]:
        assert all(squeezed(f"{name}{fact}") in where for where in shown)
    used = "horovod-current-0123456789ab, torch-current-0123456789ab"
    assert ["Images", used] in data["summary"]["facts"]


def test_captions_say_in_words_where_the_software_came_from(in_images, made):
    for data, place in (
        (in_images[0], "Apptainer images"),
        (made[0], "this machine's own environment"),
    ):
        for study in data["studies"]:
            assert ["Deployment", place] in study["facts"]
            contexts = [table["context"] for table in study["tables"] if table["context"]]
            assert all(f"Stack current, in {place}; " in context for context in contexts)
    text = "".join(Page(in_images[1]).text)
    assert "Stack current, in Apptainer images; machine: " in text


def test_cells_of_the_host_name_its_own_environment_and_no_image(made):
    data, html, pdf, _ = made
    assert data["images"] == []
    for panel in data["groups"]:
        assert panel["software"] == ["none: this machine's own environment"]
        for cell in panel["cells"]:
            facts = dict(cell["facts"])
            assert facts["image"] == "none: this machine's own environment"
            assert "image digest" not in facts
    assert 'id="images"' not in html
    assert "What cells ran in:" not in pdf_text(pdf)
    assert "Images" not in [name for name, _ in data["summary"]["facts"]]


def test_a_run_in_an_image_that_nobody_named_is_not_said_to_be_the_hosts(tmp_path):
    def change(metrics):
        constructed.in_image(metrics)["environment"] |= {"image": None, "image_digest": None}
        return metrics

    group = Group("resnet18", "eager", CPU1)
    paths = constructed.write_study(tmp_path, groups=[group], change=change, deployment="apptainer")
    data = json.loads(collect(tmp_path, paths).read_text())
    assert data["groups"][0]["software"] == ["unknown: trained by hand"]
    assert data["images"] == []


def test_an_image_that_was_built_anew_between_seeds_is_named_with_both_digests(tmp_path):
    other = "0ff" + "0" * 61

    def change(metrics):
        again = metrics["cell"]["seed"] == 2
        return constructed.in_image(metrics, *([other] if again else []))

    group = Group("resnet18", "eager", CPU1)
    paths = constructed.write_study(tmp_path, groups=[group], change=change, deployment="apptainer")
    data = json.loads(collect(tmp_path, paths).read_text())
    (panel,) = data["groups"]
    assert panel["software"] == [TORCH, f"torch-current-0123456789ab sha256:{other}"]
    assert [cell["environment"] for cell in panel["cells"]] == ["E1", "E1", "E2"]
    assert [fact for _, fact in data["images"]] == [
        f"sha256:{other}, 1 cell",
        f"sha256:51f{'0' * 61}, 2 cells",
    ]


def test_the_command_that_rebuilds_a_cell_names_the_files_laid_over_config_yaml(tmp_path):
    paths = constructed.write_study(tmp_path, groups=constructed.usual_groups()[:1])
    plan = json.loads(paths["plan"].read_text())
    plan["arguments"] = ["--configfile", "my own.yaml", *plan["arguments"]]
    paths["plan"].write_text(json.dumps(plan))
    panel = json.loads(collect(tmp_path, paths).read_text())["groups"][0]["cells"][0]
    assert panel["command"].endswith(
        "/metrics.json --configfile 'my own.yaml' --config 'studies=[constructed]'"
    )
    assert panel["force"] == f"{panel['command']} --force"


def test_summary_counts_every_verdict_of_the_table(made):
    data = made[0]
    counts = {entry["verdict"]: int(entry["count"]) for entry in data["summary"]["counts"]}
    assert sum(counts.values()) == len(data["verdicts"]["rows"])
    facts = dict(data["summary"]["facts"])
    assert facts["Runs"] == "2030-01-01 07:00 to 2030-01-03 07:01 UTC"
    assert facts["Machine"] == "Constructed CPU, 2 cores, 23 GiB [0123456789ab]"


def test_a_cell_of_two_studies_is_shown_once(tmp_path):
    groups = [Group("resnet18", "eager", CPU1), Group("resnet18", "ddp", CPU2)]
    paths = [
        constructed.write_study(tmp_path, constructed.usual_study(name), groups)
        for name in ("one", "two")
    ]
    html, _ = render(tmp_path, collect(tmp_path, *paths))
    assert html.count(f'id="c-{groups[0].cell_id(0)}"') == 1
    names = [attributes["id"] for _, attributes in Page(html).elements if "id" in attributes]
    assert len(names) == len(set(names))


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


def test_html_and_pdf_show_the_same_count_of_numbers(made):
    """Each `± ` of a table is in both as often as report.json has it."""
    data, html, pdf, _ = made
    wanted = [
        c["text"] for t in all_tables(data) for row in t["rows"] for c in row if "±" in c["text"]
    ]
    rows = "".join(re.findall(r"<tbody>.*?</tbody>", html, re.DOTALL))
    text = squeezed(pdf_text(pdf))
    for number in set(wanted):
        assert rows.count(f">{number}<") == wanted.count(number)
        assert text.count(squeezed(number)) >= wanted.count(number)


def test_html_has_no_outside_reference(made):
    html = made[1]
    for tag, attributes in Page(html).elements:
        for name in ("src", "srcset", "poster", "data", "action", "background", "xlink:href"):
            assert name not in attributes, (tag, name)
        assert tag not in ("link", "base", "iframe", "object", "embed", "img")
        if "href" in attributes and not attributes["href"].startswith("#"):
            assert (tag, attributes["href"]) == ("a", "https://example.org/paper")
    style = "".join(re.findall(r"<style>(.*?)</style>", html, re.DOTALL))
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in html
    assert len(re.findall("https?://", html)) == 2 * html.count('rel="noreferrer external"')


def test_two_renderings_are_equal_byte_for_byte(made, tmp_path):
    _, html, pdf, folder = made
    names = ("constructed", "nothing-ran")
    plans = [folder / "results" / "plan" / f"{name}.json" for name in names]
    tables = [folder / "results" / "tables" / f"{name}.csv" for name in names]
    again = report.collect(plans, tables, folder / "results" / "cells")
    data = tmp_path / "report.json"
    data.write_text(json.dumps(again))
    assert render(tmp_path, data) == (html, pdf)


def test_pdf_is_tagged_titled_and_numbered(made):
    reader = pypdf.PdfReader(io.BytesIO(made[2]))
    assert reader.metadata.title == "parbench: published and reproduced"
    assert "/MarkInfo" in reader.trailer["/Root"]
    assert reader.outline
    total = len(reader.pages)
    for number, page in enumerate(reader.pages, 1):
        assert f"{number} / {total}" in page.extract_text()
        assert float(page.mediabox.width) == pytest.approx(595, abs=1)


def test_large_report_stays_below_three_megabytes(tmp_path):
    groups = [
        Group(f"model{m}", variant, CPU1 if variant == "eager" else CPU2, 10 + m, epochs=50)
        for m in range(20)
        for variant in ("eager", "ddp", "horovod", "gpipe-1-1", "gpipe-2")
    ]
    log = "".join(f"epoch {i}: " + "x" * 150 + "\n" for i in range(500))
    data = collect(tmp_path, constructed.write_study(tmp_path, groups=groups, log=log))
    html = layout.render_html(json.loads(data.read_text()))
    assert len(re.findall('<details class="cell">', html)) == 300
    assert len(html.encode()) < 3_000_000


@pytest.mark.parametrize(
    ("log", "note"),
    [
        ("x\n" * 60, None),
        ("", "[the log is empty]"),
        ("\n \n", "[the log is empty]"),
        ("x\n" * 61, "[last 60 lines; the whole log lies in {}]"),
        ("x" * 161, "[long lines cut; the whole log lies in {}]"),
        ("x" * 161 + "\n" + "y\n" * 60, "[last 60 lines; the whole log lies in {}]"),
    ],
)
def test_a_shortened_log_says_where_the_whole_one_lies(tmp_path, log, note):
    groups = [Group("resnet18", "eager", CPU1, seeds=(0,))]
    paths = constructed.write_study(tmp_path, groups=groups, log=log)
    data = json.loads(collect(tmp_path, paths).read_text())
    first = data["groups"][0]["cells"][0]["log"][0]
    path = paths["cells"] / groups[0].cell_id(0) / "log.txt"
    assert first == (note.format(path) if note else "x")


def test_an_unfinished_report_says_what_is_lacking_and_links_the_logs(tmp_path):
    paths = constructed.write_study(tmp_path)
    plan = json.loads(paths["plan"].read_text())
    group = next(group for group in plan["groups"] if not group["not_run"])
    lines = ["epoch 1", "\x1b[1mKilled <b>"]
    log = "results/cells/a.ddp/log.txt"
    group["failed"] = [{"cell": "a.ddp", "sentence": "rank 1 & died", "lines": lines, "log": log}]
    group["waiting"] = 2
    paths["plan"].write_text(json.dumps(plan))
    html, _ = render(tmp_path, collect(tmp_path, paths))
    assert "This report is not finished: 1 cell failed and 2 cells not trained yet." in html
    assert "rank 1 &amp; died" in html
    assert "epoch 1\nKilled &lt;b&gt;" in html
    assert f'<a href="../{log}">' in html


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_few_seeds(tmp_path, seeds):
    groups = [
        Group("resnet18", "eager", CPU1, seeds=seeds),
        Group("resnet18", "ddp", CPU2, seeds=seeds),
    ]
    data = collect(tmp_path, constructed.write_study(tmp_path, groups=groups))
    html, _ = render(tmp_path, data)
    assert f"({len(seeds)})" in html
    assert f"undecided: {len(seeds)} of at least 3 seeds" in html
    row = row_of(json.loads(data.read_text())["studies"][0]["tables"][0], "resnet18", "eager")
    reproduced = row[4]["text"]
    assert "±" not in reproduced
    assert reproduced.endswith(f"({len(seeds)})")
    assert (" to " in reproduced) == (len(seeds) == 2)


# ---------------------------------------------------------------- hostile text

HOSTILE = '<script>alert("x")</script> #typst[*b*] $x^2$ {{ 7*7 }} \\ & " \' `r` _u_ @y'


def test_markup_in_any_text_is_shown_as_text(tmp_path):
    groups = [
        Group("<b>$m$</b>", "eager", CPU1, seeds=(0, 1, 2), scaled=(HOSTILE,)),
        Group("<b>$m$</b>", "ddp", CPU2, status="diverged", reason=HOSTILE + "\x00\u202e"),
        Group("<b>$m$</b>", "gpipe-2", A100X2, not_run=HOSTILE),
    ]
    raw = HOSTILE + "\x1b[2J\x1b]0;x\x07"  # what a terminal obeys is taken out
    study = constructed.usual_study(title=raw, description=raw, settings={raw: raw})
    study["citation"] = {"text": HOSTILE, "authors": [], "year": 2024, "url": "javascript:alert(1)"}
    study["tables"][0]["title"] = HOSTILE
    paths = constructed.write_study(tmp_path, study, groups, log=HOSTILE + "\x1b[31m\x00\n")
    html, pdf = render(tmp_path, collect(tmp_path, paths))
    page = Page(html)
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert [tag for tag, _ in page.elements].count("b") == 0
    assert "javascript:" not in html
    shown, drawn = squeezed("".join(page.text)), squeezed(pdf_text(pdf))
    assert shown.count(squeezed(HOSTILE)) >= 6
    assert drawn.count(squeezed(HOSTILE)) >= 5
    assert squeezed("<b>$m$</b>") in drawn
    assert not set("\x00\x07\x1b\u202e") & set(html + drawn)


def test_long_and_foreign_names_are_laid_out(tmp_path):
    groups = [Group("m" * 90, "eager", CPU1), Group("модель Ω 模型", "eager", CPU1)]
    study = constructed.usual_study(title="Ünïcode " + "w" * 120)
    html, pdf = render(
        tmp_path, collect(tmp_path, constructed.write_study(tmp_path, study, groups))
    )
    assert "m" * 90 in squeezed(pdf_text(pdf))
    assert "модель Ω 模型" in html


# ---------------------------------------------------------------- failures


def rewrite_table(path: Path, change) -> None:
    rows = list(csv.DictReader(path.open(newline="")))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, constructed.COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for row in map(change, rows) if row)


def blank_mean(row):
    chosen = (
        row["metric"] == "train_seconds" and row["variant"] == "ddp" and row["model"] == "vgg16"
    )
    return row | {"mean": ""} if chosen else row


def drop_row(row):
    return None if row["metric"] == "test_accuracy" and row["variant"] == "ddp" else row


@pytest.mark.parametrize("change", [blank_mean, drop_row])
def test_a_missing_number_fails(tmp_path, change):
    paths = constructed.write_study(tmp_path)
    rewrite_table(paths["table"], change)
    with pytest.raises(ParbenchError, match=r"constructed\.csv: no number for metric .*snakemake"):
        collect(tmp_path, paths)


def test_a_planned_cell_without_metrics_fails(tmp_path):
    paths = constructed.write_study(tmp_path)
    cell = constructed.usual_groups()[0].cell_id(2)
    (paths["cells"] / cell / "metrics.json").unlink()
    with pytest.raises(ParbenchError, match=f"{cell}.*no metrics; run: snakemake"):
        collect(tmp_path, paths)


def test_a_missing_log_is_no_failure(tmp_path):
    paths = constructed.write_study(tmp_path)
    for log in paths["cells"].glob("*/log.txt"):
        log.unlink()
    assert collect(tmp_path, paths).exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no column study, group"),
        ("study,group\n1,2\n", "no column model"),
        ("\xff\xfe broken", "no column"),
        (None, "cannot be read"),
    ],
)
def test_a_broken_table_fails(tmp_path, text, message):
    paths = constructed.write_study(tmp_path)
    paths["table"].unlink()
    if text is not None:
        paths["table"].write_text(text)
    with pytest.raises(ParbenchError, match=message):
        collect(tmp_path, paths)


def test_a_number_that_is_none_fails_with_its_line(tmp_path):
    paths = constructed.write_study(tmp_path)
    rewrite_table(paths["table"], lambda row: row | {"mean": "12,5"})
    with pytest.raises(ParbenchError, match="line 2, mean: '12,5' is not a number"):
        collect(tmp_path, paths)


def test_a_cut_line_fails(tmp_path):
    paths = constructed.write_study(tmp_path)
    text = paths["table"].read_text().splitlines()
    paths["table"].write_text("\n".join([*text[:3], text[3][: len(text[3]) // 2]]) + "\n")
    with pytest.raises(ParbenchError, match="line 4: not as many fields"):
        collect(tmp_path, paths)


def test_a_study_without_table_fails(tmp_path):
    paths = constructed.write_study(tmp_path)
    with pytest.raises(ParbenchError, match="no table for study constructed"):
        report.collect([paths["plan"]], [], paths["cells"])


def test_a_broken_plan_fails(tmp_path):
    paths = constructed.write_study(tmp_path)
    plan = json.loads(paths["plan"].read_text())
    del plan["study"]["tables"]
    paths["plan"].write_text(json.dumps(plan))
    with pytest.raises(ParbenchError, match="no key 'tables'"):
        collect(tmp_path, paths)


def test_a_unit_that_measures_something_else_fails(tmp_path):
    study = constructed.usual_study()
    study["tables"][0]["units"] = {"train_seconds": "MiB"}
    with pytest.raises(ParbenchError, match="cannot show 's' as 'MiB'"):
        collect(tmp_path, constructed.write_study(tmp_path, study))


def test_a_foreign_report_json_fails(tmp_path):
    data = tmp_path / "report.json"
    data.write_text("[1]")
    with pytest.raises(ParbenchError, match="not a report.json"):
        report.main(["html", "--data", str(data), "--out", str(tmp_path / "x.html")])
    assert not (tmp_path / "x.html").exists()


# ---------------------------------------------------------------- numbers as text


@pytest.mark.parametrize(
    ("value", "unit", "into", "result"),
    [(90, "s", "min", 1.5), (0.5, "fraction", "percent", 50.0), (2048, "MiB", "GiB", 2.0)],
)
def test_convert(value, unit, into, result):
    assert text.convert(value, unit, into) == pytest.approx(result)


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0035, "0.0035"), (1.104, "1.10"), (0, "0.00"), (0.5, "0.50")]
)
def test_ratio_text(value, shown):
    assert text.ratio_text(value) == shown


def test_a_note_has_one_letter_however_often_it_is_said():
    notes = Notes()
    assert notes.mark("one", "", "two", "one") == ["a", "b"]
    assert notes.mark("two", "three", "one") == ["a", "b", "c"]
    assert [note["text"] for note in notes.as_json()] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(120.6, "min", "120.6"), (1980.5, "s", "1980.5"), (1.4387755, "x", "1.439"), (2.0, "h", "2")],
)
def test_published_numbers_are_shown_as_printed(value, unit, shown):
    assert text.short(value, unit) == shown


@pytest.mark.parametrize(
    ("values", "unit", "spreads", "places"),
    [
        ([7.44, 15.6], "s", [0.08], 2),
        ([940.1], "samples/s", [3.0], 0),
        ([940.1], "samples/s", [0.2], 1),
        ([0.93], "fraction", [0.1], 4),
        ([1.62], "x", [0.003], 3),
        ([1.62], "x", [0.03], 2),
        ([], "s", [], 1),
    ],
)
def test_decimals(values, unit, spreads, places):
    assert text.decimals(values, unit, spreads) == places


PUBLISHED = (
    "study,document,table,model,strategy,options,hardware,nodes,devices_per_node,batch_size,"
    "precision,metric,value,unit,published_value,published_unit,note\n"
    "constructed,d,Table 1,resnet18,eager,,A100,1,1,,,train_seconds,120.0,s,2.0,minutes,\n"
    "constructed,d,Table 2,resnet18,ddp,,A100,1,2,,,speedup,1.6,x,1.6,x,\n"
)


def tables_py(folder, paths, change=lambda group: None) -> None:
    """Let tables.py write the table; ``change`` may alter each group of the plan."""
    tables = pytest.importorskip("tables")
    plan = json.loads(paths["plan"].read_text())
    for group in plan["groups"]:
        group["published"] = {"model": group["model"], "strategy": group["strategy"]}
        change(group)
    paths["plan"].write_text(json.dumps(plan))
    (folder / "published.csv").write_text(PUBLISHED)
    tables.main(
        [
            "--plan",
            str(paths["plan"]),
            "--cells",
            str(paths["cells"]),
            "--published",
            str(folder / "published.csv"),
            "--out",
            str(paths["table"]),
        ]
    )


def test_seeds_that_failed_are_named_beside_the_others_mean(tmp_path):
    groups = [Group("resnet18", "eager", CPU1), Group("resnet18", "ddp", CPU2)]
    failed = constructed.metrics_json(
        Group("resnet18", "ddp", CPU2, status="diverged", reason="loss was NaN"), 2
    )

    def change(metrics):
        return failed if metrics["cell"]["id"] == groups[1].cell_id(2) else metrics

    paths = constructed.write_study(tmp_path, groups=groups, change=change)
    tables_py(tmp_path, paths)
    data = json.loads(collect(tmp_path, paths).read_text())
    table = data["studies"][0]["tables"][1]
    assert row_of(table, "resnet18", "ddp")[4]["text"].endswith("(2)")
    assert "seed 2 diverged (loss was NaN)" in [note["text"] for note in table["notes"]]
    assert "1 diverged 1 of 3" in dict(data["summary"]["facts"])["Groups"]
    assert len(data["studies"][0]["tables"][3]["rows"]) == 2


def test_every_note_is_marked_in_its_table(tmp_path):
    def change(group):
        if group["strategy"] == "gpipe":
            group["note"] = constructed.GPIPE_NOTE

    paths = constructed.write_study(tmp_path)
    tables_py(tmp_path, paths, change)
    for table in json.loads(collect(tmp_path, paths).read_text())["studies"][0]["tables"]:
        marks = {mark for row in table["rows"] for cell in row for mark in cell.get("marks", [])}
        assert marks == {note["mark"] for note in table["notes"]}
        noted = [note["mark"] for note in table["notes"] if note["text"] == constructed.GPIPE_NOTE]
        if noted:
            rows = [r for r in table["rows"] if any(noted[0] in c.get("marks", []) for c in r)]
            assert {row[1]["text"] for row in rows} == {"gpipe-1-1"}


def test_a_failed_baseline_says_why_there_is_no_speedup(tmp_path):
    groups = [
        Group("resnet18", "eager", CPU1, status="out_of_memory", reason="killed"),
        Group("resnet18", "ddp", CPU2),
    ]
    paths = constructed.write_study(tmp_path, groups=groups)
    tables_py(tmp_path, paths)
    data = json.loads(collect(tmp_path, paths).read_text())
    table = next(t for t in data["studies"][0]["tables"] if t["id"].endswith("speedup"))
    assert row_of(table, "resnet18", "ddp")[3]["text"] == "–"
    assert any("baseline" in note["text"] for note in table["notes"])


def test_a_table_that_tables_py_wrote_is_read(tmp_path):
    tables = pytest.importorskip("tables")
    assert list(constructed.COLUMNS) == list(tables.COLUMNS)
    paths = constructed.write_study(tmp_path)
    tables_py(tmp_path, paths)
    data = json.loads(collect(tmp_path, paths).read_text())
    first, second = data["studies"][0]["tables"][:2]
    row = row_of(first, "resnet18", "eager")
    assert [cell["text"] for cell in row[7:9]] == ["2", "0.200 ± 0.002 (3)"]
    assert row_of(second, "resnet18", "ddp")[11]["text"] == "1.6"
    assert row_of(first, "swin", "eager")[4]["text"].startswith("out of memory: the kernel")
    html, pdf = render(tmp_path, tmp_path / "results" / "report.json")
    assert "not run: needs 2x A100" in html
    assert pdf.startswith(b"%PDF")


def test_time_to_the_published_accuracy_stands_beside_the_time_for_the_epochs(tmp_path):
    groups = [Group("resnet18", "eager", CPU1), Group("resnet18", "ddp", CPU2, 7.0, 0.931)]
    groups += [Group("swin", "eager", CPU1), Group("resnet18", "gpipe-2", A100X2, not_run="none")]
    paths = constructed.write_study(tmp_path, groups=groups)
    plan = json.loads(paths["plan"].read_text())
    for group in plan["groups"]:
        group["published"] = {"model": group["model"], "strategy": group["strategy"]}
    paths["plan"].write_text(json.dumps(plan))
    published = tmp_path / "published.csv"
    head = "study,table,model,strategy,hardware,nodes,devices_per_node,metric,value,unit\n"
    row = "constructed,T,resnet18,{},CPU,1,{},test_accuracy,{},fraction\n"
    published.write_text(head + row.format("eager", 1, 0.8) + row.format("ddp", 2, 0.92))
    words = ["--plan", paths["plan"], "--cells", paths["cells"], "--published", published]
    tables.main(list(map(str, [*words, "--out", paths["table"]])))
    made = collect(tmp_path, paths)
    html, pdf = render(tmp_path, made)
    shown = json.loads(made.read_text())["studies"][0]["tables"]
    table = next(t for t in shown if t["id"] == "t-constructed-time-to-accuracy")
    eager, ddp = ([cell["text"] for cell in row] for row in table["rows"])  # the others: no goal
    assert eager == [
        "resnet18",
        "eager",
        "1 CPU core",
        "80",
        "93.00 ± 0.22 (3)",
        "4",
        "0.200 ± 0.002 (3)",
        "0.100 ± 0.001 (3)",  # the second epoch's end
    ]
    assert ddp[-1] == "not reached by 2 of 3 seeds (the others: 7.077 s)"
    for where in (html, pdf_text(pdf)):
        assert squeezed(ddp[-1]) in squeezed(where)
    assert "seconds_to_published" not in html
