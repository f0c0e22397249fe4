"""One config object: `TURNLOG_*` variables over a TOML file over what the local stack chose.

A part that is given an address is used as it is; a part without one is started locally and its
address is read from `{home}/addresses.json`, which `turnlog up` writes.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from turnlog.errors import UsageError

PARTS = ("kafka", "s3", "redis", "clickhouse", "keeper")


class LocalAddresses(PydanticBaseSettingsSource):
    """Addresses of locally started parts, the lowest of the three sources."""

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        """Unused: the source answers as a whole."""
        return None, field_name, False

    def __call__(self) -> dict[str, Any]:
        """Return what `turnlog up` wrote, or nothing."""
        home = self.current_state.get("home", Config.model_fields["home"].default)
        try:
            stored: dict[str, Any] = json.loads((Path(home) / "addresses.json").read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise UsageError(f"{home}/addresses.json cannot be read: {error}") from error
        return stored


class Config(BaseSettings):
    """Where the parts are and what this process may assume about them."""

    model_config = SettingsConfigDict(
        env_prefix="TURNLOG_", extra="ignore", frozen=True, env_ignore_empty=True
    )

    home: Path = Field(Path(".turnlog"), description="state of the local stack")
    kafka: str = Field("", description="host:port[,host:port]")
    s3: str = Field("", description="http(s)://host:port of an S3 API")
    s3_access_key: str = Field("turnlog", description="access key id")
    s3_secret_key: SecretStr = Field(SecretStr("turnlog-local"), description="secret key")
    s3_region: str = "us-east-1"
    content_bucket: str = "turnlog-content"
    audit_bucket: str = "turnlog-audit"
    redis: str = Field("", description="redis://host:port/db")
    clickhouse: str = Field("", description="http(s)://host:port of ClickHouse's HTTP interface")
    clickhouse_user: str = "default"
    clickhouse_password: SecretStr = SecretStr("")
    clickhouse_database: str = "turnlog"
    keeper: str = Field("", description="http://host:port of the key keeper")
    keeper_public: str = Field("", description="the keeper's Ed25519 public key, 64 hex digits")
    key_file: Path | None = Field(None, description="the local key file, instead of a KMS")
    partitions: int = Field(6, ge=1, description="of the four stream topics")
    replication: int = Field(1, ge=1)
    min_insync: int = Field(1, ge=1)
    pack_max_age_s: float = Field(2.0, gt=0, description="an ingest object is cut at this age")
    pack_max_bytes: int = Field(64 << 20, gt=0)
    retention_class: str = "standard"

    @field_validator("home")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("keeper_public")
    @classmethod
    def _hex_key(cls, value: str) -> str:
        if value and (len(value) != 64 or set(value) - set("0123456789abcdef")):
            raise ValueError("an Ed25519 public key is 64 lower-case hex digits")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Order the sources: arguments, environment, TOML file, local stack."""
        toml = TomlConfigSettingsSource(settings_cls, _toml_path())
        return init_settings, env_settings, toml, LocalAddresses(settings_cls)

    @property
    def credentials(self) -> Path:
        """Folder of credential files, each 0600."""
        return self.home / "credentials"

    @property
    def local_key_file(self) -> Path:
        """The key file in use."""
        return self.key_file or self.home / "keys" / "local.key"

    def need(self, part: str) -> str:
        """Return the address of a part.

        Raises:
            UsageError: it has none, so the stack was never started.
        """
        address: str = getattr(self, part)
        if not address:
            raise UsageError(
                f"{part} has no address: run `turnlog up`, or set TURNLOG_{part.upper()}"
            )
        return address


def _toml_path() -> Path | None:
    import os

    given = os.environ.get("TURNLOG_CONFIG")
    if given and not Path(given).is_file():
        raise UsageError(f"TURNLOG_CONFIG names {given}, which is not a file")
    return Path(given) if given else None


def load(**overrides: Any) -> Config:
    """Read and validate the config.

    Raises:
        UsageError: a value is wrong; the message names the field, never a secret's value.
    """
    try:
        return Config(**overrides)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"config field {field}: {first['msg']}") from None


def past_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep a user's HTTP proxy out of talks with this machine."""
    return {
        name: ",".join(filter(None, [environment.get(name), "127.0.0.1", "localhost"]))
        for name in ("no_proxy", "NO_PROXY")
    }
