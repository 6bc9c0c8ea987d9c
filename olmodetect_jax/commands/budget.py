"""`olmodetect budget`: how well Sup-CAMIA tells members apart, by the share of labelled texts that it learns from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from olmodetect_jax.attacks.rounds import AnswerRequests
from olmodetect_jax.attacks.sup_camia import ReadTexts, read_texts
from olmodetect_jax.attacks.supervised import SETTINGS, row_ids
from olmodetect_jax.benchmark import tree_of
from olmodetect_jax.commands.inputs import read_inputs
from olmodetect_jax.commands.open_model import OpenModel, open_tokenizer
from olmodetect_jax.commands.rerun import dev_of, manifest_of, options_of, require_same_model, require_same_texts
from olmodetect_jax.commands.run_folder import run_lock
from olmodetect_jax.errors import UsageError
from olmodetect_jax.evaluation.budget import ATTACK, Budget, Features, budget_of, write_budget
from olmodetect_jax.protocol import Protocol, load_protocol
from olmodetect_jax.records import MEMBER, NON_MEMBER, Record
from olmodetect_jax.tokenization import Tokenizer


def budget(run: Path, *, mesh: str | None = None) -> Budget:
    """Learns from growing shares of the development and test texts of a run; writes `budget.json` into its folder.

    Answers are kept with the run's own, so that the model reads no text again.

    Args:
        run: folder of a run of Sup-CAMIA on the test split of a benchmark.
        mesh: as for `score`.

    Raises:
        OlmoDetectError: the run, its model or its benchmark cannot be used.
    """
    manifest = manifest_of(run)
    rows = [row for setting in SETTINGS for row in row_ids(ATTACK, setting) if row in manifest["attacks"]]
    if not rows:
        raise UsageError(
            f"{run}: a run without Sup-CAMIA, whose label budget this is; add it with `olmodetect score --attacks "
            f"{ATTACK} --out {run}` and the run's other options"
        )
    if manifest["split"] != "test":
        raise UsageError(f"{run}: a run of the {manifest['split']} split; this needs one of the test split")
    options = options_of(run, manifest, attacks=rows, mesh=mesh)
    protocol = load_protocol(manifest["protocol"]["preset"], manifest["protocol"]["changed"])
    with run_lock(run):
        model = OpenModel(options, open_tokenizer(options.model))
        require_same_model(run, manifest, model.facts["model"]["weights_digest"])
        inputs = read_inputs(options, model.facts["model"]["size"])
        require_same_texts(run, manifest["records"], inputs.records())
        require_same_texts(run, manifest["dev_records"], dev_of(inputs.groups))
        records = {name: [*group.dev, *group.records] for name, group in inputs.groups.items()}
        texts = [r.text for rs in records.values() for r in rs]
        read = _answered(texts, model.tokenizer, model.capped(protocol), model.engine(protocol.score_dtype))
        subsets = {name: _sides(rs, read) for name, rs in records.items()}
        found = budget_of(subsets, tree_of(options.benchmark), protocol.sup_camia_classifier)
        write_budget(run, found)
    return found


def _answered(texts: Sequence[str], tokenizer: Tokenizer, protocol: Protocol, answer: AnswerRequests) -> ReadTexts:
    """The texts' features, from the engine's answers."""
    steps = read_texts(texts, tokenizer, protocol)
    requests = next(steps)
    answers = answer(requests)
    try:
        steps.send([answers[request.digest] for request in requests])
    except StopIteration as stop:
        return stop.value
    raise RuntimeError("read_texts asked twice")


def _sides(records: Sequence[Record], read: ReadTexts) -> list[Features]:
    """Features of the members and non-members of each side of a subset.

    A text counts once a class, so that it cannot be learnt from and evaluated too; one that has no features does not.
    """

    def of(side: str, label: int) -> np.ndarray:
        texts = dict.fromkeys(r.text for r in records if (r.side, r.label) == (side, label))
        found = [read[text].features for text in texts if read[text].teaches]
        return np.array(found).reshape(len(found), -1)

    return [(of(side, MEMBER), of(side, NON_MEMBER)) for side in dict.fromkeys(r.side for r in records)]
