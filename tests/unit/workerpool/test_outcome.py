import datetime
import errno
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuekit.completion import ArtifactRef
from queuekit.errors import InvalidTerminalStatus
from queuekit.job import MAX_ERROR_BYTES
from queuekit.status import ObservationStatus
from workerpool.outcome import Discard, Outcome, Result, ResultKind, Retry, classify, classify_error, describe_error

REF = ArtifactRef.file_path("/x")
TERMINAL = [status for status in ObservationStatus if status.is_terminal]


def raised(function):
    """The exception that a call raises, with its traceback."""
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


# -- what a handler returns


def test_returning_nothing_means_done():
    assert classify(None) == Result(kind=ResultKind.SUCCESS, status=ObservationStatus.DONE)


@pytest.mark.parametrize("status", TERMINAL)
def test_a_terminal_status_is_taken_at_its_word(status):
    assert classify(status).status is status
    assert classify(Outcome(status)).status is status
    assert classify(Outcome(status.value)).status is status


def test_artifacts_of_the_run_come_before_those_of_the_outcome():
    collected = ArtifactRef.commit_hash("abc")
    result = classify(Outcome("done", [REF]), artifacts=[collected], submitted=[b"{}"], run_seconds=2.0)
    assert result.artifacts == (collected, REF)
    assert result.submitted == (b"{}",)
    assert result.run_seconds == 2.0


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        (3, "returned an int"),
        ("done", "returned a str"),
        (True, "returned a bool"),
        ([ObservationStatus.DONE], "returned a list"),
        (ObservationStatus.RUNNING, "'running', which is no end"),
    ],
)
def test_a_wrong_return_value_is_a_failed_run_that_says_so(returned, told):
    result = classify(returned, artifacts=[REF], submitted=[b"{}"], run_seconds=1.0)
    assert (result.kind, result.status, result.submitted, result.run_seconds) == (ResultKind.FAILED, None, (), 1.0)
    assert told in result.error


def test_an_artifact_that_cannot_be_written_is_a_failed_run():
    assert "not valid Unicode" in classify(None, artifacts=[ArtifactRef.file_path("\udc80")]).error
    assert "no artifact" in classify(None, artifacts=["/x"]).error


@pytest.mark.parametrize("status", ["running", "finished", ""])
def test_an_outcome_needs_a_terminal_status(status):
    with pytest.raises(InvalidTerminalStatus):
        Outcome(status)


def test_an_outcome_needs_artifacts():
    with pytest.raises(TypeError, match="a str is no artifact"):
        Outcome("done", ["/x"])


# -- what a handler raises


@pytest.mark.parametrize(
    ("after", "seconds"), [(None, None), (0, 0.0), (1.5, 1.5), (datetime.timedelta(minutes=2), 120.0)]
)
def test_a_retry_names_its_time_and_reason(after, seconds):
    result = classify_error(raised(lambda: _raise(Retry(after=after, reason="busy"))), run_seconds=3.0)
    assert (result.kind, result.retry_after, result.error, result.run_seconds) == (
        ResultKind.RETRY,
        seconds,
        "busy",
        3.0,
    )


@pytest.mark.parametrize("after", [-1, math.nan, math.inf, 10**400])
def test_a_retry_refuses_a_time_that_never_comes(after):
    with pytest.raises(ValueError, match="between 0 seconds and ten years"):
        Retry(after=after)


@pytest.mark.parametrize("after", ["5s", True, b"1"])
def test_a_retry_refuses_what_is_no_time(after):
    with pytest.raises(TypeError, match="seconds or a timedelta"):
        Retry(after=after)


def test_a_discard_keeps_its_reason():
    assert classify_error(Discard("no such user")) == Result(kind=ResultKind.DISCARD, error="no such user")


def test_without_a_reason_the_cause_is_told():
    def fail():
        try:
            int("x")
        except ValueError as error:
            raise Retry from error

    assert classify_error(raised(fail)).error.startswith("ValueError: invalid literal")
    assert classify_error(Discard()).error == "workerpool.outcome.Discard: the handler discarded the job"


def test_a_subclass_that_forgets_to_call_init_still_works():
    class Later(Retry):
        def __init__(self):
            pass

    class Wild(Retry):
        after = "soon"

        def __init__(self):
            pass

    assert classify_error(Later()).kind is ResultKind.RETRY
    assert classify_error(Wild()).retry_after is None


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError("no")


