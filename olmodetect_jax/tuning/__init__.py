"""Training with optax: from scratch for the embedded sample, adapters for the supervised attacks."""
