"""Neighbours from local models of transformers: tiny random ones, made on the spot."""

import math
import re
import shutil
import sys

import numpy as np
import pytest

from olmodetect_jax.errors import UsageError
from olmodetect_jax.neighbours import hf_models
from olmodetect_jax.neighbours.hf_models import MaskedFiller, T5Filler, load_filler
from olmodetect_jax.neighbours.masking import COPIES, Masked, chunks, mask

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

WORDS = [f"w{i}" for i in range(70)]
SENTINELS = [f"<extra_id_{i}>" for i in range(6)]
LONG = " ".join(WORDS[i] for i in range(0, 60, 2))
TEXTS = [LONG, "w1 w2 w3", " ".join(WORDS), "a\nb  c w1 w2 " * 6 + "end"]


def fast_tokenizer(special, words, **names):
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate([*special, *words, "##x"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=names["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    extra = [token for token in special if token not in names.values()]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, extra_special_tokens=extra, **names
    )  # fmt: skip


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny-t5")
    special = ["<pad>", "</s>", "<unk>", *SENTINELS]  # with few words, so that it often writes a sentinel
    tokenizer = fast_tokenizer(special, WORDS[:4], pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    config = transformers.T5Config(
        vocab_size=len(tokenizer), d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    torch.manual_seed(0)
    transformers.T5ForConditionalGeneration(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tiny-bert")
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]", "cls_token": "[CLS]"}
    tokenizer = fast_tokenizer(list(names.values()), WORDS, **names)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=36,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.BertForMaskedLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.mark.parametrize(("name", "kind"), [("t5", T5Filler), ("bert", MaskedFiller)])
def test_fills_are_those_of_the_text_alone(request, monkeypatch, name, kind):
    monkeypatch.setattr(hf_models, "WRITTEN_TOKENS", 16)  # a random model that has not ended by then never will
    monkeypatch.setattr(hf_models, "RETRIES", 1)
    directory = request.getfixturevalue(name)
    filler = load_filler(directory)
    assert type(filler) is kind
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    first = filler.fill(TEXTS)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert [len(own) for own in first] == [COPIES] * len(TEXTS)
    assert first[1] == [TEXTS[1]] * COPIES  # nothing to replace
    assert len(set(first[0])) > 3  # some rows have been filled, each in its own way
    torch.manual_seed(8)
    assert load_filler(directory).fill(TEXTS[::-1]) == first[::-1]
    facts = filler.provenance()
    assert facts["filler"] == directory.name and facts["kind"] == name and len(facts["weights_sha256"]) == 64


def test_a_t5_fills_gaps_and_leaves_the_rest(t5, monkeypatch):
    """A random T5 rarely writes its sentinels in turn; what it writes is replaced, what is made of it is tested."""
    filler = T5Filler(t5)
    seen = []

    def write(masked):
        seen.append(masked)
        return [
            "<pad>" + "".join(f"<extra_id_{i}> new{i} " for i in range(len(m.words))) + "<extra_id_5></s>"
            for m in masked
        ]

    monkeypatch.setattr(filler, "_write", write)
    (neighbours,) = filler.fill([LONG])
    (chunk,) = chunks([LONG], "text")
    expected = [mask(text, chunk.random) for text in chunk.rows]
    assert neighbours == [m.filled([f"new{i}" for i in range(len(m.words))]) for m in expected]
    assert seen == [expected]


def test_failed_rows_are_masked_again_and_then_stay(t5, monkeypatch):
    filler, calls = T5Filler(t5), []

    def write(masked):
        """In the first round the odd rows succeed; in the others none does."""
        calls.append([m.with_sentinels for m in masked])
        good = "<extra_id_0>a<extra_id_1>b<extra_id_2>"
        return [good if len(calls) == 1 and i % 2 else "<extra_id_0> never closed" for i in range(len(masked))]

    monkeypatch.setattr(filler, "_write", write)
    (neighbours,) = filler.fill([LONG])
    assert [len(rows) for rows in calls] == [COPIES] + [COPIES // 2] * 10
    assert calls[1] != calls[0][::2]
    assert [text == LONG for text in neighbours] == [True, False] * 5
    (chunk,) = chunks([LONG], "text")  # all the gaps come from the one stream
    assert [mask(LONG, chunk.random).with_sentinels for rows in calls for _ in rows] == sum(calls, [])


def test_generation_is_asked_as_the_spec_says(t5, monkeypatch):
    filler, seen = T5Filler(t5), {}
    generate = filler._model.generate
    monkeypatch.setattr(filler._model, "generate", lambda **asked: seen.update(asked) or generate(**asked))
    masked = [Masked(("a ", " b"), ("w",)), Masked(("", " b ", " c"), ("w", "x"))]
    written = filler._write(masked)
    how = seen["generation_config"]
    assert (how.do_sample, how.temperature, how.top_k, how.top_p, how.max_length) == (True, 1.0, 50, 1.0, 150)
    assert how.eos_token_id == filler._tokenizer.convert_tokens_to_ids("<extra_id_2>")
    assert all(len(text.split("<extra_id_2>")) <= 2 for text in written)  # nothing but padding after it
    long = Masked(("w1 " * 900, " w2"), ("w",))
    filler._write([long])
    assert seen["input_ids"].shape == (1, 512)


def test_masks_become_words_and_the_rest_stays(bert):
    filler = MaskedFiller(bert)
    (neighbours,) = filler.fill([LONG])
    (chunk,) = chunks([LONG], "text")
    assert len(set(neighbours)) > 1
    for text, masked in zip(neighbours, (mask(row, chunk.random) for row in chunk.rows), strict=True):
        pattern = r"(\S+ \S+)".join(map(re.escape, masked.pieces))
        fills = re.fullmatch(pattern, text).groups()
        assert all(word in [*WORDS, "x"] for fill in fills for word in fill.split())  # no special token is drawn


def test_gaps_that_the_masked_model_cannot_fill(bert):
    filler = MaskedFiller(bert)
    head = " ".join(["w1"] * 34)
    fits, beyond = Masked((head + " ", " w3"), ("w2 w2",)), Masked((head + " w1 ", " w3"), ("w2 w2",))
    with torch.inference_mode():
        assert filler._filled(fits) != fits.filled(fits.words)
        assert filler._filled(beyond) == beyond.filled(beyond.words)  # half of it lies beyond the 36 tokens
        blank = Masked(("w1 ", " w3"), ("\n \n",))
        assert filler._filled(blank) == "w1 \n \n w3"
        spelt = filler._filled(Masked(("[MASK] w1 ", " [MASK]"), ("w2 w2",)))
    assert spelt.startswith("[MASK] w1 ") and spelt.endswith(" [MASK]") and spelt.count("[MASK]") == 2


def test_draws_follow_the_fifty_most_probable(bert):
    """The share of each word over many draws against the model's own probabilities."""
    filler, gaps, passes = MaskedFiller(bert), 30, 60
    masked = Masked(("w1 ", " w3"), (" ".join(["w2"] * gaps),))
    read = filler._tokenizer("w1" + " [MASK]" * gaps + " w3", return_tensors="pt")
    with torch.inference_mode():
        logits = filler._model(**read).logits[0, 1 : gaps + 1]
        logits[:, filler._tokenizer.all_special_ids] = -math.inf
        logits[logits < logits.topk(50).values[:, -1:]] = -math.inf
        expected = logits.softmax(-1).numpy()
        torch.manual_seed(0)
        drawn = [filler._filled(masked).split()[1:-1] for _ in range(passes)]
    names = [["##x" if name == "x" else name for name in row] for row in drawn]
    ids = np.asarray([filler._tokenizer.convert_tokens_to_ids(row) for row in names])
    assert ids.shape == (passes, gaps)
    assert all(expected[place, token] > 0 for row in ids for place, token in enumerate(row))
    share = np.bincount(ids.ravel(), minlength=expected.shape[1]) / ids.size
    assert np.abs(share - expected.mean(0)).max() < 0.02  # more than five deviations of 1,800 draws at p = 0.025


def test_what_is_no_filler_is_named(tmp_path, t5, bert):
    with pytest.raises(UsageError, match="no such directory"):
        load_filler(tmp_path / "none")
    with pytest.raises(UsageError, match="cannot be loaded"):
        load_filler(tmp_path)
    copy = copied(t5, tmp_path / "no-weights")
    (copy / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="no-weights: cannot be loaded"):
        load_filler(copy)
    (copy / "pytorch_model.bin").write_bytes(b"a pickle is not read")
    with pytest.raises(UsageError, match="no-weights: cannot be loaded"):
        load_filler(copy)
    damaged = copied(t5, tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(UsageError, match="damaged: cannot be loaded"):
        load_filler(damaged)


def test_missing_weights_are_not_invented(tmp_path, t5):
    from safetensors.torch import load_file, save_file

    copy = copied(t5, tmp_path / "half")
    weights = load_file(copy / "model.safetensors")
    del weights["decoder.final_layer_norm.weight"]
    save_file(weights, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(UsageError, match="weights are missing: decoder.final_layer_norm.weight"):
        load_filler(copy)


def test_a_tokenizer_without_what_is_needed(tmp_path, t5, bert):
    special = ["<pad>", "</s>", "<unk>"]
    plain = fast_tokenizer(special, WORDS, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    for source, says in ((t5, "no sentinel <extra_id_0>"), (bert, "mask token")):
        copy = copied(source, tmp_path / source.name)
        plain.save_pretrained(copy)
        with pytest.raises(UsageError, match=says):
            load_filler(copy)


def test_without_torch(monkeypatch, t5):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"needs torch; install it with: pip install 'olmodetect-jax\[parity\]'"):
        load_filler(t5)


def copied(source, target):
    return shutil.copytree(source, target)
