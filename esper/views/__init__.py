"""Views: terminal output, tables and figures."""
