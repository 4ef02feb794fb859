"""``tfs-lite serve``: a server in this process, from its flags to its exit code.

The first SIGTERM or SIGINT starts a graceful stop (not ready, finish the requests inside, unload, exit 0); the second
ends the process at once with 128 plus the signal's number. Before there is a server, the first one ends it with 0. The
stop ends, whatever hangs, within ``shutdown_delay_seconds`` and ``drain_timeout_seconds`` and :data:`STOP_SECONDS`:
then with exit code 3, and the log names what was left behind. SIGHUP has the server read its config again. Standard
output gets one banner, the log goes to standard error; neither holds the server up where no process reads it. The flags
become the server's options, the number of torch's threads, and the help text.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from types import FrameType
from typing import TYPE_CHECKING, Any

from tfs_lite import __version__
from tfs_lite.cli.flag_parser import ENVIRONMENT_PREFIX, FlagValues, parse_flags
from tfs_lite.cli.flags import FIRST_FLAGS, FLAGS, Flag, FlagType
from tfs_lite.cli.output import DONE, LEFT_BEHIND, CliError, UsageError, print_json
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.history import Cause, Origin, acting, iso_time
from tfs_lite.core.status import Reason, ServingError
from tfs_lite.core.threads import left_behind, usable_cpus
from tfs_lite.protocols.log_format import JSON, start_logging
from tfs_lite.serving.options import ServerOptions

if TYPE_CHECKING:
    from tfs_lite.server.server import Server

_HANG_UP = bytes([signal.SIGHUP])


logger = logging.getLogger(__name__)
OPENMP_THREADS = "OMP_NUM_THREADS"
STOP_SECONDS = 20.0
"""The longest part of a stop that waits neither for requests nor for unloads."""


def run(argv: Sequence[str]) -> int:
    settings = parse_flags(["--help" if word == "-h" else word for word in argv], os.environ)
    if settings["help"]:
        print(help_text())
        return DONE
    if settings["version"]:
        print(f"tfs_lite ModelServer: {__version__}\nPyTorch Library: {version('torch')}")
        return DONE
    options, threads = server_options(settings), torch_threads(settings)
    stop = StopSignal()
    start_logging(settings["log_level"].upper(), settings["log_format"])
    intra, inter = tell_openmp(threads[0]), threads[1]
    _prepare_processes()
    _unblock_outputs()  # starts threads, after which the process cannot be forked any more
    start_logging(settings["log_level"].upper(), settings["log_format"])
    _set_torch_threads(intra, inter)
    return _serve(options, stop, settings["json"], settings["log_format"])


class StopSignal:
    """Wakes the main thread at the first SIGTERM or SIGINT, or when the server has ended by itself.

    Made and awaited on the main thread. A signal just before the wait must not be lost: Python runs a handler only when
    the main thread runs Python code, which a waiting thread does not. Therefore the signal's number is written to a
    pipe at once (``signal.set_wakeup_fd``), and the main thread waits for the pipe, which stays open until the process
    ends. Until :meth:`arm` there is nothing to stop, and a signal ends the process.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._armed = False
        self._signalled = False
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGHUP, lambda number, frame: None)  # the number in the pipe is what counts

    def arm(self) -> None:
        """Directs signals to :meth:`wait` from now on."""
        self._armed = True

    def wait(self, on_hang_up: Callable[[], None] = ignore) -> None:
        """``on_hang_up`` is called at each SIGHUP, and must not wait."""
        while os.read(self._reader, 1) == _HANG_UP:
            on_hang_up()

    def notify(self) -> None:
        """Any thread may call it."""
        os.write(self._writer, b"!")

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._armed:
            os._exit(DONE)
        if self._signalled:
            os._exit(128 + number)
        self._signalled = True
        if os.getpid() != 1:  # the kernel ends the process at the second signal, whatever the interpreter is doing then
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, signal.SIG_DFL)


