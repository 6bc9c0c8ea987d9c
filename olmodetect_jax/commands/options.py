"""What a run is made of: the options that several commands share, and their checks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from olmodetect_jax.attacks.generative import PROMPTS_OF
from olmodetect_jax.attacks.hyperparameters import NAMES, load_hyperparameters
from olmodetect_jax.attacks.supervised import IN_DOMAIN, SUPERVISED, parts_of
from olmodetect_jax.benchmark import SIZES, SPLITS, VARIANTS
from olmodetect_jax.commands.tuned import Tuned
from olmodetect_jax.errors import UsageError, one_of
from olmodetect_jax.protocol import Protocol, load_protocol

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class ScoreOptions:
    """What a run is made of; the command line's options under the same names."""

    model: Path
    out: Path
    benchmark: Path | None = None
    texts: Path | None = None
    reference: Path | None = None
    dev: Path | None = None
    attacks: str = "unsupervised"
    setting: str = IN_DOMAIN
    protocol: str = "audited"
    settings: Sequence[str] = ()
    hyperparameters: Path | None = None
    em_mia_limit: int | None = None
    generation_limit: int | None = None
    prompts: Sequence[str] = ()
    quiz: Path | None = None
    neighbours: Path | None = None
    split: str = "test"
    variant: str = "matched"
    size: str | None = None
    subsets: Sequence[str] | None = None
    limit: int | None = None
    dtype: str = "float32"
    mesh: str | None = None
    token_budget: int | None = None
    frequencies: Path | None = None
    adapters: Path | None = None


def check_options(options: ScoreOptions, attacks: Sequence[str]) -> None:
    """Refuses options that are outside their range or do not go together, before anything is read.

    Raises:
        UsageError: names the option.
    """
    check_dtype(options.dtype)
    closed = (("--size", options.size, (None, *SIZES)), ("--split", options.split, SPLITS),
              ("--variant", options.variant, VARIANTS))  # fmt: skip
    for field, value, allowed in closed:
        if value not in allowed:
            raise one_of(field, value, [a for a in allowed if a])
    if (options.benchmark is None) == (options.texts is None):
        raise UsageError("give either --benchmark DIR or --texts FILE")
    limits = (("--limit", options.limit), ("--em-mia-limit", options.em_mia_limit),
              ("--generation-limit", options.generation_limit))  # fmt: skip
    for field, number in limits:
        if number is not None and number < 1:
            raise UsageError(f"{field}: expected a positive number of records, got {number}")
    if options.token_budget is not None and options.token_budget < 1:
        raise UsageError(f"--token-budget: expected a positive number of tokens, got {options.token_budget}")
    files = (("--frequencies", options.frequencies, "dc_pdd"), ("--quiz", options.quiz, "dcq"),
             ("--neighbours", options.neighbours, "neighborhood"))  # fmt: skip
    for field, path, attack in files:
        if path is not None and attack not in attacks:
            raise UsageError(f"{field} goes with the attack {attack}")
    for name in prompt_files(options.prompts):
        users = [attack for attack, names in PROMPTS_OF.items() if name in names]
        if not set(users) & set(attacks):
            raise UsageError(f"--prompt {name} goes with the attack {' or '.join(users)}")
    words = {name.strip() for name in options.attacks.split(",")}
    if options.setting != IN_DOMAIN and not words & {*SUPERVISED, "supervised", "all"}:
        raise UsageError(
            f"--setting goes with the attacks {', '.join(SUPERVISED)}, supervised and all; a row that is named in "
            "full, such as mia_tuner_lodo, has its own"
        )
    for setting in (parts[2] for a in attacks if (parts := parts_of(a))):
        if options.texts is not None and setting != IN_DOMAIN:
            raise UsageError(f"--setting {setting}: your own texts have no domains to learn from; give --benchmark DIR")
    if options.texts is not None and options.subsets is not None:
        raise UsageError("--subsets goes with --benchmark")
    if options.subsets == []:
        raise UsageError("--subsets: none named")
    for field, path in (("--reference", options.reference), ("--dev", options.dev)):
        if options.benchmark is not None and path is not None:
            raise UsageError(f"{field} goes with --texts; a benchmark has its own")


def prompt_files(given: Sequence[str]) -> dict[str, Path]:
    """The `--prompt NAME=FILE` of the command line.

    Raises:
        UsageError: one that is not NAME=FILE, an unknown name, or one that is given twice.
    """
    files: dict[str, Path] = {}
    names = tuple(dict.fromkeys(name for names in PROMPTS_OF.values() for name in names))
    for prompt in given:
        name, separator, path = prompt.partition("=")
        if not separator or not path:
            raise UsageError(f"--prompt: expected NAME=FILE, got {prompt!r}")
        if name not in names:
            raise one_of("--prompt", name, names)
        if name in files:
            raise UsageError(f"--prompt {name}: given twice")
        files[name] = Path(path)
    return files


def choices(
    preset: str, settings: Sequence[str], model: str, tuned: Tuned | None
) -> tuple[Protocol, dict[str, float | int | str]]:
    """The protocol and the hyperparameters, after tuning's choice and the `--set NAME=VALUE` of the command line.

    Args:
        preset: name of the protocol.
        settings: as given.
        model: its name, for its published hyperparameters.
        tuned: what `olmodetect tune` chose, if that is used.

    Raises:
        UsageError: a setting that is not NAME=VALUE, or an unknown name or value.
    """
    fields = {f.name for f in dataclasses.fields(Protocol)} - {"preset"}
    of_protocol, of_attacks = {}, {}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator:
            raise UsageError(f"--set: expected NAME=VALUE, got {setting!r}")
        if name in fields:
            of_protocol[name] = value
        elif name in NAMES:
            of_attacks[name] = value
        else:
            raise one_of("--set", name, sorted(fields | set(NAMES)))
    protocol = load_protocol(preset, of_protocol)
    chosen = dict(tuned.values) if tuned else {}
    if protocol.min_k_choice == "fixed":
        chosen = {name: value for name, value in chosen.items() if name not in ("min_k", "min_k_plus_plus")}
    return protocol, load_hyperparameters(model, {**chosen, **of_attacks})


def check_dtype(dtype: str) -> str:
    """Returns `dtype` if it is one that models compute in.

    Raises:
        UsageError: it is not.
    """
    if dtype not in DTYPES:
        raise one_of("--dtype", dtype, DTYPES)
    return dtype
