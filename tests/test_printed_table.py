"""A table as a source prints it is read as meant, or refused with file, line and column."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parbench.__main__ import main
from parbench.audit import printed_table
from parbench.errors import ParbenchError

COLUMNS = {"Model": "model", "GPUs": "devices", "Time": "train_seconds"}
MARKDOWN = """
# A paper

Some words | with a bar.

**Table 2: Throughput and accuracy**

| Model     | GPUs | *Strategy* | Time (min) | img/s   | Acc.       |
|:----------|-----:|------------|------------|---------|------------|
| ResNet-50 | 1    | eager      | 56.4       | 1,190.5 | **83.53**  |
|           | 2    | ddp        | 30.1†      | 2,255.0 | 83.5 ± 0.2 |
| Swin      | 2x   | ddp        | 1.5 h      | –       | OOM        |

After it.
"""
MAPPING = (
    "model=model, gpus=devices, Strategy=strategy, Time (min)=train_seconds, "
    "img/s=samples_per_second, Acc.=test_accuracy"
)


def read(tmp_path, text, columns=COLUMNS, given=None, name="paper.md"):
    path = tmp_path / name
    path.write_text(text)
    return printed_table.read(path, columns, given or {})


def column(tmp_path, *values):
    """Return what is read of a column of times (s) in a plain text."""
    rows = [f"net  {n}  {value}" for n, value in enumerate(values, 1)]
    found = read(tmp_path, "\n".join(["Model  GPUs  Time (s)", *rows]))
    return [row.value for row in found.rows]


def test_a_table_in_markdown_is_read_as_it_is_meant(tmp_path):
    printed = read(tmp_path, MARKDOWN, printed_table.mapped(MAPPING), {"hardware": "A100"})
    found = [
        (row.line, row.model, row.devices, row.strategy, row.metric, row.value, row.unit)
        for row in printed.rows
    ]
    assert found == [
        (10, "ResNet-50", 1, "eager", "train_seconds", 56.4, "min"),
        (11, "ResNet-50", 2, "ddp", "train_seconds", 30.1, "min"),
        (12, "Swin", 2, "ddp", "train_seconds", 1.5, "h"),
        (10, "ResNet-50", 1, "eager", "samples_per_second", 1190.5, "img/s"),
        (11, "ResNet-50", 2, "ddp", "samples_per_second", 2255.0, "img/s"),
        (10, "ResNet-50", 1, "eager", "test_accuracy", 83.53, "percent"),
        (11, "ResNet-50", 2, "ddp", "test_accuracy", 83.5, "percent"),
    ]
    assert {(row.table, row.hardware, row.study) for row in printed.rows} == {
        ("Table 2: Throughput and accuracy", "A100", "paper")
    }
    assert printed.rows[-1].rounding >= 0.2  # as the spread beside it says
    assert printed.notes == [
        "Table 2: Throughput and accuracy: Acc. is taken as percent: some values are above 1",
        "Table 2: Throughput and accuracy: no number, skipped: – (1), OOM (1)",
    ]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_file_of_a_spreadsheet_is_a_table_too(tmp_path, separator):
    text = "\ufeffModel,GPUs,Time\nnet,1,100\n,2,60\n".replace(",", separator)
    rows = read(tmp_path, text, name="a.csv").rows
    assert [(row.model, row.devices, row.value) for row in rows] == [
        ("net", 1, 100),
        ("net", 2, 60),
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((".91", "9.1e-1", "+0.91", "0.91*"), [0.91] * 4),
        (("56,4", "50"), [56.4, 50]),
        (("1,234", "56.5"), [1234, 56.5]),
        (("1,234", "1,234,567"), [1234, 1234567]),
        (("1,234", "0,5"), [1.234, 0.5]),
        (("1.234,5", "1 234", "1'234", "1\u2009234.5"), [1234.5, 1234, 1234, 1234.5]),
        (("0,912", "5"), [0.912, 5]),
        (("0.912", "1.234"), [0.912, 1.234]),
        (("12 s", "12s", "3 ± 1 s", "3 +/- 1", "0.91 ± 1e-2"), [12, 12, 3, 3, 0.91]),
    ],
)
def test_numbers_are_read_as_they_are_meant(tmp_path, values, expected):
    assert column(tmp_path, *values) == expected


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (("1,234", "5"), "line 2: column 'Time (s)': '1,234' may be 1234 or 1.234; write one"),
        (("1.234", "0,5"), "line 2: column 'Time (s)': '1.234' may be 1234 or 1.234; write one"),
        (("0.5", "1,5"), "line 3: column 'Time (s)': '1,5' is not clear; write a decimal point"),
        (("0.912", "91.3", "1,0"), "line 4: column 'Time (s)': '1,0' is not clear; write a dec"),
        (("1.234", "91.3", "1,0"), "line 4: column 'Time (s)': '1,0' is not clear; write a dec"),
        (("0,912", "91.3"), "line 2: column 'Time (s)': '0,912' is not clear; write a decimal p"),
        (("1e999",), "line 2: column 'Time (s)': '1e999' is too large; write a finite number"),
        (("1 ± 1e308",), "line 2: column 'Time (s)': '1 ± 1e308' is too large; write a finite"),
        (("1 ± 1e999",), "line 2: column 'Time (s)': '1 ± 1e999' is too large; write a finite"),
        *(
            ((value,), f"line 2: column 'Time (s)': '{value}' is not one number")
            for value in (
                "1.5.3",
                "4:30",
                "1 2",
                "~3",
                "> 5",
                "1-2",
                "0.9 (0.1)",
                "1 ± 2 ± 3",
                "0 912",
                "10³",
            )
        ),
    ],
)
def test_a_number_that_is_not_clear_is_refused(tmp_path, values, says):
    with pytest.raises(ParbenchError) as caught:
        column(tmp_path, *values)
    assert f"paper.md: {says}" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (
            ("1", "１２３４"),
            "column 'Time': '１２３４' is not one number; write the number in digits 0",
        ),
        (
            ("1", "١٢٣٤"),
            "column 'Time': '١٢٣٤' is not one number; write the number in digits 0 to 9",
        ),
        (
            ("1", "1e１"),
            "column 'Time': '1e１' is not one number; write the number in digits 0 to 9",
        ),
        (("1", "3 ± ١"), "column 'Time': '3 ± ١' is not one number; write the number in digits 0"),
        (("１", "3"), "devices: '１' is not a number of devices"),
    ],
)
def test_only_the_digits_0_to_9_are_read(tmp_path, row, says):
    path = tmp_path / "paper.md"
    path.write_text("| GPUs | Time |\n|---|---|\n| {} | {} |".format(*row))
    with pytest.raises(ParbenchError) as caught:
        main(["audit", str(path), "--columns", "GPUs=devices, Time=train_seconds"])
    assert str(caught.value).startswith(f"{path}: line 3: {says}")


MARKED = (
    *("1.87×[^1]", "1.87<sup>1</sup>", "1.87\\*", "1.87 [^note]", "<b>1.87</b>", "1.87^1^"),
    *("1.87\\†", "**1.87**<sup>a, b</sup>", "1.87<sup>†</sup>", "1.87 [2]", "187\\%"),
)


@pytest.mark.parametrize("cell", MARKED)
def test_emphasis_and_footnote_marks_are_ignored(tmp_path, capsys, cell):
    (tmp_path / "paper.md").write_text(f"| GPUs | Gain |\n|---|---|\n| 1 | {cell} |\n| 1 | 9 |")
    main(["audit", str(tmp_path / "paper.md"), "--columns", "GPUs=devices, Gain=speedup"])
    assert "speedup is 1.87 " in capsys.readouterr().out


@pytest.mark.parametrize("header", ["Time (min)†", "Time [min][^1]", "**Time (min)**<sup>1</sup>"])
def test_a_header_keeps_its_unit_beside_a_footnote_mark(tmp_path, header):
    rows = read(tmp_path, f"|Model|{header}|\n|net|3|", {"Time": "train_seconds"}).rows
    assert [(row.value, row.unit) for row in rows] == [(3, "min")]


STYLES = (
    "{:.2f}",
    "{:,.2f}",
    "**{:.2f}**",
    "{:.2f} ± 0.01",
    "{:.2f} s",
    "{:.2f}†",
    "`{:.2f}`",
    "{:.3e}",
)


@given(st.lists(st.tuples(st.integers(1, 10**9), st.sampled_from(STYLES)), min_size=1))
def test_a_number_in_any_usual_style_keeps_its_value(tmp_path_factory, numbers):
    values = [number / 100 for number, _ in numbers]
    shown = [style.format(value) for value, (_, style) in zip(values, numbers, strict=True)]
    found = column(tmp_path_factory.mktemp("table"), *shown)
    assert all(math.isclose(one, two, rel_tol=1e-3) for one, two in zip(found, values, strict=True))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Model  GPUs  Seconds\nnet  1  3", "no table has all of the columns Model, GPUs, Time; f"),
        (
            "Some words | with a bar.\n\n|A|B|\n|---|---|\n|1|2|\n|3|4|\n\nC  D\n5  6",
            "no table has all of the columns Model, GPUs, Time; found: line 1: Some words, with a "
            "bar.; line 3: A, B; line 8: C, D",
        ),
        ("no table", "no table has all of the columns Model, GPUs, Time; found: no line of "),
        ("Model  GPUs  Time\nnet", "line 2: 1 value, but the header at line 1 has 3; give"),
        ("Model  GPUs  Time\nnet  1", "line 2: 2 values, but the header at line 1 has 3; give"),
        ("|Model|GPUs|Time|\n|net|1|2|3|", "line 2: 4 values, but the header at line 1 has 3"),
        ("Model  GPUs  Time\nnet  two  3", "line 2: devices: 'two' is not a number of devices"),
        ("Model  GPUs  Time\nnet  0  3", "line 2: devices: '0' is not a number of devices"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused(tmp_path, text, says):
    with pytest.raises(ParbenchError) as caught:
        read(tmp_path, text)
    assert f"paper.md: {says}" in str(caught.value)


TWICE = "2 columns have one header of --columns: {}; give each column a name of its own, and map"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "|Model|Time|*time*|\n|---|---|---|\n|net|3|4|",
            "line 1: " + TWICE.format("'Time', '*time*'"),
        ),
        (
            "Model,Time (s),Time (min)\nnet,60,1",
            "line 1: " + TWICE.format("'Time (s)', 'Time (min)'"),
        ),
        ("|  | 1 GPU | 2 GPUs |\n|-|-|-|\n| Model | Time | Time |\n| net | 3 | 4 |", "line 3: 2"),
    ],
)
def test_a_header_of_two_columns_is_refused(tmp_path, text, says):
    path = tmp_path / ("paper.csv" if "," in text else "paper.md")
    path.write_text(text)
    with pytest.raises(ParbenchError) as caught:
        main(["audit", str(path), "--columns", "Model=model, Time=train_seconds"])
    assert f"{path}: {says}" in str(caught.value)


def test_a_whole_header_counts_before_one_without_its_unit(tmp_path):
    columns = {"Time": "train_seconds", "Time (min)": "total_seconds"}
    rows = read(tmp_path, "Time (min)  Time  Time (h)\n2  60  1", columns).rows
    assert {(row.metric, row.value) for row in rows} == {
        ("train_seconds", 60),
        ("total_seconds", 2),
    }


def test_no_line_of_a_markdown_table_is_the_name_of_the_next(tmp_path, capsys):
    text = "Table 1\n=======\n\n|  | 1 GPU |\n|---|---|\n| Model | Time |\n| net | 3 |\n"
    (tmp_path / "paper.md").write_text(text)
    main(["audit", str(tmp_path / "paper.md"), "--columns", "Model=model, Time=train_seconds"])
    assert "\nTable 1: Time is taken in s: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("columns", "given", "says"),
    [
        ("Model", "", "--columns: 'Model' is not `Header=name`; write, for example, --columns"),
        ("GPUs=devices", "", "--columns names no metric, such as train_seconds; map one"),
        (
            "Time=trainseconds",
            "",
            "'trainseconds' is not a column or metric that can be checked; did",
        ),
        ("A=train_seconds, B=train_seconds", "", "--columns maps 2 headers to 'train_seconds'"),
        (
            "Model=model, Model=strategy, Time=train_seconds",
            "",
            "--columns gives 'Model' twice: 'Model=model' and 'Model=strategy'; keep one of them",
        ),
        ("Time=train_seconds, *time*=speedup", "", "--columns gives '*time*' twice: "),
        (
            "Batch=batch_size, Each=batch_per_device, Time=train_seconds",
            "",
            "--columns 'Batch'=batch_size and --columns 'Each'=batch_per_device state the same",
        ),
        ("Time=train_seconds", "model=A, model=B", "--given gives 'model' twice: 'model=A' and"),
        ("Time=train_seconds", "hardware", "'hardware' is not `name=value`; write, for example, "),
        ("Time=train_seconds", "hardware", '--given "hardware=V100, strategy=ddp"'),
        (
            "Name=model, Time=train_seconds",
            "model=B",
            "--columns 'Name'=model and --given model='B' state the same; keep one of them",
        ),
        (
            "Each=batch_per_device,\nTime=train_seconds",
            "batch_size=64",
            "--columns 'Each'=batch_per_device and --given batch_size='64' state the same",
        ),
        ("Time=train_seconds", "devices=0", "--given: devices: '0' is not a number of devices"),
        ("Time=train_seconds", "hardwar=X", "--given: unknown name 'hardwar'; did you mean"),
    ],
)
def test_a_mapping_that_names_nothing_known_is_refused(tmp_path, columns, given, says):
    (tmp_path / "paper.md").write_text("Time\n3")
    words = [str(tmp_path / "paper.md"), "--columns", columns, "--given", given]
    with pytest.raises(ParbenchError) as caught:
        main(["audit", *words])
    assert says in str(caught.value)


def test_a_table_without_columns_is_told_to_map_them(tmp_path):
    path = tmp_path / "paper.md"
    path.write_text(MARKDOWN.strip())
    with pytest.raises(ParbenchError) as caught:
        main(["audit", str(path)])
    assert str(caught.value).endswith(
        "found: # A paper; of a table as printed, map the columns with --columns"
    )


def test_one_finding_is_one_of_one_value(tmp_path, capsys):
    (tmp_path / "paper.md").write_text("Efficiency  x\n1.5  y")
    words = ["--columns", "Efficiency=parallel_efficiency", "--train-samples", "1"]
    main(["audit", str(tmp_path / "paper.md"), *words])
    said = " ".join(capsys.readouterr().out.split())
    assert "but 1 device allows at most 1 (line 2) 1 value, 1 finding: 0 certain, 1 l" in said
    assert "1 of 1 value was compared with others or with its devices" in said
    assert "Assumed: 10 classes, 1 training sample, a test" in said


def test_the_audit_reads_it_and_says_what_took_part(tmp_path, capsys):
    (tmp_path / "paper.md").write_text(MARKDOWN.replace("30.1†", "20.1†"))
    main(["audit", str(tmp_path / "paper.md"), "--columns", MAPPING, "--given", "hardware=A100"])
    said = capsys.readouterr().out
    assert "faster than its devices (likely): ResNet-50 ddp on 2x A100: 3384 s to 1206 s is" in said
    assert (
        "4 of 7 values were compared with others or with their devices; of 3 only unit and" in said
    )
    assert "no number, skipped: – (1), OOM (1)" in said
