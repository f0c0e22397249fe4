"""The recording proxy: bytes go through unchanged, and the run is recorded on the way."""

from serve.proxy.server import Proxy, producer_of
from serve.proxy.settings import Settings

__all__ = ["Proxy", "Settings", "producer_of"]
