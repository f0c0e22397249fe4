"""Commands at a terminal of a given width: a real one, as a person has it."""

import os
import pty
import subprocess
import sys
from pathlib import Path


def at_terminal(home: Path, columns: int, *arguments: str) -> tuple[int, list[str]]:
    """Run `python ARGUMENTS` at a terminal; return its exit code and the lines it shows."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNLOG_")}
    env = {**kept, "TURNLOG_HOME": str(home), "COLUMNS": str(columns), "TERM": "xterm"}
    running = subprocess.Popen(
        [sys.executable, *arguments], env=env, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE
    )
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 1 << 16):
            shown += part
    except OSError:
        pass  # Linux says EIO when the last writer is gone
    finally:
        os.close(ours)
    _, said = running.communicate()
    lines = shown.decode().replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    return running.returncode, lines + said.decode().splitlines()
