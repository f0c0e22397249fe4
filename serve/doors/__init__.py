"""The HTTP door: one table of routes, each with its role and its OpenAPI operation."""
