"""Start as a folder: `python -I -S .../standby/drivers/keeper <directory> <boot id file>`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python put this folder on the path; the package's own parent belongs there instead.
    sys.path[0] = str(Path(__file__).resolve().parents[3])
    from standby.drivers.keeper.loop import main

    sys.exit(main(sys.argv[1:]))
