"""The paper's printed numbers: all there, and consistent with each other."""

from __future__ import annotations

import itertools
from decimal import Decimal

import pytest

from sapc.errors import SapcError
from sapc.methods import paper
from sapc.methods.references import SAPC


def test_every_cell_is_there():
    means = [
        paper.printed_mean("generation", *cell)
        for cell in itertools.product(paper.TASKS, paper.GENERATION + paper.SUPPLEMENT, paper.METHODS)
    ]
    ablation = [
        paper.printed_mean("ablation", *cell)
        for cell in itertools.product(paper.TASKS, paper.ABLATION, paper.ABLATION_METHODS)
    ]
    assert (len(means), len(ablation)) == (294, 252)
    assert all(cell is not None and cell.mean >= 0 for cell in means + ablation)
    assert [cell for cell in means if cell.error is None] == [paper.PrintedMean(1.0, None)] * 6  # CE of FFM
    assert all(cell.error >= 0 for cell in means + ablation if cell.error is not None)
    costs = [paper.printed_cost(*cell) for cell in itertools.product(paper.TASKS, paper.METHODS)]
    assert len(costs) == 42
    assert None not in costs


def test_nothing_else_is_there():
    told = paper.numbers()
    assert (
        sum(len(of) for table in paper.TABLES for task in told[table].values() for of in task.values()) == 546
    )
    for task in paper.TASKS:
        assert set(told["generation"][task]) == {*paper.GENERATION, *paper.SUPPLEMENT}
        assert set(told["ablation"][task]) == set(paper.ABLATION)
        assert list(told["generation"][task]["w2"]) == list(paper.METHODS)
        assert list(told["ablation"][task]["w2"]) == list(paper.ABLATION_METHODS)
    assert paper.printed_mean("generation", "heat", "frd", "sapc") is None
    assert paper.printed_mean("generation", "heat", "mmse", "cond_ffm") is None
    assert paper.printed_mean("ablation", "nowhere", "mmse", "sapc") is None
    assert paper.printed_cost("heat", "cond_ffm") is paper.printed_cost("nowhere", "sapc") is None
    with pytest.raises(SapcError, match="no table 'cost'"):
        paper.printed_mean("cost", "heat", "nfe", "sapc")


@pytest.mark.parametrize(
    ("cell", "mean", "error"),
    [
        (("generation", "heat", "mmse", "sapc"), 2.2e-5, 0.8e-5),
        (("generation", "reaction_diffusion", "fpd", "dflow"), 41.0, 6.0),
        (("generation", "stokes_bc", "ce", "cafm"), 1.1e-6, 0.2e-6),
        (("generation", "burgers", "ce_local", "pcfm"), 0.0, 0.0),
        (("generation", "navier_stokes", "ce_global", "dflow"), 0.1, 0.031),
        (("ablation", "stokes_ic", "ce", "ffm"), 1.0, 0.1),
        (("ablation", "navier_stokes", "ce_global", "cond_ffm"), 0.045, 0.004),
    ],
)
def test_cells(cell, mean, error):
    assert paper.printed_mean(*cell) == paper.PrintedMean(mean, error)


def test_tables_agree_where_they_share_cells():
    for task, metric, method in itertools.product(paper.TASKS, paper.ABLATION, ("sapc", "ffm")):
        one, other = (paper.printed_mean(table, task, metric, method) for table in paper.TABLES)
        assert one.mean == other.mean
        assert one.error is None or one.error == other.error


def test_means_have_two_digits_and_errors_their_exponent():
    for table in paper.TABLES:
        for of in (of for task in paper.numbers()[table].values() for of in task.values()):
            for mean, error in of.values():
                exponent = Decimal(repr(mean)).adjusted()
                assert mean == float(f"{mean:.1e}")
                # The one mean printed as 10.0 has an error of its own exponent less one.
                assert error is None or mean == 0 or round(error * 10 ** (2 - exponent), 6) % 1 == 0


def _near(value: float) -> float:
    """Half of the last digit that is printed: three digits or two decimals."""
    return 0.5 if value >= 100 else 0.05 if value >= 10 else 0.005


def test_times_are_ratios_and_products_up_to_rounding():
    samples = paper.protocol().samples
    for task, method in itertools.product(paper.TASKS, paper.METHODS):
        cost, ffm = paper.printed_cost(task, method), paper.printed_cost(task, "ffm")
        half = lambda ms: 0.5 if ms >= 100 else 0.05
        low = (cost.ms_per_sample - half(cost.ms_per_sample)) / (ffm.ms_per_sample + half(ffm.ms_per_sample))
        high = (cost.ms_per_sample + half(cost.ms_per_sample)) / (ffm.ms_per_sample - half(ffm.ms_per_sample))
        if method == "ffm":
            assert cost.times_ffm is None
        else:
            assert low - _near(cost.times_ffm) <= cost.times_ffm <= high + _near(cost.times_ffm)
        total = cost.ms_per_sample * samples[task] / 1000
        spread = half(cost.ms_per_sample) * samples[task] / 1000 + half(cost.total_s)
        assert abs(total - cost.total_s) <= spread
        assert cost.nfe == {"eci": 500, "dflow": 2100}.get(method, 100)


def test_training_floors_and_protocol():
    assert paper.training_minutes("heat", "ffm") == (50, 75)
    assert paper.training_minutes("navier_stokes", "sapc") == (540, 540)
    assert paper.training_minutes("stokes_ic", "sapc") is paper.training_minutes("heat", "eci") is None
    assert paper.ground_truth("stokes_ic") == paper.ground_truth("stokes_bc") == (0.085, 0.11)
    assert paper.ground_truth("reaction_diffusion") == (0.017, 0.1)
    assert paper.ground_truth("stokes_ic", "nu_error") == (0.037, 0.164)
    assert paper.ground_truth("stokes_bc", "nu_error") == (0.047, 0.054)
    assert paper.ground_truth("heat") is None
    protocol = paper.protocol()
    assert (protocol.training_steps, len(protocol.seeds), protocol.sets) == (20000, 3, 4)
    assert protocol.samples == dict.fromkeys(paper.TASKS, 1225) | {"navier_stokes": 100}


def test_source_is_named():
    assert paper.SOURCE is SAPC
    assert paper.numbers()["source"]["paper"] == SAPC.key
    assert paper.numbers()["source"]["title"] == SAPC.title
    assert set(paper.METHODS) | set(paper.ABLATION_METHODS) == set(paper.METHOD_LABELS)
    assert set(paper.TASKS) == set(paper.TASK_LABELS)
    assert set(paper.ABLATION) == set(paper.METRIC_LABELS)
