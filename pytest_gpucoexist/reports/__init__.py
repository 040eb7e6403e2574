"""What a session tells people and other programs: terminal, JSON, JUnit properties, HTML, Markdown."""
