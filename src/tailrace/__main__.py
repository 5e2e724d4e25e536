"""`python -m tailrace`: the same program as the `tailrace` script."""

from tailrace.cli.main import main

if __name__ == "__main__":
    main()
