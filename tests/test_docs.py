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


def functions(name):
    """Return what a name of `sapc` can be called by: itself and, of a class, its methods; no old names."""
    thing = getattr(sapc, name)
    if not inspect.isclass(thing):
        return {name: inspect.unwrap(thing)} if inspect.isfunction(thing) else {}
    methods = {key: inspect.unwrap(getattr(value, "__func__", value)) for key, value in vars(thing).items()}
    is_public = lambda key, method: inspect.isfunction(method) and not key.startswith("_")
    is_old = lambda method: method.__module__ == "sapc._old_names"
    found = {f"{name}.{key}": m for key, m in methods.items() if is_public(key, m) and not is_old(m)}
    return found if issubclass(thing, Exception | Warning) else {name: thing} | found


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    named = set(re.findall(r"auto(?:class|function):: sapc\.(\w+)$", text, re.MULTILINE))
    named |= set(re.findall(r"of the module `sapc\.(\w+)`", text))
    assert named == set(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_function_documents_its_arguments_and_its_result(name):
    missing = []
    for label, function in functions(name).items():
        text, signature = inspect.getdoc(function) or "", inspect.signature(function)
        lines = re.findall(r"^    ([\w*, ]+): ", text, re.MULTILINE)
        described = {name.strip("*") for line in lines for name in line.split(", ")}
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
    made = tuple(f"results/{name}.md" for name in ("compact", "full", "published", "samplers", "beyond"))
    assert [k for k in links if not (page.parent / k).exists() and not k.endswith(made)] == []


def test_recorded_commands_name_no_place_of_one_machine():
    files = [path for place in ("benchmarks", "results", "src") for path in (ROOT / place).rglob("*.json")]
    commands = {path: re.findall(r'"command": "([^"]*)"', path.read_text(encoding="utf-8")) for path in files}
    assert sum(map(len, commands.values())) > 100
    assert [
        (path, k) for path, found in commands.items() for k in found if re.search(r"(^|[\s=])/\w", k)
    ] == []
