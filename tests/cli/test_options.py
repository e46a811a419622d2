"""Records of options: a command declares what belongs together once, and typer sees one option per field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

pytest.importorskip("typer")
import typer
from typer.testing import CliRunner

from sapc.cli.options import take_records


@dataclass(frozen=True)
class Inner:
    depth: Annotated[int, typer.Option("--depth-of-it", help="How deep.")] = 3


@dataclass(frozen=True)
class Outer:
    name: Annotated[str, typer.Option(help="A name without a default.")]
    inner: Inner = Inner()
    last: Annotated[bool, typer.Option("--last")] = False


@pytest.fixture
def calls():
    return []


@pytest.fixture
def invoke(calls):
    app = typer.Typer()

    @app.command()
    @take_records
    def command(file: str, *, outer: Outer, seed: int = 0) -> None:
        """A command."""
        calls.append((file, outer, seed))

    return lambda *words: CliRunner().invoke(app, words)


def test_fields_of_records_are_options(invoke, calls):
    assert invoke("a", "--name", "b").exit_code == 0
    assert invoke("a", "--name", "b", "--depth-of-it", "5", "--last", "--seed", "2").exit_code == 0
    assert calls == [("a", Outer("b"), 0), ("a", Outer("b", Inner(5), True), 2)]


def test_a_field_without_a_default_is_required(invoke, calls):
    result = invoke("a")
    assert (result.exit_code, calls) == (2, [])
    assert "--name" in result.output


def test_help_shows_options_in_the_order_of_their_declaration(invoke):
    text = invoke("--help").output
    places = [text.index(option) for option in ("--name", "--depth-of-it", "--last", "--seed")]
    assert places == sorted(places)


def test_two_fields_of_one_name_are_refused():
    with pytest.raises(ValueError, match="duplicate parameter name"):
        take_records(_clash)


def _clash(*, outer: Outer, name: str = "") -> None:
    pass