class HangUps:
    """Has the server read its config again, on a thread that ends when that is done. Signals that arrive meanwhile
    count as one. ``request`` is for the main thread."""

    def __init__(self, read_again: Callable[[], str]) -> None:
        """``read_again`` returns what was read, and raises ServingError."""
        self._read_again = read_again
        self._lock = threading.Lock()  # guards the next two
        self._running = False
        self._wanted = False

    def request(self) -> None:
        with self._lock:
            self._wanted = True
            if self._running:
                return
            self._running = True
        try:
            threading.Thread(target=self._run, name="tfs-hang-up", daemon=True).start()
        except RuntimeError as error:  # the system has no thread
            self._running = False
            logger.error("SIGHUP: nothing was read again: %s", error)

    def _run(self) -> None:
        while self._take():
            try:
                with acting(Origin(Cause.OPERATOR, "SIGHUP")):
                    logger.info("SIGHUP: read again: %s", self._read_again())
            except ServingError as error:
                logger.error("SIGHUP: refused, nothing changed: %s", error)
            except Exception:
                logger.exception("SIGHUP: nothing was read again")

    def _take(self) -> bool:
        with self._lock:
            wanted, self._wanted = self._wanted, False
            self._running = wanted
        return wanted


def _serve(options: ServerOptions, stop: StopSignal, as_json: bool, log_format: str) -> int:
    from tfs_lite.server.server import Server

    server = Server(options)
    stop.arm()
    with server:
        _print_banner(server, as_json, log_format)
        threading.Thread(target=_notify_at_end, args=(server, stop), name="tfs-serve-wait", daemon=True).start()
        guard = _StopGuard(options.shutdown_delay_seconds + options.drain_timeout_seconds + STOP_SECONDS)
        stop.wait(HangUps(server.read_again).request)
        guard.stopping.set()
    guard.stopped.set()
    if left := left_behind():
        _leave(left)
    if server.failure is not None:
        gpu_failed = server.failure.status.reason is Reason.GPU_FAILED
        because = "" if gpu_failed else "--exit_on_initial_load_failure is set: "
        raise CliError(f"stopped, because {because}{server.failure}")
    return DONE


class _StopGuard:
    """Ends the process when a stop takes longer than it may. Its thread is there before the stop begins: later there
    may be none to be had."""

    def __init__(self, seconds: float) -> None:
        self.stopping, self.stopped = threading.Event(), threading.Event()
        self._seconds = seconds
        threading.Thread(target=self._watch, name="tfs-stop-guard", daemon=True).start()

    def _watch(self) -> None:
        self.stopping.wait()
        if not self.stopped.wait(self._seconds):
            _leave(left_behind() or [thread.name for thread in threading.enumerate()])


def _leave(names: Sequence[str]) -> None:
    """Ends the process, without waiting for anything: not for threads, nor for long for the log."""
    from tfs_lite.server.runtime.output import flush_outputs

    logger.error("stopped, and left behind: %s", ", ".join(names))
    flush_outputs()
    os._exit(LEFT_BEHIND)


def _notify_at_end(server: Server, stop: StopSignal) -> None:
    server.wait()
    stop.notify()


def _print_banner(server: Server, as_json: bool, log_format: str) -> None:
    """One object, like a line of the log where that has objects; else a few lines of text."""
    options = server.options
    source = options.model_config_file or options.model_repository or options.model_base_path
    if as_json or log_format == JSON:
        head = {"ts": iso_time(time.time()), "level": "INFO", "msg": f"tfs_lite {__version__} serves {source}"}
        print_json(
            {
                **(head if log_format == JSON else {}),
                "version": __version__,
                "source": source,
                "host": options.host,
                "port": server.port,
                "rest_api_port": server.rest_api_port,
                "grpc_socket_path": options.grpc_socket_path or None,
            }
        )
        return
    scheme = "https" if options.rest_api_tls else "http"
    host = f"[{options.host}]" if ":" in options.host else options.host
    lines = [f"tfs_lite {__version__} serves {source}"]
    if options.dashboard and server.rest_api_port is not None:
        lines.append(f"  page  {scheme}://{host}:{server.rest_api_port}/")
    if server.port is not None:
        lines.append(f"  gRPC  {host}:{server.port}")
    if options.grpc_socket_path:
        lines.append(f"  gRPC  unix:{options.grpc_socket_path}")
    if server.rest_api_port is not None:
        lines.append(f"  HTTP  {scheme}://{host}:{server.rest_api_port}/v1/models")
    print("\n".join(lines), flush=True)


