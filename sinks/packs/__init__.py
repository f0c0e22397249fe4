"""Packs: the archive's objects in S3, in the form of docs/pack-format.md."""
