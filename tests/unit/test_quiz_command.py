"""`olmodetect quiz` with an endpoint: what is asked before texts are sent, what is kept, and when it ends."""

import json

import pytest

from olmodetect_jax.attacks.prompts import Prompts
from olmodetect_jax.commands import quiz as command
from olmodetect_jax.commands.quiz import STOP_AFTER, QuizOptions, make_quiz
from olmodetect_jax.errors import OlmoDetectError, UsageError
from olmodetect_jax.quiz.endpoint import EndpointError
from olmodetect_jax.quiz.files import load_quizzes
from olmodetect_jax.records import text_key
from tests.unit.test_quiz_endpoint import GOOD, KEY, assert_secret, chat, judge

__all__ = ["judge"]

TEXTS = ("first text", "second text", "third text", "fourth text", "fifth text")


class Command:
    """`olmodetect quiz` on the five texts; everything that was said and asked."""

    def __init__(self, folder, judge):
        self.out, self.judge, self.said = folder / "quiz.jsonl", judge, []
        self.inputs = folder / "texts.jsonl"
        self.inputs.write_text("".join(json.dumps({"id": f"r{i}", "text": t}) + "\n" for i, t in enumerate(TEXTS)))

    def run(self, *replies, answer=True, **options):
        self.judge.replies = list(replies) or [chat(GOOD)]
        environment = {"OPENAI_BASE_URL": f"http://{self.judge.host}/v1", "OPENAI_API_KEY": KEY}
        return make_quiz(
            self.inputs, self.out, QuizOptions(model="judge-1", **options), environment=environment,
            sleep=self.judge.waits.append, confirm=lambda question: self.said.append(question) or answer,
        )  # fmt: skip

    def kept(self):
        return [t for t in TEXTS if load_quizzes(self.out).of(t)] if self.out.exists() else []


@pytest.fixture
def quiz(tmp_path, judge):
    quiz = Command(tmp_path, judge)
    yield quiz
    assert_secret(*quiz.said, *(p.read_text() for p in tmp_path.rglob("*") if p.is_file()))


def test_every_text_is_asked_about_once(quiz, judge):
    made = quiz.run()
    prompts = Prompts.load()
    asked = [body["messages"][0]["content"] for body in judge.bodies()]
    assert asked == [prompts.fill("dcq_options", original_instance=t) for t in TEXTS]
    assert made.facts() == load_quizzes(quiz.out).facts() and quiz.kept() == [*TEXTS]
    own = made.of(TEXTS[0])
    assert own.generator == "judge-1" and own.created.startswith("20") and own.created.endswith("+00:00")
    before = quiz.out.read_bytes()
    quiz.run(answer=False)  # nothing is left to send, and nothing is asked
    assert len(judge.seen) == 5 and len(quiz.said) == 1 and quiz.out.read_bytes() == before


def test_it_says_what_is_sent_where_and_what_it_costs(quiz, judge):
    quiz.run(price_in=1e6, price_out=2e6)
    (question,) = quiz.said
    sent = sum(len(body["messages"][0]["content"]) for body in judge.bodies()) / 4
    received = sum(map(len, TEXTS))
    assert f"5 texts will be sent to {judge.host}, for judge-1" in question
    assert f"About {sent:,.0f} tokens in and {received:,.0f} out" in question
    assert f"that is about {sent + 2 * received:,.2f}." in question and "https" not in question


def test_no_means_that_nothing_is_sent(quiz, judge):
    with pytest.raises(OlmoDetectError, match="nothing was sent") as caught:
        quiz.run(answer=False)
    assert not judge.seen and not quiz.out.exists() and caught.value.exit_code == 1
    assert "--price-in and --price-out reckon it" in quiz.said[0]


