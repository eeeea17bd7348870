"""What Kaggle is given for a launch: code, data and the program that starts it."""
