"""`python -m onelog` is `onelog`."""

from onelog.cli import main

if __name__ == "__main__":
    main()
