"""Figures of reports: they draw the data, mark what is missing, and the same data give the same bytes."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from hand_made import collect_by_hand, one_skill, scores
from sapc.evaluation.moments import EnsembleStatistics, Moments
from sapc.experiments.report.data import ReportData, order_methods, short_label
from sapc.experiments.report.figures import FigureData, fields, task_figures
from sapc.experiments.report.figures import plots as curves
from sapc.experiments.report.figures.data import MAKERS, _heading, paper_points
from sapc.experiments.report.figures.plots import Point, draw_tradeoff, zero_at
from sapc.experiments.report.figures.skill import draw_skill
from sapc.experiments.report.figures.style import DPI, LINE_STYLES, SETTINGS, line_style, render
from sapc.experiments.report.make import draw_all
from sapc.experiments.results import Problem
from sapc.methods import METHODS, paper
from sapc.models.scores import fields_path
from sapc.models.skill import Skill

pytest.importorskip("matplotlib")
import matplotlib
from matplotlib.text import Text

TIMES = [1.0, 0.75, 0.5, 0.25, 0.0]


def moments(*shape: int, seed: int = 0, scale: float = 1.0) -> Moments:
    u = scale * torch.randn(5, *shape, generator=torch.Generator().manual_seed(seed))
    return Moments(u.mean(0), u.std(0), u[0])


def trajectory(scale: float = 1.0, **changes):
    return {
        "times": TIMES,
        "endpoint_residual": [scale * v for v in (4.0, 3.0, 2.0, 1.0)],
        "state_residual": [scale * v for v in (5.0, 4.0, 3.0, 2.0, 0.0)],
        "deviation": [0.0, 0.1 * scale, 0.2 * scale, 0.1 * scale, 0.0],
        "energy": [1.0] * 4,
        "excess_energy": 4.0 * scale,
        "straight_energy": 10.0,
        "samples": 7,
    } | changes


def make_results(
    folder, methods=("sapc", "ffm"), without=(), task="heat", grid=(6, 5), has_trajectories=True, seeds=(0,),
    has_skill=False,
):  # fmt: skip
    """Scores of methods on a task, with fields beside them, except those `without`, and trajectories."""
    contents = []
    for k, (method, seed) in enumerate(itertools.product(methods, seeds)):
        content = scores(
            task, method, seed, grid=list(grid), sets={n: {"w2": 0.1 * (k + 1)} for n in ("test0", "test1")}
        )
        for about in content["sets"].values():
            about["floor"] = {"w2": [0.05, 0.07]}
            if has_trajectories:
                about["trajectory"] = trajectory(k + 1.0)
        if has_skill:
            content["skill"] = one_skill()
        contents.append(content)
    results = collect_by_hand(*contents)
    results = replace(
        results, files=[replace(s, path=folder / f"scores-{s.method}-{s.seed}.json") for s in results.files]
    )
    for s in results.files:
        if s.method not in without:
            write_fields(s, grid)
    return results


def write_fields(file, grid, sets=("test0", "test1")) -> EnsembleStatistics:
    statistics = EnsembleStatistics()
    for j, name in enumerate(sets):
        draw = torch.Generator().manual_seed(10 * j + len(file.method))
        solutions = torch.randn(6, *grid, generator=torch.Generator().manual_seed(j))
        statistics.add(name, torch.randn(6, *grid, generator=draw), solutions)
    statistics.save(fields_path(file.path))
    return statistics


# -- telling methods apart --


def contrast(colour: str) -> float:
    """To white, as WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def test_every_method_has_a_look_of_its_own():
    assert set(LINE_STYLES) == set(METHODS)
    for a, b in itertools.combinations(LINE_STYLES.values(), 2):
        assert a.marker != b.marker
        assert (a.colour, a.line) != (b.colour, b.line)
    assert min(contrast(one.colour) for one in LINE_STYLES.values()) >= 3


def test_methods_stand_in_the_usual_order_and_unknown_ones_last():
    assert order_methods(["new", "cond_sapc", "dflow", "ffm", "sapc_s1", "sapc", "sapc"]) == [
        "sapc",
        "sapc_s1",
        "ffm",
        "dflow",
        "cond_sapc",
        "new",
    ]
    assert [short_label(m) for m in ("sapc", "sapc_s2", "cond_ffm", "cond_sapc", "new")] == [
        "SAPC",
        "S2",
        "condFFM",
        "condSAPC",
        "new",
    ]


# -- skill per condition --


