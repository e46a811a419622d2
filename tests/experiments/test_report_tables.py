"""Tables of a report: numbers as printed, marks, what is missing, and what the notes must say."""

from __future__ import annotations

import csv
import math
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from hand_made import collect_by_hand, one_skill, per_set, scores
from sapc.errors import SapcError
from sapc.experiments.report.data import ReportData
from sapc.experiments.report.format import Table, compact
from sapc.experiments.report.tables import ranks, report_tables, write_tables
from sapc.experiments.results import Collection, Problem
from sapc.methods import paper

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st

NAMES = ["generation", "supplement", "ablation", "cost"]


def tables(*contents, problems=(), **more):
    collection = replace(collect_by_hand(*contents, **more), problems=list(problems))
    return dict(zip(NAMES, report_tables(ReportData(collection)), strict=True))


def line(table, metric: str, whose: str = "ours", task: str = "Heat") -> dict[str, str]:
    (row,) = [row for row in table.rows if row[:3] == (task, metric, whose)]
    return dict(zip(table.columns, row, strict=True))


def marks(table, metric: str, whose: str = "ours", task: str = "Heat") -> tuple[list[str], list[str]]:
    """The columns with the best and with the second best."""
    (i,) = [i for i, row in enumerate(table.rows) if row[:3] == (task, metric, whose)]
    return tuple(
        [name for j, name in enumerate(table.columns) if (i, j) in places]
        for places in (table.best, table.second_best)
    )


# -- numbers --


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (2.2e-5, 0.8e-5, "2.2(0.8)e-5"),
        (5.7, 0.9, "5.7(0.9)"),
        (15.0, 12.0, "1.5(1.2)e1"),
        (0.0, 0.0, "0"),
        (0.0, 3e-4, "0.0(3.0)e-4"),
        (9.96e-3, 1e-4, "1.0(0.0)e-2"),
        (0.1, 0.031, "1.0(0.3)e-1"),
        (1e-5, 2.0, "1.0(200000.0)e-5"),
        (3.14e-7, None, "3.1e-7"),
        (1.0, None, "1.0"),
        (5e-324, 5e-324, "4.9(4.9)e-324"),
    ],
)
def test_compact_form(mean, error, text):
    assert compact(mean, error) == text


@given(st.floats(1e-290, 1e290) | st.floats(-1e290, -1e-290), st.none() | st.floats(0, 1e4))
def test_compact_form_is_right_to_half_of_its_last_digit(mean, relative):
    error = None if relative is None else relative * abs(mean)
    match = re.fullmatch(r"(-?\d\.\d)(?:\((\d+\.\d)\))?(?:e(-?\d+))?", compact(mean, error))
    m, power = float(match[1]), 10.0 ** int(match[3] or 0)
    assert 1 <= abs(m) < 10
    assert abs(m * power - mean) <= 0.05 * power * (1 + 1e-9)
    assert (match[2] is None) == (error is None)
    if error is not None:
        assert abs(float(match[2]) - error / power) <= 0.05 * (1 + 1e-9) + 1e-15 * error / power


def test_means_by_hand_beside_the_papers():
    ours = [scores(seed=0, sets=per_set(1e-5, 2e-5)), scores(seed=1, sets=per_set(3e-5, 6e-5))]
    ffm = scores(method="ffm", sets=per_set(0.5, 0.5))
    result = tables(*ours, ffm)["generation"]
    texts = line(result, "MMSE")
    assert texts["SAPC"] == "3.0(1.1)e-5"  # sqrt(14 / 3) / 2 = 1.08
    assert texts["FFM"] == "5.0(0.0)e-1"
    assert line(result, "MMSE", "paper")["SAPC"] == "2.2(0.8)e-5"
    assert line(result, "CE", "paper")["FFM"] == "1.0"
    record = next(r for r in result.records if (r.metric, r.method) == ("mmse", "sapc"))
    assert (record.mean, record.n, record.rank, record.statistic) == (3e-5, 4, 1, "mean")
    assert record.error == pytest.approx(math.sqrt(14 / 3) / 2 * 1e-5, rel=1e-12)
    assert (record.paper_mean, record.paper_error) == (2.2e-5, 0.8e-5)


