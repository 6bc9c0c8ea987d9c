"""The layout in which the benchmark's authors released their scores: reading it as runs, and writing runs in it."""
