"""What Kaggle shows of a launch and what it leaves: records, output, files."""
