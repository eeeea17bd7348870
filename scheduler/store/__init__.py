"""The database: schema, migrations and one module per table group."""
