"""The entry point: runs the command, and turns every expected failure into one line and an exit code.

A command is a module with ``run(argv) -> exit code``. It is imported only when it is run, and imports torch, the server
or a client only when it needs them, so that ``tfs-lite --help`` and ``status`` answer at once.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from tfs_lite import __version__
from tfs_lite.cli.output import FAILED, WRONG_USAGE, CliError, UsageError, nearest, told
from tfs_lite.core.status import ServingError

COMMANDS = {
    "serve": "serve models; takes tensorflow_model_server's flags",
    "publish": "copy a model into a base directory as its next version, whole or not at all",
    "status": "show the models of a running server, their versions, states and reasons",
    "explain": "say why a model or a version is in its state, and what to do about it",
    "rollback": "make an older version of a model the one that answers, now",
    "guard": "show a version that is on trial or was taken back; accept, retry or undo it",
    "events": "show what happened on a running server, and who wanted it",
    "predict": "send one request to a running server",
    "record": "make a file of requests that a version answers before it becomes available",
    "reload": "give a running server a new model config",
    "rollout": "give several servers a new model config: load on all of them, then move the labels of all",
    "token": "make a token for a server with --access_file",
    "check": "say what would be served from a path or config, and why the rest would not; runs nothing",
    "demo": "watch new versions of a real model go live under load",
}
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    if argv is None and sys.argv[1:2] == ["serve"]:
        _obey_signals_at_once()
    _open_missing_streams()
    _print_what_is_no_text()
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    try:
        code = _dispatch(words)
        sys.stdout.flush()
    except CliError as error:
        return _fail(told(error), error.code, error.exit_code, as_json)
    except ServingError as error:
        return _fail(told(error), error.code.name, FAILED, as_json)
    except BrokenPipeError:
        _give_up_output()
        return FAILED
    except OSError as error:
        _give_up_output()
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", "UNKNOWN", FAILED, as_json)
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _obey_signals_at_once() -> None:
    """Lets signals act at once until the server takes them itself: SIGTERM ends the process: nothing is open yet. The
    kernel keeps signals without a handler from process 1, which a server in a container is. SIGHUP asks for files that
    are read later."""
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _open_missing_streams() -> None:
    """Standard streams that the caller has closed lead nowhere. Otherwise the next file or socket would be opened in
    their place, and get what libraries write."""
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            with suppress(OSError):
                opened = os.open(os.devnull, os.O_RDWR)
                if opened == descriptor:
                    os.set_inheritable(descriptor, True)
                else:
                    os.dup2(opened, descriptor)
                    os.close(opened)
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115  as long as the process


def _print_what_is_no_text() -> None:
    """Names of files that are no UTF-8 are printed with escapes; otherwise printing one would fail."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _give_up_output() -> None:
    """Standard output takes nothing: what waits for it would fail again at the end of the process."""
    with suppress(OSError, ValueError):
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(words: list[str]) -> int:
    if not words:
        print(_help(), file=sys.stderr)
        return WRONG_USAGE
    command, rest = words[0], words[1:]
    if command in ("--help", "-h", "help"):
        print(_help())
        return 0
    if command == "--version":
        print(f"tfs_lite {__version__}")
        return 0
    if command.startswith("-"):
        raise UsageError(f"the command comes first: tfs-lite serve {command} ...")
    if command not in COMMANDS:
        raise UsageError(f"unknown command {command!r}{nearest(command, COMMANDS)}; tfs-lite --help lists them")
    return int(import_module(f"tfs_lite.cli.{command}").run(rest))


def _help() -> str:
    lines = ["usage: tfs-lite COMMAND [ARGUMENTS]", "", "TensorFlow Serving's model lifecycle for PyTorch.", ""]
    lines += [f"  {name:9}{text}" for name, text in COMMANDS.items()]
    lines += ["", "tfs-lite COMMAND --help tells more. Every command takes --json."]
    lines += ["Exit codes: 0 done, 1 it failed, 2 wrong usage, 3 a server stopped and left behind what hangs."]
    return "\n".join(lines)


def _fail(message: str, code: str, exit_code: int, as_json: bool) -> int:
    line = " ".join(message.split())
    with suppress(OSError):
        print(f"tfs-lite: {line}", file=sys.stderr)
        if as_json:
            print(json.dumps({"error": {"code": code, "message": line}}))
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
