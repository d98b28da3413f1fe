"""The commands. Each is a module with a docstring for its help and a function `main(arguments) -> exit code`."""
