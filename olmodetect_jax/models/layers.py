"""Layers that the architectures share: linear maps, RMS norm, rotary positions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from olmodetect_jax.models.sharding import constrain, without_fsdp

INIT_STD = 0.02  # OLMo 2's initializer_range; used only where a model is trained from scratch


class Linear(nnx.Module):
    """y = x @ kernel, no bias; kernel [D_in, D_out]."""

    def __init__(self, d_in: int, d_out: int, spec: P, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        """`spec` says how the kernel is split over the mesh."""
        init = nnx.initializers.normal(INIT_STD, dtype)
        self.kernel = nnx.Param(init(rngs.params(), (d_in, d_out)))
        self.spec = spec

    def gathered(self) -> jax.Array:
        """The kernel as it is used: whole over fsdp."""
        return constrain(self.kernel[...], without_fsdp(self.spec))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., D_in] to [..., D_out], in the input's dtype."""
        return x @ self.gathered()


class RMSNorm(nnx.Module):
    """Root-mean-square norm; the gain multiplies in float32, before the cast back (as OLMo's trainer does)."""

    def __init__(self, width: int, eps: float, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        """`rngs` is unused (the gain starts at one); it is there so that all layers are built alike."""
        del rngs
        self.scale = nnx.Param(jnp.ones((width,), dtype))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, T, width] to the same shape and dtype."""
        x32 = x.astype(jnp.float32)
        norm = x32 * jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + self.eps)
        return (self.scale[...].astype(jnp.float32).reshape(1, 1, -1) * norm).astype(x.dtype)


def rope_tables(positions: jax.Array, head_dim: int, theta: float) -> tuple[jax.Array, jax.Array]:
    """Cosine and sine of the rotary angles, always float32 (in bfloat16 the angles are wrong from position 64 on).

    Args:
        positions: [B, T] int32; B may be 1 for rows that have the same.
        head_dim: H, even.
        theta: base of the frequencies.

    Returns:
        Two [B, T, H/2] float32 arrays.
    """
    exponent = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / jnp.float32(head_dim)
    angles = positions.astype(jnp.float32)[..., None] * (1.0 / jnp.float32(theta) ** exponent)[None, None, :]
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotates the halves of each head by its position's angles, in float32.

    Args:
        x: [B, T, N, H].
        cos: [B, T, H/2] float32; B may be 1.
        sin: the same.

    Returns:
        [B, T, N, H] in the dtype of x.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
