"""FPD and FRD of ensembles: their parts, their cache, where they appear, and how well their orders agree."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import sapc
from commands import is_one_sentence
from sapc import fpd, metrics
from sapc.errors import SapcError, SapcWarning
from sapc.evaluation.evaluate import evaluate, write_scores
from sapc.evaluation.frechet import features, random_encoder
from sapc.evaluation.frechet.distance import Distance
from sapc.experiments import further_metrics, statuses
from sapc.experiments.comparison import Comparison, markdown, tables

pytest.importorskip("hypothesis")
pytest.importorskip("scipy")
pytest.importorskip("rich")
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from scipy.stats import kendalltau, spearmanr

SMALL = {"samples": 4, "reference": 5, "steps": 2, "floor_repeats": 1}


@pytest.fixture(scope="module")
def one():
    """A distance by a single small encoder."""
    return Distance("frd", (random_encoder(0),))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained model that nobody writes to."""
    config = sapc.training_config("heat", "ffm", "tiny")
    return sapc.training.loop.train(config, tmp_path_factory.mktemp("run") / "heat", device="cpu").path


@pytest.fixture(scope="module")
def poseidon_b(tmp_path_factory):
    """A folder as Poseidon-B's, with random weights, halved to save room."""
    folder = tmp_path_factory.mktemp("poseidon") / "Poseidon-B"
    folder.mkdir()
    weights = random_encoder(7, size="B").state_dict()
    save_file({name: t.half() for name, t in weights.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SAPC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def keys(tree):
    """All names in a tree of JSON."""
    if isinstance(tree, list):
        return {name for part in tree for name in keys(part)}
    return {*tree, *keys(list(tree.values()))} if isinstance(tree, dict) else set()


def fields(n, *shape, seed=0):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))


# -- the distance --


def test_a_distance_is_that_of_the_features(one, cache):
    x, y = fields(5, 20, 16), fields(4, 20, 16, seed=1)
    encoder = one.encoders[0]
    assert one.per_encoder(x, y) == [metrics.frechet(features(encoder, x), features(encoder, y))]


@pytest.mark.slow
def test_frd_is_by_three_seeds(cache):
    distance = fpd.random_distance()
    x, y = fields(3, 16, 16), fields(3, 16, 16, seed=1)
    each = distance.per_encoder(x, y)
    alone = [Distance("frd", (random_encoder(seed),)).per_encoder(x, y)[0] for seed in (0, 1, 2)]
    assert each == alone
    assert len(set(each)) == 3
    assert distance.between_solutions(x, y) == pytest.approx(sum(each) / 3, rel=1e-12)
    assert [about["seed"] for about in distance.describe()] == ["0", "1", "2"]
    assert distance.name == "frd"


def test_frames_are_averaged(one, cache):
    x, y = fields(4, 16, 16, 3), fields(5, 16, 16, 3, seed=1)
    frames = [one.per_encoder(x[..., k], y[..., k])[0] for k in range(3)]
    assert one.per_encoder(x, y)[0] == pytest.approx(sum(frames) / 3, rel=1e-9)
    assert len({round(value, 3) for value in frames}) == 3


def test_a_pinned_frame_adds_nothing(one, cache):
    x, y = fields(4, 16, 16, 2), fields(5, 16, 16, 2, seed=1)
    x[..., 0] = y[..., 0] = fields(16, 16)
    moving = one.per_encoder(x[..., 1], y[..., 1])[0]
    assert one.per_encoder(x, y)[0] == pytest.approx(moving / 2, rel=1e-6)


@pytest.mark.parametrize("shape", [(3, 16), (3, 8, 8, 2, 2)])
def test_other_shapes_are_refused(one, shape):
    with pytest.raises(SapcError, match="two or three axes"):
        one.per_encoder(fields(*shape), fields(*shape))


def test_other_numbers_of_frames_are_refused(one):
    with pytest.raises(SapcError, match="as many in both"):
        one.per_encoder(fields(3, 16, 16, 2), fields(3, 16, 16, 3))