def test_rank_histograms_and_errors_are_drawn_as_given():
    skills = {m: Skill.from_dict(one_skill(), "skill") for m in ("sapc", "ffm")}
    ranks, errors = draw_skill(skills).axes
    for stairs, method in zip(ranks.patches, skills, strict=True):
        density = stairs.get_data().values
        np.testing.assert_allclose(density, [1.2, 0.8, 0.8, 1.2])
        assert stairs.get_label() == short_label(method)
    drawn = {line.get_label(): list(line.get_ydata()) for line in errors.lines}
    about = one_skill()["by_time"]
    assert drawn == {
        "climatology": about["climatology_rmse"],
        "persistence": about["persistence_rmse"],
        "SAPC": about["rmse"],
        "FFM": about["rmse"],
    }
    # Steady fields have no second panel.
    steady = replace(skills["sapc"], times=[], by_time={})
    assert len(draw_skill({"sapc": steady}).axes) == 1


def test_skill_has_a_figure_where_it_was_measured(tmp_path):
    results = make_results(tmp_path, methods=("sapc",), has_skill=True)
    bad = one_skill(crps=0.8, crps_over_climatology=0.0)
    results = replace(
        results,
        files=[
            replace(s, scores=replace(s.scores, skill=Skill.from_dict(bad, "skill"))) for s in results.files
        ],
    )
    figures, _ = draw_all(ReportData(results), lambda *_: None)
    (figure,) = [f for f in figures if f.name == "heat-skill"]
    assert "3 samples for each of 8" in figure.caption
    assert "SAPC: samples do no better than climatology: CRPS 0.8 beside 0.8" in figure.caption
    figures, notes = draw_all(ReportData(make_results(tmp_path)), lambda *_: None)
    assert "heat-skill" not in [f.name for f in figures]
    assert not any("skill" in note for texts in notes.values() for note in texts)


# -- along the sampling runs --


def test_trajectories_are_drawn_as_given():
    trajectories = {"sapc": trajectory(), "eci": trajectory(3.0)}
    figure = curves.draw_trajectories(trajectories)
    panels = figure.axes
    assert len(panels) == 4
    for ax, (name, _) in zip(panels, curves.PANELS, strict=False):
        assert ax.get_yscale() == "log"
        assert ax.get_xlim()[0] > ax.get_xlim()[1]  # time falls from left to right
        assert [line.get_label() for line in ax.lines] == ["SAPC", "ECI"]
        for line, (method, one) in zip(ax.lines, trajectories.items(), strict=True):
            values = np.array(one[name])
            np.testing.assert_array_equal(line.get_xdata(), TIMES[: len(values)])
            expected = np.where(values > 0, values, np.nan if name == "deviation" else curves.FLOOR)
            np.testing.assert_array_equal(line.get_ydata(), expected)
            assert (line.get_color(), line.get_marker()) == (
                line_style(method).colour,
                line_style(method).marker,
            )
    ends = [line.get_xdata()[0] for line in panels[3].lines if len(line.get_xdata()) == 1]
    assert ends == [4.0, 12.0]
    assert [text.get_text() for text in panels[3].get_yticklabels()] == ["SAPC", "ECI"]


def test_what_is_not_finite_leaves_a_gap():
    broken = trajectory(endpoint_residual=[None, 3.0, 2.0, 1.0], excess_energy=None)
    times, values = curves.curve(broken, "endpoint_residual")
    assert len(times) == 4
    assert np.isnan(values[0])
    figure = curves.draw_trajectories({"ffm": broken, "sapc": trajectory(excess_energy=0.0)})
    assert {text.get_text() for text in figure.axes[3].texts} == {"not finite", "0"}
    assert curves.has_zero([broken])
    assert not curves.has_zero([trajectory(state_residual=[1.0] * 5)])


# -- W2 against CE --


POINTS = {
    "sapc": Point(1e-7, 0.01, 1e-8, 0.001, 0.5),
    "ffm": Point(1.0, 0.2, None, None, 0.1),
    "eci": Point(0.0, 0.3, 0.0, 0.02, 5.0),
}


