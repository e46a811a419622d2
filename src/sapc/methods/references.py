"""What to cite: the paper of each method, and the software that the package stands on.

All are read from `references.bib` beside this file.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files

from .._old_names import rename_fields

_VENUE_FIELDS = {
    "article": "journal",
    "inproceedings": "booktitle",
    "book": "publisher",
    "unpublished": "note",
}
_ACCENTS = dict(zip("`'^~u\"rvc", "\u0300\u0301\u0302\u0303\u0306\u0308\u030a\u030c\u0327", strict=True))


@rename_fields(where="venue")
@dataclass(frozen=True)
class Reference:
    """One entry of a bibliography, in plain text.

    Attributes:
        key: Its name in BibTeX.
        title: Title of the work.
        authors: Written "Last, First", because the other order does not say where a last name begins; a
            single name has no comma.
        year: Year of publication.
        venue: The journal, proceedings, publisher or note.
        arxiv: Number of the preprint.
        doi: DOI.
        url: Address, where it is neither of these.
        kind: Its type in BibTeX: article, inproceedings, book or unpublished.
        volume: Volume of the journal.
        number: Number of the issue.
        pages: First and last page.
        entry: Its BibTeX, where that is not to be made of the other fields.
    """

    key: str
    title: str
    authors: tuple[str, ...]
    year: int
    venue: str = ""
    arxiv: str = ""
    doi: str = ""
    url: str = ""
    kind: str = "article"
    volume: str = ""
    number: str = ""
    pages: str = ""
    entry: str = field(default="", repr=False)

    @property
    def short(self) -> str:
        """For a table: "Kerrigan, Migliorini and Smyth (2024)"."""
        last = [author.split(",")[0] for author in self.authors]
        names = [f"{last[0]} et al."] if len(last) > 3 else [", ".join(last[:-1]), last[-1]]
        return f"{' and '.join(filter(None, names))} ({self.year})"

    @property
    def text(self) -> str:
        """One line for a reader: "Kerrigan, Migliorini and Smyth (2024), Functional Flow Matching"."""
        return f"{self.short}, {self.title}"

    @property
    def link(self) -> str:
        """Where to read it; empty for a paper that is not out yet."""
        addresses = {"https://doi.org/": self.doi, "https://arxiv.org/abs/": self.arxiv}
        return self.url or next((address + name for address, name in addresses.items() if name), "")

    def bibtex(self) -> str:
        """Format the entry in BibTeX; braces around title and last names keep capitals and words together.

        Returns:
            The entry.
        """
        if self.entry:
            return self.entry
        preprint = f"arXiv preprint arXiv:{self.arxiv}" if self.arxiv else ""
        names = (author.partition(",") for author in self.authors)
        fields = {
            "author": _escape(" and ".join(f"{{{last}}}{comma}{first}" for last, comma, first in names)),
            "title": f"{{{_escape(self.title)}}}",
            _VENUE_FIELDS[self.kind]: _escape(self.venue or preprint),
            "volume": self.volume,
            "number": self.number,
            "pages": self.pages.replace("-", "--"),
            "year": str(self.year),
            "eprint": self.arxiv,
            "archiveprefix": "arXiv" if self.arxiv else "",
            # Styles print doi and url as they are.
            "doi": self.doi,
            "url": self.link,
        }
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
        return "\n".join((f"@{self.kind}{{{self.key},", *lines, "}"))


def read_bibliography(text: str) -> Iterator[Reference]:
    """Read entries of BibTeX that have one field per line."""
    for match in re.finditer(r"^@(\w+)\{(\w+),\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
        kind, key, body = match.groups()
        fields = {
            name: _plain(value) for name, value in re.findall(r"^ *(\w+) = \{(.*)\},$", body, re.MULTILINE)
        }
        venue = fields.get(_VENUE_FIELDS[kind], "")
        yield Reference(
            key, fields["title"], tuple(fields["author"].split(" and ")), int(fields["year"]), venue,
            fields.get("eprint", ""), fields.get("doi", ""), fields.get("url", ""), kind,
            fields.get("volume", ""), fields.get("number", ""), fields.get("pages", "").replace("--", "-"),
            match.group(),
        )  # fmt: skip


def _escape(text: str) -> str:
    return re.sub(r"([&%_#$])", r"\\\1", text)


def _plain(text: str) -> str:
    """Return text without LaTeX: accented letters for commands, no braces, no backslashes."""
    letters = re.sub(r"\\([`'^~\"urvc]) ?(\w)", lambda match: match[2] + _ACCENTS[match[1]], text)
    return unicodedata.normalize("NFC", re.sub(r"[{}\\]", "", letters))


_ENTRIES = {
    reference.key: reference
    for reference in read_bibliography(files("sapc.methods").joinpath("references.bib").read_text("utf-8"))
}
SAPC = _ENTRIES["romoli2026source"]
FFM = _ENTRIES["kerrigan2024functional"]
DFLOW = _ENTRIES["benhamu2024dflow"]
ECI = _ENTRIES["cheng2025gradient"]
PCFM = _ENTRIES["utkarsh2025physics"]
CAFM = _ENTRIES["christopher2026constraint"]
PBFM = _ENTRIES["baldan2026physics"]
CONFIG = _ENTRIES["liu2025config"]
LBFGS = _ENTRIES["liu1989limited"]
FLOW_MATCHING = _ENTRIES["lipman2023flow"]
FNO = _ENTRIES["li2021fourier"]
POSEIDON = _ENTRIES["herde2024poseidon"]
SWIN_V2 = _ENTRIES["liu2022swin"]
TORCH = _ENTRIES["ansel2024pytorch"]
NUMPY = _ENTRIES["harris2020array"]
H5PY = _ENTRIES["collette2013python"]
MATPLOTLIB = _ENTRIES["hunter2007matplotlib"]
