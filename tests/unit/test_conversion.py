"""Conversion: Hugging Face directory to NNX state to Orbax and back, bit for bit and strictly."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import jax
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

import conversion.checkpoint
import conversion.digest
import conversion.safetensors_reader
from conversion import load_model_directory
from conversion.checkpoint import MANIFEST, convert, load_checkpoint, save_checkpoint
from conversion.digest import weights_digest
from conversion.directories import model_name, new_directory
from conversion.export import export_hf
from conversion.keymaps import OLMO2, KeyMap, Row, leaf_sources
from conversion.load import load_hf
from conversion.model import flatten
from conversion.safetensors_reader import INDEX, SINGLE, index_directory
from olmodetect_jax.errors import CheckpointError, UsageError
from olmodetect_jax.models.sharding import leaf_sharding, make_mesh

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
TINY = [GOLDEN / "tiny_olmo2", GOLDEN / "tiny_olmo2_gqa"]
BF16 = ml_dtypes.bfloat16

# The mapping a second time and by hand, so that an error in the key map cannot hide: our path to (name, transposed).
BY_HAND = {
    "embed/embedding": ("model.embed_tokens.weight", False),
    "norm/scale": ("model.norm.weight", False),
    "head/kernel": ("lm_head.weight", True),
    "blocks/q_proj/kernel": ("model.layers.{}.self_attn.q_proj.weight", True),
    "blocks/k_proj/kernel": ("model.layers.{}.self_attn.k_proj.weight", True),
    "blocks/v_proj/kernel": ("model.layers.{}.self_attn.v_proj.weight", True),
    "blocks/o_proj/kernel": ("model.layers.{}.self_attn.o_proj.weight", True),
    "blocks/q_norm/scale": ("model.layers.{}.self_attn.q_norm.weight", False),
    "blocks/k_norm/scale": ("model.layers.{}.self_attn.k_norm.weight", False),
    "blocks/gate_proj/kernel": ("model.layers.{}.mlp.gate_proj.weight", True),
    "blocks/up_proj/kernel": ("model.layers.{}.mlp.up_proj.weight", True),
    "blocks/down_proj/kernel": ("model.layers.{}.mlp.down_proj.weight", True),
    "blocks/post_attention_norm/scale": ("model.layers.{}.post_attention_layernorm.weight", False),
    "blocks/post_feedforward_norm/scale": ("model.layers.{}.post_feedforward_layernorm.weight", False),
}


def tensors_of(directory: Path = TINY[1]) -> dict[str, np.ndarray]:
    return load_file(directory / SINGLE)


def config_of(directory: Path = TINY[1], **changes: object) -> dict[str, object]:
    return json.loads((directory / "config.json").read_text()) | changes


def write_hf(
    directory: Path, tensors: dict[str, np.ndarray], config: dict[str, object] | None = None, shards: int = 1
) -> Path:
    """A Hugging Face directory with the tensors dealt over so many files."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config or config_of()))
    if shards == 1:
        save_file(tensors, directory / SINGLE)
        return directory
    files = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({n: t for n, t in tensors.items() if files[n] == file}, directory / file)
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return directory


def expected_leaf(path: str, tensors: dict[str, np.ndarray], layers: int) -> np.ndarray:
    name, transposed = BY_HAND[path]
    parts = [tensors[name.format(i)] for i in range(layers if "{}" in name else 1)]
    parts = [p.T if transposed else p for p in parts]
    return np.stack(parts) if "{}" in name else parts[0]


def bits(array: object) -> bytes:
    return np.asarray(array).tobytes()


def assert_same(first: dict, second: dict) -> None:
    """Two pure dicts hold the same names, dtypes, shapes and bits."""
    a, b = flatten(first), flatten(second)
    assert a.keys() == b.keys()
    for path in a:
        assert (a[path].dtype, a[path].shape) == (b[path].dtype, b[path].shape), path
        assert bits(a[path]) == bits(b[path]), path


# --- loading --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", TINY, ids=lambda d: d.name)
def test_each_leaf_is_its_tensors_bit_for_bit(directory: Path) -> None:
    model = load_model_directory(directory, "float32")
    leaves, tensors = flatten(model.params), tensors_of(directory)
    assert leaves.keys() == BY_HAND.keys()
    for path, leaf in leaves.items():
        expected = expected_leaf(path, tensors, model.config.num_layers)
        assert leaf.shape == expected.shape and leaf.dtype == expected.dtype, path
        assert bits(leaf) == expected.tobytes(), path
    assert (model.name, model.dtype, model.family.name) == (directory.name, "float32", "olmo2")


