"""Whole jobs, from options to files: what the command line and the scripts call."""