def test_a_text_without_a_reply_is_named_and_the_rest_is_kept(quiz, judge, capsys):
    same = "A) a\nB) a\nC) c\nD) d"
    html, incomplete = (200, "<html>busy</html>"), chat("I cannot do that.")
    quiz.run(chat(GOOD), html, chat(same), incomplete, incomplete, chat(GOOD))
    err = capsys.readouterr().err
    assert quiz.kept() == [TEXTS[0], TEXTS[4]]
    for i, reason in (
        (1, f"{judge.host}: the reply is HTML"),
        (2, "options A and B are identical"),
        (3, "option A, B"),
    ):
        assert f"texts.jsonl, line {i + 1} (record 'r{i}'): {reason}" in err
    assert_secret(err)
    quiz.run()  # the three are asked again
    assert quiz.kept() == [*TEXTS] and len(judge.seen) == 6 + 3
    assert "3 texts will be sent" in quiz.said[1]


def test_several_in_a_row_without_a_reply_end_it(quiz, judge, capsys):
    with pytest.raises(EndpointError, match=f"{STOP_AFTER} texts in a row have no reply, the last because of .*HTML"):
        quiz.run(chat(GOOD), (200, "<html>"))
    assert quiz.kept() == [TEXTS[0]] and len(judge.seen) == 1 + STOP_AFTER
    assert capsys.readouterr().err.count("left out") == STOP_AFTER


def test_texts_without_a_reply_here_and_there_do_not_end_it(quiz, judge):
    html = (200, "<html>")
    quiz.run(html, html, chat(GOOD), html, html)
    assert quiz.kept() == [TEXTS[2]]


def test_replies_without_options_do_not_end_it(quiz, judge):
    quiz.run(*[chat("no")] * 8, chat(GOOD))
    assert quiz.kept() == [TEXTS[4]]


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_ends_it_and_keeps_what_is_made(quiz, judge, status, capsys):
    with pytest.raises(EndpointError, match=f"HTTP {status}, the key is not accepted") as caught:
        quiz.run(chat(GOOD), chat(GOOD), (status, json.dumps({"error": {"message": f"bad key {KEY}"}})))
    assert quiz.kept() == [*TEXTS[:2]] and len(judge.seen) == 3 and caught.value.exit_code == 1
    assert_secret(str(caught.value), capsys.readouterr().err)


def test_an_endpoint_that_goes_away_ends_it(quiz, judge, monkeypatch):
    from_endpoint = command._from_endpoint

    def closed_after_two(endpoint, todo, *others):
        for number, made in enumerate(from_endpoint(endpoint, todo, *others)):
            yield made
            if number == 1:
                judge.server.shutdown()
                judge.server.server_close()

    monkeypatch.setattr(command, "_from_endpoint", closed_after_two)
    with pytest.raises(EndpointError, match="cannot be reached: .*5 tries"):
        quiz.run()
    assert quiz.kept() == [*TEXTS[:2]] and judge.waits == [1, 2, 4, 8]


def test_a_rate_limit_is_waited_for(quiz, judge):
    quiz.run((429, "", {"Retry-After": "7"}), (503, ""), chat(GOOD))
    assert judge.waits == [7, 2] and quiz.kept() == [*TEXTS]


def test_a_missing_key_is_said_before_anything_is_read(tmp_path):
    environment = {"OPENAI_BASE_URL": "http://nobody/v1"}
    with pytest.raises(UsageError, match="OPENAI_API_KEY: not set"):
        make_quiz(tmp_path / "none", tmp_path / "out", QuizOptions(model="m"), confirm=str, environment=environment)


def test_texts_go_by_their_hash(quiz):
    assert list(quiz.run().by_key) == [text_key(t) for t in TEXTS]


def test_an_open_address_is_warned_of(quiz):
    environment = {"OPENAI_BASE_URL": "http://far.example/v1", "OPENAI_API_KEY": KEY}
    options = QuizOptions(model="judge-1")
    with pytest.raises(OlmoDetectError, match="nothing was sent"):
        make_quiz(quiz.inputs, quiz.out, options, environment=environment, confirm=quiz.said.append)
    assert "begins with http, not https" in quiz.said[0] and "sent to far.example" in quiz.said[0]
