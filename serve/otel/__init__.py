"""OpenTelemetry spans into runs: pure translation of what a trace exporter sends (docs/otlp.md)."""
