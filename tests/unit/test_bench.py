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


@pytest.mark.slow
def test_construction_is_measured():
    code = (
        "import bench_annealing, bench_index, json\n"
        "if __name__ == '__main__':\n"
        "    a = bench_annealing.bench_annealing(steps=2000, rounds=1, numpy_steps=100)\n"
        "    print(json.dumps([a, bench_index.bench_index(tokens=1_100_000, memory=2**26)]))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT / "scripts", capture_output=True, text=True, timeout=300, check=True)
    annealing, index = json.loads(done.stdout)
    assert annealing["tokens"] == 217_163 and annealing["proposals_per_second"] > 0 and annealing["ratio_to_numpy"] > 1
    assert 15_000 < annealing["distinct_ids"] < 20_000 and annealing["largest_drift"] < 1e-9
    assert index["found"] == 500_000 and index["disk_to_u32_tokens"] <= 4
    assert index["build_memory_ratio"] <= 1 and index["look_up_memory_ratio"] <= 1
