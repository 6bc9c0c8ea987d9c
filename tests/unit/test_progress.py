"""Progress where there is no terminal: plain lines with an ETA."""

from olmodetect_jax.runtime import progress as progress_module
from olmodetect_jax.runtime.progress import progress


def test_plain_lines(capsys, monkeypatch):
    clock = iter([0.0, 1.0, 20.0, 21.0, 40.0])
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    with progress("Scoring", 8, unit="texts") as advance:
        advance(1)  # 1 s after the start: too early for a line
        advance(1)
        advance(1)
        advance(5)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["Scoring: 2/8 texts, 20 s, ETA 60 s", "Scoring: 8/8 texts, 40 s, ETA 0 s"]


def test_nothing_to_do_says_nothing(capsys):
    with progress("Scoring", 0, unit="texts") as advance:
        advance(0)
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(progress_module.sys.stderr, "isatty", lambda: True, raising=False)
    with progress("Scoring", 2, unit="texts") as advance:
        advance(2)
    assert "ETA" in capsys.readouterr().err
