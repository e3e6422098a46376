"""Everything that is drawn for people: terminal views, tables and figures."""
