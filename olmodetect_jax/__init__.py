"""OLMo-Detect in JAX: membership inference attacks on language models, with known error."""

__version__ = "0.1.0"
