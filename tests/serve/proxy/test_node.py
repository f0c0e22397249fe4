"""A client that is not Python: the official npm package, through the proxy."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.serve.proxy.parts import between

EXAMPLE = Path(__file__).parents[3] / "examples" / "node"
INSTALL_S = 300.0


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The example, installed from its lock file beside the checkout."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not on this machine")
    place = tmp_path / "node"
    shutil.copytree(EXAMPLE, place, ignore=shutil.ignore_patterns("node_modules"))
    done = subprocess.run(
        ["npm", "ci", "--ignore-scripts"],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_S,
    )
    if done.returncode and "E404" not in done.stderr and "integrity" not in done.stderr.lower():
        pytest.skip(f"npm ci does not reach its registry: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    return place


async def test_the_node_example_streams_through_the_proxy(example: Path) -> None:
    async with between() as way:
        environment = {
            **os.environ,
            "OPENAI_API_KEY": "sk-node",
            "OPENAI_BASE_URL": f"http://127.0.0.1:{way.proxy.port}/v1",
        }
        node = await asyncio.create_subprocess_exec(
            "node",
            "index.mjs",
            cwd=example,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await node.communicate()
        assert node.returncode == 0, errors.decode()
        kept = await way.one()
        asked = way.provider.asked[-1]
    # The emoji at its end came in two chunks, of which node writes each half by itself.
    assert out.decode().strip("\n\ufffd") == kept.said["output"][0]["text"].rstrip("😄")
    assert errors.decode().strip() == f"run {kept.created['run']}"
    assert (kept.created["user"], kept.created["conversation"]) == ("ann", "workshop-1")
    assert kept.usage["quality"] == "measured"
    assert asked.header("authorization") == ["Bearer sk-node"]
    assert not [name for name, _ in asked.headers if name.lower().startswith("x-turnlog")]
