"""Citations: entries that BibTeX accepts, and `sapc cite` for the package, for runs and for methods."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import sapc
from commands import is_one_sentence
from sapc.methods import get_method, is_extension, method_names, references
from sapc.methods.references import Reference
from sapc.training.run_folder import write_json

REFERENCES = {value.key: value for value in vars(references).values() if isinstance(value, Reference)}
BASIS = ["lipman2023flow", "li2021fourier", "ansel2024pytorch", "harris2020array", "collette2013python"]
REQUIRED_FIELDS = {
    "article": {"author", "title", "journal", "year"},
    "inproceedings": {"author", "title", "booktitle", "year"},
    "book": {"author", "title", "publisher", "year"},
    "unpublished": {"author", "title", "note"},
}


# -- a small parser of BibTeX --


def find_brace_end(text: str, start: int) -> int:
    """The end of the group that opens at `start`; a brace after a backslash is a letter."""
    depth = 0
    for place in range(start, len(text)):
        if text[place - 1] != "\\":
            depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise AssertionError(f"a brace is never closed: {text[start : start + 60]}")


def parse(text: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Entries by key, as (type, fields); what is between entries must be comments."""
    entries: dict[str, tuple[str, dict[str, str]]] = {}
    place = 0
    while match := re.compile(r"@(\w+)\{(\w+),\n").search(text, place):
        assert all(not line or line.startswith("% ") for line in text[place : match.start()].splitlines())
        end = find_brace_end(text, match.start(2) - 1)
        kind, key = match.groups()
        assert key not in entries
        entries[key] = (kind, fields_of(text[match.end() : end]))
        place = end + 1
    assert not text[place:].strip()
    return entries