def test_every_printed_number_is_shown():
    result = tables()
    for name, metrics, methods in (
        ("generation", paper.GENERATION, paper.METHODS),
        ("supplement", paper.SUPPLEMENT, paper.METHODS),
        ("ablation", paper.ABLATION, paper.ABLATION_METHODS),
    ):
        source = "ablation" if name == "ablation" else "generation"
        for task in paper.TASKS:
            for metric in metrics:
                texts = line(result[name], paper.METRIC_LABELS[metric], "paper", paper.TASK_LABELS[task])
                for method in methods:
                    cell = paper.printed_mean(source, task, metric, method)
                    assert texts[paper.METHOD_LABELS[method]] == compact(cell.mean, cell.error)
    assert line(result["cost"], "ms per sample", "paper")["D-Flow"] == "2739"
    assert line(result["cost"], "× FFM", "paper")["ECI"] == "24.02"
    assert line(result["cost"], "training, min", "paper")["FFM"] == "50–75"


def test_floor_of_the_methods_own_number_of_samples():
    floor = lambda *values: {"test0": {"floor": {"mmse": list(values)}}}
    result = tables(
        scores(sets=floor(1e-6, 3e-6)), scores(method="ffm", sets=floor(1e-6, 3e-6)),
        scores(method="dflow", samples=64, sets=floor(2e-5, 2e-5)),
    )["generation"]  # fmt: skip
    assert line(result, "MMSE")["floor"] == "2.0(1.0)e-6; 2.0(0.0)e-5 (n=64)"
    assert line(result, "SMSE")["floor"] == "not recorded"
    assert line(result, "CE")["floor"] == line(result, "MMSE", "paper")["floor"] == "–"
    floors = {r.method: r.floor for r in result.records if r.metric == "mmse"}
    assert (floors["sapc"], floors["dflow"], floors["eci"]) == (2e-6, 2e-5, None)


def test_cost_by_hand():
    cost = lambda *seconds: {f"test{i}": {"seconds_per_sample": s} for i, s in enumerate(seconds)}
    result = tables(
        scores(method="ffm", sets=cost(0.1, 0.2, 0.6)), scores(method="eci", sets=cost(1.0)),
        scores(sets=cost(0.5)),
        training_seconds=120.0,
    )["cost"]  # fmt: skip
    assert line(result, "ms per sample")["FFM"] == "200"  # the median
    assert line(result, "× FFM")["ECI"] == "5"
    assert (line(result, "× FFM")["FFM"], line(result, "× FFM")["PCFM"]) == ("–", "missing")
    assert line(result, "s per test set")["SAPC"] == "612"  # 0.5 s of 1225
    assert line(result, "peak memory, GiB")["SAPC"] == "1"
    assert line(result, "training, min")["SAPC"] == "2"
    assert marks(result, "ms per sample") == (["SAPC"], ["ECI"])  # FFM is what they are measured by
    assert marks(result, "ms per sample", "paper") == (["PBFM"], ["PCFM"])
    record = next(r for r in result.records if (r.metric, r.method) == ("ms_per_sample", "ffm"))
    assert (record.mean, record.n, record.paper_mean, record.statistic) == (200.0, 3, 20.7, "median")
    paper_value = {r.method: r.paper_mean for r in result.records if r.metric == "training"}
    assert (paper_value["sapc"], paper_value["ffm"]) == (60.0, None)  # a range, 50 to 75, is no number
    assert line(result, "training, min", "paper")["FFM"] == "50–75"


def test_training_of_the_weights_that_are_sampled_with():
    result = tables(scores(method="eci"))["cost"]
    assert line(result, "training, min")["ECI"] == "of FFM"
    assert line(result, "× FFM")["ECI"] == "no FFM"


# -- marks --


