"""The HTML report in a browser: phone and desk, light and dark, keyboard, no JavaScript."""

from __future__ import annotations

import base64
import io
import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

import constructed
from constructed import A100X2, Group
from require import require
from shown import collect, render

TEST = {"metric": "train_seconds", "op": ">", "size": 1.5}
TEST |= {"numerator": {"strategy": "eager"}, "denominator": {"strategy": "ddp"}}
CLAIM = {"study": "constructed", "claim": "Two are faster.", "test": TEST}
SIZES = {"phone": 375, "desk": 1280}


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("a report")
    paths = constructed.write_study(folder)
    none = [Group("vit", "gpipe-2", A100X2, not_run="needs 2x A100")]
    other = constructed.write_study(folder, constructed.usual_study("nothing-ran"), none)
    (folder / "claims.yaml").write_text(json.dumps({"faster": CLAIM}))
    (folder / "published.csv").write_text(constructed.published_csv({"published": None}, []))
    published = [folder / "published.csv"]
    data = collect(paths, other, claimed=[folder / "claims.yaml"], published=published)
    html = folder / "final.html"
    html.write_text(render(data)[0], encoding="utf-8")
    return html


@pytest.fixture(scope="module")
def chromium():
    """Yield headless Chromium, run by Debian's driver; nothing is downloaded."""
    require("chromium")
    webdriver = pytest.importorskip("selenium.webdriver")
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--disable-dev-shm-usage",
        "--force-prefers-reduced-motion",
    ):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture
def view(chromium, page):
    """Yield ``view(width, scheme, scripts, anchor)``, which opens the report."""

    def open_report(
        width: int = 1280, scheme: str = "light", scripts: bool = True, anchor: str = ""
    ):
        command = chromium.execute_cdp_cmd
        command(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
        )
        command(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        command("Emulation.setScriptExecutionDisabled", {"value": not scripts})
        chromium.get("about:blank")  # so that another anchor of the same file reloads it
        chromium.get(page.as_uri() + anchor)
        return chromium

    yield open_report
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def picture_of(driver) -> bytes:
    """Return a screenshot of the whole page."""
    size = driver.execute_script(
        "const e = document.documentElement; return [e.clientWidth, e.scrollHeight]"
    )
    clip = {"x": 0, "y": 0, "width": size[0], "height": min(size[1], 16000), "scale": 1}
    return base64.b64decode(
        driver.execute_cdp_cmd(
            "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
        )["data"]
    )


def press(driver, key: str) -> None:
    """Press a key where the focus is."""
    from selenium.webdriver import ActionChains

    ActionChains(driver).send_keys(key).perform()


def column(driver, table: str, index: int) -> list[str]:
    return driver.execute_script(
        "return [...document.getElementById(arguments[0]).tBodies[0].rows]"
        ".filter(r => !r.hidden).map(r => r.cells[arguments[1]].textContent)",
        table,
        index,
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_no_horizontal_scrolling_and_the_right_theme(view, size, scheme):
    driver = view(SIZES[size], scheme)
    width, wide = driver.execute_script(
        "return [document.documentElement.scrollWidth, [...document.querySelectorAll('main *')]"
        ".filter(e => !e.closest('.scroll, pre, .screen-reader')"
        " && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))]"
    )
    assert width == SIZES[size]
    assert wide == []
    picture = Image.open(io.BytesIO(picture_of(driver))).convert("L")
    corner = picture.getpixel((2, 2))
    assert corner > 240 if scheme == "light" else corner < 50
    assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_no_table_is_cut_off_at_1200_pixels(view):
    """And no cell wraps into five lines."""
    driver = view(1200)
    driver.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    cut, tall = driver.execute_script("""
      const of = (found) => found.map(e => e.textContent.trim().slice(0, 60));
      const lines = e => { const range = document.createRange(); range.selectNodeContents(e);
        return new Set([...range.getClientRects()].filter(r => r.width > 1)
          .map(r => Math.round(r.top / 9))).size; };
      return [of([...document.querySelectorAll('.scroll')]
                .filter(e => e.scrollWidth > e.clientWidth + 1)),
              of([...document.querySelectorAll('.data td, .data tbody th')]
                .filter(e => lines(e) > 4))];
    """)
    assert cut == []
    assert tall == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(view, scheme):
    """Every text has a contrast ratio of at least 4.5 to its background."""
    driver = view(1280, scheme)
    driver.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
    worst = driver.execute_script("""
      const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => (v /= 255)
          <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); 
          return .2126*r + .7152*g + .0722*b; };
      const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e)
          .backgroundColor; if (!/, 0\\)$/.test(c)) return c; } return 'rgb(255, 255, 255)'; };
      const found = {};
      for (const e of document.querySelectorAll('body *')) {
        if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
        if (e.closest('script, style, dialog, title, desc')) continue;
        const style = getComputedStyle(e);
        const [a, b] = [light(e.closest('svg') ? style.fill : style.color), light(ground(e))];
        const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
        if (ratio < 4.5) found[e.tagName + '.' + e.getAttribute('class')] = ratio;
      }
      return found;
    """)
    assert worst == {}


def test_sorting_by_keyboard_goes_by_value(view):
    driver = view()
    table = "t-turns-constructed"
    before = column(driver, table, 3)
    driver.execute_script(f"document.querySelectorAll('#{table} thead button')[3].focus()")
    press(driver, "\ue007")
    head = f"document.querySelectorAll('#{table} .columns th')[3].getAttribute('aria-sort')"
    up = column(driver, table, 3)
    assert driver.execute_script(f"return {head}") == "ascending"
    press(driver, "\ue007")
    down = column(driver, table, 3)
    assert driver.execute_script(f"return {head}") == "descending"
    numbers = [float(text.split(" ")[0]) for text in before if text[0].isdigit()]
    size = len(numbers)
    assert [float(text.split(" ")[0]) for text in up[:size]] == sorted(numbers)
    assert [float(text.split(" ")[0]) for text in down[:size]] == sorted(numbers, reverse=True)
    assert all(not text[0].isdigit() for text in up[size:] + down[size:])


def test_filtering_hides_rows_and_says_how_many_are_left(view):
    name = "t-constructed-cells"
    driver = view(anchor=f"#{name}")  # it lies in a closed part
    table = driver.find_element("css selector", f".table:has(#{name})")
    box = table.find_element("css selector", ".filter input")
    box.send_keys("resnet50 ddp")
    assert all("resnet50.ddp" in text for text in column(driver, name, 0))
    assert len(column(driver, name, 0)) == 4
    assert table.find_element("css selector", "[role=status]").text == "4 of 40 rows"
    box.clear()
    box.send_keys(" ")
    assert len(column(driver, name, 0)) == 40


@pytest.mark.parametrize("scripts", [True, False])
def test_a_number_leads_to_the_details_of_its_cells(view, scripts):
    """They are in a closed part, which the browser opens for the target of a link."""
    driver = view(scripts=scripts)
    link = driver.find_element("css selector", "#t-constructed-2 td a")
    target = driver.find_element("id", link.get_attribute("href").split("#")[1])
    assert not target.is_displayed()
    link.send_keys("\ue007")
    assert target.is_displayed()
