"""Base of all commands: parser classes, context, exit codes, name lookup, output and tables."""