def test_tradeoff_puts_every_point_in_its_place():
    printed = {"sapc": Point(1e-6, 0.02), "dflow": Point(2.0, 2.0)}
    figure = draw_tradeoff(POINTS, printed, floor=0.005)
    axes, bar = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    markers = [line for line in axes.lines if line.get_marker() not in ("None", "_", "|", "")]
    hollow = [line for line in markers if line.get_markerfacecolor() == "none"]
    places = lambda lines: [(line.get_xdata()[0], line.get_ydata()[0]) for line in lines]
    assert places(hollow) == [(1e-6, 0.02), (2.0, 2.0)]
    ours = [line for line in markers if line not in hollow]
    assert places(ours) == [(1e-7, 0.01), (1.0, 0.2), (zero_at([*POINTS.values(), *printed.values()]), 0.3)]
    assert ours[0].get_marker() == "s"
    assert len({line.get_marker() for line in ours}) == 3
    floor_lines = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in floor_lines] == [0.005]
    words = {text.get_text() for text in axes.texts}
    assert {"SAPC", "FFM", "ECI", "D-Flow", "sampling floor", "better"} <= words
    assert bar.get_ylabel() == "seconds per sample"
    low, high = bar.get_ylim()
    assert low <= 0.1 < 5.0 <= high


@pytest.mark.slow
def test_names_do_not_cover_each_other():
    """All eleven, as the paper prints them, and on every one of its tasks."""
    for task in paper.TASKS:
        printed = {m: Point(p.ce, p.w2, seconds=1.0) for m, p in paper_points(task).items()}
        assert len(printed) == 11
        figure = draw_tradeoff(printed, {}, 0.05)
        figure.draw_without_rendering()
        boxes = [
            Text.get_window_extent(t)
            for t in figure.axes[0].texts
            if t.get_text() in {short_label(m) for m in printed}
        ]
        assert len(boxes) == 11
        overlaps = [_overlap(a, b) for a, b in itertools.combinations(boxes, 2)]
        assert max(overlaps) < 0.15, task
        frame = figure.axes[0].get_window_extent()
        assert all(frame.x0 - 2 < box.x0 and box.x1 < frame.x1 + 2 for box in boxes)


def _overlap(a, b) -> float:
    """The part of the smaller box that the other one covers."""
    wide = min(a.x1, b.x1) - max(a.x0, b.x0)
    tall = min(a.y1, b.y1) - max(a.y0, b.y0)
    return max(0.0, wide) * max(0.0, tall) / min(a.width * a.height, b.width * b.height)


def test_a_single_point_without_time_or_floor_is_drawn():
    figure = draw_tradeoff({"sapc": Point(0.0, 0.1)}, {})
    assert zero_at([Point(0.0, 0.1)]) == 0.1
    assert len(figure.axes) == 2


# -- fields --


@pytest.mark.parametrize("methods", [1, 5, 6, 11])
def test_ensembles_show_all_panels_on_the_scale_of_the_solutions(methods):
    solutions = moments(6, 5)
    panels_of_methods = [fields.Panel(f"m{k}", moments(6, 5, seed=k, scale=3.0)) for k in range(methods)]
    figure = fields.draw_ensembles(
        [fields.Panel("solutions", solutions), *panels_of_methods], solutions, fields.Space((0, 1, 0, 2))
    )
    images = [ax.images[0] for ax in figure.axes if ax.images]
    assert len(images) == 2 * (methods + 1)
    assert [ax.get_title() for ax in figure.axes if ax.get_title()] == [
        "solutions",
        *(f"m{k}" for k in range(methods)),
    ]
    for part, limits in (("mean", _around_zero(solutions.mean)), ("std", (0.0, float(solutions.std.max())))):
        expected = [getattr(one, part) for one in (solutions, *(s.moments for s in panels_of_methods))]
        images_of_part = [i for i in images if any(np.array_equal(i.get_array(), u) for u in expected)]
        assert len(images_of_part) == methods + 1
        assert all(i.get_clim() == pytest.approx(limits) for i in images_of_part)
        assert all(i.get_extent() == [0, 1, 0, 2] for i in images_of_part)


def _around_zero(u):
    limit = float(u.abs().max())
    return -limit, limit


@pytest.mark.parametrize("shape", [(6, 5), (4, 4, 3)])
def test_missing_methods_are_an_empty_panel_that_says_so(shape):
    solutions = moments(*shape)
    panels = [
        fields.Panel("solutions", solutions),
        fields.Panel("ECI", None),
        fields.Panel("FFM", moments(*shape, seed=1)),
    ]
    space = fields.Space((0, 1, 0, 1)) if len(shape) == 2 else fields.Space(times=(0.0, 1.0, 2.0))
    figure = fields.draw_ensembles(panels, solutions, space)
    empty_axes = [ax for ax in figure.axes if "missing" in [t.get_text() for t in ax.texts]]
    assert len(empty_axes) == 2
    assert not any(ax.images for ax in empty_axes)


