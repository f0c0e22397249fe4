"""One local stack as its parts see it: the config, the kept ports, the folders."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from turnlog.config import Config


@dataclass(frozen=True)
class Place:
    """What a part may ask when it is started."""

    config: Config
    ports: Mapping[str, int]
    external: Mapping[str, str]

    @property
    def home(self) -> Path:
        """Return the stack's folder."""
        return self.config.home

    def folder(self, name: str) -> Path:
        """Return a part's own folder, made if needed."""
        path = self.home / name
        path.mkdir(parents=True, exist_ok=True)
        return path