@pytest.mark.slow
def test_progress_counts_images_of_all_encoders(cache):
    seen: list[tuple[int, int]] = []
    distance = Distance("frd", (random_encoder(0), random_encoder(1)))
    x, y = fields(3, 16, 16, 2), fields(2, 16, 16, 2)
    # The second time some come from the cache.
    for _ in range(2):
        seen.clear()
        distance.per_encoder(x, y, lambda done, total: seen.append((done, total)))
        assert seen[-1] == (20, 20)
        assert [done for done, _ in seen] == sorted({done for done, _ in seen})


# -- what is kept --


def test_features_of_solutions_are_kept_with_the_weights_named(one, cache):
    x, y = fields(3, 16, 16), fields(4, 16, 16, seed=1)
    first = one.per_encoder(x, y)
    # Features of y alone.
    (entry,) = cache.iterdir()
    with safe_open(entry, framework="pt") as content:
        assert content.metadata()["weights"] == one.encoders[0].provenance["sha256"]
        assert content.get_tensor("features").shape == (1, 4, 384)
    assert one.per_encoder(x, y) == first
    with safe_open(entry, framework="pt") as content:
        labels = content.metadata()
    other = torch.zeros(1, 4, 384)
    labels["features"] = hashlib.sha256(other.numpy().tobytes()).hexdigest()
    save_file({"features": other}, entry, metadata=labels)
    # So the entry is read back.
    assert one.per_encoder(x, y) != first


@pytest.mark.slow
def test_no_entry_serves_other_fields_or_weights(one, cache):
    x, y = fields(3, 16, 16), fields(4, 16, 16, seed=1)
    values = [
        one.per_encoder(x, y),
        one.per_encoder(x, y + 1e-3),
        one.per_encoder(x.double(), y.double()),
        Distance("frd", (random_encoder(1),)).per_encoder(x, y),
    ]
    assert len(list(cache.iterdir())) == 4
    assert values[0] != values[1]
    assert values[0] == pytest.approx(values[2])
    assert values[0] != values[3]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "empty", "a bit", "other labels", "NaN", "other shape"])
