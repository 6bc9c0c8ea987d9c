"""The errors a user can meet. Each says which file, line, record or field, what was expected, what to do."""


class OlmoDetectError(Exception):
    """Base of every error this package raises on purpose; the command line prints it without a traceback.

    Attributes:
        exit_code: the exit code of the command that met it (1: work failed, 2: usage or configuration).
    """

    exit_code = 1


class UsageError(OlmoDetectError):
    """A wrong option, configuration value or unsupported model: the message names the field and what is allowed."""

    exit_code = 2


class DataError(OlmoDetectError):
    """A file of records, scores or frequencies that cannot be used: the message names file, line or record."""


class MissingFilesError(DataError):
    """Files of a benchmark that are not there: the message lists them."""


class CheckpointError(OlmoDetectError):
    """Weights that cannot be loaded: the message lists every tensor that is missing, unexpected or misshaped."""


class StoreError(OlmoDetectError):
    """Answers on disk that do not belong to this run or cannot be read."""


def one_of(field: str, value: object, allowed: object) -> UsageError:
    """The usage error for a value outside a closed set.

    Args:
        field: option or configuration field, as the user wrote it.
        value: what was given.
        allowed: iterable of what may be given.
    """
    choices = ", ".join(str(a) for a in allowed)  # type: ignore[attr-defined]
    return UsageError(f"{field}: unknown value {value!r}; allowed are: {choices}")
