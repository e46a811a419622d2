"""Text in rows and columns, written as Markdown, LaTeX, HTML or CSV; and a mean with its error in the compact form.

The compact form m(s)p stands for (m ± s) 10^p with 1 <= m < 10, both to one decimal: 2.2(0.8)-5 is (2.2 ± 0.8) 10^-5. Where a bare sign
could be misread it is written 2.2(0.8)e-5, and without e0; only LaTeX has the short one.

Best and second best are bold and underlined. What stands in a cell is text and nothing else: every writer escapes it.
"""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

MISSING, FAILED, NOTHING = "missing", "failed", "–"
NO_WEIGHTS, NO_FFM, NOT_RECORDED = "no weights", "no FFM", "not recorded"
ABSENT = dict.fromkeys((MISSING, NO_WEIGHTS, NO_FFM, NOT_RECORDED), "missing") | {
    FAILED: "failed",
    NOTHING: "nothing",
}
"""Cells without a number, and their class in HTML."""

_COMPACT = re.compile(r"(?<![\w.])(-?\d+\.\d)(?:\((\d+\.\d)\)(?:e(-?\d+))?|e(-?\d+))(?![\w.])")
_MARKUP = re.compile(
    r"[\\`*\[\]|$<]|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])|~~"
)  # what Markdown would take for more than text
_ENTITIES = {"<": "&lt;", "&": "&amp;"}
_WORDS = {"CE_L": "CE$_L$", "CE_G": "CE$_G$", "W2": "$W_2$"}
_SIGNS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",  # \textquotedbl is not in every encoding
    "[": "{[}",  # after a line's end it would begin an argument
    "]": "{]}",
    "–": "--",
    "×": r"$\times$",
    "±": r"$\pm$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


@dataclass(frozen=True)
class Table:
    """Text in rows and columns.

    bold, underlined   the places (row, column) of the best and the second best
    heads              how many columns, from the left, say what a row is
    notes              what has to be known to read it
    """

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    bold: frozenset[tuple[int, int]] = frozenset()
    underlined: frozenset[tuple[int, int]] = frozenset()
    heads: int = 1
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """The table alone, as Markdown has it."""
        values = len(self.columns) - self.heads
        lines = [
            "| " + " | ".join(map(_markdown, self.columns)) + " |",
            "|" + "|".join([*(["---"] * self.heads), *(["---:"] * values)]) + "|",
        ]
        for i, row in enumerate(self.rows):
            cells = (
                self._marked(_markdown(cell), i, j, ("**", "**"), ("<u>", "</u>"))
                for j, cell in enumerate(row)
            )
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def section(self) -> str:
        """Heading, table and notes, as Markdown has them."""
        notes = "".join(f"- {_markdown(note)}\n" for note in self.notes)
        return "\n".join(filter(None, (f"## {_markdown(self.title)}\n", self.markdown(), notes)))

    def latex(self) -> str:
        """A float with the notes below it; needs `\\usepackage{booktabs}`."""
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
        before: tuple[str, ...] = ()
        for i, row in enumerate(self.rows):
            if self.heads > 1 and before and before[0] != row[0]:
                lines.append(r"\midrule")
            cells = [
                self._marked(_latex_cell(cell), i, j, (r"\textbf{\boldmath ", "}"), (r"\underline{", "}"))
                for j, cell in enumerate(row)
            ]
            same = _repeated(before, row, self.heads - 1)
            lines.append(" & ".join(["" if j < same else cell for j, cell in enumerate(cells)]) + r" \\")
            before = row
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par {_latex(note)}" for note in self.notes]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def html(self) -> str:
        """A `<table>` with its caption, and the notes as a list after it."""
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in self.columns)
        lines = [
            f"<table>\n<caption>{html.escape(self.title)}</caption>",
            f"<thead>\n<tr>{head}</tr>\n</thead>\n<tbody>",
        ]
        for i, row in enumerate(self.rows):
            cells = "".join(self._html_cell(cell, i, j) for j, cell in enumerate(row))
            lines.append(f"<tr>{cells}</tr>")
        lines.append("</tbody>\n</table>")
        if self.notes:
            items = "".join(f"<li>{html.escape(note)}</li>\n" for note in self.notes)
            lines.append(f'<ul class="notes">\n{items}</ul>')
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """The text of the cells, for a spreadsheet."""
        stream = io.StringIO()
        csv.writer(stream, lineterminator="\n").writerows((self.columns, *self.rows))
        return stream.getvalue()

    def _html_cell(self, cell: str, i: int, j: int) -> str:
        text = html.escape(cell)
        if j < self.heads:
            return f'<th scope="row">{text}</th>'
        if kind := ABSENT.get(cell):
            return f'<td class="{kind}">{text}</td>'
        return f"<td>{self._marked(text, i, j, ('<strong>', '</strong>'), ('<u>', '</u>'))}</td>"

    def _marked(self, text: str, i: int, j: int, best: tuple[str, str], second: tuple[str, str]) -> str:
        around = best if (i, j) in self.bold else second if (i, j) in self.underlined else ("", "")
        return text.join(around)


def compact(mean: float, error: float | None = None) -> str:
    """A finite mean and its standard error in the compact form; of one value alone only m and p."""
    leading = mean or error or 0.0
    if not leading:
        return "0"
    exponent = int(f"{leading:.1e}".partition("e")[2])
    m, s = (_scaled(value, exponent) for value in (mean, error or 0.0))
    power = f"e{exponent}" if exponent else ""
    return f"{m}{power}" if error is None else f"{m}({s}){power}"


def _scaled(value: float, exponent: int) -> str:
    return f"{Decimal(value).scaleb(-exponent):.1f}"


def _repeated(before: tuple[str, ...], row: tuple[str, ...], most: int) -> int:
    """How many cells, from the left, say the same as in the row before."""
    same = 0
    while before and same < most and before[same] == row[same]:
        same += 1
    return same


def _markdown(text: str) -> str:
    return _MARKUP.sub(lambda sign: _ENTITIES.get(sign[0], f"\\{sign[0]}"), " ".join(text.split()))


def _latex_cell(text: str) -> str:
    return _WORDS.get(text) or _latex(text)


def _latex(text: str) -> str:
    """Escaped, with every number in the compact form."""
    text, made, end = " ".join(text.split()), "", 0
    for number in _COMPACT.finditer(text):
        made += _escaped(text[end : number.start()]) + _power(*number.groups())
        end = number.end()
    return made + _escaped(text[end:])


def _power(m: str, s: str | None, p: str | None, alone: str | None) -> str:
    if s is None:
        return f"${m} \\cdot 10^{{{alone}}}$"
    power = int(p or 0)
    return f"${m}({s}){{{'-' if power < 0 else '+'}}}{abs(power)}$"


def _escaped(text: str) -> str:
    return "".join(_SIGNS.get(sign, sign) for sign in text)
