"""What a pytest session does with the machine: marks, decisions, fixtures, pins."""
