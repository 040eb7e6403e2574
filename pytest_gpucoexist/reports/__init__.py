"""What a person or another program reads: terminal text, JSON, JUnit properties, HTML, Markdown."""
