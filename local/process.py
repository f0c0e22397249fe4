"""Processes that outlive the command that started them, found again without doubt.

A pid alone proves nothing: it may belong to someone else by now. So a pid file holds the pid and
an identity of the process (boot and start time), and every process that a stack starts carries
the stack's home and its part's name in its environment, which its children inherit.
"""

import json
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

HOME_MARK = "TURNLOG_STACK_HOME"
PART_MARK = "TURNLOG_STACK_PART"
_POLL_S = 0.02
_LOG_BYTES = 8 << 20
_LOGS_KEPT = 2
_OPEN_FILES = 65536
_TAIL_BYTES = 16384
_STAT = Path("/proc/self/stat")
_STARTED = "--- started by turnlog"

# Our own children must be waited for, or they stay zombies that look alive.
_children: dict[int, subprocess.Popen[bytes]] = {}
# How those of them ended that were waited for: as `Popen.returncode`, below 0 by that signal.
_codes: dict[int, int] = {}
# What a line of a log begins or holds that tells of an end, in the words of all our parts.
_ERROR = re.compile(
    r"\b(?:ERROR|FATAL|CRITICAL|Fatal|fatal|panic|Killed|crashed|Aborted)\b"
    r"|\w*(?:Error|Exception)\b|^[EF]\d{4} |# Failed"
)


@dataclass(frozen=True)
class Launch:
    """How to start a part: command, working directory, environment beyond our own."""

    argv: Sequence[str]
    cwd: Path
    env: Mapping[str, str]


@dataclass(frozen=True)
class Running:
    """A started process: pid, identity, and the addresses it was started with."""

    pid: int
    identity: str
    told: dict[str, str]


def identity(pid: int) -> str:
    """Return what tells a process from any other that had its pid; "" when there is none."""
    try:
        if _STAT.exists():
            return _linux_identity(pid)
        process = psutil.Process(pid)
        ended = process.status() == psutil.STATUS_ZOMBIE
        return "" if ended else f"{process.create_time():.2f}"
    except (psutil.Error, OSError):
        return ""


def _linux_identity(pid: int) -> str:
    # The command may hold blanks and brackets; fields count from its last bracket: 3 is the state,
    # 20 the number of threads, 22 the start in clock ticks since boot, which no setting of the wall
    # clock can move.
    stat = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    state, threads, ticks = stat[0], int(stat[17]), stat[19]
    # A killed process is a zombie while its other threads still hold its files and ports.
    if state == "Z" and threads <= 1:
        return ""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{ticks}"


class PidFile:
    """The pid file of one part."""

    def __init__(self, home: Path, name: str) -> None:
        self.home = home
        self.name = name
        self.path = home / "run" / f"{name}.pid"

    def read(self) -> Running | None:
        """Return the process named by the file if it still is that process."""
        noted = self._noted()
        if noted is None:
            return None
        _reap(noted.pid)
        return noted if noted.identity == identity(noted.pid) else None

    def exists(self) -> bool:
        """Tell whether a process was started here and not stopped by `down`."""
        return self.path.exists()

    def ending(self) -> str:
        """Return how the process ended; only who started it is told, to others it is gone."""
        noted = self._noted()
        if noted is not None:
            _reap(noted.pid)
        code = _codes.get(noted.pid) if noted else None
        if code is None:
            return "gone"
        return f"killed by signal {-code}" if code < 0 else f"exit code {code}"

    def _noted(self) -> Running | None:
        try:
            return Running(**json.loads(self.path.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, running: Running) -> None:
        """Note a started process."""
        replace(self.path, json.dumps(asdict(running)))

    def remove(self) -> None:
        """Forget the process."""
        self.path.unlink(missing_ok=True)


def replace(path: Path, text: str) -> None:
    """Write a file at once: a reader sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(path)


def start(file: PidFile, launch: Launch, told: dict[str, str]) -> Running:
    """Start a part in a session of its own, its output appended to its log."""
    log = log_path(file.home, file.name)
    _rotate(log)
    marks = {HOME_MARK: str(file.home), PART_MARK: file.name}
    with log.open("ab") as out:
        out.write(f"{_STARTED} {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
        out.flush()
        child = subprocess.Popen(
            list(launch.argv),
            cwd=launch.cwd,
            env={**os.environ, **launch.env, **marks},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            umask=0o077,
        )
    _children[child.pid] = child
    _codes.pop(child.pid, None)
    running = Running(child.pid, identity(child.pid), told)
    file.write(running)
    return running


def allow_open_files() -> None:
    """Let this process and its children open many files: Kafka holds three a partition."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def log_path(home: Path, name: str) -> Path:
    """Return where a part's output goes."""
    return home / "logs" / f"{name}.log"


def log_tail(home: Path, name: str, lines: int = 8) -> list[str]:
    """Return the last lines that a part has written since its last start."""
    path = log_path(home, name)
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        text = file.read().decode(errors="replace")
    since = text.rpartition(_STARTED)[2] if _STARTED in text else f"\n{text}"
    return since.splitlines()[1:][-lines:]


def last_error(home: Path, name: str) -> str:
    """Return the last line of a part's log if it tells of an error; "" where it is a remark."""
    line = "".join(log_tail(home, name, lines=1)).strip()
    return line if _ERROR.search(line) else ""


def _rotate(log: Path) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    if not log.exists() or log.stat().st_size < _LOG_BYTES:
        return
    for number in range(_LOGS_KEPT, 0, -1):
        older = log if number == 1 else log.with_suffix(f".log.{number - 1}")
        if older.exists():
            older.replace(log.with_suffix(f".log.{number}"))


def stop(file: PidFile, grace_s: float) -> bool:
    """Stop a part and its children, killed after `grace_s` seconds; tell whether any ran."""
    running = file.read()
    family = _family(running.pid) if running else []
    family += [p for p in marked(file.home).get(file.name, []) if p not in family]
    for process in family:
        _signal(process, signal.SIGTERM)
        _signal(process, signal.SIGCONT)
    _wait(family, grace_s)
    for process in family:
        _signal(process, signal.SIGKILL)
    _wait(family, 5.0)
    file.remove()
    return bool(family)


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def marked(home: Path) -> dict[str, list[psutil.Process]]:
    """Return every process of a stack by its part, whether a pid file knows it or not."""
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        try:
            marks = process.environ()
        except (psutil.Error, OSError):
            continue  # another user's, or gone
        if marks.get(HOME_MARK) == str(home) and PART_MARK in marks:
            found.setdefault(marks[PART_MARK], []).append(process)
    return found


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        # psutil refuses when the pid belongs to another process by now.
        process.send_signal(number)
    except psutil.Error:
        return


def _wait(family: Sequence[psutil.Process], patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while any(map(_alive, family)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _alive(process: psutil.Process) -> bool:
    _reap(process.pid)
    return bool(process.is_running()) and identity(process.pid) != ""


def _reap(pid: int) -> None:
    child = _children.get(pid)
    if child is not None and (code := child.poll()) is not None:
        _codes[pid] = code
        del _children[pid]


def age_s(pid: int) -> float:
    """Return for how many seconds a process has run; 0 when there is none."""
    try:
        began: float = psutil.Process(pid).create_time()
        return time.time() - began
    except psutil.NoSuchProcess:
        return 0.0
