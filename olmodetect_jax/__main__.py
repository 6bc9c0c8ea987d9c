"""`python -m olmodetect_jax`: the command line."""

from olmodetect_jax.cli import entry

entry()
