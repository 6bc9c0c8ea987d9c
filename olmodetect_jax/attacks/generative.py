"""The attacks that let a model write, or need texts that were written for them: what they have in common."""

from __future__ import annotations

# Each with the prompts it fills (`attacks/prompts.py`); `sources` names where a text comes from.
PROMPTS_OF = {
    "neighborhood": (),
    "guided": ("guided", "general", "sources"),
    "dcq": ("dcq_quiz", "sources"),
    "cdd": (),
    "self_critique": ("critique",),
}
GENERATIVE = tuple(PROMPTS_OF)