def test_best_and_second_within_each_line_and_ties():
    values = {"sapc": 1.0, "pcfm": 1.0, "eci": 2.0, "cafm": 2.0, "ffm": 3.0}
    result = tables(*(scores(method=m, sets=per_set(v)) for m, v in values.items()))["generation"]
    assert marks(result, "MMSE") == (["SAPC", "PCFM"], ["ECI", "CAFM"])
    assert marks(result, "MMSE", "paper") == (["SAPC"], ["PCFM"])
    assert marks(result, "CE", "paper") == (["SAPC", "PCFM"], ["CAFM"])
    ranking = {r.method: r.rank for r in result.records if r.metric == "mmse"}
    assert ranking == {"sapc": 1, "pcfm": 1, "eci": 2, "cafm": 2, "pbfm": None, "dflow": None, "ffm": 3}


def test_fewer_samples_are_shown_and_not_ranked_unless_all_have_as_few():
    small = scores(method="dflow", samples=64, sets=per_set(0.1))
    result = tables(small, scores(sets=per_set(1.0)), scores(method="ffm", sets=per_set(2.0)))["generation"]
    assert line(result, "MMSE")["D-Flow"] == "1.0e-1 (n=64)"
    assert marks(result, "MMSE") == (["SAPC"], ["FFM"])
    assert any("D-Flow 64" in note for note in result.notes)
    equal = tables(small, scores(samples=64, sets=per_set(1.0)))["generation"]
    assert line(equal, "MMSE")["D-Flow"] == "1.0e-1"
    assert marks(equal, "MMSE") == (["D-Flow"], ["SAPC"])


def test_fewer_test_sets_are_not_ranked():
    result = tables(
        scores(sets=per_set(1.0)), scores(method="ffm"), scores(method="eci", sets=per_set(3.0, 2.0))
    )
    assert marks(result["generation"], "MMSE") == (["FFM"], ["ECI"])
    assert any("SAPC (test0)" in note for note in result["generation"].notes)


def test_cond_ffm_and_single_numbers_are_not_ranked():
    one = tables(scores(method="cond_ffm"), scores())["ablation"]
    assert marks(one, "MMSE") == ([], [])
    pair = tables(
        scores(method="cond_ffm", sets=per_set(0.1)),
        scores(),
        scores(method="sapc_s1", sets=per_set(3.0, 3.0)),
    )
    assert marks(pair["ablation"], "MMSE") == (["SAPC"], ["SAPC (S1)"])
    assert marks(pair["ablation"], "MMSE", "paper") == (["SAPC"], ["SAPC (S3)"])


def test_a_method_beyond_the_paper_has_a_column_of_its_own_and_no_rank():
    """The columns, ranks and numbers of the paper's methods are as without it."""
    contents = scores(sets=per_set(2.0)), scores(method="ffm", sets=per_set(3.0))
    plain, result = tables(*contents), tables(*contents, scores(method="cond_sapc", sets=per_set(0.1)))
    for name in ("generation", "cost"):
        columns = [c for c in result[name].columns if c != "condSAPC"]
        assert tuple(columns) == plain[name].columns
        assert any("condSAPC: not of the paper, but beyond it" in note for note in result[name].notes)
        assert not any("condSAPC" in note for note in plain[name].notes)
        assert [r for r in result[name].records if r.method != "cond_sapc"] == list(plain[name].records)
    assert line(result["generation"], "MMSE")["condSAPC"] == "1.0e-1"
    assert line(result["generation"], "MMSE", "paper")["condSAPC"] == "–"
    assert marks(result["generation"], "MMSE") == marks(plain["generation"], "MMSE") == (["SAPC"], ["FFM"])
    assert result["ablation"].rows == plain["ablation"].rows


# -- what is not there --


