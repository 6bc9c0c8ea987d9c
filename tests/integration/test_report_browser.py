"""The report in a real browser: it loads from disk, sorts, filters, opens a record; nothing of a run runs as script."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from olmodetect_jax.evaluation.runs import read_run
from olmodetect_jax.report import write_report
from olmodetect_jax.report.token_view import TokenView, TokenViews
from tests.run_folders import OWN_TEXTS, random_scores, score_line, write_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--window-size=1300,1000",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
EVIL = "</code><script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"

pytestmark = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="no chromium with its driver here")


@pytest.fixture(scope="module")
def browser() -> Iterator:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(service=Service(DRIVER), options=options)
    yield driver
    driver.quit()


def find(browser, css):
    return browser.find_elements("css selector", css)


def texts(browser, css):
    return [element.text for element in find(browser, css)]


def opened(browser, page):
    """Loads the page and its script: the driver may come back while a large file is still being read."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get_log("browser")
    browser.get(page.as_uri())
    ready = "return document.readyState === 'complete' && location.href === arguments[0]"
    WebDriverWait(browser, 60).until(lambda driver: driver.execute_script(ready, page.as_uri()))
    return browser


def press(element, key):
    from selenium.webdriver.common.keys import Keys

    element.send_keys(getattr(Keys, key))


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """A run with hostile names, and views of two of its records."""
    path = tmp_path_factory.mktemp("page")
    scores = random_scores(("ppl", "zlib", "lower", "min_k"))
    for subsets in scores.values():
        subsets["gsm8k"].insert(0, score_line(EVIL, 1, None, missing=EVIL))
    run = write_run(path / "run", scores, model={"name": EVIL})
    line = scores["ppl"]["code"][0]
    rng = np.random.default_rng(0)

    def views_of(_):
        pieces = ("<b>", "bold", "</b>", " &amp;", EVIL)
        values = [rng.normal(-3, 1, 4).astype(np.float32) for _ in range(2)] + [np.ones(4, np.float32)]
        return TokenViews([TokenView("code", 1, line["record_id"], line["text_sha1"], pieces, *values)])

    write_report([run], path / "report.html", views_of=views_of)
    assert read_run(run).model == EVIL
    return path / "report.html"


def test_a_heading_sorts_and_nothing_of_a_run_is_script(browser, page):
    opened(browser, page)
    heading = find(browser, ".heat .keys th")[1]
    heading.find_element("css selector", "button").click()
    table = find(browser, ".heat")[0]
    cells = table.find_elements("css selector", "tbody tr > td:first-of-type")
    first = [float(cell.get_attribute("data-value")) for cell in cells]
    assert first == sorted(first, reverse=True) and len(first) == 4
    assert heading.get_attribute("aria-sort") == "descending"
    assert browser.title != "owned" and not find(browser, "img")
    assert browser.get_log("browser") == []


def test_records_are_sorted_filtered_and_leafed_through(browser, page):
    opened(browser, page)
    assert "1–50 of 121 records" in texts(browser, ".pager [role=status]")
    buttons = find(browser, ".pager button")
    assert not buttons[0].is_enabled()
    buttons[1].click()
    assert "51–100 of 121 records" in texts(browser, ".pager [role=status]")
    heading = find(browser, ".records .keys th button")[4]
    press(heading, "ENTER")
    scores = [float(text) for text in texts(browser, ".records tbody tr > td:nth-of-type(4)")]
    assert scores == sorted(scores, reverse=True) and len(scores) == 50
    subset, kind = find(browser, ".controls select")
    subset.send_keys("GSM8K")
    kind.send_keys("member")
    assert set(texts(browser, ".records tbody tr > td:nth-of-type(1)")) == {"GSM8K"}
    assert set(texts(browser, ".records tbody tr > td:nth-of-type(2)")) == {"member"}
    for _ in range(2):  # missing stays last, whichever way
        assert texts(browser, ".records .open")[-1] == EVIL and len(find(browser, ".records .open")) == 13
        press(heading, "ENTER")
    search = find(browser, ".controls input[type=search]")[0]
    search.send_keys("onerror")
    assert texts(browser, ".records .open") == [EVIL]
    assert texts(browser, ".records tbody td")[3:7] == ["–"] * 4
    search.send_keys("nothing like it")
    assert texts(browser, ".pager [role=status]") == ["no such record"]
    assert browser.get_log("browser") == []


