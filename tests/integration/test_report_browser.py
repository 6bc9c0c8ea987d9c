"""The report in a real browser: it renders, it sorts, nothing of a run runs as script."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from olmodetect_jax.report import write_report
from tests.run_folders import OWN_TEXTS, random_scores, score_line, write_run

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


def rendered(page: Path, profile: Path) -> str:
    """The page's DOM after its scripts ran."""
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_table_renders_sorts_and_runs_no_script_of_a_record(tmp_path: Path) -> None:
    scores = random_scores(("ppl", "zlib", "lower", "min_k"))
    attack = "</code><script>document.title = 'owned'</script><img src=x onerror=\"document.title='owned'\">"
    for subsets in scores.values():
        subsets["gsm8k"].append(score_line(attack, 1, None))
    page = tmp_path / "report.html"
    write_report([write_run(tmp_path / "run", scores, model={"name": attack})], page)
    # A second script clicks the heading "All", as a reader would; the page itself is left as it is.
    clicking = tmp_path / "clicking.html"
    click = "<script>document.querySelectorAll('.heat .keys th')[1].querySelector('button').click()</script></body>"
    clicking.write_text(page.read_text(encoding="utf-8").replace("</body>", click), encoding="utf-8")

    dom = rendered(clicking, tmp_path / "profile")
    assert "<title>owned" not in dom
    body = re.search(r"<tbody>(.*?)</tbody>", dom, re.DOTALL).group(1)
    first = [float(re.search(r'data-value="([^"]+)"', row).group(1)) for row in re.findall(r"<tr>.*?</tr>", body, re.S)]
    assert len(first) == 4
    assert first == sorted(first, reverse=True)
    assert 'aria-sort="descending"' in dom


def test_own_texts_sort_by_a_heading_with_missing_shares_last(tmp_path: Path) -> None:
    shares = {"half": 0.5, "gone": None, "zero": 0.0, "one": 1.0}
    lines = [
        score_line(name, None, None if share is None else 1 - share, reference_share=share)
        for name, share in shares.items()
    ]
    reference = [score_line(f"o{i}", 0, i / 9) for i in range(10)]
    run = write_run(tmp_path / "run", {"ppl": {"texts": lines, "reference": reference}}, **OWN_TEXTS)
    page = tmp_path / "report.html"
    write_report([run], page)
    click = "<script>document.querySelectorAll('.texts .keys th')[3].querySelector('button').click()</script></body>"
    page.write_text(page.read_text(encoding="utf-8").replace("</body>", click), encoding="utf-8")
    body = re.search(r"<tbody>(.*?)</tbody>", rendered(page, tmp_path / "profile"), re.DOTALL).group(1)
    assert re.findall(r'<th scope="row">(\w+)</th>', body) == ["one", "half", "zero", "gone"]
