"""What a finished benchmark looks like: overlap, likeness of its classes, a blind baseline, and signs of leaks."""
