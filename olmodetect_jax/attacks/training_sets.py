"""Which development texts a supervised attack learns from (supervised spec, 3.2 to 3.4; CAMIA and PAC spec, 2.4).

No text that is scored by what is trained on a set is ever in it, and whatever is left out is reported with a count.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from olmodetect_jax.attacks.base import Group
from olmodetect_jax.attacks.supervised import IN_DOMAIN, LODO, POOLED
from olmodetect_jax.benchmark import Subset, Tree
from olmodetect_jax.errors import DataError, UsageError
from olmodetect_jax.protocol import Protocol
from olmodetect_jax.records import MEMBER, NON_MEMBER, Record, text_hash

EVERYTHING = "all"  # what a pool over all domains is trained for
_LEAST = 2  # usable texts of each class

# The question of a text in the form of GSM8K or RLVR: a few-shot prompt asks its own last. It may run over lines.
_QUESTION = re.compile(r"^Question:(.*?)(?=^(?:Question|Reasoning|Answer):|^<\||\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, eq=False)
class BenchmarkTexts:
    """What training sets are made from.

    Attributes:
        tree: the benchmark's.
        scored: subset to the records that are scored.
        read: the records of a subset's `dev` or `test` split, members first; none if there is no such dev split. It is
            asked for what a training set needs, and no more.
    """

    tree: Tree
    scored: Mapping[str, Sequence[Record]]
    read: Callable[[Subset, str], Sequence[Record]]


@dataclass(frozen=True, eq=False)
class TrainingSet:
    """What a supervised attack learns from; see `Group` for the fields of the same names.

    Attributes:
        records: usable texts, leaf by leaf, each in file order.
        trained_for: a subset, a domain (its own texts, or those of all others), or everything.
        held_out: hashes of the texts that are scored by what is trained on it.
        sides_apart: whether each side of a subset learns from its own records only.
        notes: what a user should know: which texts were left out, and why.
    """

    records: tuple[Record, ...]
    trained_for: str
    held_out: frozenset[bytes]
    sides_apart: bool
    notes: tuple[str, ...]

    def given_to(self, group: Group) -> Group:
        """A group whose attack learns from this set."""
        return dataclasses.replace(
            group, dev=self.records, trained_for=self.trained_for, held_out=self.held_out, sides_apart=self.sides_apart
        )


def question_of(text: str) -> bytes | None:
    """Hash of the question that a text in the form of GSM8K or RLVR asks; None for any other text.

    White space does not count, so that the same question is known in both forms.
    """
    if "Question:" not in text:  # so it is with most, and this is much faster
        return None
    questions = [" ".join(found[1].split()) for found in _QUESTION.finditer(text)]
    return text_hash(questions[-1]) if questions and questions[-1] else None


def trained_for(subset: Subset, setting: str, protocol: Protocol) -> str:
    """Subsets for which this is the same share a training set (of one attack's family and one setting)."""
    if setting == POOLED:
        return EVERYTHING
    return subset.id if setting == IN_DOMAIN and protocol.in_domain_unit == "leaf" else subset.domain


def training_set(
    texts: BenchmarkTexts, subset: Subset, *, family: str, setting: str, protocol: Protocol
) -> TrainingSet:
    """The training set of one subset.

    Args:
        texts: of the benchmark.
        subset: that is scored.
        family: `sup_camia`, `mia_tuner` or `fsd`.
        setting: `in-domain`, `lodo` or `pooled`.
        protocol: its fields `in_domain_unit` and `lodo_…` decide.

    Raises:
        UsageError: a domain is to be left out and there is no other.
        DataError: a class has too few usable texts; names setting, subset and class.
    """
    made_for = trained_for(subset, setting, protocol)
    judged = [s for s in texts.tree.training_order if trained_for(s, setting, protocol) == made_for]
    scored = [record for s in judged for record in texts.scored.get(s.id, ())]
    if setting == IN_DOMAIN:
        records = [record for s in judged for record in texts.read(s, "dev")]
        return _usable(records, scored, setting, made_for, [], sides_apart=protocol.in_domain_unit == "leaf")
    parts, notes = _parts(texts, subset.domain, family, setting, protocol)
    if setting == LODO:
        if not any(parts.values()):
            raise UsageError(
                f"--setting {LODO}: there are no development texts outside {subset.domain}; leaving a domain out "
                "needs at least two domains with a dev split"
            )
        parts, more = _without_related(parts, scored, subset.domain, protocol.lodo_related)
        notes = [*notes, *more]
    pool = [record for records in parts.values() for record in records]
    return _usable(pool, scored, setting, made_for, notes, sides_apart=False)


def own_training_set(group: Group, name: str) -> TrainingSet:
    """The training set of a user's own texts: the development texts given with them.

    Args:
        group: with these texts as `dev`.
        name: what it is trained for.

    Raises:
        DataError: a class has too few usable texts.
    """
    return _usable(group.dev, group.records, IN_DOMAIN, name, [], sides_apart=True)


def _parts(
    texts: BenchmarkTexts, held_out: str, family: str, setting: str, protocol: Protocol
) -> tuple[dict[str, list[Record]], list[str]]:
    """What each domain gives to a pool over several domains, in training order; and which subsets have nothing."""
    one_leaf = family == "sup_camia" and protocol.lodo_subsets == "representative"
    tests_too = family == "sup_camia" and setting == LODO and protocol.lodo_train == "dev_and_test"
    released = family != "sup_camia" and protocol.lodo_pool == "released"
    leaves = [*texts.tree.training_order, *(texts.tree.ablations if released else ())]
    parts: dict[str, list[Record]] = {}
    without = []
    for leaf in leaves:
        if (setting == LODO and leaf.domain == held_out) or (one_leaf and not leaf.representative):
            continue
        records = texts.read(leaf, "dev")
        if not records:
            without.append(leaf.id)
            continue
        if tests_too:
            records = [*records, *texts.read(leaf, "test")]
        parts.setdefault(leaf.domain, []).extend(_representative(leaf, records) if one_leaf else records)
    notes = [f"{setting}: no development texts of {', '.join(without)} to learn from"] if without else []
    return parts, notes


def _representative(leaf: Subset, records: Sequence[Record]) -> list[Record]:
    """The records of the files that stand for the domain: sides come in the order of the files."""
    sides = dict.fromkeys(r.side for r in records)
    kept = {side for side, file in zip(sides, leaf.files, strict=True) if file in leaf.representative}
    return [r for r in records if r.side in kept]


def _without_related(
    parts: Mapping[str, Sequence[Record]], scored: Iterable[Record], held_out: str, rule: str
) -> tuple[dict[str, list[Record]], list[str]]:
    """The parts of a pool under `lodo_related`, and what is to be said: near-copies leak from a domain to another."""
    asked = {question_of(record.text) for record in scored} - {None}
    shares = {d: {i for i, r in enumerate(rs) if question_of(r.text) in asked} for d, rs in parts.items()}
    related = {domain: len(found) for domain, found in shares.items() if found}
    if not related:
        return {domain: list(records) for domain, records in parts.items()}, []
    count, total = sum(related.values()), sum(map(len, parts.values()))
    what = (
        f"{LODO}, {held_out} held out: {count} of {total} training texts ask a question of its scored texts "
        f"({', '.join(f'{domain} {n}' for domain, n in related.items())})"
    )
    if rule == "keep":
        return {domain: list(records) for domain, records in parts.items()}, [f"{what}; they stay (lodo_related=keep)"]
    if rule == "questions":
        kept = {d: [r for i, r in enumerate(rs) if i not in shares[d]] for d, rs in parts.items()}
        return kept, [f"{what}; they are left out (lodo_related=questions)"]
    kept = {domain: list(records) for domain, records in parts.items() if domain not in related}
    lost = total - sum(map(len, kept.values()))
    return kept, [f"{what}; all {lost} texts of {', '.join(related)} are left out (lodo_related=domain)"]


def _usable(
    records: Sequence[Record],
    scored: Iterable[Record],
    setting: str,
    made_for: str,
    notes: Sequence[str],
    *,
    sides_apart: bool,
) -> TrainingSet:
    """A training set of the records that have a text which is not scored."""
    held_out = frozenset(text_hash(record.text) for record in scored)
    written = [r for r in records if r.text]
    kept = [r for r in written if text_hash(r.text) not in held_out]
    what = f"{setting}, {made_for}{' held out' if setting == LODO else ''}"
    left_out = (
        (len(records) - len(written), "have no text"),
        (len(written) - len(kept), "are scored too"),
    )
    notes = [*notes, *(f"{what}: training texts left out because they {why}: {n}" for n, why in left_out if n)]
    sides = dict.fromkeys(r.side for r in records) or [""]
    for side in sides if sides_apart else [None]:
        for label, name in ((MEMBER, "members"), (NON_MEMBER, "non-members")):
            count = sum(r.label == label and side in (None, r.side) for r in kept)
            if count < _LEAST:
                where = f"{what} ({side})" if side else what
                why = "".join(f"; {note}" for note in notes)
                raise DataError(
                    f"{where}: {count} usable development {name} to learn from, at least {_LEAST} are needed{why}. "
                    "Add some to the development split, raise --limit, or leave the supervised attacks out of --attacks"
                )
    return TrainingSet(tuple(kept), made_for, held_out, sides_apart, tuple(notes))
