"""`python -m servetune`."""

from servetune.cli.main import main

if __name__ == "__main__":
    main()
