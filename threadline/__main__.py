"""`python -m threadline` is the `threadline` command."""

import sys


def main() -> None:
    """Run the command. Ctrl-C is no error, also while what it needs is loaded."""
    try:
        from threadline.cli import app

        app()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
