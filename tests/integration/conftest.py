"""What the tests of commands share."""

import pytest

from olmodetect_jax.cli import main


@pytest.fixture
def run(capsys):
    """Runs a command in this process: (exit code, standard output, standard error)."""

    def call(*arguments):
        code = main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call