def tell_openmp(intra: int) -> int:
    """Says in the environment how many threads work on one operator, before torch is imported. What torch is told
    later holds for the thread that tells it: in any other one, of this process or of a model's, oneDNN begins with a
    team of all cores, whose members keep cores busy while they wait for one another."""
    outer = os.environ.get(OPENMP_THREADS, "").split(",")[0].strip()  # one number for each level
    if not intra and outer.isdecimal() and int(outer) > 0:
        return int(outer)
    number = intra or max(1, usable_cpus() - 1)
    os.environ[OPENMP_THREADS] = str(number)
    return number


def _prepare_processes() -> None:
    """Forks the process that those of models are forked from, once it has imported what they need. The rest of the
    server is imported afterwards, and is not theirs."""
    from tfs_lite.adapters.remote import PRELOAD
    from tfs_lite.workers.launch import fork_early

    fork_early(PRELOAD)


def _unblock_outputs() -> None:
    from tfs_lite.server.runtime.output import unblock_outputs

    unblock_outputs()


def _set_torch_threads(intra: int, inter: int) -> None:
    from tfs_lite.adapters.device import configure_torch_threads

    configure_torch_threads(intra, inter)


_OFF_AT_ZERO = ("port", "rest_api_port")
_UNSET_WHEN_EMPTY = ("model_config_list_root_dir",)
_SESSION, _INTRA, _INTER = (f"tensorflow_{kind}_parallelism" for kind in ("session", "intra_op", "inter_op"))
_FLAG_COLUMN = 42

OWN_FLAGS = frozenset(
    {"log_level", "log_format", "json", "version", "help", "enable_grpc_healthcheck_service", _SESSION, _INTRA, _INTER}
)
"""Flags that this command uses itself; every other honoured flag is an option of the server."""


def server_options(settings: FlagValues) -> ServerOptions:
    """The checked options. Raises UsageError if flags contradict one another, or there is nothing to serve."""
    if not (settings["model_base_path"] or settings["model_config_file"] or settings["model_repository"]):
        raise UsageError("nothing to serve: give --model_base_path, --model_repository or --model_config_file")
    values = {field.name: settings[field.name] for field in dataclasses.fields(ServerOptions)}
    values |= {name: settings[name] or None for name in (*_OFF_AT_ZERO, *_UNSET_WHEN_EMPTY)}
    try:
        return ServerOptions(**values)
    except ServingError as error:
        raise UsageError(str(error)) from None


def torch_threads(settings: FlagValues) -> tuple[int, int]:
    """Threads inside an operator and between operators; 0 leaves the choice to torch."""
    session, intra, inter = settings[_SESSION], settings[_INTRA], settings[_INTER]
    if session and intra and inter:
        raise UsageError(f"--{_SESSION} sets both --{_INTRA} and --{_INTER}: give it or the two, not all three")
    return intra or session, inter or session


def help_text() -> str:
    """The flags to begin with, then every flag in the order of the table."""
    lines = [
        "usage: tfs-lite serve [--name=value | --name value] ...",
        "",
        "Serves models. Takes tensorflow_model_server's flags; names may be written with hyphens, booleans bare.",
        f"{ENVIRONMENT_PREFIX}<FLAG> in the environment sets a default; a later flag wins over an earlier one.",
    ]
    lines += ["", "The ten that most servers need (all flags, by group, are below):"]
    lines += [_help_line(flag) for name in FIRST_FLAGS for flag in FLAGS if flag.name == name]
    for group in dict.fromkeys(flag.group for flag in FLAGS):
        lines += ["", f"{group}:"]
        lines += [_help_line(flag) for flag in FLAGS if flag.group == group]
    return "\n".join(lines)


def _help_line(flag: Flag) -> str:
    name = spelled(flag)
    default = f" [{_shown(flag.default)}]" if flag.in_environment and _shown(flag.default) else ""
    gap = name.ljust(_FLAG_COLUMN) if len(name) < _FLAG_COLUMN else f"{name}\n  {'':{_FLAG_COLUMN}}"
    return f"  {gap}{flag.help}{default}"


def spelled(flag: Flag) -> str:
    """The flag with a word for its value: ``--port=N``."""
    return f"--{flag.name}" + ("" if flag.kind is FlagType.BOOL else f"={_word(flag)}")


def _word(flag: Flag) -> str:
    if flag.pattern:
        return flag.expects.replace(" or ", "|").replace(", ", "|")
    return {FlagType.INT: "N", FlagType.FLOAT: "X", FlagType.LIST: "A,B"}.get(flag.kind, "TEXT")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)
