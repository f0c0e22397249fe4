"""Reading one request of ClickHouse's HTTP interface: what is a setting, what a parameter."""

import base64
import binascii
import uuid
from collections.abc import Mapping
from typing import NamedTuple

# Names in the URL that are neither settings nor parameters. The last ones mean nothing here: an
# answer is always whole before its first byte is sent.
_RESERVED = {
    "query",
    "query_id",
    "database",
    "default_format",
    "session_id",
    "session_timeout",
    "session_check",
    "user",
    "password",
    "compress",
    "decompress",
    "quota_key",
    "role",
    "client_protocol_version",
    "wait_end_of_query",
    "buffer_size",
    "stacktrace",
    "close_session",
    "send_progress_in_http_headers",
    "http_headers_progress_interval_ms",
}
_PARAMETER = "param_"
_SESSION_TIMEOUT_S = 60.0


class Request(NamedTuple):
    """What a request asks for, beside its statement and data."""

    query_id: str
    database: str
    format: str
    settings: dict[str, str]
    parameters: dict[str, str]
    session_id: str
    session_timeout_s: float
    session_check: bool
    user: str
    password: str
    native_framing: bool  # ClickHouse's own block compression instead of an HTTP encoding


def read(fields: Mapping[str, str], headers: Mapping[str, str]) -> Request:
    """Read the fields of the URL (and of a form), and the headers."""
    user, password = _credentials(fields, headers)
    return Request(
        query_id=fields.get("query_id") or str(uuid.uuid4()),
        database=fields.get("database") or headers.get("X-ClickHouse-Database", ""),
        format=fields.get("default_format") or headers.get("X-ClickHouse-Format", "TabSeparated"),
        settings=_settings(fields),
        parameters=_parameters(fields),
        session_id=fields.get("session_id", ""),
        session_timeout_s=float(fields.get("session_timeout") or _SESSION_TIMEOUT_S),
        session_check=fields.get("session_check") == "1",
        user=user,
        password=password,
        native_framing="1" in (fields.get("compress"), fields.get("decompress")),
    )


def _settings(fields: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in fields.items()
        if name not in _RESERVED and not name.startswith(_PARAMETER)
    }


def _parameters(fields: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix(_PARAMETER): value
        for name, value in fields.items()
        if name.startswith(_PARAMETER)
    }


def _credentials(fields: Mapping[str, str], headers: Mapping[str, str]) -> tuple[str, str]:
    basic = headers.get("Authorization", "")
    if basic.startswith("Basic "):
        try:
            user, _, password = base64.b64decode(basic[6:]).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return "", ""
        return user, password
    user = headers.get("X-ClickHouse-User") or fields.get("user") or "default"
    return user, headers.get("X-ClickHouse-Key") or fields.get("password") or ""
