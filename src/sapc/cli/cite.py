"""`sapc cite`: what to cite, as BibTeX."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from .._files import read_json
from ..errors import SapcError
from ..methods import Method, get_method, is_extension, method_names, references
from ..methods.references import Reference
from ..training.run_folder import RunFolder, resolve_model_path
from .app import app
from .options import AsJson

# The purposes of each reference, with the methods they concern, in the order to print.
Purposes = dict[Reference, dict[str, list[str]]]

BASIS = {
    "flow matching": references.FLOW_MATCHING,
    "the network": references.FNO,
    "PyTorch": references.TORCH,
    "NumPy": references.NUMPY,
    "h5py: files of solutions": references.H5PY,
}
PICTURES = {"Matplotlib: the pictures of sapc demo": references.MATPLOTLIB}
# By metric.
DISTANCES = {
    "fpd": {"the features of FPD": references.POSEIDON, "FPD itself": references.ECI},
    "frd": {"the encoder of FRD": references.POSEIDON, "the blocks of that encoder": references.SWIN_V2},
}


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

    For a run, these are the method that was trained and every method whose scores are in its folder.
    References that they rest on follow, and those of FPD and FRD where they are among the scores.

    Example: [bold]sapc cite runs/heat-ffm runs/heat-sapc > sapc.bib[/bold]
    """
    used_names, scored_metrics = list(names or ()), set[str]()
    for folder in folders or ():
        methods, metrics = read_run(resolve_model_path(folder))
        used_names += methods
        scored_metrics |= metrics
    methods_by_name = {name: get_method(name) for name in used_names}
    purposes = bibliography(methods_by_name, scored_metrics)
    if as_json:
        print(json.dumps([_describe(reference) for reference in purposes], ensure_ascii=False))
        return
    for method in methods_by_name.values():
        if method.reference is None:
            print(f"% {_label(method)}: your own method, without a reference\n")
    print(
        "\n\n".join(f"% {_comment(purpose)}\n{reference.bibtex()}" for reference, purpose in purposes.items())
    )


def read_run(path: Path) -> tuple[list[str], set[str]]:
    """Return the methods and the Fréchet distances that a run folder knows.

    Args:
        path: The run folder.

    Returns:
        The methods that were trained and evaluated there, and the distances among their scores.

    Raises:
        SapcError: A file of scores names no method of this version.
    """
    methods, metrics = [RunFolder(path).run().method], set[str]()
    for file in sorted(path.glob("scores*.json")):
        scores = read_json(file)
        try:
            methods.append(get_method(scores["settings"]["method"]).name)
        except (KeyError, TypeError, SapcError) as error:
            raise SapcError(
                f"{file} does not say which method of this version it is of; run `sapc evaluate` again, or, "
                "if it is of your own method, name the file that defines it: sapc --plugin FILE"
            ) from error
        mean = scores.get("mean")
        values = mean.get("metrics") if isinstance(mean, dict) else None
        metrics |= DISTANCES.keys() & (values if isinstance(values, dict) else {}).keys()
    return methods, metrics


def bibliography(names: Collection[str], metrics: Collection[str] = ()) -> Purposes:
    """Return each reference once, with its purposes.

    Args:
        names: Methods.
        metrics: Fréchet distances among the scores.

    Returns:
        The references of the methods, those that methods and distances rest on, and those of the package.
    """
    # In the order of `sapc methods`, so that the same methods make the same file however they were named.
    methods = [get_method(name) for name in method_names(variants=True) if name in names]
    samplers = [m for m in methods if not m.trains and m.weights not in names]
    entries = [(m.reference, _purpose(m), m) for m in methods]
    entries += [(get_method(m.weights).reference, "the training of the weights", m) for m in samplers]
    entries += [(reference, "what it rests on", m) for m in methods for reference in m.further_references]
    if not methods:
        entries.append((references.SAPC, "the method of this package", get_method("sapc")))
    purposes: Purposes = {}
    for reference, purpose, method in entries:
        if reference is not None:
            purposes.setdefault(reference, {}).setdefault(purpose, []).append(_label(method))
    distances = [DISTANCES[name] for name in DISTANCES if name in metrics]
    for group in (*distances, BASIS, *([] if methods else [PICTURES])):
        for purpose, reference in group.items():
            purposes.setdefault(reference, {}).setdefault(purpose, [])
    return purposes


def _purpose(method: Method) -> str:
    """Say what the reference of a method is to it."""
    if is_extension(method.name):
        return "the method that it extends, beyond the paper"
    return "the method" if method.trains else "the sampler"


def _label(method: Method) -> str:
    return method.name.upper().replace("_", " ")


def _comment(purposes: dict[str, list[str]]) -> str:
    return "; ".join(
        f"{', '.join(labels)}: {purpose}" if labels else purpose for purpose, labels in purposes.items()
    )


def _describe(reference: Reference) -> dict[str, object]:
    about = {name: getattr(reference, name) for name in ("key", "title", "authors", "year")}
    return about | {"url": reference.link, "bibtex": reference.bibtex()}
