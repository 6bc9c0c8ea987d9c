"""Counts the 13-grams of candidate texts in a corpus too large to index, in parallel; run again, it goes on.

Example:
    python scripts/scan_corpus.py --texts pool.jsonl --corpus CORPUS --tokenizer MODEL --out scan --workers 16
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from olmodetect_jax.construction.corpus import corpus_files, documents
from olmodetect_jax.construction.corpus_scan import executor, merge, plan_scan, read_plan
from olmodetect_jax.construction.pieces import Pieces
from olmodetect_jax.errors import OlmoDetectError
from olmodetect_jax.tokenization import Tokenizer


def run() -> int:
    """Reads the options, plans the scan, does it, and says what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, nargs="+", required=True, help="files of candidates, read as a corpus")
    parser.add_argument("--corpus", type=Path, nargs="+", required=True, help="files and folders of documents")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of the tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="folder of the scan")
    parser.add_argument("--executor", choices=("local", "slurm", "ray"), default="local")
    parser.add_argument("--workers", type=int, default=1, help="tasks at once")
    parser.add_argument("--tasks", type=int, help="parts that the files are shared out among; one a file if left out")
    parser.add_argument(
        "--options", type=json.loads, default={}, help='JSON for the executor: {"time": "8:00:00", ...}'
    )
    options = parser.parse_args()
    try:
        tokenizer = Tokenizer(options.tokenizer)
        pieces = Pieces.of_tokenizer(tokenizer.path)
        partners = [(i, p) for i in range(tokenizer.largest_id + 1) if (p := pieces.toggled(i)) is not None]
        texts = documents(corpus_files(options.texts), tokenizer.bare_ids, lambda done: None)
        plan_scan(texts, options.corpus, options.out, options.tokenizer, tasks=options.tasks, first_tokens=partners)
        executor(options.out, options.executor, workers=options.workers, **options.options).run()
        if options.executor == "local":
            merge(options.out)
        print(f"{options.out}: {read_plan(options.out)['windows']:,} windows; next: indices: {{NAME: {{scan: ...}}}}")
    except OlmoDetectError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(run())
