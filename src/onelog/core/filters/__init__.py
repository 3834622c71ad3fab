"""Which messages a consumer wants: by tags, or by a SQL-92 condition."""
