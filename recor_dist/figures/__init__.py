"""Tables, plots and the report page, drawn from recorded runs."""
