"""Schemas are data; read them through `turnlog.events`."""
