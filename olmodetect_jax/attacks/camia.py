"""CAMIA: how a text's loss unfolds, and how it falls when the text is read again (CAMIA and PAC spec, section 1)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from olmodetect_jax.attacks.base import LEFT_OUT, Answers, Group, Requests, Score, ScoredText
from olmodetect_jax.attacks.camia_p_values import COMPOSITIONS, compose, directions, p_values
from olmodetect_jax.errors import DataError, UsageError, one_of
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import MEMBER, NON_MEMBER, Record, text_hash
from olmodetect_jax.requests import ScoreTokens, TokenStatistics
from olmodetect_jax.tokenization import TokenizedText, Tokenizer

ROOM = 8  # tokens of the window that the spaces between copies may take
REFERENCE, RELEASED_TUNING_REFERENCE = 150, 100  # most development non-members that others are held against
ORIGINAL_COPIES = 6  # CAMIA's own code discards the last two matches: of three copies one would be left


@dataclass(frozen=True, eq=False)
class CopiedText:
    """A text with its signals.

    Attributes:
        plain: the text by itself.
        signals: [25, 3] float64, NaN where the text has no such signal; all of them are for a text of one token.
        hole: why it has no score; None if it has one.
    """

    plain: ScoredText
    signals: np.ndarray
    hole: str | None

    @property
    def teaches(self) -> bool:
        """Whether others can learn from it."""
        return not self.hole and len(self.plain.targets) > 0


CopiedTexts = Mapping[str, CopiedText]  # by text


@dataclass(frozen=True)
class Camia:
    """Each signal becomes a p-value against non-members, turned so that members are low; all of them make one score.

    Only `score` depends on the composition: what `requests` returns serves every one of them.

    Attributes:
        composition: `edgington`, `fisher`, `george` or `pearson`.
    """

    composition: str
    id: ClassVar[str] = "camia"
    needs_dev: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.composition not in COMPOSITIONS:
            raise one_of("camia composition", self.composition, COMPOSITIONS)

    def requests(
        self, group: Group, tokenizer: Tokenizer, protocol: Protocol
    ) -> Generator[Requests, Answers, CopiedTexts]:
        """One pass over the copies of each text, whose start is the pass over the text alone (the model is causal).

        Returns (as a generator's value) the signals of every text of `group.records` and `group.dev`.

        Raises:
            UsageError: the window has no room for copies of even two tokens.
            DataError: as in `score`.
        """
        from olmodetect_jax.attacks.camia_signals import NO_SIGNALS, text_signals  # numba is slow to import

        if group.records:
            _teachers(group, protocol, bool)  # what can be known is said before the model's passes
        copies, limit = _size(protocol)
        texts = list(dict.fromkeys(r.text for r in (*group.records, *group.dev)))
        cut = [tokenizer.cut(text, limit) for text in texts]
        alone = tokenizer.encode_all(cut, protocol.window)
        repeated = tokenizer.encode_all([" ".join([text] * copies) for text in cut], protocol.window)
        asked = [_asked(a, r) for a, r in zip(alone, repeated, strict=True)]
        answers = iter((yield [request for requests in asked for request in requests]))
        whole = tokenizer.encode_all(texts, protocol.max_tokens)
        copied = {}
        for text, short, w, a, r, requests in zip(texts, cut, whole, alone, repeated, asked, strict=True):
            got = [next(answers) for _ in requests] or [TokenStatistics(*[np.zeros(0, np.float32)] * 3)]
            plain, hole = _scored(text, a, got, tokenizer)
            plain = dataclasses.replace(plain, n_tokens=w.n_tokens, truncated=short != text)
            signals = NO_SIGNALS
            if len(plain.targets) and not hole:
                signals = text_signals(plain.log_prob, a.ids, got[0].log_prob, r.ids, protocol.camia_variant)
            copied[text] = CopiedText(plain, signals, hole)
        return copied

    def score(self, group: Group, answers: CopiedTexts, protocol: Protocol) -> list[Score]:
        """One score a record, in order.

        Raises:
            DataError: a class that CAMIA learns from has too few records that can be scored (names the subset), or a
                record has no label where one is needed.
        """
        if not group.records:
            return []
        members, non_members, reference = _teachers(group, protocol, lambda text: answers[text].teaches)
        signs = directions(_signals(members, answers), _signals(non_members, answers))
        columns, against = (
            (_signals(records, answers) * signs[:, None]).reshape(len(records), -1)
            for records in (group.records, reference)
        )
        own = _own_rows(group, reference, protocol)
        released = _released_tuning(group, protocol)
        p = p_values(columns, against, "weak" if released else protocol.camia_p_value, own)
        form = protocol.camia_score
        if released:
            form = "statistic" if self.composition == "fisher" else "p_value"
        left_out = set(reference) if released else set()
        scores = []
        for record, value, row in zip(group.records, compose(p, self.composition, form), own, strict=True):
            copied = answers[record.text]
            missing = copied.hole
            if record in left_out:
                missing = f"{LEFT_OUT}one of the {len(reference)} development non-members others are held against"
            elif row >= 0 and len(reference) == 1:
                missing = "the only development non-member has no other to be held against; add more of them"
            score = copied.plain.result(value)
            if missing:
                score = dataclasses.replace(score, value=math.nan, missing=missing)
            elif not copied.teaches:
                note = "one token: the text has no signals, and every p-value is 0.5"
                score = dataclasses.replace(score, value=float(value), missing=None, note=note)
            scores.append(score)
        return scores


def _released_tuning(group: Group, protocol: Protocol) -> bool:
    """Whether the last development non-members are held against the first, as the released tuner does (1.7)."""
    return group.tuning and protocol.camia_tuning == "released"


def _size(protocol: Protocol) -> tuple[int, int]:
    """How many copies, and how many tokens of a text are read."""
    copies = max(protocol.camia_copies, ORIGINAL_COPIES if protocol.camia_variant == "original" else 0)
    limit = min(protocol.camia_max_tokens, protocol.max_tokens, (protocol.window - ROOM) // copies)
    if limit < 2:
        raise UsageError(
            f"camia: {copies} copies of a text need a window of at least {2 * copies + ROOM} tokens, and a text two "
            f"tokens; with the model's context there are window={protocol.window}, max_tokens={protocol.max_tokens}, "
            f"camia_max_tokens={protocol.camia_max_tokens}. Raise them, or leave the attack out of --attacks"
        )
    return copies, limit


def _asked(alone: TokenizedText, repeated: TokenizedText) -> list[ScoreTokens]:
    """The pass over the copies; one over the text alone too where the copies do not start with its very tokens."""
    if len(alone.ids) < 2:
        return []
    if np.array_equal(repeated.ids[: len(alone.ids)], alone.ids):
        return [ScoreTokens(repeated.ids)]
    return [ScoreTokens(repeated.ids), ScoreTokens(alone.ids)]


def _scored(
    text: str, alone: TokenizedText, answers: Sequence[TokenStatistics], tokenizer: Tokenizer
) -> tuple[ScoredText, str | None]:
    """The text by itself, from the answers to `_asked`, and why it has no score."""
    copies, own = answers[0], answers[-1]  # one and the same where the text alone was not asked for
    plain = ScoredText.of(text, alone, own, tokenizer)
    if text and not len(plain.targets):
        return plain, None  # a text of one token has no signals, but a score (1.9)
    hole = plain.result(0.0).missing
    if not hole:
        all_copies = dataclasses.replace(plain, log_prob=copies.log_prob, mean=copies.mean, variance=copies.variance)
        in_copies = all_copies.result(0.0).missing
        hole = f"in its copies: {in_copies}" if in_copies else None
    return plain, hole


def _signals(records: Sequence[Record], answers: CopiedTexts) -> np.ndarray:
    """[n, 25, 3] float64."""
    return np.stack([answers[r.text].signals for r in records])


def _teachers(
    group: Group, protocol: Protocol, teaches: Callable[[str], bool]
) -> tuple[list[Record], list[Record], list[Record]]:
    """Members and non-members whose labels say which way a signal points, and the non-members others are held against.

    Args:
        group: its development records or, where the protocol says so, the evaluated ones.
        protocol: `camia_directions` and `camia_tuning` decide.
        teaches: whether a text has signals; before that is known, whether it is empty.
    """

    def usable(records: Sequence[Record], label: int) -> list[Record]:
        return [r for r in records if r.label == label and teaches(r.text)]

    evaluated = protocol.camia_directions == "evaluated"
    labelled, kind = (group.records, "evaluated") if evaluated else (group.dev, "development")
    for record in group.records if evaluated else ():
        if record.label is None:
            raise DataError(
                f"{record}: no label, and camia_directions=evaluated learns from those of the evaluated records. Label "
                "every record, or learn from development records with --set camia_directions=dev"
            )
    members, non_members = usable(labelled, MEMBER), usable(labelled, NON_MEMBER)
    reference = usable(group.dev, NON_MEMBER)
    released = _released_tuning(group, protocol)
    size = min(RELEASED_TUNING_REFERENCE, len(reference) - 1) if released else REFERENCE
    if not released:
        reference.sort(key=lambda record: text_hash(record.text))
    for found, least, what in (
        (members, 1, f"{kind} members"),
        (non_members, 1, f"{kind} non-members"),
        (reference, 2 if released else 1, "development non-members"),
    ):
        if len(found) < least:
            raise DataError(
                f"camia: subset {group.records[0].subset}: {len(found)} {what} with a text that can be scored, and "
                f"CAMIA needs at least {least} to learn from; add some, or leave the attack out of --attacks"
            )
    return members, non_members, reference[:size]


def _own_rows(group: Group, reference: Sequence[Record], protocol: Protocol) -> np.ndarray:
    """[n]: the row of the reference that has the record's own text and is not held against it, or -1.

    The record's label has no say: under the audited protocol no score depends on it.
    """
    rows = {} if _released_tuning(group, protocol) else {r.text: i for i, r in enumerate(reference)}
    return np.array([rows.get(r.text, -1) for r in group.records])
