"""What surrounds the work: progress on the terminal."""
