"""The page in a real browser: a verdict for a dropped or chosen image, nothing from elsewhere, names stay text."""

import copy
import shutil

import pytest

HOSTILE = '<img src=x onerror="document.title=1">'
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")


@pytest.fixture(scope="module")
def address(listening, detector):
    from farout.serve import create_app

    hostile = copy.deepcopy(detector)
    hostile.classes = tuple(HOSTILE + name for name in detector.classes)
    return listening(create_app(hostile))[0]


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, address):
    """The page, opened; at the end no script complained and nobody else was asked."""
    page, complaints, asked = browser.new_page(viewport={"width": 900, "height": 1000}), [], []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.on("filechooser", lambda _: None)  # from the start: the browser learns of a first listener only later
    page.goto(address)
    page.wait_for_selector("#chart svg")
    yield page
    assert [text for text in complaints if "422" not in text] == []  # the browser reports refusals as errors
    assert all(url.startswith((address, "blob:", "data:")) for url in asked), asked
    page.close()


def upload(name, content):
    return {"name": name, "mimeType": "image/png", "buffer": content}


def test_a_chosen_image_gets_its_verdict(page, detector, samples, pictures):
    for number in (0, 11):
        page.set_input_files("#file", upload(f"{number}.png", pictures[number]))
        page.wait_for_selector(f"#result:not([hidden]) img[alt='The image {number}.png']")
        judged = detector.judge(samples[number][None])
        verdict = "OOD" if judged.is_ood.item() else "ID"
        assert page.get_attribute("#verdict", "class") == verdict
        shown = float(page.inner_text("#score").split()[0])
        assert shown == pytest.approx(judged.score.item(), rel=1e-3)
        assert HOSTILE + detector.classes[judged.label.item()] in page.inner_text("#label")
        assert page.locator("#bars tr").count() == 5
        assert page.locator("svg .mark").count() == 1
        assert float(page.inner_text("#p").split(":")[0]) == pytest.approx(judged.p_value.item(), rel=1e-2)
    assert page.title() == "farout"  # the hostile name did not run
    assert page.locator("img").count() == 1
    assert "of the last" in page.inner_text("#drift").lower()


def test_nearest_examples_are_shown_where_the_detector_carries_them(browser, listening, detector, pictures, tmp_path):
    from farout import examples
    from farout.data.named import open_named
    from farout.serve import create_app

    hostile = copy.deepcopy(detector)
    hostile.classes = tuple(HOSTILE + name for name in detector.classes)
    folder = hostile.save(tmp_path / "d")
    kept = examples.gather(hostile, open_named("demo/digits", split="test"), 60)
    examples.save(kept._replace(labels=kept.labels.where(kept.labels != 3, -1)), hostile, folder)
    page = browser.new_page(viewport={"width": 900, "height": 1000})
    page.goto(listening(create_app(folder))[0])
    page.wait_for_selector("#chart svg")
    assert not page.is_visible("#nearest")
    page.set_input_files("#file", upload("0.png", pictures[0]))
    page.wait_for_selector("#nearest:not([hidden]) li")
    assert page.locator("#gallery li").count() == 6
    loaded = page.evaluate("[...document.querySelectorAll('#gallery img')].map(image => image.naturalWidth)")
    assert loaded == [8] * 6
    assert float(page.inner_text("#gallery li:first-child span")) < 0.01  # it is among them
    assert page.title() == "farout"
    page.set_input_files("#file", upload("bad.png", b"no image"))
    page.wait_for_selector("#error:not([hidden])")
    assert not page.is_visible("#nearest")
    page.close()


def test_a_dropped_image_gets_its_verdict(page, pictures):
    page.evaluate(
        """(bytes) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([new Uint8Array(bytes)], "dropped.png", { type: "image/png" }));
            document.getElementById("drop").dispatchEvent(
                new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
        }""",
        list(pictures[0]),
    )
    page.wait_for_selector("#result:not([hidden])")
    assert page.get_attribute("#preview", "alt") == "The image dropped.png"


def test_a_refusal_is_shown_and_the_next_image_works(page, pictures):
    page.set_input_files("#file", upload("bad.png", b"no image"))
    page.wait_for_selector("#error:not([hidden])")
    assert "bad.png is not an image" in page.inner_text("#error")
    assert not page.is_visible("#result")
    page.set_input_files("#file", upload("good.png", pictures[0]))
    page.wait_for_selector("#result:not([hidden])")
    assert not page.is_visible("#error")


def test_the_keyboard_reaches_the_chooser(page, pictures):
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "file"
    assert page.evaluate("getComputedStyle(document.getElementById('drop')).outlineStyle") == "solid"
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(upload("typed.png", pictures[0]))
    page.wait_for_selector("#result:not([hidden])")
    assert page.get_attribute("#preview", "alt") == "The image typed.png"


def test_foreign_scripts_are_blocked(browser, address):
    page = browser.new_page()
    policy = page.goto(address).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    ran = page.evaluate(
        """() => { const script = document.createElement("script"); script.textContent = "window.ran = 1";
                   let blocked = ""; document.addEventListener("securitypolicyviolation",
                       (event) => { blocked = event.violatedDirective; });
                   document.body.append(script);
                   return new Promise((done) => setTimeout(() => done([window.ran, blocked]))); }"""
    )
    assert ran[0] is None
    assert ran[1].startswith("script-src")
    page.close()
