"""The commands of ``schedctl``, in one module per group or command."""
