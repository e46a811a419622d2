"""The reference has every public object, and says what its arguments are and what it returns."""

import inspect
import re
from pathlib import Path

import pytest

import sapc

ROOT = Path(__file__).parents[1]
PAGES = [p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts and p.parent.name != "results"]
# `preset` is an old name.
PUBLIC = [name for name in sapc.__all__ if name not in ("__version__", "preset")]

# Names whose docstrings do not have the sections yet; a name leaves this list when it has them, and none may join.
UNFINISHED = (
    *(
        "Affine",
        "Axis",
        "Balance",
        "Constraint",
        "FNO",
        "Grid",
        "Manifold",
        "Pin",
        "Task",
        "check",
        "evaluate",
    ),
    *(
        "get_method",
        "get_task",
        "load_plugin",
        "method_names",
        "register_method",
        "register_task",
        "task_names",
    ),
)


def functions(name):
    """Return the public functions of a name of `sapc`: itself, or its methods, old names left out."""
    thing = getattr(sapc, name)
    members = (
        {f"{name}.{key}": value for key, value in vars(thing).items()}
        if inspect.isclass(thing)
        else {name: thing}
    )
    unwrapped = {label: inspect.unwrap(getattr(value, "__func__", value)) for label, value in members.items()}
    return {
        label: function
        for label, function in unwrapped.items()
        if inspect.isfunction(function)
        and not label.rpartition(".")[2].startswith("_")
        and function.__module__ != "sapc._old_names"
    }


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    named = set(re.findall(r"auto(?:class|function):: sapc\.(\w+)$", text, re.MULTILINE))
    named |= set(re.findall(r"of the module `sapc\.(\w+)`", text))
    assert named == set(PUBLIC)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in UNFINISHED])
def test_a_public_function_documents_its_arguments_and_its_result(name):
    missing = []
    for label, function in functions(name).items():
        text, signature = inspect.getdoc(function) or "", inspect.signature(function)
        described = set(re.findall(r"^    \**(\w+)(?:, \**\w+)*: ", text, re.MULTILINE))
        described |= {
            n for line in re.findall(r"^    ([\w, ]+): ", text, re.MULTILINE) for n in line.split(", ")
        }
        missing += [f"{label}({p})" for p in signature.parameters if p not in described | {"self", "cls"}]
        if (
            signature.return_annotation not in (None, "None", inspect.Signature.empty)
            and "Returns:" not in text
        ):
            # A sentence that begins with "Return" may stand for the section where there is nothing to add.
            missing += [f"{label} -> result"] if not re.match(r"(Return|Whether|Yield)", text) else []
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_of_a_page_lead_to_files(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+\.\w+)", page.read_text(encoding="utf-8"))
    made = ("results/compact.md", "results/full.md", "results/published.md")
    assert [k for k in links if not (page.parent / k).exists() and not k.endswith(made)] == []
