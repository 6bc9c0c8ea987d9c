"""What surrounds the work: progress, hardware, the compile cache."""
