"""Administration: every operation is declared once, and has a command, a REST route and a form."""
