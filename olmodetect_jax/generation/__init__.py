"""Continuations of prompts: greedy and sampled, many at once, one reading of a prompt for all that follow it."""
