"""Recording what Python clients of providers send and receive, without changing them."""

from turnlog.clients.about import annotate
from turnlog.clients.wrapping import wrap

__all__ = ["annotate", "wrap"]
