"""Old names: they work, and each warning names the new word."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import dataclass, fields, replace

import pytest
import torch
from jaxtyping import Float, jaxtyped
from torch import Tensor

import sapc
from runtime_types import check
from sapc._old_names import old_attribute, rename_arguments
from sapc.errors import SapcError, explain_misuse


@rename_arguments(clip="max_grad_norm", length="source_length_scale")
@explain_misuse
@jaxtyped(typechecker=check)
def scale(u: Float[Tensor, "n"], max_grad_norm: float = 1.0, **settings: float) -> Float[Tensor, "n"]:
    """Multiply."""
    return u * max_grad_norm * settings.get("source_length_scale", 1.0)


@rename_arguments(shows="conditioning_input")
@dataclass(frozen=True)
class Record:
    """Of two fields."""

    name: str
    conditioning_input: bool = False
    shows = old_attribute("Record.shows", "Record.conditioning_input")


class Sampler:
    """With a method and an attribute that have other names now."""

    span = old_attribute("Sampler.span", "Sampler.data_range")

    def __init__(self) -> None:
        self.data_range = 1.0

    @rename_arguments(also="extra_constraints")
    def sample(self, n: int, extra_constraints: str = "") -> str:
        """Return what was given."""
        return n * extra_constraints


def test_an_argument_by_its_old_name_warns_and_works():
    with pytest.warns(DeprecationWarning, match="^clip= of scale is now max_grad_norm=$"):
        assert scale(torch.ones(2), clip=3.0).tolist() == [3.0, 3.0]
    with pytest.warns(DeprecationWarning, match=r"^also= of Sampler.sample is now extra_constraints=$"):
        assert Sampler().sample(2, also="a") == "aa"


def test_an_old_name_may_stand_for_one_of_many_settings():
    with pytest.warns(DeprecationWarning, match="max_grad_norm|source_length_scale") as caught:
        assert scale(torch.ones(1), clip=3.0, length=2.0).tolist() == [6.0]
    assert len(caught) == 2


def test_new_names_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scale(torch.ones(1), max_grad_norm=3.0).tolist() == [3.0]
        assert Record("a", conditioning_input=True).conditioning_input
        assert Sampler().data_range == 1.0


@pytest.mark.parametrize(
    "call",
    [
        lambda: scale(torch.ones(1), 2.0, clip=3.0),
        lambda: scale(torch.ones(1), max_grad_norm=2.0, clip=3.0),
        lambda: scale(torch.ones(1), length=2.0, source_length_scale=3.0),
        lambda: Record("a", True, shows=True),
    ],
)
def test_an_old_and_a_new_name_at_once_are_refused(call):
    with pytest.raises(SapcError, match="old name"):
        call()


def test_signatures_and_type_checks_are_those_of_the_function():
    assert list(inspect.signature(scale).parameters) == ["u", "max_grad_norm", "settings"]
    assert list(inspect.signature(Record).parameters) == ["name", "conditioning_input"]
    assert scale.__doc__ == "Multiply."
    with (
        pytest.warns(DeprecationWarning, match="max_grad_norm"),
        pytest.raises(SapcError, match="max_grad_norm of scale must be a number"),
    ):
        scale(torch.ones(1), clip="much")
    with pytest.raises(SapcError, match="u of scale must be a tensor"):
        scale(torch.ones(1, 1))


def test_a_record_has_its_old_fields_as_attributes():
    with pytest.warns(DeprecationWarning, match="^shows= of Record is now conditioning_input=$"):
        record = Record("a", shows=True)
    assert [field.name for field in fields(Record)] == ["name", "conditioning_input"]
    assert replace(record, name="b") == Record("b", True)
    with pytest.warns(DeprecationWarning, match=r"^Record.shows is now Record.conditioning_input$"):
        assert record.shows is True


def test_an_old_attribute_can_be_set():
    sampler = Sampler()
    with pytest.warns(DeprecationWarning, match=r"Sampler.data_range"):
        sampler.span = 2.0
    assert sampler.data_range == 2.0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("FrameIntegral", "sapc.grid.FrameIntegral"),
        ("LawKernel", "sapc.constraints.LawKernel"),
        ("WithGradient", "sapc.constraints.WithGradient"),
        ("write_netcdf", "sapc.data.write_netcdf"),
        ("use", "sapc.load_plugin"),
        ("preset", "sapc.training_config"),
        ("Run", "sapc.TrainingConfig"),
    ],
)
def test_what_left_the_top_level_is_found_there_with_a_warning(old, new):
    assert old not in sapc.__all__
    with pytest.warns(DeprecationWarning, match=rf"^sapc\.{old} is now {new}"):
        assert callable(getattr(sapc, old))


def test_every_public_name_is_there_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in sapc.__all__:
            assert getattr(sapc, name) is not None
