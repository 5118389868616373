"""`python -m rollbook` is the command `rollbook`."""

from rollbook.cli.main import main

main()
