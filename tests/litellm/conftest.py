"""An environment with the real LiteLLM and the gateway wheel of this tree.

LiteLLM pins too much to live in the project's own. It is installed once, from a lock file with
hashes, into `.venv-litellm/` beside `.venv/`; the wheel is built anew for each session.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCK = Path(__file__).with_name("requirements.lock")
HOME = ROOT / ".venv-litellm"
UV = Path(sys.executable).with_name("uv")


def _uv(*arguments: str) -> None:
    done = subprocess.run(
        [UV, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr


def _installed() -> Path:
    python = HOME / "bin" / "python"
    mark, wanted = HOME / ".installed", hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if not mark.exists() or mark.read_text() != wanted:
        _uv("venv", "-q", "--clear", "--python", sys.executable, str(HOME))
        _uv("pip", "install", "-q", "--python", str(python), "--require-hashes", "-r", str(LOCK))
        mark.write_text(wanted)
    return python


@pytest.fixture(scope="session")
def litellm_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of that environment."""
    python = _installed()
    dist = tmp_path_factory.mktemp("dist")
    _uv("build", "-q", "--wheel", "--no-build-isolation", "--python", sys.executable,
        "gateway", "-o", str(dist))  # fmt: skip
    (wheel,) = dist.glob("*.whl")
    _uv("pip", "install", "-q", "--python", str(python), "--no-deps", "--reinstall", str(wheel))
    return python
