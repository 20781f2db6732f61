"""`python -m standby`, where the command is not on the path."""

from standby.cli.main import main

main()
