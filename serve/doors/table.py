"""Every route that the server has. What is not here cannot be called."""

from collections.abc import Mapping
from typing import Any

from serve.doors import append, description, health, otlp, runs, views
from serve.doors.route import OpenRoute, Route

# In the order in which /docs shows them. Of each module with routes, its `ROUTES` and, where its
# operations refer to some, its `SCHEMAS`.
TABLE: tuple[Route | OpenRoute, ...] = (
    *append.ROUTES,
    *runs.ROUTES,
    *views.ROUTES,
    *otlp.ROUTES,
    *health.ROUTES,
    *description.ROUTES,
)
SCHEMAS: Mapping[str, Mapping[str, Any]] = {**health.SCHEMAS, **views.SCHEMAS}
