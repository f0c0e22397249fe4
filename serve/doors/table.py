"""Every route that the server has. What is not here cannot be called."""

from collections.abc import Mapping
from typing import Any

from serve.doors import append, description, health, otlp, runs, views
from serve.doors.route import OpenRoute, Route

# Of each module with routes, its `ROUTES` and, where its operations refer to some, its `SCHEMAS`.
TABLE: tuple[Route | OpenRoute, ...] = (
    *health.ROUTES,
    *description.ROUTES,
    *append.ROUTES,
    *runs.ROUTES,
    *otlp.ROUTES,
    *views.ROUTES,
)
SCHEMAS: Mapping[str, Mapping[str, Any]] = {**health.SCHEMAS, **views.SCHEMAS}
