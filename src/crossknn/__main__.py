"""`python -m crossknn`."""

from crossknn.cli import main

main()
