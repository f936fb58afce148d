import pytest

from servetune.engines.cause import Symptom, diagnose, plain_log


@pytest.mark.parametrize(
    ("log", "exit_code", "kind", "message"),
    [
        ("loading 10%\rloading 20%", -9, "killed", "it was killed from outside (signal 9)"),
        ("loading 10%\rloading 20%\n", 1, "unknown", "loading 20%"),
        ("", 1, "unknown", "it wrote nothing to its log"),
        ("x" * 500, 1, "unknown", "x" * 200),
        (
            'INFO:     127.0.0.1:4 - "GET /metrics HTTP/1.1" 200 OK',
            None,
            "unknown",
            "its log tells",
        ),
        (
            "WARNING 11-21 few files, `OSError: Too many open files` may follow\nbye",
            None,
            "unknown",
            "bye",
        ),
    ],
)
def test_a_log_without_an_error_still_gives_a_reason(log, exit_code, kind, message):
    cause = diagnose(log, exit_code)
    assert cause.kind == kind
    assert cause.message.startswith(message)
    assert len(cause.message) <= 240


def test_the_most_specific_symptom_wins_wherever_it_stands_in_the_log():
    symptoms = (
        Symptom("narrow", r"widget (?P<name>\w+) is missing", "no widget {name}", "buy one"),
        Symptom("wide", r"is missing", "something is missing"),
    )
    cause = diagnose("a screw is missing\nwidget blue is missing\n", 1, symptoms=symptoms)
    assert (cause.kind, cause.message, cause.hint) == ("narrow", "no widget blue", "buy one")


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("OSError: [Errno 98] Address already in use", "port_in_use"),
        ("OSError: [Errno 12] Cannot allocate memory", "out_of_memory"),
        ("worker 3: MemoryError", "out_of_memory"),
        ("OSError: [Errno 28] No space left on device", "disk_full"),
        (
            "docker: Error response from daemon: pull access denied for me/engine, repository no",
            "image_not_found",
        ),
        (
            "docker: Error response from daemon: manifest for a/b:v9 not found: manifest unknown",
            "image_not_found",
        ),
        (
            'docker: Error: could not select device driver "" with capabilities: [[gpu]]',
            "no_gpu_runtime",
        ),
        (
            "docker: Cannot connect to the Docker daemon\n\nRun 'docker run --help' for more",
            "container_refused",
        ),
        ("OutOfMemoryErrors are counted: 0", "unknown"),
    ],
)
def test_causes_that_any_server_may_have_are_known(line, kind):
    assert diagnose(f"starting\n{line}\n", 1).kind == kind


def test_an_error_with_a_module_path_is_reported_whole():
    log = "Traceback:\n  File x\nhub.errors.NotFound: no\nhub.errors.WidgetError: no blue widget.\n"
    assert diagnose(log, 1).message == "hub.errors.WidgetError: no blue widget"


def test_progress_bars_and_colours_become_plain_lines():
    assert plain_log("\x1b[32m10%\x1b[0m\r20%\r\nready\n") == "10%\n20%\nready\n"
