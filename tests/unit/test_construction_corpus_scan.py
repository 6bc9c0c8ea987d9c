"""A corpus scan by several processes, one of them killed, against brute force; and what is refused."""

import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmodetect_jax.construction import corpus_scan
from olmodetect_jax.construction.corpus_scan import WindowTable, executor, merge, plan_scan, scan_share
from olmodetect_jax.construction.index import hashing
from olmodetect_jax.construction.index.base import windows
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.sample import model_directory
from olmodetect_jax.tokenization import Tokenizer

N = 5
IDS = st.sampled_from([0, 1, 65_536, 65_537, 2**32 - 1])
SENTENCES = ["the whale was seen near the ship on that day", "all the men were glad of the wind and the rain"]

# Run in a process group of its own, which its last task kills in the middle.
KILLED = """
import os, signal, sys
from pathlib import Path
from olmodetect_jax.construction import corpus_scan
from olmodetect_jax.construction.scan_step import ScanStep

class Dying(ScanStep):
    def run(self, data=None, rank=0, world_size=1):
        if rank == world_size - 1:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        yield from super().run(data, rank, world_size)

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    made = corpus_scan.executor(folder, "local", workers=2)
    made.pipeline = [Dying(str(folder))]
    made.run()
"""


def write_corpus(folder):
    folder.mkdir()
    for number in range(4):
        lines = [{"text": f"{SENTENCES[number % 2]} {SENTENCES[0]} {i}"} for i in range(3 + number)]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def planned(tmp_path):
    write_corpus(tmp_path / "corpus")
    ids = Tokenizer(model_directory()).bare_ids([*SENTENCES, "something else that is not there at all, surely"])
    plan_scan(ids, [tmp_path / "corpus"], tmp_path / "scan", model_directory(), n=N)
    return tmp_path, ids


def brute_force(tmp_path, queries):
    tokenizer, counts = Tokenizer(model_directory()), Counter()
    for path in (tmp_path / "corpus").iterdir():
        for line in path.read_text().splitlines():
            (ids,) = tokenizer.bare_ids([json.loads(line)["text"]])
            counts.update(map(tuple, windows(ids, N).tolist()))
    return [counts[tuple(q)] for q in queries.tolist()]


