"""Evaluation: reading runs, metrics, means over the benchmark's tree, tables."""

from olmodetect_jax.evaluation.results import RunMetrics, evaluate
from olmodetect_jax.evaluation.tables import print_tables, write_tables

__all__ = ["RunMetrics", "evaluate", "print_tables", "write_tables"]
