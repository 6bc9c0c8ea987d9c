"""Membership inference attacks: each says what it needs (`requests`) and then reduces (`score`). No jax here."""
