"""The errors of Turnlog, one class per decision that a caller can make.

TurnlogError
 ├── UsageError           the user asked for something that cannot be (exit 2)
 ├── NotFound             missing, erased or another org's: the same answer (exit 1)
 ├── DecodeError          bytes that are not an event: dead letter
 │    └── UnknownSchema   a fingerprint that no schema here has
 ├── FrameError           a frame that does not open under its key
 ├── KeyStateError        a key that cannot be derived
 │    ├── Erased          it was destroyed; nobody can derive it again
 │    ├── KeyUnavailable  rows are missing or not minted yet: retry, alarm, never "not found"
 │    └── NoTree          no head: this tree never was
 ├── TooLarge             a frame or record over its limit
 ├── Conflict             the same identity with other content
 └── Unavailable          a part of the stack does not answer: retry (exit 1)
      ├── SpoolFull       nor is there room in the disk spool: nothing was written
      │    └── InDoubt    but Kafka had been given it, and may still write it
      └── NotInstalled    a program that a local part needs is not there
"""


class TurnlogError(Exception):
    """Base of everything that Turnlog raises on purpose."""


class UsageError(TurnlogError):
    """The user asked for something that cannot be."""


class NotFound(TurnlogError):
    """Missing, erased or belonging to another org; these three are told apart nowhere."""


class DecodeError(TurnlogError):
    """Bytes that are not an event."""


class UnknownSchema(DecodeError):
    """A schema fingerprint that nobody here knows."""


class FrameError(TurnlogError):
    """A frame that does not open under its key."""


class KeyStateError(TurnlogError):
    """A key that cannot be derived."""


class Erased(KeyStateError):
    """The key was destroyed; nobody can derive it again."""


class KeyUnavailable(KeyStateError):
    """Key rows are missing, do not open or are not minted yet: retry, never "not found"."""


class NoTree(KeyStateError):
    """There is no head for this tree: it never was."""


class TooLarge(TurnlogError):
    """A frame or record over its limit."""


class Conflict(TurnlogError):
    """The same identity with other content."""


class Unavailable(TurnlogError):
    """A part of the stack does not answer; a retry may work."""


class SpoolFull(Unavailable):
    """The disk spool takes no more: it is at its bound, or the disk is full or read-only."""


class InDoubt(SpoolFull):
    """Nobody vouches for the event, and it may still be written: Kafka had been given it before.

    A retry is safe where it makes the same event: the same run, or the same idempotency key.
    """


class NotInstalled(Unavailable):
    """A program that a local part needs is not there or too old; the message says what to get."""
