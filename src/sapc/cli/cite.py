"""`sapc cite`: what to cite, as BibTeX."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Annotated

import typer

from .._files import read_json
from ..errors import SapcError
from ..methods import Method, get_method, method_names, references
from ..methods.references import Reference
from ..training.run_folder import Folder
from ..training.shipped import find
from .app import app
from .arguments import AsJson

# what each reference is for, and for which methods, in the order to print
Purposes = dict[Reference, dict[str, list[str]]]

BASIS = (
    (references.FLOW_MATCHING, "flow matching"),
    (references.FNO, "the network"),
    (references.TORCH, "PyTorch"),
    (references.NUMPY, "NumPy"),
    (references.H5PY, "h5py: files of solutions"),
)
DISTANCES = {  # by metric
    "fpd": ((references.POSEIDON, "the features of FPD"), (references.ECI, "FPD itself")),
    "frd": ((references.POSEIDON, "the encoder of FRD"), (references.SWIN_V2, "the blocks of that encoder")),
}
PICTURES = (references.MATPLOTLIB, "Matplotlib: the pictures of sapc demo")


@app.command()
def cite(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="Run folders. \\[the package itself]")
    ] = None,
    names: Annotated[
        list[str] | None, typer.Option("--method", help="A method, whatever the runs used. May be repeated.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what to cite as BibTeX: for the package, for the methods that runs used, or for methods by name.

    Of a run, that is the method that was trained and every method whose scores are in its folder, with what they rest on, and what FPD and
    FRD rest on where they are among the scores.

    Example: [bold]sapc cite runs/heat-ffm runs/heat-sapc > sapc.bib[/bold]
    """
    found = [find(folder) for folder in folders or ()]
    used = [*(names or ()), *(name for folder in found for name in methods_of(folder))]
    scored = {name for folder in found for name in distances_of(folder)}
    purposes = bibliography([get_method(name) for name in used], scored)
    if as_json:
        print(json.dumps([_described(reference) for reference in purposes], ensure_ascii=False))
        return
    for name in dict.fromkeys(name for name in used if get_method(name).reference is None):
        print(f"% {_label(get_method(name))}: your own method, without a reference\n")
    print("\n\n".join(f"% {_comment(what)}\n{reference.bibtex()}" for reference, what in purposes.items()))


def methods_of(path: Path) -> list[str]:
    """The method that was trained in a run folder, and those that were evaluated there."""
    folder = Folder(path)
    found = [folder.run().method]
    for scores in sorted(path.glob("scores*.json")):
        content = read_json(scores)
        try:
            found.append(get_method(content["settings"]["method"]).name)
        except (KeyError, TypeError, SapcError) as error:
            raise SapcError(
                f"{scores} does not say which method of this version it is of; run `sapc evaluate` again, or, if it is of "
                "your own method, name the file that defines it: sapc --plugin FILE"
            ) from error
    return found


def distances_of(path: Path) -> set[str]:
    """Which Fréchet distances are among the scores of a run folder."""
    means = (read_json(scores).get("mean") for scores in path.glob("scores*.json"))
    metrics = [mean.get("metrics") for mean in means if isinstance(mean, dict)]
    return {name for found in metrics if isinstance(found, dict) for name in DISTANCES if name in found}


def bibliography(used: Iterable[Method], scored: Collection[str] = ()) -> Purposes:
    """Each reference once, with what it is for: the methods, what they and the scores rest on, what everything here rests on."""
    wanted = {method.name for method in used}
    # in the order of `sapc methods`, so that the same methods make the same file however they were named
    methods = [get_method(name) for name in method_names(variants=True) if name in wanted]
    purposes: Purposes = {}

    def add(reference: Reference | None, what: str, *labels: str) -> None:
        if reference is None:  # of a method of one's own
            return
        purposes.setdefault(reference, {}).setdefault(what, []).extend(labels)

    for m in methods:
        add(m.reference, "the method" if m.trains else "the sampler", _label(m))
    for m in methods:
        if not m.trains and m.weights not in wanted:
            add(get_method(m.weights).reference, "the training of the weights", _label(m))
    for m in methods:
        for reference in m.also:
            add(reference, "what it rests on", _label(m))
    for name in (name for name in DISTANCES if name in scored):
        for reference, what in DISTANCES[name]:
            add(reference, what)
    if not methods:
        add(references.SAPC, "the method of this package", _label(get_method("sapc")))
    for reference, what in (*BASIS, *(() if methods else (PICTURES,))):
        add(reference, what)
    return purposes


def _label(method: Method) -> str:
    return method.name.upper().replace("_", " ")


def _comment(purposes: dict[str, list[str]]) -> str:
    return "; ".join(f"{', '.join(labels)}: {what}" if labels else what for what, labels in purposes.items())


def _described(reference: Reference) -> dict[str, object]:
    return {
        "key": reference.key,
        "title": reference.title,
        "authors": list(reference.authors),
        "year": reference.year,
        "url": reference.link,
        "bibtex": reference.bibtex(),
    }