def test_frames_stand_side_by_side_in_time():
    solutions, samples = moments(4, 4, 3), moments(4, 4, 3, seed=1)
    panels = [fields.Panel("solutions", solutions), fields.Panel("SAPC", samples)]
    figure = fields.draw_ensembles(panels, solutions, fields.Space(times=(0.0, 5.0, 10.0)))
    strips = [ax for ax in figure.axes if len(ax.images) == 3]
    assert len(strips) == 4
    for i, image in enumerate(strips[2].images):
        np.testing.assert_array_equal(image.get_array(), samples.mean[..., i].T)
    lefts = [image.get_extent()[0] for image in strips[0].images]
    assert lefts == sorted(lefts)
    assert [t.get_text() for t in strips[2].get_xticklabels()] == ["0", "5", "10"]


@pytest.mark.parametrize("shape", [(6, 5), (4, 4, 3)])
def test_examples_show_a_solution_and_a_sample_of_every_set(shape):
    sets = {f"test{k}": (moments(*shape, seed=2 * k), moments(*shape, seed=2 * k + 1)) for k in range(3)}
    space = fields.Space((0, 1, 0, 1)) if len(shape) == 2 else fields.Space(times=(0.0, 1.0, 2.0))
    figure = fields.draw_examples(sets, "SAPC", space)
    images = [image for ax in figure.axes for image in ax.images]
    assert len(images) == 6 * (1 if len(shape) == 2 else 3)
    assert len({image.get_clim() for image in images}) == 1
    words = " ".join(ax.get_title() + ax.get_ylabel() for ax in figure.axes)
    assert all(word in words for word in ("test0", "test2", "a solution", "SAPC"))


def test_constant_and_broken_fields_can_be_drawn():
    flat = Moments(*(torch.zeros(6, 5) for _ in range(3)))
    broken = Moments(*(torch.full((6, 5), float("nan")) for _ in range(3)))
    for solutions in (flat, broken):
        panels = [fields.Panel("solutions", solutions), fields.Panel("FFM", broken)]
        data, *_ = render(
            lambda p=panels, s=solutions: fields.draw_ensembles(p, s, fields.Space((0, 1, 0, 1))), "png"
        )
        assert data.startswith(b"\x89PNG")


# -- bytes --


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_same_data_same_bytes_whatever_the_settings(kind):
    draw = lambda: draw_tradeoff(POINTS, {}, 0.005)
    before, width, height = render(draw, kind)
    with matplotlib.rc_context({"font.size": 23, "svg.hashsalt": "other", "axes.facecolor": "red"}):
        repetition, *_ = render(draw, kind)
        assert matplotlib.rcParams["font.size"] == 23
    assert before == repetition
    assert b"<dc:date>" not in before
    assert b"Matplotlib v" not in before
    assert (width, height) == (
        round(5.6 * (96 if kind == "svg" else DPI)),
        round(4.7 * (96 if kind == "svg" else DPI)),
    )
    if kind == "png":
        from io import BytesIO

        from PIL import Image

        with Image.open(BytesIO(before)) as image:
            assert image.size == (width, height)
            assert not image.info.get("Software")
    else:
        assert b"<text" not in before  # letters are paths
        assert SETTINGS["svg.fonttype"] == "path"


# -- from what was collected --


@pytest.mark.slow
def test_a_task_gets_all_its_figures(tmp_path):
    results = make_results(tmp_path, ("sapc", "ffm", "eci"))
    material = FigureData(ReportData(results), "heat")
    assert material.methods == ["sapc", "ffm", "eci"]
    assert material.space.extent == pytest.approx((0, 1, 0, 2 * np.pi))
    assert material.floor == pytest.approx(0.06)
    figures, notes = task_figures(material)
    assert notes == []
    assert [f.file for f in figures] == [
        "heat-tradeoff.svg", "heat-ensembles.png", "heat-trajectories.svg", "heat-examples.png",
    ]  # fmt: skip
    assert all(f.task == "heat" and f.alt and f.caption and f.title.startswith("Heat") for f in figures)
    assert all(f.width <= 1400 for f in figures)


def test_frames_of_three_axes_have_their_times(tmp_path):
    results = make_results(tmp_path, task="navier_stokes", grid=(4, 4, 12))
    material = FigureData(ReportData(results), "navier_stokes")
    assert material.space.extent is None
    assert len(material.space.times) == 10
    assert (material.space.times[0], material.space.times[-1]) == pytest.approx((0, 49))


