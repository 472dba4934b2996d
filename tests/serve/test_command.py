"""`farout serve`: what reaches the server, and what it says when it cannot."""

import sys

import pytest

import farout.cli.serving  # noqa: F401  registers the command
from farout.cli import main


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command without listening: (exit code, standard output and error, what uvicorn was given)."""

    def call(*arguments):
        given = {}
        monkeypatch.setattr("uvicorn.run", lambda app, **options: given.update(app=app, **options))
        monkeypatch.setattr(sys, "argv", ["farout", "serve", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        printed = capsys.readouterr()
        return code, printed.out + printed.err, given

    return call


def test_options_reach_the_limits(command, tiny_run):
    code, said, given = command(
        tiny_run.folder, "--port", 0, "--max-body-mb", 2.5, "--max-pixels", 99, "--max-images", 3, "--concurrency", 4,
        "--timeout", 7, "--max-batch", 5, "--max-wait-ms", 20, "--window", 50,
    )  # fmt: skip
    assert code == 0, said
    service = given["app"].state.service
    limits = service.limits
    assert (limits.body_bytes, limits.pixels, limits.images) == (2_500_000, 99, 3)
    assert (limits.concurrency, limits.seconds) == (4, 7)
    assert (service.batcher.max_batch, service.batcher.max_wait) == (5, 0.02)
    assert service.drift.recent.maxlen == 50
    assert (given["host"], given["port"]) == ("127.0.0.1", 0)
    assert given["timeout_graceful_shutdown"] > limits.seconds


def test_errors_come_before_listening(command, tmp_path, monkeypatch, tiny_run):
    code, said, given = command(tmp_path)
    assert (code, given) == (1, {})
    assert "is not a detector" in said
    assert command(tiny_run.folder, "--max-batch", 0)[0] == 2
    monkeypatch.setitem(sys.modules, "fastapi", None)
    code, said, _ = command(tiny_run.folder)
    assert code == 1
    assert "pip install 'farout[serve]'" in said


def test_help_has_an_example(command):
    code, said, _ = command("--help")
    assert code == 0
    assert "Example" in said