def test_a_damaged_entry_is_made_again(one, cache, damage):
    x, y = fields(3, 16, 16), fields(4, 16, 16, seed=1)
    first = one.per_encoder(x, y)
    (entry,) = cache.iterdir()
    good = entry.read_bytes()
    with safe_open(entry, framework="pt") as content:
        labels = content.metadata()
    found = load_file(entry)["features"].clone()
    if damage in ("cut", "empty"):
        entry.write_bytes(good[: len(good) // 2] if damage == "cut" else b"")
    elif damage == "a bit":
        entry.write_bytes(good[:-2] + bytes([good[-2] ^ 0x40]) + good[-1:])
    elif damage == "other labels":
        save_file({"features": found}, entry, metadata=labels | {"fields": "0"})
    elif damage == "NaN":
        save_file({"features": found * float("nan")}, entry, metadata=labels)
    else:
        save_file({"features": found[:, :2]}, entry, metadata=labels)
    with pytest.warns(SapcWarning, match="damaged and are made again"):
        assert one.per_encoder(x, y) == first
    assert torch.equal(load_file(entry)["features"], found)


def test_without_a_cache_nothing_is_written(one, tmp_path, monkeypatch):
    monkeypatch.setenv("SAPC_CACHE", "off")
    monkeypatch.chdir(tmp_path)
    assert one.per_encoder(fields(3, 16, 16), fields(3, 16, 16, seed=1))[0] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_costs_a_warning(one, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SAPC_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.warns(SapcWarning, match="features are not cached"):
        assert one.per_encoder(fields(3, 16, 16), fields(3, 16, 16, seed=1))[0] > 0


# -- order --


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=12))
def test_agreement_is_kendalls_and_spearmans(pairs):
    a, b = ([float(pair[i]) for pair in pairs] for i in (0, 1))
    found = fpd.agreement(a, b)
    if len(set(a)) > 1 and len(set(b)) > 1:
        assert found["kendall"] == pytest.approx(kendalltau(a, b).statistic, abs=1e-12)
        assert found["spearman"] == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
    else:
        # There is no order to agree on.
        assert found == {"kendall": 0.0, "spearman": 0.0}


def test_the_same_order_agrees_and_the_reverse_does_not():
    assert fpd.agreement([1, 2, 3], [10.0, 20.0, 1e9]) == pytest.approx({"kendall": 1, "spearman": 1})
    assert fpd.agreement([1, 2, 3], [3, 2, 1]) == pytest.approx({"kendall": -1, "spearman": -1})
    with pytest.raises(SapcError, match="at least 2 ensembles"):
        fpd.agreement([1], [1])


# -- only Poseidon-B makes an FPD --


def test_weights_of_another_size_are_no_fpd(tmp_path):
    save_file(random_encoder(0).state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(SapcError, match=r"defined with Poseidon-B, and .* holds Poseidon-T"):
        fpd.poseidon_distance(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("size", ["T", "B"])
def test_random_weights_are_no_fpd(size):
    with pytest.raises(SapcError, match="only weights of Poseidon-B from a file make an FPD"):
        Distance("fpd", (random_encoder(0, size=size),))


@pytest.mark.slow
def test_what_is_asked_for_is_what_there_is(poseidon_b):
    assert fpd.distances() == ()
    assert [d.name for d in fpd.distances(frd=True)] == ["frd"]
    (real,) = fpd.distances(poseidon_b)
    assert (real.name, [e.size for e in real.encoders], real.encoders[0].dim) == ("fpd", ["B"], 768)
    assert len(real.describe()[0]["sha256"]) == 64


# -- in evaluations --


@pytest.mark.slow
def test_a_metric_of_an_evaluation(run, one):
    model = sapc.load(run, device="cpu")
    result = evaluate(model, ["test1"], distances=[one], **SMALL)
    truth = model.task.dataset("test1", size=5).fields
    generated = model.sample(4, truth[:1], steps=2)
    scores = result["sets"]["test1"]
    assert scores["metrics"]["frd"] == pytest.approx(one.per_encoder(generated, truth)[0], rel=1e-9)
    draws = [model.task.dataset("test1", size=size, seed=seed).fields for seed, size in ((1, 4), (2, 5))]
    assert scores["floor"]["frd"] == one.per_encoder(*draws)
    assert result["mean"]["metrics"]["frd"] == scores["metrics"]["frd"]
    assert result["settings"]["frd_weights"] == one.describe()
    assert not any("fpd" in name for name in keys(result))
    assert json.loads(json.dumps(result)) == result


def test_without_distances_there_is_neither(run):
    result = evaluate(run, ["test0"], device="cpu", **SMALL)
    assert not any("fpd" in name or "frd" in name for name in keys(result))


@pytest.mark.slow
def test_scores_with_more_metrics_are_not_replaced(run, one, tmp_path):
    own = Path(shutil.copytree(run, tmp_path / "run"))
    with_frd = evaluate(own, ["test0"], device="cpu", distances=[one], **SMALL)
    without = evaluate(own, ["test0"], device="cpu", **SMALL)
    other = {"distances": [Distance("other", (random_encoder(4),))], "device": "cpu"}
    with_other = evaluate(own, ["test0"], **other, **SMALL)
    more_sets = evaluate(own, ["test0", "test1"], device="cpu", **SMALL)
    kept = lambda name="scores.json": json.loads((own / name).read_text())
    assert write_scores(own, without).name == "scores.json"
    assert write_scores(own, with_frd).name == "scores.json"
    # Of the same samples: existing metrics are taken over.
    assert write_scores(own, without).name == "scores.json"
    for tree, original in (
        (kept()["mean"], with_frd["mean"]),
        (kept()["sets"]["test0"], with_frd["sets"]["test0"]),
    ):
        assert tree["metrics"] == original["metrics"]
        assert tree["floor"] == original["floor"]
    assert kept()["settings"] == with_frd["settings"]
    assert write_scores(own, with_other).name == "scores.json"
    assert {"frd", "other"} <= set(kept()["mean"]["metrics"])
    assert {"frd_weights", "other_weights"} <= set(kept()["settings"])
    # It has more sets, but lacks metrics.
    assert write_scores(own, more_sets).name == "scores-part.json"
    assert {"frd", "other"} <= set(kept()["mean"]["metrics"])
    again = {**SMALL, "samples": 3}
    assert write_scores(own, evaluate(own, ["test0"], **other, **again)).name == "scores-part.json"
    retrained = {**kept(), "weights": "of another training"}
    (own / "scores.json").write_text(json.dumps(retrained))
    assert write_scores(own, without).name == "scores.json"
    assert set(kept()["mean"]["metrics"]) == set(without["mean"]["metrics"])


# -- on the command line --


def lines(out: str, word: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines() if line.split()[:1] == [word]]


@pytest.fixture
def own(run, folder):
    shutil.copytree(run, folder / "run")
    return ("evaluate", "run", "--set", "test0", "--samples", "3", "--reference", "3", "--steps", "2",
            "--floor-repeats", "1", "--device", "cpu")  # fmt: skip


def test_without_weights_it_says_how_to_get_them(call, own):
    code, out, err = call(*own)
    assert (code, err) == (0, "")
    assert max(map(cell_len, out.splitlines()[:-1])) <= 100
    text = " ".join(out.split())
    assert "no FPD: " in text
    assert "hf download camlab-ethz/Poseidon-B" in text
    assert "non-commercial" in text
    assert "--poseidon" in text
    assert "SAPC_POSEIDON" in text
    assert lines(out, "fpd") == lines(out, "frd") == []


@pytest.mark.slow
def test_frd_has_a_row_and_a_floor_of_its_own_name(call, own):
    code, out, err = call(*own, "--frd")
    assert (code, err) == (0, "")
    row, told = lines(out, "frd")
    assert float(row[1]) > 0
    assert " ".join(told).endswith("it is not FPD")
    assert lines(out, "fpd") == []
    rows = [line.split()[0] for line in out.splitlines() if line.split()]
    assert rows[rows.index("frd") + 1] == "floor"
    kept = json.loads(Path("run/scores.json").read_text())["sets"]["test0"]
    assert len(kept["frd_each"]) == 3
    assert kept["metrics"]["frd"] == pytest.approx(sum(kept["frd_each"]) / 3)


@pytest.mark.slow
def test_fpd_with_weights_named_by_option_or_environment(call, own, poseidon_b, monkeypatch):
    code, out, err = call(*own, "--poseidon", str(poseidon_b), "--json")
    assert (code, err) == (0, "")
    first = json.loads(out)
    assert first["sets"]["test0"]["metrics"]["fpd"] > 0
    assert len(first["sets"]["test0"]["floor"]["fpd"]) == 1
    assert first["settings"]["fpd_weights"][0]["size"] == "B"
    assert not any("frd" in name for name in keys(first))
    monkeypatch.setenv("SAPC_POSEIDON", str(poseidon_b))
    code, out, err = call(*own)
    assert (code, err) == (0, "")
    assert lines(out, "fpd")[0][1] == f"{first['mean']['metrics']['fpd']:.2e}"
    assert "no FPD" not in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--calibrate",), "benchmarks/calibrate_frd.py run --poseidon"),
        (("--poseidon", "~nobody-of-this-name/x"), "no weights at ~nobody"),
        (("--poseidon", "nowhere"), "no weights at nowhere"),
        (("--poseidon", "run/weights.safetensors"), "not weights of Poseidon"),
        (("--poseidon", "run/config.json"), "damaged or not a file of weights|holds more than tensors"),
    ],
)
def test_bad_weights_are_one_sentence_before_the_work(call, own, options, message):
    before = sorted(Path("run").iterdir())
    code, out, err = call(*own, *options)
    assert (code, out) == (2, "")
    assert is_one_sentence(err)
    assert re.search(message, err)
    assert sorted(Path("run").iterdir()) == before


@pytest.mark.slow
def test_calibration(run, poseidon_b, folder):
    script = Path(__file__).parents[2] / "benchmarks" / "calibrate_frd.py"
    options = [
        "--poseidon",
        poseidon_b,
        "--set",
        "test0",
        "--samples",
        "4",
        "--reference",
        "5",
        "--steps",
        "2",
    ]
    done = subprocess.run(
        [sys.executable, script, run, *options, "--device", "cpu", "--json", "calibration.json"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "agreement of FRD with FPD in the order" in done.stdout
    found = json.loads(Path("calibration.json").read_text())
    rows = found["sets"]["test0"]["ensembles"]
    ensembles = ["solutions", "noise 0.1", "noise 0.3", "noise 1", "spread 0.5", "spread 0.8", "spread 1.25"]
    assert list(rows) == [*ensembles, "shift 0.1", "shift 0.3", "shift 1", "1 steps", "2 steps"]
    order = fpd.agreement(*([row[name] for row in rows.values()] for name in ("fpd", "frd")))
    assert found["sets"]["test0"]["agreement"] == found["mean"] == order
    distances = fpd.distances(poseidon_b, True, torch.device("cpu"))
    settings = {
        "splits": ["test0"],
        "samples": 4,
        "reference": 5,
        "steps": 2,
        "sampler": "euler",
        "floor_repeats": 0,
    }
    scores = evaluate(sapc.load(run, device="cpu"), **settings, distances=distances)
    assert found["settings"]["fpd_weights"] == scores["settings"]["fpd_weights"]
    for name in ("fpd", "frd"):
        assert scores["mean"]["metrics"][name] == pytest.approx(rows["2 steps"][name], rel=1e-6)


# -- in comparisons --


@pytest.mark.slow
def test_a_column_of_a_comparison(folder):
    settings = {
        "preset": "tiny",
        "samples": 3,
        "steps": 2,
        "reference": 3,
        "floor_repeats": 1,
        "device": "cpu",
    }
    plain = Comparison("heat", ["ffm", "sapc_s1"], out="c", **settings)
    without = plain.compare()
    assert "frd" not in markdown(without)
    plan = Comparison("heat", ["ffm", "sapc_s1"], out="c", frd=True, **settings)
    state = lambda plan: statuses(plan.study, plan.cells, further_metrics(None))[0].state
    # The scores lack it.
    assert state(plan) == "waiting"
    result = plan.compare()
    assert result["metrics"][-1] == "frd"
    assert "it is not FPD" in markdown(result)
    assert [table.columns[1:] for table in tables(result)][1] == ("frd",)
    assert tables(result)[0].columns == tables(without)[0].columns
    assert len(tables(without)) == 2
    assert result["floors"][0]["metrics"]["frd"] > 0
    assert state(plan) == "done"
    # What is not asked for is left out, since nothing says by which weights it is.
    again = plain.compare()
    assert not any("frd" in name for name in keys(again))
    # Scores with more serve those who want less.
    assert state(plain) == "done"
    assert result["methods"]["ffm"]["metrics"]["w2"] == without["methods"]["ffm"]["metrics"]["w2"]


def test_old_names_of_a_distance_still_work():
    one = Distance("frd", (random_encoder(0),))
    x, y = fields(3, 16, 16), fields(3, 16, 16, seed=1)
    with pytest.warns(DeprecationWarning, match=r"Distance\.per_encoder"):
        values = one.each(x, y)
    assert values == one.per_encoder(x, y)
    with pytest.warns(DeprecationWarning, match="use_cache="):
        assert one.per_encoder(x, y, keep=(False, False)) == values
    with pytest.warns(DeprecationWarning, match=r"Distance\.describe"):
        described = one.about()
    assert described == one.describe()
    with pytest.warns(DeprecationWarning, match=r"Distance\.matches"):
        assert one.made({"frd_weights": described})
    with pytest.warns(DeprecationWarning, match=r"Encoder\.provenance"):
        assert one.encoders[0].about == described[0]
    with pytest.warns(DeprecationWarning, match="DOWNLOAD_HINT"):
        assert "hf download" in sapc.poseidon.GET