def test_missing_failed_and_what_was_not_computed():
    failure = Problem("failed", Path("runs/heat-ffm"), "out of memory", "heat", "pcfm", 0)
    corrupt = Problem("corrupt", Path("runs/heat-cafm"), "truncated", "heat", "cafm", 0)
    result = tables(scores(), problems=[failure, corrupt])
    texts = line(result["generation"], "MMSE")
    assert (texts["PCFM"], texts["CAFM"], texts["ECI"]) == ("failed", "missing", "missing")
    assert line(result["generation"], "FPD")["SAPC"] == "no weights"
    assert line(result["generation"], "CE")["SAPC"] == "no FFM"
    notes = result["generation"].notes
    assert "Problems with files and runs, named on the page: 1 failed, 1 corrupt." in notes
    assert any("out of memory" in note for note in notes)
    assert any(note.startswith("no CE for heat") for note in notes)
    assert any("Poseidon-B" in note for note in notes)
    assert not any("out of memory" in note for note in result["ablation"].notes)


def test_fpd_where_it_was_computed_and_frd_never_in_its_place():
    result = tables(
        scores(sets=per_set(0.25, metric="fpd")), scores(method="ffm", sets=per_set(9.0, metric="frd"))
    )
    texts = line(result["generation"], "FPD")
    assert (texts["SAPC"], texts["FFM"]) == ("2.5e-1", "no weights")
    assert not any("9.0" in cell for row in result["generation"].rows for cell in row[3:] if row[2] == "ours")


def test_a_failed_seed_beside_a_good_one_leaves_the_number():
    failure = Problem("failed", Path("x"), "why", "heat", "sapc", 1)
    assert line(tables(scores(), problems=[failure])["generation"], "MMSE")["SAPC"] == "1.0(0.0)"


def test_without_scores_the_paper_stands_alone():
    result = tables()
    assert {row[2]: cell for row in result["generation"].rows for cell in row[3:4]}["ours"] == "missing"
    assert all(
        "No scores were found: all numbers are the paper's." in table.notes for table in result.values()
    )
    task = Problem("missing", Path("x"), "not begun", "burgers", "sapc", 0)
    assert {row[0] for row in tables(problems=[task])["generation"].rows} == {"Burgers"}


def test_methods_and_tasks_of_ones_own():
    result = tables(scores(method="mine", task="own"), scores(task="own", method="eci_stokes_ic"))
    texts = line(result["generation"], "MMSE", task="own")
    assert (texts["mine"], texts["eci_stokes_ic"], texts["SAPC"]) == ("1.0(0.0)", "1.0(0.0)", "missing")
    assert line(result["generation"], "MMSE", "paper", "own")["SAPC"] == "–"
    assert "mine" not in result["ablation"].columns
    assert line(result["cost"], "s per test set", task="own")["mine"] == "612"


# -- what the notes say --


def full(**changes):
    four = per_set(1.0, 2.0, 3.0, 4.0)
    return [
        scores(method=m, seed=seed, sets=four, **changes) for m in ("sapc", "ffm") for seed in (0, 42, 205)
    ]


def test_the_papers_protocol_is_recognised():
    notes = tables(*full())["generation"].notes
    assert "Heat: our protocol is the paper's." in notes
    (result,) = [note for note in notes if note.startswith("Heat, ours")]
    for part in ("seeds 0, 42, 205", "test0, test1, test2, test3", "1225 samples beside 1225",
                 "preset published", "20000 training steps", "100 x 100",
                 "sapc 0.1.0 and torch 2.13.0 on NVIDIA H200"):  # fmt: skip
        assert part in result


@pytest.mark.parametrize(
    ("changes", "what", "meaning"),
    [
        (
            {"preset": "tiny", "grid": [16, 16], "steps": 20},
            "preset tiny instead of published",
            "mean nothing",
        ),
        ({"preset": "small"}, "preset small", "not to be compared"),
        ({"steps": 500}, "training steps 500 instead of 20000", "not to be compared"),
        ({"grid": [50, 50]}, "points (50, 50) instead of (100, 100)", "not to be compared"),
        ({"samples": 64}, "64 samples instead of 1225", ""),
        ({"reference": 8}, "solutions 8 instead of 1225", ""),
    ],
)
def test_another_protocol_is_told_plainly(changes, what, meaning):
    for table in tables(*full(**changes)).values():
        (note,) = [note for note in table.notes if "not the paper's protocol" in note]
        assert what in note
        assert (meaning in note) if meaning else ("numbers" not in note)


