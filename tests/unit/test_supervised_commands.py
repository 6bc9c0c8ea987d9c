"""How the command line asks for supervised attacks: their settings, rows, training texts and what a run records."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import ClassVar

import pytest

from olmodetect_jax import sample
from olmodetect_jax.attacks.base import Group
from olmodetect_jax.attacks.ppl import Ppl
from olmodetect_jax.attacks.registry import ATTACKS, UNSUPERVISED, Settings, attack_ids
from olmodetect_jax.attacks.supervised import FSD_BASES, SETTINGS, row_id, row_ids
from olmodetect_jax.benchmark import load_tree
from olmodetect_jax.commands import inputs as reading
from olmodetect_jax.commands.inputs import attacks_that_can_run, jobs_of, read_inputs
from olmodetect_jax.commands.options import ScoreOptions, check_options
from olmodetect_jax.commands.rerun import manifest_of, options_of, require_same_training
from olmodetect_jax.commands.run_folder import join_run, records_digest
from olmodetect_jax.commands.training_texts import benchmark_texts, notes_of, training_digests, training_sets_of
from olmodetect_jax.errors import DataError, MissingFilesError, UsageError
from olmodetect_jax.protocol import PRESETS, Protocol, attacks_of, load_protocol
from tests.run_folders import MANIFEST, random_scores, write_run
from tests.stub_attacks import StubTokenizer, records

AUDITED = load_protocol()
BENCHMARK = sample.benchmark_directory()
FIELDS = ("in_domain_unit", "lodo_train", "lodo_subsets", "lodo_pool", "lodo_related", "sup_camia_classifier",
          "sup_camia_slices", "training_tokens", "mia_tuner_loss")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Learner:
    """A supervised attack as far as these commands look."""

    family: str
    setting: str
    needs_dev: ClassVar[bool] = True

    @property
    def id(self):
        return row_id("fsd_ppl" if self.family == "fsd" else self.family, self.setting)


def options(**changes):
    return dataclasses.replace(ScoreOptions(model=Path("m"), out=Path("o"), benchmark=BENCHMARK), **changes)


FSD = tuple(f"fsd_{base}" for base in FSD_BASES)


@pytest.mark.parametrize(
    ("asked", "setting", "expected"),
    [
        ("sup_camia", "in-domain", ("sup_camia",)),
        ("mia_tuner,sup_camia", "pooled,in-domain", (
            "sup_camia", "sup_camia_pooled", "mia_tuner", "mia_tuner_pooled")),
        ("fsd", "in-domain", (*FSD_BASES, *FSD)),
        ("fsd", " lodo , in-domain ", (*FSD_BASES, *FSD, *(f"{row}_lodo" for row in FSD))),
        ("mia_tuner_lodo,ppl,sup_camia", "in-domain", ("ppl", "sup_camia", "mia_tuner_lodo")),
        ("fsd_zlib_pooled", "in-domain", ("fsd_zlib_pooled",)),
        ("fsd_ppl", "in-domain", ("fsd_ppl",)),
        ("unsupervised", "lodo", UNSUPERVISED),
        ("supervised", "pooled", (*FSD_BASES, "sup_camia_pooled", "mia_tuner_pooled", *(f"{r}_pooled" for r in FSD))),
        ("all", "in-domain", (*UNSUPERVISED, "sup_camia", "mia_tuner", *FSD)),
        ("all,ppl", ",".join(SETTINGS), ATTACKS),
    ],
)  # fmt: skip
def test_families_become_rows(asked, setting, expected):
    assert attack_ids(asked, setting) == tuple(a for a in ATTACKS if a in expected) and set(expected) <= set(ATTACKS)
    assert set(attack_ids(asked, setting)) == set(expected)


def test_words_that_are_none():
    assert len(ATTACKS) == 16 + 3 * 7 == len(set(ATTACKS))
    with pytest.raises(UsageError, match="--setting: unknown value 'domain'; allowed are: in-domain, lodo, pooled$"):
        attack_ids("fsd", "lodo,domain")
    with pytest.raises(UsageError, match="--setting: none named"):
        attack_ids("ppl", " ,")
    with pytest.raises(UsageError, match="'fsd_lodo'.*self_critique, sup_camia, mia_tuner, fsd, all, unsup.*, superv"):
        attack_ids("fsd_lodo")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attacks": "ppl", "setting": "lodo"}, "--setting goes with the attacks sup_camia, mia_tuner, fsd, superv"),
        ({"attacks": "fsd_ppl", "setting": "lodo"}, "named in full, such as mia_tuner_lodo"),
        ({"attacks": "unsupervised", "setting": "pooled"}, "--setting goes with"),
        ({"attacks": "fsd", "setting": "in-domain,lodo", "texts": Path("t")}, "--setting lodo: your own texts have no"),
        ({"attacks": "sup_camia_pooled", "texts": Path("t")}, "--setting pooled: your own texts have no domains"),
    ],
)
def test_a_setting_goes_with_what_has_settings(changes, message):
    given = options(**changes, **({"benchmark": None} if "texts" in changes else {}))
    with pytest.raises(UsageError, match=message):
        check_options(given, attack_ids(given.attacks, given.setting))


def test_settings_that_are_taken():
    for asked, setting in (
        ("all", "lodo"),
        ("supervised", "pooled"),
        ("ppl,fsd", "lodo"),
        ("mia_tuner_lodo", "in-domain"),
    ):
        check_options(options(attacks=asked, setting=setting), attack_ids(asked, setting))
    own = options(attacks="all", texts=Path("t"), benchmark=None)
    check_options(own, attack_ids(own.attacks))
    assert options().attacks == "unsupervised" and options().setting == "in-domain"


# What of a run an attack learns from


def test_every_supervised_attack_gets_the_texts_of_its_setting():
    given = read_inputs(options(subsets=["novel", "code"], limit=4), None)
    attacks = [Ppl(), *(Learner(family, s) for family in ("fsd", "mia_tuner") for s in SETTINGS)]
    training = training_sets_of(attacks, given.groups, given.texts, AUDITED)
    jobs = jobs_of(attacks, given.groups, AUDITED, training)
    assert set(jobs) == {(a.id, name) for a in attacks for name in ("novel", "code")}
    assert jobs["ppl", "code"].group is given.groups["code"]

    def learnt(attack, name):
        group = jobs[attack, name].group
        assert group.records == given.groups[name].records and {r.label for r in group.dev} == {0, 1}
        return list(dict.fromkeys(r.subset for r in group.dev)), len(group.dev), group.trained_for

    everything = ["speeches", "novel", "code", "gsm8k", "mbpp"]  # though two subsets only are scored
    for attack in ("fsd_ppl", "mia_tuner"):
        assert learnt(attack, "novel") == (["novel"], 8, "novel")
        assert learnt(f"{attack}_lodo", "novel") == ([s for s in everything if s != "novel"], 32, "novel")
        assert learnt(f"{attack}_pooled", "novel") == (everything, 40, "all") == learnt(f"{attack}_pooled", "code")
    assert not notes_of(training)
    digests = training_digests(attacks, training)
    assert list(digests) == ["fsd", "fsd_lodo", "fsd_pooled", "mia_tuner", "mia_tuner_lodo", "mia_tuner_pooled"]
    assert digests["fsd_lodo"]["code"] == records_digest(jobs["fsd_ppl_lodo", "code"].group.dev)
    assert digests["fsd"]["novel"] == records_digest(given.groups["novel"].dev) != digests["fsd"]["code"]


def test_own_texts_learn_from_what_was_given_with_them():
    dev = records("one", "two", "three", "four", labels=[1, 1, 0, 0], subset="texts")
    groups = {"texts": Group(records("five", "one"), [*dev, *records("six", "seven", start=4)])}
    attacks = [Learner("fsd", "in-domain")]
    training = training_sets_of(attacks, groups, None, AUDITED)
    (job,) = jobs_of(attacks, groups, AUDITED, training).values()
    assert [r.text for r in job.group.dev] == ["two", "three", "four", "six", "seven"]
    assert notes_of(training) == ["in-domain, texts: training texts left out because they are scored too: 1"]
    assert list(training_digests(attacks, training)) == ["fsd"]


def released(root, leaves, splits=("dev", "test")):
    """A benchmark in the released layout with some leaves only."""
    tree = load_tree("olmo2")
    for subset in (*tree.subsets, *tree.ablations):
        for split in splits if subset.id in leaves else ():
            for path, label, side in tree.paths(root, subset, split=split, variant="shifted", size="1b"):
                path.parent.mkdir(parents=True, exist_ok=True)
                lines = [json.dumps({"text": f"{subset.id} {side} {split} {label} {i}"}) for i in range(3)]
                path.write_text("\n".join(lines), encoding="utf-8")
    return root


def texts_of(root, **changes):
    return benchmark_texts(options(benchmark=root, **changes), "1b", {})


def test_the_ablation_is_read_where_the_released_pools_are_asked_for_only(tmp_path):
    root = released(tmp_path, ["dclm", "gsm8k", "dpo"])
    given = read_inputs(options(benchmark=root, subsets=["dclm"], variant="shifted", limit=2), "1b")
    for family, pool in (("fsd", "benchmark"), ("sup_camia", "released")):
        protocol = dataclasses.replace(AUDITED, lodo_pool=pool)
        training = training_sets_of([Learner(family, "lodo")], given.groups, given.texts, protocol)
        (found,) = training.values()
        assert len(found.records) == 2 * (2 + 4)  # GSM8K has no shifted texts: its only ones are taken
    asked = dataclasses.replace(AUDITED, lodo_pool="released")
    with pytest.raises(DataError) as error:
        training_sets_of([Learner("fsd", "lodo")], given.groups, given.texts, asked)
    assert "--set lodo_pool=benchmark" in str(error.value)
    for side in ("member", "non-member"):
        assert f"{root}/posttraining/rlvr/{side}/dev/{side}_posttraining_rlvr_gsm8k_no_cot_dev.jsonl" in str(
            error.value
        )
    released(tmp_path, ["rlvr_gsm8k_no_cot"])
    (found,) = training_sets_of([Learner("fsd", "lodo")], given.groups, given.texts, asked).values()
    assert [r.subset for r in found.records][-4:] == ["rlvr_gsm8k_no_cot"] * 4


def test_development_texts_that_are_not_there_are_none_and_test_texts_are_an_error(tmp_path):
    root = released(tmp_path, ["dclm", "gsm8k"], ["dev"])
    texts = texts_of(root, variant="shifted")
    by_id = {s.id: s for s in texts.tree.subsets}
    assert texts.read(by_id["pes2o"], "dev") == () and len(texts.read(by_id["dclm"], "dev")) == 6
    assert texts.read(by_id["dclm"], "dev") is texts.read(by_id["dclm"], "dev")
    with pytest.raises(MissingFilesError, match="member_pretraining_dclm_shifted_test.jsonl"):
        texts.read(by_id["dclm"], "test")
    with pytest.raises(UsageError, match="--setting lodo: there are no development texts outside dclm"):
        groups = {"dclm": Group(texts.read(by_id["dclm"], "dev"), domain="dclm")}
        shutil.rmtree(root / "midtraining")
        again = benchmark_texts(options(benchmark=root, variant="shifted"), "1b", groups)
        training_sets_of([Learner("fsd", "lodo")], groups, again, AUDITED)


class Plain(StubTokenizer):
    path = Path("model/tokenizer.json")
    has_chat = False


def test_what_cannot_run_is_left_out_unless_it_is_named(monkeypatch, capsys):
    rows = [row for family in ("sup_camia", "mia_tuner") for s in SETTINGS for row in row_ids(family, s)]
    monkeypatch.setattr(reading, "build_attacks", lambda ids, _: [Learner(*_parts(i)) for i in ids if i in rows])
    settings = Settings({}, Path("f"), quiz=Path("q"))

    def running(tokenizer=Plain, protocol=AUDITED, **changes):
        given = options(limit=2, **changes)
        return [a.id for a in attacks_that_can_run(given, settings, read_inputs(given, None), tokenizer(), protocol)]

    every = ",".join(SETTINGS)
    assert running(attacks="all", setting=every) == [row_id("sup_camia", s) for s in SETTINGS]
    assert "left out: MIA-Tuner, LODO: needs a chat template, and model has none" in capsys.readouterr().err
    unaligned = dataclasses.replace(AUDITED, mia_tuner_loss="unaligned")
    assert set(running(attacks="all", setting=every, protocol=unaligned)) == set(rows)
    assert set(running(StubTokenizer, attacks="all", setting=every)) == set(rows)
    for named in ("mia_tuner", "ppl,mia_tuner_lodo"):
        with pytest.raises(UsageError, match=r"--attacks mia_tuner\w*: needs a chat template"):
            running(attacks=named)
    capsys.readouterr()
    on_dev = running(StubTokenizer, attacks="supervised", setting=every, split="dev")
    assert on_dev == ["sup_camia_lodo", "mia_tuner_lodo"]
    said = capsys.readouterr().err
    assert "Sup-CAMIA, pooled: learns from the very development texts that are to be scored" in said
    with pytest.raises(UsageError, match="--attacks sup_camia: learns from the very development texts"):
        running(StubTokenizer, attacks="sup_camia", split="dev")


def _parts(row):
    setting = next((s for s in SETTINGS[1:] if row.endswith(f"_{s}")), SETTINGS[0])
    return row.removesuffix(f"_{setting}"), setting


# What a run records


def manifest(**changes):
    return {**MANIFEST, "created_at": "now", "attacks": ["ppl"], **changes}


def test_settings_can_be_added_to_a_run_and_training_texts_cannot_change(tmp_path):
    path = tmp_path / "manifest.json"
    join_run(path, manifest())
    in_domain, lodo = {"fsd": {"novel": "a"}}, {"fsd_lodo": {"novel": "b"}, "mia_tuner_lodo": {"novel": "c"}}
    rows = {"attacks": ["fsd_ppl"], "training_records": in_domain}
    assert join_run(path, manifest(**rows))["training_records"] == in_domain
    later = join_run(path, manifest(attacks=["fsd_ppl_lodo"], training_records=lodo))
    assert later["training_records"] == {**in_domain, **lodo}
    path.write_text(json.dumps({**later, "attacks": ["fsd_ppl"]}))
    assert join_run(path, manifest(attacks=["fsd_ppl_lodo"], training_records=lodo))["attacks"] == [
        "fsd_ppl", "fsd_ppl_lodo",
    ]  # fmt: skip
    assert join_run(path, manifest(training_records={}))["training_records"] == {**in_domain, **lodo}
    for changed in ({"novel": "x"}, {"novel": "b", "code": "d"}):
        with pytest.raises(UsageError, match="holds a run with other texts; choose another --out"):
            join_run(path, manifest(training_records={"fsd_lodo": changed}))
    path.write_text(json.dumps({**later, "training_records": [1]}))
    with pytest.raises(DataError, match="training_records has another type"):
        join_run(path, manifest())


def test_a_run_is_repeated_row_by_row(tmp_path):
    rows = ["ppl", "sup_camia", "sup_camia_lodo", "fsd_min_k", "fsd_ppl_pooled"]
    facts = {"dev_records": {}, "token_budget": None, "training_records": {"fsd": {"novel": "a"}}}
    run = write_run(tmp_path, random_scores(rows), **facts)
    again = options_of(run, manifest_of(run), attacks=rows)
    assert (again.attacks, again.setting) == (",".join(rows), "in-domain")
    assert attack_ids(again.attacks, again.setting) == tuple(rows)
    require_same_training(run, manifest_of(run), {"fsd": {"novel": "a"}})
    for changed in ({"fsd": {"novel": "b"}}, {"sup_camia_lodo": {"novel": "a"}}):
        with pytest.raises(DataError, match=f"{next(iter(changed))} would learn from other texts than the run's"):
            require_same_training(run, manifest_of(run), changed)
    with pytest.raises(DataError, match="field training_records: expected an object"):
        manifest_of(write_run(tmp_path / "bad", random_scores(["ppl"]), **{**facts, "training_records": []},
                              generation={}))  # fmt: skip


# Protocol


def test_presets():
    expected = {
        "audited": ("leaf", "dev", "all", "benchmark", "questions", "plain", "aligned", 1024, "aligned"),
        "paper": ("domain", "dev", "all", "benchmark", "keep", "group_pca", "released", 1024, "aligned"),
        "release": ("leaf", "dev_and_test", "representative", "released", "keep", "plain", "released", 1024, "aligned"),
    }
    assert {p: tuple(getattr(load_protocol(p), field) for field in FIELDS) for p in PRESETS} == expected
    for field, value in (("lodo_related", "none"), ("training_tokens", "1"), ("in_domain_unit", "subset")):
        with pytest.raises(UsageError, match=f"protocol field {field}"):
            load_protocol("audited", {field: value})


def test_fields_name_every_row_they_bear_on():
    for field in load_protocol().fields():
        assert set(attacks_of(field)) <= set(ATTACKS) and len(set(attacks_of(field))) == len(attacks_of(field))
        assert f"        {field}: " in Protocol.__doc__
    rows = {s: {row for family in ("sup_camia", "mia_tuner", "fsd") for row in row_ids(family, s)} for s in SETTINGS}
    assert set(attacks_of("in_domain_unit")) == rows["in-domain"] and set(attacks_of("lodo_related")) == rows["lodo"]
    assert attacks_of("lodo_train") == ("sup_camia_lodo",)
    assert set(attacks_of("lodo_subsets")) == {"sup_camia_lodo", "sup_camia_pooled"}
    assert set(attacks_of("lodo_pool")) == {r for s in ("lodo", "pooled") for r in rows[s] if "camia" not in r}
    assert set(attacks_of("training_tokens")) == {r for s in SETTINGS for r in rows[s] if "camia" not in r}
    assert set(attacks_of("sup_camia_classifier")) == {row_id("sup_camia", s) for s in SETTINGS}
    assert {"fsd_zlib", "fsd_zlib_lodo"} < set(attacks_of("zlib_numerator"))
