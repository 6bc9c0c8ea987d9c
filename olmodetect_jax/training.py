"""Requests to train something small beside a frozen model, and their answer. Plain data, no jax.

What is trained is named by what decides it: the texts in their order, the recipe and the model. Two attacks that ask
for the same training share the adapter.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class LoraRecipe:
    """How FSD fine-tunes (supervised spec, 1.2): AdamW under a cosine without warm-up.

    Attributes:
        rank: r of the update.
        alpha: the update is scaled by alpha / rank.
        dropout: of the branch's input.
        targets: linear maps of each layer that get an update, in the order in which their start is drawn.
        learning_rate: of the first step.
        weight_decay: decoupled, on both matrices.
        clip: largest global norm of the gradient.
        epochs: times each text is seen.
        batch: texts a step, the last of an epoch may have fewer.
        seed: of the start and of dropout; the order of epoch e has seed + e.
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.05
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    clip: float = 1.0
    epochs: int = 3
    batch: int = 8
    seed: int = 42

    def __post_init__(self) -> None:
        if not (self.rank >= 1 and 0 <= self.dropout < 1 and self.targets):
            raise ValueError(f"not a LoRA: {self}")
        _check_course(self.learning_rate, self.epochs, self.batch)


@dataclass(frozen=True)
class SoftPromptRecipe:
    """How MIA-Tuner trains its soft prompt (supervised spec, 2.2 to 2.6): AdamW without decay, linear to 0.

    Attributes:
        start: ids whose embeddings the prompt starts from, repeated until it is full.
        length: vectors of the prompt.
        yes: id that begins the answer to members.
        no: id that begins the answer to non-members.
        unaligned: the contrastive loss of plain texts instead of the question and its answer.
        text_weight: of a token before the answer, in the language model's loss.
        learning_rate: of the first step.
        epochs: times each pair is seen.
        batch: pairs of a member and a non-member a step, the last of an epoch may have fewer.
        seed: the order of epoch e has seed + e.
    """

    start: tuple[int, ...]
    yes: int
    no: int
    length: int = 50
    unaligned: bool = False
    text_weight: float = 0.01
    learning_rate: float = 5e-4
    epochs: int = 50
    batch: int = 8
    seed: int = 42

    def __post_init__(self) -> None:
        if not (self.start and self.length >= 1 and self.yes != self.no):
            raise ValueError(f"not a soft prompt: {self}")
        _check_course(self.learning_rate, self.epochs, self.batch)


def _check_course(learning_rate: float, epochs: int, batch: int) -> None:
    if not (learning_rate > 0 and epochs >= 1 and batch >= 1):
        raise ValueError(f"not a course of training: learning rate {learning_rate}, {epochs} epochs, batch {batch}")


@dataclass(frozen=True)
class Origin:
    """Whose training it is, and where the texts come from. No part of what the adapter is named by.

    Attributes:
        attack: `fsd` or `mia_tuner`.
        setting: `in-domain`, `lodo` or `pooled`.
        trained_for: what is scored with it: a subset, a domain, or everything.
        sources: hash of each text that is learnt from, in the request's order.
        held_out: hashes of the texts that are scored with it: training refuses to see one.
    """

    attack: str
    setting: str
    trained_for: str
    sources: tuple[bytes, ...]
    held_out: frozenset[bytes] = frozenset()


@dataclass(frozen=True, eq=False)
class TrainLora:
    """Ask for a LoRA adapter that is tuned to predict texts.

    Attributes:
        texts: [T_i] int32, T_i >= 2 each, in the order that the epochs permute.
        recipe: how.
        origin: as many sources as texts.
    """

    texts: tuple[np.ndarray, ...]
    recipe: LoraRecipe
    origin: Origin

    def __post_init__(self) -> None:
        _check_texts(self.texts, len(self.origin.sources))

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name what is trained, whatever attack it is for."""
        return _digest("train-lora", self.recipe, self.texts)


@dataclass(frozen=True, eq=False)
class TrainSoftPrompt:
    """Ask for a soft prompt that makes the model tell members from non-members.

    Attributes:
        members: [T_i] int32, T_i >= 2 each; pair j is the j-th of either class.
        non_members: as many.
        answers: where the answer begins in each of `members`, then of `non_members`; [2N] int32. Unused where the
            recipe is unaligned.
        recipe: how.
        origin: sources of the members, then of the non-members.
    """

    members: tuple[np.ndarray, ...]
    non_members: tuple[np.ndarray, ...]
    answers: np.ndarray
    recipe: SoftPromptRecipe
    origin: Origin

    def __post_init__(self) -> None:
        texts = (*self.members, *self.non_members)
        _check_texts(texts, len(self.origin.sources))
        if len(self.members) != len(self.non_members) or self.answers.shape != (len(texts),):
            raise ValueError("members, non-members and answers go together")

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that name what is trained, whatever attack it is for."""
        return _digest("train-soft-prompt", self.recipe, (*self.members, *self.non_members, self.answers))


@dataclass(frozen=True, eq=False)
class Trained:
    """Answer to either: the adapter is kept.

    Attributes:
        name: what other requests call it by.
        origin: of the request.
        losses: [steps] float32, each before its step.
        batch: texts or pairs a step.
    """

    name: str
    origin: Origin
    losses: np.ndarray
    batch: int


def _check_texts(texts: tuple[np.ndarray, ...], sources: int) -> None:
    if not texts or len(texts) != sources:
        raise ValueError(f"{len(texts)} texts from {sources} sources")
    for ids in texts:
        if ids.dtype != np.int32 or ids.ndim != 1 or len(ids) < 2:
            raise ValueError(f"expected [T >= 2] int32, got {ids.dtype} {ids.shape}")


def _digest(kind: str, recipe: LoraRecipe | SoftPromptRecipe, arrays: tuple[np.ndarray, ...]) -> bytes:
    digest = hashlib.sha256(f"{kind} {sorted(asdict(recipe).items())}\0".encode())
    for ids in arrays:
        digest.update(hashlib.sha256(ids.astype("<i4").tobytes()).digest())
    return digest.digest()
