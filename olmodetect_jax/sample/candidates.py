"""From source documents to candidate texts: prose cut into passages, problems rendered as the benchmark has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from olmodetect_jax.sample.seeding import chance
from olmodetect_jax.sample.sources import Document

# Characters, not tokens: the tokenizer is learned from the passages, so it cannot decide where they end.
_PASSAGE_CHARS = (360, 840)
_SENTENCE_END = re.compile(r"(?<=[.!?;:”\"'’])\s+(?=[\"“‘'(]?[A-Z])")


@dataclass(frozen=True)
class Candidate:
    """One text that can become a member, a non-member or neither.

    Attributes:
        subset: id of its subset.
        id: unique within its subset.
        text: what a model is trained on or an attack scores.
        metadata: the record's other fields, as the released benchmark has them for such a text.
    """

    subset: str
    id: str
    text: str
    metadata: Mapping[str, Any]


def make_candidates(subset: str, documents: tuple[Document, ...]) -> list[Candidate]:
    """Every candidate text of one subset's documents, in the order of the documents."""
    return [candidate for document in documents for candidate in _MAKERS[subset](document)]


def _speech(document: Document) -> Iterator[Candidate]:
    metadata = {"source": document.source, "created": document.fields["year"]}
    return _passages("speeches", document, metadata | {"metadata": {"speaker": document.fields["speaker"]}})


def _chapter(document: Document) -> Iterator[Candidate]:
    return _passages("novel", document, {"source": document.source, "metadata": {"chapter": document.fields["title"]}})


def _function(document: Document) -> Iterator[Candidate]:
    yield Candidate("code", document.id, document.fields["text"], {"source": document.source})


def _gsm8k(document: Document) -> Iterator[Candidate]:
    question, answer = document.fields["question"], document.fields["answer"]
    reasoning, _, number = answer.rpartition("\n#### ")
    text = f"Question: {question}\nReasoning: {reasoning}\nAnswer: {number}"
    metadata = {"source": document.source, "metadata": {"question": question, "answer": answer}}
    yield Candidate("gsm8k", document.id, text, metadata)


def _mbpp(document: Document) -> Iterator[Candidate]:
    """One user turn (task, then its first test) and one assistant turn (the code); the marks are plain text."""
    prompt, test, code = (_clean_lines(document.fields[name]) for name in ("prompt", "test", "code"))
    messages = [{"role": "user", "content": f"{prompt}\n{test}"}, {"role": "assistant", "content": code}]
    text = "\n".join(f"<|{m['role']}|>\n{m['content']}" for m in messages)
    yield Candidate("mbpp", document.id, text, {"source": document.source, "messages": messages})


_MAKERS: dict[str, Callable[[Document], Iterator[Candidate]]] = {
    "speeches": _speech, "novel": _chapter, "code": _function, "gsm8k": _gsm8k, "mbpp": _mbpp,
}  # fmt: skip


def _clean_lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def _passages(subset: str, document: Document, metadata: Mapping[str, Any]) -> Iterator[Candidate]:
    """Runs of whole sentences, each up to a length of its own; every sentence is in exactly one passage."""
    sentences = _SENTENCE_END.split(" ".join(document.fields["text"].split()))
    number = 0
    while sentences:
        passage_id = f"{document.id}_{number:03d}"
        shortest, longest = _PASSAGE_CHARS
        limit = shortest + chance("passage", subset, passage_id) * (longest - shortest)
        taken, length = 1, len(sentences[0])
        while taken < len(sentences) and length + 1 + len(sentences[taken]) <= limit:
            length += 1 + len(sentences[taken])
            taken += 1
        yield Candidate(subset, passage_id, " ".join(sentences[:taken]), metadata)
        del sentences[:taken]
        number += 1
