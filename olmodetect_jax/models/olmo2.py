"""OLMo 2 (1B, 7B, 13B, 32B): a decoder whose norms stand after attention and feed-forward, on the residual branch.

    x = embed(ids)
    x = x + norm(attention(x));  x = x + norm(feed_forward(x))      for each of L blocks
    logits = norm(x) @ head

Queries and keys are normed over their whole width (all heads at once) before the rotary positions. The blocks'
weights are stacked along a leading layer axis and scanned, so 64 layers compile as one.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from olmodetect_jax.errors import UsageError
from olmodetect_jax.models.attention import Prefix, attention_after, attention_step, causal_attention
from olmodetect_jax.models.layers import INIT_STD, Linear, RMSNorm, rope_tables, rotate
from olmodetect_jax.models.sharding import RULES, constrain, without_fsdp

Rope = tuple[jax.Array, jax.Array]  # cosine and sine, [B, T, H/2] float32


@dataclass(frozen=True)
class Olmo2Config:
    """Shape of an OLMo 2 model: V, D, F, L, N, K, H and the constants of its norms and positions."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> Olmo2Config:
        """Reads a Hugging Face `config.json`.

        Raises:
            UsageError: a field is missing or asks for something this model does not do.
        """
        sizes = {name: _number(config, name, int) for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "max_position_embeddings",
        )}  # fmt: skip
        rope = config.get("rope_parameters") or {}
        if not isinstance(rope, dict) or rope.get("rope_type", "default") != "default":
            raise UsageError(f"config.json: rope_parameters is {rope!r}; OLMo 2 has rope_type default only")
        if sizes["num_hidden_layers"] > 1000 or sizes["max_position_embeddings"] < 2:
            raise UsageError("config.json: expected num_hidden_layers <= 1000 and max_position_embeddings >= 2")
        tied = config.get("tie_word_embeddings", False)
        if not isinstance(tied, bool):
            raise UsageError(f"config.json: tie_word_embeddings is {tied!r}; expected true or false")
        for name, value in {"hidden_act": "silu", "attention_bias": False, "rope_scaling": None}.items():
            if config.get(name, value) != value:
                raise UsageError(f"config.json: {name} is {config[name]!r}; OLMo 2 is supported with {value!r} only")
        heads, width = sizes["num_attention_heads"], sizes["hidden_size"]
        kv_heads = heads if config.get("num_key_value_heads") is None else _number(config, "num_key_value_heads", int)
        head_dim = width // heads if config.get("head_dim") is None else _number(config, "head_dim", int)
        if heads % kv_heads or head_dim % 2 or (config.get("head_dim") is None and width % heads):
            raise UsageError(
                f"config.json: num_attention_heads {heads}, num_key_value_heads {kv_heads} and head size {head_dim} "
                "do not fit together"
            )
        return cls(
            vocab_size=sizes["vocab_size"],
            hidden_size=width,
            intermediate_size=sizes["intermediate_size"],
            num_layers=sizes["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rope_theta=_number({"rope_theta": config.get("rope_theta"), **rope}, "rope_theta", float),
            rms_norm_eps=_number(config, "rms_norm_eps", float),
            max_position_embeddings=sizes["max_position_embeddings"],
            tie_word_embeddings=tied,
        )

    def to_hf(self) -> dict[str, Any]:
        """The fields of a Hugging Face `config.json` that `from_hf` reads, and the two that name the class."""
        return {
            "architectures": ["Olmo2ForCausalLM"],
            "model_type": "olmo2",
            "attention_bias": False,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "max_position_embeddings": self.max_position_embeddings,
            "num_attention_heads": self.num_heads,
            "num_hidden_layers": self.num_layers,
            "num_key_value_heads": self.num_kv_heads,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_scaling": None,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tie_word_embeddings,
            "vocab_size": self.vocab_size,
        }


def _number(config: dict[str, Any], name: str, kind: type) -> Any:
    """A positive number of a `config.json`: an integer, or for `float` either."""
    value = config.get(name)
    right = isinstance(value, int if kind is int else (int, float)) and not isinstance(value, bool)
    if not right or not 0 < value < float("inf"):
        wanted = "integer" if kind is int else "number"
        raise UsageError(f"config.json: {name}: expected a positive {wanted}, got {value!r}")
    return kind(value)


class Embed(nnx.Module):
    """Token embedding [V, D]."""

    def __init__(self, config: Olmo2Config, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        """Random rows, for training from scratch."""
        init = nnx.initializers.normal(INIT_STD, dtype)
        self.embedding = nnx.Param(init(rngs.params(), (config.vocab_size, config.hidden_size)))

    def __call__(self, ids: jax.Array) -> jax.Array:
        """[B, T] int32 to [B, T, D]."""
        return self.embedding[...][ids]


class Block(nnx.Module):
    """One layer: attention and feed-forward, each normed on its way back to the residual stream."""

    def __init__(self, config: Olmo2Config, *, rngs: nnx.Rngs, dtype: jnp.dtype):
        """Weights of one layer; `Olmo2` stacks L of them."""
        D, F, H, eps = config.hidden_size, config.intermediate_size, config.head_dim, config.rms_norm_eps
        NH, KH = config.num_heads * H, config.num_kv_heads * H
        self.q_proj = Linear(D, NH, RULES.inward, rngs=rngs, dtype=dtype)
        self.k_proj = Linear(D, KH, RULES.inward, rngs=rngs, dtype=dtype)
        self.v_proj = Linear(D, KH, RULES.inward, rngs=rngs, dtype=dtype)
        self.o_proj = Linear(NH, D, RULES.outward, rngs=rngs, dtype=dtype)
        self.q_norm = RMSNorm(NH, eps, rngs=rngs, dtype=dtype)
        self.k_norm = RMSNorm(KH, eps, rngs=rngs, dtype=dtype)
        self.gate_proj = Linear(D, F, RULES.inward, rngs=rngs, dtype=dtype)
        self.up_proj = Linear(D, F, RULES.inward, rngs=rngs, dtype=dtype)
        self.down_proj = Linear(F, D, RULES.outward, rngs=rngs, dtype=dtype)
        self.post_attention_norm = RMSNorm(D, eps, rngs=rngs, dtype=dtype)
        self.post_feedforward_norm = RMSNorm(D, eps, rngs=rngs, dtype=dtype)
        self.head_dim = H

    def __call__(self, x: jax.Array, rope: Rope) -> jax.Array:
        """[B, T, D] to [B, T, D]."""
        return self.after_attention(x, causal_attention(*self.projections(x, rope)))

    def projections(self, x: jax.Array, rope: Rope) -> tuple[jax.Array, jax.Array, jax.Array]:
        """[B, T, D] to queries [B, T, N, H], keys and values [B, T, K, H]."""
        B, T, _ = x.shape
        q = self.q_norm(self.q_proj(x)).reshape(B, T, -1, self.head_dim)
        k = self.k_norm(self.k_proj(x)).reshape(B, T, -1, self.head_dim)
        v = self.v_proj(x).reshape(B, T, -1, self.head_dim)
        return rotate(q, *rope), rotate(k, *rope), v

    def after_attention(self, x: jax.Array, out: jax.Array) -> jax.Array:
        """The layer's output from its input [B, T, D] and what attention gave, [B, T, N, H]."""
        x = x + self.post_attention_norm(self.o_proj(out.reshape(*x.shape[:2], -1)))
        return x + self.post_feedforward_norm(self.feed_forward(x))

    def feed_forward(self, x: jax.Array) -> jax.Array:
        """[B, T, D] to [B, T, D] through F."""
        return self.down_proj(jax.nn.silu(self.gate_proj(x)) * self.up_proj(x))


class Olmo2(nnx.Module):
    """The whole model. Call `hidden` and `head_kernel`; the logits are formed tile by tile elsewhere."""

    def __init__(self, config: Olmo2Config, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32):
        """Random weights in `dtype`; loading replaces them (under `nnx.eval_shape` nothing is drawn)."""

        @nnx.split_rngs(splits=config.num_layers)  # without it every layer would get the same weights
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def stacked(rngs: nnx.Rngs) -> Block:
            return Block(config, rngs=rngs, dtype=dtype)

        self.config = config
        self.embed = Embed(config, rngs=rngs, dtype=dtype)
        self.blocks = stacked(rngs)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, rngs=rngs, dtype=dtype)
        if not config.tie_word_embeddings:
            self.head = Linear(config.hidden_size, config.vocab_size, RULES.head, rngs=rngs, dtype=dtype)

    def hidden(self, ids: jax.Array) -> jax.Array:
        """Final normed hidden states.

        Args:
            ids: [B, T] int32; position t of every row is token t of its text (texts start at 0, padding follows).

        Returns:
            [B, T, D] in the weights' dtype.
        """
        return self.hidden_of(self.embed(ids))

    def hidden_of(self, x: jax.Array) -> jax.Array:
        """The same of vectors [B, T, D] that stand where tokens' embeddings do, as a soft prompt's."""
        rows = P(*RULES.rows, None, None)
        rope = self._rope(jnp.arange(x.shape[1])[None, :])

        # When differentiated, a layer keeps its input only and is run again: the memory of one layer, not of L.
        @functools.partial(jax.checkpoint, prevent_cse=False)
        def layer(x: jax.Array, block: Block) -> tuple[jax.Array, None]:
            return constrain(block(constrain(x, rows), rope), rows), None

        x, _ = jax.lax.scan(layer, constrain(x, rows), self.blocks)
        return self.norm(x)

    def prefill(self, ids: jax.Array, lengths: jax.Array, rows: P) -> Prefix:
        """Reads prefixes once, for `hidden_after`.

        Args:
            ids: [R, P] int32, padded on the right.
            lengths: [R] int32.
            rows: how R is split over the mesh.
        """
        return self.prefill_of(self.embed(ids), lengths, rows)

    def prefill_of(self, x: jax.Array, lengths: jax.Array, rows: P) -> Prefix:
        """The same of vectors [R, P, D] that stand where tokens' embeddings do."""
        x, keys, values = self._read(x, rows)
        last = jnp.take_along_axis(x, jnp.maximum(lengths - 1, 0)[:, None, None], axis=1)
        return Prefix(keys, values, lengths, self.norm(last)[:, 0])

    def read_prompts(self, ids: jax.Array, rows: P) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Reads prompts once, for `step`.

        Args:
            ids: [G, P] int32, padded on the right.
            rows: how G is split over the mesh.

        Returns:
            Final normed hidden states [G, P, D], keys and values, each [L, G, K, P, H].
        """
        x, keys, values = self._read(self.embed(ids), rows)
        return self.norm(x), jnp.swapaxes(keys, 2, 3), jnp.swapaxes(values, 2, 3)

    def _read(self, x: jax.Array, rows: P) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Hidden states before the last norm [R, P, D], and every layer's keys and values, each [L, R, P, K, H]."""
        rows3 = P(*rows, None, None)
        rope = self._rope(jnp.arange(x.shape[1])[None, :])

        def layer(x: jax.Array, block: Block) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            q, k, v = block.projections(constrain(x, rows3), rope)
            return constrain(block.after_attention(x, causal_attention(q, k, v)), rows3), (k, v)

        x, (keys, values) = jax.lax.scan(layer, constrain(x, rows3), self.blocks)
        return x, keys, values

    def step(
        self,
        ids: jax.Array,
        positions: jax.Array,
        prompts: tuple[jax.Array, jax.Array],
        starts: jax.Array,
        own: tuple[jax.Array, jax.Array],
        seen: jax.Array,
        rows: P,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Reads one more token of W texts after each of G prompts.

        Args:
            ids: [G, W] int32, the tokens.
            positions: [G, W] int32; they may go on past the trained context.
            prompts: keys and values of `read_prompts`, each [L, G, K, P, H].
            starts: [G, W] int32, how many of its prompt's tokens each text follows.
            own: keys and values of the texts' earlier tokens, each [L, G, W, K, S, H].
            seen: [G, W, S] bool, which of these there are.
            rows: how the G * W texts are split over the mesh.

        Returns:
            Final normed hidden states [G, W, D], and the tokens' own keys and values, each [L, G, W, K, H].
        """
        G, W = ids.shape
        rows3 = P(*rows, None, None)
        rope = self._rope(positions.reshape(G * W, 1))

        def layer(x: jax.Array, inputs: tuple[Block, Any, Any]) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
            block, prompt, earlier = inputs
            q, k, v = (y.reshape(G, W, *y.shape[2:]) for y in block.projections(constrain(x, rows3), rope))
            out = attention_step(q, k, v, *prompt, starts, *earlier, seen)
            return constrain(block.after_attention(x, out.reshape(G * W, 1, *out.shape[2:])), rows3), (k, v)

        x = constrain(self.embed(ids.reshape(G * W, 1)), rows3)
        x, (keys, values) = jax.lax.scan(layer, x, (self.blocks, prompts, own))
        return self.norm(x).reshape(G, W, -1), keys, values

    def hidden_after(self, prefix: Prefix, ids: jax.Array, rows: P) -> jax.Array:
        """Final normed hidden states of texts that follow prefixes.

        Args:
            prefix: of `prefill`.
            ids: [R, B, T] int32, B texts after each of R prefixes, padded on the right.
            rows: how the R * B pairs, the prefix outer, are split over the mesh.

        Returns:
            [R, B, T, D] in the weights' dtype.
        """
        R, B, T = ids.shape
        rows3 = P(*rows, None, None)
        rope = self._rope(jnp.repeat(prefix.lengths[:, None] + jnp.arange(T)[None, :], B, axis=0))

        def layer(x: jax.Array, inputs: tuple[Block, jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            block, prefix_k, prefix_v = inputs
            own = [y.reshape(R, B, T, *y.shape[2:]) for y in block.projections(constrain(x, rows3), rope)]
            out = attention_after(*own, prefix_k, prefix_v, prefix.lengths)
            return constrain(block.after_attention(x, out.reshape(R * B, T, *out.shape[3:])), rows3), None

        x = constrain(self.embed(ids.reshape(R * B, T)), rows3)
        x, _ = jax.lax.scan(layer, x, (self.blocks, prefix.keys, prefix.values))
        return self.norm(x).reshape(R, B, T, -1)

    def _rope(self, positions: jax.Array) -> Rope:
        return rope_tables(positions, self.config.head_dim, self.config.rope_theta)

    def head_kernel(self) -> jax.Array:
        """[D, V], gathered over fsdp: take it once, outside a loop over tiles."""
        if self.config.tie_word_embeddings:
            return constrain(self.embed.embedding[...].T, without_fsdp(RULES.head))
        return self.head.gathered()
