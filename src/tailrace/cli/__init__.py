"""The `tailrace` command. Each command's module is imported when it runs, so that `--help` stays quick."""
