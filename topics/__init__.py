"""The one catalogue of topics, and what creates and verifies them."""
