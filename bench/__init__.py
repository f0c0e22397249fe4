"""Benchmarks with --json; none of them is a test."""
