"""The example of docs/producer.md runs as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

from serve.conversation_api import read_conversation
from serve.views import wait_for
from turnlog.config import Config
from turnlog.errors import TurnlogError
from turnlog.keeper_client import create
from turnlog.producer.fields import RunFields

GUIDE = (Path(__file__).parents[3] / "docs" / "producer.md").read_text()
ORG = "producer_guide"


def test_the_example_of_the_guide_runs_and_is_read_back(stack: Config, tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    create(stack, ORG)
    script = tmp_path / "example.py"
    opened = f'Producer.open(credential=Path("{stack.credentials}/{ORG}.json"))'
    own = code.replace('"local"', f'"{ORG}"').replace("Producer.open()", opened)
    script.write_text(f"from pathlib import Path\n{own}")
    environment = {**os.environ, "TURNLOG_HOME": str(stack.home)}
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert " completed at turnlog.runs/" in done.stdout
    assert wait_for(stack, ["conversations", "runs"], 60) == {}
    talk = read_conversation(stack, ORG, "greetings")
    said = [(turn["role"], turn["text"]) for turn in talk.turns]
    assert said == [
        ("user", "Greet the world"),
        ("assistant", "Bonjour, monde"),
        ("user", "And in Greek?"),
    ]


def test_the_guide_names_only_errors_and_fields_that_exist() -> None:
    errors = {kind.__name__ for kind in _below(TurnlogError)}
    named = re.findall(r"^\| `([A-Z]\w+)` \|", GUIDE, re.MULTILINE)
    assert named and set(named) <= errors
    call = GUIDE.partition("producer.run(\n")[2].partition(") as run")[0]
    used = re.findall(r"^\s+(\w+)=", call, re.MULTILINE)
    assert used and set(used) <= RunFields.__annotations__.keys()


def _below(kind: type[TurnlogError]) -> set[type[TurnlogError]]:
    return {kind}.union(*(_below(sub) for sub in kind.__subclasses__()))
