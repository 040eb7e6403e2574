"""What others recorded, and what they found out about it, against the JSON of the machine."""
