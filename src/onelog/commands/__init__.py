"""The command line, a module per group of commands; each is imported when it is used."""
