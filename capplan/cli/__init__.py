"""The command line: thin typer commands, one module each."""
