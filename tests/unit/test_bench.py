"""The benchmark script measures and prints what it promises; how fast is for people to read, not for a test."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_one_json_object_a_case():
    code = "import bench, json; print(json.dumps(bench.bench_statistics(tokens=64, width=8, vocabulary=1024)))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT / "scripts", capture_output=True, text=True, timeout=120, check=True)
    result = json.loads(done.stdout)
    assert result["case"] == "statistics" and result["ratio_to_matmul"] > 0
    assert result["temp_bytes"] > 0 and result["bound_bytes"] == 2.5 * 64 * 1024 * 4
