"""The page of a report: one file that loads nothing and fits a phone; in a real browser if there is one."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_figures import trajectory, write_fields

from commands import is_one_sentence, list_files
from hand_made import collect_by_hand, scores, write
from sapc.experiments.report import make_report
from sapc.experiments.report.data import ReportData
from sapc.experiments.report.make import MARK, OPEN_PROBLEMS, check_out, is_page, render_page, write_page
from sapc.experiments.report.tables import report_tables
from sapc.experiments.results import Collection, Problem, ScoresFile
from sapc.models.scores import Scores

METHODS = ("sapc", "ffm", "eci")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Scores of two tasks, with all that figures need; of Burgers one method has no fields."""
    folder = tmp_path_factory.mktemp("runs")
    for task, (k, method) in itertools.product(("heat", "burgers"), enumerate(METHODS)):
        content = scores(
            task,
            method,
            grid=[8, 6],
            preset="tiny",
            steps=20,
            sets={n: {"w2": 0.1 + k} for n in ("test0", "test1")},
        )
        for about in content["sets"].values():
            about["floor"] = {"w2": [0.05]}
            about["trajectory"] = trajectory(k + 1.0)
        path = folder / f"scores-{task}-{method}.json"
        path.write_text(json.dumps(content))
        if (task, method) != ("burgers", "eci"):
            write_fields(ScoresFile(path, Scores.from_dict(content)), (8, 6))
    return folder


@pytest.fixture(scope="module")
def report(runs, tmp_path_factory):
    """A report about them."""
    return make_report([runs], tmp_path_factory.mktemp("made") / "report")


# -- what is in it --