def test_many_shards_load_as_one_file_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = load_hf(TINY[1], "float32")
    monkeypatch.setattr(conversion.load, "_STRIP", 7)  # not a divisor of any axis
    many = load_hf(write_hf(tmp_path / "many", tensors_of(), shards=7), "float32")
    assert_same(one.params, many.params)
    assert one.weights_digest == many.weights_digest


@pytest.mark.parametrize("shards", [1, 3])
def test_dtypes_are_taken_tensor_by_tensor(tmp_path: Path, shards: int) -> None:
    kinds = (BF16, np.float32, np.float16)
    mixed = {n: np.ascontiguousarray(t, kinds[i % 3]) for i, (n, t) in enumerate(tensors_of().items())}
    directory = write_hf(tmp_path / "mixed", mixed, shards=shards)
    for dtype, kind in (("float32", np.float32), ("bfloat16", BF16)):
        model = load_hf(directory, dtype)
        cast = {name: tensor.astype(kind) for name, tensor in mixed.items()}  # to nearest, ties to even
        for path, leaf in flatten(model.params).items():
            assert leaf.dtype == kind
            assert bits(leaf) == expected_leaf(path, cast, model.config.num_layers).tobytes(), path


def test_reader_slices_bfloat16(tmp_path: Path) -> None:
    values = (np.arange(16, dtype=np.float32).reshape(4, 4) * 1.37 - 3).astype(BF16)
    save_file({"a": values, "b": np.ones((3,), np.float32)}, tmp_path / SINGLE)
    with index_directory(tmp_path).reader() as read:
        piece = read("a", (slice(1, 3), slice(0, 2)))
        assert piece.dtype == BF16 and bits(piece) == values[1:3, :2].tobytes()
        assert read("b", (slice(1, 2),)).dtype == np.float32


def test_module_holds_the_loaded_weights() -> None:
    model = load_hf(TINY[1], "bfloat16")
    assert_same(nnx.to_pure_dict(nnx.state(model.module())), model.params)


def test_dtype_none_is_what_config_says(tmp_path: Path) -> None:
    assert load_model_directory(TINY[0]).dtype == "float32"
    with pytest.raises(UsageError, match="torch_dtype is 'float16'; choose --dtype"):
        load_model_directory(write_hf(tmp_path / "half", tensors_of(), config_of(torch_dtype="float16")))


# --- strictness -----------------------------------------------------------------------------------------------------


