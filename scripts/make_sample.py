"""Makes the embedded sample again from its source texts, or checks that it comes out the same.

Example:
    python scripts/make_sample.py --check
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from olmodetect_jax import sample
from olmodetect_jax.commands.make_sample import main
from olmodetect_jax.errors import OlmoDetectError


def run() -> int:
    """Reads the options and makes the sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, default=sample.sources_directory(), help="folder of the source texts")
    parser.add_argument("--out", type=Path, default=sample.sources_directory().parent, help="the sample's folder")
    parser.add_argument("--check", action="store_true", help="write nothing; compare with what lies in --out")
    options = parser.parse_args()
    try:
        return main(options.sources, options.out, options.check)
    except OlmoDetectError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(run())
