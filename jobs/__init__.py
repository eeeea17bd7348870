"""What is trained and how it runs remotely; knows no platform, quota or database."""
