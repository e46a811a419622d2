"""What to cite: the paper of each method, and what the package stands on.

A `Reference` holds plain text, and LaTeX is made of it once, in `bibtex`. Authors are written "Last, First", because the other
order does not say where a last name begins ("Fernández del Río, Jaime"); a single name has no comma ("Utkarsh"). Titles are
written as published; which of their capitals a bibliography style must keep is found by `_braced`.

Where a paper appeared twice, the published version is given, with the number of the preprint beside it.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

# What a style would make lower case although it is a name; capitals inside a word are seen without a list.
_NAMES = frozenset({"Fourier", "Pareto", "Python"})
_WHERE = {"article": "journal", "inproceedings": "booktitle", "book": "publisher", "unpublished": "note"}
_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0306": "u ",
    "\u0308": '"',
    "\u030a": "r ",
    "\u030c": "v ",
    "\u0327": "c ",
}
_LETTERS = {"ø": r"{\o}", "Ø": r"{\O}", "ł": r"{\l}", "Ł": r"{\L}", "ß": r"{\ss}", "–": "--", "’": "'"}


@dataclass(frozen=True)
class Reference:
    """One entry of a bibliography; `kind` is its type in BibTeX, `where` the journal, proceedings, publisher or note."""

    key: str
    title: str
    authors: tuple[str, ...]
    year: int
    where: str = ""
    arxiv: str = ""
    doi: str = ""
    url: str = ""
    kind: str = "article"
    volume: str = ""
    number: str = ""
    pages: str = ""

    @property
    def short(self) -> str:
        """For a table: "Kerrigan, Migliorini and Smyth (2024)"."""
        last = [author.split(",")[0] for author in self.authors]
        shown = [f"{last[0]} et al."] if len(last) > 3 else [", ".join(last[:-1]), last[-1]]
        return f"{' and '.join(filter(None, shown))} ({self.year})"

    @property
    def text(self) -> str:
        """One line for a reader: "Kerrigan, Migliorini and Smyth (2024), Functional Flow Matching"."""
        return f"{self.short}, {self.title}"

    @property
    def link(self) -> str:
        """Where to read it; empty for a paper that is not out yet."""
        if self.url:
            return self.url
        if self.doi:
            return f"https://doi.org/{self.doi}"
        return f"https://arxiv.org/abs/{self.arxiv}" if self.arxiv else ""

    def bibtex(self) -> str:
        """The entry in BibTeX, in ASCII where the letter has a LaTeX command."""
        where = self.where
        if self.kind == "article" and self.arxiv and not where:
            where = f"arXiv preprint arXiv:{self.arxiv}"
        fields = {
            "author": " and ".join(_name(author) for author in self.authors),
            "title": _latex(_braced(self.title)),
            _WHERE[self.kind]: _latex(where),
            "volume": self.volume,
            "number": self.number,
            "pages": self.pages.replace("-", "--"),
            "year": str(self.year),
            "eprint": self.arxiv,
            "archiveprefix": "arXiv" if self.arxiv else "",
            "doi": self.doi,  # styles print doi and url as they are, so nothing is escaped in them
            "url": self.link,
        }
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
        return "\n".join((f"@{self.kind}{{{self.key},", *lines, "}"))


def _name(author: str) -> str:
    """An author for BibTeX, which takes for a last name only what follows the last lower-case word, unless it is in braces."""
    last, comma, first = author.partition(",")
    words = last.split()
    if not comma or (words[0][0].isupper() and any(word[0].islower() for word in words)):
        last = f"{{{last}}}"
    return _latex(last + comma + first)


def _braced(title: str) -> str:
    """A title with braces around the words whose capitals must stay."""

    def keep(match: re.Match[str]) -> str:
        word = match.group()
        parts = word.split("-")
        capitals = any(letter.isupper() for part in parts for letter in part[1:])
        initial = len(parts) > 1 and any(len(part) == 1 and part.isupper() for part in parts)
        return f"{{{word}}}" if capitals or initial or word in _NAMES else word

    return re.sub(r"[^\W_]+(?:-[^\W_]+)*", keep, title)


def _latex(text: str) -> str:
    """Text for LaTeX: signs with a meaning there escaped, accented letters as commands."""
    made = []
    for letter in text:
        base, *marks = list(unicodedata.normalize("NFD", letter))
        if letter in "&%_#$":
            made.append("\\" + letter)
        elif len(marks) == 1 and marks[0] in _ACCENTS:
            made.append(f"{{\\{_ACCENTS[marks[0]]}{base}}}")
        else:
            made.append(_LETTERS.get(letter, letter))
    return "".join(made)


def _people(names: str) -> tuple[str, ...]:
    return tuple(" ".join(name.split()) for name in names.split(";"))


# -- the methods --

SAPC = Reference(
    key="romoli2026source",
    title="Source Anchoring for Physical Consistency in Flow Matching Models",
    authors=_people("Romoli, Giulia; Ruffini, Filippo; Soda, Paolo"),
    year=2026,
    where="Submitted to ICLR 2027",
    kind="unpublished",
)
SAPC_PAPER = SAPC  # for those who also have the package at hand

FFM = Reference(
    key="kerrigan2024functional",
    title="Functional Flow Matching",
    authors=_people("Kerrigan, Gavin; Migliorini, Giosue; Smyth, Padhraic"),
    year=2024,
    where="Proceedings of the 27th International Conference on Artificial Intelligence and Statistics (AISTATS)",
    arxiv="2305.17209",
    url="https://proceedings.mlr.press/v238/kerrigan24a.html",
    kind="inproceedings",
    volume="238",
    pages="3934-3942",
)

DFLOW = Reference(
    key="benhamu2024dflow",
    title="D-Flow: Differentiating through Flows for Controlled Generation",
    authors=_people("Ben-Hamu, Heli; Puny, Omri; Gat, Itai; Karrer, Brian; Singer, Uriel; Lipman, Yaron"),
    year=2024,
    where="Proceedings of the 41st International Conference on Machine Learning (ICML)",
    arxiv="2402.14017",
    url="https://proceedings.mlr.press/v235/ben-hamu24a.html",
    kind="inproceedings",
    volume="235",
    pages="3462-3483",
)

# The last author signs the published paper as Yuyang Wang; the name here is that of OpenReview and of the authors' own entry.
ECI = Reference(
    key="cheng2025gradient",
    title="Gradient-Free Generation for Hard-Constrained Systems",
    authors=_people(
        "Cheng, Chaoran; Han, Boran; Maddix, Danielle C.; Ansari, Abdul Fatir; Stuart, Andrew; Mahoney, Michael W.; Wang, Bernie"
    ),
    year=2025,
    where="The Thirteenth International Conference on Learning Representations (ICLR)",
    arxiv="2412.01786",
    url="https://openreview.net/forum?id=teE4pl9ftK",
    kind="inproceedings",
)

PCFM = Reference(
    key="utkarsh2025physics",
    title="Physics-Constrained Flow Matching: Sampling Generative Models with Hard Constraints",
    authors=_people(
        "Utkarsh; Cai, Pengfei; Edelman, Alan; Gomez-Bombarelli, Rafael; Rackauckas, Christopher Vincent"
    ),
    year=2025,
    where="Advances in Neural Information Processing Systems (NeurIPS)",
    arxiv="2506.04171",
    kind="inproceedings",
    volume="38",
)

CAFM = Reference(
    key="christopher2026constraint",
    title="Constraint-Aware Flow Matching: Decision Aligned End-to-End Training for Constrained Sampling",
    authors=_people("Christopher, Jacob K.; Warner, James E.; Fioretto, Ferdinando"),
    year=2026,
    arxiv="2605.12754",
)

PBFM = Reference(
    key="baldan2026physics",
    title="Physics vs Distributions: Pareto Optimal Flow Matching with Physics Constraints",
    authors=_people("Baldan, Giacomo; Liu, Qiang; Guardone, Alberto; Thuerey, Nils"),
    year=2026,
    where="The Fourteenth International Conference on Learning Representations (ICLR)",
    arxiv="2506.08604",
    url="https://openreview.net/forum?id=tAf1KI3d4X",
    kind="inproceedings",
)

# -- what methods rest on --

CONFIG = Reference(
    key="liu2025config",
    title="ConFIG: Towards Conflict-free Training of Physics Informed Neural Networks",
    authors=_people("Liu, Qiang; Chu, Mengyu; Thuerey, Nils"),
    year=2025,
    where="The Thirteenth International Conference on Learning Representations (ICLR)",
    arxiv="2408.11104",
    url="https://openreview.net/forum?id=APojAzJQiq",
    kind="inproceedings",
)

LBFGS = Reference(
    key="liu1989limited",
    title="On the Limited Memory BFGS Method for Large Scale Optimization",
    authors=_people("Liu, Dong C.; Nocedal, Jorge"),
    year=1989,
    where="Mathematical Programming",
    doi="10.1007/BF01589116",
    volume="45",
    number="1-3",
    pages="503-528",
)

FLOW_MATCHING = Reference(
    key="lipman2023flow",
    title="Flow Matching for Generative Modeling",
    authors=_people("Lipman, Yaron; Chen, Ricky T. Q.; Ben-Hamu, Heli; Nickel, Maximilian; Le, Matt"),
    year=2023,
    where="The Eleventh International Conference on Learning Representations (ICLR)",
    arxiv="2210.02747",
    kind="inproceedings",
)

FNO = Reference(
    key="li2021fourier",
    title="Fourier Neural Operator for Parametric Partial Differential Equations",
    authors=_people(
        """Li, Zongyi; Kovachki, Nikola; Azizzadenesheli, Kamyar; Liu, Burigede; Bhattacharya, Kaushik; Stuart, Andrew;
        Anandkumar, Anima"""
    ),
    year=2021,
    where="The Ninth International Conference on Learning Representations (ICLR)",
    arxiv="2010.08895",
    url="https://openreview.net/forum?id=c8P9NQVtmnO",
    kind="inproceedings",
)

# -- what FPD rests on --

POSEIDON = Reference(
    key="herde2024poseidon",
    title="Poseidon: Efficient Foundation Models for PDEs",
    authors=_people(
        """Herde, Maximilian; Raonić, Bogdan; Rohner, Tobias; Käppeli, Roger; Molinaro, Roberto; de Bézenac, Emmanuel;
        Mishra, Siddhartha"""
    ),
    year=2024,
    where="Advances in Neural Information Processing Systems (NeurIPS)",
    arxiv="2405.19101",
    kind="inproceedings",
)

SWIN_V2 = Reference(
    key="liu2022swin",
    title="Swin Transformer V2: Scaling Up Capacity and Resolution",
    authors=_people(
        """Liu, Ze; Hu, Han; Lin, Yutong; Yao, Zhuliang; Xie, Zhenda; Wei, Yixuan; Ning, Jia; Cao, Yue; Zhang, Zheng; Dong, Li;
        Wei, Furu; Guo, Baining"""
    ),
    year=2022,
    where="IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)",
    arxiv="2111.09883",
    kind="inproceedings",
)

# -- libraries, as they ask to be cited; h5py does not ask, so it is the book of its author --

TORCH = Reference(
    key="ansel2024pytorch",
    title="PyTorch 2: Faster Machine Learning Through Dynamic Python Bytecode Transformation and Graph Compilation",
    authors=_people(
        """Ansel, Jason; Yang, Edward; He, Horace; Gimelshein, Natalia; Jain, Animesh; Voznesensky, Michael; Bao, Bin; Bell, Peter;
        Berard, David; Burovski, Evgeni; Chauhan, Geeta; Chourdia, Anjali; Constable, Will; Desmaison, Alban; DeVito, Zachary;
        Ellison, Elias; Feng, Will; Gong, Jiong; Gschwind, Michael; Hirsh, Brian; Huang, Sherlock; Kalambarkar, Kshiteej;
        Kirsch, Laurent; Lazos, Michael; Lezcano, Mario; Liang, Yanbo; Liang, Jason; Lu, Yinghai; Luk, CK; Maher, Bert; Pan, Yunjie;
        Puhrsch, Christian; Reso, Matthias; Saroufim, Mark; Siraichi, Marcos Yukio; Suk, Helen; Suo, Michael; Tillet, Phil;
        Wang, Eikan; Wang, Xiaodong; Wen, William; Zhang, Shunting; Zhao, Xu; Zhou, Keren; Zou, Richard; Mathews, Ajit;
        Chanan, Gregory; Wu, Peng; Chintala, Soumith"""
    ),
    year=2024,
    where="29th ACM International Conference on Architectural Support for Programming Languages and Operating Systems, "
    "Volume 2 (ASPLOS '24)",
    doi="10.1145/3620665.3640366",
    kind="inproceedings",
    pages="929-947",
)

NUMPY = Reference(
    key="harris2020array",
    title="Array programming with NumPy",
    authors=_people(
        """Harris, Charles R.; Millman, K. Jarrod; van der Walt, Stéfan J.; Gommers, Ralf; Virtanen, Pauli; Cournapeau, David;
        Wieser, Eric; Taylor, Julian; Berg, Sebastian; Smith, Nathaniel J.; Kern, Robert; Picus, Matti; Hoyer, Stephan;
        van Kerkwijk, Marten H.; Brett, Matthew; Haldane, Allan; Fernández del Río, Jaime; Wiebe, Mark; Peterson, Pearu;
        Gérard-Marchant, Pierre; Sheppard, Kevin; Reddy, Tyler; Weckesser, Warren; Abbasi, Hameer; Gohlke, Christoph;
        Oliphant, Travis E."""
    ),
    year=2020,
    where="Nature",
    doi="10.1038/s41586-020-2649-2",
    volume="585",
    pages="357-362",
)

H5PY = Reference(
    key="collette2013python",
    title="Python and HDF5",
    authors=_people("Collette, Andrew"),
    year=2013,
    where="O’Reilly Media",
    url="https://www.h5py.org",
    kind="book",
)

MATPLOTLIB = Reference(
    key="hunter2007matplotlib",
    title="Matplotlib: A 2D graphics environment",
    authors=_people("Hunter, John D."),
    year=2007,
    where="Computing in Science & Engineering",
    doi="10.1109/MCSE.2007.55",
    volume="9",
    number="3",
    pages="90-95",
)
