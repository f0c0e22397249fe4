"""`python -m serve` is the `turnlog` command."""

from serve.cli import main

main()
