"""`python -m fuzz`: the command `poolproof`, from a checkout that is not installed."""

from fuzz.cli import main

if __name__ == "__main__":
    main(prog_name="poolproof")
