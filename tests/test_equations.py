"""One search finds an equation of the paper: every label of the index is named in exactly one docstring."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = re.findall(
    r"^\| (`.*?) \|", (ROOT / "docs" / "explanation" / "code.md").read_text(encoding="utf-8"), re.MULTILINE
)
LABELS = [label for row in ROWS for label in re.findall(r"`([^`]+)`", row)]
LABEL_IN_TEXT = re.compile(r"\bEq\.\s+([A-Za-z][\w-]*)")


def docstrings():
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield path.name, ast.get_docstring(node) or ""


def test_the_index_lists_the_equations():
    assert len(LABELS) == len(set(LABELS)) == 23


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_a_label_is_named_in_exactly_one_docstring(label):
    names = [
        name
        for name, text in docstrings()
        for label_in_text in LABEL_IN_TEXT.findall(text)
        if label_in_text == label
    ]
    assert len(names) == 1, names


def test_no_docstring_names_a_label_that_the_index_lacks():
    names = {label_in_text for _, text in docstrings() for label_in_text in LABEL_IN_TEXT.findall(text)}
    assert names == set(LABELS)
