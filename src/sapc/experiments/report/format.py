"""Tables of text as Markdown, LaTeX, HTML or CSV; and a mean with its error in the compact form.

The compact form m(s)p stands for (m ± s) 10^p with 1 <= m < 10, both to one decimal: 2.2(0.8)-5 is (2.2 ±
0.8) 10^-5. Where a bare sign could be misread it is written 2.2(0.8)e-5, and without e0; only LaTeX has the
short one.

Best and second best are bold and underlined. A cell holds plain text: every writer escapes it.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ..._old_names import old_attribute, rename_arguments

MISSING, FAILED, NOTHING = "missing", "failed", "–"
NO_WEIGHTS, NO_FFM, NOT_RECORDED = "no weights", "no FFM", "not recorded"
ABSENT = dict.fromkeys((MISSING, NO_WEIGHTS, NO_FFM, NOT_RECORDED), "missing")
ABSENT |= {FAILED: "failed", NOTHING: "nothing"}
"""Cells without a number, and their class in HTML."""

_COMPACT = re.compile(r"(?<![\w.])(-?\d+\.\d)(?:\((\d+\.\d)\)(?:e(-?\d+))?|e(-?\d+))(?![\w.])")
# What Markdown would take for more than text.
_MARKUP = re.compile(r"[\\`*\[\]|$<]|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])|~~")
_ENTITIES = {"<": "&lt;", "&": "&amp;"}
_WORDS = {"CE_L": "CE$_L$", "CE_G": "CE$_G$", "W2": "$W_2$"}
# Straight quotes: \textquotedbl is not in every encoding. Brackets: after a line's end one would begin an
# argument.
_SIGNS = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}",
    '"': "''", "[": "{[}", "]": "{]}", "–": "--", "×": r"$\times$",
    "±": r"$\pm$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
})  # fmt: skip


@rename_arguments(bold="best", underlined="second_best")
@dataclass(frozen=True)
class Table:
    """Text in rows and columns.

    Attributes:
        title: Caption.
        columns: Heads of the columns.
        rows: Cells, row by row.
        best: Places (row, column) of the best numbers, written bold.
        second_best: Places of the second best, written underlined.
        heads: How many columns, from the left, say what a row is.
        notes: Sentences that a reader needs.
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    best: frozenset[tuple[int, int]] = frozenset()
    second_best: frozenset[tuple[int, int]] = frozenset()
    heads: int = 1
    notes: tuple[str, ...] = ()
    bold = old_attribute("Table.bold", "Table.best")
    underlined = old_attribute("Table.underlined", "Table.second_best")

    def markdown(self) -> str:
        """Return the table alone in Markdown."""
        rule = "|".join(["---"] * self.heads + ["---:"] * (len(self.columns) - self.heads))
        rows = [list(map(_markdown, self.columns)), *self._cells(_markdown, "**{}**", "<u>{}</u>")]
        head, *lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join((head, f"|{rule}|", *lines, ""))

    def section(self) -> str:
        """Return heading, table and notes in Markdown."""
        notes = "".join(f"- {_markdown(note)}\n" for note in self.notes)
        return "\n".join(filter(None, (f"## {_markdown(self.title)}\n", self.markdown(), notes)))

    def latex(self) -> str:
        r"""Return a float with the notes below it; it needs `\usepackage{booktabs}`."""
        layout = "l" * self.heads + "r" * (len(self.columns) - self.heads)
        lines = [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}[ht]",
            r"\centering\footnotesize\setlength{\tabcolsep}{3pt}",
            rf"\caption{{{_latex(self.title)}}}",
            rf"\begin{{tabular}}{{{layout}}}",
            r"\toprule",
            " & ".join(map(_latex_cell, self.columns)) + r" \\",
            r"\midrule",
        ]
        cells = self._cells(_latex_cell, r"\textbf{{\boldmath {}}}", r"\underline{{{}}}")
        previous: tuple[str, ...] = ()
        for row, texts in zip(self.rows, cells, strict=True):
            if self.heads > 1 and previous and previous[0] != row[0]:
                lines.append(r"\midrule")
            # Heads that say the same as in the row before are left out; the last one stays.
            last = self.heads - 1
            repeats = next((j for j in range(last) if previous[j : j + 1] != row[j : j + 1]), last)
            lines.append(" & ".join([""] * repeats + texts[repeats:]) + r" \\")
            previous = row
        lines += [r"\bottomrule", r"\end{tabular}", *(rf"\par {_latex(note)}" for note in self.notes)]
        return "\n".join((*lines, r"\end{table}", ""))

    def html(self) -> str:
        """Return a `<table>` with its caption, and the notes as a list after it."""
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in self.columns)
        lines = [
            f"<table>\n<caption>{html.escape(self.title)}</caption>",
            f"<thead>\n<tr>{head}</tr>\n</thead>\n<tbody>",
        ]
        rows = self._cells(html.escape, "<strong>{}</strong>", "<u>{}</u>")
        for row, cells in zip(self.rows, rows, strict=True):
            line = [f'<th scope="row">{cell}</th>' for cell in cells[: self.heads]]
            for text, cell in list(zip(row, cells, strict=True))[self.heads :]:
                kind = f' class="{ABSENT[text]}"' if text in ABSENT else ""
                line.append(f"<td{kind}>{cell}</td>")
            lines.append(f"<tr>{''.join(line)}</tr>")
        lines.append("</tbody>\n</table>")
        if self.notes:
            items = "".join(f"<li>{html.escape(note)}</li>\n" for note in self.notes)
            lines.append(f'<ul class="notes">\n{items}</ul>')
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Return the text of the cells, for a spreadsheet."""
        return write_csv((self.columns, *self.rows))

    def _cells(self, write: Callable[[str], str], best: str, second: str) -> Iterator[list[str]]:
        """Write every cell, within `best` or `second` where it is that."""
        marks = dict.fromkeys(self.second_best, second) | dict.fromkeys(self.best, best)
        for i, row in enumerate(self.rows):
            yield [marks.get((i, j), "{}").format(write(cell)) for j, cell in enumerate(row)]


def write_csv(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV; None is an empty cell."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue()


def compact(mean: float, error: float | None = None) -> str:
    """Return a finite mean and its standard error in the compact form; without an error only m and p."""
    scale = mean or error or 0.0
    if not scale:
        return "0"
    exponent = int(f"{scale:.1e}".partition("e")[2])
    m, s = (f"{Decimal(value).scaleb(-exponent):.1f}" for value in (mean, error or 0.0))
    power = f"e{exponent}" if exponent else ""
    return f"{m}{power}" if error is None else f"{m}({s}){power}"


def _markdown(text: str) -> str:
    return _MARKUP.sub(lambda sign: _ENTITIES.get(sign[0], f"\\{sign[0]}"), " ".join(text.split()))


def _latex_cell(text: str) -> str:
    return _WORDS.get(text) or _latex(text)


def _latex(text: str) -> str:
    """Escape text, and write numbers of the compact form as LaTeX does."""
    text, latex, end = " ".join(text.split()), "", 0
    for number in _COMPACT.finditer(text):
        latex += text[end : number.start()].translate(_SIGNS) + _power(*number.groups())
        end = number.end()
    return latex + text[end:].translate(_SIGNS)


def _power(m: str, s: str | None, p: str | None, alone: str | None) -> str:
    if s is None:
        return f"${m} \\cdot 10^{{{alone}}}$"
    power = int(p or 0)
    return f"${m}({s}){{{'-' if power < 0 else '+'}}}{abs(power)}$"


def short_number(value: float) -> str:
    """Return a number to three digits, without decimals from 100 on."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def describe_versions(environment: Mapping[str, Any], device: str) -> str:
    """Return with which versions, and on what, something was sampled."""
    return f"sapc {environment['sapc']} and torch {environment['torch']} on {device}"


def describe_origin(entry: Mapping[str, Any]) -> str:
    """Return versions and hardware of an evaluation."""
    environment = entry["environment"]
    is_on_gpu = entry["device"].startswith("cuda")
    device = environment["device"] if is_on_gpu else f"{environment['cpus']} CPU cores"
    return describe_versions(environment, device)