class Bare(BaseException):
    pass


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (SystemExit(3), "SystemExit: 3"),
        (SystemExit(), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (Bare("x"), "Bare: x"),
        (Unprintable(), "Unprintable"),
        (ValueError("\ud800\0"), "ValueError: \\ud800\\x00"),
    ],
)
def test_whatever_is_raised_is_a_failed_run_told_by_its_type(error, told):
    result = classify_error(raised(lambda: _raise(error)))
    assert (result.kind, result.status) == (ResultKind.FAILED, None)
    assert told in result.error.splitlines()[0]
    assert "in _raise" in result.error


def test_a_syntax_error_with_nonsense_inside_is_told_by_its_type():
    error = SyntaxError("x")
    error.filename, error.lineno, error.text = object(), "q", 3
    assert describe_error(error).startswith("SyntaxError")


def test_causes_and_members_of_a_group_are_told():
    def fail():
        try:
            int("x")
        except ValueError:
            raise ExceptionGroup("both", [KeyError("a"), OSError("b")])  # noqa: B904  the context is the point

    lines = describe_error(raised(fail)).splitlines()
    assert lines[0].startswith("ExceptionGroup: both")
    assert lines[1:3] == ["  with KeyError: 'a'", "  with OSError: b"]
    assert lines[3].startswith("  from ValueError")


def test_the_innermost_lines_survive_the_clipping():
    def deep(n):
        return _raise(ValueError("é" * 9000)) if n == 0 else deep(n - 1)

    text = describe_error(raised(lambda: deep(50)))
    assert text.startswith("ValueError: é")
    assert "in _raise" in text.splitlines()[-2] + text.splitlines()[-1]
    assert len(text.encode()) <= MAX_ERROR_BYTES


@given(st.text(st.characters()), st.text(st.characters()))
def test_any_message_becomes_valid_unicode_of_4_kib(message, cause):
    def fail():
        raise ValueError(message * 50) from RuntimeError(cause * 50)

    text = describe_error(raised(fail))
    assert 0 < len(text.encode()) <= MAX_ERROR_BYTES


# -- the way through the pipe

refs = st.builds(ArtifactRef, st.sampled_from(list(type(REF.type))), st.text(st.characters(exclude_categories=["Cs"])))
seconds = st.floats(0, 10**8)
results = st.one_of(
    st.builds(
        Result,
        kind=st.just(ResultKind.SUCCESS),
        status=st.sampled_from(TERMINAL),
        artifacts=st.lists(refs).map(tuple),
        submitted=st.lists(st.binary()).map(tuple),
        run_seconds=seconds,
    ),
    st.builds(Result.failed, st.text(st.characters()), run_seconds=seconds),
    st.builds(Result, kind=st.just(ResultKind.RETRY), error=st.just("x"), retry_after=st.none() | seconds),
    st.builds(Result, kind=st.just(ResultKind.DISCARD), error=st.just("x")),
)


@given(results)
def test_a_result_comes_back_equal(result):
    assert Result.from_dict(json.loads(json.dumps(result.to_dict()))) == result


GOOD = Result(kind=ResultKind.SUCCESS, status=ObservationStatus.DONE, artifacts=(REF,)).to_dict()


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        {},
        GOOD | {"kind": "great"},
        GOOD | {"status": "running"},
        GOOD | {"status": None},
        GOOD | {"kind": "failed"},
        GOOD | {"artifacts": [["file_path"]]},
        GOOD | {"artifacts": [["nosuch", "x"]]},
        GOOD | {"artifacts": [["file_path", 3]]},
        GOOD | {"artifacts": [["file_path", "\ud800"]]},
        GOOD | {"error": 3},
        GOOD | {"retry_after": -1},
        GOOD | {"retry_after": "1"},
        GOOD | {"submitted": ["?"]},
        GOOD | {"submitted": [1]},
        GOOD | {"run_seconds": math.nan},
        GOOD | {"run_seconds": 10**400},
        GOOD | {"run_seconds": None},
    ],
)
def test_what_no_worker_would_send_is_refused(values):
    with pytest.raises(ValueError, match="not a result"):
        Result.from_dict(values)


def _raise(error):
    raise error


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_an_error_that_came_of_a_want_of_descriptors_is_known_as_such_however_it_was_wrapped(number: int) -> None:
    bare = OSError(number, "too many")

    def wrap() -> None:
        try:
            raise bare
        except OSError:
            raise ValueError("cannot connect")  # noqa: B904  as most do

    with pytest.raises(ValueError, match="cannot") as wrapped:
        wrap()
    for error in (bare, wrapped.value, ExceptionGroup("several", [KeyError(1), wrapped.value])):
        assert classify_error(error).lacked_descriptors
    assert not classify_error(OSError(errno.ENOENT, "no such file")).lacked_descriptors
