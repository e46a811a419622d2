"""Misuse of the Python interface raises SapcError: some hundred of the calls that `soak.misuse` lists, and those once found."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from types import SimpleNamespace

import jaxtyping
import numpy as np
import pytest
import torch

import sapc
from sapc import flow
from sapc.errors import SapcError, check_record, explain_misuse, has_type
from soak import misuse


@pytest.fixture(autouse=True)
def _as_users_have_it(folder):
    """In a folder of its own, without the type check of the tests, which would be first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def test_every_argument_of_every_public_callable_may_be_odd():
    """One odd value each, another one for the next argument."""
    bad, count = {}, 0
    for name, thunk in islice(misuse.cases(), 0, None, len(misuse.odd_values()) + 1):
        count += 1
        if (problem := misuse.problem(thunk)) is not None:
            bad[name] = problem
    assert count > 300
    assert bad == {}


def test_the_calls_are_right_but_for_the_odd_argument():
    """Else the odd one would not be reached."""
    refused = {name for name, thunk in misuse.sound() if not _works(thunk)}
    assert refused <= {
        "get_task(option)", "Grid.channel", "load_plugin", "register_method", "fpd.poseidon_distance", "poseidon.load_encoder",
        "read_sensors",
    }  # fmt: skip


def _works(thunk) -> bool:
    try:
        thunk()
    except SapcError:
        return False
    return True


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: sapc.load("heat-ffm", "cpu").sample(n=1, grid=5), "grid of Model.* must be .* whole number .*, got 5"),
        (lambda: sapc.get_method([]), r"name of get_method must be a word, got \[\]"),
        (lambda: sapc.load_dataset(None), "a dataset is given by its path, got NoneType"),
        (lambda: sapc.load("heat-ffm", device="meta"), "device 'meta' cannot be used"),
        (lambda: sapc.training_config("heat", "ffm", "tiny", backbone=torch.nn.Linear(2, 2)), "backbone must be the sizes of an FNO"),
        (lambda: sapc.flow.mix(torch.zeros(2, 3), torch.zeros(2, 4), 0.5), r"v1 of mix .*\(batch, \*grid\).* beside v0 of shape \(2, 3\)$"),
        (lambda: sapc.FNO(blocks=2**70), "cannot be stored anywhere|FNO needs"),
        (lambda: sapc.Pin.frame(0) & 5, "& stacks constraints"),
        (lambda: replace(sapc.get_task("heat", grid=(8, 8)).dataset("train", 1), seed={2}).save("a.h5"), "seed of Dataset.save"),
        (lambda: flow.Sampler("heun"), r"a stepper, as STEPPERS\['multistep'\], .* got 'heun' and Shift"),
        (lambda: flow.Sampler(flow.STEPPERS["heun"], 4.0), "a stepper, .* and times, .*, got Heun.* and 4.0"),
        (lambda: sapc.load("heat-ffm", "cpu").sample(1, sampler=flow.STEPPERS["heun"]), "unknown sampler Heun.*; choose from .* or give"),
        (lambda: sapc.get_method("sapc").sample(_rest, torch.zeros(2, 8, 8), _manifold(), 2, sampler=7), "must be a Sampler, got 7"),
        (lambda: sapc.get_method("sapc_s1").sample(_rest, torch.zeros(2, 8, 8), _manifold(), 2, sampler=7), "must be a Sampler, got 7"),
        (lambda: sapc.get_method("sapc_s3").sample(_rest, torch.zeros(2, 8, 8), _manifold(), 2, sampler=7), "must be a Sampler, got 7"),
        (lambda: sapc.get_method("ffm").sample(_rest, torch.zeros(2, 8, 8), _manifold(), 2, sampler=7), "must be a Sampler, got 7"),
        (lambda: sapc.get_method("sapc").sample(_rest, torch.zeros(2, 8, 8), None, 2), "H of sample must be a Manifold, got None"),
    ],
)  # fmt: skip
def test_what_was_once_a_traceback_names_the_argument(call, complaint):
    with pytest.raises(SapcError, match=complaint):
        call()


def _rest(vt, t):
    """A velocity that leaves states where they are."""
    return torch.zeros_like(vt)


def _manifold():
    return sapc.Pin.frame(0).on(torch.zeros(1, 8, 8))


def test_advice_on_what_is_no_tensor_of_numbers_leads_to_one():
    model = sapc.load("heat-sapc", "cpu")
    solution = model.task.dataset("test0", 1).fields
    foreign = SimpleNamespace(values=solution.numpy())
    for condition, advice in (
        (foreign, "use torch.as_tensor on its .values$"),
        (SimpleNamespace(values=solution), "give its .values$"),
        (solution.numpy(), "use torch.as_tensor to make it a tensor$"),
        (solution.bool(), "got torch.bool; give real numbers, as of torch.float32$"),
        (solution + 0j, "got torch.complex64; give real numbers, as of torch.float32$"),
        ([0.0], "got list; give a tensor$"),
    ):
        with pytest.raises(SapcError, match=advice):
            model.sample(1, condition)


def test_a_failure_with_arguments_as_declared_stays_what_it_is():
    @explain_misuse
    def divide(a: float, b: float = 1.0) -> float:
        return a / b

    assert divide(1, 2) == 0.5
    with pytest.raises(ZeroDivisionError):
        divide(1.0, 0.0)
    with pytest.raises(SapcError, match=r"b of .*divide must be a number, got 'x'"):
        divide(1.0, "x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing"):
        divide()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, int, True), (True, int, False), (2**63, int, False), (1, float, True), ("1", float, False), (None, int | None, True),
        ((1, 2), tuple[int, ...], True), ((1, "a"), tuple[int, ...], False), ("ab", list[str], False), ({"a": 1}, dict[str, int], True),
        ({"a": "b"}, dict[str, int], False), (torch.zeros(1), torch.Tensor, True), (torch.zeros(1, device="meta"), torch.Tensor, False),
    ],
)  # fmt: skip
def test_a_value_fits_its_declaration_or_not(value, hint, expected):
    assert has_type(value, hint) is expected


def test_a_record_is_held_to_its_declaration():
    check_record(
        sapc.training_config("heat", "ffm", "tiny"),
        seed=0,
        plateau_patience=0,
        stages=0,
        validation_draws=0,
        sensors=0,
        symmetries=0,
    )


def test_numbers_of_numpy_and_torch_are_numbers_in_a_run():
    """They come out of loops over numpy arrays; a file takes Python's own only."""
    run = sapc.training_config(
        "heat",
        "sapc",
        "tiny",
        steps=np.int64(5),
        lr=np.float32(0.5),
        batch=torch.tensor(4),
        hidden=np.int32(8),
    )
    assert json.loads(json.dumps(run.to_dict()))["backbone"]["hidden"] == 8
    assert [type(x) for x in (run.steps, run.lr, run.batch)] == [int, float, int]
    for wrong in (np.int64(-5), np.array([5]), np.float64("nan"), torch.tensor([5])):
        with pytest.raises(SapcError, match="steps must be a whole number of at least 1"):
            sapc.training_config("heat", "sapc", "tiny", steps=wrong)
