"""The built wheel works outside the checkout: configs, sample and `conversion` travel with it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def call(*command, cwd, **environment):
    environment = {**os.environ, **environment}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_quickstart_from_the_wheel(tmp_path):
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    call(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for name in (
        "conversion/keymaps.py",
        "olmodetect_jax/configs/benchmark/olmo2.yaml",
        "olmodetect_jax/report/page.css",
        "olmodetect_jax/configs/prompts/guided.txt",
        "olmodetect_jax/quiz/synonyms.yaml",
        "olmodetect_jax/sample/quiz.jsonl.zst",
    ):
        assert name in names
    assert any(n.endswith("licenses/NOTICE") for n in names)
    assert wheel.stat().st_size < 10_000_000
    site = tmp_path / "site"
    call(*pip, "install", "--no-deps", "--no-index", "--target", site, wheel, cwd=tmp_path)
    there = call(
        sys.executable,
        "-c",
        "import olmodetect_jax; print(olmodetect_jax.__file__)",
        cwd=tmp_path,
        PYTHONPATH=str(site),
    )
    assert there.startswith(str(site))
    out = call(
        sys.executable, "-m", "olmodetect_jax", "quickstart", "--limit", "1", "--attacks",
        "min_k_plus_plus,dc_pdd,guided", cwd=tmp_path, PYTHONPATH=str(site),
    )  # fmt: skip
    assert "MinK++" in out and "Guided" in out and (tmp_path / "quickstart" / "report.html").is_file()


def test_the_sample_is_small_and_carries_its_licences():
    folder = ROOT / "olmodetect_jax" / "sample"
    assert sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) < 10_000_000
    notice = (folder / "NOTICE.md").read_text()
    assert all(word in notice for word in ("MIT", "PSF", "CC BY 4.0", "public domain"))
