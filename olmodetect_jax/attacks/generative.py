"""The attacks that let a model write, or need texts that were written for them; and all attacks that use prompts."""

from __future__ import annotations

from olmodetect_jax.attacks.supervised import SETTINGS, row_id

GENERATIVE = ("neighborhood", "guided", "dcq", "cdd", "self_critique")

# Attacks with the prompts they fill (`attacks/prompts.py`); `sources` names where a text comes from.
PROMPTS_OF = {
    "guided": ("guided", "general", "sources"),
    "dcq": ("dcq_quiz", "sources"),
    "self_critique": ("critique",),
    **{row_id("mia_tuner", setting): ("mia_tuner_question", "mia_tuner_start") for setting in SETTINGS},
}
