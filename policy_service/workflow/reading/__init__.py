"""What people read: frozen values, and what is never shown in them."""
