"""What plans are made of: jobs, pools and what these have left, sessions and what they are worth."""
