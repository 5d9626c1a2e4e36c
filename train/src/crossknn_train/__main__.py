"""`python -m crossknn_train`."""

from crossknn_train.cli import main

main()
