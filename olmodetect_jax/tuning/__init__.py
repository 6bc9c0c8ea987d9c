"""Training with optax."""
