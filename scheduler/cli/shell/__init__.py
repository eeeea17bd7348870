"""What every command shares: context, exit codes, names, output and its shapes."""