def test_one_error_lists_everything(tmp_path: Path) -> None:
    tensors = tensors_of()
    del tensors["model.norm.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros((32,), np.float32)
    tensors["model.layers.1.mlp.up_proj.weight"] = np.zeros((47, 32), np.float32)
    for old in ("model.layers.0.self_attn.k_norm.weight", "model.layers.1.mlp.down_proj.weight"):
        tensors[old.replace("model.", "transformer.")] = tensors.pop(old)
    tensors["model.layers.0.mlp.gate_proj.weight"] = np.zeros((48, 32), np.int64)
    with pytest.raises(CheckpointError) as error:
        load_hf(write_hf(tmp_path / "broken", tensors), "float32")
    lines = str(error.value).splitlines()
    assert lines[0].endswith("3 missing, 3 unexpected, 1 misshaped, 1 of the wrong dtype")
    assert [line.strip() for line in lines[1:]] == [
        "missing: model.layers.0.self_attn.k_norm.weight",
        "missing: model.layers.1.mlp.down_proj.weight",
        "missing: model.norm.weight",
        "unexpected: model.layers.0.self_attn.q_proj.bias",
        "unexpected: transformer.layers.0.self_attn.k_norm.weight",
        "unexpected: transformer.layers.1.mlp.down_proj.weight",
        "misshaped: model.layers.1.mlp.up_proj.weight: the checkpoint has [47, 32], the config needs [48, 32]",
        "of the wrong dtype: model.layers.0.mlp.gate_proj.weight: the checkpoint has I64, accepted: BF16, F16, F32",
    ]


def test_all_is_checked_before_a_weight_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = tensors_of()
    del tensors["lm_head.weight"]  # the last leaf but one by name
    monkeypatch.setattr(conversion.safetensors_reader.SafetensorsIndex, "reader", None)
    with pytest.raises(CheckpointError, match="missing: lm_head.weight"):
        load_hf(write_hf(tmp_path / "broken", tensors), "float32")


@pytest.mark.parametrize(("held", "asked", "kind"), [(2, 3, "missing"), (3, 2, "unexpected")])
def test_another_number_of_layers_is_an_error(tmp_path: Path, held: int, asked: int, kind: str) -> None:
    base = tensors_of()
    tensors = {n: t for n, t in base.items() if "layers.1." not in n}
    for layer in range(1, held):
        tensors |= {n.replace("rs.0.", f"rs.{layer}."): t for n, t in base.items() if "layers.0." in n}
    with pytest.raises(CheckpointError) as error:
        load_hf(write_hf(tmp_path / "layers", tensors, config_of(num_hidden_layers=asked)), "float32")
    assert f": 11 {kind}\n" in str(error.value)
    assert str(error.value).count(f"{kind}: model.layers.2.") == 11


def test_only_listed_buffers_are_ignored(tmp_path: Path) -> None:
    buffer = np.zeros((4,), np.float32)
    harmless = {"model.layers.1.self_attn.rotary_emb.inv_freq": buffer, "model.rotary_emb.inv_freq": buffer}
    load_hf(write_hf(tmp_path / "harmless", tensors_of() | harmless), "float32")
    for name in ("model.layers.1.self_attn.rotary_emb.inv_freq2", "model.layers.x.self_attn.rotary_emb.inv_freq"):
        with pytest.raises(CheckpointError, match="1 unexpected"):
            load_hf(write_hf(tmp_path / "unknown", tensors_of() | {name: buffer}), "float32")


def test_tied_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion.load, "_COMPARE_ROWS", 7)
    tied, embedding = config_of(tie_word_embeddings=True), "model.embed_tokens.weight"
    tensors = tensors_of()
    with pytest.raises(CheckpointError, match="tie_word_embeddings, but lm_head.weight is not equal"):
        load_hf(write_hf(tmp_path / "differs", tensors, tied), "float32")
    head = tensors.pop("lm_head.weight")
    absent = load_hf(write_hf(tmp_path / "absent", tensors, tied), "float32")
    assert "head" not in absent.params
    equal = load_hf(write_hf(tmp_path / "equal", tensors | {"lm_head.weight": tensors[embedding]}, tied), "float32")
    assert equal.weights_digest == absent.weights_digest
    last = tensors[embedding].copy()
    last[-1, -1] += 1
    with pytest.raises(CheckpointError, match="is not equal"):
        load_hf(write_hf(tmp_path / "last", tensors | {"lm_head.weight": last}, tied), "float32")
    with pytest.raises(CheckpointError, match="misshaped: lm_head.weight"):
        load_hf(write_hf(tmp_path / "shape", tensors | {"lm_head.weight": head[:-1].copy()}, tied), "float32")
    with pytest.raises(CheckpointError, match="is not equal"):  # -0.0 == 0.0, but the bits differ
        zero = tensors | {embedding: np.zeros_like(head), "lm_head.weight": -np.zeros_like(head)}
        load_hf(write_hf(tmp_path / "bits", zero, tied), "float32")
    with pytest.raises(CheckpointError, match="is not equal"):
        zero = tensors | {embedding: np.zeros_like(head, np.float16), "lm_head.weight": np.zeros_like(head, BF16)}
        load_hf(write_hf(tmp_path / "dtype", zero, tied), "float32")
    with pytest.raises(CheckpointError, match="1 missing\n  missing: lm_head.weight"):
        load_hf(write_hf(tmp_path / "untied", tensors), "float32")


def test_config_faults_are_usage_errors(tmp_path: Path) -> None:
    directory = write_hf(tmp_path / "model", tensors_of(), config_of(model_type="gpt2"))
    with pytest.raises(UsageError, match="'gpt2'; allowed are: .*olmo2"):
        load_hf(directory, "float32")
    with pytest.raises(UsageError, match="--dtype: unknown value 'float16'; allowed are: float32, bfloat16"):
        load_hf(TINY[0], "float16")
    for text, words in (("{", "not a JSON file"), ("[1]", "expected a JSON object, found list")):
        (directory / "config.json").write_text(text)
        with pytest.raises(UsageError, match=f"config.json: {words}"):
            load_hf(directory, "float32")
    (directory / "config.json").unlink()
    with pytest.raises(UsageError, match="config.json: cannot be read"):
        load_hf(directory, "float32")
    with pytest.raises(UsageError, match=f"not a model directory; looked for {MANIFEST}"):
        load_model_directory(directory, "float32")


