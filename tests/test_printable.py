"""Text that others wrote does nothing to a terminal, a page or a reader."""

from __future__ import annotations

import pytest

from errors import ParbenchError, run_main
from printable import LOG_WIDTH, log_line, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, é, 模型, Ω ±", "plain, é, 模型, Ω ±"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("12\N{NO-BREAK SPACE}GB", "12\N{NO-BREAK SPACE}GB"),
        ("می\N{ZERO WIDTH NON-JOINER}خواهم", "می\N{ZERO WIDTH NON-JOINER}خواهم"),
        ("\x1b[1;31mred\x1b[0m \x1b[2J\x1b[?25l", "red "),
        ("\x1b]0;title\x07a\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "alink"),
        ("a\x1bcb", "a�cb"),
        ("a\x00\x08\x7f\x9b2Jb\r", "a����2Jb�"),
        ("\u202egnp.exe \u2066 \u200b \ufeff \ud800", "�gnp.exe � � � �"),
    ],
)
def test_what_is_shown_of_a_text(text, shown):
    assert printable(text) == shown
    assert printable({text: [text, 1, None]}) == {shown: [shown, 1, None]}
    shown.encode()


def test_a_line_of_a_log_is_what_stands_there_in_the_end():
    assert log_line("10 %\r90 %\r\n") == "90 %"
    assert log_line("a\tb  ") == "a       b"
    assert log_line("\x1b[32mok\x1b[0m") == "ok"
    assert len(log_line("x" * 1000)) == LOG_WIDTH


def test_no_message_reaches_the_terminal_raw(capsys):
    def main():
        raise ParbenchError("\x1b[2Jmirror says: \x1b]0;x\x07404\nnext line")

    with pytest.raises(SystemExit) as ended:
        run_main(main)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: mirror says: 404\nnext line\n"
