"""One config object: `TURNLOG_*` variables over a TOML file over what the local stack chose.

A part that is given an address is used as it is; a part without one is started locally and its
address is read from `{home}/addresses.json`, which `turnlog up` writes.
"""

import json
import os
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from turnlog.errors import UsageError

PARTS = ("kafka", "s3", "redis", "clickhouse", "keeper")
PREFIX = "TURNLOG_"

_HTTP = ("http", "https")
_SCHEMES = {
    "s3": _HTTP,
    "clickhouse": _HTTP,
    "keeper": _HTTP,
    "redis": ("redis", "rediss", "unix"),
}


class Config(BaseModel):
    """Where the parts are and what this process may assume about them."""

    model_config = ConfigDict(extra="ignore", frozen=True, validate_default=True)

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
    credential: Path | None = Field(
        None, description="credential file of a process that names none; empty: that of org local"
    )
    spool: Path | None = Field(None, description="folder of the producers' disk spool")
    spool_after_ms: int = Field(400, gt=0, description="silence of Kafka that sends events there")
    spool_max_bytes: int = Field(1 << 30, gt=0, description="of one process's disk spool")
    run_deadline_s: float = Field(
        20.0, gt=0, description="of log time after the last sign of life ends a run"
    )
    tick_s: float = Field(5.0, gt=0, description="between the ticks that make log time pass")
    client_idle_s: float = Field(
        10.0, gt=0, description="silence of an HTTP client after which its runs look abandoned"
    )
    checkpoint_s: float = Field(60.0, gt=0, description="between checkpoints of the open runs")
    drain_s: float = Field(30.0, ge=0, description="open requests may take at a server's end")
    oidc_issuer: str = Field("", description="issuer of bearer tokens for people; empty: none")
    oidc_audience: str = Field("", description="what its tokens must be for")
    oidc_jwks: str = Field("", description="http(s) address or file of the issuer's keys")
    oidc_org_claim: str = Field("turnlog_org", description="claim that names the org")
    oidc_role_claim: str = Field("turnlog_role", description="claim that names the role")

    @field_validator("home")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @field_validator("kafka")
    @classmethod
    def _brokers(cls, value: str) -> str:
        for broker in value.split(",") if value else ():
            # librdkafka takes a scheme before the host, and port 9092 where there is none.
            if not _is_place(f"//{broker.strip().rpartition('://')[2]}"):
                raise ValueError("needs host:port[,host:port]")
        return value

    @field_validator(*_SCHEMES)
    @classmethod
    def _address(cls, value: str, info: ValidationInfo) -> str:
        schemes = _SCHEMES[info.field_name or ""]
        scheme = value.partition("://")[0].lower()
        if value and (scheme not in schemes or not (scheme == "unix" or _is_place(value))):
            # Never the value: it may hold a password.
            raise ValueError(f"needs an address like {schemes[0]}://host:port")
        return value

    @field_validator("keeper_public")
    @classmethod
    def _hex_key(cls, value: str) -> str:
        if value and (len(value) != 64 or set(value) - set("0123456789abcdef")):
            raise ValueError("an Ed25519 public key is 64 lower-case hex digits")
        return value

    @property
    def credentials(self) -> Path:
        """Folder of credential files, each 0600."""
        return self.home / "credentials"

    @property
    def spool_folder(self) -> Path:
        """Folder of the disk spool; each producer has its own within."""
        return self.spool or self.home / "spool"

    @property
    def local_key_file(self) -> Path:
        """The key file in use."""
        return self.key_file or self.home / "keys" / "local.key"

    def require_home(self) -> None:
        """Do nothing where the home is there.

        Raises:
            UsageError: it is not, so that nothing of any org can be: told before "not found".
        """
        if not self.home.is_dir():
            raise UsageError(f"no stack at {self.home}: set TURNLOG_HOME, or run `turnlog up` here")

    def need(self, part: str) -> str:
        """Return the address of a part.

        Raises:
            UsageError: it has none, so the stack was never started.
        """
        address: str = getattr(self, part)
        if not address:
            self.require_home()
            raise UsageError(
                f"{part} has no address: run `turnlog up`, or set TURNLOG_{part.upper()}"
            )
        return address


def load(**overrides: Any) -> Config:
    """Read and validate the config: arguments, environment, TOML file, local stack, in this order.

    Raises:
        UsageError: a value is wrong; the message names the field, never a secret's value.
    """
    # Not by pydantic-settings: it takes 0.1 s to import, in every command and every worker.
    given = {**_toml(), **_environment(), **overrides}
    home = Path(given.get("home", Config.model_fields["home"].default)).expanduser()
    try:
        return Config(**{**_local_addresses(home), **given})
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"])
        reason = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"config field {field}: {reason}") from None


def _is_place(address: str) -> bool:
    """Tell whether a URL names a host and, if any, a port that can be."""
    try:
        parts = urlsplit(address)
        return bool(parts.hostname) and parts.port != 0 and not set(address) & set(" \t\r\n")
    except ValueError:
        return False


def _environment() -> dict[str, str]:
    """Return the variables that are set; an empty one is not."""
    named = {name: os.environ.get(PREFIX + name.upper(), "") for name in Config.model_fields}
    return {name: value for name, value in named.items() if value}


def _toml() -> dict[str, Any]:
    given = os.environ.get(f"{PREFIX}CONFIG")
    if not given:
        return {}
    if not Path(given).is_file():
        raise UsageError(f"TURNLOG_CONFIG names {given}, which is not a file")
    try:
        return tomllib.loads(Path(given).read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"TURNLOG_CONFIG names {given}, which is no TOML: {error}") from error


def _local_addresses(home: Path) -> dict[str, Any]:
    """Return the addresses that `turnlog up` wrote, or none."""
    try:
        stored = json.loads((home / "addresses.json").read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{home}/addresses.json cannot be read: {error}") from error
    if not isinstance(stored, dict):
        raise UsageError(
            f"{home}/addresses.json is no JSON object: remove it, `turnlog up` writes it anew"
        )
    return stored
