"""Measures one case and prints one JSON object; times are ratios within the run, for machines differ and are noisy.

Example:
    python scripts/bench.py statistics --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from olmodetect_jax.scoring.statistics import sizes, token_log_probs, token_statistics


def paired_ratio(case: Callable[[], Any], base: Callable[[], Any], rounds: int) -> tuple[float, list[float]]:
    """Times two functions in turn.

    Args:
        case: what is measured; returns arrays to wait for.
        base: what it is compared with.
        rounds: pairs counted, after one warm-up.

    Returns:
        The median of the pairs' ratios case / base, and the ratios.
    """

    def seconds(function: Callable[[], Any]) -> float:
        started = time.perf_counter()
        jax.block_until_ready(function())
        return time.perf_counter() - started

    seconds(case), seconds(base)
    ratios = [seconds(case) / seconds(base) for _ in range(rounds)]
    return statistics.median(ratios), ratios


def bench_statistics(tokens: int = 1024, width: int = 1024, vocabulary: int = 100_352) -> dict[str, Any]:
    """The statistics kernel against the bare matrix product and one row sum; and its temporary memory."""
    a, b = jax.random.split(jax.random.key(0))
    hidden = jax.random.normal(a, (1, tokens, width))
    head = jax.random.normal(b, (width, vocabulary)) * 0.05
    targets = jnp.zeros((1, tokens), jnp.int32)
    tile, group = sizes(jax.devices()[0].platform, vocabulary)
    kernel = (
        jax.jit(lambda h, w, y: token_statistics(h, w, y, tile=tile, group=group))
        .lower(hidden, head, targets)
        .compile()
    )
    matmul = jax.jit(lambda h, w: jnp.sum(h[0] @ w, axis=-1)).lower(hidden, head).compile()
    ratio, ratios = paired_ratio(lambda: kernel(hidden, head, targets), lambda: matmul(hidden, head), rounds=9)
    return {
        "case": "statistics",
        "ratio_to_matmul": round(ratio, 3),
        "ratios": [round(r, 3) for r in ratios],
        "temp_bytes": kernel.memory_analysis().temp_size_in_bytes,
        "bound_bytes": int(2.5 * min(tile, tokens) * vocabulary * 4),
    }


def bench_pairs(length: int = 256, prefixes: int = 4, targets: int = 32, rounds: int = 5) -> dict[str, Any]:
    """Every prefix with every target, P = T, on the embedded model: shared prefixes, none shared, and a torch loop.

    The three do the same work: the mean log-probability of each target's tokens after each prefix. `shared_prefix` is
    what sharing saves within this engine, `batching` what the engine without sharing saves against transformers at
    batch 1, `against_transformers` both.
    """
    from flax import nnx
    from jax.sharding import PartitionSpec as P

    from conversion import load_model_directory
    from olmodetect_jax import sample
    from olmodetect_jax.engine import TOKEN_BUDGET
    from olmodetect_jax.scoring.prefix import prefill, score_after

    platform = jax.devices()[0].platform
    loaded = load_model_directory(sample.model_directory(), "float32")
    graph, params = nnx.split(loaded.module())
    tile, group = sizes(platform, loaded.config.vocab_size)
    rng = np.random.default_rng(0)
    heads, texts = (
        rng.integers(1, loaded.config.vocab_size, (n, length)).astype(np.int32) for n in (prefixes, targets)
    )
    rows = max(1, TOKEN_BUDGET.get(platform, 16_384) // length)
    batches = [jnp.asarray(texts[i : i + rows]) for i in range(0, targets, rows)]
    whole = jnp.full(rows, length, jnp.int32)
    options = {"graph": graph, "rows": P(None)}

    @jax.jit
    def from_scratch(params: nnx.State, prefix: jax.Array, ids: jax.Array) -> jax.Array:
        model = nnx.merge(graph, params)
        both = jnp.concatenate([jnp.tile(prefix[None], (len(ids), 1)), ids], axis=1)
        hidden = model.hidden(both)[:, length:]  # of the target's own tokens, which predict all of it but the first
        following = jnp.concatenate([ids[:, 1:], ids[:, :1]], axis=1)
        log_probs = token_log_probs(hidden, model.head_kernel(), following, tile=tile, group=group)
        return jnp.mean(log_probs[:, :-1], axis=1)

    def shared() -> np.ndarray:
        found = []
        for head in heads:
            prefix = prefill(params, jnp.asarray(head)[None], jnp.asarray([length], jnp.int32), **options)
            after = (
                score_after(params, prefix, ids, whole[: len(ids)], **options, tile=tile, group=group, rounding="none")
                for ids in batches
            )
            found.append(np.concatenate([rest[0] for _, rest in after]))
        return np.stack(found)

    def unshared() -> np.ndarray:
        half = [ids[i : i + max(1, rows // 2)] for ids in batches for i in range(0, len(ids), max(1, rows // 2))]
        return np.stack([np.concatenate([from_scratch(params, jnp.asarray(h), ids) for ids in half]) for h in heads])

    ratio, ratios = paired_ratio(unshared, shared, rounds)
    with tempfile.TemporaryDirectory() as folder:
        loop = _transformers_loop(Path(folder) / "model", heads, texts)
        torch_ratio, torch_ratios = paired_ratio(loop, shared, rounds)
        difference = float(np.abs(loop() - shared()).max())
    return {
        "case": "pairs",
        "prefix_tokens": length,
        "target_tokens": length,
        "shared_prefix": round(ratio, 2),
        "shared_prefix_ratios": [round(r, 2) for r in ratios],
        "batching": round(torch_ratio / ratio, 2),
        "against_transformers": round(torch_ratio, 2),
        "against_transformers_ratios": [round(r, 2) for r in torch_ratios],
        "largest_difference_to_transformers": difference,
    }


def _transformers_loop(folder: Path, heads: np.ndarray, texts: np.ndarray) -> Callable[[], np.ndarray]:
    """The same numbers from transformers, one pair at a time, nothing shared: as the released code computes them."""
    import torch

    model = _in_transformers(folder)

    def loop() -> np.ndarray:
        means = np.empty((len(heads), len(texts)), np.float32)
        with torch.inference_mode():
            for i, head in enumerate(heads):
                for j, text in enumerate(texts):
                    ids = torch.from_numpy(np.concatenate([head, text]).astype(np.int64))
                    logits = model(ids[None]).logits[0, len(head) : -1]
                    picked = torch.log_softmax(logits, -1).gather(1, ids[len(head) + 1 :, None])
                    means[i, j] = picked.mean()
        return means

    return loop


def bench_generation(
    prompts: int = 8, length: int = 256, samples: int = 50, new: int = 64, rounds: int = 3
) -> dict[str, Any]:
    """Many samples of some prompts on the embedded model, against transformers' `generate` prompt by prompt.

    Both draw every token at temperature 0.8 from the 50 most probable ones and go on to the last token.
    """
    from flax import nnx

    from conversion import load_model_directory
    from olmodetect_jax import sample
    from olmodetect_jax.generation.generator import Generator
    from olmodetect_jax.generation.store import GenerationStore
    from olmodetect_jax.models.sharding import make_mesh
    from olmodetect_jax.requests import Generate, Sampling
    from olmodetect_jax.scoring.kept import Provenance

    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **what: (
            compiled.append(what["fun_name"]) if event.endswith("backend_compile_duration") else None
        )
    )
    loaded = load_model_directory(sample.model_directory(), "float32")
    graph, params = nnx.split(loaded.module())
    heads = np.random.default_rng(0).integers(2, 4096, (prompts, length)).astype(np.int32)
    provenance = Provenance(loaded.weights_digest, "", "", "float32", "float32")
    seeds = iter(range(10**6))

    with tempfile.TemporaryDirectory() as folder:
        store = GenerationStore(Path(folder) / "store", provenance)
        generator = Generator(params, make_mesh(), store, graph=graph, config=loaded.config, kv_tokens=16_384)

        def ours() -> None:
            starts = np.full(samples, length, np.int32)
            how = [Sampling(next(seeds), 0.8, 50) for _ in heads]  # other seeds each time: nothing is in the store
            asked = [Generate(h, new, (), False, s, starts) for h, s in zip(heads, how, strict=True)]
            answers = generator.answer(asked, "none")
            assert all(len(row.ids) == new for answer in answers.values() for row in answer.rows)

        ratio, ratios = paired_ratio(_transformers_samples(Path(folder) / "model", heads, samples, new), ours, rounds)
    return {
        "case": "generation",
        "prompt_tokens": length,
        "against_transformers": round(ratio, 2),
        "against_transformers_ratios": [round(r, 2) for r in ratios],
        "programs_compiled": [name for name in compiled if name in ("jit(fill)", "jit(decode)")],
    }


def _transformers_samples(folder: Path, heads: np.ndarray, samples: int, new: int) -> Callable[[], None]:
    """The same from transformers, one prompt at a time with all its samples: as the released code asks for them."""
    import torch

    model = _in_transformers(folder)

    def loop() -> None:
        for head in heads:
            ids = torch.from_numpy(head.astype(np.int64))[None]
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=0.8,
                top_k=50,
                num_return_sequences=samples,
                min_new_tokens=new,
                max_new_tokens=new,
                pad_token_id=1,
            )

    return loop


def _in_transformers(folder: Path) -> Any:
    """The embedded model as transformers loads it."""
    import torch
    from transformers import AutoModelForCausalLM

    from conversion import load_model_directory
    from conversion.export import export_hf
    from olmodetect_jax import sample

    export_hf(load_model_directory(sample.model_directory(), "float32"), folder, "float32")
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def bench_camia(tokens: int = 1000, copies: int = 3, texts: int = 40) -> dict[str, Any]:
    """CAMIA's 75 signals: texts a second on one core, the model's passes not counted."""
    from olmodetect_jax.attacks.camia_signals import text_signals

    rng = np.random.default_rng(0)
    ids = rng.integers(0, 5000, tokens).astype(np.int32)
    log_prob = -rng.gamma(0.6, 2.5, copies * tokens - 1).astype(np.float32)
    repeated = np.tile(ids, copies)

    def signals() -> None:
        text_signals(log_prob[: tokens - 1], ids, log_prob, repeated)

    signals()  # compiles
    started = time.process_time()  # of this process, which uses one core here: other work on the machine counts less
    for _ in range(texts):
        signals()
    seconds = time.process_time() - started
    return {"case": "camia", "tokens": tokens, "texts_per_second_and_core": round(texts / seconds, 1)}


def bench_tuning(
    adapters: int = 4, texts: int = 8, length: int = 256, epochs: int = 8, rounds: int = 3
) -> dict[str, Any]:
    """Adapters of several domains trained together against one by one, on the embedded model; memory of a step at 1B.

    Memory is the compiler's, of a program that is not run: one adapter, two rows of 1,024 tokens, float32. The bound is
    the base, four times the adapter (itself, its gradient and two moments), and the activations: the temporary memory
    of the same loss under the adapter, differentiated for the embedded tokens instead.
    """
    from flax import nnx

    from conversion import load_model_directory
    from olmodetect_jax import sample
    from olmodetect_jax.models.sharding import make_mesh
    from olmodetect_jax.scoring.kept import Provenance
    from olmodetect_jax.training import LoraRecipe, Origin, TrainLora
    from olmodetect_jax.tuning.tuner import Tuner

    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, _, **what: (
            compiled.append(what["fun_name"]) if event.endswith("backend_compile_duration") else None
        )
    )
    loaded = load_model_directory(sample.model_directory(), "float32")
    graph, params = nnx.split(loaded.module())
    mesh, rng = make_mesh(), np.random.default_rng(0)
    provenance = Provenance(loaded.weights_digest, "", "", "float32", "float32")
    seeds = iter(range(10**6))

    with tempfile.TemporaryDirectory() as folder:

        def train(together: int) -> None:
            recipe = LoraRecipe(epochs=epochs, seed=next(seeds))  # another seed each time: nothing is there already
            requests = []
            for domain in range(adapters):
                ids = tuple(rng.integers(2, 4096, length).astype(np.int32) for _ in range(texts))
                sources = tuple(bytes([domain, i]) for i in range(texts))
                requests.append(TrainLora(ids, recipe, Origin("fsd", "in-domain", str(domain), sources)))
            name = f"{recipe.seed}"
            options = {"graph": graph, "token_budget": 2_048, "together": together}
            Tuner(params, mesh, Path(folder) / name, provenance, **options).answer(requests)

        train(adapters)
        programs = [name for name in compiled if name in ("jit(add_gradients)", "jit(move)")]
        ratio, ratios = paired_ratio(lambda: train(1), lambda: train(adapters), rounds)
    return {
        "case": "tuning",
        "adapters": adapters,
        "one_by_one_over_together": round(ratio, 2),
        "ratios": [round(r, 2) for r in ratios],
        "programs_compiled_for_all": programs,
        "memory_at_1b": _tuning_memory(rows=2, length=1_024),
    }


def _tuning_memory(rows: int, length: int) -> dict[str, Any]:
    """Bytes of one micro-batch's program at 1B, which is compiled but not run."""
    from flax import nnx

    from olmodetect_jax.files import config_path, load_yaml
    from olmodetect_jax.models.lora import attach
    from olmodetect_jax.models.olmo2 import Olmo2, Olmo2Config
    from olmodetect_jax.training import LoraRecipe
    from olmodetect_jax.tuning import lora
    from olmodetect_jax.tuning.losses import LoraLoss, token_losses
    from olmodetect_jax.tuning.steps import no_rows
    from olmodetect_jax.tuning.trainer import _zeros, add_gradients

    config = Olmo2Config.from_hf(load_yaml(config_path("models", "olmo2.yaml"))["sizes"]["1b"])
    abstract = nnx.eval_shape(lambda: Olmo2(config, rngs=nnx.Rngs(0)))
    graph, params = nnx.split(abstract)
    recipe = LoraRecipe()
    most = sizes("cpu", config.vocab_size)[0] // rows
    tile = max(t for t in range(1, most + 1) if length % t == 0)
    loss = LoraLoss(recipe.alpha / recipe.rank, recipe.dropout, recipe.seed, tile)
    start = lora.start(abstract, recipe, jnp.float32)
    adapter = jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *a.shape), a.dtype), start)
    total = jax.eval_shape(lambda a: _zeros(a, loss=loss), adapter)
    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *a.shape), a.dtype), no_rows(rows, length))
    number = jax.ShapeDtypeStruct((), np.uint32)
    step = add_gradients.lower(params, adapter, total, one, number, graph=graph, loss=loss).compile()

    def of_tokens(params: Any, x: jax.Array, ids: jax.Array, adapter: Any) -> jax.Array:
        model = nnx.merge(graph, params)
        if adapter:
            places = jnp.arange(rows)
            attach(model, adapter, scaling=loss.scaling, dropout=loss.dropout, key=jax.random.key(0), places=places)
        return jnp.sum(token_losses(model.hidden_of(x), model.head_kernel(), ids, tile=tile))

    def activations(adapter: Any) -> int:
        x = jax.ShapeDtypeStruct((rows, length, config.hidden_size), jnp.float32)
        ids = jax.ShapeDtypeStruct((rows, length), jnp.int32)
        program = jax.jit(jax.grad(of_tokens, argnums=1)).lower(params, x, ids, adapter).compile()
        return program.memory_analysis().temp_size_in_bytes

    def size(tree: Any) -> int:
        return sum(int(np.prod(a.shape)) * a.dtype.itemsize for a in jax.tree.leaves(tree))

    base, own = size(params), size(adapter)
    temporary, under = step.memory_analysis().temp_size_in_bytes, activations(start)
    return {
        "base": base,
        "adapter": own,
        "temporary": temporary,
        "activations": under,
        "activations_without_adapter": activations(None),
        "step_over_bound": round((base + 4 * own + temporary) / (base + 4 * own + under), 3),
    }


def bench_construction() -> dict[str, Any]:
    """The annealing on a problem of DCLM's shape, and the built-in n-gram index."""
    from bench_annealing import bench_annealing
    from bench_index import bench_index

    return {"case": "construction", "annealing": bench_annealing(), "index": bench_index()}


def bench_evaluation() -> dict[str, Any]:
    """The bootstrap of the whole evaluation, and against a scikit-learn loop."""
    from bench_evaluation import bench_evaluation as measured

    return measured()


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "statistics": bench_statistics,
    "pairs": bench_pairs,
    "generation": bench_generation,
    "camia": bench_camia,
    "construction": bench_construction,
    "evaluation": bench_evaluation,
    "tuning": bench_tuning,
}


def main() -> int:
    """Reads the case and runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=sorted(CASES), help="what to measure")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args()
    result = CASES[options.case]()
    print(json.dumps(result) if options.json else "\n".join(f"{k}: {v}" for k, v in result.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