def test_a_record_is_opened_and_read_with_the_keyboard(browser, page):
    opened(browser, page)
    find(browser, ".controls input[type=checkbox]")[0].click()
    (row,) = find(browser, ".records .open")
    press(row, "ENTER")
    detail = find(browser, ".record")[0]
    assert detail.is_displayed() and browser.switch_to.active_element == detail
    assert detail.find_element("css selector", "h4").text == row.text
    shares = texts(browser, ".record tbody td:last-child")
    assert len(shares) == 4 and all(share.strip().endswith("%") for share in shares)
    tokens = find(browser, ".tokens span")
    assert [t.get_property("textContent") for t in tokens] == ["<b>", "bold", "</b>", " &amp;", EVIL]
    assert len(find(browser, ".tokens .low")) == 1 and "underlined: the lowest 20%, whose mean" in detail.text
    browser.execute_script("arguments[0].focus()", tokens[0])
    press(tokens[0], "ARROW_RIGHT")
    assert browser.switch_to.active_element == tokens[1]
    assert "log-probability -" in texts(browser, ".record [role=status]")[0]
    find(browser, ".record select")[0].send_keys("standardised")
    assert len(find(browser, ".tokens .low")) == 1
    find(browser, ".record > button")[0].click()
    assert not detail.is_displayed() and browser.switch_to.active_element == row
    find(browser, ".controls input[type=checkbox]")[0].click()
    row = find(browser, ".records .open")[2]
    press(row, "ENTER")
    assert "are not in the page" in detail.text
    press(detail, "ESCAPE")
    assert not detail.is_displayed() and browser.switch_to.active_element == row
    assert browser.title != "owned" and not find(browser, "img") and browser.get_log("browser") == []


def test_the_roc_axis_is_switched(browser, page):
    opened(browser, page)
    button = find(browser, "button.log-axis")[0]
    before = [g.is_displayed() for g in find(browser, "g.linear")[:1] + find(browser, "g.logarithmic")[:1]]
    press(button, "ENTER")
    after = [g.is_displayed() for g in find(browser, "g.linear")[:1] + find(browser, "g.logarithmic")[:1]]
    assert (before, after) == ([True, False], [False, True])
    assert button.get_attribute("aria-pressed") == "true"


def test_own_texts_sort_by_a_heading_with_missing_shares_last(browser, tmp_path):
    shares = {"half": 0.5, "gone": None, "zero": 0.0, "one": 1.0}
    lines = [
        score_line(name, None, None if share is None else 1 - share, reference_share=share)
        for name, share in shares.items()
    ]
    reference = [score_line(f"o{i}", 0, i / 9) for i in range(10)]
    run = write_run(tmp_path / "run", {"ppl": {"texts": lines, "reference": reference}}, **OWN_TEXTS)
    write_report([run], tmp_path / "report.html")
    opened(browser, tmp_path / "report.html")
    find(browser, ".texts .keys th button")[2].click()
    assert texts(browser, ".texts tbody th") == ["one", "half", "zero", "gone"]


def test_a_page_of_twenty_thousand_records_can_be_used(browser, tmp_path):
    """How long it takes is printed, for people to read: no test fails by the speed of a machine."""
    rng = np.random.default_rng(0)
    texts_of = [score_line(f"record {i}", i % 2, 0.0) for i in range(20_000)]
    scores = {}
    for attack in ("ppl", "zlib", "lower", "min_k", "min_k_plus_plus", "dc_pdd"):
        values = rng.normal(size=len(texts_of)).tolist()
        scores[attack] = {"texts": [{**line, "score": v} for line, v in zip(texts_of, values, strict=True)]}
    run = write_run(tmp_path / "run", scores, **OWN_TEXTS)
    write_report([run], tmp_path / "report.html")
    started = time.perf_counter()
    opened(browser, tmp_path / "report.html")
    assert "1–50 of 20000 records" in texts(browser, ".pager [role=status]")
    size = (tmp_path / "report.html").stat().st_size / 1e6
    print(f"20,000 records: {size:.1f} MB, {time.perf_counter() - started:.2f} s")
    press(find(browser, ".records .keys th button")[4], "ENTER")
    find(browser, ".controls input[type=search]")[0].send_keys("record 19999")
    assert texts(browser, ".records .open") == ["record 19999"]
    assert browser.get_log("browser") == []