def fields_of(body: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    place = 0
    while match := re.compile(r"\s*(\w+) = \{").match(body, place):
        end = find_brace_end(body, match.end() - 1)
        assert match[1] not in fields
        fields[match[1]] = body[match.end() : end]
        assert body[end + 1] == ","
        place = end + 2
    assert not body[place:].strip()
    return fields


def keys(out: str) -> list[str]:
    return list(parse(out))


@pytest.mark.parametrize(
    "bad", ["@book{a,\n  title = {x,\n}", "@book{a,\n  title = {x}\n}", "x\n@book{a,\n}"]
)
def test_the_parser_refuses(bad):
    with pytest.raises((AssertionError, IndexError)):
        parse(bad)


# -- the references --


def test_keys_are_distinct():
    values = {id(v): v for v in vars(references).values() if isinstance(v, Reference)}
    assert len(values) == len(REFERENCES) >= 14


@pytest.mark.parametrize("reference", REFERENCES.values(), ids=REFERENCES)
def test_entry_is_valid(reference):
    ((key, (kind, fields)),) = parse(reference.bibtex()).items()
    assert (key, kind) == (reference.key, reference.kind)
    assert REQUIRED_FIELDS[kind] <= set(fields)
    assert all(value.strip() == value != "" for value in fields.values())
    assert fields["year"] == str(reference.year)
    assert re.fullmatch(rf"[a-z]+{reference.year}[a-z0-9]+", key)


@pytest.mark.parametrize("reference", REFERENCES.values(), ids=REFERENCES)
def test_entry_is_safe_in_latex(reference):
    entry = reference.bibtex()
    assert entry.isascii()
    assert not re.search(r"(?<!\\)[&%_#$~^]", entry.replace("archiveprefix", ""))


@pytest.mark.parametrize("reference", REFERENCES.values(), ids=REFERENCES)
def test_authors_are_last_name_first(reference):
    author = parse(reference.bibtex())[reference.key][1]["author"]
    names = author.split(" and ")
    assert len(names) == len(reference.authors)
    assert all("," in name or re.fullmatch(r"\{\w+\}", name) for name in names)


@pytest.mark.parametrize("reference", REFERENCES.values(), ids=REFERENCES)
def test_link(reference):
    assert reference.link.startswith("https://") or reference is references.SAPC
    if reference.arxiv:
        assert re.fullmatch(r"\d{4}\.\d{5}", reference.arxiv)


def test_agrees_with_the_citation_file():
    cff = (Path(__file__).parents[2] / "CITATION.cff").read_text()
    assert f'title: "{references.SAPC.title}"' in cff
    assert f"year: {references.SAPC.year}" in cff
    for author in references.SAPC.authors:
        last, first = author.split(", ")
        assert f"given-names: {first}\n      family-names: {last}" in cff


def reference(**fields) -> Reference:
    values = {"key": "k", "title": "T", "authors": ("Doe, J.",), "year": 2000, "venue": "J", **fields}
    return Reference(**values)


@pytest.mark.parametrize(
    ("authors", "names"),
    [
        (("Doe, J.",), "Doe"),
        (("Doe, J.", "van Roe, R."), "Doe and van Roe"),
        (("Doe, J.", "Roe, R.", "Utkarsh"), "Doe, Roe and Utkarsh"),
        (("Utkarsh", "Doe, J.", "Roe, R.", "Poe, E."), "Utkarsh et al."),
    ],
)
def test_text(authors, names):
    assert reference(authors=authors).text == f"{names} (2000), T"


def test_text_of_a_method():
    assert references.FFM.text == "Kerrigan, Migliorini and Smyth (2024), Functional Flow Matching"
    assert references.ECI.text.startswith("Cheng et al. (2025), Gradient-Free")


def test_entry_of_ones_own():
    entry = reference(
        title="PDEs & L-BFGS: 100% of x_1",
        authors=("Fernández del Río, Jaime", "Utkarsh"),
        venue="",
        arxiv="2001.00001",
        pages="1-9",
    )
    ((_, (kind, fields)),) = parse(entry.bibtex()).items()
    assert kind == "article"
    assert fields == {
        "author": "{Fernández del Río}, Jaime and {Utkarsh}",
        "title": r"{PDEs \& L-BFGS: 100\% of x\_1}",
        "journal": "arXiv preprint arXiv:2001.00001",
        "pages": "1--9",
        "year": "2000",
        "eprint": "2001.00001",
        "archiveprefix": "arXiv",
        "url": "https://arxiv.org/abs/2001.00001",
    }


def test_names_and_titles_are_read_without_latex():
    entry = r"""@article{k2000,
  author = {{\c C}elik, A{\u g} and {Fern{\'a}ndez del R{\'i}o}, Jaime and {Utkarsh}},
  title = {{D-Flow} \& {\"U}ber {PDEs}},
  journal = {J},
  year = {2000},
}"""
    (record,) = references.read_bibliography(entry)
    assert record.authors == ("Çelik, Ağ", "Fernández del Río, Jaime", "Utkarsh")
    assert record.title == "D-Flow & Über PDEs"
    assert record.bibtex() == entry


# -- the command --


@pytest.fixture
def run(folder):
    """Make a run folder of a method, with scores of others; only what names methods is in it."""

    def make(name: str, method: str, *samplers: str) -> Path:
        path = folder / name
        path.mkdir()
        write_json(path / "config.json", sapc.training_config("heat", method, "tiny").to_dict())
        for sampler in samplers:
            file = "scores.json" if sampler == method else f"scores-{sampler}.json"
            write_json(path / file, {"settings": {"method": sampler}})
        return path

    return make


def test_help_shows_an_example(call):
    code, out, _ = call("cite", "--help")
    assert code == 0
    assert "Example: sapc cite" in " ".join(out.split())


def test_the_package(call):
    code, out, err = call("cite")
    assert (code, err) == (0, "")
    assert keys(out) == ["romoli2026source", *BASIS, "hunter2007matplotlib"]
    assert out.startswith("% SAPC: the method of this package\n@unpublished{")


@pytest.mark.parametrize("name", method_names(variants=True))
def test_every_method(call, name):
    code, out, _ = call("cite", "--method", name)
    method = get_method(name)
    rests = {method.reference, get_method(method.weights).reference, *method.further_references}
    assert code == 0
    assert keys(out)[0] == method.reference.key
    assert set(keys(out)) == {r.key for r in rests} | set(BASIS)
    comments = [line for line in out.splitlines() if line.startswith("%")]
    assert len(comments) == len(keys(out))
    purpose = f"the {'method' if method.trains else 'sampler'}"
    if is_extension(name):
        purpose = "the method that it extends, beyond the paper"
    assert comments[0] == f"% {name.upper().replace('_', ' ')}: {purpose}"


def test_methods_by_name_once_and_in_one_order(call):
    _, out, _ = call("cite", "--method", "pcfm", "--method", "eci", "--method", "pcfm")
    assert keys(out) == ["cheng2025gradient", "utkarsh2025physics", "kerrigan2024functional", *BASIS]
    assert "% ECI, PCFM: the training of the weights\n@inproceedings{kerrigan2024functional" in out
    assert call("cite", "--method", "eci", "--method", "pcfm")[1] == out


def test_what_methods_rest_on(call):
    _, out, _ = call("cite", "--method", "pbfm", "--method", "dflow")
    assert keys(out) == [
        "baldan2026physics", "benhamu2024dflow", "kerrigan2024functional", "liu2025config", "liu1989limited",
        *BASIS,
    ]  # fmt: skip
    assert "% DFLOW: what it rests on\n@article{liu1989limited" in out


def test_runs(call, run):
    first, second = run("a", "ffm", "ffm", "eci"), run("b", "sapc")
    code, out, err = call("cite", str(first), str(second), "--method", "cafm")
    assert (code, err) == (0, "")
    assert keys(out)[:4] == [
        "romoli2026source", "kerrigan2024functional", "cheng2025gradient", "christopher2026constraint"
    ]  # fmt: skip
    assert keys(out)[4:] == BASIS
    assert call("cite", str(second), str(first), "--method", "cafm")[1] == out


def test_what_a_distance_rests_on(call, run):
    folder = run("a", "ffm", "ffm")
    scores = folder / "scores.json"
    for name, rests in (
        ("fpd", ["herde2024poseidon", "cheng2025gradient"]),
        ("frd", ["herde2024poseidon", "liu2022swin"]),
    ):
        scores.write_text(
            json.dumps(json.loads(scores.read_text()) | {"mean": {"metrics": {"w2": 1.0, name: 2.0}}})
        )
        assert keys(call("cite", str(folder))[1]) == ["kerrigan2024functional", *rests, *BASIS]


def test_a_run_without_scores(call, run):
    assert keys(call("cite", str(run("a", "ffm")))[1]) == ["kerrigan2024functional", *BASIS]


def test_json(call, run):
    code, out, _ = call("cite", str(run("a", "ffm", "eci")), "--json")
    entries = json.loads(out)
    assert code == 0
    assert [entry["key"] for entry in entries] == ["kerrigan2024functional", "cheng2025gradient", *BASIS]
    for entry in entries:
        assert list(entry) == ["key", "title", "authors", "year", "url", "bibtex"]
        record = REFERENCES[entry["key"]]
        assert (entry["title"], entry["authors"], entry["year"]) == (
            record.title,
            list(record.authors),
            record.year,
        )
        assert keys(entry["bibtex"]) == [entry["key"]]


def test_unknown_method(call):
    code, out, err = call("cite", "--method", "eci", "--method", "edi")
    assert (code, out) == (2, "")
    assert is_one_sentence(err)
    assert "'edi'" in err


def test_not_a_run_folder(call, folder):
    (folder / "empty").mkdir()
    (folder / "file").write_text("{}")
    for name in ("empty", "file", "missing"):
        code, out, err = call("cite", name)
        assert (code, out) == (2, "")
        assert is_one_sentence(err)
        assert f"{name} is not a run folder" in err


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"settings": 3}', '{"settings": {"method": "edi"}}'])
def test_damaged_scores(call, run, content):
    path = run("a", "ffm")
    (path / "scores-eci.json").write_text(content)
    code, out, err = call("cite", str(path))
    assert (code, out) == (2, "")
    assert is_one_sentence(err)
    assert "scores-eci.json" in err
