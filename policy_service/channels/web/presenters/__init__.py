"""Convert read models to template variables, and form fields back to values. Pure."""