# --- files ----------------------------------------------------------------------------------------------------------


def header_end() -> int:
    return 8 + int.from_bytes((TINY[1] / SINGLE).read_bytes()[:8], "little")


SIZE = (TINY[1] / SINGLE).stat().st_size


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "truncated: expected at least 8 bytes, found 0"),
        (7, "truncated: expected at least 8 bytes, found 7"),
        (8, f"truncated: expected at least {header_end()} bytes, found 8"),
        (header_end() - 1, f"truncated: expected at least {header_end()} bytes, found {header_end() - 1}"),
        (header_end(), f"truncated: expected {SIZE} bytes, found {header_end()}"),
        (SIZE // 2, f"truncated: expected {SIZE} bytes, found {SIZE // 2}"),
        (SIZE - 1, f"truncated: expected {SIZE} bytes, found {SIZE - 1}"),
        (SIZE + 1, f"too long: expected {SIZE} bytes, found {SIZE + 1}"),
    ],
)
def test_a_file_that_is_not_whole(tmp_path: Path, size: int, words: str) -> None:
    directory = write_hf(tmp_path / "cut", tensors_of())
    (directory / SINGLE).write_bytes(((TINY[1] / SINGLE).read_bytes() + b"\0")[:size])
    with pytest.raises(CheckpointError, match=f"{SINGLE}: {words}"):
        load_hf(directory, "float32")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        (b"\x80\x02}q\x00X\x03\x00\x00\x00abc" * 9, "not a safetensors file"),
        ((2).to_bytes(8, "little") + b"[]", "header is not readable"),
        ((5).to_bytes(8, "little") + b'{"a":', "header is not readable"),
    ],
)
def test_a_file_that_is_something_else(tmp_path: Path, content: bytes, words: str) -> None:
    directory = write_hf(tmp_path / "odd", tensors_of())
    (directory / SINGLE).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{SINGLE}: .*{words}"):
        load_hf(directory, "float32")


def test_a_header_that_contradicts_itself(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}).encode()
    (tmp_path / SINGLE).write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(CheckpointError, match=f"{SINGLE}: not a readable safetensors file"):
        index_directory(tmp_path)


