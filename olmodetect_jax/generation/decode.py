"""The two programs of generation, over fixed buffers: `fill` reads prompts into slots, `decode` runs some steps.

G slots hold a prompt each, read once; W texts continue each prompt. A text that ends leaves its place to the next one
of its prompt, and a prompt whose texts have all ended leaves its slot to the next prompt. Which row or slot a text
gets, and what stands beside it, changes nothing of what is drawn for it.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from olmodetect_jax.generation.sampling import draw, largest, uniforms, warp
from olmodetect_jax.models.sharding import RULES, constrain
from olmodetect_jax.scoring.statistics import Rounding, logit_statistics, round_logits


class Slots(NamedTuple):
    """Everything that lives on the device between two calls.

    Attributes:
        prompts: keys and values of the prompts, each [L, G, K, P, H].
        hidden: [G, P, D], final hidden states of the prompts: each predicts what follows its token.
        own: keys and values of the texts' tokens, each [L, G, W, K, S, H]. S is a ring: every step writes one column
            for all texts, and a text that began at step b has its tokens in the columns b, b+1, … modulo S.
        last: [G, W, D], final hidden state of each text's last token.
        now: int32, steps since the buffers were made.
        born: [G, W] int32, the step at which each text began.
        places: [G, W] int32, tokens of each text.
        active: [G, W] bool, whether it goes on.
        ended: [G, W] bool, whether a stop token came.
        ids: [G, W, S] int32, the tokens; a ring as well, and the next two.
        log_prob: [G, W, S] float32, of each token under the model.
        entropy: [G, W, S] float32, of the model's distribution at each, unwarped.
    """

    prompts: tuple[jax.Array, jax.Array]
    hidden: jax.Array
    own: tuple[jax.Array, jax.Array]
    last: jax.Array
    now: jax.Array
    born: jax.Array
    places: jax.Array
    active: jax.Array
    ended: jax.Array
    ids: jax.Array
    log_prob: jax.Array
    entropy: jax.Array


class Texts(NamedTuple):
    """What the host says of the texts in the slots before each call; all [G, W].

    Attributes:
        fresh: bool, whether a new text begins here.
        starts: int32, how many of its prompt's tokens it follows.
        limits: int32, most tokens it may get.
        temperature: float32, 0 for greedy.
        keys: [G, W, 2] uint32, for its draws.
    """

    fresh: jax.Array
    starts: jax.Array
    limits: jax.Array
    temperature: jax.Array
    keys: jax.Array


@functools.partial(jax.jit, static_argnames=("config", "dtype", "slots", "width", "prompt", "new"))
def empty_slots(config: object, dtype: jnp.dtype, *, slots: int, width: int, prompt: int, new: int) -> Slots:
    """Buffers in which nothing goes on.

    Args:
        config: of the model: num_layers, num_kv_heads, head_dim, hidden_size.
        dtype: of the weights.
        slots: G.
        width: W.
        prompt: P.
        new: S.
    """
    L, K, H, D = config.num_layers, config.num_kv_heads, config.head_dim, config.hidden_size
    G, W, S = slots, width, new
    prompts, own = (jnp.zeros(shape, dtype) for shape in ((L, G, K, prompt, H), (L, G, W, K, S, H)))
    none, no = jnp.zeros((G, W), jnp.int32), jnp.zeros((G, W), bool)
    zero, real = jnp.zeros((G, W, S), jnp.int32), jnp.zeros((G, W, S), jnp.float32)
    return _spread(
        Slots(
            (prompts, jnp.zeros_like(prompts)), jnp.zeros((G, prompt, D), dtype), (own, jnp.zeros_like(own)),
            jnp.zeros((G, W, D), dtype), jnp.int32(0), none, none, no, no, zero, real, real,
        )
    )  # fmt: skip


@functools.partial(jax.jit, static_argnames=("graph",), donate_argnames=("slots",))
def fill(params: nnx.State, slots: Slots, ids: jax.Array, places: jax.Array, *, graph: nnx.GraphDef) -> Slots:
    """Reads prompts into slots, at most one for each place that rows are split over.

    Args:
        params: the model's weights.
        slots: the buffers, which are given away.
        ids: [parts, P] int32, padded on the right.
        places: [parts] int32, the slot among those of the same part; one past them for none.
        graph: the model without its weights.
    """
    with jax.default_matmul_precision("highest"):
        hidden, keys, values = nnx.merge(graph, params).read_prompts(ids, P(*RULES.rows))
    parts = ids.shape[0]

    def put(buffer: jax.Array, new: jax.Array, axis: int) -> jax.Array:
        """Each part writes into its own slots only, so nothing travels between devices."""
        shape = buffer.shape
        own = buffer.reshape(*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :])
        written = jax.vmap(
            lambda b, n, place: b.at[(slice(None),) * axis + (place,)].set(n, mode="drop"),
            in_axes=(axis, axis, 0), out_axes=axis,
        )(own, new, places)  # fmt: skip
        return written.reshape(shape)

    prompts = tuple(put(b, n, 1) for b, n in zip(slots.prompts, (keys, values), strict=True))
    return _spread(slots._replace(prompts=prompts, hidden=put(slots.hidden, hidden, 0)))


@functools.partial(
    jax.jit, static_argnames=("graph", "stop_ids", "top_k", "top_p", "steps", "rounding"), donate_argnames=("slots",)
)
def decode(
    params: nnx.State,
    slots: Slots,
    texts: Texts,
    *,
    graph: nnx.GraphDef,
    stop_ids: tuple[int, ...],
    top_k: int | None,
    top_p: float,
    steps: int,
    rounding: Rounding,
) -> Slots:
    """Gives every active text up to `steps` tokens; ends early when none is active.

    Args:
        params: the model's weights.
        slots: the buffers, which are given away.
        texts: what the host says of the texts.
        graph: the model without its weights.
        stop_ids: tokens that end a text; they are not kept.
        top_k: see `warp`; None where every text is greedy.
        top_p: see `warp`.
        steps: most tokens of this call.
        rounding: of the logits from which everything is taken.
    """
    model = nnx.merge(graph, params)
    rows = P(*RULES.rows)
    with jax.default_matmul_precision("highest"):
        head = model.head_kernel()
        first = jnp.take_along_axis(slots.hidden, jnp.maximum(texts.starts - 1, 0)[:, :, None], axis=1)
        new = texts.fresh[None, :, :, None, None, None]
        slots = slots._replace(
            own=tuple(jnp.where(new, jnp.zeros_like(x), x) for x in slots.own),  # what is masked must still be finite
            last=jnp.where(texts.fresh[:, :, None], first, slots.last),
            born=jnp.where(texts.fresh, slots.now, slots.born),
            places=jnp.where(texts.fresh, 0, slots.places),
            active=slots.active | texts.fresh,
            ended=slots.ended & ~texts.fresh,
        )

        def step(carry: tuple[jax.Array, Slots]) -> tuple[jax.Array, Slots]:
            count, s = carry
            logits = jnp.einsum("gwd,dv->gwv", s.last, head, preferred_element_type=jnp.float32)
            logits = round_logits(logits, rounding)
            chosen = _choose(logits, texts, s.places, top_k, top_p)
            statistics = logit_statistics(logits, chosen)
            stopped = s.active & functools.reduce(
                jnp.logical_or, [chosen == i for i in stop_ids], jnp.zeros_like(s.active)
            )
            kept = s.active & ~stopped
            lengths = s.places + kept.astype(jnp.int32)
            column = s.now % s.ids.shape[2]
            age = (jnp.arange(s.ids.shape[2])[None, None, :] - s.born[:, :, None]) % s.ids.shape[2]
            hidden, keys, values = model.step(
                chosen, texts.starts + s.places, s.prompts, texts.starts, s.own, age < s.places[:, :, None], rows
            )
            return count + 1, s._replace(
                own=tuple(_write(b, n, column, 4) for b, n in zip(s.own, (keys, values), strict=True)),
                last=hidden,
                now=s.now + 1,
                places=lengths,
                active=kept & (lengths < texts.limits),
                ended=s.ended | stopped,
                ids=_write(s.ids, chosen, column, 2),
                log_prob=_write(s.log_prob, statistics.log_prob, column, 2),
                entropy=_write(s.entropy, -statistics.mean, column, 2),
            )

        def goes_on(carry: tuple[jax.Array, Slots]) -> jax.Array:
            return (carry[0] < steps) & jnp.any(carry[1].active)

        _, slots = jax.lax.while_loop(goes_on, step, (jnp.int32(0), _spread(slots)))
    return _spread(slots)


def _choose(logits: jax.Array, texts: Texts, places: jax.Array, top_k: int | None, top_p: float) -> jax.Array:
    greedy = largest(logits)
    if top_k is None:
        return greedy
    drawn = texts.temperature > 0
    warped = warp(logits, jnp.where(drawn, texts.temperature, 1.0), top_k=top_k, top_p=top_p)
    return jnp.where(drawn, draw(warped, uniforms(texts.keys, places)), greedy)


def _write(ring: jax.Array, values: jax.Array, column: jax.Array, axis: int) -> jax.Array:
    """Values of all texts into one column; what is no text's falls into a column that its row never looks at."""
    return jax.lax.dynamic_update_slice_in_dim(ring, jnp.expand_dims(values, axis), column, axis)


def _spread(slots: Slots) -> Slots:
    """Splits the slots over the mesh's rows."""
    deep, flat = P(None, *RULES.rows), P(*RULES.rows)

    def over(x: jax.Array, spec: P) -> jax.Array:
        return constrain(x, P(*spec, *(None,) * (x.ndim - len(spec))))

    return Slots(
        tuple(over(x, deep) for x in slots.prompts), over(slots.hidden, flat), tuple(over(x, deep) for x in slots.own),
        over(slots.last, flat), slots.now, *(over(x, flat) for x in slots[5:]),
    )  # fmt: skip
