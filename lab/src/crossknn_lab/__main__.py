"""`python -m crossknn_lab`."""

from crossknn_lab.cli import main

main()