def test_seeds_and_sets_that_are_too_few_are_told():
    notes = tables(scores(), scores(seed=1), scores(method="ffm"))["generation"].notes
    assert any("1 of 3 seeds; 2 of 4 test sets" in note for note in notes)
    assert any("seeds 0, 1 (SAPC) and 0 (FFM)" in note for note in notes)
    notes = tables(*full(), training={"precision": "bf16"})["generation"].notes
    assert any("trained in bf16 instead of float32" in note for note in notes)


def test_solutions_have_constraint_errors_of_their_own():
    notes = tables(scores(task="stokes_ic"))["supplement"].notes
    assert "CE_G of the solutions themselves, as the paper tells it: Stokes IC 0.085 to 0.11." in notes


# -- files --

NASTY = Table(
    'a & b_c <i>"x"</i>', ("method", "50% | $x$"), [("a|b", "2.2(0.8)e-5"), ("<u>", "missing"),
    ("c\\d~e^f#{g}", "–")],
    frozenset({(0, 1)}), frozenset({(2, 1)}), notes=("x < y & z_1", "two\nlines"),
)  # fmt: skip


def test_markdown_is_escaped():
    text = NASTY.section()
    assert text.splitlines()[0] == '## a & b_c &lt;i>"x"&lt;/i>'
    assert r"| a\|b | **2.2(0.8)e-5** |" in text
    assert "- two lines" in text
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in NASTY.markdown().splitlines()] == [3] * 5


def test_markdown_takes_names_for_text():
    """No link, emphasis, code, formula or entity comes of a name; plain ones stay legible."""
    names = ("[x](javascript:y)", "*a* _b_ __c__ `d` ~~e~~ $f$ \\* &lt;", "CE_L of stokes_ic & more")
    text = Table("t", ("a",), [(name,) for name in names]).markdown().splitlines()
    assert text[2:] == [
        r"| \[x\](javascript:y) |",
        r"| \*a\* \_b\_ \_\_c\_\_ \`d\` \~~e\~~ \$f\$ \\\* &amp;lt; |",
        "| CE_L of stokes_ic & more |",
    ]


