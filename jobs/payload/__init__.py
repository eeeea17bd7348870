"""What is shipped and runs on the platform; imports nothing of ours but itself."""