def test_a_killed_scan_goes_on_and_counts_exactly(planned):
    tmp_path, ids = planned
    folder, script = tmp_path / "scan", tmp_path / "killed.py"
    script.write_text(KILLED)
    killed = subprocess.run(
        [sys.executable, str(script), str(folder)], start_new_session=True, capture_output=True, check=False
    )
    assert killed.returncode == -9
    done = sorted(p.name for p in (folder / "counts").glob("*.safetensors"))
    assert 0 < len(done) < 4
    with pytest.raises(DataError, match="of 4 tasks are not done"):
        merge(folder)
    before = {
        p.name: p.stat().st_mtime_ns
        for p in (folder / "counts").glob("*.safetensors")
        if (folder / "logs/completions").exists()
    }
    finished = {f"{p.name}.safetensors" for p in (folder / "logs" / "completions").iterdir()}
    again = subprocess.run(
        [sys.executable, "-c", "import sys; from pathlib import Path\n"
         "from olmodetect_jax.construction.corpus_scan import executor\n"
         "if __name__ == '__main__': executor(Path(sys.argv[1]), 'local', workers=2).run()", str(folder)],
        capture_output=True, check=False,
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    after = {p.name: p.stat().st_mtime_ns for p in (folder / "counts").glob("*.safetensors")}
    assert len(after) == 4 and {n for n in finished if after[n] != before[n]} == set()
    queries = np.concatenate([windows(i, N) for i in ids])
    assert merge(folder).count(queries).tolist() == brute_force(tmp_path, queries)
    assert merge(folder).count(queries).max() > 10


def test_the_number_of_tasks_changes_nothing(planned, tmp_path):
    _, ids = planned
    queries = np.concatenate([windows(i, N) for i in ids])
    for tasks in (1, 3, 9):
        folder = tmp_path / f"scan-{tasks}"
        plan_scan(ids, [tmp_path / "corpus"], folder, model_directory(), n=N, tasks=tasks)
        for rank in range(min(tasks, 4)):
            scan_share(folder, rank)
        assert merge(folder).count(queries).tolist() == brute_force(tmp_path, queries)


@given(corpus=st.lists(st.lists(IDS, max_size=20), max_size=6), known=st.lists(st.lists(IDS, min_size=3, max_size=3)))
@pytest.mark.parametrize("same_hash", [False, True])
def test_a_table_counts_like_brute_force(corpus, known, same_hash):
    known = np.unique(np.array([*known, [1, 1, 1]], np.uint32), axis=0)
    with pytest.MonkeyPatch.context() as patch:
        if same_hash:  # then every window is compared with every other
            patch.setattr(hashing, "_hash", lambda columns, size: np.zeros(size, np.uint64))
        found = WindowTable(known).count(np.array(d, np.uint32) for d in corpus)
    counts = Counter(tuple(w) for d in corpus for w in windows(np.array(d, np.int64), 3).tolist())
    assert found.tolist() == [counts[tuple(w)] for w in known.tolist()]


def test_documents_are_counted_in_batches(monkeypatch):
    monkeypatch.setattr(corpus_scan, "_TOGETHER", 7)
    texts = [np.arange(i % 9, dtype=np.uint32) for i in range(40)]
    known = windows(np.arange(8, dtype=np.uint32), 3)
    assert WindowTable(known).count(texts).tolist() == [sum(len(t) >= k + 3 for t in texts) for k in range(6)]


def test_variants_are_scanned_for_too(planned, tmp_path):
    _, ids = planned
    first = int(ids[0][0])
    plan_scan(ids[:1], [tmp_path / "corpus"], tmp_path / "v", model_directory(), n=N, first_tokens=[(first, 17)])
    changed = windows(ids[0], N)[:1].copy()
    changed[0, 0] = 17
    for rank in range(4):
        scan_share(tmp_path / "v", rank)
    assert merge(tmp_path / "v").count(changed).tolist() == [0]
    changed[0, 0] = 18
    with pytest.raises(DataError, match="1 windows were not scanned for"):
        merge(tmp_path / "v").count(changed)


def test_what_is_refused(planned, tmp_path, monkeypatch):
    root, ids = planned
    plan_scan(ids, [root / "corpus"], root / "scan", model_directory(), n=N)  # the same once more
    with pytest.raises(UsageError, match="holds another scan"):
        plan_scan(ids[:1], [root / "corpus"], root / "scan", model_directory(), n=N)
    with pytest.raises(DataError, match="no text has 5 tokens"):
        plan_scan([ids[0][:3]], [root / "corpus"], root / "x", model_directory(), n=N)
    with pytest.raises(DataError, match="nowhere: no such file"):
        plan_scan(ids, [root / "nowhere"], root / "x", model_directory(), n=N)
    with pytest.raises(UsageError, match="unknown value 'cloud'; allowed are: local, slurm, ray"):
        executor(root / "scan", "cloud")
    with pytest.raises(UsageError, match="no plan of a corpus scan"):
        merge(root / "corpus")
    (root / "corpus" / "0.jsonl").write_text("no json")
    with pytest.raises(DataError, match=r"0\.jsonl"):
        scan_share(root / "scan", 0)
    plan = json.loads((root / "scan" / "scan.json").read_text())
    (root / "scan" / "scan.json").write_text(json.dumps(plan | {"tokenizer": "other"}))
    with pytest.raises(UsageError, match="another tokenizer than when the scan was planned"):
        scan_share(root / "scan", 0)
    monkeypatch.setitem(sys.modules, "datatrove.executor", None)
    with pytest.raises(UsageError, match=r"olmodetect-jax\[corpora\]"):
        executor(root / "scan", "local")