def test_latex_is_escaped_and_has_the_short_form():
    text = NASTY.latex()
    assert r"\caption{a \& b\_c \textless{}i\textgreater{}''x" in text
    assert r"a\textbar{}b & \textbf{\boldmath $2.2(0.8){-}5$} \\" in text
    assert r"c\textbackslash{}d\textasciitilde{}e\textasciicircum{}f\#\{g\} & \underline{--} \\" in text
    assert r"method & 50\% \textbar{} \$x\$ \\" in text
    assert "\n{[}1{]} & x" in Table("t", ("a", "b"), [("[1]", "x")]).latex()
    result = tables(*full())["supplement"].latex()
    rows = [row for row in result.splitlines() if row.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {10}
    assert "CE$_L$" in result
    assert result.count("{") == result.count("}")
    assert compact(5.0, 1.0) == "5.0(1.0)"
    assert "$5.0(1.0){+}0$" in Table("t", ("a", "b"), [("x", "5.0(1.0)")]).latex()


def test_html_is_well_formed_and_says_what_is_missing():
    document = ElementTree.fromstring(f"<div>{NASTY.html()}</div>")
    assert document.find("table/caption").text == NASTY.title
    assert [cell.get("scope") for cell in document.iter("th")] == ["col", "col", "row", "row", "row"]
    assert [cell.get("class") for cell in document.iter("td")] == [None, "missing", "nothing"]
    assert document.find(".//td/strong").text == "2.2(0.8)e-5"
    assert [note.text for note in document.iter("li")] == list(NASTY.notes)
    for table in tables(*full()).values():
        ElementTree.fromstring(f"<div>{table.html()}</div>")


def test_csv_of_the_text():
    assert list(csv.reader(NASTY.csv().splitlines())) == [list(NASTY.columns), *map(list, NASTY.rows)]


def test_all_files(tmp_path):
    result = list(tables(*full()).values())
    paths = write_tables(result, tmp_path / "new" / "tables")
    names = ["tables.md", *(f"{name}.{kind}" for name in NAMES for kind in ("csv", "tex"))]
    assert (
        sorted(path.name for path in paths)
        == sorted(names)
        == sorted(p.name for p in (tmp_path / "new" / "tables").iterdir())
    )
    text = (tmp_path / "new" / "tables" / "tables.md").read_text()
    assert all(f"## {table.title}" in text for table in result)
    with open(tmp_path / "new" / "tables" / "generation.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == len(paper.GENERATION) * len(paper.METHODS)
    assert list(lines[0])[:11] == [
        "table", "task", "metric", "method", "mean", "error", "n", "floor", "paper_mean", "paper_error",
        "rank",
    ]  # fmt: skip
    first = lines[0]
    assert (first["method"], float(first["mean"]), first["n"], float(first["paper_mean"])) == (
        "sapc",
        2.5,
        "12",
        2.2e-5,
    )
    assert next(one for one in lines if one["method"] == "eci")["mean"] == ""


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SapcError, match="cannot create"):
        write_tables(report_tables(ReportData(Collection())), tmp_path / "file" / "tables")


def test_what_reads_alike_is_ranked_alike_and_rounding_is_no_merit():
    assert ranks({"a": 0.1841, "b": 0.1799, "c": 0.19}) == {"a": 1, "b": 1, "c": 2}
    assert ranks({"a": 3e-15, "b": 1e-16, "c": 2e-3}, "ce_global") == {"a": 1, "b": 1, "c": 2}
    assert ranks({"a": 3e-15, "b": 1e-16}, "mmse") == {"a": 2, "b": 1}


# -- skill per condition --


def with_skill(method: str, seed: int = 0, **metrics: float):
    return scores("heat", method, seed) | {"skill": one_skill(**metrics)}


def test_skill_stands_beside_climatology_and_persistence():
    collection = collect_by_hand(with_skill("sapc"), with_skill("ffm", crps=0.8, skill_score=0.0), scores())
    (table,) = [t for t in report_tables(ReportData(collection)) if t.name == "skill"]
    assert table.columns == ("task", "metric", "whose", "SAPC", "FFM", "climatology", "persistence")
    assert line(table, "CRPS")["SAPC"] == compact(0.4, 0.05)
    assert line(table, "CRPS")["climatology"] == compact(0.8)
    assert line(table, "RMSE of the mean")["persistence"] == compact(1.2)
    assert marks(table, "CRPS") == (["SAPC"], ["FFM"])
    # Of the skill score the highest is the best; a spread or a coverage has no rank.
    assert marks(table, "skill by CRPS") == (["SAPC"], ["FFM"])
    assert marks(table, "spread / skill") == marks(table, "in the 50 % interval") == ([], [])
    assert any("3 samples for each of 8 held-out conditions" in note for note in table.notes)
    assert {r.metric for r in table.records} == {
        "crps", "energy_score", "rmse", "skill_score", "spread_skill", "coverage_50", "coverage_90"
    }  # fmt: skip


def test_the_error_of_several_trainings_is_over_trainings():
    collection = collect_by_hand(with_skill("sapc", 0, crps=0.4), with_skill("sapc", 1, crps=0.6))
    (table,) = [t for t in report_tables(ReportData(collection)) if t.name == "skill"]
    assert line(table, "CRPS")["SAPC"] == compact(0.5, 0.1)


def test_without_skill_there_is_no_table_of_it():
    assert [t.name for t in report_tables(ReportData(collect_by_hand(scores())))] == NAMES
