"""The report in a browser: drawn without an error, sorted, pointed at and walked through, wide and narrow.

Needs Playwright and Chromium (`make browser` installs both); without them these tests are skipped.
"""

import os
import shutil

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="pip install playwright, or `make browser`")
CHROMIUM = os.environ.get("FAROUT_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; `make browser` installs it, or set FAROUT_CHROMIUM"),
    pytest.mark.xdist_group("browser"),
]
SIZES = {"wide": 1280, "narrow": 400}
ON_TOP = """element => {
    const box = element.getBoundingClientRect();  // curves cross: what lies on top of its middle speaks
    return document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2).closest("[data-tip]").dataset.tip;
}"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(params=SIZES)
def page(browser, report_file, request):
    """The open report; whatever the browser complains about, and whatever is asked of the network, fails the test."""
    opened = browser.new_page(viewport={"width": SIZES[request.param], "height": 900})
    complaints, asked = [], []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(report_file.as_uri())
    yield opened
    opened.close()
    assert complaints == []
    assert [address for address in asked if not address.startswith(("file:", "data:"))] == []


def test_every_figure_has_ink_and_stays_inside_the_page(page):
    boxes = page.eval_on_selector_all(
        "svg.chart",
        """charts => charts.map(chart => {
            const marks = chart.querySelectorAll(".line, .mark, .fill, .whisker, .band, rect[fill]");
            const box = chart.getBoundingClientRect();
            const seen = [...marks].filter(mark => { const b = mark.getBBox(); return b.width + b.height > 0; });
            return [chart.getAttribute("aria-label"), seen.length, box.width, box.height];
        })""",
    )
    assert len(boxes) > 15
    for label, marks, width, height in boxes:
        assert marks > 0, label
        assert width > 200, label
        assert height > 100, label
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]


def test_pictures_are_shown(page):
    sizes = page.eval_on_selector_all(".gallery img", "all => all.map(i => [i.complete, i.naturalWidth, i.width])")
    assert len(sizes) == 32
    assert all(complete and natural == 8 and shown > 50 for complete, natural, shown in sizes)


def test_a_heading_sorts_its_table_both_ways(page):
    table = page.locator("table.sortable").first
    button = table.locator("thead th button").nth(4)
    read = "rows => rows.map(row => Number(row.cells[4].dataset.value))"
    button.click()
    up = table.locator("tbody tr").evaluate_all(read)
    assert up == sorted(up)
    assert len(set(up)) > 1
    assert table.locator("th[aria-sort=ascending]").count() == 1
    button.click()
    assert table.locator("tbody tr").evaluate_all(read) == sorted(up, reverse=True)
    table.locator("thead th button").first.click()
    words = table.locator("tbody tr").evaluate_all("rows => rows.map(row => row.cells[0].textContent)")
    assert words == sorted(words)


def test_tabs_show_one_metric_at_a_time(page):
    tabs = page.get_by_role("tab")
    assert tabs.count() == 3
    assert page.locator(".tab:visible").count() == 1
    tabs.nth(1).click()
    assert page.locator(".tab:visible").get_attribute("data-title") == "AUROC"
    page.keyboard.press("ArrowRight")
    assert page.locator(".tab:visible").get_attribute("data-title") == "FPR95 (OOD+)"


def test_pointing_shows_the_text_whole_and_inside_the_window(page):
    tip = page.locator("#tip")
    targets = ["td[data-tip]", "svg.chart g[data-tip]", "svg.chart .hit[data-tip]", "svg.chart .mark[data-tip]"]
    for target in targets:
        element = page.locator(target).first
        element.scroll_into_view_if_needed()
        element.hover(force=True)
        assert tip.text_content() == element.evaluate(ON_TOP)
        box = tip.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= page.viewport_size["width"]
    page.keyboard.press("Escape")
    assert tip.text_content() == ""


def test_intervals_can_be_shown(page):
    shown = page.locator("td .range").first
    assert shown.bounding_box()["width"] <= 1
    page.get_by_label("show intervals").check()
    assert shown.bounding_box()["width"] > 20


def test_by_keyboard_alone(page):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"
    chart = page.locator("svg.chart").first
    chart.focus()
    values = chart.locator("[data-tip]")
    for wanted in (0, 1):
        page.keyboard.press("ArrowRight")
        assert page.locator("#tip").text_content() == values.nth(wanted).get_attribute("data-tip")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#tip").text_content() == values.first.get_attribute("data-tip")
    page.keyboard.press("Tab")
    assert page.locator("#tip").text_content() == ""


def test_the_nasty_class_name_is_text(page):
    nasty = "</script><script>alert('x')</script>"
    assert page.locator("figcaption", has_text=nasty).count() > 0
    assert page.locator("script").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_light_and_dark(browser, report_file, scheme):
    opened = browser.new_page(color_scheme=scheme)
    opened.goto(report_file.as_uri())
    brightness = """name => {
        const style = getComputedStyle(document.body)[name].match(/\\d+/g).slice(0, 3).map(Number);
        return style.reduce((a, b) => a + b) / 765;
    }"""
    ink, paper = opened.evaluate(brightness, "color"), opened.evaluate(brightness, "backgroundColor")
    opened.close()
    assert abs(ink - paper) > 0.7
    assert (ink > paper) == (scheme == "dark")


def test_it_prints(browser, report_file):
    opened = browser.new_page(color_scheme="dark")
    opened.goto(report_file.as_uri())
    opened.emulate_media(media="print")
    paper = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    hidden = opened.locator(".tab[hidden]").first.is_visible()
    printed = opened.pdf()
    opened.close()
    assert paper == "rgb(255, 255, 255)"
    assert hidden  # paper has no tabs: every table is printed
    assert printed.startswith(b"%PDF")
