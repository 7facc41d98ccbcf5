"""`python -m ramjet` is the same as the `ramjet` command."""

from ramjet.cli import main

main()
