"""The sample's own tokenizer: byte-level BPE like OLMo 2's, with 4,096 entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from olmodetect_jax.errors import DataError

VOCABULARY = 4096
END_OF_TEXT, PAD = "<|endoftext|>", "<|pad|>"
_CONTEXT = 1024
# In the form of OLMo 2's. Answers end with the end-of-text token; the sample has no other to begin a chat with.
_CHAT = (
    "{{ eos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% if not (loop.last and message['role'] == 'assistant') %}{{ '\n' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
# OLMo 2's rule for what one token may span: contractions, words, up to three digits, punctuation, white space.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(texts: Iterable[str]) -> str:
    """Learns the tokenizer from texts, in any order, and returns it as the content of `tokenizer.json`.

    Nothing is put before or after a text; `<|endoftext|>` (id 0) and `<|pad|>` (id 1) are its special tokens.

    Raises:
        DataError: the texts are too few for 4,096 entries.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in (END_OF_TEXT, PAD)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sorted(texts), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise DataError(f"the texts give {tokenizer.get_vocab_size()} tokens only; {VOCABULARY} are needed")
    return tokenizer.to_str() + "\n"


def tokenizer_config() -> dict[str, object]:
    """The content of `tokenizer_config.json`, from which transformers loads the tokenizer."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": _CONTEXT,
        "bos_token": None,
        "eos_token": END_OF_TEXT,
        "pad_token": PAD,
        "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "chat_template": _CHAT,
    }


def count_tokens(tokenizer: str, texts: Sequence[str]) -> list[int]:
    """Number of tokens of each text.

    Args:
        tokenizer: content of a `tokenizer.json`.
        texts: the texts.
    """
    return [len(e.ids) for e in Tokenizer.from_str(tokenizer).encode_batch(texts)]
