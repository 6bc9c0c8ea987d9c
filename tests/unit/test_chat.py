"""Chat templates: which one a model directory has, what it renders, and that it runs in a sandbox only."""

import json
import shutil

import numpy as np
import pytest

from olmodetect_jax import sample
from olmodetect_jax.chat import ChatTemplate
from olmodetect_jax.errors import UsageError
from olmodetect_jax.tokenization import Tokenizer

TURNS = ["Hi\n there", "", "<|user|>\nonce more", "ends <|endoftext|> here", "{{ 1 }} {% if %}"]


def directory(folder, config=None, template=None):
    """A model directory with the sample's tokenizer."""
    shutil.copy(sample.model_directory() / "tokenizer.json", folder)
    if config is not None:
        (folder / "tokenizer_config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def test_the_samples_turn_has_the_form_of_olmo_2():
    template = ChatTemplate.load(sample.model_directory())
    assert template.prompt("Hi\n there") == "<|endoftext|><|user|>\nHi\n there\n<|assistant|>\n"
    ids = Tokenizer(sample.model_directory()).chat_ids("Hi")
    assert ids.dtype == np.int32 and ids[0] == 0 and (ids == 0).sum() == 1


def test_ids_are_those_of_transformers():
    from transformers import PreTrainedTokenizerFast

    ours, theirs = (t(sample.model_directory()) for t in (Tokenizer, PreTrainedTokenizerFast.from_pretrained))
    assert ours.has_chat
    for content in TURNS:
        turn = [{"role": "user", "content": content}]
        expected = theirs.apply_chat_template(turn, add_generation_prompt=True, return_dict=False)
        assert ours.chat_ids(content).tolist() == expected
    whole = [{"role": r, "content": c} for r, c in (("system", "s"), ("user", "u"), ("assistant", "a"))]
    expected = "<|endoftext|><|system|>\ns\n<|user|>\nu\n<|assistant|>\na<|endoftext|>"
    assert theirs.apply_chat_template(whole, tokenize=False) == expected
    again = theirs.apply_chat_template([*whole, whole[1]], tokenize=False, add_generation_prompt=True)
    assert again == expected + "\n<|user|>\nu\n<|assistant|>\n"


def test_no_token_is_put_before_the_templates_own(tmp_path):
    """A tokenizer that begins every text with a token of its own must not begin a rendered chat with another."""
    from tokenizers import Tokenizer as FastTokenizer
    from tokenizers.processors import TemplateProcessing

    directory(tmp_path, {"bos_token": "<|pad|>", "chat_template": "{{ bos_token }}{{ messages[0].content }}"})
    fast = FastTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    fast.post_processor = TemplateProcessing(single="<|pad|> $A", special_tokens=[("<|pad|>", 1)])
    fast.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    assert tokenizer.encode("x", 9).ids[0] == 1
    assert tokenizer.chat_ids("x").tolist() == [1, *tokenizer.encode("x", 9).ids[1:]]


def test_where_a_template_is_looked_for(tmp_path):
    directory(tmp_path)
    assert ChatTemplate.load(tmp_path) is None
    own = {"bos_token": {"content": "<B>"}, "unk_token": None, "chat_template": "{{ bos_token }}{{ unk_token }}one"}
    directory(tmp_path, own)
    assert ChatTemplate.load(tmp_path).prompt("") == "<B>one"  # a token that is missing is not spelt "None"
    several = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "two{{ messages[0]['role'] }}"}]
    directory(tmp_path, {"chat_template": several})
    assert ChatTemplate.load(tmp_path).prompt("") == "twouser"
    directory(
        tmp_path, {"eos_token": "<E>", "chat_template": several}, "{{ eos_token }}three{{ add_generation_prompt }}"
    )
    found = ChatTemplate.load(tmp_path)
    assert (found.prompt(""), found.path.name) == ("<E>threeTrue", "chat_template.jinja")


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("{", "not a JSON object"),
        ("[]", "not a JSON object"),
        ({"chat_template": 3}, "chat_template: expected a text, or a list"),
        ({"chat_template": ["x"]}, "chat_template: expected a text, or a list"),
        ({"chat_template": [{"name": "tool_use", "template": "t"}]}, "none is named default"),
    ],
)
def test_a_bad_configuration_is_named(tmp_path, config, problem):
    with pytest.raises(UsageError, match=f"tokenizer_config.json: .*{problem}"):
        ChatTemplate.load(directory(tmp_path, config))
    (tmp_path / "tokenizer_config.json").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="tokenizer_config.json: cannot be read"):
        ChatTemplate.load(tmp_path)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for %}",
        "{{ 1 / 0 }}",
        "{{ raise_exception('no system turn') }}",
        "{% include 'secret' %}",
        "{{ range(1000000000) }}",
    ],
)
def test_a_template_that_fails_or_breaks_out_is_named(tmp_path, template):
    tokenizer = Tokenizer(directory(tmp_path, template=template))
    assert tokenizer.has_chat
    with pytest.raises(UsageError, match="chat_template.jinja: the chat template fails: "):
        tokenizer.chat_ids("Hi")


def test_a_base_model_has_no_chat(tmp_path):
    tokenizer = Tokenizer(directory(tmp_path))
    assert not tokenizer.has_chat
    with pytest.raises(UsageError, match=r"no chat template, so this is a base model.*add a chat_template\.jinja"):
        tokenizer.chat_ids("Hi")


@pytest.mark.parametrize(
    "template", ["", "constant", "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"]
)
def test_a_template_that_leaves_the_user_out(tmp_path, template):
    """Its answers would say nothing about the text."""
    (tmp_path / "chat_template.jinja").write_text(template)
    with pytest.raises(UsageError, match="does not write what the user says"):
        ChatTemplate.load(tmp_path).prompt("What is 2 + 2?")
