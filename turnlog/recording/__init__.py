"""Recording an exchange with a provider while it happens, for whoever carries its bytes."""

from turnlog.recording.calls import is_model_call
from turnlog.recording.counts import COUNTS, Counts
from turnlog.recording.recording import Recording
from turnlog.recording.seen import About, Seen, Who, without_secrets
from turnlog.recording.sync import SyncRecording

__all__ = [
    "COUNTS",
    "About",
    "Counts",
    "Recording",
    "Seen",
    "SyncRecording",
    "Who",
    "is_model_call",
    "without_secrets",
]
