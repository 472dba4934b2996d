"""Take the pictures of docs/report.md again: the demo's report in headless Chromium.

python docs/images/screenshot.py runs/demo
"""

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from farout.see import write_report

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SHOTS = {"report.png": ("light", "#glance", 1280, 1000), "report-dark.png": ("dark", "#fig-embedding", 1280, 1000)}


def main() -> None:
    home, demo = Path(__file__).parent, Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as play:
        path = write_report([demo / method for method in ("ce", "oe", "dal")], Path(folder) / "report.html")
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for name, (scheme, place, width, height) in SHOTS.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.emulate_media(reduced_motion="reduce", color_scheme=scheme)
            page.goto(path.as_uri() + ("" if name == "report.png" else place))
            page.screenshot(path=home / name)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
