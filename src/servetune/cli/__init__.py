"""The command line: one file per verb; parse, build nouns, call one function, print."""
