"""What the project claims as a whole, seen end to end."""
