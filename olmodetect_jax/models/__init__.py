"""Flax models: one readable file an architecture, and the layers, attention and sharding they share."""
