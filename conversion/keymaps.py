"""Which Hugging Face tensor becomes which leaf of our state: one table a family, data only.

A row whose name holds `{layer}` is L tensors on the Hugging Face side and one leaf, stacked on axis 0, on ours.
Linear weights are `[out, in]` there and `[in, out]` here, hence the transposes.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

from olmodetect_jax.errors import one_of

Shape = tuple[int, ...]


class Transform(enum.Enum):
    """What happens to a tensor on its way into a leaf."""

    NONE = "none"
    TRANSPOSE = "transpose"


@dataclass(frozen=True)
class Row:
    """One line of a key map.

    Attributes:
        name: Hugging Face tensor name, `{layer}` standing for the layer's number.
        path: path of our leaf, as in `blocks/q_proj/kernel`.
        transform: what turns one into the other; it is its own inverse.
    """

    name: str
    path: str
    transform: Transform = Transform.NONE


@dataclass(frozen=True)
class KeyMap:
    """The key map of one family.

    Attributes:
        rows: every weight of the family.
        head: name of the output head, which a tied model does not have as a weight of its own.
        embedding: name of the tensor that a tied head must equal, if the file holds one all the same.
        ignored: names of buffers (no weights) that old files hold and that are computed from config.json.
    """

    rows: tuple[Row, ...]
    head: str
    embedding: str
    ignored: tuple[str, ...] = ()

    def ignores(self, name: str) -> bool:
        """Whether a tensor of this name may be left unread."""
        return any(re.fullmatch(re.escape(p).replace(r"\{layer\}", r"\d+"), name) for p in self.ignored)


_LAYER = "model.layers.{layer}."

OLMO2 = KeyMap(
    rows=(
        Row("model.embed_tokens.weight", "embed/embedding"),
        Row(_LAYER + "self_attn.q_proj.weight", "blocks/q_proj/kernel", Transform.TRANSPOSE),
        Row(_LAYER + "self_attn.k_proj.weight", "blocks/k_proj/kernel", Transform.TRANSPOSE),
        Row(_LAYER + "self_attn.v_proj.weight", "blocks/v_proj/kernel", Transform.TRANSPOSE),
        Row(_LAYER + "self_attn.o_proj.weight", "blocks/o_proj/kernel", Transform.TRANSPOSE),
        Row(_LAYER + "self_attn.q_norm.weight", "blocks/q_norm/scale"),
        Row(_LAYER + "self_attn.k_norm.weight", "blocks/k_norm/scale"),
        Row(_LAYER + "mlp.gate_proj.weight", "blocks/gate_proj/kernel", Transform.TRANSPOSE),
        Row(_LAYER + "mlp.up_proj.weight", "blocks/up_proj/kernel", Transform.TRANSPOSE),
        Row(_LAYER + "mlp.down_proj.weight", "blocks/down_proj/kernel", Transform.TRANSPOSE),
        Row(_LAYER + "post_attention_layernorm.weight", "blocks/post_attention_norm/scale"),
        Row(_LAYER + "post_feedforward_layernorm.weight", "blocks/post_feedforward_norm/scale"),
        Row("model.norm.weight", "norm/scale"),
        Row("lm_head.weight", "head/kernel", Transform.TRANSPOSE),
    ),
    head="lm_head.weight",
    embedding="model.embed_tokens.weight",
    ignored=(_LAYER + "self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),
)

KEY_MAPS = {"olmo2": OLMO2}


def key_map(family: str) -> KeyMap:
    """The key map of a family of `olmodetect_jax.models.registry`.

    Raises:
        UsageError: the family has none.
    """
    if family not in KEY_MAPS:
        raise one_of("config.json: model_type", family, KEY_MAPS)
    return KEY_MAPS[family]


@dataclass(frozen=True)
class LeafSource:
    """The tensors of one leaf.

    Attributes:
        names: one name, or one a layer when stacked.
        stacked: whether the leaf's axis 0 counts layers.
        transposed: whether a tensor's two axes are swapped.
    """

    names: tuple[str, ...]
    stacked: bool
    transposed: bool

    def tensor_shape(self, leaf_shape: Shape) -> Shape:
        """Shape that each of the tensors must have, for a leaf of this shape."""
        shape = leaf_shape[1:] if self.stacked else leaf_shape
        return shape[::-1] if self.transposed else shape


def leaf_sources(keys: KeyMap, leaf_shapes: Mapping[str, Shape]) -> dict[str, LeafSource]:
    """Lays a key map over a model's leaves: exactly one row a leaf, one leaf a row, one leaf a tensor name.

    Args:
        keys: the family's key map.
        leaf_shapes: path to shape of every leaf of the model; a stacked leaf's axis 0 is L.

    Returns:
        Path to its tensors.

    Raises:
        ValueError: the key map and the model class disagree (a fault of this package, not of a checkpoint).
    """
    sources: dict[str, LeafSource] = {}
    names: list[str] = []
    for row in keys.rows:
        if row.path not in leaf_shapes and row.name == keys.head:
            continue  # tied: the head is the embedding
        if row.path in sources:
            raise ValueError(f"key map: two rows for {row.path}")
        if row.path not in leaf_shapes:
            raise ValueError(f"key map: {row.path} is no leaf of the model")
        stacked = "{layer}" in row.name
        count = leaf_shapes[row.path][0] if stacked else 1
        source = LeafSource(
            names=tuple(row.name.replace("{layer}", str(layer)) for layer in range(count)),
            stacked=stacked,
            transposed=row.transform is Transform.TRANSPOSE,
        )
        sources[row.path] = source
        names += source.names
    if unmapped := sorted(set(leaf_shapes) - set(sources)):
        raise ValueError(f"key map: no row for {', '.join(unmapped)}")
    if len(set(names)) != len(names):
        raise ValueError(f"key map: mapped twice: {', '.join(sorted({n for n in names if names.count(n) > 1}))}")
    return sources
