"""An instruction model on this machine makes the options, through the project's own generation engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from olmodetect_jax.quiz.options import Options, parse_reply
from olmodetect_jax.records import text_seed
from olmodetect_jax.requests import Answer, Generate, Request, Sampling
from olmodetect_jax.tokenization import Tokenizer

REPLY_TOKENS = 4_000
OPTIONS = 4  # a reply repeats the text as often


def ask_model(
    texts: Sequence[str],
    prompt_of: Callable[[str], str],
    tokenizer: Tokenizer,
    answer: Callable[[Sequence[Request]], Mapping[bytes, Answer]],
    context: int,
) -> list[Options | str]:
    """One reply a text, drawn at temperature 1 with the text's own seed.

    Args:
        texts: to be reworded.
        prompt_of: a text to the whole request; it goes into the model's chat template if that has one.
        tokenizer: the model's.
        answer: the engine's: distinct requests in, answers by digest out.
        context: tokens the model can read at once.

    Returns:
        In the texts' order the options, incomplete ones too; or why the model cannot be asked.
    """
    asked: list[Generate | str] = [_request(text, prompt_of(text), tokenizer, context) for text in texts]
    answers = answer(list({r.digest: r for r in asked if isinstance(r, Generate)}.values()))
    return [
        parse_reply(tokenizer.decode(answers[r.digest].rows[0].ids)) if isinstance(r, Generate) else r for r in asked
    ]


def _request(text: str, prompt: str, tokenizer: Tokenizer, context: int) -> Generate | str:
    if tokenizer.has_chat:
        ids = tokenizer.chat_ids(prompt)
    else:
        whole = tokenizer.encode(prompt, context)
        if whole.truncated:
            return _no_room(whole.n_tokens, context)
        ids = whole.ids
    room = context - len(ids)
    if room < OPTIONS * tokenizer.encode(text, context).n_tokens:
        return _no_room(len(ids), context)
    return Generate(
        ids, min(REPLY_TOKENS, room), tokenizer.stop_ids, greedy=False, sampling=Sampling(text_seed(text)),
        starts=np.asarray([len(ids)], np.int32),
    )  # fmt: skip


def _no_room(prompt: int, context: int) -> str:
    return f"a request of {prompt} tokens and four options do not fit the model's context of {context} tokens"
