"""A launch: quota and devices reserved, all that a session is given, and the platform called."""