class Reader(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def of(self, *names):
        return [attributes for tag, attributes in self.tags if tag in names]


def test_page_is_whole_and_asks_nobody(report):
    text = report.page.read_text()
    read = Reader(text)
    assert not read.of("script", "iframe", "object", "embed", "video", "audio")
    assert not any(name.startswith("on") for _, attributes in read.tags for name in attributes)
    addresses = [
        a[name] for _, a in read.tags for name in ("href", "src", "srcset", "data", "action") if name in a
    ]
    assert addresses
    assert all(address.startswith(("#", "data:")) for address in addresses)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert read.of("html")[0]["lang"] == "en"
    metas = {a.get("name") or a.get("http-equiv"): a.get("content") for a in read.of("meta")}
    assert metas["viewport"] == "width=device-width, initial-scale=1"
    assert metas["Content-Security-Policy"].startswith("default-src 'none'")


def test_links_lead_somewhere_and_headings_are_in_order(report):
    read = Reader(report.page.read_text())
    ids = [a["id"] for _, a in read.tags if "id" in a]
    assert Counter(ids).most_common(1)[0][1] == 1
    inside = {a["href"][1:] for a in read.of("a") if a["href"].startswith("#")}
    assert inside <= set(ids)
    assert {"about", "overview", "tables", "task-heat", "task-burgers", "cost", "reading", "citing"} <= inside
    levels = [int(tag[1]) for tag, _ in read.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_images_are_the_files_to_the_byte_and_have_words(report):
    read = Reader(report.page.read_text())
    images = read.of("img")
    files = [path for path in report.files if path.parent.name == "figures"]
    assert len(images) == len(files) == 8
    contents = sorted(base64.b64decode(image["src"].partition("base64,")[2]) for image in images)
    assert contents == sorted(path.read_bytes() for path in files)
    assert all(len(image["alt"]) > 30 and int(image["width"]) and int(image["height"]) for image in images)
    assert len(read.of("figcaption")) == len(images)


def test_page_tells_how_it_was_made_and_what_is_missing(report):
    text = Reader(report.page.read_text()).text
    assert "Not the protocol of the paper" in text
    assert "preset tiny" in text
    assert "the numbers mean nothing beside the paper's" in text
    assert "NVIDIA H200" in text
    assert "2026-01-01" in text
    assert "ECI is not among the pictures of fields" in text
    assert "Sampling floor" in text
    assert "sapc cite" in text
    assert "Romoli" in text
    assert not report.problems
    assert "Not all is there" not in text


def test_problems_come_first(tmp_path):
    kinds = ["missing", "failed", "unfinished", "corrupt", "left_out", "missing", "missing", "missing"]
    problems = [
        Problem(kind, tmp_path / f"run{i}", f"why {i}", "heat", "eci", i) for i, kind in enumerate(kinds)
    ]
    collection = Collection([*collect_by_hand(scores()).files], problems)
    text = render_page(collection, report_tables(ReportData(collection)), [])
    assert text.index("Not all is there") < text.index("<nav")
    assert "1 failed, 4 missing, 1 unfinished, 1 damaged, 1 left out" in text
    assert all(f"why {i}" in text for i in range(8))
    assert "<details>\n<summary>8 things do not count" in text
    small_collection = Collection(collection.files, problems[:OPEN_PROBLEMS])
    assert "<details open>\n<summary>6 things" in render_page(
        small_collection, report_tables(ReportData(small_collection)), []
    )


def test_text_stays_text():
    nasty = "<script>alert(1)</script>&\"'"
    problems = [Problem("corrupt", Path(nasty), nasty, nasty, nasty)]
    collection = Collection(collect_by_hand(scores()).files, problems, [nasty])
    read = Reader(render_page(collection, report_tables(ReportData(collection)), [], notes={nasty: [nasty]}))
    assert not read.of("script")
    assert nasty in read.text


def test_names_of_tasks_lead_nowhere_else(tmp_path):
    """Scores may come from anybody."""
    for task in ("../../gone", "A/b", "heat "):
        write(tmp_path / "scores", *(scores(task=task, method=m) for m in ("ffm", "sapc")))
    (tmp_path / "a" / "b").mkdir(parents=True)
    report = make_report([tmp_path / "scores"], tmp_path / "a" / "b" / "out")
    assert sorted(p.name[:-22] for p in report.files if p.suffix == ".svg") == ["_gone", "a_b", "heat_"]
    assert {p.parent for p in report.files} == {report.folder, report.folder / "figures"}
    assert {p.name for p in tmp_path.iterdir()} == {"scores", "a"}
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b"]


def test_a_page_of_the_papers_protocol_has_no_warning():
    sets = {f"test{i}": {} for i in range(4)}
    collection = collect_by_hand(
        *(scores(method=m, seed=s, sets=sets) for m in ("sapc", "ffm") for s in (0, 42, 205))
    )
    text = render_page(collection, report_tables(ReportData(collection)), [])
    assert 'class="notice' not in text


def test_tables_stand_task_by_task_with_their_marks(runs, report):
    text = report.page.read_text()
    for name in ("generation", "supplement", "ablation", "cost"):
        assert f'id="table-{name}"' in text
    assert text.count('class="scroll"') == 8
    part = text[text.index('aria-label="Generation, Heat"') :]
    part = part[: part.index("</table>")]
    assert '<th scope="row">MMSE</th>' in part
    assert '<th scope="row">MMSE (paper)</th>' in part
    row = part[part.index('<th scope="row">MMSE (paper)</th>') :]
    row = row[: row.index("</tr>")]
    assert "<td><strong>2.2(0.8)e-5</strong></td>" in row
    assert "<td><u>1.2(0.2)e-2</u></td>" in row


# -- files --


def test_report_is_all_files_and_the_same_again(runs, report, tmp_path):
    names = list_files(report.folder)
    assert {"index.html", "tables.md", "results.csv", "generation.csv", "generation.tex"} <= set(names)
    assert sorted(str(path.relative_to(report.folder)) for path in report.files) == [
        n for n in names if n != "figures"
    ]
    repetition = make_report([runs], tmp_path / "report")
    assert list_files(repetition.folder) == names
    for name in names:
        if (repetition.folder / name).is_file():
            assert (repetition.folder / name).read_bytes() == (report.folder / name).read_bytes(), name


def test_a_report_is_replaced_and_other_files_are_left(tmp_path):
    folder, out = tmp_path / "runs", tmp_path / "report"
    folder.mkdir()
    (folder / "scores.json").write_text(json.dumps(scores()))
    (out / "figures").mkdir(parents=True)
    for name in ("notes.txt", "figures/heat-ensembles.png", "figures/mine.png"):
        (out / name).write_text("old")
    stages = []
    report = make_report([folder], out, "A <title>", lambda *stage: stages.append(stage[0]))
    assert (out / "notes.txt").read_text() == "old"
    assert (out / "figures/mine.png").read_text() == "old"
    assert not (out / "figures/heat-ensembles.png").exists()
    assert "A &lt;title&gt;" in report.page.read_text()
    assert stages == ["collecting", "drawing heat", "writing"]
    assert len(report.notes["heat"]) == 5
    first = report.page.read_bytes()
    assert make_report([folder], out, "A <title>").page.read_bytes() == first


def test_a_place_where_a_report_does_not_belong_is_refused(tmp_path):
    (tmp_path / "file").touch()
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text('{"format": "sapc-run-1"}')
    site = tmp_path / "site"
    site.mkdir()
    (site / "index.html").write_text("<p>mine</p>")
    for place, words in (
        ("file", "is not a folder"), ("file/below", "is not a folder"), ("run", "folder of a run"),
        ("run/report", "folder of a run"), ("site", "is not the page of a report"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            check_out(tmp_path / place)
    check_out(tmp_path / "new" / "report")
    assert not (tmp_path / "new").exists()
    assert not is_page(tmp_path / "nowhere")
    (site / "index.html").write_text(f"<!DOCTYPE html>{MARK}")
    check_out(site)


def test_page_alone_can_be_written(tmp_path):
    collection = collect_by_hand(scores())
    path = write_page(collection, report_tables(ReportData(collection)), [], tmp_path / "a" / "b")
    assert path == tmp_path / "a" / "b" / "index.html"
    assert is_page(path)


# -- the command --


def test_command_writes_a_report(call):
    Path("runs").mkdir()
    for method in ("sapc", "ffm"):
        Path(f"runs/scores-{method}.json").write_text(json.dumps(scores(method=method)))
    Path("runs/broken.json").write_text("{")
    code, out, err = call("report", "runs", "--out", "out", "--title", "Bare runs")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[-2:] == ["does not count: 1 corrupt; the page says what and why", "page: out/index.html"]
    assert "out/figures/heat-tradeoff.svg" in lines
    assert "Bare runs" in Path("out/index.html").read_text()
    code, out, _ = call("report", "runs", "--out", "out", "--json")
    content = json.loads(out)
    assert code == 0
    assert content["page"] == "out/index.html"
    assert [(p["kind"], p["path"]) for p in content["problems"]] == [("corrupt", "runs/broken.json")]
    assert len(content["notes"]["heat"]) == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing argument"),
        (["nowhere"], "there is no nowhere"),
        (["."], "there are no scores in ."),
        (["."], "sapc evaluate"),
        ([".", "--out", "file"], "is not a folder"),
    ],
)
def test_bad_calls_end_in_one_sentence(call, arguments, words):
    Path("file").touch()
    code, out, err = call("report", *arguments)
    assert (code, out) == (2, "")
    assert is_one_sentence(err)
    assert words in err
    assert list_files(Path()) == ["file"]


def test_help_has_an_example(call):
    code, out, _ = call("report", "--help")
    assert code == 0
    assert "Example" in out
    assert "--out" in out


# -- in a browser --


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
MEASURE = """(() => {
  const wide = document.documentElement, images = [...document.images];
  const colour = getComputedStyle(document.body);
  return {
    wide: wide.scrollWidth, seen: wide.clientWidth, title: document.title,
    images: images.length, decoded: images.filter(i => i.complete && i.naturalWidth > 0).length,
    beyond: images.filter(i => i.getBoundingClientRect().right > wide.clientWidth + 0.5).length,
    scrolls: [...document.querySelectorAll('.scroll')].filter(d => d.scrollWidth > d.clientWidth).length,
    small: [...document.querySelectorAll('p, li, dd, figcaption, td')].filter(e =>
      parseFloat(getComputedStyle(e).fontSize) < 12).length,
    paper: colour.backgroundColor, ink: colour.color,
  };
})()"""


LAUNCH = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for end, place in zip(ends, (3, 4)):  # where Chromium looks for its pipes
    os.dup2(end, place)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """Chromium without a window, spoken to over a pair of pipes by its DevTools protocol."""

    FLAGS = (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-dev-shm-usage",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--remote-debugging-pipe",
    )  # fmt: skip

    def __init__(self, home: Path) -> None:
        (theirs_in, self._to), (self._from, theirs_out) = os.pipe(), os.pipe()
        line = [CHROMIUM, *self.FLAGS, f"--user-data-dir={home}", "about:blank"]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(theirs_in), str(theirs_out), *line],
            pass_fds=(theirs_in, theirs_out), stdout=quiet, stderr=quiet,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._numbers, self._rest, self.session = itertools.count(1), b"", {}
        self.events: list[dict] = []
        target = self("Target.createTarget", url="about:blank")["targetId"]
        self.session = {
            "sessionId": self("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        }
        for domain in ("Page", "Network", "Log", "Runtime"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, **self.session}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def _read(self) -> dict:
        while b"\0" not in self._rest:
            part = os.read(self._from, 2**20)
            assert part, "the browser is gone"
            self._rest += part
        first, _, self._rest = self._rest.partition(b"\0")
        return json.loads(first)

    def open(self, path: Path, width: int, dark: bool = False, place: str = "") -> dict:
        """What is measured of a page at a width."""
        self.events.clear()
        self(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])
        self("Page.navigate", url="about:blank")
        self("Page.navigate", url=path.as_uri() + place)
        while self.js("location.protocol + document.readyState") != "file:complete":
            time.sleep(0.02)
        return self.js(MEASURE)

    def js(self, expression: str):
        return self("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def happened(self, method: str) -> list[dict]:
        return [event["params"] for event in self.events if event.get("method") == method]

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)
        os.close(self._to)
        os.close(self._from)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here")
    entry = Browser(tmp_path_factory.mktemp("browser"))
    yield entry
    entry.close()


@pytest.mark.parametrize(
    ("width", "dark"), [(360, False), (360, True), (800, False), (1280, False), (1280, True)]
)
def test_page_fits_every_screen(browser, report, width, dark):
    responses = browser.open(report.page, width, dark)
    assert responses["wide"] <= responses["seen"] <= width
    assert responses["images"] == responses["decoded"] == 8
    assert responses["beyond"] == 0
    assert responses["small"] == 0
    assert responses["scrolls"] == (
        8 if width == 360 else responses["scrolls"]
    )  # tables scroll by themselves
    assert _bright(responses["paper"]) < 60 if dark else _bright(responses["paper"]) > 240
    assert abs(_bright(responses["paper"]) - _bright(responses["ink"])) > 150
    requests = [event["request"]["url"] for event in browser.happened("Network.requestWillBeSent")]
    assert [url for url in requests if not url.startswith(("data:", "about:"))] == [report.page.as_uri()]
    assert not browser.happened("Runtime.exceptionThrown")
    assert not browser.happened("Log.entryAdded")
    assert not browser.happened("Runtime.consoleAPICalled")


def _bright(colour: str) -> float:
    return sum(map(float, re.findall(r"\d+", colour)[:3])) / 3


def test_first_column_stays_while_a_table_scrolls(browser, report):
    browser.open(report.page, 360)
    position = "document.querySelector('.scroll th[scope=row]').getBoundingClientRect().left"
    before = browser.js(position)
    browser.js("document.querySelector('.scroll').scrollLeft = 200")
    assert browser.js("document.querySelector('.scroll').scrollLeft") == 200
    assert browser.js(position) == pytest.approx(before, abs=1)


def test_a_figure_opens_large_and_closes(browser, report):
    size = "document.querySelector('#heat-ensembles img').getBoundingClientRect().width"
    browser.open(report.page, 360)
    small, natural = (
        browser.js(size),
        browser.js("document.querySelector('#heat-ensembles img').naturalWidth"),
    )
    browser.js("location.hash = '#heat-ensembles'")
    assert small < 360 < browser.js(size) == natural
    assert browser.js("document.documentElement.scrollWidth") <= 360
    visible = "getComputedStyle(document.querySelector('#heat-ensembles .close')).display"
    assert browser.js(visible) != "none"
    browser.js("document.querySelector('#heat-ensembles .close').click()")
    assert browser.js("location.hash") == "#at-heat-ensembles"
    assert browser.js(size) == small
    assert browser.js(visible) == "none"
