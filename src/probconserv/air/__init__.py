"""What an atmosphere is made of."""
