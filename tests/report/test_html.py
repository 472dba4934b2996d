"""The page is one file that fetches nothing, and text from data stays text."""

import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser

import pytest
from synthetic_runs import write_run

from farout.report.chart import Axis, Chart, Figure, Line, Table, missing
from farout.report.gather import find_runs, group_runs, read_run
from farout.report.glance import metric_tables, verdict
from farout.report.html import Report, page
from farout.report.mistakes import Gallery, Mistake
from farout.report.separation import dots, histograms, roc

NASTY = "<script>alert(1)</script>\"'&</style><img src=x onerror=alert(2)>"


class Tags(HTMLParser):
    """Every tag with its attributes, and the text between."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


def report(path, **changes):
    groups = group_runs([read_run(folder) for folder in find_runs([path])])
    parts = {
        "scores": [dots(groups), histograms(groups), roc(groups)],
        "embedding": [missing("embedding", "Map", f"no data: {NASTY}")],
        "training": [],
        "radius": [],
        "worst_case": [],
        "galleries": [],
    }
    return Report(groups, verdict(groups), metric_tables(groups), **{**parts, **changes})


@pytest.fixture
def nasty(tmp_path):
    """A run that calls everything by the nasty name: sets, scores, method, and what its log measures."""
    write_run(tmp_path / "run", NASTY, inlier=NASTY, sets=[NASTY, f"far/{NASTY}"], scores=[NASTY], settings={NASTY: 1})
    figure = Figure(
        "extra", NASTY, NASTY, [Chart(NASTY, Axis(NASTY), Axis(NASTY), [Line([0, 1], [0, 1], NASTY, 0, [NASTY] * 2)])],
        Table([NASTY], [[NASTY]]), [NASTY],
    )  # fmt: skip
    mistake = Mistake(NASTY, 3, 0.5, True, NASTY, NASTY, NASTY, b"\x89PNG\r\n\x1a\n" + bytes(20))
    return report(tmp_path, training=[figure], galleries=[Gallery(NASTY, [mistake]), Gallery(NASTY, (), NASTY)])


def test_names_from_data_never_become_tags(nasty):
    found = Tags(page(nasty))
    assert [attributes for tag, attributes in found.tags if tag == "script"] == [{}]  # the page's own
    assert len([tag for tag, _ in found.tags if tag == "style"]) == 1
    assert [attributes["src"][:15] for tag, attributes in found.tags if tag == "img"] == ["data:image/png;"]
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    assert sum(NASTY in words for words in found.words) > 10  # it is shown, as text
    tips = [attributes["data-tip"] for _, attributes in found.tags if "data-tip" in attributes]
    assert sum(NASTY in tip for tip in tips) >= 5


def test_nothing_is_fetched(nasty):
    text = page(nasty)
    addresses = [
        value
        for _, attributes in Tags(text).tags
        for name, value in attributes.items()
        if name in ("src", "href", "action", "srcset")
    ]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert "url(" not in text
    assert "@import" not in text


def test_only_the_pages_own_script_may_run(nasty):
    text = page(nasty)
    policy = next(a["content"] for t, a in Tags(text).tags if a.get("http-equiv") == "Content-Security-Policy")
    script = re.search(r"<script>(.*?)</script></body>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_every_figure_has_a_table_behind_it_and_a_missing_one_its_reason(three):
    text = page(report(three))
    assert text.count("<summary>The numbers behind") == 3
    assert text.count('class="chart"') == 1 + 4 + 2
    assert "Not shown:" in text
    assert "no data: &lt;script&gt;" in text


def test_the_table_shows_the_best_with_interval_and_seeds(three):
    text = page(report(three))
    assert text.count('class="best"') >= 3 * 3
    assert re.search(r'data-tip="noise: FPR95 [\d.]+ % \[[\d.]+ to [\d.]+\], 95 % t-interval over 2 seeds; lower', text)
    assert "Settings that differ" in text
    assert "method.name" in text


def test_headings_are_in_order_and_ids_are_unique(three):
    found = Tags(page(report(three)))
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    links = {attributes["href"][1:] for tag, attributes in found.tags if tag == "a"}
    assert links <= set(ids)
