"""`python -m onelog` is `onelog`; or a server whose command line was read by that already."""

import os
import sys

from onelog.names import STARTED

if __name__ == "__main__":
    started = os.environ.pop(STARTED, None)
    if started is None:
        from onelog.cli import main

        main()
    else:
        from onelog.commands.serving import start

        sys.exit(start(started))
