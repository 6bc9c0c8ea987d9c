"""A tokenizer of one token a character, and answers made from the ids alone."""

import hashlib

import numpy as np

from olmodetect_jax.records import Record
from olmodetect_jax.requests import (
    Continuation,
    Continuations,
    Generate,
    NextTokens,
    PredictNext,
    ScoreTargets,
    ScoreTokens,
    TargetLikelihoods,
    TokenStatistics,
)
from olmodetect_jax.tokenization import TokenizedText


class StubTokenizer:
    """Token ids are code points."""

    special_ids = frozenset({ord("^")})
    eos_id = ord("$")
    pad_id = None
    stop_ids = (ord("$"),)
    has_chat = True

    def encode(self, text, max_tokens):
        ids = np.asarray([ord(c) for c in text[:max_tokens]], np.int32)
        return TokenizedText(ids, len(text), text[:max_tokens])

    def encode_all(self, texts, max_tokens):
        return [self.encode(t, max_tokens) for t in texts]

    encode_once = encode_all

    def cut(self, text, max_tokens):
        return text[:max_tokens]

    def chat_ids(self, content):
        return self.encode(f"[{content}]", 10**6).ids

    def decode(self, ids):
        return "".join(chr(i) for i in ids if i not in self.special_ids)

    def single_token(self, text):
        return ord(text) if len(text) == 1 else None

    def token_counts(self, text, ends):
        return [min(end, len(text)) for end in ends]

    @staticmethod
    def text(ids):
        return "".join(map(chr, ids))

    @staticmethod
    def request(text):
        return ScoreTokens(np.asarray([ord(c) for c in text], np.int32))


def noise(*parts, size):
    """[size] float32 below zero, decided by the bytes given."""
    seed = int.from_bytes(hashlib.sha256(b"\0".join(parts)).digest()[:8], "big")
    return (-0.1 - 5 * np.random.default_rng(seed).random(size)).astype(np.float32)


def continuation(request, row):
    """Lower-case letters and spaces, at most `max_new` of them."""
    drawn = row - request.greedy
    start = len(request.prompt) if drawn < 0 else int(request.starts[drawn])
    seed = "greedy" if drawn < 0 else f"{request.sampling} {drawn}"
    digest = hashlib.sha256(seed.encode() + request.prompt[:start].tobytes()).digest()
    generator = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    n = int(generator.integers(1, request.max_new + 1))
    ids = generator.choice([ord(c) for c in "abcdefghij   "], n).astype(np.int32)
    log_prob = (-0.1 - generator.random(n)).astype(np.float32)
    return Continuation(ids, log_prob, generator.random(n).astype(np.float32) + np.float32(0.1), n < request.max_new)


def answer(request):
    """Causal in that the statistics at a position depend on the ids up to it."""
    if isinstance(request, PredictNext):
        rows = [
            noise(b"next", p.tobytes(), request.tokens.tobytes(), size=len(request.tokens)) for p in request.prompts
        ]
        return NextTokens(np.stack(rows))
    if isinstance(request, Generate):
        return Continuations(tuple(continuation(request, row) for row in range(request.rows)))
    if isinstance(request, ScoreTokens):
        log_prob = [noise(request.ids[: t + 1].tobytes(), size=1)[0] for t in range(1, len(request.ids))]
        log_prob = np.asarray(log_prob, np.float32)
        return TokenStatistics(log_prob, log_prob / 2 - 1, np.abs(log_prob) + np.float32(0.5))
    pairs = [noise(b"after", request.prefix.tobytes(), t.tobytes(), size=2) for t in request.targets]
    first = np.asarray([p[0] for p in pairs], np.float32)
    rest = [p[1] if len(t) > 1 else np.nan for p, t in zip(pairs, request.targets, strict=True)]
    return TargetLikelihoods(first, np.asarray(rest, np.float32))


def kept_as(request):
    """The name under which the engine keeps a request's answer."""
    return request.row if isinstance(request, ScoreTargets) else request.digest


def records(*texts, labels=None, start=0, subset="s"):
    labels = labels or [1] * len(texts)
    return [
        Record(f"r{start + i}", text, label, subset, f"file, line {start + i + 1}")
        for i, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]


def run(attack, group, protocol, answer=answer, tokenizer=None):
    """Scores of the group, and the lists of requests that were asked."""
    steps = attack.requests(group, tokenizer or StubTokenizer(), protocol)
    asked = []
    try:
        wanted = next(steps)
        while True:
            asked.append(list(wanted))
            wanted = steps.send([answer(r) for r in asked[-1]])
    except StopIteration as stop:
        return attack.score(group, stop.value, protocol), asked