@pytest.mark.slow
def test_fields_of_a_task_that_is_not_known_are_numbered(tmp_path):
    material = FigureData(ReportData(make_results(tmp_path, task="new", grid=(4, 4, 12))), "new")
    assert material.space.times[:3] == (0.0, 1.0, 2.0)
    figures, notes = task_figures(material)
    assert (len(figures), notes) == (4, [])
    assert figures[0].title == "new: fidelity against constraints"


@pytest.mark.slow
def test_what_has_no_fields_is_told(tmp_path):
    results = make_results(tmp_path, ("sapc", "ffm", "eci"), without=("eci",), has_trajectories=False)
    results.problems.append(Problem("failed", tmp_path, "it diverged", "heat", "pcfm", 0))
    fields_path(results.files[1].path).write_bytes(b"damaged")
    material = FigureData(ReportData(results), "heat")
    assert list(material.statistics) == ["sapc"]
    figures, notes = task_figures(material)
    ensembles = next(f for f in figures if f.name == "heat-ensembles")
    assert "Missing: FFM, ECI, PCFM." in ensembles.caption
    assert any(note.startswith("fields of FFM, seed 0") for note in notes)
    assert any("ECI is not among the pictures" in note and "evaluate it again" in note for note in notes)
    assert any("no figure of trajectories" in note and "--trajectory" in note for note in notes)


def test_fewer_samples_are_told(tmp_path):
    results = make_results(tmp_path, ("sapc", "ffm", "dflow"), has_trajectories=False)
    small = results.files[2].scores
    small = replace(small, settings=replace(small.settings, samples=32))
    results.files[2] = replace(results.files[2], scores=small)
    material = FigureData(ReportData(results), "heat")
    assert material.small_samples == {"dflow": 32}
    figures, _ = task_figures(material)
    assert "With fewer samples, so a higher floor: D-Flow 32." in figures[0].caption
    assert _heading(material, "dflow", "test0").endswith("(n=32)")
    assert "n=" not in _heading(material, "sapc", "test0")


def test_fields_of_another_grid_are_left_out(tmp_path):
    results = make_results(tmp_path, ("sapc", "ffm", "eci"))
    write_fields(results.files[2], (8, 5))
    material = FigureData(ReportData(results), "heat")
    assert list(material.statistics) == ["sapc", "ffm"]
    assert any("another grid" in note for note in material.problems)


@pytest.mark.slow
def test_the_lowest_seed_with_fields_is_shown_and_the_fullest_set(tmp_path):
    results = make_results(tmp_path, ("sapc", "ffm"), seeds=(3, 1))
    fields_path(results.files[1].path).unlink()  # sapc, seed 1
    write_fields(results.files[0], (6, 5), ("test1",))
    material = FigureData(ReportData(results), "heat")
    assert material.scores["sapc"].run.seed == 3
    assert material.scores["ffm"].run.seed == 1
    assert material.sets == ["test1", "test0"]
    assert material.trajectory_scores["sapc"]["run"]["seed"] == 1
    figures, _ = task_figures(material)
    assert "(seed 1, 3)" in figures[1].caption
    assert "(seed 1)" in figures[2].caption
    assert material.points["sapc"].w2 == pytest.approx(0.15)
    assert material.points["sapc"].w2_error > 0


@pytest.mark.slow
def test_without_ffm_there_is_no_ce_and_no_figure_of_it(tmp_path):
    figures, notes = task_figures(FigureData(ReportData(make_results(tmp_path, ("sapc",))), "heat"))
    assert "heat-tradeoff" not in [f.name for f in figures]
    assert any("relative to the errors of FFM" in note for note in notes)


def test_a_figure_that_fails_is_a_note_and_the_rest_is_drawn(tmp_path, monkeypatch):
    results = make_results(tmp_path, has_skill=True)
    for s in results.files:
        for about in s.sets.values():
            del about.trajectory["deviation"]
    figures, notes = draw_all(ReportData(results), lambda *_: None)
    assert "heat-trajectories" not in [f.name for f in figures]
    assert len(figures) == len(MAKERS) - 1
    assert notes["heat"] == ["no figure of trajectories: 'deviation'"]

    def broken(self, data, task):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(FigureData, "__init__", broken)
    assert draw_all(ReportData(results), lambda *_: None) == ([], {"heat": ["no figures: no such luck"]})
