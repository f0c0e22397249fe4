"""Killing parts at random moments while they work, and checking what must never happen."""
