"""What a run's attacks are made from, and what its manifest says of the files among it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from olmodetect_jax import sample
from olmodetect_jax.attacks.base import Attack
from olmodetect_jax.attacks.frequencies import FILE_NAME as TABLE
from olmodetect_jax.attacks.generative import GENERATIVE, PROMPTS_OF
from olmodetect_jax.attacks.hyperparameters import Hyperparameters
from olmodetect_jax.attacks.limited import Limited
from olmodetect_jax.attacks.prompts import Prompts
from olmodetect_jax.attacks.registry import Settings
from olmodetect_jax.commands.options import ScoreOptions, prompt_files
from olmodetect_jax.neighbours.files import NeighbourFile
from olmodetect_jax.protocol import Protocol

QUIZZES = ("quiz.jsonl", "quiz.jsonl.gz", "quiz.jsonl.zst")  # in a benchmark's folder


def settings_of(options: ScoreOptions, hyperparameters: Hyperparameters) -> Settings:
    """What the attacks of a run are made from.

    Raises:
        OlmoDetectError: a file of a prompt cannot be used.
    """
    return Settings(
        hyperparameters,
        options.frequencies or options.model / TABLE,
        em_mia_limit=options.em_mia_limit,
        generation_limit=options.generation_limit,
        prompts=Prompts.load(prompt_files(options.prompts)),
        quiz=options.quiz or _quiz_of(options.benchmark),
        neighbours=options.neighbours,
    )


def _quiz_of(benchmark: Path | None) -> Path | None:
    """The quiz that lies in a benchmark's folder, or comes with the sample's; None if there is none."""
    if benchmark is None:
        return None
    is_sample = benchmark.resolve() == sample.benchmark_directory().resolve()
    found = [benchmark / name for name in QUIZZES] + [sample.quiz_file()] * is_sample
    return next((path for path in found if path.is_file()), None)


def generation_facts(attacks: Sequence[Attack], settings: Settings) -> dict[str, Any]:
    """What the manifest says of generation and prompts in a run: of each part only where an attack uses it.

    Args:
        attacks: as made.
        settings: what they were made from.
    """
    inner = {a.id: a.attack if isinstance(a, Limited) else a for a in attacks if a.id in GENERATIVE}
    facts: dict[str, Any] = {"limit": settings.generation_limit} if inner else {}
    names = [name for attack in attacks for name in PROMPTS_OF.get(attack.id, ())]
    if names:
        known = settings.prompts.facts()
        facts["prompts"] = {name: known[name] for name in dict.fromkeys(names)}
    if "dcq" in inner:
        facts["quiz"] = {"path": str(settings.quiz.absolute()), **inner["dcq"].quizzes.facts()}
    if "neighborhood" in inner:
        facts["neighbours"] = _neighbour_facts(inner["neighborhood"].neighbours)
    return facts


def say_other_neighbours(attacks: Sequence[Attack], protocol: Protocol) -> None:
    """Says where a file's neighbours were made under other choices than the protocol's, which do not bear on them."""
    inner = (a.attack if isinstance(a, Limited) else a for a in attacks if a.id == "neighborhood")
    file = next((a.neighbours for a in inner), None)
    for made in file.facts()["provenances"] if file else ():
        for name, field in (("window", "neighborhood_window"), ("seed_rule", "neighborhood_seed")):
            if made.get(name) != getattr(protocol, field):
                print(
                    f"warning: {file.path}: neighbours made with {name} {made.get(name, 'unknown')}, not with the "
                    f"protocol's {field}={getattr(protocol, field)}",
                    file=sys.stderr,
                )


def _neighbour_facts(file: NeighbourFile | None) -> dict[str, Any]:
    """What made the neighbours: the attacked model itself, or what their file says."""
    if file is None:
        return {"backend": "the target model"}
    facts = file.facts()
    fillers = dict.fromkeys(str(made.get("filler", "an unnamed model")) for made in facts["provenances"])
    return {"path": str(file.path.absolute()), "backend": ", ".join(fillers), **facts}