def test_index_and_shards_must_agree(tmp_path: Path) -> None:
    directory = write_hf(tmp_path / "model", {c: np.ones((2,), np.float32) for c in "abcd"}, shards=2)
    one, two = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    save_file({c: np.ones((2,), np.float32) for c in "abx"}, directory / one)  # c lost, b twice, x unheard of
    with pytest.raises(CheckpointError) as error:
        index_directory(directory)
    assert [line.strip() for line in str(error.value).splitlines()[1:]] == [
        f"b: in {one}, but the index says {two}",
        f"x: in {one}, but not in the index",
        f"b: in two shards, {one} and {two}",
        f"c: the index says {one}, no shard holds it",
    ]
    (directory / two).unlink()
    with pytest.raises(CheckpointError, match=f"(?s){INDEX}: names files that are not there.*missing shard: {two}"):
        index_directory(directory)


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"weight_map": {"a": "../model.safetensors"}}', '{"weight_map": 1}']
)
def test_malformed_index(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(CheckpointError, match=INDEX):
        index_directory(tmp_path)


def test_directories_without_safetensors_or_with_two_kinds(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"no weights found; looked for {SINGLE} and {INDEX}"):
        index_directory(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02.")
    with pytest.raises(UsageError, match=r"pickled weights only \(pytorch_model.bin\).*convert them to safetensors"):
        index_directory(tmp_path)
    write_hf(tmp_path, tensors_of())
    index_directory(tmp_path)  # safetensors beside pickled files are fine
    (tmp_path / INDEX).write_text("{}")
    with pytest.raises(CheckpointError, match="holds both"):
        index_directory(tmp_path)


# --- sharding -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [{"data": 2, "fsdp": 2, "tensor": 2}, {"data": 1, "fsdp": 8, "tensor": 1}], ids=str)
def test_sharded_equals_unsharded(tmp_path: Path, sizes: dict[str, int]) -> None:
    mesh = make_mesh(sizes)
    alone = load_hf(TINY[1], "float32")
    sharded = load_hf(TINY[1], "float32", lambda path, shape: leaf_sharding(mesh, path, shape))
    save_checkpoint(tmp_path / "from_mesh", sharded, TINY[1])
    restored = load_checkpoint(tmp_path / "from_mesh", None, lambda path, shape: leaf_sharding(mesh, path, shape))
    unsharded = load_checkpoint(tmp_path / "from_mesh")
    for model in (sharded, restored, unsharded):
        assert_same(model.params, alone.params)
        assert model.weights_digest == alone.weights_digest
    for path, leaf in (flatten(sharded.params) | flatten(restored.params)).items():
        assert leaf.sharding == leaf_sharding(mesh, path, leaf.shape)


def test_devices_read_only_their_part_and_replicas_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = make_mesh({"data": 2, "fsdp": 4, "tensor": 1})
    read: list[int] = []
    original = conversion.load._read_part

    def counting(*args: object) -> np.ndarray:
        part = original(*args)
        read.append(part.size)
        return part

    monkeypatch.setattr(conversion.load, "_read_part", counting)
    model = load_hf(TINY[1], "float32", lambda path, shape: leaf_sharding(mesh, path, shape))
    assert sum(read) == sum(leaf.size for leaf in flatten(model.params).values())
    assert max(read) == max(leaf.size for leaf in flatten(model.params).values()) // 4


TWO_PROCESSES = """
import sys
from pathlib import Path
import jax
jax.distributed.initialize(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))
from conversion import load_model_directory
from conversion.checkpoint import save_checkpoint
from olmodetect_jax.errors import UsageError
from olmodetect_jax.models.sharding import leaf_sharding, make_mesh
mesh = make_mesh({"data": 1, "fsdp": jax.device_count() // 2, "tensor": 2})
for directory in map(Path, sys.argv[3:5]):
    model = load_model_directory(directory, "float32", lambda path, shape: leaf_sharding(mesh, path, shape))
    print("digest", model.weights_digest)
try:
    save_checkpoint(Path(sys.argv[5]), model)
except UsageError as error:
    print("refused", error)
"""


def test_two_processes_load_what_one_does_and_only_one_may_write(tmp_path: Path) -> None:
    digest = convert(TINY[1], tmp_path / "ours", "float32").weights_digest
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    arguments = (TINY[1], tmp_path / "ours", tmp_path / "never")
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_PROCESSES, port, str(rank), *arguments],
            cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for run in runs:
            out, err = run.communicate(timeout=120)
            lines = [line for line in out.splitlines() if line.startswith(("digest", "refused"))]
            assert lines[:2] == [f"digest {digest}"] * 2, err[-2000:]
            assert lines[2].startswith("refused convert: runs in one process only")
    finally:
        for run in runs:
            run.kill()
            run.communicate()


# --- digest ---------------------------------------------------------------------------------------------------------


def test_digest_is_the_same_from_both_kinds_of_directory(tmp_path: Path) -> None:
    digests = set()
    for dtype in ("float32", "bfloat16"):
        convert(TINY[0], tmp_path / dtype, dtype)
        hf, ours = load_model_directory(TINY[0], dtype), load_model_directory(tmp_path / dtype, dtype)
        assert hf.weights_digest == ours.weights_digest == weights_digest(hf.params)
        assert (hf.name, hf.config, hf.dtype) == (ours.name, ours.config, ours.dtype)
        digests.add(hf.weights_digest)
    assert len(digests) == 2


def test_digest_sees_every_leaf_down_to_one_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    params = jax.tree.map(np.array, load_hf(TINY[1], "bfloat16").params)
    whole = weights_digest(params)
    digests = {whole}
    for leaf in flatten(params).values():
        leaf.reshape(-1).view(np.uint8)[-1] ^= 1
        digests.add(weights_digest(params))
        leaf.reshape(-1).view(np.uint8)[-1] ^= 1
    assert len(digests) == 1 + len(BY_HAND)
    swapped = params | {
        "blocks": params["blocks"] | {"q_proj": params["blocks"]["o_proj"], "o_proj": params["blocks"]["q_proj"]}
    }
    reshaped = params | {"embed": {"embedding": params["embed"]["embedding"].reshape(32, 64)}}
    recast = params | {"norm": {"scale": params["norm"]["scale"].view(np.float16)}}
    renamed = {name if name != "norm" else "norm_f": leaves for name, leaves in params.items()}
    assert len({whole, *map(weights_digest, (swapped, reshaped, recast, renamed))}) == 5
    monkeypatch.setattr(conversion.digest, "_PIECE_BYTES", 300)  # not a divisor of any leaf
    assert weights_digest(params) == whole == weights_digest(jax.tree.map(jax.numpy.asarray, params))


@pytest.mark.parametrize(
    ("path", "shape"),
    [("head/kernel", (256, 4096)), ("embed/embedding", (4096, 256)), ("blocks/q_proj/kernel", (64, 128, 128))],
)
@pytest.mark.parametrize("sizes", [{"data": 2, "fsdp": 2, "tensor": 2}, {"data": 1, "fsdp": 8, "tensor": 1}], ids=str)
def test_digest_gathers_a_piece_at_a_time(sizes: dict[str, int], path: str, shape: tuple[int, ...]) -> None:
    leaf = jax.device_put(np.zeros(shape, np.float32), leaf_sharding(make_mesh(sizes), path, shape))
    leaf = conversion.digest._whole_rows(leaf)
    program = conversion.digest._slicer(4, leaf.sharding).lower(leaf, np.int32(0)).compile()
    piece = 4 * leaf.nbytes // shape[0]
    assert program.memory_analysis().temp_size_in_bytes <= 2 * piece


# --- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("directory", TINY, ids=lambda d: d.name)
def test_checkpoint_loads_back_bit_equal(tmp_path: Path, directory: Path, dtype: str) -> None:
    written = convert(directory, tmp_path / "out", dtype)
    loaded = load_model_directory(tmp_path / "out")
    assert_same(written.params, loaded.params)
    assert (loaded.dtype, loaded.config, loaded.name) == (dtype, written.config, directory.name)
    assert sorted(os.listdir(tmp_path)) == ["out"]


def test_checkpoint_keeps_tokenizer_and_text_files(tmp_path: Path) -> None:
    source = write_hf(tmp_path / "source", tensors_of())
    texts = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
    for name in (*texts, "token_frequencies.safetensors", "pytorch_model.bin"):
        (source / name).write_bytes(name.encode() + b"\r\n")
    convert(source, tmp_path / "out", "bfloat16")
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names == {*texts, "token_frequencies.safetensors", "config.json", MANIFEST, "params"}
    for name in (*texts, "token_frequencies.safetensors", "config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert (manifest["format"], manifest["dtype"], manifest["name"]) == (1, "bfloat16", "source")


def test_checkpoint_without_a_source_and_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = load_hf(TINY[1], "float32")
    save_checkpoint(Path("deep/out"), model)
    assert load_model_directory(Path("deep/out")).config == model.config


def test_a_checkpoint_is_widened_but_never_narrowed(tmp_path: Path) -> None:
    convert(TINY[1], tmp_path / "wide", "float32")
    with pytest.raises(UsageError, match="holds float32, which is not narrowed to bfloat16.*choose --dtype float32"):
        load_checkpoint(tmp_path / "wide", "bfloat16")
    convert(TINY[1], tmp_path / "out", "bfloat16")
    narrow, wide = load_model_directory(tmp_path / "out"), load_model_directory(tmp_path / "out", "float32")
    assert (narrow.dtype, wide.dtype) == ("bfloat16", "float32") and narrow.weights_digest != wide.weights_digest
    for a, b in zip(jax.tree.leaves(narrow.params), jax.tree.leaves(wide.params), strict=True):
        assert b.dtype == np.float32 and (np.asarray(a).astype(np.float32) == np.asarray(b)).all()


def test_checkpoint_of_another_dtype_than_its_manifest_says(tmp_path: Path) -> None:
    convert(TINY[1], tmp_path / "out", "bfloat16")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    (tmp_path / "out" / MANIFEST).write_text(json.dumps(manifest | {"dtype": "float32"}))
    with pytest.raises(CheckpointError, match="14 of the wrong dtype") as error:
        load_checkpoint(tmp_path / "out")
    assert "norm/scale: the checkpoint has bfloat16, accepted: float32" in str(error.value)


def test_checkpoint_is_strict_on_names_and_shapes(tmp_path: Path) -> None:
    convert(TINY[1], tmp_path / "out", "float32")
    changes = {"tie_word_embeddings": True, "intermediate_size": 40}
    (tmp_path / "out" / "config.json").write_text(json.dumps(config_of(**changes)))
    with pytest.raises(CheckpointError, match=r"1 unexpected, 3 misshaped\n  unexpected: head/kernel"):
        load_checkpoint(tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text(json.dumps(config_of(num_hidden_layers=3)))
    with pytest.raises(CheckpointError, match=r"norm/scale: the checkpoint has \[2, 32\], the config needs \[3, 32\]"):
        load_checkpoint(tmp_path / "out")


def test_damaged_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    convert(TINY[1], out, "float32")
    manifest = json.loads((out / MANIFEST).read_text())
    other = tmp_path / "other"  # another model's weights under this manifest: Orbax itself cannot notice
    convert(
        write_hf(tmp_path / "hf", tensors_of() | {"model.norm.weight": np.ones((32,), np.float32)}), other, "float32"
    )
    files = json.loads((other / MANIFEST).read_text())["files"]
    (other / MANIFEST).write_text(json.dumps(manifest | {"files": files}))
    with pytest.raises(CheckpointError, match="damaged: the weights' digest"):
        load_checkpoint(other)
    for change in ({"format": 2}, {"dtype": "float16"}, {"weights_digest": None}):
        (out / MANIFEST).write_text(json.dumps(manifest | change))
        with pytest.raises(CheckpointError, match="not a manifest of format 1"):
            load_checkpoint(out)
    (out / MANIFEST).write_text("{")
    with pytest.raises(CheckpointError, match="not a JSON file"):
        load_checkpoint(out)
    no_files = json.dumps(manifest | {"files": {}})
    (out / MANIFEST).write_text(json.dumps(manifest))
    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="damaged: OUT_OF_RANGE"):
        patch.setattr(ocp.StandardCheckpointer, "restore", Mock(side_effect=ValueError("OUT_OF_RANGE")))
        load_checkpoint(out)
    data = next((out / "params").rglob("d/*"))
    size = data.stat().st_size
    os.truncate(data, size - 1)
    with pytest.raises(CheckpointError, match=rf"damaged: not the files .*\n  .*: expected {size}, found {size - 1}$"):
        load_checkpoint(out)
    data.unlink()
    with pytest.raises(CheckpointError, match=f": expected {size}, found no file$"):
        load_checkpoint(out)
    shutil.rmtree(out / "params")
    (out / MANIFEST).write_text(no_files)
    with pytest.raises(CheckpointError, match="not an Orbax checkpoint"):
        load_checkpoint(out)


def test_large_leaves_are_stored_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion.checkpoint, "_CHUNK_BYTES", 1024)
    model = convert(TINY[1], tmp_path / "out", "float32")
    with ocp.StandardCheckpointer() as checkpointer:
        tree = checkpointer.metadata(tmp_path / "out" / "params").item_metadata.tree
    sizes = [4 * int(np.prod(leaf.storage.chunk_shape)) for leaf in flatten(tree).values()]
    assert max(sizes) <= 1024
    assert_same(load_checkpoint(tmp_path / "out").params, model.params)


def test_existing_output_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    convert(TINY[1], tmp_path / "empty", "float32")
    for taken in (tmp_path / "empty", GOLDEN / "tiny_olmo2" / "config.json"):
        with pytest.raises(UsageError, match="exists already"):
            convert(tmp_path / "not_even_there", taken, "float32")
    with pytest.raises(UsageError, match="exists already"):
        save_checkpoint(tmp_path / "empty", load_hf(TINY[1], "float32"))


KILLED = """
import os, signal, sys
from pathlib import Path
import orbax.checkpoint as ocp
import conversion.checkpoint as checkpoint
die = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "weights":
    save = ocp.StandardCheckpointer.save
    ocp.StandardCheckpointer.save = lambda *args, **kwargs: (save(*args, **kwargs), die())
else:
    checkpoint.write_json = die
checkpoint.convert(Path(sys.argv[1]), Path(sys.argv[2]), "float32")
"""


@pytest.mark.parametrize("moment", ["weights", "manifest"])
def test_a_kill_leaves_nothing_that_loads(tmp_path: Path, moment: str) -> None:
    out = tmp_path / "out"
    run = subprocess.run(
        [sys.executable, "-c", KILLED, TINY[1], out, moment], cwd=ROOT, check=False, capture_output=True
    )
    assert run.returncode == -signal.SIGKILL, run.stderr
    left = list(tmp_path.iterdir())
    assert left == [tmp_path / ".out.unfinished"]
    for directory in (out, *left):
        with pytest.raises((UsageError, CheckpointError)):
            load_model_directory(directory, "float32")
    convert(TINY[1], out, "float32")
    assert list(tmp_path.iterdir()) == [out]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_directory(tmp_path / "out") as unfinished:
        (unfinished / "file").write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


# --- export ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", TINY, ids=lambda d: d.name)
def test_export_gives_back_the_very_file(tmp_path: Path, directory: Path) -> None:
    convert(directory, tmp_path / "ours", "float32")
    export_hf(load_model_directory(tmp_path / "ours"), tmp_path / "hf", source=directory)
    assert (tmp_path / "hf" / SINGLE).read_bytes() == (directory / SINGLE).read_bytes()
    written, original = (json.loads((d / "config.json").read_text()) for d in (tmp_path / "hf", directory))
    assert original.items() <= written.items()  # nothing lost, nothing changed
    assert load_hf(tmp_path / "hf", "float32").config == load_hf(directory, "float32").config


def test_export_in_shards(tmp_path: Path) -> None:
    limit = 20_000
    model = load_hf(TINY[1], "bfloat16")
    export_hf(model, tmp_path / "hf", max_shard_bytes=limit)
    files = sorted(p.name for p in (tmp_path / "hf").glob("*.safetensors"))
    assert files == [f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)]
    assert all(sum(t.nbytes for t in load_file(tmp_path / "hf" / f).values()) <= limit for f in files)
    index = json.loads((tmp_path / "hf" / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(leaf.nbytes for leaf in flatten(model.params).values())
    again = load_model_directory(tmp_path / "hf")  # at the torch_dtype that was written
    assert (again.dtype, again.weights_digest) == ("bfloat16", model.weights_digest)


def test_export_from_a_mesh_tied_and_widened(tmp_path: Path) -> None:
    mesh = make_mesh({"data": 2, "fsdp": 2, "tensor": 2})
    tensors = {n: t.astype(BF16) for n, t in tensors_of().items() if n != "lm_head.weight"}
    source = write_hf(tmp_path / "source", tensors, config_of(tie_word_embeddings=True, dtype="bfloat16"))
    model = load_hf(source, "bfloat16", lambda path, shape: leaf_sharding(mesh, path, shape))
    export_hf(model, tmp_path / "hf", "float32", source=source)
    assert load_model_directory(tmp_path / "hf").dtype == "float32"
    written = load_file(tmp_path / "hf" / SINGLE)
    assert written.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert bits(written[name]) == bits(tensor.astype(np.float32)), name


def test_export_refusals(tmp_path: Path) -> None:
    model = load_hf(TINY[1], "float32")
    with pytest.raises(UsageError, match="--dtype: unknown value 'float16'"):
        export_hf(model, tmp_path / "hf", "float16")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(UsageError, match="exists already"):
        export_hf(model, tmp_path / "taken")


# --- key maps and the package ---------------------------------------------------------------------------------------


def test_key_map_matches_the_model_exactly_once_each_way() -> None:
    shapes = {path: leaf.shape for path, leaf in flatten(load_hf(TINY[1], "float32").params).items()}
    names = [name for source in leaf_sources(OLMO2, shapes).values() for name in source.names]
    assert sorted(names) == sorted(tensors_of())
    with pytest.raises(ValueError, match="no row for blocks/new/scale"):
        leaf_sources(OLMO2, shapes | {"blocks/new/scale": (2, 3)})
    with pytest.raises(ValueError, match="norm/scale is no leaf of the model"):
        leaf_sources(OLMO2, {path: shape for path, shape in shapes.items() if path != "norm/scale"})
    with pytest.raises(ValueError, match="two rows for norm/scale"):
        leaf_sources(KeyMap((*OLMO2.rows, Row("x", "norm/scale")), "lm_head.weight", "e"), shapes)
    with pytest.raises(ValueError, match="mapped twice: model.norm.weight"):
        extra = Row("model.norm.weight", "extra/scale")
        leaf_sources(KeyMap((*OLMO2.rows, extra), "lm_head.weight", "e"), shapes | {"extra/scale": (3,)})


def test_model_name_sees_through_the_hub_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--allenai--OLMo-2-0425-1B" / "snapshots" / "a1847dff35"
    snapshot.mkdir(parents=True)
    assert model_name(snapshot) == "OLMo-2-0425-1B"
    assert model_name(tmp_path / "my-model") == "my-model"


def test_import_is_cheap() -> None:
    code = "import sys, conversion; sys.exit(bool({'jax', 'flax', 'orbax', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_no_torch_and_no_pickle() -> None:
    for file in (ROOT / "conversion").glob("*.py"):
        if file.name == "parity.py":  # the cross-check against PyTorch is what it is for
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            names = (
                [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "") or ""]
            )
            assert not any(n.split(".")[0] in {"torch", "pickle", "transformers"} for n in names), file
