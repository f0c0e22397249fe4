"""Packfiles in S3."""
